//! A connection during its handshake: rustls talks to the peer, one record at a time.

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, WriteTraffic};
use rustls::{HandshakeKind, ProtocolVersion};
use std::sync::Arc;

use h2o_exchange::TlsInfo;

use crate::error::Alert;
use crate::error::TlsError;
use crate::record::framing::{ContentType, complete_len};
use crate::record::output::OutputBuffer;
use crate::record::size::RecordSize;
use crate::record::traffic::Traffic;
use crate::server::acceptor::Choice;
use crate::server::client_hello::{Greeting, Seen};
use crate::versions::Version;
use crate::{alpn, suites};

/// What is kept of an unfinished handshake, in octets received: room for a client certificate chain. A ClientHello is
/// a few thousand octets.
pub(crate) const MAX_KEPT_LEN: usize = 96 * 1024;

/// What a handshake holds besides octets received: the connection of rustls with its keys and buffers. Measured with clients that
/// leave ours unanswered: 5.4 KB each in TLS 1.3, less in TLS 1.2.
const RUSTLS_RETAINED: usize = 6 * 1024;

/// A handshake in progress.
pub(crate) struct Handshake {
    rustls: UnbufferedServerConnection,
    /// Received and not yet discarded by rustls, which joins pieces of messages in here.
    received: Vec<u8>,
    /// How much of `received` rustls has seen. It never sees past the end of a record, so that it never takes up
    /// records that belong to the established connection.
    shown: usize,
    /// Octets that rustls has discarded.
    taken: usize,
    /// Something was sent, so that an alert may have to be encrypted.
    has_sent: bool,
    /// Data may be sent before the client's Finished has come.
    may_answer: bool,
    /// close_notify was sent: nothing may follow.
    is_closed: bool,
    server_name: Option<Box<str>>,
    client_authority: Option<Arc<str>>,
    /// Whether the kernel may encrypt what is sent later.
    may_offload: bool,
    /// For the second ClientHello of a client whose name is hidden, until it has come.
    retried_hello: Option<Greeting>,
    record_size: RecordSize,
}

/// Where the handshake stands after a step.
pub(crate) enum Step {
    /// It needs more octets.
    NeedMore,
    /// The peer gave up without an error.
    ClosedByPeer,
    /// It is complete.
    Done,
}

impl Handshake {
    /// Begins with the octets that were received while the configuration was chosen.
    ///
    /// # Errors
    /// [`TlsError::Handshake`]
    pub(crate) fn new(choice: Choice, received: Vec<u8>) -> Result<Self, TlsError> {
        Ok(Self {
            rustls: UnbufferedServerConnection::new(choice.config)?,
            received,
            shown: 0,
            taken: 0,
            has_sent: false,
            may_answer: false,
            is_closed: false,
            server_name: choice.server_name,
            client_authority: choice.client_authority,
            may_offload: choice.may_offload,
            retried_hello: choice.odd_name_at.map(|_| Greeting::default()),
            record_size: RecordSize::default(),
        })
    }

