//! Handshakes with a rustls server, in memory.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;

use crate::Reader;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, DnValue, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, NameConstraints, PKCS_RSA_SHA256, RsaKeySize,
    SigningKey, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection};
use tempfile::NamedTempFile;

use super::*;
use crate::record::framing::ContentType;
use crate::record::protection::Protection;
use crate::versions::Version;

const NAME: &str = "name.example";
const KEY: &str = "name.example:443";
const VERSIONS: [&rustls::SupportedProtocolVersion; 2] =
    [&rustls::version::TLS12, &rustls::version::TLS13];

type Authority = CertifiedIssuer<'static, KeyPair>;
type Chain = Vec<CertificateDer<'static>>;
type Leaf = (CertificateDer<'static>, KeyPair);

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_string()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn root(name: &str) -> Authority {
    let key = KeyPair::generate().unwrap();
    CertifiedIssuer::self_signed(authority_params(name), key).unwrap()
}

/// A certificate for [`NAME`] and its key.
fn leaf(issuer: &Issuer<'_, KeyPair>, tune: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let mut params = params("leaf", &[NAME]);
    tune(&mut params);
    let key = KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, issuer).unwrap();
    (leaf.der().clone(), key)
}

fn self_signed(tune: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let mut params = params("own", &[NAME]);
    tune(&mut params);
    let key = KeyPair::generate().unwrap();
    let leaf = params.self_signed(&key).unwrap();
    (leaf.der().clone(), key)
}

fn expire(params: &mut CertificateParams) {
    params.not_after = date_time_ymd(2020, 1, 1);
}

fn begin_later(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(4000, 1, 1);
}

fn pem_file(certificates: &[&CertificateDer<'_>]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    for certificate in certificates {
        let pem = pem_of(certificate);
        file.write_all(pem.as_bytes()).unwrap();
    }
    file
}

fn pem_of(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = (0..3).fold(0, |bits, at| {
                bits << 8 | usize::from(*group.get(at).unwrap_or(&0))
            });
            for at in 0..4 {
                let digit = char::from(DIGITS[bits >> (18 - 6 * at) & 63]);
                text.push(if at <= group.len() { digit } else { '=' });
            }
        }
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

fn client_of(settings: TlsClientSettings) -> Arc<TlsClient> {
    TlsClient::new(settings).unwrap()
}

fn trusting(certificates: &[&CertificateDer<'_>]) -> Arc<TlsClient> {
    let file = pem_file(certificates);
    client_of(TlsClientSettings {
        verify_peer: true,
        ca_file: Some(file.path().to_owned()),
        session_cache: None,
    })
}

fn careless(session_cache: Option<(Duration, usize)>) -> Arc<TlsClient> {
    client_of(TlsClientSettings {
        verify_peer: false,
        ca_file: None,
        session_cache,
    })
}

/// Presents its chain to every client, and records the server name.
#[derive(Debug)]
struct PresentingResolver {
    key: Arc<CertifiedKey>,
    server_name: Mutex<Option<String>>,
}

impl ResolvesServerCert for PresentingResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        *self.server_name.lock().unwrap() = hello.server_name().map(str::to_owned);
        Some(Arc::clone(&self.key))
    }
}

struct Server {
    config: Arc<ServerConfig>,
    shown: Arc<PresentingResolver>,
}

impl Server {
    fn new(chain: Chain, key: &KeyPair) -> Self {
        Self::with(chain, key, &VERSIONS, &[])
    }

    fn with(
        chain: Chain,
        key: &KeyPair,
        versions: &[&'static rustls::SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Self {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let shown = Arc::new(PresentingResolver {
            key: Arc::new(CertifiedKey::new(chain, key)),
            server_name: Mutex::default(),
        });
        let provider = Arc::new(aws_lc_rs::default_provider());
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&shown) as _;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        let alpn = alpn.iter().map(|protocol| protocol.as_bytes().to_vec());
        config.alpn_protocols = alpn.collect();
        Self {
            config: Arc::new(config),
            shown,
        }
    }

    /// A handshake and one byte of data, so that tickets have arrived.
    fn meet(
        &self,
        client: &TlsClient,
        name: &str,
        key: &str,
        alpn: &[&[u8]],
    ) -> Result<ClientConnection, &'static str> {
        Talk::begin(self, client, name, key, alpn).map(|talk| talk.client)
    }
}

/// An established connection with both ends.
struct Talk {
    client: ClientConnection,
    server: ServerConnection,
}

