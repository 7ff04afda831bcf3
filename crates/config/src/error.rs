//! Errors in a configuration: what is wrong, and at which position.

use std::fmt;
use std::sync::Arc;

use crate::pos::Pos;

/// Why a configuration was refused.
///
/// `Display` formats the line for standard error: `[FILE:LINE] in command NAME, MESSAGE`, followed in parentheses by the
/// column and a hint.
#[derive(Clone, Debug)]
pub struct Error {
    /// The position of the mistake, if the error has one.
    pub pos: Option<Pos>,
    /// The name of the directive that was being executed.
    pub command: Option<Arc<str>>,
    /// The description of the mistake.
    pub message: String,
    /// How to correct the configuration, such as ``did you mean `listen`?``.
    pub hint: Option<String>,
    origin: Origin,
}

/// The stage of loading in which the error was found, which decides the format of its message.
#[derive(Clone, Debug)]
enum Origin {
    /// A file could not be read into a tree.
    Load {
        /// The `!file` node that includes the file with the error.
        included_from: Option<Box<Pos>>,
        /// A line that is printed before the error's own line.
        cause: Option<Box<str>>,
    },
    /// A mapping of directives is malformed. Such an error is not about a single directive, so [`Error::in_command`]
    /// does not add one.
    Structure,
    /// The argument of a directive is not valid.
    Directive,
}

impl Error {
    /// An error without a position; [`crate::Registry::run`] adds the position of the directive that returned the error.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            pos: None,
            command: None,
            message: message.into(),
            hint: None,
            origin: Origin::Directive,
        }
    }

    /// An error at the position `pos`.
    pub fn at(pos: Pos, message: impl Into<String>) -> Self {
        Self {
            pos: Some(pos),
            ..Self::new(message)
        }
    }

    /// The error with another description.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The error as the text of a warning, if the configuration is loaded in spite of it.
    #[must_use]
    pub fn to_warning(&self) -> String {
        format!("[warning] {self}")
    }

    /// Adds a hint to the error; it replaces an earlier one.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the hint ``did you mean `word`?`` to the error, if `word` is given.
    #[must_use]
    pub fn did_you_mean(mut self, word: Option<&str>) -> Self {
        if let Some(word) = word {
            self.hint = Some(format!("did you mean `{word}`?"));
        }
        self
    }

    /// An error at `pos` in a file that could not be read into a tree of nodes. `included_from` is the position of the
    /// `!file` that includes the file.
    pub(crate) fn load(pos: Pos, included_from: Option<Pos>, message: impl Into<String>) -> Self {
        Self {
            origin: Origin::Load {
                included_from: included_from.map(Box::new),
                cause: None,
            },
            ..Self::at(pos, message)
        }
    }

    /// The error that the tag `!file` or `!env` at `pos` cannot be resolved, because of `cause`.
    pub(crate) fn tag(pos: Pos, cause: impl Into<Box<str>>) -> Self {
        Self {
            origin: Origin::Load {
                included_from: None,
                cause: Some(cause.into()),
            },
            ..Self::at(pos, "tag resolution failed")
        }
    }

    /// The error that the mapping of directives at `pos` is malformed.
    pub(crate) fn structure(pos: Pos, message: impl Into<String>) -> Self {
        Self {
            origin: Origin::Structure,
            ..Self::at(pos, message)
        }
    }

    /// Adds the name and position of the directive to an error that does not have them.
    #[must_use]
    pub fn in_command(mut self, name: &str, pos: &Pos) -> Self {
        match self.origin {
            Origin::Load { .. } | Origin::Structure => return self,
            Origin::Directive => {}
        }
        if self.command.is_none() {
            self.command = Some(name.into());
        }
        if self.pos.is_none() {
            self.pos = Some(pos.clone());
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, &self.pos) {
            (
                Origin::Load {
                    included_from,
                    cause,
                },
                Some(pos),
            ) => {
                if let Some(cause) = cause {
                    writeln!(f, "{cause}")?;
                }
                write!(
                    f,
                    "failed to parse configuration file {} line {}",
                    pos.file(),
                    pos.line()
                )?;
                if let Some(by) = included_from {
                    write!(f, " (included from file {} line {})", by.file(), by.line())?;
                }
                f.write_str(": ")?;
            }
            (Origin::Structure | Origin::Directive, Some(pos)) => {
                write!(f, "[{}:{}] ", pos.file(), pos.line())?
            }
            (Origin::Load { .. } | Origin::Structure | Origin::Directive, None) => {}
        }
        if let Some(command) = &self.command {
            write!(f, "in command {command}, ")?;
        }
        f.write_str(&self.message)?;
        match (&self.pos, &self.hint) {
            (Some(pos), Some(hint)) => write!(f, " (column {}; {hint})", pos.column()),
            (Some(pos), None) => write!(f, " (column {})", pos.column()),
            (None, Some(hint)) => write!(f, " ({hint})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_has_one_shape_per_stage() {
        let pos = || Pos::new("a.conf".into(), 3, 7);
        let include = || Pos::new("top.conf".into(), 1, 2);
        let cases = [
            (Error::new("M"), "M"),
            (Error::new("M").with_hint("H"), "M (H)"),
            (Error::at(pos(), "M"), "[a.conf:3] M (column 7)"),
            (
                Error::at(pos(), "M").did_you_mean(None),
                "[a.conf:3] M (column 7)",
            ),
            (
                Error::at(pos(), "M").did_you_mean(Some("x")),
                "[a.conf:3] M (column 7; did you mean `x`?)",
            ),
            (
                Error::at(pos(), "M").in_command("C", &include()),
                "[a.conf:3] in command C, M (column 7)",
            ),
            (
                Error::new("M").in_command("C", &pos()),
                "[a.conf:3] in command C, M (column 7)",
            ),
            (
                Error::at(pos(), "M")
                    .in_command("C", &pos())
                    .in_command("D", &pos()),
                "[a.conf:3] in command C, M (column 7)",
            ),
            (
                Error::structure(pos(), "M").in_command("C", &pos()),
                "[a.conf:3] M (column 7)",
            ),
            (
                Error::load(pos(), None, "P"),
                "failed to parse configuration file a.conf line 3: P (column 7)",
            ),
            (
                Error::load(pos(), Some(include()), "P"),
                "failed to parse configuration file a.conf line 3 (included from file top.conf line 1): P (column 7)",
            ),
            (
                Error::tag(pos(), "could not open configuration file x: gone"),
                "could not open configuration file x: gone\n\
                 failed to parse configuration file a.conf line 3: tag resolution failed (column 7)",
            ),
        ];
        for (error, want) in cases {
            assert_eq!(error.to_string(), want);
        }
    }
}
