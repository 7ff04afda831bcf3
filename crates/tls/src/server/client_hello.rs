//! Parses the ClientHello (RFC 8446 §4.1.2) ahead of rustls, to choose a configuration for the client.
//! `rustls::server::Acceptor` would show server name and application protocols, but not the tickets, early data and
//! versions that the choice depends on. rustls parses the message again in full; it also refuses one that is malformed
//! here, with its own alert.

use crate::record::framing::{ContentType, HEADER_LEN, MAX_PLAINTEXT_LEN, complete_len};
use crate::server::server_name;

/// The HandshakeType `client_hello`.
pub(crate) const CLIENT_HELLO: u8 = 1;
/// Length in bytes of the header of a handshake message: HandshakeType and length.
const MESSAGE_HEADER_LEN: usize = 4;
/// Length in bytes of the longest message that is parsed; rustls has the same limit.
const MAX_MESSAGE_LEN: usize = 0xffff;

/// The numbers of TLS extensions.
pub(crate) mod extension {
    pub(crate) const SERVER_NAME: u16 = 0;
    pub(crate) const ALPN: u16 = 16;
    pub(crate) const CLIENT_CERTIFICATE_TYPE: u16 = 19;
    pub(crate) const SERVER_CERTIFICATE_TYPE: u16 = 20;
    pub(crate) const SESSION_TICKET: u16 = 35;
    pub(crate) const PRE_SHARED_KEY: u16 = 41;
    pub(crate) const EARLY_DATA: u16 = 42;
    pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
}

/// The numbers of CertificateTypes (RFC 7250 §3).
mod certificate_type {
    pub(crate) const X509: u8 = 0;
    pub(crate) const RAW_PUBLIC_KEY: u8 = 2;
}

/// What a peer accepts or sends in the place of a certificate, according to a list of certificate types in order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CertificateTypes {
    /// Only a certificate: the list does not have raw public keys, or there is no list.
    #[default]
    Certificate,
    CertificateOrRawKey,
    RawKeyOrCertificate,
    RawKey,
}

impl CertificateTypes {
    fn parse(data: &[u8]) -> Self {
        let types = Reader(data).vector8().unwrap_or_default();
        let position = |wanted| types.iter().position(|found| *found == wanted);
        let raw_key = position(certificate_type::RAW_PUBLIC_KEY);
        match (position(certificate_type::X509), raw_key) {
            (_, None) => Self::Certificate,
            (None, Some(_)) => Self::RawKey,
            (Some(certificate), Some(raw_key)) if certificate < raw_key => {
                Self::CertificateOrRawKey
            }
            (Some(_), Some(_)) => Self::RawKeyOrCertificate,
        }
    }
}

/// Assembles the ClientHello from records. Each record is read once.
#[derive(Default)]
pub(crate) struct ClientHelloReader {
    /// Position in the received bytes at which the next record begins.
    next_record: usize,
    message: Vec<u8>,
}

/// How much of the ClientHello has been received.
pub(crate) enum HelloStatus<'a> {
    NeedMore,
    Complete(ClientHello<'a>),
    /// The client has sent the start of an HTTP request in clear text.
    ClearText,
    /// The message is no ClientHello, or one with inconsistent lengths.
    Malformed,
}

/// The parts of a ClientHello that decide on the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientHello<'a> {
    /// The server name (SNI) that the client has sent: one that rustls accepts, or an address.
    pub(crate) server_name: Option<&'a [u8]>,
    /// Position in the message of the type of the `server_name` extension, if rustls would refuse the name; `server_name` is then
    /// `None`.
    pub(crate) hidden_name_at: Option<usize>,
    /// Whether the client accepts a certificate or a raw public key from the server (RFC 7250).
    pub(crate) server_certificate: CertificateTypes,
    /// Whether the client would send a certificate or a raw public key as its own (RFC 7250).
    pub(crate) client_certificate: CertificateTypes,
    /// The list of application protocols that the client offers, in its encoded form.
    alpn: Option<&'a [u8]>,
    /// Whether the client offers TLS 1.3.
    pub(crate) offers_tls13: bool,
    /// Whether the newest version that the client offers is older than TLS 1.2.
    pub(crate) offers_only_old: bool,
    /// Whether the client announces early data.
    pub(crate) early_data: bool,
    /// The session identifier: in TLS 1.2, that of the session which the client wants to resume; otherwise a made-up one, or
    /// empty.
    pub(crate) session_id: &'a [u8],
    /// Whether the client offers a ticket for resumption in TLS 1.2; the session identifier is then made up.
    pub(crate) has_ticket: bool,
    /// The first ticket that the client offers for resumption in TLS 1.3.
    pub(crate) first_ticket: Option<&'a [u8]>,
}

