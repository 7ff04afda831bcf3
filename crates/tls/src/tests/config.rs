//! The `ssl` mapping: every attribute and every error.

use super::files::{Authority, Files, pem};
use crate::versions::Version;

use super::kit::Pair;
use crate::TlsSettings;
use crate::suites::describe;

/// The names of the suites and groups in the settings, as text for comparison.
fn shown(settings: &TlsSettings) -> String {
    let suites = |suites: &[rustls::SupportedCipherSuite]| {
        let names: Vec<_> = suites
            .iter()
            .map(|suite| describe(suite.suite()).0)
            .collect();
        names.join(" ")
    };
    let groups: Vec<_> = settings
        .groups
        .iter()
        .map(|group| format!("{:?}", group.name()))
        .collect();
    format!(
        "{} | {} | {}",
        suites(&settings.tls12_suites),
        suites(&settings.tls13_suites),
        groups.join(" ")
    )
}

const ALL_TLS12: &str = "ECDHE-ECDSA-AES256-GCM-SHA384 ECDHE-RSA-AES256-GCM-SHA384 \
     ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-RSA-CHACHA20-POLY1305 \
     ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-RSA-AES128-GCM-SHA256";
const ALL_TLS13: &str =
    "TLS_AES_256_GCM_SHA384 TLS_AES_128_GCM_SHA256 TLS_CHACHA20_POLY1305_SHA256";

