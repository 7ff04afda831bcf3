//! TLS versions, and their limits in a configuration.

use h2o_config::{Error, Node, nearest};

/// The TLS versions that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    Tls12,
    Tls13,
}

impl Version {
    /// The name of the version for scripts and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "TLSv1.2",
            Self::Tls13 => "TLSv1.3",
        }
    }

    fn rustls(self) -> &'static rustls::SupportedProtocolVersion {
        match self {
            Self::Tls12 => &rustls::version::TLS12,
            Self::Tls13 => &rustls::version::TLS13,
        }
    }
}

/// The names of versions that a configuration may use, oldest first; versions before `TLSv1.2` are no longer supported.
const NAMES: [&str; 6] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];

/// The range of TLS versions that an `ssl` mapping allows; `min` is not above `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    min: Version,
    max: Version,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            min: Version::Tls12,
            max: Version::Tls13,
        }
    }
}

impl Versions {
    /// Reads `min-version` and `max-version`.
    ///
    /// # Errors
    /// `unknown protocol version: X`, `max-version is below min-version`
    pub(crate) fn parse(
        min: Option<&Node>,
        max: Option<&Node>,
        warn: &mut dyn FnMut(&Node, &str),
    ) -> Result<Self, Error> {
        let mut versions = Self::default();
        if let Some(node) = min {
            versions.min = parse_version(node)?.unwrap_or_else(|| {
                warn(
                    node,
                    "versions below TLSv1.2 are not supported; the minimum is TLSv1.2",
                );
                Version::Tls12
            });
        }
        if let Some(node) = max {
            versions.max = parse_version(node)?.unwrap_or_else(|| {
                warn(
                    node,
                    "versions below TLSv1.2 are not supported; the maximum is TLSv1.2",
                );
                Version::Tls12
            });
            if versions.max < versions.min {
                return Err(node.error("max-version is below min-version"));
            }
        }
        Ok(versions)
    }

    /// The range without TLS 1.2; `None` if the range does not include TLS 1.3.
    pub(crate) fn without_tls12(self) -> Option<Self> {
        let min = Version::Tls13;
        (self.max >= min).then_some(Self { min, ..self })
    }

    pub(crate) fn contains(self, version: Version) -> bool {
        (self.min..=self.max).contains(&version)
    }

    pub(crate) fn rustls(self) -> Vec<&'static rustls::SupportedProtocolVersion> {
        [Version::Tls13, Version::Tls12]
            .into_iter()
            .filter(|version| self.contains(*version))
            .map(Version::rustls)
            .collect()
    }
}

/// The version that `node` names; `None` if it is too old to be supported.
fn parse_version(node: &Node) -> Result<Option<Version>, Error> {
    let text = node.scalar()?;
    let index = NAMES
        .iter()
        .position(|name| name.eq_ignore_ascii_case(text))
        .ok_or_else(|| {
            // Other servers write the version as `1.2`, so the hint adds `TLSv`.
            let full = format!("TLSv{}", text.trim_start_matches(['v', 'V']));
            let meant = NAMES.into_iter().find(|name| *name == full);
            node.error(format!("unknown protocol version: {text}"))
                .did_you_mean(meant.or_else(|| nearest(text, NAMES.into_iter())))
        })?;
    Ok(match NAMES[index] {
        "TLSv1.2" => Some(Version::Tls12),
        "TLSv1.3" => Some(Version::Tls13),
        _ => None,
    })
}
