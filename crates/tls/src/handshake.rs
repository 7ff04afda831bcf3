//! What the handshakes of both roles share: rustls talks to the peer, one record at a time.

use std::ops::DerefMut;

use h2o_exchange::TlsInfo;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, ReadEarlyData, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::{ExtractedSecrets, HandshakeKind, ProtocolVersion};

use crate::error::{Alert, TlsError};
use crate::record::framing::{ContentType, complete_len};
use crate::record::output::OutputBuffer;
use crate::record::size::RecordSize;
use crate::record::traffic::{KeySchedule, Traffic};
use crate::suites;
use crate::versions::Version;

/// Most bytes kept of an unfinished handshake: room for a certificate chain. A ClientHello is a few thousand bytes.
pub(crate) const MAX_KEPT_LEN: usize = 96 * 1024;

/// Memory a handshake holds besides the received bytes: the connection of rustls with its keys and buffers. Measured with clients
/// that leave our answer unanswered: 5.4 KB each in TLS 1.3, less in TLS 1.2.
const RUSTLS_RETAINED: usize = 6 * 1024;

/// What a call of `receive` has brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The handshake is not complete.
    pub handshaking: bool,
    /// The handshake was completed by this call; the `info` of the connection is there.
    pub handshake_done_now: bool,
    /// Plaintext of this call is early data (RFC 8446 §2.3) of a handshake that is not complete: it may be a replay. It
    /// can be answered at once, and the `info` of the connection is there. Never so towards a backend.
    pub early: bool,
    /// The peer has sent close_notify: no more data will come.
    pub closed_by_peer: bool,
}

/// rustls as a client or as a server.
pub(crate) trait Role:
    DerefMut<Target = UnbufferedConnectionCommon<Self::Data>> + Sized
{
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Appends early data to `plain`.
    fn read_early(
        data: ReadEarlyData<'_, '_, Self::Data>,
        plain: &mut Vec<u8>,
    ) -> Result<(), rustls::Error>;

    /// The keys of the established connection, and what makes later ones.
    fn into_keys(self) -> Result<(ExtractedSecrets, KeySchedule), rustls::Error>;
}

impl Role for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(received)
    }

    fn read_early(
        mut data: ReadEarlyData<'_, '_, Self::Data>,
        plain: &mut Vec<u8>,
    ) -> Result<(), rustls::Error> {
        while let Some(record) = data.next_record() {
            plain.extend_from_slice(record?.payload);
        }
        Ok(())
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, KeySchedule), rustls::Error> {
        let (secrets, kernel) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, KeySchedule::Server(Box::new(kernel))))
    }
}

impl Role for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(received)
    }

    fn read_early(
        _: ReadEarlyData<'_, '_, Self::Data>,
        _: &mut Vec<u8>,
    ) -> Result<(), rustls::Error> {
        // Only clients send early data (RFC 8446 §2.3).
        Err(rustls::Error::HandshakeNotComplete)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, KeySchedule), rustls::Error> {
        let (secrets, kernel) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, KeySchedule::Client(Box::new(kernel))))
    }
}

/// A handshake in progress.
pub(crate) struct Handshake<R> {
    rustls: R,
    /// Received and not yet discarded by rustls, which joins pieces of messages in here.
    received: Vec<u8>,
    /// How much of `received` rustls has seen. It never sees past the end of a record, so that it never takes up
    /// records that belong to the established connection.
    shown: usize,
    /// Number of bytes that rustls has discarded.
    taken: usize,
    /// Whether something was sent: an alert may have to be encrypted.
    has_sent: bool,
    /// Whether data may be sent, for a server before the client's Finished has come.
    may_send: bool,
}

/// Where the handshake stands after a step.
pub(crate) enum HandshakeStep {
    /// It needs more bytes.
    NeedMore,
    /// The peer closed the connection without an error.
    ClosedByPeer,
    /// It is complete.
    Done,
}

impl<R: Role> Handshake<R> {
    /// Begins with bytes that were received before.
    pub(crate) fn new(rustls: R, received: Vec<u8>) -> Self {
        Self {
            rustls,
            received,
            shown: 0,
            taken: 0,
            has_sent: false,
            may_send: false,
        }
    }

