//! A TLS connection after its handshake: application data, alerts, key updates.

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, Error, ExtractedSecrets, Side, SupportedCipherSuite};

use crate::error::Alert;
use crate::error::TlsError;
use crate::record::framing::{ContentType, HEADER_LEN, complete_len, record_len};
use crate::record::kernel::{KernelAction, KernelKeys};
use crate::record::output::OutputBuffer;
use crate::record::protection::Protection;
use crate::record::size::RecordSize;
use crate::versions::Version;

/// Limit of the number of empty records, warnings and handshake messages that the peer may send in a row without application data:
/// each costs us work and the peer next to nothing. BoringSSL and rustls have the same limit.
const TOLERATED_IN_A_ROW: u8 = 32;

/// The HandshakeType `hello_request` (RFC 5246 §7.4.1.1).
const HELLO_REQUEST: u8 = 0;
/// The HandshakeType `new_session_ticket` (RFC 8446 §4).
const NEW_SESSION_TICKET: u8 = 4;
/// The HandshakeType `key_update` (RFC 8446 §4).
const KEY_UPDATE: u8 = 24;
/// Length in bytes of the header of a handshake message: type and length.
const MESSAGE_HEADER_LEN: usize = 4;
/// Limit in bytes of a NewSessionTicket without its header. rustls has this limit for every handshake message.
const MAX_TICKET_LEN: usize = 0xffff;

/// An established TLS connection: both directions.
pub(crate) struct Traffic {
    opener: Protection,
    sealer: Protection,
    /// Number of records that may be protected with one key before new keys are needed (RFC 8446 §5.5).
    seal_limit: u64,
    keys: KeySource,
    record_size: RecordSize,
    /// The bytes received so far of an incomplete record.
    partial: Vec<u8>,
    /// The bytes received so far of an incomplete handshake message.
    message: Vec<u8>,
    useless_in_a_row: u8,
    closing: ClosedDirections,
    /// Set if the kernel may encrypt sent data (kTLS).
    offload: Option<Box<Offload>>,
}

/// State of kTLS on this connection.
struct Offload {
    /// The traffic secrets from which the keys of `sealer` are made.
    secrets: ConnectionTrafficSecrets,
    /// Whether the kernel encrypts what is sent; `sealer` is then not used.
    is_in_kernel: bool,
    /// Commands for the kernel, in order.
    actions: Vec<KernelAction>,
}

/// Where the keys come from that replace the first ones.
enum KeySource {
    /// TLS 1.2: one set of keys protects the whole connection.
    Fixed(Side),
    /// TLS 1.3: rustls keeps the traffic secrets, and derives new keys from them for a KeyUpdate.
    Schedule(KeySchedule),
}

/// The part of a rustls connection, as client or server, that is kept after the handshake: it derives later keys.
pub(crate) enum KeySchedule {
    Server(Box<KernelConnection<ServerConnectionData>>),
    Client(Box<KernelConnection<ClientConnectionData>>),
}

impl KeySchedule {
    const fn side(&self) -> Side {
        match self {
            Self::Server(_) => Side::Server,
            Self::Client(_) => Side::Client,
        }
    }

    fn update_receiving(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Server(kernel) => kernel.update_rx_secret(),
            Self::Client(kernel) => kernel.update_rx_secret(),
        }
    }

    fn update_sending(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Server(kernel) => kernel.update_tx_secret(),
            Self::Client(kernel) => kernel.update_tx_secret(),
        }
    }
}

/// A buffer that receives decrypted application data.
pub trait PlainSink {
    /// Appends the plaintext of a record.
    fn append(&mut self, plain: &[u8]);
}

impl PlainSink for Vec<u8> {
    fn append(&mut self, plain: &[u8]) {
        self.extend_from_slice(plain);
    }
}

/// Which directions were closed by close_notify (RFC 8446 §6.1).
#[derive(Clone, Copy, Debug, Default)]
struct ClosedDirections {
    sent: bool,
    received: bool,
}