impl Talk {
    fn begin(
        server: &Server,
        client: &TlsClient,
        name: &str,
        key: &str,
        alpn: &[&[u8]],
    ) -> Result<Self, &'static str> {
        let mut out = OutputBuffer::default();
        let mut talk = Self {
            client: client.connect(name, key, alpn, &mut out)?,
            server: ServerConnection::new(Arc::clone(&server.config)).unwrap(),
        };
        let mut is_done = false;
        loop {
            talk.server_hears(&out);
            let mut input = talk.server_says();
            out.clear();
            let progress = talk.client.receive(&mut input, &mut Vec::new(), &mut out);
            is_done |= progress
                .map_err(|error| handshake_text(&error))?
                .handshake_done_now;
            if is_done && out.is_empty() && !talk.server.is_handshaking() {
                break;
            }
        }
        talk.server.writer().write_all(b"!").unwrap();
        assert_eq!(talk.client_hears(), Ok(b"!".to_vec()));
        Ok(talk)
    }

    fn server_hears(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            self.server.read_tls(&mut bytes).unwrap();
            // Errors show at the client, or in its alert.
            let _ = self.server.process_new_packets();
        }
    }

    /// The server's pending output.
    fn server_says(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Delivers the server's output to the client, and the client's reply to the server. Returns the plaintext.
    fn client_hears(&mut self) -> Result<Vec<u8>, TlsError> {
        let (mut plain, mut out) = (Vec::new(), OutputBuffer::default());
        let mut input = self.server_says();
        let received = self.client.receive(&mut input, &mut plain, &mut out);
        self.server_hears(&out);
        received.map(|_| plain)
    }

    /// Encrypts data of the client, and returns it as the server received it.
    fn server_hears_data(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = OutputBuffer::default();
        self.client.encrypt(plain, &mut out).unwrap();
        let mut heard = Vec::new();
        for piece in out.chunks(4096) {
            self.server_hears(piece);
            let _ = self.server.reader().read_to_end(&mut heard);
        }
        heard
    }
}

/// The result of a handshake with this chain, whose first certificate has the key.
fn outcome(client: &TlsClient, name: &str, chain: &[&CertificateDer<'_>], key: &KeyPair) -> String {
    let chain = chain
        .iter()
        .map(|der| (*der).clone().into_owned())
        .collect();
    let server = Server::new(chain, key);
    let met = server.meet(client, name, KEY, &[]);
    met.err().unwrap_or_default().to_owned()
}

#[test]
fn chains_fail_with_the_texts_of_openssl() {
    let (trusted, unknown) = (root("trusted"), root("unknown"));
    let middle_key = KeyPair::generate().unwrap();
    let middle = authority_params("middle");
    let middle: Authority = CertifiedIssuer::signed_by(middle, middle_key, &trusted).unwrap();
    let short_key = KeyPair::generate().unwrap();
    let mut short = authority_params("short");
    short.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let short: Authority = CertifiedIssuer::signed_by(short, short_key, &trusted).unwrap();
    let under_key = KeyPair::generate().unwrap();
    let under = authority_params("under");
    let under: Authority = CertifiedIssuer::signed_by(under, under_key, &short).unwrap();
    let no_ca_key = KeyPair::generate().unwrap();
    let no_ca = params("no authority", &[]);
    let no_ca: Authority = CertifiedIssuer::signed_by(no_ca, no_ca_key, &trusted).unwrap();
    let forger = root("trusted");

    let none = |_: &mut CertificateParams| {};
    let good = leaf(&trusted, none);
    let of_middle = leaf(&middle, none);
    let of_under = leaf(&under, none);
    let of_no_ca = leaf(&no_ca, none);
    let of_unknown = leaf(&unknown, none);
    let of_forger = leaf(&forger, none);
    let expired = leaf(&trusted, expire);
    let expired_of_unknown = leaf(&unknown, expire);
    let early = leaf(&trusted, begin_later);
    let for_clients = leaf(&trusted, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let own = self_signed(none);
    let own_expired = self_signed(expire);
    let own_authority = self_signed(|params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });

    type Case<'a> = (&'a str, &'a Leaf, &'a [&'a Authority], &'a str);
    let cases: &[Case<'_>] = &[
        ("good", &good, &[], ""),
        ("with the root", &good, &[&trusted], ""),
        ("of an intermediate", &of_middle, &[&middle], ""),
        ("intermediate missing", &of_middle, &[], verifier::NO_ISSUER),
        ("unknown", &of_unknown, &[], verifier::NO_ISSUER),
        (
            "expired, unknown",
            &expired_of_unknown,
            &[],
            verifier::NO_ISSUER,
        ),
        (
            "unknown root",
            &of_unknown,
            &[&unknown],
            verifier::SELF_SIGNED_IN_CHAIN,
        ),
        ("self-signed", &own, &[], verifier::SELF_SIGNED),
        (
            "self-signed, expired",
            &own_expired,
            &[],
            verifier::SELF_SIGNED,
        ),
        (
            "self-signed authority",
            &own_authority,
            &[],
            verifier::SELF_SIGNED,
        ),
        ("expired", &expired, &[], "certificate has expired"),
        ("early", &early, &[], "certificate is not yet valid"),
        (
            "for clients",
            &for_clients,
            &[],
            "unsuitable certificate purpose",
        ),
        (
            "of no authority",
            &of_no_ca,
            &[&no_ca],
            "invalid CA certificate",
        ),
        (
            "too long",
            &of_under,
            &[&under, &short],
            "path length constraint exceeded",
        ),
        ("forged", &of_forger, &[], "certificate signature failure"),
    ];
    let client = trusting(&[trusted.der()]);
    let file = pem_file(&[trusted.der()]);
    let careless = client_of(TlsClientSettings {
        verify_peer: false,
        ca_file: Some(file.path().to_owned()),
        session_cache: None,
    });
    for (what, (leaf, key), issuers, want) in cases {
        let issuers = issuers.iter().map(|issuer| issuer.der());
        let chain: Vec<_> = [leaf].into_iter().chain(issuers).collect();
        assert_eq!(outcome(&client, NAME, &chain, key), *want, "{what}");
        assert_eq!(outcome(&careless, NAME, &chain, key), "", "{what}");
    }
}

#[test]
fn the_name_is_checked_after_the_chain() {
    let trusted = root("trusted");
    let client = trusting(&[trusted.der()]);
    let good = leaf(&trusted, |_| {});
    let nameless = leaf(&trusted, |params| {
        params.subject_alt_names.clear();
        params.distinguished_name.remove(DnType::CommonName);
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
    });
    let only_common = leaf(&trusted, |params| params.subject_alt_names.clear());
    let other = leaf(&root("unknown"), |_| {});
    let cases = [
        (&good, "NAME.example.", ""),
        (&good, "other.example", names::MISMATCH),
        (&good, "192.0.2.1", names::MISMATCH),
        (&good, "no name", names::MISMATCH),
        (&nameless, NAME, verifier::INVALID),
        (&only_common, "leaf", ""),
        (&only_common, NAME, names::MISMATCH),
        (&other, "other.example", verifier::NO_ISSUER),
    ];
    let careless = careless(None);
    for ((leaf, key), name, want) in cases {
        assert_eq!(outcome(&client, name, &[leaf], key), want, "{name}");
        assert_eq!(outcome(&careless, name, &[leaf], key), "", "{name}");
    }
}

#[test]
fn a_backends_own_certificate_is_trusted_if_it_is_in_the_ca_file() {
    type Tune = fn(&mut CertificateParams);
    let as_authority: Tune = |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let cases: [(Tune, &str); 4] = [
        (|_| {}, ""),
        (as_authority, ""),
        (expire, "certificate has expired"),
        (begin_later, "certificate is not yet valid"),
    ];
    let other = self_signed(|_| {});
    for (tune, want) in cases {
        let (own, key) = self_signed(tune);
        let client = trusting(&[&own]);
        assert_eq!(outcome(&client, NAME, &[&own], &key), want);
        assert_eq!(
            outcome(&client, "other.example", &[&own], &key),
            if want.is_empty() {
                names::MISMATCH
            } else {
                want
            }
        );
        // The same name with another key.
        assert_eq!(
            outcome(&client, NAME, &[&other.0], &other.1),
            verifier::SELF_SIGNED
        );
        // No handshake succeeds without the key.
        let without = outcome(&client, NAME, &[&own], &other.1);
        let want = if want.is_empty() {
            HANDSHAKE_FAILURE
        } else {
            want
        };
        assert_eq!(without, want);
    }
}

/// `certificate` converted to version 1, without extensions.
fn to_version1(certificate: &[u8]) -> CertificateDer<'static> {
    let mut outer = Reader(certificate);
    let mut outer = Reader(outer.element().unwrap().content);
    let mut tbs = Reader(outer.element().unwrap().content);
    let mut kept = Vec::new();
    while let Some(part) = tbs.element() {
        if !matches!(part.tag, 0xa0 | 0xa3) {
            kept.extend_from_slice(part.whole);
        }
    }
    let content = [&der_element(0x30, &kept), outer.0].concat();
    der_element(0x30, &content).into()
}