impl ClientHelloReader {
    /// Reads the ClientHello. `received` has all bytes received since the start of the connection, and must only grow between
    /// calls.
    pub(crate) fn read(&mut self, received: &[u8]) -> HelloStatus<'_> {
        if self.next_record == 0
            && let Some(status) = detect_http(received)
        {
            return status;
        }
        while !self.is_complete() {
            let rest = &received[self.next_record..];
            let is_handshake = rest
                .first()
                .is_none_or(|byte| *byte == ContentType::Handshake.byte());
            match complete_len(rest) {
                Ok(Some(len)) if is_handshake && len > HEADER_LEN => {
                    self.message.extend_from_slice(&rest[HEADER_LEN..len]);
                    self.next_record += len;
                }
                Ok(None) if is_handshake => return HelloStatus::NeedMore,
                Ok(_) | Err(_) => return HelloStatus::Malformed,
            }
            if self.message[0] != CLIENT_HELLO || self.claimed_len().unwrap_or(0) > MAX_MESSAGE_LEN
            {
                return HelloStatus::Malformed;
            }
        }
        match ClientHello::parse(&self.message) {
            Some(hello) => HelloStatus::Complete(hello),
            None => HelloStatus::Malformed,
        }
    }

    /// Returns the bytes of `received` with the server name hidden. The ClientHello gets records of its own. To be called after
    /// [`HelloStatus::Complete`].
    pub(crate) fn with_hidden_name(mut self, received: &[u8], hidden_name_at: usize) -> Vec<u8> {
        server_name::hide(&mut self.message, hidden_name_at);
        let mut out = Vec::with_capacity(received.len());
        for fragment in self.message.chunks(MAX_PLAINTEXT_LEN) {
            let [_, _, high, low] = u32::try_from(fragment.len())
                .unwrap_or_default()
                .to_be_bytes();
            // The type and version of the first received record.
            out.extend_from_slice(&received[..3]);
            out.extend_from_slice(&[high, low]);
            out.extend_from_slice(fragment);
        }
        out.extend_from_slice(&received[self.next_record..]);
        out
    }

    /// The part of the ClientHello received so far.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// Number of bytes of memory held.
    pub(crate) fn retained(&self) -> usize {
        self.message.capacity()
    }

    fn is_complete(&self) -> bool {
        self.claimed_len()
            .is_some_and(|len| self.message.len() >= MESSAGE_HEADER_LEN + len)
    }

    fn claimed_len(&self) -> Option<usize> {
        let &[_, high, middle, low] = self.message.first_chunk()?;
        usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()
    }
}

/// Length in bytes of the longest HTTP method (RFC 9110 §16.1.2 lists `UPDATEREDIRECTREF` and `VERSION-CONTROL`).
const MAX_METHOD_LEN: usize = 17;

/// Detects a clear-text HTTP request: upper-case letters and a space. `None` if the bytes begin otherwise. A TLS record begins
/// with a ContentType, none of which is a letter.
fn detect_http(received: &[u8]) -> Option<HelloStatus<'static>> {
    let letters = received.iter().take_while(|byte| byte.is_ascii_uppercase());
    match (letters.count(), received) {
        (0, _) => None,
        (len, _) if len > MAX_METHOD_LEN => None,
        (len, received) => match received.get(len) {
            None => Some(HelloStatus::NeedMore),
            Some(b' ') => Some(HelloStatus::ClearText),
            Some(_) => None,
        },
    }
}

impl<'a> ClientHello<'a> {
    /// Parses a ClientHello, starting with its HandshakeType; `None` if its lengths are inconsistent.
    pub(crate) fn parse(message: &'a [u8]) -> Option<Self> {
        let (session_id, mut reader) = before_extensions(message)?;
        let mut hello = Self {
            session_id,
            offers_only_old: legacy_version(message)? < TLS12,
            ..Self::default()
        };
        // A ClientHello may have no extensions (RFC 5246 §7.4.1.2).
        let mut extensions = if reader.0.is_empty() {
            Reader(&[])
        } else {
            Reader(reader.vector16()?)
        };
        while !extensions.0.is_empty() {
            let extension = extensions.u16()?;
            let data = extensions.vector16()?;
            match extension {
                extension::SERVER_NAME => {
                    hello.hidden_name_at = server_name::hidden_name_at(message, data);
                    if hello.hidden_name_at.is_none() {
                        hello.server_name = parse_server_name(data);
                    }
                }
                extension::CLIENT_CERTIFICATE_TYPE => {
                    hello.client_certificate = CertificateTypes::parse(data);
                }
                extension::SERVER_CERTIFICATE_TYPE => {
                    hello.server_certificate = CertificateTypes::parse(data);
                }
                extension::ALPN => hello.alpn = Reader(data).vector16(),
                extension::SESSION_TICKET => hello.has_ticket = !data.is_empty(),
                extension::PRE_SHARED_KEY => hello.first_ticket = parse_first_ticket(data),
                extension::EARLY_DATA => hello.early_data = true,
                extension::SUPPORTED_VERSIONS => {
                    let versions = Reader(data).vector8()?;
                    // The list counts instead of `legacy_version` (RFC 8446 §4.2.1).
                    hello.offers_only_old = false;
                    hello.offers_tls13 = versions
                        .chunks_exact(2)
                        .any(|version| version == [0x03, 0x04]);
                }
                _ => {}
            }
        }
        Some(hello)
    }