    /// Takes `input` and goes as far as it allows. Early data is appended to `plain`. Before each record `is_blocked` can look at
    /// the bytes that rustls has not seen, and change them; rustls is shown none of them while it returns `true`.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] and others; the alert is in `out`.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
        is_blocked: impl FnMut(&R, &mut Unseen<'_>) -> bool,
    ) -> Result<HandshakeStep, TlsError> {
        self.received.extend_from_slice(input);
        match self.advance(plain, out, is_blocked) {
            Err(TlsError::PeerAlert(description))
                if description == Alert::CLOSE_NOTIFY.description =>
            {
                Ok(HandshakeStep::ClosedByPeer)
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

    fn advance(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
        mut is_blocked: impl FnMut(&R, &mut Unseen<'_>) -> bool,
    ) -> Result<HandshakeStep, TlsError> {
        loop {
            match self.step(plain, out)? {
                HandshakeStep::NeedMore => {}
                step @ (HandshakeStep::ClosedByPeer | HandshakeStep::Done) => return Ok(step),
            }
            let mut unseen = Unseen {
                received: &mut self.received,
                start: self.shown,
            };
            let next = if is_blocked(&self.rustls, &mut unseen) {
                None
            } else {
                self.next_record()
            };
            let Some(len) = next else {
                if self.received.len() > MAX_KEPT_LEN {
                    return Err(TlsError::HandshakeTooLarge);
                }
                return Ok(HandshakeStep::NeedMore);
            };
            self.shown += len;
        }
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
    fn step(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut OutputBuffer,
    ) -> Result<HandshakeStep, TlsError> {
        loop {
            let status = self.rustls.process(&mut self.received[..self.shown]);
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
                Ok(ConnectionState::ReadEarlyData(data)) => {
                    R::read_early(data, plain)?;
                    None
                }
                Ok(ConnectionState::ReadTraffic(mut data)) => {
                    while let Some(record) = data.next_record() {
                        plain.extend_from_slice(record?.payload);
                    }
                    None
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Some(HandshakeStep::ClosedByPeer)
                }
                Ok(ConnectionState::BlockedHandshake) => Some(HandshakeStep::NeedMore),
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.may_send = true;
                    Some(HandshakeStep::NeedMore)
                }
                Ok(_) => return Err(TlsError::Crypto),
                Err(error) => {
                    self.take_alert(out)?;
                    return Err(error.into());
                }
            };
            self.discard(discard);
            self.taken += discard;
            match next {
                Some(HandshakeStep::NeedMore) if !self.rustls.is_handshaking() => {
                    return Ok(HandshakeStep::Done);
                }
                Some(step) => return Ok(step),
                None => {}
            }
        }
    }

    /// After an error, what rustls still wants to send.
    fn take_alert(&mut self, out: &mut OutputBuffer) -> Result<(), TlsError> {
        while self.rustls.wants_write() {
            match self.rustls.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|room| data.encode(room), out)?;
                    self.has_sent = true;
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Calls `write` with the state of rustls, between two calls of [`Self::receive`].
    pub(crate) fn with_state<T>(
        &mut self,
        write: impl FnOnce(Result<ConnectionState<'_, '_, R::Data>, rustls::Error>) -> T,
    ) -> T {
        let status = self.rustls.process(&mut self.received[..self.shown]);
        let discard = status.discard;
        let written = write(status.state);
        self.discard(discard);
        written
    }

    fn discard(&mut self, len: usize) {
        self.received.drain(..len);
        self.shown -= len;
    }

    /// Bytes of memory held. What rustls keeps of the handshake is not known: some buffers of its own, and of a peer's
    /// certificates what they have as bytes.
    pub(crate) fn retained(&self) -> usize {
        RUSTLS_RETAINED + self.taken + self.received.capacity()
    }

    /// Whether data can be sent already, for a server before the client's Finished has come.
    pub(crate) fn may_send(&self) -> bool {
        self.may_send
    }

    /// The application protocol (RFC 7301), as soon as it is agreed on.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        self.rustls.alpn_protocol()
    }

    /// What was negotiated, as soon as the server has answered the ClientHello; without what only one of the roles knows.
    pub(crate) fn info(&self) -> Option<TlsInfo> {
        let suite = self.rustls.negotiated_cipher_suite()?;
        let (cipher, cipher_bits) = suites::describe(suite.suite());
        Some(TlsInfo {
            protocol: version(self.rustls.protocol_version()?).name(),
            cipher,
            cipher_bits,
            server_name: None,
            alpn: None,
            resumed: self.rustls.handshake_kind() == Some(HandshakeKind::Resumed),
            client_authority: None,
        })
    }

    /// The established connection, and the bytes that follow the handshake.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if the handshake is not complete.
    pub(crate) fn finish(
        self,
        record_size: RecordSize,
        may_offload: bool,
    ) -> Result<(Traffic, Vec<u8>), TlsError> {
        let (Some(negotiated), Some(suite)) = (
            self.rustls.protocol_version(),
            self.rustls.negotiated_cipher_suite(),
        ) else {
            return Err(TlsError::Crypto);
        };
        let (secrets, schedule) = self.rustls.into_keys()?;
        let traffic = Traffic::new(
            version(negotiated),
            suite,
            secrets,
            schedule,
            record_size,
            may_offload,
        )?;
        Ok((traffic, self.received))
    }
}

/// The received bytes that rustls has not seen.
pub(crate) struct Unseen<'a> {
    received: &'a mut Vec<u8>,
    start: usize,
}

impl Unseen<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.received[self.start..]
    }

    pub(crate) fn replace(&mut self, bytes: &[u8]) {
        self.received.truncate(self.start);
        self.received.extend_from_slice(bytes);
    }
}

fn version(negotiated: ProtocolVersion) -> Version {
    match negotiated {
        ProtocolVersion::TLSv1_3 => Version::Tls13,
        _ => Version::Tls12,
    }
}

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
