//! Where in a configuration a directive may stand.

use std::fmt;
use std::ops::BitOr;

/// The level of a mapping of directives in the configuration. Inner levels start with a copy of the outer level's
/// settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The top of the file.
    Global,
    /// An entry of `hosts`.
    Host,
    /// An entry of `paths`.
    Path,
    /// An entry of `file.custom-handler`.
    Extension,
}

impl Level {
    const ALL: [Self; 4] = [Self::Global, Self::Host, Self::Path, Self::Extension];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Host => "host",
            Self::Path => "path",
            Self::Extension => "extension",
        })
    }
}

/// The levels a directive may stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// The top of the file only.
    pub const GLOBAL: Self = Self(1);
    /// Entries of `hosts` only.
    pub const HOST: Self = Self(2);
    /// Entries of `paths` only.
    pub const PATH: Self = Self(4);
    /// Entries of `file.custom-handler` only.
    pub const EXTENSION: Self = Self(8);
    /// The global level only. A synonym of [`Self::GLOBAL`], which would look as if other levels were allowed, too.
    pub const GLOBAL_ONLY: Self = Self::GLOBAL;
    /// Global and host.
    pub const GLOBAL_HOST: Self = Self::GLOBAL.or(Self::HOST);
    /// Host and path.
    pub const HOST_PATH: Self = Self::HOST.or(Self::PATH);
    /// Path and extension: the levels at which handlers are configured.
    pub const PATH_EXTENSION: Self = Self::PATH.or(Self::EXTENSION);
    /// Global, host and path.
    pub const ALL_BUT_EXTENSION: Self = Self::GLOBAL_HOST.or(Self::PATH);
    /// All four.
    pub const ALL: Self = Self::ALL_BUT_EXTENSION.or(Self::EXTENSION);

    /// The levels of both sets, as a `const fn`; code outside of constants uses `|`.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `level` is among them.
    #[must_use]
    pub const fn contains(self, level: Level) -> bool {
        self.0 & Self::of(level).0 != 0
    }

    const fn of(level: Level) -> Self {
        match level {
            Level::Global => Self::GLOBAL,
            Level::Host => Self::HOST,
            Level::Path => Self::PATH,
            Level::Extension => Self::EXTENSION,
        }
    }
}

impl BitOr for Levels {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

/// `global, host, path`
impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for level in Level::ALL.into_iter().filter(|&level| self.contains(level)) {
            write!(f, "{separator}{level}")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_contain_what_their_names_say() {
        let cases = [
            (Levels::GLOBAL, "global"),
            (Levels::GLOBAL_HOST, "global, host"),
            (Levels::HOST_PATH, "host, path"),
            (Levels::PATH_EXTENSION, "path, extension"),
            (Levels::ALL_BUT_EXTENSION, "global, host, path"),
            (Levels::ALL, "global, host, path, extension"),
            (Levels::EXTENSION | Levels::GLOBAL, "global, extension"),
        ];
        for (levels, want) in cases {
            assert_eq!(levels.to_string(), want);
        }
    }
}
