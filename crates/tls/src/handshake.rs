//! The TLS handshake, as client or server. rustls processes the handshake, and is given one record at a time.

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

/// Limit in bytes of what is kept of an incomplete handshake: enough for a certificate chain. A ClientHello has a few thousand
/// bytes.
pub(crate) const MAX_KEPT_LEN: usize = 96 * 1024;

/// Memory of a handshake besides received bytes: the rustls connection with its keys and buffers. Measured with clients
/// that do not answer the ServerHello: 5.4 KB each in TLS 1.3, less in TLS 1.2.
const RUSTLS_RETAINED: usize = 6 * 1024;

/// The result of a call of `receive` on a TLS connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the handshake is incomplete.
    pub handshaking: bool,
    /// Whether this call completed the handshake; `info` of the connection is then available.
    pub handshake_done_now: bool,
    /// Whether the plaintext of this call is early data (RFC 8446 §2.3) of an incomplete handshake, and so may be a
    /// replay. It can be answered at once, and `info` of the connection is available. Always false with a backend.
    pub early: bool,
    /// Whether the peer has sent close_notify: no more data will arrive.
    pub closed_by_peer: bool,
}

/// A rustls connection, as client or server.
pub(crate) trait Role:
    DerefMut<Target = UnbufferedConnectionCommon<Self::Data>> + Sized
{
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        received: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Appends the early data that rustls has decrypted to `plain`.
    fn read_early(
        data: ReadEarlyData<'_, '_, Self::Data>,
        plain: &mut Vec<u8>,
    ) -> Result<(), rustls::Error>;

    /// Takes the keys of the established connection out of rustls, and the source of later keys.
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
    /// Received bytes that rustls has not discarded. rustls joins fragmented messages in this buffer.
    received: Vec<u8>,
    /// Number of bytes of `received` shown to rustls. The number always ends at the end of a record, so that rustls never consumes
    /// records of the established connection.
    shown: usize,
    /// Number of bytes that rustls has discarded since the handshake began.
    taken: usize,
    /// Whether this side has sent anything: if so, an alert may have to be encrypted.
    has_sent: bool,
    /// Whether a server may send data before the client's Finished has arrived.
    may_send: bool,
}

/// State of the handshake after a step.
pub(crate) enum HandshakeStep {
    /// The handshake needs more bytes from the peer.
    NeedMore,
    /// The peer closed the connection without an error.
    ClosedByPeer,
    /// The handshake is complete.
    Done,
}

impl<R: Role> Handshake<R> {
    /// Begins a handshake with bytes that were received before.
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

    /// Processes `input` as far as possible. Appends early data to `plain`. Before each record, `is_blocked` may
    /// inspect and change the bytes that rustls has not seen; while it returns `true`, rustls sees none of them.
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
                // For some errors in the peer's first message, rustls sends no alert, so it is sent here.
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
            // An invalid record: all bytes are shown to rustls, which reports the error.
            Ok(_) | Err(_) => Some(unseen.len()),
        }
    }

    /// Runs rustls until it has consumed the bytes shown to it.
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

    /// After an error, appends the alert that rustls still has to send to `out`.
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

    /// Calls `write` with the state of rustls. For use between calls of [`Self::receive`].
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

    /// Bytes of memory held. Of the memory inside rustls, only a measured constant is counted; some buffers and the parsed
    /// certificates of the peer are unknown.
    pub(crate) fn retained(&self) -> usize {
        RUSTLS_RETAINED + self.taken + self.received.capacity()
    }

    /// Whether a server may send data before the client's Finished has arrived.
    pub(crate) fn may_send(&self) -> bool {
        self.may_send
    }

    /// The application protocol (RFC 7301), once it is negotiated.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        self.rustls.alpn_protocol()
    }

    /// The negotiated parameters, once the server has answered the ClientHello. Without the server name, the application protocol
    /// and the client's authority, which the roles add.
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
            session_id: None,
        })
    }

    /// Ends the handshake: returns the established connection, and the bytes received after the handshake.
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

/// The received bytes that were not shown to rustls.
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

/// Appends the output of `encode`, which first reports how much space it needs.
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
