//! Key-exchange groups of TLS 1.3.

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group;

use h2o_config::{Error, Node, nearest};

/// The supported groups, by the names that configurations use.
static GROUPS: [(&str, &dyn SupportedKxGroup); 7] = [
    ("x25519mlkem768", kx_group::X25519MLKEM768),
    ("secp256r1mlkem768", kx_group::SECP256R1MLKEM768),
    ("mlkem768", kx_group::MLKEM768),
    ("mlkem1024", kx_group::MLKEM1024),
    ("x25519", kx_group::X25519),
    ("secp256r1", kx_group::SECP256R1),
    ("secp384r1", kx_group::SECP384R1),
];

/// Key exchange groups that H2O's configuration can name but our TLS library does not support: they are left out.
const UNSUPPORTED: [&str; 2] = ["secp521r1", "secp384r1mlkem1024"];

/// The default key exchange groups, in order of preference: a post-quantum hybrid, then H2O's defaults.
const DEFAULT: [&str; 4] = ["x25519mlkem768", "x25519", "secp256r1", "secp384r1"];

/// The names of groups that a configuration may use.
pub fn names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|(name, _)| *name)
}

fn by_name(name: &str) -> Option<&'static dyn SupportedKxGroup> {
    GROUPS
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, group)| *group)
}

/// The key exchange groups that TLS 1.3 uses by default.
pub(crate) fn default_groups() -> Vec<&'static dyn SupportedKxGroup> {
    DEFAULT.iter().filter_map(|name| by_name(name)).collect()
}

/// The key exchange groups of TLS 1.2, which cannot be configured.
pub(crate) fn tls12_groups() -> Vec<&'static dyn SupportedKxGroup> {
    vec![kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1]
}

/// Reads `key-exchange-tls1.3`.
///
/// # Errors
/// `key-exchange not found: X`, `key-exchange not supported: X` if no supported group is listed beside it, `at least one
/// key-exchange must be specified`
pub(crate) fn parse(
    node: &Node,
    warn: &mut dyn FnMut(&Node, &str),
) -> Result<Vec<&'static dyn SupportedKxGroup>, Error> {
    let mut groups = Vec::new();
    let mut left_out = Vec::new();
    for item in node.sequence()? {
        let name = item.scalar()?;
        let is_known = |known: &&str| known.eq_ignore_ascii_case(name);
        if let Some(group) = by_name(name) {
            groups.push(group);
        } else if UNSUPPORTED.iter().any(is_known) {
            left_out.push((item, name));
        } else {
            return Err(item
                .error(format!("key-exchange not found: {name}"))
                .with_hint("`h2o --version` lists all key exchanges")
                .did_you_mean(nearest(name, names())));
        }
    }
    if groups.is_empty() {
        return Err(match left_out.first() {
            Some((item, name)) => item
                .error(format!("key-exchange not supported: {name}"))
                .with_hint("`h2o --version` lists those that are"),
            None => node.error("at least one key-exchange must be specified"),
        });
    }
    for (item, name) in left_out {
        warn(
            item,
            &format!("key exchange {name} is not supported and left out"),
        );
    }
    Ok(groups)
}
