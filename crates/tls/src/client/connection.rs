//! A TLS connection to a backend, without its socket.

use std::sync::Arc;

use h2o_exchange::TlsInfo;
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use crate::error::TlsError;
use crate::handshake::{Handshake, HandshakeStep, Progress};
use crate::record::output::OutputBuffer;
use crate::record::size::RecordSize;
use crate::record::traffic::{PlainSink, Traffic};

/// The client role of a connection. Data may be sent once [`ClientConnection::receive`] has completed the handshake.
pub struct ClientConnection {
    state: HandshakeState,
    info: TlsInfo,
    alpn: Option<Box<[u8]>>,
}

enum HandshakeState {
    /// The handshake is in progress. Boxed, because its state is only needed until it is complete.
    Handshake(Box<Handshake<UnbufferedClientConnection>>),
    Established(Box<Traffic>),
    /// The connection has failed, or the backend closed it during the handshake.
    Ended,
}

impl ClientConnection {
    /// Begins the handshake with the backend `name`. Appends the ClientHello to `out`.
    ///
    /// # Errors
    /// [`TlsError::Handshake`]
    pub(super) fn begin(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        out: &mut OutputBuffer,
    ) -> Result<Self, TlsError> {
        let rustls = UnbufferedClientConnection::new(config, name)?;
        let mut handshake = Box::new(Handshake::new(rustls, Vec::new()));
        handshake.receive(&[], &mut Vec::new(), out, |_, _| false)?;
        Ok(Self {
            state: HandshakeState::Handshake(handshake),
            info: TlsInfo::default(),
            alpn: None,
        })
    }

    /// Processes bytes from the backend; records in `input` are decrypted in place. Appends plaintext to `plain`, and
    /// bytes to send to `out`. Keeps an incomplete record until the rest arrives.
    ///
    /// # Errors
    /// The connection has ended. The alert is in `out`; nothing else may be sent.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut impl PlainSink,
        out: &mut OutputBuffer,
    ) -> Result<Progress, TlsError> {
        match std::mem::replace(&mut self.state, HandshakeState::Ended) {
            HandshakeState::Established(mut traffic) => {
                traffic.receive(input, plain, out)?;
                let closed_by_peer = traffic.is_closed_by_peer();
                self.state = HandshakeState::Established(traffic);
                Ok(Progress {
                    closed_by_peer,
                    ..Progress::default()
                })
            }
            HandshakeState::Handshake(handshake) => {
                self.continue_handshake(handshake, input, plain, out)
            }
            HandshakeState::Ended => Err(TlsError::Closed),
        }
    }

    fn continue_handshake(
        &mut self,
        mut handshake: Box<Handshake<UnbufferedClientConnection>>,
        input: &[u8],
        plain: &mut impl PlainSink,
        out: &mut OutputBuffer,
    ) -> Result<Progress, TlsError> {
        // During the handshake, rustls is given no records of application data.
        match handshake.receive(input, &mut Vec::new(), out, |_, _| false)? {
            HandshakeStep::NeedMore => {
                self.state = HandshakeState::Handshake(handshake);
                Ok(Progress {
                    handshaking: true,
                    ..Progress::default()
                })
            }
            HandshakeStep::ClosedByPeer => Ok(Progress {
                closed_by_peer: true,
                ..Progress::default()
            }),
            HandshakeStep::Done => {
                self.info = handshake.info().ok_or(TlsError::Crypto)?;
                self.alpn = handshake.alpn().map(Box::from);
                let (mut traffic, mut rest) = handshake.finish(RecordSize::full(), false)?;
                traffic.receive(&mut rest, plain, out)?;
                let closed_by_peer = traffic.is_closed_by_peer();
                self.state = HandshakeState::Established(Box::new(traffic));
                Ok(Progress {
                    handshake_done_now: true,
                    closed_by_peer,
                    ..Progress::default()
                })
            }
        }
    }

    /// Appends `plain` to `out` as application data.
    ///
    /// # Errors
    /// [`TlsError::NotReady`] during the handshake, [`TlsError::Closed`] after [`Self::close_notify`],
    /// [`TlsError::KeysExhausted`].
    pub fn encrypt(&mut self, plain: &[u8], out: &mut OutputBuffer) -> Result<(), TlsError> {
        match &mut self.state {
            HandshakeState::Established(traffic) => traffic.encrypt(plain, out),
            HandshakeState::Handshake(_) => Err(TlsError::NotReady),
            HandshakeState::Ended => Err(TlsError::Closed),
        }
    }

    /// Appends close_notify to `out`, once, if the handshake is complete.
    pub fn close_notify(&mut self, out: &mut OutputBuffer) {
        if let HandshakeState::Established(traffic) = &mut self.state {
            traffic.close_notify(out);
        }
    }

    /// The negotiated parameters; empty before the handshake is complete.
    #[must_use]
    pub fn info(&self) -> TlsInfo {
        self.info.clone()
    }

    /// The application protocol that the backend chose (RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }
}
