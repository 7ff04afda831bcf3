//! Sessions of TLS 1.2 in the form that servers with OpenSSL keep in shared stores: its `SSL_SESSION` in DER.
//!
//! This module converts sessions between that form and the form of rustls. Sessions of this server also contain the server name,
//! and the [`Binding`] in the field for application data.

use crate::resumption::binding::Binding;
use crate::x509::{Element, Reader};

/// Length in bytes of the session identifiers that rustls and OpenSSL generate.
pub(crate) const ID_LEN: usize = 32;
/// Length in bytes of a master secret (RFC 5246 §8.1).
const SECRET_LEN: usize = 48;
/// The version number of OpenSSL's session format.
const FORMAT_VERSION: u64 = 1;
/// The ProtocolVersion of TLS 1.2.
const TLS12: u16 = 0x0303;
/// The bit of the session's flags that says that the extended master secret was used (RFC 7627).
const EXTENDED_MASTER_SECRET: u64 = 1;

/// Tags of the optional fields of a session, which are context-specific constructed types.
mod field {
    pub(super) const TIME: u8 = 0xa1;
    pub(super) const LIFETIME: u8 = 0xa2;
    pub(super) const PEER: u8 = 0xa3;
    pub(super) const CONTEXT: u8 = 0xa4;
    pub(super) const HOST_NAME: u8 = 0xa6;
    pub(super) const FLAGS: u8 = 0xad;
    pub(super) const APPLICATION_DATA: u8 = 0xb2;
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;

/// The session that a client wants to resume.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) id: [u8; ID_LEN],
    pub(crate) binding: Binding,
    /// Whether sessions of other servers, which have no binding, may be resumed. Such a session is then resumed as one for
    /// `server_name`.
    pub(crate) takes_unbound: bool,
    /// The server name that the client sends in its present ClientHello.
    pub(crate) server_name: Option<Box<str>>,
}

/// A session in the form of rustls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) value: Vec<u8>,
    /// When the session was created, in seconds since the Unix epoch.
    pub(crate) created: u64,
}

/// Converts a session from the form of rustls. `None` if the session must not be shared: it belongs to a client with a
/// certificate, and other servers may ask for other certificates.
pub(crate) fn encode(
    value: &[u8],
    id: &[u8],
    binding: &Binding,
    lifetime_secs: u64,
) -> Option<Vec<u8>> {
    let mut fields = Fields(value);
    let server_name = match fields.byte()? {
        0 => None,
        _ => Some(fields.vector8()?),
    };
    let (version, suite) = (fields.number(2)?, fields.take(2)?);
    let secret = fields.vector8()?;
    let is_extended = fields.byte()?;
    let has_certificates = fields.byte()? != 0;
    if version != u64::from(TLS12) || secret.len() != SECRET_LEN || has_certificates {
        return None;
    }
    if fields.byte()? != 0 {
        fields.vector8()?;
    }
    let application_data_len = usize::try_from(fields.number(2)?).ok()?;
    fields.take(application_data_len)?;
    let created = fields.number(8)?;

    let flags = u64::from(is_extended) & EXTENDED_MASTER_SECRET;
    let name = server_name.map(|name| element(field::HOST_NAME, &element(OCTET_STRING, name)));
    let content = [
        integer(FORMAT_VERSION),
        integer(version),
        element(OCTET_STRING, suite),
        element(OCTET_STRING, id),
        element(OCTET_STRING, secret),
        element(field::TIME, &integer(created)),
        element(field::LIFETIME, &integer(lifetime_secs)),
        element(field::CONTEXT, &element(OCTET_STRING, b"")),
        name.unwrap_or_default(),
        element(field::FLAGS, &integer(flags)),
        element(field::APPLICATION_DATA, &element(OCTET_STRING, binding)),
    ];
    Some(element(SEQUENCE, &content.concat()))
}

