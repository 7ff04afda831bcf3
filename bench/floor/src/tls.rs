//! TLS: rustls runs the handshake; after it each direction of the connection is encrypted by a [`Protection`].

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError};
use rustls::{ConnectionTrafficSecrets, ProtocolVersion};

use crate::Fault;

/// Content types of TLS records, from change_cipher_spec to application_data.
const CONTENT_TYPES: RangeInclusive<u8> = 20..=23;
pub(crate) const ALERT: u8 = 21;
pub(crate) const APPLICATION_DATA: u8 = 23;
/// Bytes of plaintext in a record at most (RFC 8446 §5.1).
pub(crate) const MAX_PLAINTEXT_LEN: usize = 1 << 14;

/// The alert close_notify, at level warning.
pub(crate) const CLOSE_NOTIFY: [u8; 2] = [1, 0];

const HEADER_LEN: usize = 5;
const TAG_LEN: usize = 16;
/// Bytes of the nonce that each TLS 1.2 record with AES-GCM contains (RFC 5288 §3).
const EXPLICIT_NONCE_LEN: usize = 8;
/// Bytes that are kept during a handshake at most.
const MAX_HANDSHAKE_LEN: usize = 64 * 1024;

/// A configuration with TLS 1.2 and 1.3, session tickets, and HTTP/2 for clients that offer it.
pub(crate) fn config(cert: &Path, key: &Path) -> Result<ServerConfig, String> {
    let unusable =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert)
        .map_err(|error| unusable(cert, &error))?
        .collect();
    let chain = chain.map_err(|error| unusable(cert, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| unusable(cert, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = provider::Ticketer::new().map_err(|error| error.to_string())?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    config.enable_secret_extraction = true;
    Ok(config)
}

/// The length of the record at the beginning of `bytes`; `None` if the record is incomplete.
pub(crate) fn record_len(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(&[content_type, _, _, high, low]) = bytes.first_chunk() else {
        return Ok(None);
    };
    if !CONTENT_TYPES.contains(&content_type) {
        return Err(Fault("a client does not send TLS records"));
    }
    let len = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
    if len > HEADER_LEN + MAX_PLAINTEXT_LEN + 256 {
        return Err(Fault("a TLS record is too long"));
    }
    Ok((len <= bytes.len()).then_some(len))
}

/// A handshake in progress.
pub(crate) struct Handshake {
    rustls: UnbufferedServerConnection,
    received: Vec<u8>,
    /// How many bytes of `received` rustls may process: only complete records. An incomplete record stays in `received`, because it may
    /// be the first one after the handshake, which this program decrypts without rustls.
    shown: usize,
}

/// A connection after a complete handshake.
pub(crate) struct Established {
    pub(crate) opener: Protection,
    pub(crate) sealer: Protection,
    pub(crate) is_http2: bool,
    /// Bytes that the client has sent after the handshake.
    pub(crate) rest: Vec<u8>,
}

impl Handshake {
    pub(crate) fn new(config: &Arc<ServerConfig>) -> Result<Self, Fault> {
        let rustls = UnbufferedServerConnection::new(Arc::clone(config))
            .map_err(|_| Fault("rustls cannot begin a handshake"))?;
        Ok(Self {
            rustls,
            received: Vec::new(),
            shown: 0,
        })
    }

    /// Processes `input`. Returns whether the handshake is complete.
    pub(crate) fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<bool, Fault> {
        self.received.extend_from_slice(input);
        while let Some(len) = record_len(&self.received[self.shown..])? {
            self.shown += len;
            if self.work(out)? {
                return Ok(true);
            }
        }
        if self.received.len() > MAX_HANDSHAKE_LEN {
            return Err(Fault("a TLS handshake message is too long"));
        }
        Ok(false)
    }

    /// Lets rustls process the complete records. Returns whether the handshake is complete.
    fn work(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        loop {
            let status = self
                .rustls
                .process_tls_records(&mut self.received[..self.shown]);
            let discard = status.discard;
            let waits = match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|room| data.encode(room), out)?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => true,
                Ok(_) => {
                    return Err(Fault(
                        "a client closed the connection during the TLS handshake",
                    ));
                }
                Err(_) => return Err(Fault("a TLS handshake failed")),
            };
            self.received.drain(..discard);
            self.shown -= discard;
            if waits {
                return Ok(!self.rustls.is_handshaking());
            }
        }
    }

    pub(crate) fn finish(self) -> Result<Established, Fault> {
        let is_http2 = self.rustls.alpn_protocol() == Some(b"h2");
        let is_tls13 = self.rustls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let (secrets, _) = self
            .rustls
            .dangerous_into_kernel_connection()
            .map_err(|_| Fault("rustls does not hand over the keys of a connection"))?;
        Ok(Established {
            opener: Protection::new(is_tls13, &secrets.rx)?,
            sealer: Protection::new(is_tls13, &secrets.tx)?,
            is_http2,
            rest: self.received,
        })
    }
}

