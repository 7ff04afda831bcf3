//! A TLS connection with a client, without its socket.

use std::sync::Arc;
use std::task::Waker;

use h2o_exchange::TlsInfo;

use crate::error::TlsError;
use crate::handshake::{HandshakeStep, MAX_KEPT_LEN, Progress};
use crate::record::kernel::{KernelAction, KernelKeys};
use crate::record::output::OutputBuffer;
use crate::record::traffic::Traffic;
use crate::resumption::Lookup;
use crate::server::acceptor::{ChosenConfig, TlsAcceptor};
use crate::server::client_hello::{ClientHelloReader, HelloStatus};
use crate::server::handshake::{ServerHandshake, TLS13_OVERHEAD};

/// A TLS connection with a client, with this side as the server.
pub struct TlsConnection {
    state: HandshakeState,
    info: TlsInfo,
}

enum HandshakeState {
    /// The connection waits for the complete ClientHello, by which the configuration is chosen.
    ClientHello {
        acceptor: Arc<TlsAcceptor>,
        received: Vec<u8>,
        reader: ClientHelloReader,
    },
    /// The handshake begins when the client's session has been looked up in a store that servers share.
    Lookup(Box<WaitingClient>),
    /// rustls performs the handshake. Boxed, because this state is only needed until the handshake is complete.
    Handshake(Box<ServerHandshake>),
    Established(Box<Traffic>),
    /// The handshake has failed, or the peer has closed the connection during it.
    Ended,
}

/// A client whose handshake waits for the lookup of its session: the values with which the handshake will begin.
struct WaitingClient {
    lookup: Lookup,
    choice: ChosenConfig,
    received: Vec<u8>,
}

impl TlsConnection {
    pub(crate) fn new(acceptor: Arc<TlsAcceptor>) -> Self {
        Self {
            state: HandshakeState::ClientHello {
                acceptor,
                received: Vec::new(),
                reader: ClientHelloReader::default(),
            },
            info: TlsInfo::default(),
        }
    }

