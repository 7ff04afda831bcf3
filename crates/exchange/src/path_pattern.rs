//! Keys of the directive `paths` that are patterns: regular expressions for the path of a request.

use std::sync::Arc;

use regex::bytes::{Captures, Regex, RegexBuilder};

/// A regular expression of the configuration for the paths of requests, which are UTF-8 or not. Matching takes time in proportion to the
/// length of the path.
#[derive(Clone, Debug)]
pub struct PathRegex {
    /// For paths that are UTF-8: `.` matches a character, `\w` letters of all scripts.
    characters: Regex,
    /// For other paths: `.` matches a byte, `\w` letters of ASCII. `None` if the expression has characters or classes beyond ASCII, so that
    /// it cannot be compiled for bytes.
    bytes: Option<Regex>,
}

/// Bytes of memory that a compiled expression may take, and likewise its caches on each worker.
const SIZE_LIMIT: usize = 1 << 20;

impl PathRegex {
    /// Compiles the regular expression. `.` matches line feeds, too.
    ///
    /// # Errors
    /// The reason why the text is no regular expression, in one line.
    pub fn new(text: &str) -> Result<Self, String> {
        let build = |is_unicode| {
            RegexBuilder::new(text)
                .size_limit(SIZE_LIMIT)
                .dfa_size_limit(SIZE_LIMIT)
                .dot_matches_new_line(true)
                .unicode(is_unicode)
                .build()
        };
        let characters = build(true).map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            format!("invalid regular expression: {reason}")
        })?;
        let bytes = build(false).ok();
        Ok(Self { characters, bytes })
    }

    /// The text of the regular expression, as configured.
    #[must_use]
    pub fn text(&self) -> &str {
        self.characters.as_str()
    }

    /// The names of the groups, beginning with the whole match, which has none.
    pub fn group_names(&self) -> impl Iterator<Item = Option<&str>> {
        self.characters.capture_names()
    }

    /// Whether the expression matches the normalised path of a request. `None` if that cannot be told, because the path is not UTF-8.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> Option<bool> {
        Some(self.of(path)?.is_match(path))
    }

    /// What the groups of the expression match in a path. `None` if the expression does not match.
    #[must_use]
    pub fn captures<'a>(&self, path: &'a [u8]) -> Option<Captures<'a>> {
        self.of(path)?.captures(path)
    }

    fn of(&self, path: &[u8]) -> Option<&Regex> {
        match std::str::from_utf8(path) {
            Ok(_) => Some(&self.characters),
            Err(_) => self.bytes.as_ref(),
        }
    }
}

/// A regular expression of the configuration that has to match the whole path of a request.
#[derive(Debug)]
pub struct PathPattern {
    regex: PathRegex,
    /// The names of the request variables that get the text of the expression's groups: `PATH_1` and so on, `PATH_NAME`
    /// for named groups. The whole match has no variable.
    variables: Box<[Arc<str>]>,
}

impl PathPattern {
    /// Compiles the regular expression.
    ///
    /// # Errors
    /// The reason why the text is no regular expression, in one line.
    pub fn new(text: &str) -> Result<Self, String> {
        let regex = PathRegex::new(text)?;
        let names = regex.group_names().enumerate().skip(1);
        let variables = names.map(|(number, name)| match name {
            Some(name) => format!("PATH_{name}").into(),
            None => format!("PATH_{number}").into(),
        });
        Ok(Self {
            variables: variables.collect(),
            regex,
        })
    }

    /// The text of the regular expression, as configured.
    #[must_use]
    pub fn text(&self) -> &str {
        self.regex.text()
    }

    /// Whether the expression matches the whole normalised path of a request. `None` if that cannot be told: the path is not UTF-8, and the
    /// expression has characters or classes beyond ASCII.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> Option<bool> {
        self.regex.is_match(path)
    }

    /// Returns the request variables and what the groups of the expression match in the path. `None` for groups that
    /// match nothing.
    pub fn variables(&self, path: &[u8]) -> impl Iterator<Item = (&Arc<str>, Option<Arc<[u8]>>)> {
        let captures = self.regex.captures(path);
        self.variables.iter().enumerate().map(move |(index, name)| {
            let group = captures.as_ref().and_then(|found| found.get(index + 1));
            (name, group.map(|group| Arc::from(group.as_bytes())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_become_variables() {
        let pattern = PathPattern::new("^/u/([a-z]+)(?:/(?<page>[0-9]+))?(z)?").unwrap();
        let shown = |path: &[u8]| -> Vec<String> {
            let variables = pattern.variables(path);
            let shown = variables.map(|(name, value)| {
                format!("{name}={}", value.as_deref().unwrap_or(b"-").escape_ascii())
            });
            shown.collect()
        };
        assert_eq!(
            shown(b"/u/ann/7"),
            ["PATH_1=ann", "PATH_page=7", "PATH_3=-"]
        );
        assert_eq!(shown(b"/u/ann"), ["PATH_1=ann", "PATH_page=-", "PATH_3=-"]);
        assert_eq!(pattern.is_match(b"/u/b"), Some(true));
        assert_eq!(pattern.is_match(b"/x/u/b"), Some(false));
    }

    #[test]
    fn no_byte_of_a_path_keeps_a_pattern_from_matching() {
        let is_match = |text: &str, path: &[u8]| PathPattern::new(text).unwrap().is_match(path);
        for text in ["^/secret/(.*)$", "^/secret/[^/]+$", r"^/secret/\S+$"] {
            for path in [
                &b"/secret/\xff"[..],
                b"/secret/x\xc3",
                b"/secret/\xe4\xb8\xad",
            ] {
                assert_eq!(is_match(text, path), Some(true), "{text} {path:?}");
            }
        }
        assert_eq!(is_match("^/secret/.+$", b"/secret/a\n"), Some(true));
        assert_eq!(is_match("^/secret/.+$", b"/secret/\n"), Some(true));
        // In a path that is UTF-8, classes have characters of all scripts.
        assert_eq!(
            is_match(r"^/team/\w+/", "/team/jürgen/".as_bytes()),
            Some(true)
        );
        assert_eq!(is_match("(?i)^/MÜLL", "/müll".as_bytes()), Some(true));
        assert_eq!(is_match("^/(a|b[äö]?)/.*$", "/bö/x".as_bytes()), Some(true));
        assert_eq!(is_match("^/(a|b[äö]?)/.*$", b"/a/\xff"), None);
    }

    #[test]
    fn errors_are_one_line() {
        for (text, want) in [
            ("(", "invalid regular expression: unclosed group"),
            (
                "a{2000}{2000}",
                "invalid regular expression: Compiled regex exceeds size limit of 1048576 bytes.",
            ),
        ] {
            assert_eq!(PathPattern::new(text).unwrap_err(), want);
        }
    }
}