/// Converts a session to the form of rustls. `None` unless it is the session that is wanted, and may still be resumed at `now`
/// (Unix time).
pub(crate) fn decode(
    input: &[u8],
    wanted: &Wanted,
    lifetime_secs: u64,
    now: u64,
) -> Option<Session> {
    let mut input = Reader(input);
    let mut session = Reader(input.content_of(SEQUENCE)?);
    if !input.is_empty()
        || number(session.content_of(INTEGER)?)? != FORMAT_VERSION
        || number(session.content_of(INTEGER)?)? != u64::from(TLS12)
    {
        return None;
    }
    let suite = session.content_of(OCTET_STRING)?;
    let id = session.content_of(OCTET_STRING)?;
    let secret = session.content_of(OCTET_STRING)?;
    if suite.len() != 2 || id != wanted.id || secret.len() != SECRET_LEN {
        return None;
    }
    let (mut created, mut lifetime_secs, mut flags) = (None, lifetime_secs, 0);
    let (mut server_name, mut binding): (_, Option<&[u8]>) = (None, None);
    while !session.is_empty() {
        let element = session.element()?;
        match element.tag {
            field::TIME => created = Some(number_in(element)?),
            field::LIFETIME => lifetime_secs = lifetime_secs.min(number_in(element)?),
            // This session belongs to a client with a certificate.
            field::PEER => return None,
            // This session belongs to another application.
            field::CONTEXT if !string_in(element)?.is_empty() => return None,
            field::HOST_NAME => server_name = Some(string_in(element)?),
            field::FLAGS => flags = number_in(element)?,
            field::APPLICATION_DATA => binding = Some(string_in(element)?),
            _ => {}
        }
    }
    match binding {
        Some(binding) if binding == wanted.binding => {}
        None if wanted.takes_unbound => {
            server_name = wanted.server_name.as_deref().map(str::as_bytes);
        }
        Some(_) | None => return None,
    }
    let created = created?.min(now);
    if created.saturating_add(lifetime_secs) <= now {
        return None;
    }

    let mut value = Vec::new();
    match server_name {
        None => value.push(0),
        Some(name) => {
            value.extend([1, u8::try_from(name.len()).ok()?]);
            value.extend(name);
        }
    }
    value.extend(TLS12.to_be_bytes());
    value.extend(suite);
    value.push(u8::try_from(SECRET_LEN).ok()?);
    value.extend(secret);
    value.push(u8::from(flags & EXTENDED_MASTER_SECRET != 0));
    // The session has no client certificates, no application protocol and no application data.
    value.extend([0, 0, 0, 0]);
    value.extend(created.to_be_bytes());
    // Two fields that only tickets of TLS 1.3 use.
    value.extend([0; 4]);
    Some(Session { value, created })
}

/// Reads the fields of a session in the form of rustls.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self, len: usize) -> Option<u64> {
        self.take(len).map(big_endian)
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let len = self.byte()?;
        self.take(usize::from(len))
    }
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The value of an INTEGER that is not negative.
fn number(content: &[u8]) -> Option<u64> {
    let is_number = matches!(content, [0..=0x7f, ..]) && content.len() <= 9;
    (is_number && (content.len() < 9 || content[0] == 0)).then(|| big_endian(content))
}

fn number_in(element: Element<'_>) -> Option<u64> {
    number(Reader(element.content).content_of(INTEGER)?)
}

fn string_in(element: Element<'_>) -> Option<&[u8]> {
    Reader(element.content).content_of(OCTET_STRING)
}

fn integer(number: u64) -> Vec<u8> {
    // A zero byte comes first, because a first bit that is set would make the number negative.
    let bytes = [&[0][..], &number.to_be_bytes()].concat();
    let is_needless = |at: &usize| bytes[*at] == 0 && bytes[*at + 1] < 0x80;
    let start = (0..8).take_while(is_needless).count();
    element(INTEGER, &bytes[start..])
}

