//! TLS 1.3 of QUIC connections (RFC 9001), by rustls. The state of the handshake is dropped when it is complete.

use std::any::Any;
use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::BytesMut;
use h2o_exchange::TlsInfo;
use h2o_tls::{QuicChoice, TlsAcceptor, initial_quic_suite, quic_client_info as client_info};
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, KeyPair, Keys, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::pki_types::ServerName;
use rustls::quic::{
    ClientConnection, DirectionalKeys, HeaderProtectionKey, KeyChange, PacketKey, PacketKeySet,
    Secrets, ServerConnection, Version,
};
use rustls::{ClientConfig, HandshakeKind, ServerConfig};

use crate::few_streams::StreamWatch;
use crate::parameters;

/// The QUIC versions that are supported: version 1 (RFC 9000) and draft 29.
pub(crate) const VERSIONS: [u32; 2] = [1, 0xff00_001d];
/// The longest ClientHello in bytes that is collected before a TLS configuration is chosen. A longer one is passed to rustls
/// before it is complete: rustls refuses messages of this length.
const MAX_HELLO_LEN: usize = 0xffff;

/// How many connection ids this side gives a peer to use at a time; a peer may ask for fewer. quinn-proto keeps each id in three
/// tables. A client needs one id for the network path that it uses, and one for each path that it tries next; for each id that it
/// retires it gets another one.
const MAX_IDS: u64 = 3;

/// Chooses the TLS configuration that answers a client.
pub trait TlsChooser: Send + Sync {
    /// Chooses the configuration for a client that has sent this ClientHello (RFC 8446 §4.1.2), given with its message
    /// header. The ClientHello may be malformed: rustls refuses it then, with any configuration. The chooser may change it
    /// before rustls reads it.
    fn choose(&self, client_hello: &mut [u8]) -> QuicChoice;
}

impl TlsChooser for TlsAcceptor {
    fn choose(&self, client_hello: &mut [u8]) -> QuicChoice {
        self.choose_for_quic(client_hello)
    }
}

impl TlsChooser for Arc<ServerConfig> {
    fn choose(&self, _: &mut [u8]) -> QuicChoice {
        QuicChoice {
            config: Self::clone(self),
            server_name: None,
            client_authority: None,
        }
    }
}

/// The TLS settings of connections to a backend.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The rustls configuration, which offers TLS 1.3 and the application protocol.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must contain.
    pub server_name: ServerName<'static>,
}

/// What a handshake has agreed on.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The QUIC version that the connection uses.
    pub version: u32,
    /// What TLS has negotiated: cipher suite, application protocol and the like.
    pub tls: TlsInfo,
    /// The peer's initial flow control limit, in bytes, of each stream that the client opens (RFC 9000 §18.2). Kept here
    /// since quinn-proto does not tell it.
    pub stream_window: u64,
}

fn tls_version(version: u32) -> Result<Version, UnsupportedVersion> {
    match version {
        1 => Ok(Version::V1),
        0xff00_001d => Ok(Version::V1Draft),
        _ => Err(UnsupportedVersion),
    }
}

fn initial_keys(version: Version, id: &ConnectionId, side: Side) -> Option<Keys> {
    let side = match side {
        Side::Client => rustls::Side::Client,
        Side::Server => rustls::Side::Server,
    };
    Some(library_keys(initial_quic_suite()?.keys(id, side, version)))
}

fn library_keys(keys: rustls::quic::Keys) -> Keys {
    keys_with(keys, Packet::Made, Packet::Made)
}

/// Converts the packet and header keys of rustls to those of quinn-proto. `local_packet` makes the key that protects sent packets,
/// `remote_packet` the key of received packets.
fn keys_with(
    keys: rustls::quic::Keys,
    local_packet: impl FnOnce(Box<dyn PacketKey>) -> Packet,
    remote_packet: impl FnOnce(Box<dyn PacketKey>) -> Packet,
) -> Keys {
    let rustls::quic::Keys { local, remote } = keys;
    Keys {
        header: KeyPair {
            local: Box::new(Header(local.header)),
            remote: Box::new(Header(remote.header)),
        },
        packet: KeyPair {
            local: Box::new(local_packet(local.packet)),
            remote: Box::new(remote_packet(remote.packet)),
        },
    }
}