fn der_element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [_, _, high, low] = u32::try_from(content.len()).unwrap().to_be_bytes();
    let header: &[u8] = match (high, low) {
        (0, 0..=0x7f) => &[tag, low],
        (0, _) => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [header, content].concat()
}

#[test]
fn certificates_of_version_1_work_where_no_chain_is_verified() {
    let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let keys = [
        KeyPair::generate().unwrap(),
        KeyPair::generate().unwrap(),
        rsa,
    ];
    let of = |key: &KeyPair| params(NAME, &[]).self_signed(key).unwrap().der().clone();
    let [own, other, own_rsa] = keys.each_ref().map(|key| to_version1(&of(key)));
    let trusting = trusting(&[&own, &own_rsa]);
    let careless = careless(None);
    for version in VERSIONS {
        for (certificate, key) in [(&own, &keys[0]), (&own_rsa, &keys[2])] {
            let server = Server::with(vec![certificate.clone()], key, &[version], &[]);
            for client in [&careless, &trusting] {
                let met = server.meet(client, NAME, KEY, &[]);
                assert!(met.is_ok(), "{:?}", met.err());
            }
        }
        // The key is verified.
        let server = Server::with(vec![other.clone()], &keys[0], &[version], &[]);
        let met = server.meet(&careless, NAME, KEY, &[]);
        assert_eq!(met.err(), Some(HANDSHAKE_FAILURE));
    }
}

#[test]
fn a_certificate_with_the_name_and_key_of_a_pinned_one_is_not_trusted() {
    let key = KeyPair::generate().unwrap();
    let own = |names: &[&str], tune: fn(&mut CertificateParams)| {
        let mut params = params("own", names);
        tune(&mut params);
        params.self_signed(&key).unwrap().der().clone()
    };
    let pinned = own(&["one.internal"], |_| {});
    let expired = own(&[NAME], expire);
    let client = trusting(&[&pinned, &expired]);
    assert_eq!(outcome(&client, "one.internal", &[&pinned], &key), "");
    let forged = own(&["one.internal", "two.internal", NAME], |_| {});
    for name in ["one.internal", "two.internal", NAME] {
        assert_eq!(
            outcome(&client, name, &[&forged], &key),
            verifier::SELF_SIGNED,
            "{name}"
        );
    }
    // Its key must not issue other certificates.
    let own_params = params("own", &[]);
    let issuer = Issuer::from_params(&own_params, &key);
    let mut other = params("other", &[NAME]);
    other.is_ca = IsCa::NoCa;
    let other_key = KeyPair::generate().unwrap();
    let issued = other.signed_by(&other_key, &issuer).unwrap();
    assert_ne!(outcome(&client, NAME, &[issued.der()], &other_key), "");
    assert_ne!(
        outcome(&client, NAME, &[issued.der(), &pinned], &other_key),
        ""
    );
    // Nor may another certificate replace one that has expired.
    assert_eq!(
        outcome(&client, NAME, &[&expired], &key),
        "certificate has expired"
    );
    let renewed = own(&[NAME], |_| {});
    assert_eq!(
        outcome(&client, NAME, &[&renewed], &key),
        verifier::SELF_SIGNED
    );
}