impl Traffic {
    /// Number of bytes of memory that incomplete messages and records take.
    #[inline]
    pub(crate) fn retained(&self) -> usize {
        self.partial.capacity() + self.message.capacity()
    }

    /// Makes an established connection from what the handshake has negotiated.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if the cipher suite is not supported.
    pub(crate) fn new(
        version: Version,
        suite: SupportedCipherSuite,
        secrets: ExtractedSecrets,
        schedule: KeySchedule,
        record_size: RecordSize,
        may_offload: bool,
    ) -> Result<Self, TlsError> {
        let (common, keys) = match suite {
            SupportedCipherSuite::Tls12(suite) => {
                (&suite.common, KeySource::Fixed(schedule.side()))
            }
            SupportedCipherSuite::Tls13(suite) => (&suite.common, KeySource::Schedule(schedule)),
        };
        let (receive_sequence, receive) = &secrets.rx;
        let (send_sequence, send) = secrets.tx;
        Ok(Self {
            opener: Protection::new(version, *receive_sequence, receive)?,
            sealer: Protection::new(version, send_sequence, &send)?,
            seal_limit: common.confidentiality_limit,
            keys,
            record_size,
            partial: Vec::new(),
            message: Vec::new(),
            useless_in_a_row: 0,
            closing: ClosedDirections::default(),
            offload: may_offload.then(|| {
                Box::new(Offload {
                    secrets: send,
                    is_in_kernel: false,
                    actions: Vec::new(),
                })
            }),
        })
    }

    /// The keys with which the kernel can continue sending, and the number of records that they may protect; `None` if the kernel
    /// is not to encrypt.
    pub(crate) fn kernel_keys(&self) -> Option<(KernelKeys, u64)> {
        let offload = self.offload.as_ref()?;
        let sequence = self.sealer.sequence();
        let keys = KernelKeys::new(self.version(), sequence, &offload.secrets)?;
        let records = self.seal_limit.checked_sub(sequence)?;
        (!self.closing.sent).then_some((keys, records))
    }

    /// Records whether the kernel accepted the keys. If it did not, it is not asked again.
    pub(crate) fn on_handed_over(&mut self, is_in_kernel: bool) {
        match &mut self.offload {
            Some(offload) if is_in_kernel => offload.is_in_kernel = true,
            offload => *offload = None,
        }
    }

    /// Takes the commands that the kernel has to obey, in order.
    pub(crate) fn take_kernel_actions(&mut self) -> Vec<KernelAction> {
        let offload = self.offload.as_mut();
        offload.map_or_else(Vec::new, |offload| std::mem::take(&mut offload.actions))
    }

    fn version(&self) -> Version {
        match self.keys {
            KeySource::Fixed(_) => Version::Tls12,
            KeySource::Schedule(_) => Version::Tls13,
        }
    }