/// Makes the key that decrypts the peer's packets. With a `watch`, which servers have, the decrypted packets are searched for
/// streams that quinn-proto's tables lack.
fn watched(key: Box<dyn PacketKey>, watch: Option<&Arc<StreamWatch>>) -> Packet {
    match watch {
        Some(watch) => Packet::Watched(key, Arc::clone(watch)),
        None => Packet::Made(key),
    }
}

/// Keys of the next key update (RFC 9001 §6), made when first used: few connections ever update their keys, and the keys
/// would take two kilobytes.
struct NextKeys {
    shared: Arc<Shared>,
    made: OnceLock<PacketKeySet>,
}

/// State that all 1-RTT keys of a connection share.
pub(crate) struct Shared {
    secrets: Mutex<Secrets>,
    /// Searches decrypted packets for streams that quinn-proto's tables lack; `None` at a client.
    watch: Option<Arc<StreamWatch>>,
    /// The number of bytes that quinn-proto leaves free after the tag of each packet.
    cut: AtomicUsize,
}

impl Shared {
    /// Makes the packets that are encrypted from now on `bytes` bytes shorter than quinn-proto wants them: it takes their
    /// last bytes for a part of the tag. These bytes are not encrypted, and the caller cuts them off before it sends the
    /// datagram. Only so can a datagram with PATH_CHALLENGE be shorter than 1200 bytes.
    pub(crate) fn set_cut(&self, bytes: usize) {
        self.cut.store(bytes, Ordering::Relaxed);
    }

    fn cut(&self) -> usize {
        self.cut.load(Ordering::Relaxed)
    }
}

impl NextKeys {
    fn get(&self) -> &PacketKeySet {
        self.made.get_or_init(|| {
            let secrets = self.shared.secrets.lock();
            secrets
                .unwrap_or_else(PoisonError::into_inner)
                .next_packet_keys()
        })
    }
}

/// A key for header protection (RFC 9001 §5.4).
struct Header(Box<dyn HeaderProtectionKey>);

impl crypto::HeaderKey for Header {
    fn decrypt(&self, number_offset: usize, packet: &mut [u8]) {
        if let Some((sample, first, number)) = self.parts(number_offset, packet) {
            // Cannot fail: `parts` has made sure that the sample has the right length.
            let _ = self.0.decrypt_in_place(sample, first, number);
        }
    }

    fn encrypt(&self, number_offset: usize, packet: &mut [u8]) {
        if let Some((sample, first, number)) = self.parts(number_offset, packet) {
            let _ = self.0.encrypt_in_place(sample, first, number);
        }
    }

    fn sample_size(&self) -> usize {
        self.0.sample_len()
    }
}

impl Header {
    /// Splits a packet into the sample for header protection, the first byte and the packet number; `None` if it is too
    /// short for a sample, which quinn-proto checks before.
    fn parts<'p>(
        &self,
        number_offset: usize,
        packet: &'p mut [u8],
    ) -> Option<(&'p [u8], &'p mut u8, &'p mut [u8])> {
        let (header, rest) = packet.split_at_mut_checked(number_offset + 4)?;
        let sample = rest.get(..self.0.sample_len())?;
        let (first, header) = header.split_first_mut()?;
        let number = header.get_mut(number_offset.checked_sub(1)?..)?;
        Some((sample, first, number))
    }
}

/// Length in bytes of the tag that authenticates a packet, with every cipher suite of QUIC (RFC 9001 §5.3). quinn-proto asks for it
/// several times per packet.
const TAG_LEN: usize = 16;

/// A key for packet protection (RFC 9001 §5.3).
enum Packet {
    Made(Box<dyn PacketKey>),
    /// The first 1-RTT key, for packets that this side sends.
    Local(Box<dyn PacketKey>, Arc<Shared>),
    /// A key that decrypts a client's packets at a server, which then searches them for streams that quinn-proto's tables lack.
    Watched(Box<dyn PacketKey>, Arc<StreamWatch>),
    NextLocal(Arc<NextKeys>),
    NextRemote(Arc<NextKeys>),
}

impl Packet {
    #[inline]
    fn key(&self) -> &dyn PacketKey {
        match self {
            Self::Made(key) | Self::Local(key, _) | Self::Watched(key, _) => &**key,
            Self::NextLocal(keys) => &*keys.get().local,
            Self::NextRemote(keys) => &*keys.get().remote,
        }
    }