    /// Whether the client offers this application protocol and no other.
    pub(crate) fn offers_only(&self, protocol: &[u8]) -> bool {
        let Some(list) = self.alpn else {
            return false;
        };
        let mut reader = Reader(list);
        reader.vector8() == Some(protocol) && reader.vector8().is_none()
    }

    /// Whether the client offers application protocols, but none of `ours`.
    pub(crate) fn alpn_mismatch(&self, ours: &[Vec<u8>]) -> bool {
        let Some(list) = self.alpn else {
            return false;
        };
        let mut reader = Reader(list);
        while let Some(theirs) = reader.vector8() {
            if ours.iter().any(|protocol| protocol == theirs) {
                return false;
            }
        }
        true
    }
}

/// The number of TLS 1.2.
const TLS12: u16 = 0x0303;

/// The newest version that the client offers, unless the extension `supported_versions` lists versions.
fn legacy_version(message: &[u8]) -> Option<u16> {
    Reader(message.get(MESSAGE_HEADER_LEN..)?).u16()
}

/// Reads a ClientHello up to its extensions. Returns its session identifier as well.
fn before_extensions(message: &[u8]) -> Option<(&[u8], Reader<'_>)> {
    let mut reader = Reader(message);
    reader.take(MESSAGE_HEADER_LEN + 2 + 32)?; // legacy_version, random
    let session_id = reader.vector8()?; // legacy_session_id
    reader.vector16()?; // cipher_suites
    reader.vector8()?; // legacy_compression_methods
    Some((session_id, reader))
}

/// Position of the type of the extension `wanted` in a ClientHello. `message` begins with the HandshakeType; its end may be
/// missing.
pub(crate) fn extension_at(message: &[u8], wanted: u16) -> Option<usize> {
    let (_, mut reader) = before_extensions(message)?;
    reader.u16()?; // length of all extensions
    loop {
        let at = message.len() - reader.0.len();
        if reader.u16()? == wanted {
            return Some(at);
        }
        reader.vector16()?;
    }
}

/// The first name of type `host_name` in a `server_name` extension (RFC 6066 §3).
fn parse_server_name(data: &[u8]) -> Option<&[u8]> {
    let mut list = Reader(Reader(data).vector16()?);
    match list.take(1)? {
        [0] => list.vector16(),
        _ => None,
    }
}

/// The first identity of the `pre_shared_key` extension (RFC 8446 §4.2.11).
fn parse_first_ticket(data: &[u8]) -> Option<&[u8]> {
    let mut identities = Reader(Reader(data).vector16()?);
    identities.vector16()
}