    /// Processes bytes from the client; records in `input` are decrypted in place. Appends plaintext to `plain`, and
    /// bytes to send to `out`. Keeps an incomplete record until the rest arrives.
    ///
    /// # Errors
    /// The connection has ended. The alert is in `out`; nothing else may be sent.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
    ) -> Result<Progress, TlsError> {
        if let HandshakeState::Established(traffic) = &mut self.state {
            let received = traffic.receive(input, plain, out);
            let closed_by_peer = traffic.is_closed_by_peer();
            return match received {
                Ok(()) => Ok(Progress {
                    closed_by_peer,
                    ..Progress::default()
                }),
                Err(error) => {
                    self.state = HandshakeState::Ended;
                    Err(error)
                }
            };
        }
        match self.advance(input, plain, out) {
            Ok(progress) => Ok(progress),
            Err(error) => {
                self.state = HandshakeState::Ended;
                Err(error)
            }
        }
    }

    /// Processes bytes from the client, as [`Self::receive`] does, before the connection is established.
    fn advance(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
    ) -> Result<Progress, TlsError> {
        let plain_start = plain.len();
        let (handshake, step) = match std::mem::replace(&mut self.state, HandshakeState::Ended) {
            HandshakeState::ClientHello {
                acceptor,
                mut received,
                mut reader,
            } => {
                received.extend_from_slice(input);
                let mut choice = match reader.read(&received) {
                    HelloStatus::NeedMore if received.len() <= MAX_KEPT_LEN => {
                        self.state = HandshakeState::ClientHello {
                            acceptor,
                            received,
                            reader,
                        };
                        return Ok(Progress {
                            handshaking: true,
                            ..Progress::default()
                        });
                    }
                    HelloStatus::Complete(hello) => {
                        acceptor.choose(&hello).inspect_err(|error| {
                            out.extend_from_slice(&error.plain_alert());
                        })?
                    }
                    HelloStatus::ClearText => return Err(TlsError::ClearText),
                    // The first message is no valid ClientHello: rustls refuses it with any configuration, and makes the alert.
                    HelloStatus::NeedMore | HelloStatus::Malformed => acceptor.default_choice(),
                };
                if let Some(at) = choice.hidden_name_at {
                    received = reader.with_hidden_name(&received, at);
                }
                if let Some(lookup) = choice.lookup.take() {
                    self.state = HandshakeState::Lookup(Box::new(WaitingClient {
                        lookup,
                        choice,
                        received,
                    }));
                    return Ok(Progress {
                        handshaking: true,
                        ..Progress::default()
                    });
                }
                let mut handshake = Box::new(ServerHandshake::new(choice, received)?);
                let step = handshake.receive(&[], plain, out)?;
                (handshake, step)
            }
            HandshakeState::Lookup(mut client) => {
                client.received.extend_from_slice(input);
                if !client.lookup.is_done() {
                    if client.received.len() > MAX_KEPT_LEN {
                        return Err(TlsError::HandshakeTooLarge);
                    }
                    self.state = HandshakeState::Lookup(client);
                    return Ok(Progress {
                        handshaking: true,
                        ..Progress::default()
                    });
                }
                let WaitingClient {
                    lookup,
                    mut choice,
                    received,
                } = *client;
                choice.session_id = Some(lookup.into_id());
                let mut handshake = Box::new(ServerHandshake::new(choice, received)?);
                let step = handshake.receive(&[], plain, out)?;
                (handshake, step)
            }
            HandshakeState::Handshake(mut handshake) => {
                let step = handshake.receive(input, plain, out)?;
                (handshake, step)
            }
            HandshakeState::Established(_) | HandshakeState::Ended => return Err(TlsError::Closed),
        };
        match step {
            HandshakeStep::NeedMore => {
                let early = plain.len() > plain_start && handshake.may_answer();
                if early && self.info.protocol.is_empty() {
                    self.info = handshake.info().unwrap_or_default();
                }
                self.state = HandshakeState::Handshake(handshake);
                Ok(Progress {
                    handshaking: true,
                    early,
                    ..Progress::default()
                })
            }
            HandshakeStep::ClosedByPeer => Ok(Progress {
                closed_by_peer: true,
                ..Progress::default()
            }),
            HandshakeStep::Done => {
                let (mut traffic, info, mut rest) = handshake.finish()?;
                self.info = info;
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
    /// [`TlsError::NotReady`] during a handshake (except in response to early data), [`TlsError::Closed`] after
    /// [`Self::close_notify`], [`TlsError::KeysExhausted`].
    pub fn encrypt(&mut self, plain: &[u8], out: &mut OutputBuffer) -> Result<(), TlsError> {
        match &mut self.state {
            HandshakeState::Established(traffic) => traffic.encrypt(plain, out),
            HandshakeState::Handshake(handshake) => handshake.encrypt(plain, out),
            HandshakeState::ClientHello { .. } | HandshakeState::Lookup(_) => {
                Err(TlsError::NotReady)
            }
            HandshakeState::Ended => Err(TlsError::Closed),
        }
    }

    /// Like [`Self::encrypt`], for a head and a body in separate buffers; records are filled across the border.
    ///
    /// # Errors
    /// Those of [`Self::encrypt`].
    pub fn encrypt_gather(
        &mut self,
        parts: &[&[u8]],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        match &mut self.state {
            HandshakeState::Established(traffic) => traffic.encrypt_gather(parts, out),
            HandshakeState::ClientHello { .. }
            | HandshakeState::Lookup(_)
            | HandshakeState::Handshake(_)
            | HandshakeState::Ended => parts.iter().try_for_each(|part| self.encrypt(part, out)),
        }
    }

    /// Appends close_notify to `out`. Does nothing as long as the client cannot decrypt it.
    pub fn close_notify(&mut self, out: &mut OutputBuffer) {
        match &mut self.state {
            HandshakeState::Established(traffic) => traffic.close_notify(out),
            HandshakeState::Handshake(handshake) => handshake.close_notify(out),
            HandshakeState::ClientHello { .. }
            | HandshakeState::Lookup(_)
            | HandshakeState::Ended => {}
        }
    }

    /// The keys with which the kernel can continue sending, and the number of records that they may protect; `None` during a
    /// handshake, and if the kernel is not to encrypt.
    pub fn kernel_keys(&self) -> Option<(KernelKeys, u64)> {
        match &self.state {
            HandshakeState::Established(traffic) => traffic.kernel_keys(),
            HandshakeState::ClientHello { .. }
            | HandshakeState::Lookup(_)
            | HandshakeState::Handshake(_)
            | HandshakeState::Ended => None,
        }
    }

    /// Records whether the kernel accepted the keys. If it did, [`Self::encrypt`] cannot be used any more, and records other than
    /// application data are in [`Self::take_kernel_actions`]. If it did not, it is not asked again.
    pub fn on_handed_over(&mut self, is_in_kernel: bool) {
        if let HandshakeState::Established(traffic) = &mut self.state {
            traffic.on_handed_over(is_in_kernel);
        }
    }

    /// Takes the commands that the kernel has to obey, in order.
    pub fn take_kernel_actions(&mut self) -> Vec<KernelAction> {
        match &mut self.state {
            HandshakeState::Established(traffic) => traffic.take_kernel_actions(),
            HandshakeState::ClientHello { .. }
            | HandshakeState::Lookup(_)
            | HandshakeState::Handshake(_)
            | HandshakeState::Ended => Vec::new(),
        }
    }

    /// Number of bytes that a record adds to its plaintext.
    pub fn record_overhead(&self) -> usize {
        match &self.state {
            HandshakeState::Established(traffic) => traffic.overhead(),
            HandshakeState::ClientHello { .. }
            | HandshakeState::Lookup(_)
            | HandshakeState::Handshake(_)
            | HandshakeState::Ended => TLS13_OVERHEAD,
        }
    }

    /// Sets the number of plaintext bytes per record. The call has no effect during the handshake, when little is sent.
    pub fn choose_record_size(&mut self, plain_len: usize) {
        match &mut self.state {
            HandshakeState::Established(traffic) => traffic.choose_record_size(plain_len),
            HandshakeState::ClientHello { .. }
            | HandshakeState::Lookup(_)
            | HandshakeState::Handshake(_)
            | HandshakeState::Ended => {}
        }
    }

    /// Number of bytes of memory held in buffers.
    #[inline]
    pub fn retained(&self) -> usize {
        match &self.state {
            HandshakeState::Established(traffic) => traffic.retained(),
            HandshakeState::ClientHello {
                received, reader, ..
            } => received.capacity() + reader.retained(),
            HandshakeState::Lookup(client) => client.received.capacity(),
            HandshakeState::Handshake(handshake) => handshake.retained(),
            HandshakeState::Ended => 0,
        }
    }

    /// Whether the client has begun a handshake that is not complete.
    pub fn is_handshaking(&self) -> bool {
        match &self.state {
            HandshakeState::ClientHello { received, .. } => !received.is_empty(),
            HandshakeState::Lookup(_) | HandshakeState::Handshake(_) => true,
            HandshakeState::Established(_) | HandshakeState::Ended => false,
        }
    }

    /// Whether the handshake waits for the lookup of the client's session. It continues with a call of [`Self::receive`] once
    /// [`Self::session_is_looked_up`].
    pub fn awaits_session(&self) -> bool {
        matches!(self.state, HandshakeState::Lookup(_))
    }

    /// Whether the lookup of the client's session is done, so that the next call of [`Self::receive`], even without bytes,
    /// continues the handshake.
    pub fn session_is_looked_up(&self) -> bool {
        matches!(&self.state, HandshakeState::Lookup(client) if client.lookup.is_done())
    }

    /// Calls the waker when the lookup of the client's session is done; at once if it is done already.
    pub fn wake_when_looked_up(&self, waker: Waker) {
        if let HandshakeState::Lookup(client) = &self.state {
            client.lookup.wake_when_done(waker);
        }
    }

    /// The negotiated parameters; empty before the handshake is complete or has brought early data.
    pub fn info(&self) -> TlsInfo {
        self.info.clone()
    }
}

#[cfg(test)]
impl TlsConnection {
    pub(crate) fn set_seal_limit(&mut self, records: u64) {
        if let HandshakeState::Established(traffic) = &mut self.state {
            traffic.set_seal_limit(records);
        }
    }
}
