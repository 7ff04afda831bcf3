//! The levels of a configuration, and at which of them a directive is allowed.

use std::fmt;
use std::ops::BitOr;

/// The level of a mapping of directives. A mapping of an inner level starts with a copy of the settings of the outer level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The top level of the configuration.
    Global,
    /// The level of an entry of `hosts`.
    Host,
    /// The level of an entry of `paths`.
    Path,
    /// The level of an entry of `file.custom-handler`.
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

/// The set of levels at which a directive is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// The global level, which is the top of the configuration.
    pub const GLOBAL: Self = Self(1);
    /// The host level: entries of `hosts`.
    pub const HOST: Self = Self(2);
    /// The path level: entries of `paths`.
    pub const PATH: Self = Self(4);
    /// The extension level: entries of `file.custom-handler`.
    pub const EXTENSION: Self = Self(8);
    /// The global level. A synonym of [`Self::GLOBAL`] for directives, whose name says that no other level is allowed.
    pub const GLOBAL_ONLY: Self = Self::GLOBAL;
    /// The global and host levels.
    pub const GLOBAL_HOST: Self = Self::GLOBAL.or(Self::HOST);
    /// The path and extension levels, at which handlers are configured.
    pub const PATH_EXTENSION: Self = Self::PATH.or(Self::EXTENSION);
    /// The global, host and path levels.
    pub const ALL_BUT_EXTENSION: Self = Self::GLOBAL_HOST.or(Self::PATH);
    /// All four levels.
    pub const ALL: Self = Self::ALL_BUT_EXTENSION.or(Self::EXTENSION);

    /// The union of both sets. Code outside of constants uses the operator `|` instead.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set has this level.
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

/// Formats the set like `global, host, path`.
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
            (Levels::HOST | Levels::PATH, "host, path"),
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