    /// By how many bytes this key makes packets shorter: see [`Shared::set_cut`].
    #[inline]
    fn cut(&self) -> usize {
        match self {
            Self::Local(_, shared) => shared.cut(),
            Self::NextLocal(keys) => keys.shared.cut(),
            Self::Made(_) | Self::Watched(..) | Self::NextRemote(_) => 0,
        }
    }

    /// Whether this key refuses a packet with this decrypted content: see [`StreamWatch::refuses`].
    #[inline]
    fn refuses(&self, content: &[u8]) -> bool {
        match self {
            Self::Watched(_, watch) => watch.refuses(content),
            Self::NextRemote(keys) => {
                (keys.shared.watch.as_ref()).is_some_and(|watch| watch.refuses(content))
            }
            Self::Made(_) | Self::Local(..) | Self::NextLocal(_) => false,
        }
    }
}

impl crypto::PacketKey for Packet {
    fn encrypt(&self, number: u64, packet: &mut [u8], header_len: usize) {
        let (header, rest) = packet.split_at_mut(header_len);
        let key = self.key();
        let (payload, behind) = rest.split_at_mut(rest.len() - TAG_LEN - self.cut());
        let tag = &mut behind[..TAG_LEN];
        match key.encrypt_in_place(number, header, payload) {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            // If encryption fails, the packet is overwritten with zeros, so that nothing is sent in plain text.
            Err(_) => rest.fill(0),
        }
    }

    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let opened = self.key().decrypt_in_place(number, header, payload);
        let len = opened.map_err(|_| CryptoError)?.len();
        payload.truncate(len);
        if self.refuses(payload) {
            return Err(CryptoError);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_LEN + self.cut()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key().confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key().integrity_limit()
    }
}

/// The key and the nonce for the integrity tag of Retry packets (RFC 9001 §5.8; the same section of draft 29).
fn retry_key(version: Version) -> Option<(LessSafeKey, Nonce)> {
    let (key, nonce) = match version {
        Version::V1 => (
            0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128,
            [
                0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb,
            ],
        ),
        Version::V1Draft => (
            0xccce_187e_d09a_09d0_5728_155a_6cb9_6be1_u128,
            [
                0xe5, 0x49, 0x30, 0xf9, 0x7f, 0x21, 0x36, 0xf0, 0x53, 0x0a, 0x8c, 0x1c,
            ],
        ),
        _ => return None,
    };
    let key = UnboundKey::new(&AES_128_GCM, &key.to_be_bytes()).ok()?;
    Some((LessSafeKey::new(key), Nonce::assume_unique_for_key(nonce)))
}

/// The pseudo-packet from which the integrity tag of a Retry packet is computed (RFC 9001 §5.8).
fn retry_pseudo_packet(original: &ConnectionId, parts: &[&[u8]]) -> Vec<u8> {
    // An id has at most 20 bytes.
    let mut packet = vec![u8::try_from(original.len()).unwrap_or(u8::MAX)];
    packet.extend_from_slice(original);
    for part in parts {
        packet.extend_from_slice(part);
    }
    packet
}

/// TLS in the role of the server: makes the TLS sessions of accepted connections.
pub(crate) struct ServerTls {
    pub(crate) chooser: Arc<dyn TlsChooser>,
    pub(crate) watch: Arc<StreamWatch>,
}

impl crypto::ServerConfig for ServerTls {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        initial_keys(tls_version(version)?, id, Side::Server).ok_or(UnsupportedVersion)
    }

    fn retry_tag(&self, version: u32, original: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        let mut tag = [0; 16];
        let key = tls_version(version).ok().and_then(retry_key);
        if let Some((key, nonce)) = key {
            let pseudo = retry_pseudo_packet(original, &[packet]);
            // If the tag cannot be computed, it stays zero, and the client ignores the packet.
            if let Ok(sealed) = key.seal_in_place_separate_tag(nonce, Aad::from(pseudo), &mut []) {
                tag.copy_from_slice(sealed.as_ref());
            }
        }
        tag
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        Box::new(TlsSession {
            version,
            side: Side::Server,
            watch: Some(Arc::clone(&self.watch)),
            state: State::ClientHello {
                chooser: Arc::clone(&self.chooser),
                received: Vec::new(),
                parameters: self.watch.announced().announce(&bytes),
            },
            choice: None,
            is_announced: false,
            updates_prepared: 0,
            next_keys: None,
        })
    }
}