    /// Takes `input` and goes as far as it allows. Early data is appended to `plain`.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] and others; the alert is in `out`.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
    ) -> Result<Step, TlsError> {
        self.received.extend_from_slice(input);
        match self.advance(plain, out) {
            Err(TlsError::PeerAlert(description))
                if description == Alert::CLOSE_NOTIFY.description =>
            {
                Ok(Step::ClosedByPeer)
            }
            Err(error) => {
                // rustls has no alert for some faults of a first message.
                if !self.has_sent && error.expects_alert() {
                    out.extend_from_slice(&error.plain_alert());
                }
                Err(error)
            }
            Ok(step) => Ok(step),
        }
    }

    fn advance(&mut self, plain: &mut Vec<u8>, out: &mut OutputBuffer) -> Result<Step, TlsError> {
        loop {
            match self.step(plain, out)? {
                Step::NeedMore => {}
                step @ (Step::ClosedByPeer | Step::Done) => return Ok(step),
            }
            let next = if self.hide_name_again() {
                None
            } else {
                self.next_record()
            };
            let Some(len) = next else {
                if self.received.len() > MAX_KEPT_LEN {
                    return Err(TlsError::HandshakeTooLarge);
                }
                return Ok(Step::NeedMore);
            };
            self.shown += len;
        }
    }

    /// A client that was asked to retry (RFC 8446 §4.1.4) sends its ClientHello once more, with the same name.
    /// Returns whether rustls has to wait for the rest of it.
    fn hide_name_again(&mut self) -> bool {
        let Some(greeting) = &mut self.retried_hello else {
            return false;
        };
        let is_asked =
            self.rustls.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        let unseen = &self.received[self.shown..];
        // Records of other types may come before it: ChangeCipherSpec, and early data that is refused.
        if !is_asked || unseen.first() != Some(&ContentType::Handshake.octet()) {
            return false;
        }
        let odd_name_at = match greeting.look_at(unseen) {
            Seen::NeedMore => return true,
            Seen::Hello(hello) => hello.odd_name_at,
            Seen::ClearText | Seen::Unreadable => None,
        };
        let greeting = self.retried_hello.take();
        if let (Some(greeting), Some(at)) = (greeting, odd_name_at) {
            let rewritten = greeting.with_hidden_name(&self.received[self.shown..], at);
            self.received.truncate(self.shown);
            self.received.extend_from_slice(&rewritten);
        }
        false
    }

    /// The length of the next complete record that rustls has not seen.
    fn next_record(&self) -> Option<usize> {
        let unseen = &self.received[self.shown..];
        let is_record = ContentType::parse(*unseen.first()?).is_some();
        match complete_len(unseen) {
            Ok(len) if is_record => len,
            // rustls finds the words for what is wrong.
            Ok(_) | Err(_) => Some(unseen.len()),
        }
    }

    /// Lets rustls work until it has used up what it is shown.
    fn step(&mut self, plain: &mut Vec<u8>, out: &mut OutputBuffer) -> Result<Step, TlsError> {
        loop {
            let status = self
                .rustls
                .process_tls_records(&mut self.received[..self.shown]);
            let discard = status.discard;
            let next = match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|room| data.encode(room), out)?;
                    self.has_sent = true;
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::ReadEarlyData(mut data)) => {
                    while let Some(record) = data.next_record() {
                        plain.extend_from_slice(record?.payload);
                    }
                    None
                }
                Ok(ConnectionState::ReadTraffic(mut data)) => {
                    while let Some(record) = data.next_record() {
                        plain.extend_from_slice(record?.payload);
                    }
                    None
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Some(Step::ClosedByPeer)
                }
                Ok(ConnectionState::BlockedHandshake) => Some(Step::NeedMore),
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.may_answer = true;
                    Some(Step::NeedMore)
                }
                Ok(_) => return Err(TlsError::Crypto),
                Err(error) => {
                    self.take_alert(out)?;
                    return Err(error.into());
                }
            };
            self.received.drain(..discard);
            self.shown -= discard;
            self.taken += discard;
            match next {
                Some(Step::NeedMore) if !self.rustls.is_handshaking() => return Ok(Step::Done),
                Some(step) => return Ok(step),
                None => {}
            }
        }
    }

    /// After an error, what rustls still wants to send.
    fn take_alert(&mut self, out: &mut OutputBuffer) -> Result<(), TlsError> {
        while self.rustls.wants_write() {
            match self.rustls.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|room| data.encode(room), out)?;
                    self.has_sent = true;
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Octets of memory held. What rustls keeps of the handshake is not known: some buffers of its own, and of a client's
    /// certificates what they have as octets.
    pub(crate) fn retained(&self) -> usize {
        RUSTLS_RETAINED + self.taken + self.received.capacity()
    }

    /// True if early data can be answered before the client's Finished has come.
    pub(crate) fn may_answer(&self) -> bool {
        self.may_answer
    }

    /// What was negotiated, as soon as our side has answered the ClientHello.
    pub(crate) fn info(&self) -> Option<TlsInfo> {
        let suite = self.rustls.negotiated_cipher_suite()?;
        let (cipher, cipher_bits) = suites::describe(suite.suite());
        Some(TlsInfo {
            protocol: version(self.rustls.protocol_version()?).name(),
            cipher,
            cipher_bits,
            server_name: self.server_name.clone(),
            alpn: self.rustls.alpn_protocol().and_then(alpn::name),
            resumed: self.rustls.handshake_kind() == Some(HandshakeKind::Resumed),
            client_authority: self.client_authority.clone(),
        })
    }

    /// Says that nothing more will be sent, where anything could be; once.
    pub(crate) fn close_notify(&mut self, out: &mut OutputBuffer) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let status = self
            .rustls
            .process_tls_records(&mut self.received[..self.shown]);
        let discard = status.discard;
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state
            && let Err(EncryptError::InsufficientSize(needed)) = traffic.queue_close_notify(&mut [])
        {
            let start = out.len();
            let room = out.extend_to_write(needed.required_size);
            // A failure to encrypt the farewell leaves nothing else to say.
            let written = traffic.queue_close_notify(room).unwrap_or(0);
            out.truncate(start + written);
        }
        self.received.drain(..discard);
        self.shown -= discard;
    }

    /// Sends application data before the client's Finished has come, in answer to early data.
    ///
    /// # Errors
    /// [`TlsError::NotReady`] if that is not allowed now, [`TlsError::Closed`] if it is not any more.
    pub(crate) fn encrypt(
        &mut self,
        mut plain: &[u8],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        if self.is_closed {
            return Err(TlsError::Closed);
        }
        let status = self
            .rustls
            .process_tls_records(&mut self.received[..self.shown]);
        let discard = status.discard;
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
            return Err(TlsError::NotReady);
        };
        while !plain.is_empty() {
            let limit = self.record_size.limit(TLS13_OVERHEAD).min(plain.len());
            let (now, later) = plain.split_at(limit);
            encrypt_record(&mut traffic, now, out)?;
            self.record_size.on_written(now.len());
            plain = later;
        }
        self.received.drain(..discard);
        self.shown -= discard;
        Ok(())
    }

    /// The established connection, what is known about it, and the octets that follow the handshake.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if the handshake is not complete.
    pub(crate) fn finish(self) -> Result<(Traffic, TlsInfo, Vec<u8>), TlsError> {
        let (Some(negotiated), Some(suite), Some(info)) = (
            self.rustls.protocol_version(),
            self.rustls.negotiated_cipher_suite(),
            self.info(),
        ) else {
            return Err(TlsError::Crypto);
        };
        let (secrets, kernel) = self.rustls.dangerous_into_kernel_connection()?;
        let traffic = Traffic::new(
            version(negotiated),
            suite,
            secrets,
            kernel,
            self.record_size,
            self.may_offload,
        )?;
        Ok((traffic, info, self.received))
    }
}

fn version(negotiated: ProtocolVersion) -> Version {
    match negotiated {
        ProtocolVersion::TLSv1_3 => Version::Tls13,
        _ => Version::Tls12,
    }
}

/// Header, inner type and tag; only TLS 1.3 sends data during the handshake.
pub(crate) const TLS13_OVERHEAD: usize = 22;

/// Appends what `encode` writes once it has said how much room it needs.
fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    out: &mut OutputBuffer,
) -> Result<(), TlsError> {
    let Err(EncodeError::InsufficientSize(needed)) = encode(&mut []) else {
        return Err(TlsError::Crypto);
    };
    let start = out.len();
    let room = out.extend_to_write(needed.required_size);
    let written = encode(room).map_err(|_| TlsError::Crypto)?;
    out.truncate(start + written);
    Ok(())
}

fn encrypt_record(
    traffic: &mut WriteTraffic<'_, rustls::server::ServerConnectionData>,
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
