//! The supported cipher suites and their names.

use rustls::crypto::aws_lc_rs::cipher_suite as rustls_suite;
use rustls::{CipherSuite, SupportedCipherSuite};

use h2o_config::{Error, Node, nearest};

/// A cipher suite of TLS 1.2.
pub(crate) struct Tls12Suite {
    pub(crate) suite: SupportedCipherSuite,
    /// The name of the suite in OpenSSL.
    pub(crate) name: &'static str,
    pub(crate) iana_name: &'static str,
    pub(crate) bits: u16,
    /// OpenSSL's keywords for the authentication and the encryption of this suite; other keywords apply to all suites.
    pub(crate) keywords: &'static [&'static str],
}

/// The supported TLS 1.2 suites, in OpenSSL's default order.
pub(crate) static TLS12: [Tls12Suite; 6] = [
    Tls12Suite {
        suite: rustls_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        iana_name: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        bits: 256,
        keywords: &[
            "ECDSA",
            "aECDSA",
            "AES",
            "AES256",
            "AESGCM",
            "FIPS",
            "SUITEB192",
            "SUITEB128",
        ],
    },
    Tls12Suite {
        suite: rustls_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        iana_name: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        bits: 256,
        keywords: &["aRSA", "AES", "AES256", "AESGCM", "FIPS"],
    },
    Tls12Suite {
        suite: rustls_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        iana_name: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        bits: 256,
        keywords: &["ECDSA", "aECDSA", "CHACHA20"],
    },
    Tls12Suite {
        suite: rustls_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        iana_name: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        bits: 256,
        keywords: &["aRSA", "CHACHA20"],
    },
    Tls12Suite {
        suite: rustls_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        iana_name: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        bits: 128,
        keywords: &[
            "ECDSA",
            "aECDSA",
            "AES",
            "AES128",
            "AESGCM",
            "FIPS",
            "SUITEB128",
            "SUITEB128ONLY",
            "SUITEB128C2",
        ],
    },
    Tls12Suite {
        suite: rustls_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        iana_name: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        bits: 128,
        keywords: &["aRSA", "AES", "AES128", "AESGCM", "FIPS"],
    },
];

/// A cipher suite of TLS 1.3.
struct Tls13Suite {
    suite: SupportedCipherSuite,
    /// The name of the suite at IANA, which OpenSSL uses as well.
    name: &'static str,
    bits: u16,
}

/// The supported TLS 1.3 suites, in the default order of preference.
static TLS13: [Tls13Suite; 3] = [
    Tls13Suite {
        suite: rustls_suite::TLS13_AES_256_GCM_SHA384,
        name: "TLS_AES_256_GCM_SHA384",
        bits: 256,
    },
    Tls13Suite {
        suite: rustls_suite::TLS13_AES_128_GCM_SHA256,
        name: "TLS_AES_128_GCM_SHA256",
        bits: 128,
    },
    Tls13Suite {
        suite: rustls_suite::TLS13_CHACHA20_POLY1305_SHA256,
        name: "TLS_CHACHA20_POLY1305_SHA256",
        bits: 256,
    },
];

/// TLS 1.3 suites that a configuration may name although the TLS library does not have them.
const TLS13_UNSUPPORTED: [&str; 2] = ["TLS_AEGIS_256_SHA512", "TLS_AEGIS_128L_SHA256"];

/// The name of a suite (in TLS 1.3 that of IANA, in TLS 1.2 that of OpenSSL) and the length of its key in bits.
pub(crate) fn describe(suite: CipherSuite) -> (&'static str, u16) {
    let tls13 = TLS13
        .iter()
        .find(|known| known.suite.suite() == suite)
        .map(|known| (known.name, known.bits));
    let tls12 = || {
        TLS12
            .iter()
            .find(|known| known.suite.suite() == suite)
            .map(|known| (known.name, known.bits))
    };
    tls13.or_else(tls12).unwrap_or(("", 0))
}

pub(crate) fn is_tls13_name(name: &str) -> bool {
    TLS13.iter().any(|known| known.name == name)
}

/// All supported suites of TLS 1.3 in the default order.
pub(crate) fn default_tls13() -> Vec<SupportedCipherSuite> {
    TLS13.iter().map(|known| known.suite).collect()
}

/// Reads `cipher-suite-tls1.3`.
///
/// # Errors
/// `Unexpected cipher suite. Expected one of: ...`, `at least one cipher suite must be specified`
pub(crate) fn parse_tls13(
    node: &Node,
    warn: &mut dyn FnMut(&Node, &str),
) -> Result<Vec<SupportedCipherSuite>, Error> {
    let mut suites = Vec::new();
    for item in node.sequence()? {
        let name = item.scalar()?;
        if let Some(known) = TLS13.iter().find(|known| known.name == name) {
            suites.push(known.suite);
        } else if TLS13_UNSUPPORTED.contains(&name) {
            warn(
                item,
                &format!("cipher suite {name} is not supported and left out"),
            );
        } else {
            let names: Vec<&str> = TLS13.iter().map(|known| known.name).collect();
            return Err(item
                .error(format!(
                    "Unexpected cipher suite. Expected one of: {}",
                    names.join(", ")
                ))
                .did_you_mean(nearest(name, names.iter().copied())));
        }
    }
    if suites.is_empty() {
        return Err(node.error("at least one cipher suite must be specified"));
    }
    if !suites.contains(&rustls_suite::TLS13_AES_128_GCM_SHA256) {
        // TLS 1.3 requires this suite of every server (RFC 8446 §9.1).
        warn(
            node,
            "TLS_AES_128_GCM_SHA256 is mandatory to implement, but left out",
        );
    }
    Ok(suites)
}