/// TLS in the role of the client: makes the TLS session of one connection.
pub(crate) struct ClientSide(pub(crate) ClientTls);

impl crypto::ClientConfig for ClientSide {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        _: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        let ClientTls {
            config,
            server_name,
        } = self.0.clone();
        let rustls = ClientConnection::new(config, tls_version(version)?, server_name, bytes)
            .map_err(|error| ConnectError::InvalidServerName(error.to_string()))?;
        Ok(Box::new(TlsSession {
            version,
            side: Side::Client,
            watch: None,
            state: State::Handshake(Box::new(rustls::quic::Connection::Client(rustls))),
            choice: None,
            is_announced: false,
            updates_prepared: 0,
            next_keys: None,
        }))
    }
}

/// The TLS session of one QUIC connection.
struct TlsSession {
    version: u32,
    side: Side,
    /// Searches decrypted packets for streams that quinn-proto's tables lack; `None` at a client.
    watch: Option<Arc<StreamWatch>>,
    state: State,
    /// The TLS configuration that was chosen for a client; `None` in the role of the client, and once the handshake is complete.
    choice: Option<QuicChoice>,
    /// Whether quinn-proto was told that the handshake data (such as the application protocol) is known.
    is_announced: bool,
    /// How many sets of keys for updates were made. One is made in advance, for an update that may never come.
    updates_prepared: u64,
    /// The keys that were prepared last, for the next key update.
    next_keys: Option<Arc<NextKeys>>,
}

/// Facts about a TLS session that the connection reads.
pub(crate) struct SessionFacts {
    pub(crate) handshake: Arc<Handshake>,
    /// Number of key updates so far (RFC 9001 §6).
    pub(crate) key_updates: u64,
    /// The state that the 1-RTT keys share; `None` until there are 1-RTT keys.
    pub(crate) shared: Option<Arc<Shared>>,
}

enum State {
    /// The ClientHello, by which the configuration is chosen, is not complete yet.
    ClientHello {
        chooser: Arc<dyn TlsChooser>,
        received: Vec<u8>,
        /// The transport parameters that this side sends.
        parameters: Vec<u8>,
    },
    Handshake(Box<rustls::quic::Connection>),
    /// There are 1-RTT keys, but the handshake may not be complete. The shared state has the secrets for key updates (RFC 9001
    /// §6).
    Finishing(Box<rustls::quic::Connection>, Arc<Shared>),
    Established(Box<Established>),
    Failed,
}

struct Established {
    shared: Arc<Shared>,
    handshake: Arc<Handshake>,
}

impl TlsSession {
    fn rustls(&self) -> Option<&rustls::quic::Connection> {
        match &self.state {
            State::Handshake(rustls) | State::Finishing(rustls, _) => Some(rustls),
            State::ClientHello { .. } | State::Established(_) | State::Failed => None,
        }
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.state {
            State::Finishing(_, shared) => Some(shared),
            State::Established(established) => Some(&established.shared),
            State::ClientHello { .. } | State::Handshake(_) | State::Failed => None,
        }
    }

    /// What the handshake has agreed on so far; `None` before the cipher suite is agreed on.
    fn handshake(&self) -> Option<Arc<Handshake>> {
        if let State::Established(established) = &self.state {
            return Some(Arc::clone(&established.handshake));
        }
        let rustls = self.rustls()?;
        let suite = rustls.negotiated_cipher_suite()?.suite();
        let is_resumed = rustls.handshake_kind() == Some(HandshakeKind::Resumed);
        let mut tls = match &self.choice {
            Some(choice) => choice.info(suite, rustls.alpn_protocol(), is_resumed),
            None => client_info(suite, rustls.alpn_protocol(), is_resumed),
        };
        if tls.server_name.is_none()
            && let rustls::quic::Connection::Server(server) = rustls
        {
            tls.server_name = server.server_name().map(Into::into);
        }
        // The peer's transport parameter `initial_max_stream_data_bidi_local` if the peer is a client,
        // `initial_max_stream_data_bidi_remote` if it is a server.
        let id = match self.side {
            Side::Server => 0x05,
            Side::Client => 0x06,
        };
        let encoded = rustls.quic_transport_parameters().unwrap_or_default();
        Some(Arc::new(Handshake {
            version: self.version,
            tls,
            stream_window: parameters::find(encoded, id).unwrap_or(0),
        }))
    }