#[test]
fn defaults() {
    let files = Files::new();
    let (settings, warnings) = files.parse(&files.pair("a", &Pair::new("a.test")));
    let settings = settings.unwrap();
    assert_eq!(
        shown(&settings),
        format!("{ALL_TLS12} | {ALL_TLS13} | X25519MLKEM768 X25519 secp256r1 secp384r1")
    );
    assert_eq!(settings.max_tickets, 4);
    assert!(!settings.prefer_our_order);
    assert!(settings.client_ca.is_none());
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn every_attribute_is_read() {
    let files = Files::new();
    let ca = files.write("ca.pem", &Authority::new().pem());
    let text = format!(
        "{}Min-Version: tlsv1.2\n\
         max-version: TLSv1.3\n\
         cipher-suite: ECDHE-RSA-AES128-GCM-SHA256\n\
         cipher-suite-tls1.3: [TLS_CHACHA20_POLY1305_SHA256, TLS_AES_128_GCM_SHA256]\n\
         cipher-preference: SERVER\n\
         key-exchange-tls1.3: [MLKEM768, secp256r1MLKEM768, X25519]\n\
         client-ca-file: {ca}\n\
         max-tickets: 9\n",
        files.pair("a", &Pair::new("a.test"))
    );
    let (settings, warnings) = files.parse(&text);
    let settings = settings.unwrap();
    assert_eq!(
        shown(&settings),
        "ECDHE-RSA-AES128-GCM-SHA256 | TLS_CHACHA20_POLY1305_SHA256 TLS_AES_128_GCM_SHA256 | \
         MLKEM768 secp256r1MLKEM768 X25519"
    );
    assert!(settings.prefer_our_order);
    assert!(settings.client_ca.is_some());
    assert_eq!(settings.max_tickets, 9);
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn attributes_that_are_wrong_say_so_at_their_place() {
    let files = Files::new();
    let pair = files.pair("a", &Pair::new("a.test"));
    files.write("empty", "");
    // The two attributes `certificate-file` and `key-file` take two lines, so the attribute under test is on line 3.
    let cases = [
        (
            "min-version: TLSv1.4",
            "[f:3] unknown protocol version: TLSv1.4 (column 14)",
        ),
        (
            "min-version: TLSv1.2\nminimum-version: TLSv1.2",
            "[f:4] duplicate key found (column 1; `min-version` is also on line 3)",
        ),
        (
            "min-version: TLSv1.3\nmax-version: TLSv1.2",
            "[f:4] max-version is below min-version (column 14)",
        ),
        (
            "maximum-version: 3",
            "[f:3] unknown protocol version: 3 (column 18)",
        ),
        (
            "cipher-suite: NONE",
            "[f:3] failed to setup SSL cipher suite (column 15; there is no such suite; supported are those with ECDHE and AES-GCM or ChaCha20-Poly1305)",
        ),
        (
            "cipher-suite: [HIGH]",
            "[f:3] attribute `cipher-suite` must be a scalar (column 15)",
        ),
        (
            "cipher-suite-tls1.3: [TLS_AES_128_GCM_SHA265]",
            "[f:3] Unexpected cipher suite. Expected one of: TLS_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256 (column 23; did you mean `TLS_AES_128_GCM_SHA256`?)",
        ),
        (
            "cipher-suite-tls1.3: []",
            "[f:3] at least one cipher suite must be specified (column 22)",
        ),
        (
            "cipher-suite-tls1.3: [TLS_AEGIS_128L_SHA256]",
            "[f:3] at least one cipher suite must be specified (column 22)",
        ),
        (
            "cipher-preference: ours",
            "[f:3] argument must be one of: client,server (column 20)",
        ),
        (
            "key-exchange-tls1.3: [x25518]",
            "[f:3] key-exchange not found: x25518 (column 23; did you mean `x25519`?)",
        ),
        (
            "key-exchange-tls1.3: [secp521r1]",
            "[f:3] key-exchange not supported: secp521r1 (column 23; `h2o --version` lists those that are)",
        ),
        (
            "key-exchange-tls1.3: []",
            "[f:3] at least one key-exchange must be specified (column 22)",
        ),
        (
            "client-ca-file: DIR/none",
            "[f:3] failed to load client CA file:DIR/none (column 17; No such file or directory)",
        ),
        (
            "client-ca-file: DIR/empty",
            "[f:3] failed to load client CA file:DIR/empty (column 17; no certificate in PEM form)",
        ),
        (
            "ocsp-update-interval: 1h",
            "[f:3] argument must match the format: %lu (column 23; `1h` is not a whole number of seconds; write `3600`)",
        ),
        (
            "ocsp-max-failures: -1",
            "[f:3] argument must match the format: %u (column 20; `-1` is not a whole number; write digits only)",
        ),
        (
            "ocsp-max-failures: 4294967296",
            "[f:3] argument must be between 0 and 4294967295 (column 20)",
        ),
        (
            "ocsp-update-cmd: [x]",
            "[f:3] attribute `ocsp-update-cmd` must be a scalar (column 18)",
        ),
        (
            "dh-file: {}",
            "[f:3] attribute `dh-file` must be a scalar (column 10)",
        ),
        (
            "ech: x",
            "[f:3] attribute `ech` must be a sequence (column 6)",
        ),
        (
            "neverbleed: maybe",
            "[f:3] argument must be one of: OFF,ON (column 13)",
        ),
        (
            "max-tickets: 256",
            "[f:3] argument must be between 0 and 255 (column 14)",
        ),
        (
            "http2-origin-frame: {}",
            "[f:3] argument to `http2-origin-frame` must be either a scalar or a sequence (column 21)",
        ),
        (
            "http2-origin-frame: [[]]",
            "[f:3] element of a sequence passed to http2-origin-frame must be a scalar (column 22)",
        ),
        (
            "identity: []",
            "[f:1] when `identity` is used, all `certificate-file`-`key-file` pairs must be stored within that `identity` (column 19)",
        ),
        (
            "cypher-suite: HIGH",
            "[f:3] unexpected key:cypher-suite (column 1; did you mean `cipher-suite`?)",
        ),
    ];
    for (attribute, want) in cases {
        let attribute = attribute.replace("DIR", &files.path(""));
        let attribute = attribute.replace("//", "/");
        let (settings, _) = files.parse(&format!("{pair}{attribute}\n"));
        assert_eq!(settings.map(|_| ()), Err(want.to_owned()), "{attribute}");
    }
}

#[test]
fn what_we_cannot_do_is_warned_of() {
    let files = Files::new();
    let pair = files.pair("a", &Pair::new("a.test"));
    let cases = [
        (
            "min-version: TLSv1",
            "versions below TLSv1.2 are not supported; the minimum is TLSv1.2",
        ),
        (
            "max-version: TLSv1.1",
            "versions below TLSv1.2 are not supported; the maximum is TLSv1.2",
        ),
        (
            "cipher-suite: ECDHE-RSA-AES128-SHA:HIGH:!aNULL:3DES",
            "cipher suites not supported and left out: ECDHE-RSA-AES128-SHA, 3DES",
        ),
        (
            "cipher-suite-tls1.3: [TLS_AEGIS_128L_SHA256, TLS_AES_128_GCM_SHA256]",
            "cipher suite TLS_AEGIS_128L_SHA256 is not supported and left out",
        ),
        (
            "key-exchange-tls1.3: [x25519, secp521r1]",
            "key exchange secp521r1 is not supported and left out",
        ),
        (
            "cipher-suite-tls1.3: [TLS_AES_256_GCM_SHA384]",
            "TLS_AES_128_GCM_SHA256 is mandatory to implement, but left out",
        ),
        (
            "dh-file: /etc/dh.pem",
            "`dh-file` has no effect: finite-field Diffie-Hellman is not supported",
        ),
        (
            "ech: []",
            "`ech` has no effect: Encrypted Client Hello is not supported yet",
        ),
    ];
    for (attribute, want) in cases {
        let (settings, warnings) = files.parse(&format!("{pair}{attribute}\n"));
        assert!(settings.is_ok());
        assert_eq!(
            warnings,
            [format!("[warning] [f:3] in command listen, {want}")]
        );
    }
    for attribute in [
        "max-tickets: 0",
        "neverbleed: off",
        "ocsp-update-interval: 0",
        "ocsp-update-interval: 18446744073709551615",
        "ocsp-max-failures: 4294967295",
        "ocsp-update-cmd: /bin/ocsp",
        "cipher-suite: 'TLS_AES_128_GCM_SHA256:HIGH'",
    ] {
        let (settings, warnings) = files.parse(&format!("{pair}{attribute}\n"));
        assert_eq!(settings.unwrap().max_tickets, 4);
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[test]
fn cipher_lists_are_those_of_openssl() {
    let files = Files::new();
    let pair = files.pair("a", &Pair::new("a.test"));
    let (e256, r256) = (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
    );
    let (e128, r128) = (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    );
    let (ec, rc) = (
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-CHACHA20-POLY1305",
    );
    let all = [e256, r256, ec, rc, e128, r128];
    let cases: &[(&str, &[&str])] = &[
        ("DEFAULT", &all),
        ("HIGH:!aNULL:!MD5", &all),
        ("ECDHE", &all),
        ("ALL,!AES", &[ec, rc]),
        ("AESGCM !ECDSA", &[r256, r128]),
        ("EECDH+AESGCM", &[e256, r256, e128, r128]),
        ("EECDH+AESGCM+AES128", &[e128, r128]),
        ("kEECDH+CHACHA20:EECDH+aRSA+AES256", &[ec, rc, r256]),
        ("AES128:HIGH", &[e128, r128, e256, r256, ec, rc]),
        ("ALL:+AES256", &[ec, rc, e128, r128, e256, r256]),
        ("ALL:-AES256:AES256", &[ec, rc, e128, r128, e256, r256]),
        ("ALL:!AES256:AES256", &[ec, rc, e128, r128]),
        ("AES128:CHACHA20:@STRENGTH", &[ec, rc, e128, r128]),
        ("HIGH:@SECLEVEL=2", &all),
        (
            "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES256-GCM-SHA384",
            &[rc, r256],
        ),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", &[r128]),
        ("SUITEB128", &[e256, e128]),
        ("HIGH:HIGH:ECDSA", &all),
    ];
    for (list, want) in cases {
        let settings = files.settings(&format!("{pair}cipher-suite: '{list}'\n"));
        let got: Vec<&str> = settings
            .tls12_suites
            .iter()
            .map(|suite| describe(suite.suite()).0)
            .collect();
        assert_eq!(got, *want, "{list}");
    }
    for list in [
        "!ALL:ALL",
        "ECDHE-RSA-AES129-SHA",
        "!RSA+AES",
        "",
        "!",
        "+",
        "-",
        "@",
        "@STRENGTH",
    ] {
        let (settings, _) = files.parse(&format!("{pair}cipher-suite: '{list}'\n"));
        let error = settings.unwrap_err();
        assert!(
            error.contains("failed to setup SSL cipher suite"),
            "{list}: {error}"
        );
    }
}

#[test]
fn cipher_lists_without_aead_do_not_stop_the_server() {
    let files = Files::new();
    let pair = files.pair("a", &Pair::new("a.test"));
    for list in [
        "ECDHE-RSA-AES128-SHA:DES-CBC3-SHA",
        "RSA+AES",
        "kRSA",
        "AES128-GCM-SHA256",
    ] {
        let (settings, warnings) = files.parse(&format!("{pair}cipher-suite: '{list}'\n"));
        let versions = settings.unwrap().versions;
        assert!(versions.contains(Version::Tls13) && !versions.contains(Version::Tls12));
        let left_out = list.replace(':', ", ");
        assert_eq!(
            warnings,
            [
                format!(
                    "[warning] [f:3] in command listen, cipher suites not supported and left out: {left_out}"
                ),
                "[warning] [f:3] in command listen, of the suites for TLS 1.2, those with ECDHE and AES-GCM or ChaCha20-Poly1305 are supported, and `cipher-suite` has none of them: only clients with TLS 1.3 are served".to_owned(),
            ]
        );
    }
    // `cipher-suite: kRSA` leaves no suite of TLS 1.2, and `max-version` excludes TLS 1.3, so no suite would be left.
    let text = format!("{pair}cipher-suite: kRSA\nmax-version: TLSv1.2\n");
    let error = files.parse(&text).0.unwrap_err();
    assert!(
        error.contains("failed to setup SSL cipher suite")
            && error.contains("`max-version` leaves no TLS 1.3"),
        "{error}"
    );
}

#[test]
fn identities_are_pairs_alone_or_in_a_list() {
    let files = Files::new();
    files.pair("a", &Pair::new("a.test"));
    files.pair("b", &Pair::rsa("a.test"));
    let cases = [
        (
            "{}",
            "[f:1] missing TLS identity - certificate file is not specified, ACME configuration could not be found (column 1; write `certificate-file` and `key-file`, or `acme` at the global level)",
        ),
        (
            "certificate-file: DIR/a.crt",
            "[f:1] cannot find mandatory attribute: key-file (column 1)",
        ),
        (
            "key-file: DIR/a.key",
            "[f:1] cannot find mandatory attribute: certificate-file (column 1)",
        ),
        (
            "identity: []",
            "[f:1] at least one identity must be specified (column 11)",
        ),
        (
            "identity: [{certificate-file: DIR/a.crt}]",
            "[f:1] cannot find mandatory attribute: key-file (column 12)",
        ),
        (
            "identity: [x]",
            "[f:1] argument must be a mapping (column 12)",
        ),
        (
            "identity: x",
            "[f:1] attribute `identity` must be a sequence (column 11)",
        ),
        (
            "identity:\n- {certificate-file: DIR/a.crt, key-file: DIR/a.key, x: 1}",
            "[f:2] unexpected key:x (column 54)",
        ),
        (
            "certificate-file: DIR/a.crt\nkey-file: DIR/b.key",
            "[f:2] private key file:DIR/b.key does not belong to certificate file:DIR/a.crt (column 11)",
        ),
        (
            "certificate-file: DIR/none\nkey-file: DIR/a.key",
            "[f:1] failed to load certificate file:DIR/none (column 19; No such file or directory)",
        ),
        (
            "certificate-file: DIR/a.crt\nkey-file: DIR/none",
            "[f:2] failed to load private key file:DIR/none:No such file or directory (column 11)",
        ),
    ];
    for (text, want) in cases {
        let (settings, _) = files.parse(&text.replace("DIR/", &files.path("")));
        let error = settings.map(|_| ()).unwrap_err();
        // The columns in error messages depend on the length of the directory's name, so the expected columns are adjusted to it.
        let extra = files.path("").len() - "DIR/".len();
        let want = match text.starts_with("identity:\n") {
            true => want.replace("column 54", &format!("column {}", 54 + 2 * extra)),
            false => want.to_owned(),
        };
        assert_eq!(error, want, "{text}");
    }
    let list = "identity:\n- {certificate-file: DIR/a.crt, key-file: DIR/a.key}\n- {certificate-file: DIR/b.crt, key-file: DIR/b.key}\n";
    let list = list.replace("DIR/", &files.path(""));
    let settings = files.settings(&list);
    assert_eq!(settings.identities.len(), 2);
    assert!(settings.same_identity(&files.settings(&list)));
    let single = files.pair("a", &Pair::new("a.test"));
    assert!(!settings.same_identity(&files.settings(&single)));
    assert!(
        files
            .settings(&single)
            .same_identity(&files.settings(&format!("{single}max-tickets: 1\n")))
    );
}

#[test]
fn keys_come_in_all_the_usual_forms() {
    let files = Files::new();
    let check = |pair: &Pair, key: &str| {
        let certificate = files.write("x.crt", &pair.certificate.pem());
        let key = files.write("x.key", key);
        files
            .parse(&format!(
                "certificate-file: {certificate}\nkey-file: {key}\n"
            ))
            .0
            .map(|_| ())
    };
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ED25519,
    ] {
        let pair = Pair::with_algorithm("a.test", algorithm);
        assert_eq!(check(&pair, &pair.key.serialize_pem()), Ok(()));
    }
    let ec = Pair::new("a.test");
    let sec1 = pem("EC PRIVATE KEY", inner_key(&ec.key.serialize_der()));
    assert_eq!(check(&ec, &sec1), Ok(()));
    let parameters = pem(
        "EC PARAMETERS",
        &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7],
    );
    assert_eq!(check(&ec, &format!("{parameters}{sec1}")), Ok(()));
    let rsa = Pair::rsa("a.test");
    assert_eq!(check(&rsa, &rsa.key.serialize_pem()), Ok(()));
    let pkcs1 = pem("RSA PRIVATE KEY", inner_key(&rsa.key.serialize_der()));
    assert_eq!(check(&rsa, &pkcs1), Ok(()));
    // Certificate and key may be in the same file.
    let both = format!("{}{}", rsa.certificate.pem(), pkcs1);
    assert_eq!(check(&rsa, &both), Ok(()));

    let error = |reason: &str| {
        Err(format!(
            "[f:2] failed to load private key file:DIR/x.key:{reason} (column 11)"
        ))
    };
    let encrypted = error(
        "the private key is encrypted, which is not supported; decrypt the key with `openssl pkey`",
    );
    assert_eq!(check(&rsa, &pem("ENCRYPTED PRIVATE KEY", b"x")), encrypted);
    let old = pkcs1.replace(
        "KEY-----\nMI",
        "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nMI",
    );
    assert_eq!(check(&rsa, &old), encrypted);
    assert_eq!(check(&rsa, "nothing"), error("no private key in PEM form"));
    assert_eq!(
        check(&rsa, &pem("PRIVATE KEY", b"nonsense")),
        error("the key is not an RSA (2048 to 8192 bits), ECDSA or Ed25519 key")
    );
    // A malformed PEM section is an error; the key does not count as missing.
    assert!(check(&rsa, "-----BEGIN PRIVATE KEY-----\nMII\n").is_err());
}

/// Returns the key inside a PKCS#8 structure, which has a version, an algorithm and an OCTET STRING with the key.
fn inner_key(pkcs8: &[u8]) -> &[u8] {
    let start = pkcs8.windows(2).enumerate().find_map(|(position, window)| {
        let (len, header) = match window {
            [4, 0x82] => {
                let len = u16::from_be_bytes([pkcs8[position + 2], pkcs8[position + 3]]);
                (usize::from(len), 4)
            }
            [4, 0x81] => (usize::from(pkcs8[position + 2]), 3),
            [4, len] => (usize::from(*len), 2),
            _ => return None,
        };
        (position + header + len == pkcs8.len() && pkcs8[position + header] == 0x30)
            .then_some(position + header)
    });
    &pkcs8[start.unwrap()..]
}

#[test]
fn certificate_files_are_checked() {
    let files = Files::new();
    let pair = Pair::new("a.test");
    let key = files.write("x.key", &pair.key.serialize_pem());
    let check = |certificate: &str| {
        let certificate = files.write("x.crt", certificate);
        files
            .parse(&format!(
                "certificate-file: {certificate}\nkey-file: {key}\n"
            ))
            .0
            .map(|settings| settings.identities[0].presented().key().cert.len())
    };
    let own = pair.certificate.pem();
    let error = |reason: &str| {
        Err(format!(
            "[f:1] failed to load certificate file:DIR/x.crt (column 19; {reason})"
        ))
    };
    assert_eq!(check(&own), Ok(1));
    assert_eq!(
        check(&format!(
            "# leaf\r\n{own}\nissuer\n{}",
            Authority::new().pem()
        )),
        Ok(2)
    );
    assert_eq!(check(&pair.key.public_key_pem()), Ok(1));
    let other = Pair::new("a.test").key.public_key_pem();
    assert_eq!(
        check(&other),
        Err(
            "[f:2] private key file:DIR/x.key does not belong to certificate file:DIR/x.crt (column 11)"
                .to_owned()
        )
    );
    files.write("x.crt", &pair.key.public_key_pem());
    let mapping = format!(
        "certificate-file: {}\nkey-file: {key}\nmax-version: TLSv1.2\n",
        files.path("x.crt")
    );
    assert_eq!(
        files.parse(&mapping).0.map(drop),
        Err("[f:3] a raw public key needs TLS 1.3 (column 14)".to_owned())
    );
    assert_eq!(check(""), error("no certificate in PEM form"));
    assert_eq!(
        check(&pem("CERTIFICATE", b"nonsense")),
        error("malformed certificate")
    );
    assert!(check(&own[..own.len() - 30]).is_err());
    // A certificate of version 1, as small authorities issue them, is accepted.
    assert_eq!(
        check(&pem("CERTIFICATE", &version1(pair.certificate.der()))),
        Ok(1)
    );
}

/// Removes the version from a certificate, so that it has version 1; its signature does not matter here.
fn version1(certificate: &[u8]) -> Vec<u8> {
    // The start of the certificate is: SEQUENCE (two bytes of length), SEQUENCE (two bytes of length), [0] { INTEGER 2 }.
    assert_eq!((certificate[1], certificate[5]), (0x82, 0x82));
    assert_eq!(certificate[8..13], [0xa0, 3, 2, 1, 2]);
    let mut shorter = certificate.to_vec();
    shorter.drain(8..13);
    for position in [2, 6] {
        let len = u16::from_be_bytes([shorter[position], shorter[position + 1]]) - 5;
        shorter[position..position + 2].copy_from_slice(&len.to_be_bytes());
    }
    shorter
}