fn permit(params: &mut CertificateParams) {
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("example.com".to_owned())],
        excluded_subtrees: Vec::new(),
    });
}

/// A leaf with a common name and no alternative names.
fn common_leaf(issuer: &Issuer<'_, KeyPair>, name: &str) -> Leaf {
    leaf(issuer, |params| {
        params.subject_alt_names.clear();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
    })
}

#[test]
fn common_names_do_not_evade_name_constraints() {
    let free = root("free");
    let mut bound_params = authority_params("bound");
    permit(&mut bound_params);
    let bound_key = KeyPair::generate().unwrap();
    let bound_root: Authority = CertifiedIssuer::self_signed(bound_params, bound_key).unwrap();
    let mut middle_params = authority_params("middle");
    permit(&mut middle_params);
    let middle_key = KeyPair::generate().unwrap();
    let middle: Authority = CertifiedIssuer::signed_by(middle_params, middle_key, &free).unwrap();
    let client = trusting(&[free.der(), bound_root.der()]);

    for (common_name, asked) in [
        ("api.victim.com", "api.victim.com"),
        ("*.victim.com", "api.victim.com"),
        ("API.VICTIM.COM", "api.victim.com"),
    ] {
        let (of_free, key) = common_leaf(&free, common_name);
        assert_eq!(outcome(&client, asked, &[&of_free], &key), "");
        let (of_middle, key) = common_leaf(&middle, common_name);
        assert_eq!(
            outcome(&client, asked, &[&of_middle, middle.der()], &key),
            names::MISMATCH,
            "{common_name}"
        );
        let (of_bound, key) = common_leaf(&bound_root, common_name);
        assert_eq!(
            outcome(&client, asked, &[&of_bound], &key),
            names::MISMATCH,
            "{common_name}"
        );
    }
    // Name constraints apply to alternative names.
    let permitted = leaf(&middle, |params| {
        params.subject_alt_names = self::params("leaf", &["api.example.com"]).subject_alt_names;
    });
    let chain = [&permitted.0, middle.der()];
    assert_eq!(
        outcome(&client, "api.example.com", &chain, &permitted.1),
        ""
    );
    let other = leaf(&middle, |_| {});
    assert_eq!(
        outcome(&client, NAME, &[&other.0, middle.der()], &other.1),
        "permitted subtree violation"
    );
}

#[test]
fn common_names_do_not_count_with_the_authorities_of_the_system() {
    let trusted = root("trusted");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der().clone()).unwrap();
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let check = |pinned: Vec<CertificateDer<'static>>, leaf: &Leaf| {
        let roots = roots.clone();
        let verifier = Verifier::new(Some(Arc::new(Trust { roots, pinned })), algorithms);
        let name = ServerName::try_from(NAME).unwrap();
        let now = rustls::pki_types::UnixTime::now();
        rustls::client::danger::ServerCertVerifier::verify_server_cert(
            &verifier,
            &leaf.0,
            &[],
            &name,
            &[],
            now,
        )
        .is_ok()
    };
    let common = common_leaf(&trusted, NAME);
    let alternative = leaf(&trusted, |_| {});
    assert!(check(Vec::new(), &alternative) && !check(Vec::new(), &common));
    let pinned = vec![trusted.der().clone()];
    assert!(check(pinned.clone(), &alternative) && check(pinned, &common));
}