/// Appends the bytes that `encode` writes; a first call of it says how many they are.
fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    const FAULT: Fault = Fault("rustls cannot encode a handshake message");
    let Err(EncodeError::InsufficientSize(needed)) = encode(&mut []) else {
        return Err(FAULT);
    };
    let start = out.len();
    out.resize(start + needed.required_size, 0);
    let written = encode(&mut out[start..]).map_err(|_| FAULT)?;
    out.truncate(start + written);
    Ok(())
}

/// Key and sequence number for one direction.
pub(crate) struct Protection {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    is_tls13: bool,
    /// Bytes of the explicit nonce between a record's header and its ciphertext.
    explicit_len: usize,
}

impl Protection {
    fn new(
        is_tls13: bool,
        (sequence, secrets): &(u64, ConnectionTrafficSecrets),
    ) -> Result<Self, Fault> {
        const FAULT: Fault =
            Fault("rustls chose a cipher suite that the floor program does not have");
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(FAULT),
        };
        let has_explicit_nonce = !is_tls13 && *algorithm != CHACHA20_POLY1305;
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| FAULT)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv: iv.as_ref().try_into().map_err(|_| FAULT)?,
            sequence: *sequence,
            is_tls13,
            explicit_len: if has_explicit_nonce {
                EXPLICIT_NONCE_LEN
            } else {
                0
            },
        })
    }

    /// Appends room for the header and explicit nonce of a record. Returns the position where its plaintext begins.
    pub(crate) fn begin(&self, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(
            &[0; HEADER_LEN + EXPLICIT_NONCE_LEN][..HEADER_LEN + self.explicit_len],
        );
        out.len()
    }

    /// Encrypts the plaintext from `start` to the end of `out` in place.
    pub(crate) fn seal(
        &mut self,
        content_type: u8,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        const FAULT: Fault = Fault("a TLS record cannot be encrypted");
        let plain_len = out.len() - start;
        let outer_type = if self.is_tls13 {
            out.push(content_type);
            APPLICATION_DATA
        } else {
            content_type
        };
        let len = u16::try_from(self.explicit_len + out.len() - start + TAG_LEN);
        let [high, low] = len.map_err(|_| FAULT)?.to_be_bytes();
        let header = [outer_type, 3, 3, high, low];
        let nonce = self.nonce();
        let before = start - self.explicit_len;
        out[before - HEADER_LEN..before].copy_from_slice(&header);
        out[before..start].copy_from_slice(&nonce[12 - self.explicit_len..]);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let body = &mut out[start..];
        let tag = if self.is_tls13 {
            self.key
                .seal_in_place_separate_tag(nonce, Aad::from(header), body)
        } else {
            let aad = Aad::from(self.tls12_aad(content_type, plain_len)?);
            self.key.seal_in_place_separate_tag(nonce, aad, body)
        };
        out.extend_from_slice(tag.map_err(|_| FAULT)?.as_ref());
        self.sequence += 1;
        Ok(())
    }

    /// Decrypts a complete record in place. Returns its content type and its plaintext.
    pub(crate) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Fault> {
        const FAULT: Fault = Fault("a TLS record does not authenticate");
        let (header, fragment) = record.split_first_chunk_mut().ok_or(FAULT)?;
        let header: [u8; HEADER_LEN] = *header;
        let (explicit, body) = fragment
            .split_at_mut_checked(self.explicit_len)
            .ok_or(FAULT)?;
        let plain_len = body.len().checked_sub(TAG_LEN).ok_or(FAULT)?;
        let mut nonce = self.nonce();
        nonce[12 - explicit.len()..].copy_from_slice(explicit);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let plain = if self.is_tls13 {
            self.key.open_in_place(nonce, Aad::from(header), body)
        } else {
            let aad = Aad::from(self.tls12_aad(header[0], plain_len)?);
            self.key.open_in_place(nonce, aad, body)
        };
        let plain = plain.map_err(|_| FAULT)?;
        self.sequence += 1;
        if !self.is_tls13 {
            return Ok((header[0], plain));
        }
        let last = plain.iter().rposition(|byte| *byte != 0).ok_or(FAULT)?;
        Ok((plain[last], &plain[..last]))
    }

    /// The IV combined with the sequence number (RFC 8446 §5.3, RFC 7905 §2).
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        nonce
    }

    /// The additional data that TLS 1.2 authenticates (RFC 5246 §6.2.3.3).
    fn tls12_aad(&self, content_type: u8, plain_len: usize) -> Result<[u8; 13], Fault> {
        let len = u16::try_from(plain_len).map_err(|_| Fault("a TLS record is too long"))?;
        let mut aad = [0; 13];
        aad[..8].copy_from_slice(&self.sequence.to_be_bytes());
        aad[8..11].copy_from_slice(&[content_type, 3, 3]);
        aad[11..].copy_from_slice(&len.to_be_bytes());
        Ok(aad)
    }
}