/// Reads fields from the front of the bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// Reads a vector whose length has one byte.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let len = self.take(1)?[0];
        self.take(usize::from(len))
    }

    /// Reads a vector whose length has two bytes.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector16(content: &[u8]) -> Vec<u8> {
        let len = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&len[..], content].concat()
    }

    fn extension(number: u8, content: &[u8]) -> Vec<u8> {
        [&[0, number][..], &vector16(content)].concat()
    }

    /// Makes a ClientHello with these extensions, in one record.
    fn record(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([0; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        if !extensions.is_empty() {
            body.extend(vector16(&extensions.concat()));
        }
        let len = u16::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[1, 0, len[0], len[1]][..], &body].concat();
        [&[22, 3, 1][..], &vector16(&message)].concat()
    }

    fn look<R>(bytes: &[u8], read: impl FnOnce(HelloStatus<'_>) -> R) -> R {
        read(ClientHelloReader::default().read(bytes))
    }

    #[test]
    fn the_fields_that_matter_are_found() {
        let full = record(&[
            extension(0, &vector16(&[&[0][..], &vector16(b"a.test")].concat())),
            extension(16, &vector16(b"\x02h2\x08http/1.1")),
            extension(43, &[4, 3, 4, 3, 3]),
            extension(42, &[]),
            extension(0x2b, &[2, 3, 4]),
            extension(99, b"whatever"),
            extension(41, &vector16(&[&vector16(b"ticket")[..], &[0; 4]].concat())),
        ]);
        look(&full, |seen| {
            let HelloStatus::Complete(hello) = seen else {
                panic!()
            };
            assert_eq!(hello.server_name, Some(&b"a.test"[..]));
            assert!(hello.offers_tls13 && hello.early_data);
            assert_eq!(hello.first_ticket, Some(&b"ticket"[..]));
            let ours = |name: &[u8]| vec![name.to_vec()];
            assert!(!hello.alpn_mismatch(&ours(b"http/1.1")));
            assert!(!hello.alpn_mismatch(&ours(b"h2")));
            assert!(hello.alpn_mismatch(&ours(b"h3")));
        });
        look(&record(&[]), |seen| {
            let HelloStatus::Complete(hello) = seen else {
                panic!()
            };
            assert_eq!(hello, ClientHello::default());
            assert!(!hello.alpn_mismatch(&[]));
        });
        // As long as a part is missing, the message is reported as incomplete, and each byte is read only once.
        let mut reader = ClientHelloReader::default();
        for len in 0..full.len() {
            assert!(
                matches!(reader.read(&full[..len]), HelloStatus::NeedMore),
                "{len}"
            );
        }
        assert!(matches!(reader.read(&full), HelloStatus::Complete(_)));
    }

    #[test]
    fn requests_in_clear_text_are_known_by_their_method() {
        for (bytes, want) in [
            (&b"GET / HTTP/1.1"[..], true),
            (b"PRI * HTTP/2.0", true),
            (b"UPDATEREDIRECTREF x", true),
            (b"A ", true),
            (b"ABCDEFGHIJKLMNOPQR ", false),
            (b"GE/", false),
            (b" GET", false),
        ] {
            assert_eq!(
                look(bytes, |seen| matches!(seen, HelloStatus::ClearText)),
                want,
                "{}",
                bytes.escape_ascii()
            );
        }
        assert!(look(b"G", |seen| matches!(seen, HelloStatus::NeedMore)));
        assert!(look(b"", |seen| matches!(seen, HelloStatus::NeedMore)));
    }

    #[test]
    fn the_types_of_certificates_are_in_order_of_preference() {
        use CertificateTypes::{Certificate, CertificateOrRawKey, RawKey, RawKeyOrCertificate};
        // Lists of certificate types (RFC 7250 §3): 0 is X.509, 2 is a raw public key; 1 was OpenPGP.
        let cases: &[(&[u8], CertificateTypes)] = &[
            (&[], Certificate),
            (&[0], Certificate),
            (&[1], Certificate),
            (&[0, 2], CertificateOrRawKey),
            (&[2, 0], RawKeyOrCertificate),
            (&[2], RawKey),
            (&[1, 2], RawKey),
        ];
        for (types, want) in cases {
            let len = u8::try_from(types.len()).unwrap();
            for (number, want) in [(19, (*want, Certificate)), (20, (Certificate, *want))] {
                let extension = extension(number, &[&[len][..], types].concat());
                look(&record(&[extension]), |seen| {
                    let HelloStatus::Complete(hello) = seen else {
                        panic!()
                    };
                    let found = (hello.client_certificate, hello.server_certificate);
                    assert_eq!(found, want, "{types:?}");
                });
            }
        }
    }

    #[test]
    fn what_is_no_client_hello_is_left_to_others() {
        let cases: &[&[u8]] = &[
            b"get / HTTP/1.1\r\n\r\n",
            b"GETTING-ON / HTTP/1.1",
            b"\x80\x2e\x01\x03\x01",
            // Malformed input: an empty record, a message of another type, a message that is too long.
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0, 1, 2],
            &[22, 3, 1, 0, 4, 1, 1, 0, 0],
            &[22, 3, 1, 0xff, 0xff],
            // A ClientHello whose body ends early.
            &[22, 3, 1, 0, 4, 1, 0, 0, 0],
            &record(&[extension(43, &[200, 3])]),
            &record(&[vec![0, 16, 0, 9]]),
        ];
        for bytes in cases {
            assert!(
                look(bytes, |seen| matches!(seen, HelloStatus::Malformed)),
                "{}",
                bytes.escape_ascii()
            );
        }
        // A malformed extension counts as absent.
        for extensions in [
            extension(0, &[0, 9, 0]),
            extension(0, &vector16(&[1, 0, 1, b'x'])),
            extension(16, &[0, 9]),
            extension(41, &[0]),
        ] {
            look(&record(&[extensions]), |seen| {
                let HelloStatus::Complete(hello) = seen else {
                    panic!()
                };
                assert_eq!(hello, ClientHello::default());
            });
        }
    }
}