/// An authority, and the same one with its name in another encoding.
fn under_two_names(
    tune: impl Fn(&mut CertificateParams),
    of: Option<&Authority>,
) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let named = |value: DnValue| {
        let mut params = authority_params("");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, value);
        tune(&mut params);
        params
    };
    let key = KeyPair::generate().unwrap();
    let printable = DnValue::PrintableString("Our  Authority".try_into().unwrap());
    let params = named(printable);
    let certificate = match of {
        Some(issuer) => params.signed_by(&key, issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let der = certificate.der().clone();
    let utf8 = named(DnValue::Utf8String("our authority".to_owned()));
    (der, Issuer::new(utf8, key))
}

#[test]
fn names_of_other_string_types_do_not_break_a_chain() {
    let (root_der, issuer) = under_two_names(|_| {}, None);
    let client = trusting(&[&root_der]);
    let (good, key) = leaf(&issuer, |_| {});
    assert_eq!(outcome(&client, NAME, &[&good], &key), "");
    assert_eq!(
        outcome(&client, "other.example", &[&good], &key),
        names::MISMATCH
    );
    // All other checks still apply.
    let (expired, key) = leaf(&issuer, expire);
    assert_ne!(outcome(&client, NAME, &[&expired], &key), "");
    let (for_clients, key) = leaf(&issuer, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    assert_ne!(outcome(&client, NAME, &[&for_clients], &key), "");
    let (_, forger) = under_two_names(|_| {}, None);
    let (forged, key) = leaf(&forger, |_| {});
    assert_ne!(outcome(&client, NAME, &[&forged], &key), "");
    // Not one of the system's authorities.
    let other = trusting(&[root("other").der()]);
    let (good, key) = leaf(&issuer, |_| {});
    assert_eq!(outcome(&other, NAME, &[&good], &key), verifier::NO_ISSUER);

    // A constraint of the root also applies under its other name.
    let (root_der, issuer) = under_two_names(permit, None);
    let client = trusting(&[&root_der]);
    let (outside, key) = leaf(&issuer, |_| {});
    assert_ne!(outcome(&client, NAME, &[&outside], &key), "");
    let (common, key) = common_leaf(&issuer, "api.victim.com");
    assert_ne!(outcome(&client, "api.victim.com", &[&common], &key), "");
}

#[test]
fn authorities_between_that_may_not_issue_do_not_do_so_under_another_name() {
    let trusted = root("trusted");
    let client = trusting(&[trusted.der()]);
    let outcome_of = |tune: &dyn Fn(&mut CertificateParams)| {
        let (middle, issuer) = under_two_names(tune, Some(&trusted));
        let (leaf, key) = leaf(&issuer, |_| {});
        outcome(&client, NAME, &[&leaf, &middle], &key)
    };
    assert_eq!(outcome_of(&|_| {}), "");
    assert_eq!(
        outcome_of(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0))),
        ""
    );
    assert_ne!(outcome_of(&|params| params.is_ca = IsCa::NoCa), "");
    assert_ne!(outcome_of(&permit), "");
    assert_ne!(outcome_of(&expire), "");
    assert_ne!(outcome_of(&begin_later), "");
    assert_ne!(
        outcome_of(&|params| params.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign]),
        ""
    );
    // An authority without an issuer.
    let (middle, issuer) = under_two_names(|_| {}, None);
    let (leaf, key) = leaf(&issuer, |_| {});
    assert_ne!(outcome(&client, NAME, &[&leaf, &middle], &key), "");
}

#[test]
fn many_authorities_of_one_name_do_not_cost_more_than_some_signatures() {
    let trusted = root("our authority");
    let client = trusting(&[trusted.der()]);
    // They have one key, so each has signed every other one.
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority_params("our authority"), key);
    let sent: Vec<_> = (0..40)
        .map(|_| {
            let mut params = authority_params("");
            params.distinguished_name = rcgen::DistinguishedName::new();
            let name = DnValue::PrintableString("Our Authority".try_into().unwrap());
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.signed_by(issuer.key(), &issuer).unwrap();
            certificate.der().clone()
        })
        .collect();
    let (leaf, key) = leaf(&issuer, |_| {});
    let chain: Vec<_> = [&leaf].into_iter().chain(&sent).collect();
    assert_ne!(outcome(&client, NAME, &chain, &key), "");
}

/// A certificate of version 1 with a common name.
fn version1(issuer: &Issuer<'_, KeyPair>, tune: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let (certificate, key) = leaf(issuer, |params| {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, NAME);
        tune(params);
    });
    let unsigned = to_version1(&certificate);
    let mut outer = Reader(&unsigned);
    let mut outer = Reader(outer.element().unwrap().content);
    let (tbs, algorithm) = (outer.element().unwrap(), outer.element().unwrap());
    let signature = SigningKey::sign(issuer.key(), tbs.whole).unwrap();
    let bits = der_element(0x03, &[&[0][..], &signature].concat());
    let content = [tbs.whole, algorithm.whole, &bits].concat();
    (der_element(0x30, &content).into(), key)
}

#[test]
fn leaves_of_version_1_are_not_refused_if_the_ca_file_has_their_issuer() {
    let trusted = root("trusted");
    let client = trusting(&[trusted.der()]);
    let (good, key) = version1(&trusted, |_| {});
    assert_eq!(outcome(&client, NAME, &[&good], &key), "");
    assert_eq!(
        outcome(&client, "other.example", &[&good], &key),
        names::MISMATCH
    );
    let (expired, key) = version1(&trusted, expire);
    assert_ne!(outcome(&client, NAME, &[&expired], &key), "");
    let (early, key) = version1(&trusted, begin_later);
    assert_ne!(outcome(&client, NAME, &[&early], &key), "");
    let (forged, key) = version1(&root("trusted"), |_| {});
    assert_ne!(outcome(&client, NAME, &[&forged], &key), "");
    let (unknown, key) = version1(&root("unknown"), |_| {});
    assert_ne!(outcome(&client, NAME, &[&unknown], &key), "");
    // The certificate alone, without its key, is not enough.
    let (good, _) = version1(&trusted, |_| {});
    let other_key = KeyPair::generate().unwrap();
    assert_eq!(
        outcome(&client, NAME, &[&good], &other_key),
        HANDSHAKE_FAILURE
    );

    // A version 1 certificate cannot be an authority.
    let key = KeyPair::generate().unwrap();
    let middle_params = authority_params("middle");
    let middle = middle_params.signed_by(&key, &trusted).unwrap();
    let middle = to_version1(middle.der());
    let middle_issuer = Issuer::new(authority_params("middle"), key);
    let (below, key) = version1(&middle_issuer, |_| {});
    assert_ne!(outcome(&client, NAME, &[&below, &middle], &key), "");

    // Name constraints do not cover common names.
    let mut bound = authority_params("bound");
    permit(&mut bound);
    let bound_key = KeyPair::generate().unwrap();
    let bound: Authority = CertifiedIssuer::self_signed(bound, bound_key).unwrap();
    let client = trusting(&[bound.der()]);
    let (of_bound, key) = version1(&bound, |_| {});
    assert_ne!(outcome(&client, NAME, &[&of_bound], &key), "");
}