    /// Begins the handshake once the ClientHello is whole.
    fn receive_hello(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let State::ClientHello {
            chooser,
            received,
            parameters,
        } = &mut self.state
        else {
            return Ok(());
        };
        received.extend_from_slice(bytes);
        let whole_len = match **received {
            [_, high, middle, low, ..] => 4 + u32::from_be_bytes([0, high, middle, low]) as usize,
            _ => return Ok(()),
        };
        if received.len() < whole_len && whole_len <= MAX_HELLO_LEN {
            return Ok(());
        }
        let choice = chooser.choose(received);
        let received = std::mem::take(received);
        let parameters = std::mem::take(parameters);
        let version = tls_version(self.version).unwrap_or_default();
        let config = Arc::clone(&choice.config);
        self.choice = Some(choice);
        let rustls = ServerConnection::new(config, version, parameters)
            .map_err(|error| protocol_error(TransportErrorCode::INTERNAL_ERROR, &error))?;
        let mut rustls = Box::new(rustls::quic::Connection::Server(rustls));
        let read = read(&mut rustls, &received);
        self.state = State::Handshake(rustls);
        read
    }
}

fn protocol_error(code: TransportErrorCode, error: &rustls::Error) -> TransportError {
    let mut failed = TransportError::from(code);
    failed.reason = error.to_string();
    failed
}

fn read(rustls: &mut rustls::quic::Connection, bytes: &[u8]) -> Result<(), TransportError> {
    rustls.read_hs(bytes).map_err(|error| {
        // The error code is that of the TLS alert (RFC 9001 §4.8).
        let code = rustls
            .alert()
            .map_or(TransportErrorCode::PROTOCOL_VIOLATION, |alert| {
                TransportErrorCode::crypto(alert.into())
            });
        protocol_error(code, &error)
    })
}