/// A DER element with at most 65,535 bytes of content.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let header = match content.len() {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [&header, content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; SECRET_LEN] = [7; SECRET_LEN];

    /// A session in the form of rustls.
    fn session(server_name: Option<&str>, certificates: u8) -> Vec<u8> {
        let mut value = vec![];
        match server_name {
            None => value.push(0),
            Some(name) => {
                value.extend([1, u8::try_from(name.len()).unwrap()]);
                value.extend(name.as_bytes());
            }
        }
        value.extend([3, 3, 0xc0, 0x2c, 48]);
        value.extend(SECRET);
        value.extend([1, certificates, 0, 0, 0]);
        value.extend(1000u64.to_be_bytes());
        value.extend([0; 4]);
        value
    }

    fn wanted(binding: u8, takes_unbound: bool) -> Wanted {
        Wanted {
            id: [5; ID_LEN],
            binding: [binding; 32],
            takes_unbound,
            server_name: Some("now.test".into()),
        }
    }

    #[test]
    fn a_session_survives_both_conversions() {
        for name in [None, Some("a.test")] {
            let value = session(name, 0);
            let shared = encode(&value, &[5; ID_LEN], &[1; 32], 100).unwrap();
            let created = 1000;
            for takes_unbound in [false, true] {
                assert_eq!(
                    decode(&shared, &wanted(1, takes_unbound), 100, 1099),
                    Some(Session {
                        value: value.clone(),
                        created
                    })
                );
            }
        }
    }

    #[test]
    fn only_the_session_that_is_wanted_is_resumed() {
        let shared = encode(&session(Some("a.test"), 0), &[5; ID_LEN], &[1; 32], 100).unwrap();
        assert_eq!(decode(&shared, &wanted(2, true), 100, 1000), None);
        let other_id = Wanted {
            id: [6; ID_LEN],
            ..wanted(1, true)
        };
        assert_eq!(decode(&shared, &other_id, 100, 1000), None);
        assert_eq!(decode(&shared, &wanted(1, true), 100, 1100), None);
        assert_eq!(decode(&shared, &wanted(1, true), 50, 1050), None);
        for len in 0..shared.len() {
            assert_eq!(decode(&shared[..len], &wanted(1, true), 100, 1000), None);
        }
        let longer = [&shared[..], &[0]].concat();
        assert_eq!(decode(&longer, &wanted(1, true), 100, 1000), None);
    }

    #[test]
    fn sessions_of_clients_with_certificates_are_not_shared() {
        let value = session(None, 1);
        assert_eq!(encode(&value, &[5; ID_LEN], &[1; 32], 100), None);
    }

    /// A session that H2O 2.2.5 with OpenSSL 3.0 wrote into memcached for a client of TLS 1.2, with the secrets replaced.
    fn of_openssl(extra: &[u8]) -> Vec<u8> {
        let mut content = vec![2, 1, 1, 2, 2, 3, 3, 4, 2, 0xc0, 0x2c, 4, 32];
        content.extend([5; 32]);
        content.extend([4, 48]);
        content.extend(SECRET);
        content.extend([0xa1, 6, 2, 4, 0x6b, 5, 0x9d, 0x84]);
        content.extend([0xa2, 4, 2, 2, 0x0e, 0x10, 0xa4, 2, 4, 0]);
        content.extend([0xad, 3, 2, 1, 1, 0xb3, 3, 2, 1, 0x1d]);
        content.extend(extra);
        element(SEQUENCE, &content)
    }

    #[test]
    fn sessions_of_openssl_are_resumed_where_clients_need_no_certificate() {
        let created = 0x6b05_9d84;
        let shared = of_openssl(b"");
        let found = decode(&shared, &wanted(1, true), 10_000, created + 3599).unwrap();
        let mut want = session(Some("now.test"), 0);
        let at = want.len() - 12;
        want[at..at + 8].copy_from_slice(&created.to_be_bytes());
        assert_eq!((found.value, found.created), (want, created));
        assert_eq!(
            decode(&shared, &wanted(1, true), 10_000, created + 3600),
            None
        );
        assert_eq!(decode(&shared, &wanted(1, false), 10_000, created), None);
        let with_certificate = of_openssl(&[0xa3, 2, 0x30, 0]);
        assert_eq!(
            decode(&with_certificate, &wanted(1, true), 10_000, created),
            None
        );
        let of_another_application = of_openssl(&[0xa4, 3, 4, 1, b'x']);
        assert_eq!(
            decode(&of_another_application, &wanted(1, true), 10_000, created),
            None
        );
    }

    #[test]
    fn integers_are_as_short_as_possible_and_not_negative() {
        for (value, bytes) in [
            (0, &[0][..]),
            (0x7f, &[0x7f]),
            (0x80, &[0, 0x80]),
            (0x100, &[1, 0]),
            (
                u64::MAX,
                &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            ),
        ] {
            assert_eq!(integer(value)[2..], *bytes);
            assert_eq!(number(bytes), Some(value));
        }
        assert_eq!(number(&[0x80]), None);
        assert_eq!(number(&[]), None);
        assert_eq!(number(&[1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(number(&[0; 10]), None);
    }
}