#[test]
fn names_are_sent_and_addresses_are_not() {
    let (own, key) = self_signed(|_| {});
    let server = Server::new(vec![own], &key);
    let client = careless(None);
    for (name, sent) in [
        (NAME, Some(NAME)),
        ("name.example.", Some(NAME)),
        ("192.0.2.1", None),
        ("2001:db8::1", None),
        ("[2001:db8::1]", None),
        ("[unix:/path]", None),
    ] {
        let met = server.meet(&client, name, KEY, &[]);
        assert!(met.is_ok(), "{name}: {:?}", met.err());
        let got = server.shown.server_name.lock().unwrap().clone();
        assert_eq!(got.as_deref(), sent, "{name}");
    }
}

#[test]
fn protocols_are_offered_by_alpn() {
    const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
    let (own, key) = self_signed(|_| {});
    let client = careless(None);
    type Chosen = Result<Option<&'static [u8]>, &'static str>;
    type Case<'a> = (&'a [&'a str], &'a [&'a [u8]], Chosen);
    let cases: [Case<'_>; 6] = [
        (&["h2", "http/1.1"], BOTH, Ok(Some(b"h2"))),
        (&["http/1.1"], BOTH, Ok(Some(b"http/1.1"))),
        (&["h2", "http/1.1"], &[b"http/1.1"], Ok(Some(b"http/1.1"))),
        (&["h2"], &[], Ok(None)),
        (&[], BOTH, Ok(None)),
        (&["spdy/1"], BOTH, Err(HANDSHAKE_FAILURE)),
    ];
    for (served, offered, want) in cases {
        let server = Server::with(vec![own.clone()], &key, &VERSIONS, served);
        let met = server.meet(&client, NAME, KEY, offered);
        let met = met.as_ref().map(ClientConnection::alpn);
        assert_eq!(met.map_err(|text| *text), want);
    }
}

#[test]
fn sessions_are_resumed_by_host_and_port() {
    let (own, key) = self_signed(|_| {});
    for version in VERSIONS {
        let server = Server::with(vec![own.clone()], &key, &[version], &[]);
        let day = Duration::from_secs(86400);
        let resumes = |client: &TlsClient, key: &str| {
            let met = server.meet(client, NAME, key, &[]).unwrap();
            met.info().resumed
        };
        let client = careless(Some((day, 4096)));
        for (key, want) in [
            (KEY, false),
            (KEY, true),
            ("name.example:444", false),
            ("name.example:444", true),
            (KEY, true),
            ("", false),
            ("", false),
        ] {
            assert_eq!(resumes(&client, key), want, "{version:?} {key}");
        }
        // Each client has its own session cache.
        assert!(!resumes(&careless(Some((day, 4096))), KEY));
        let without = careless(None);
        assert!(!resumes(&without, KEY));
        assert!(!resumes(&without, KEY));
        // Expired sessions are not offered.
        let client = careless(Some((Duration::ZERO, 4096)));
        assert!(!resumes(&client, KEY));
        assert!(!resumes(&client, KEY));
        let client = careless(Some((day, 1)));
        for (key, want) in [
            ("a:1", false),
            ("b:1", false),
            ("b:1", true),
            ("a:1", false),
        ] {
            assert_eq!(resumes(&client, key), want, "{key}");
        }
    }
}

#[test]
fn sessions_of_one_thread_are_resumed_by_another() {
    let (own, key) = self_signed(|_| {});
    let server = Server::new(vec![own], &key);
    let client = careless(Some((Duration::from_secs(60), 1)));
    for want in [false, true] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let met = server.meet(&client, NAME, KEY, &[]).unwrap();
                assert_eq!(met.info().resumed, want);
            });
        });
    }
}

#[test]
fn what_is_no_handshake_is_told_by_its_text() {
    let client = careless(None);
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        // A fatal alert: handshake_failure.
        &[21, 3, 3, 0, 2, 2, 40],
    ] {
        let mut out = OutputBuffer::default();
        let mut connection = client.connect(NAME, KEY, &[], &mut out).unwrap();
        let mut input = answer.to_vec();
        let received = connection.receive(&mut input, &mut Vec::new(), &mut out);
        assert_eq!(handshake_text(&received.unwrap_err()), HANDSHAKE_FAILURE);
        let received = connection.receive(&mut [], &mut Vec::new(), &mut out);
        assert_eq!(received, Err(TlsError::Closed));
    }
}

#[test]
fn a_backend_may_close_during_the_handshake() {
    let client = careless(None);
    let mut out = OutputBuffer::default();
    let mut connection = client.connect(NAME, KEY, &[], &mut out).unwrap();
    let mut close_notify = [21, 3, 3, 0, 2, 2, 0];
    let progress = connection.receive(&mut close_notify, &mut Vec::new(), &mut out);
    assert!(progress.unwrap().closed_by_peer);
    assert_eq!(connection.encrypt(b"x", &mut out), Err(TlsError::Closed));
}

#[test]
fn nothing_is_sent_before_the_handshake_is_complete() {
    let mut out = OutputBuffer::default();
    let mut connection = careless(None).connect(NAME, KEY, &[], &mut out).unwrap();
    let hello_len = out.len();
    assert_eq!(connection.encrypt(b"x", &mut out), Err(TlsError::NotReady));
    connection.close_notify(&mut out);
    assert_eq!(out.len(), hello_len);
}