impl Session for TlsSession {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        let version = tls_version(self.version).unwrap_or_default();
        initial_keys(version, id, side).unwrap_or_else(no_keys)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(SessionFacts {
            handshake: self.handshake()?,
            key_updates: self.updates_prepared.saturating_sub(1),
            shared: self.shared().cloned(),
        }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn crypto::HeaderKey>, Box<dyn crypto::PacketKey>)> {
        let DirectionalKeys { header, packet } = self.rustls()?.zero_rtt_keys()?;
        let packet = watched(packet, self.watch.as_ref());
        Some((Box::new(Header(header)), Box::new(packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        match self.rustls()? {
            rustls::quic::Connection::Client(client) => Some(client.is_early_data_accepted()),
            rustls::quic::Connection::Server(_) => None,
        }
    }

    fn is_handshaking(&self) -> bool {
        match &self.state {
            State::ClientHello { .. } => true,
            State::Handshake(rustls) | State::Finishing(rustls, _) => rustls.is_handshaking(),
            State::Established(_) | State::Failed => false,
        }
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let done = match &mut self.state {
            State::ClientHello { .. } => self.receive_hello(bytes),
            State::Handshake(rustls) | State::Finishing(rustls, _) => read(rustls, bytes),
            // After its Finished message, a client may send no more handshake messages: there is no post-handshake
            // authentication, and KeyUpdate is forbidden (RFC 9001 §4.4, §6).
            State::Established(_) | State::Failed => {
                Err(TransportErrorCode::crypto(UNEXPECTED_MESSAGE).into())
            }
        };
        if let Err(error) = done {
            self.state = State::Failed;
            return Err(error);
        }
        let is_agreed = self
            .rustls()
            .is_some_and(|rustls| rustls.negotiated_cipher_suite().is_some());
        Ok(is_agreed && !std::mem::replace(&mut self.is_announced, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self
            .rustls()
            .and_then(|rustls| rustls.quic_transport_parameters())
        else {
            return Ok(None);
        };
        let bytes = parameters::replace(bytes, |id, limit| {
            (id == parameters::ACTIVE_CONNECTION_ID_LIMIT && limit > MAX_IDS).then_some(MAX_IDS)
        });
        Ok(Some(TransportParameters::read(
            self.side,
            &mut Cursor::new(bytes),
        )?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let start = out.len();
        let rustls = match &mut self.state {
            State::Handshake(rustls) | State::Finishing(rustls, _) => rustls,
            State::ClientHello { .. } | State::Established(_) | State::Failed => return None,
        };
        let change = rustls.write_hs(out);
        let is_idle = change.is_none() && out.len() == start && !rustls.is_handshaking();
        match change {
            Some(KeyChange::Handshake { keys }) => return Some(library_keys(keys)),
            Some(KeyChange::OneRtt { keys, next }) => {
                let shared = Arc::new(Shared {
                    secrets: Mutex::new(next),
                    watch: self.watch.clone(),
                    cut: AtomicUsize::new(0),
                });
                self.state = match std::mem::replace(&mut self.state, State::Failed) {
                    State::Handshake(rustls) => State::Finishing(rustls, Arc::clone(&shared)),
                    other => other,
                };
                let watch = self.watch.as_ref();
                return Some(keys_with(
                    keys,
                    |key| Packet::Local(key, shared),
                    |key| watched(key, watch),
                ));
            }
            None => {}
        }
        // A client still receives session tickets after the handshake, and keeps its rustls state for them.
        if is_idle && self.side.is_server() {
            let handshake = self.handshake();
            self.state = match (std::mem::replace(&mut self.state, State::Failed), handshake) {
                (State::Finishing(_, shared), Some(handshake)) => {
                    State::Established(Box::new(Established { shared, handshake }))
                }
                (other, _) => other,
            };
            self.choice = None;
        }
        None
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn crypto::PacketKey>>> {
        let shared = Arc::clone(self.shared()?);
        // Each key update derives its keys from the secrets that the previous update leaves, so the previous keys are made first.
        if let Some(last) = &self.next_keys {
            last.get();
        }
        let keys = Arc::new(NextKeys {
            shared,
            made: OnceLock::new(),
        });
        self.next_keys = Some(Arc::clone(&keys));
        self.updates_prepared += 1;
        Some(KeyPair {
            local: Box::new(Packet::NextLocal(Arc::clone(&keys))),
            remote: Box::new(Packet::NextRemote(keys)),
        })
    }

    fn is_valid_retry(&self, original: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some((token, tag)) = payload.split_last_chunk::<16>() else {
            return false;
        };
        let key = tls_version(self.version).ok().and_then(retry_key);
        let pseudo = retry_pseudo_packet(original, &[header, token]);
        let mut tag = *tag;
        key.is_some_and(|(key, nonce)| {
            key.open_in_place(nonce, Aad::from(pseudo), &mut tag)
                .is_ok()
        })
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let rustls = self.rustls().ok_or(ExportKeyingMaterialError)?;
        rustls
            .export_keying_material(output, label, Some(context))
            .map(|_| ())
            .map_err(|_| ExportKeyingMaterialError)
    }
}

/// The TLS alert for a handshake message that is not allowed at this point (`unexpected_message`).
const UNEXPECTED_MESSAGE: u8 = 10;

/// Keys for the case that the cryptographic library has no AES-128-GCM, which does not happen: packets are made of zeros, which no
/// peer can read.
fn no_keys() -> Keys {
    struct None;
    impl crypto::HeaderKey for None {
        fn decrypt(&self, _: usize, _: &mut [u8]) {}
        fn encrypt(&self, _: usize, _: &mut [u8]) {}
        fn sample_size(&self) -> usize {
            16
        }
    }
    impl crypto::PacketKey for None {
        fn encrypt(&self, _: u64, packet: &mut [u8], header_len: usize) {
            packet[header_len..].fill(0);
        }
        fn decrypt(&self, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
            Err(CryptoError)
        }
        fn tag_len(&self) -> usize {
            16
        }
        fn confidentiality_limit(&self) -> u64 {
            0
        }
        fn integrity_limit(&self) -> u64 {
            0
        }
    }
    Keys {
        header: KeyPair {
            local: Box::new(None),
            remote: Box::new(None),
        },
        packet: KeyPair {
            local: Box::new(None),
            remote: Box::new(None),
        },
    }
}
