//! The handshake with a client. Adds two things to [`crate::handshake`]: responses to early data, and hiding a server name from
//! rustls.

use std::sync::Arc;

use h2o_exchange::TlsInfo;
use rustls::HandshakeKind;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncryptError, WriteTraffic};

use crate::alpn;
use crate::error::TlsError;
use crate::handshake::{Handshake, HandshakeStep, Unseen};
use crate::record::framing::ContentType;
use crate::record::output::OutputBuffer;
use crate::record::size::RecordSize;
use crate::record::traffic::Traffic;
use crate::server::acceptor::ChosenConfig;
use crate::server::client_hello::{ClientHelloReader, HelloStatus};

/// A handshake with a client.
pub(crate) struct ServerHandshake {
    handshake: Handshake<UnbufferedServerConnection>,
    /// Whether close_notify was sent: nothing may be sent after it.
    is_closed: bool,
    server_name: Option<Box<str>>,
    client_authority: Option<Arc<str>>,
    session_id: Option<Box<str>>,
    /// Whether the kernel may encrypt sent data later (kTLS).
    may_offload: bool,
    /// Reads the second ClientHello of a client whose name is hidden; `None` once it has arrived.
    retried_hello: Option<ClientHelloReader>,
    record_size: RecordSize,
}

impl ServerHandshake {
    /// Begins the handshake with the bytes that were received while the configuration was chosen.
    ///
    /// # Errors
    /// [`TlsError::Handshake`]
    pub(crate) fn new(choice: ChosenConfig, received: Vec<u8>) -> Result<Self, TlsError> {
        let rustls = UnbufferedServerConnection::new(choice.config)?;
        Ok(Self {
            handshake: Handshake::new(rustls, received),
            is_closed: false,
            server_name: choice.server_name,
            client_authority: choice.client_authority,
            session_id: choice.session_id,
            may_offload: choice.may_offload,
            retried_hello: choice.hidden_name_at.map(|_| ClientHelloReader::default()),
            record_size: RecordSize::default(),
        })
    }

    /// See [`Handshake::receive`].
    ///
    /// # Errors
    /// [`TlsError::Handshake`] and others; the alert is in `out`.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
    ) -> Result<HandshakeStep, TlsError> {
        let retried_hello = &mut self.retried_hello;
        self.handshake.receive(input, plain, out, |rustls, unseen| {
            hide_name_again(retried_hello, rustls, unseen)
        })
    }

    /// Number of bytes of memory held.
    pub(crate) fn retained(&self) -> usize {
        self.handshake.retained()
    }

    /// Whether early data can be answered before the client's Finished has arrived.
    pub(crate) fn may_answer(&self) -> bool {
        self.handshake.may_send()
    }

    /// The negotiated parameters, once the ClientHello was answered.
    pub(crate) fn info(&self) -> Option<TlsInfo> {
        Some(TlsInfo {
            server_name: self.server_name.clone(),
            alpn: self.handshake.alpn().and_then(alpn::name),
            client_authority: self.client_authority.clone(),
            session_id: self.session_id.clone(),
            ..self.handshake.info()?
        })
    }

    /// Sends close_notify, once, if rustls can encrypt data already.
    pub(crate) fn close_notify(&mut self, out: &mut OutputBuffer) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.handshake.with_state(|state| {
            if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state
                && let Err(EncryptError::InsufficientSize(needed)) =
                    traffic.queue_close_notify(&mut [])
            {
                let start = out.len();
                let room = out.extend_to_write(needed.required_size);
                // If close_notify cannot be encrypted, nothing else can be sent either.
                let written = traffic.queue_close_notify(room).unwrap_or(0);
                out.truncate(start + written);
            }
        });
    }

    /// Sends application data before the client's Finished has arrived, in response to early data.
    ///
    /// # Errors
    /// [`TlsError::NotReady`] if that is not allowed now, [`TlsError::Closed`] after close_notify.
    pub(crate) fn encrypt(
        &mut self,
        mut plain: &[u8],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        if self.is_closed {
            return Err(TlsError::Closed);
        }
        let record_size = &mut self.record_size;
        self.handshake.with_state(|state| {
            let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
                return Err(TlsError::NotReady);
            };
            while !plain.is_empty() {
                let limit = record_size.limit(TLS13_OVERHEAD).min(plain.len());
                let (now, later) = plain.split_at(limit);
                encrypt_record(&mut traffic, now, out)?;
                record_size.on_written(now.len());
                plain = later;
            }
            Ok(())
        })
    }

    /// Ends the handshake: returns the established connection, its parameters, and the bytes received after the handshake.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if the handshake is not complete.
    pub(crate) fn finish(self) -> Result<(Traffic, TlsInfo, Vec<u8>), TlsError> {
        let info = self.info().ok_or(TlsError::Crypto)?;
        let (traffic, rest) = self.handshake.finish(self.record_size, self.may_offload)?;
        Ok((traffic, info, rest))
    }
}

/// After a HelloRetryRequest (RFC 8446 §4.1.4) the client repeats its ClientHello, with the same server name, which is hidden
/// again. Returns whether rustls must wait for the rest of that ClientHello.
fn hide_name_again(
    retried_hello: &mut Option<ClientHelloReader>,
    rustls: &UnbufferedServerConnection,
    unseen: &mut Unseen<'_>,
) -> bool {
    let Some(reader) = retried_hello else {
        return false;
    };
    let is_asked = rustls.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
    // Other records may come before the second ClientHello: ChangeCipherSpec, and early data that was refused.
    if !is_asked || unseen.bytes().first() != Some(&ContentType::Handshake.byte()) {
        return false;
    }
    let hidden_name_at = match reader.read(unseen.bytes()) {
        HelloStatus::NeedMore => return true,
        HelloStatus::Complete(hello) => hello.hidden_name_at,
        HelloStatus::ClearText | HelloStatus::Malformed => None,
    };
    if let (Some(reader), Some(at)) = (retried_hello.take(), hidden_name_at) {
        let rewritten = reader.with_hidden_name(unseen.bytes(), at);
        unseen.replace(&rewritten);
    }
    false
}

/// Number of bytes that a record adds to its content: header, inner type and tag. Only TLS 1.3 sends data during the handshake.
pub(crate) const TLS13_OVERHEAD: usize = 22;

fn encrypt_record(
    traffic: &mut WriteTraffic<'_, ServerConnectionData>,
    plain: &[u8],
    out: &mut OutputBuffer,
) -> Result<(), TlsError> {
    let Err(EncryptError::InsufficientSize(needed)) = traffic.encrypt(plain, &mut []) else {
        return Err(TlsError::Crypto);
    };
    let start = out.len();
    let room = out.extend_to_write(needed.required_size);
    let written = traffic.encrypt(plain, room).map_err(|_| TlsError::Crypto)?;
    out.truncate(start + written);
    Ok(())
}