#[test]
fn errors_of_handshakes_have_their_texts() {
    let cases = [
        (rustls::Error::NoCertificatesPresented, "no certificate"),
        (CertificateError::BadEncoding.into(), "invalid certificate"),
        (
            PeerMisbehaved::SelectedUnofferedApplicationProtocol.into(),
            "unknown alpn protocol",
        ),
        (rustls::Error::DecryptError, "ssl handshake failure"),
    ];
    for (error, want) in cases {
        assert_eq!(handshake_text(&TlsError::Handshake(error)), want);
    }
    assert_eq!(handshake_text(&TlsError::PeerAlert(40)), HANDSHAKE_FAILURE);
}

#[test]
fn data_is_carried_both_ways_however_it_arrives() {
    let (own, key) = self_signed(|_| {});
    for version in VERSIONS {
        let server = Server::with(vec![own.clone()], &key, &[version], &[]);
        let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
        let text: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        assert_eq!(talk.server_hears_data(&text), text);
        talk.server.set_buffer_limit(None);
        talk.server.writer().write_all(&text).unwrap();
        let mut heard = Vec::new();
        let bytes = talk.server_says();
        for piece in bytes.chunks(1000) {
            let (mut piece, mut out) = (piece.to_vec(), OutputBuffer::default());
            let progress = talk.client.receive(&mut piece, &mut heard, &mut out);
            assert!(!progress.unwrap().closed_by_peer && out.is_empty());
        }
        assert_eq!(heard, text);
    }
}

#[test]
fn records_to_backends_are_full_from_the_first_one() {
    let (own, key) = self_signed(|_| {});
    let server = Server::new(vec![own], &key);
    let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
    let mut out = OutputBuffer::default();
    talk.client.encrypt(&[0; 20_000], &mut out).unwrap();
    assert_eq!(out[3..5], (16_384_u16 + 17).to_be_bytes());
}

#[test]
fn close_notify_ends_either_direction() {
    let (own, key) = self_signed(|_| {});
    for version in VERSIONS {
        let server = Server::with(vec![own.clone()], &key, &[version], &[]);
        let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
        talk.server.send_close_notify();
        let (mut input, mut out) = (talk.server_says(), OutputBuffer::default());
        let progress = talk.client.receive(&mut input, &mut Vec::new(), &mut out);
        assert!(progress.unwrap().closed_by_peer && out.is_empty());
        assert_eq!(talk.server_hears_data(b"more"), b"more");
        for _ in 0..2 {
            talk.client.close_notify(&mut out);
        }
        assert_eq!(talk.client.encrypt(b"x", &mut out), Err(TlsError::Closed));
        talk.server_hears(&out);
        let state = talk.server.process_new_packets().unwrap();
        assert!(state.peer_has_closed() && talk.server.process_new_packets().is_ok());
    }
}

#[test]
fn keys_are_updated_when_the_backend_asks_for_it() {
    let (own, key) = self_signed(|_| {});
    let server = Server::with(vec![own], &key, &[&rustls::version::TLS13], &[]);
    let mut talk = Talk::begin(&server, &careless(None), NAME, KEY, &[]).unwrap();
    for round in [b"1", b"2"] {
        talk.server.refresh_traffic_keys().unwrap();
        talk.server.writer().write_all(round).unwrap();
        assert_eq!(talk.client_hears(), Ok(round.to_vec()));
        assert_eq!(talk.server_hears_data(round), round);
    }
}

#[test]
fn ca_files_must_have_a_certificate() {
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let cases = [
        ("", "no certificate found"),
        ("text\n", "no certificate found"),
        (garbage, "malformed certificate"),
    ];
    for verify_peer in [true, false] {
        let open = |path: &Path| {
            TlsClient::new(TlsClientSettings {
                verify_peer,
                ca_file: Some(path.to_owned()),
                session_cache: None,
            })
        };
        for (text, reason) in cases {
            let mut file = NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(open(file.path()).unwrap_err().reason, reason);
        }
        let unclosed = &garbage[..garbage.len() - 10];
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(unclosed.as_bytes()).unwrap();
        assert!(open(file.path()).is_err());
        let error = open(Path::new("/nowhere/ca.pem")).unwrap_err();
        let want = "failed to load certificates file:/nowhere/ca.pem: No such file or directory";
        assert_eq!(error.to_string(), want);
        // A certificate that cannot be parsed, among others.
        let mut file = pem_file(&[root("trusted").der()]);
        file.write_all(garbage.as_bytes()).unwrap();
        assert!(open(file.path()).is_ok());
    }
}

#[test]
fn clients_are_equal_as_long_as_their_ca_file_has_not_changed() {
    let mut file = pem_file(&[root("trusted").der()]);
    let open = |path: &Path| {
        client_of(TlsClientSettings {
            verify_peer: true,
            ca_file: Some(path.to_owned()),
            session_cache: None,
        })
    };
    let before = open(file.path());
    assert!(before == open(file.path()));
    let more = std::fs::read(pem_file(&[root("another").der()]).path()).unwrap();
    file.write_all(&more).unwrap();
    assert!(before != open(file.path()));
    assert!(before != careless(None));
    assert!(careless(None) == careless(None));
}