    /// Whether the peer has sent close_notify.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        self.closing.received
    }

    /// Decrypts complete records, and keeps an incomplete one.
    ///
    /// # Errors
    /// How the peer has violated the protocol; the alert is in `out`.
    pub(crate) fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut impl PlainSink,
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        let received = self.recv_records(input, plain, out);
        if let Err(error) = &received {
            self.partial = Vec::new();
            if let Some(alert) = error.alert() {
                self.send_alert(alert, out)?;
            }
        }
        received
    }

    fn recv_records(
        &mut self,
        mut input: &mut [u8],
        plain: &mut impl PlainSink,
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        if !self.partial.is_empty() {
            input = self.fill_partial(input)?;
            if complete_len(&self.partial)?.is_none() {
                return Ok(());
            }
            let mut record = std::mem::take(&mut self.partial);
            self.recv_record(&mut record, plain, out)?;
        }
        // After close_notify, further data is ignored (RFC 8446 §6.1).
        while !self.closing.received {
            let Some(len) = complete_len(input)? else {
                self.partial.extend_from_slice(input);
                break;
            };
            let (record, rest) = input.split_at_mut(len);
            self.recv_record(record, plain, out)?;
            input = rest;
        }
        Ok(())
    }

    /// Appends bytes of `input` to the incomplete record until it is complete. Returns the rest of `input`.
    fn fill_partial<'a>(&mut self, mut input: &'a mut [u8]) -> Result<&'a mut [u8], TlsError> {
        // The first pass completes the header, which contains the record's length; the second pass completes the record.
        for _ in 0..2 {
            let target = record_len(&self.partial)?.unwrap_or(HEADER_LEN);
            let missing = target - self.partial.len();
            let (taken, rest) = input.split_at_mut(missing.min(input.len()));
            self.partial.extend_from_slice(taken);
            input = rest;
        }
        Ok(input)
    }

    fn recv_record(
        &mut self,
        record: &mut [u8],
        plain: &mut impl PlainSink,
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        let (content_type, payload) = self.opener.open(record)?;
        if content_type != ContentType::Handshake && !self.message.is_empty() {
            // No other record may interrupt a fragmented handshake message (RFC 8446 §5.1).
            return Err(TlsError::UnexpectedMessage);
        }
        match content_type {
            ContentType::ApplicationData if payload.is_empty() => self.on_useless_record(),
            ContentType::ApplicationData => {
                self.useless_in_a_row = 0;
                plain.append(payload);
                Ok(())
            }
            ContentType::Alert => self.on_alert(payload),
            ContentType::Handshake => self.on_handshake(payload, out),
            // ChangeCipherSpec is allowed only until the peer's Finished (RFC 8446 §5, RFC 5246 §7.1).
            ContentType::ChangeCipherSpec => Err(TlsError::UnexpectedMessage),
        }
    }

    fn on_useless_record(&mut self) -> Result<(), TlsError> {
        if self.useless_in_a_row >= TOLERATED_IN_A_ROW {
            return Err(TlsError::Flood);
        }
        self.useless_in_a_row += 1;
        Ok(())
    }

    fn on_alert(&mut self, payload: &[u8]) -> Result<(), TlsError> {
        let &[level, description] = payload else {
            return Err(TlsError::Decode);
        };
        // In TLS 1.3, the description of an alert decides whether it is fatal; all but these two are (RFC 8446 §6).
        let is_warning = match self.keys {
            KeySource::Fixed(_) => level == Alert::WARNING,
            KeySource::Schedule(_) => description == Alert::USER_CANCELED,
        };
        if description == Alert::CLOSE_NOTIFY.description {
            self.closing.received = true;
            Ok(())
        } else if is_warning {
            self.on_useless_record()
        } else {
            Err(TlsError::PeerAlert(description))
        }
    }

    /// Processes handshake messages of an established connection: KeyUpdate from both peers, NewSessionTicket from a
    /// backend in TLS 1.3, HelloRequest from a backend in TLS 1.2.
    fn on_handshake(&mut self, payload: &[u8], out: &mut OutputBuffer) -> Result<(), TlsError> {
        if matches!(self.keys, KeySource::Fixed(Side::Server)) {
            return Err(TlsError::Renegotiation);
        }
        if payload.is_empty() {
            // A handshake message may have no empty fragments (RFC 8446 §5.1).
            return Err(TlsError::UnexpectedMessage);
        }
        self.message.extend_from_slice(payload);
        while let Some(len) = self.message_len()? {
            let rest = self.message.split_off(len);
            let message = std::mem::replace(&mut self.message, rest);
            self.on_message(message[0], &message[MESSAGE_HEADER_LEN..], out)?;
        }
        Ok(())
    }

    /// The length, with its header, of the handshake message at the start of `message`, if it is complete.
    fn message_len(&self) -> Result<Option<usize>, TlsError> {
        let Some(&message_type) = self.message.first() else {
            return Ok(None);
        };
        let lengths = match (message_type, &self.keys) {
            (KEY_UPDATE, KeySource::Schedule(_)) => 1..=1,
            (NEW_SESSION_TICKET, KeySource::Schedule(KeySchedule::Client(_))) => 0..=MAX_TICKET_LEN,
            (HELLO_REQUEST, KeySource::Fixed(Side::Client)) => 0..=0,
            _ => return Err(TlsError::UnexpectedMessage),
        };
        let Some(&[_, high, middle, low]) = self.message.first_chunk::<MESSAGE_HEADER_LEN>() else {
            return Ok(None);
        };
        let body_len = u32::from_be_bytes([0, high, middle, low]) as usize;
        if !lengths.contains(&body_len) {
            return Err(TlsError::Decode);
        }
        let len = MESSAGE_HEADER_LEN + body_len;
        Ok(Some(len).filter(|len| *len <= self.message.len()))
    }

    fn on_message(
        &mut self,
        message_type: u8,
        body: &[u8],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        self.on_useless_record()?;
        match (&mut self.keys, message_type, body) {
            // A KeyUpdate must be the last message of its record, because the keys change after it (RFC 8446 §5.1).
            (KeySource::Schedule(_), KEY_UPDATE, &[request]) if self.message.is_empty() => {
                self.on_key_update(request, out)
            }
            (KeySource::Schedule(KeySchedule::Client(kernel)), NEW_SESSION_TICKET, ticket) => {
                kernel
                    .handle_new_session_ticket(ticket)
                    .map_err(|_| TlsError::Decode)
            }
            (KeySource::Fixed(Side::Client), HELLO_REQUEST, _) => {
                // A client may refuse to renegotiate, and the connection continues (RFC 5246 §7.4.1.1).
                let alert = Alert::NO_RENEGOTIATION.bytes();
                self.send_message(ContentType::Alert, &alert, out)
            }
            _ => Err(TlsError::UnexpectedMessage),
        }
    }

    /// Processes a KeyUpdate of the peer (RFC 8446 §4.6.3).
    fn on_key_update(&mut self, request: u8, out: &mut OutputBuffer) -> Result<(), TlsError> {
        let (sequence, secrets) = match &mut self.keys {
            KeySource::Fixed(_) => return Err(TlsError::UnexpectedMessage),
            KeySource::Schedule(schedule) => {
                schedule.update_receiving().map_err(|_| TlsError::Crypto)?
            }
        };
        self.opener = Protection::new(Version::Tls13, sequence, &secrets)?;
        match request {
            0 => Ok(()),
            1 if self.closing.sent => Ok(()),
            1 => self.update_sending_keys(out),
            _ => Err(TlsError::IllegalParameter),
        }
    }

    /// Encrypts `plain` as application data, and appends the records to `out`.
    ///
    /// # Errors
    /// [`TlsError::Closed`] after close_notify, [`TlsError::KeysExhausted`]
    pub(crate) fn encrypt(
        &mut self,
        mut plain: &[u8],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        self.check_open()?;
        let records = plain.len().div_ceil(self.record_limit());
        out.reserve(plain.len() + records * self.sealer.overhead());
        while !plain.is_empty() {
            let (now, later) = plain.split_at(self.record_limit().min(plain.len()));
            self.seal_data(&[now], out)?;
            plain = later;
        }
        Ok(())
    }

    /// Like [`Self::encrypt`], for several pieces; records are filled across the borders of pieces.
    ///
    /// # Errors
    /// Those of [`Self::encrypt`].
    pub(crate) fn encrypt_gather(
        &mut self,
        parts: &[&[u8]],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        self.check_open()?;
        let mut record: Vec<&[u8]> = Vec::with_capacity(parts.len());
        let mut parts = parts.iter().copied();
        let mut current: &[u8] = &[];
        loop {
            record.clear();
            let mut room = self.record_limit();
            while room > 0 {
                if current.is_empty() {
                    match parts.next() {
                        Some(part) => current = part,
                        None => break,
                    }
                    continue;
                }
                let (now, later) = current.split_at(room.min(current.len()));
                record.push(now);
                room -= now.len();
                current = later;
            }
            if record.is_empty() {
                return Ok(());
            }
            self.seal_data(&record, out)?;
        }
    }

    /// Sends close_notify (RFC 8446 §6.1), unless it was sent before.
    pub(crate) fn close_notify(&mut self, out: &mut OutputBuffer) {
        // If close_notify cannot be encrypted, nothing else can be sent either.
        let _ = self.send_alert(Alert::CLOSE_NOTIFY, out);
    }

    fn check_open(&self) -> Result<(), TlsError> {
        if self.closing.sent {
            return Err(TlsError::Closed);
        }
        if self.is_in_kernel() {
            // The kernel has the keys, so this process must not encrypt with them.
            return Err(TlsError::NotReady);
        }
        Ok(())
    }

    /// Number of bytes that a record adds to its plaintext.
    pub(crate) fn overhead(&self) -> usize {
        self.sealer.overhead()
    }

    pub(crate) fn choose_record_size(&mut self, plain_len: usize) {
        self.record_size.choose(plain_len);
    }

    fn record_limit(&self) -> usize {
        self.record_size.limit(self.sealer.overhead())
    }

    fn seal_data(&mut self, parts: &[&[u8]], out: &mut OutputBuffer) -> Result<(), TlsError> {
        // The last record that a key protects must be a KeyUpdate, or close_notify in TLS 1.2, so no data may be sent in it.
        if self.sealer.sequence() + 1 >= self.seal_limit {
            match self.keys {
                KeySource::Schedule(_) => self.update_sending_keys(out)?,
                KeySource::Fixed(_) => {
                    self.send_alert(Alert::CLOSE_NOTIFY, out)?;
                    return Err(TlsError::KeysExhausted);
                }
            }
        }
        self.sealer.seal(ContentType::ApplicationData, parts, out)?;
        self.record_size
            .on_written(parts.iter().map(|part| part.len()).sum());
        Ok(())
    }

    /// Sends a KeyUpdate, and switches to new keys for sending.
    fn update_sending_keys(&mut self, out: &mut OutputBuffer) -> Result<(), TlsError> {
        let (sequence, secrets): (u64, ConnectionTrafficSecrets) = match &mut self.keys {
            KeySource::Fixed(_) => return Err(TlsError::KeysExhausted),
            KeySource::Schedule(schedule) => {
                schedule.update_sending().map_err(|_| TlsError::Crypto)?
            }
        };
        self.send_message(ContentType::Handshake, &[KEY_UPDATE, 0, 0, 1, 0], out)?;
        self.sealer = Protection::new(Version::Tls13, sequence, &secrets)?;
        if let Some(offload) = &mut self.offload {
            if offload.is_in_kernel {
                let keys = KernelKeys::new(Version::Tls13, sequence, &secrets);
                offload.actions.extend(keys.map(KernelAction::Keys));
            }
            offload.secrets = secrets;
        }
        Ok(())
    }

    fn send_alert(&mut self, alert: Alert, out: &mut OutputBuffer) -> Result<(), TlsError> {
        if self.closing.sent {
            return Ok(());
        }
        // This side may send nothing after a fatal alert or close_notify.
        self.closing.sent = true;
        self.send_message(ContentType::Alert, &alert.bytes(), out)
    }

    /// Sends a record that is not application data. If the kernel encrypts, the record becomes a command for it.
    fn send_message(
        &mut self,
        content_type: ContentType,
        payload: &[u8],
        out: &mut OutputBuffer,
    ) -> Result<(), TlsError> {
        match &mut self.offload {
            Some(offload) if offload.is_in_kernel => {
                let action = KernelAction::record(content_type, payload);
                offload.actions.push(action);
                Ok(())
            }
            _ => self.sealer.seal(content_type, &[payload], out),
        }
    }

    fn is_in_kernel(&self) -> bool {
        self.offload
            .as_ref()
            .is_some_and(|offload| offload.is_in_kernel)
    }
}

#[cfg(test)]
impl Traffic {
    pub(crate) fn set_seal_limit(&mut self, records: u64) {
        self.seal_limit = records;
    }
}