#[test]
fn the_bundle_of_the_system_is_the_default() {
    let client = client_of(TlsClientSettings {
        verify_peer: true,
        ca_file: None,
        session_cache: None,
    });
    let (own, key) = self_signed(|_| {});
    assert_eq!(outcome(&client, NAME, &[&own], &key), verifier::SELF_SIGNED);
    match TlsClient::bundle() {
        Ok(()) => assert!(!Trust::system().roots.is_empty()),
        Err(error) => assert!(Trust::system().roots.is_empty() && error.path.is_absolute()),
    }
}

/// A client whose server's records are made by the test.
struct RawServer {
    client: ClientConnection,
    sealer: Protection,
}

/// A connection without unsolicited tickets.
fn raw_server(version: Version) -> RawServer {
    let (own, key) = self_signed(|_| {});
    let versions: &[&'static rustls::SupportedProtocolVersion] = match version {
        Version::Tls12 => &[&rustls::version::TLS12],
        Version::Tls13 => &[&rustls::version::TLS13],
    };
    let mut server = Server::with(vec![own], &key, versions, &[]);
    let config = Arc::make_mut(&mut server.config);
    config.enable_secret_extraction = true;
    let cache = Some((Duration::from_secs(60), 1));
    let talk = Talk::begin(&server, &careless(cache), NAME, KEY, &[]).unwrap();
    let (sequence, secrets) = talk.server.dangerous_extract_secrets().unwrap().tx;
    RawServer {
        client: talk.client,
        sealer: Protection::new(version, sequence, &secrets).unwrap(),
    }
}

impl RawServer {
    fn send_record(
        &mut self,
        content_type: ContentType,
        payload: &[u8],
    ) -> Result<usize, TlsError> {
        let mut record = OutputBuffer::default();
        self.sealer
            .seal(content_type, &[payload], &mut record)
            .unwrap();
        let (mut input, mut out) = (record.to_vec(), OutputBuffer::default());
        let mut plain = Vec::new();
        self.client.receive(&mut input, &mut plain, &mut out)?;
        assert!(content_type == ContentType::ApplicationData || plain.is_empty());
        Ok(out.len())
    }
}

/// RFC 8446 §4.6.1: lifetime, age_add, nonce, ticket, extensions.
fn ticket(len: usize) -> Vec<u8> {
    let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
    let mut body = vec![0, 0, 1, 0, 1, 2, 3, 4, 1, 0, high, low];
    body.resize(body.len() + len, 7);
    body.extend_from_slice(&[0, 0]);
    let [_, high, middle, low] = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[4, high, middle, low], &body[..]].concat()
}

#[test]
fn tickets_may_come_in_pieces_and_several_at_once() {
    let mut server = raw_server(Version::Tls13);
    let two = [ticket(3), ticket(1)].concat();
    assert_eq!(server.send_record(ContentType::Handshake, &two), Ok(0));
    let long = ticket(60_000);
    for piece in long.chunks(16_384) {
        assert_eq!(server.send_record(ContentType::Handshake, piece), Ok(0));
    }
    let (half, rest) = two.split_at(two.len() - 5);
    assert_eq!(server.send_record(ContentType::Handshake, half), Ok(0));
    assert_eq!(server.send_record(ContentType::Handshake, rest), Ok(0));
    assert_eq!(
        server.send_record(ContentType::ApplicationData, b"x"),
        Ok(0)
    );
}

#[test]
fn what_a_backend_may_not_send_after_the_handshake_ends_the_connection() {
    use TlsError::{Decode, Flood, UnexpectedMessage};
    let update = [24, 0, 0, 1, 0];
    let update_then_ticket = [&update[..], &ticket(1)].concat();
    let cases: &[(Version, &[u8], TlsError)] = &[
        (Version::Tls13, &[], UnexpectedMessage),
        // CertificateRequest is allowed only if the client has offered it (RFC 8446 §4.6.2).
        (Version::Tls13, &[13, 0, 0, 0], UnexpectedMessage),
        (Version::Tls13, &[0, 0, 0, 0], UnexpectedMessage),
        (Version::Tls13, &update_then_ticket, UnexpectedMessage),
        (Version::Tls13, &[4, 0, 0, 1, 0], Decode),
        // Longer than any accepted ticket.
        (Version::Tls13, &[4, 1, 0, 0], Decode),
        (Version::Tls12, &[4, 0, 0, 0], UnexpectedMessage),
        (Version::Tls12, &[0, 0, 0, 1, 0], Decode),
    ];
    for (version, message, want) in cases {
        let mut server = raw_server(*version);
        let result = server.send_record(ContentType::Handshake, message);
        assert_eq!(result, Err(want.clone()), "{version:?} {message:?}");
    }
    let mut server = raw_server(Version::Tls13);
    for _ in 0..32 {
        assert!(
            server
                .send_record(ContentType::Handshake, &ticket(1))
                .is_ok()
        );
    }
    let result = server.send_record(ContentType::Handshake, &ticket(1));
    assert_eq!(result, Err(Flood));
}

#[test]
fn requests_to_renegotiate_are_refused_with_a_warning() {
    let mut server = raw_server(Version::Tls12);
    let alert_len = 5 + 8 + 2 + 16;
    let asked = server.send_record(ContentType::Handshake, &[0, 0, 0, 0]);
    assert_eq!(asked, Ok(alert_len));
    assert_eq!(
        server.send_record(ContentType::ApplicationData, b"x"),
        Ok(0)
    );
}
