//! Keys of the directive `paths` that are patterns: regular expressions for the path of a request.

use std::sync::Arc;

use regex::bytes::Regex;

/// A regular expression of the configuration that has to match the whole path of a request. Matching takes time in
/// proportion to the length of the path.
#[derive(Debug)]
pub struct PathPattern {
    regex: Regex,
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
        let regex = compile_regex(text)?;
        let names = regex.capture_names().enumerate().skip(1);
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
        self.regex.as_str()
    }

    /// Whether the expression matches the whole normalised path of a request.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> bool {
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

/// Bytes of memory that a compiled expression may take, and likewise its caches on each worker.
const SIZE_LIMIT: usize = 1 << 20;

/// Compiles a regular expression of the configuration, to be matched against bytes.
///
/// # Errors
/// The reason why the text is no regular expression, in one line.
pub fn compile_regex(text: &str) -> Result<Regex, String> {
    let build = |is_unicode| {
        regex::bytes::RegexBuilder::new(text)
            .size_limit(SIZE_LIMIT)
            .dfa_size_limit(SIZE_LIMIT)
            .dot_matches_new_line(true)
            .unicode(is_unicode)
            .build()
    };
    // A path may have any bytes. If `.` did not match them all, such a path would lead past the guards of a pattern.
    let built = build(false).or_else(|_| build(true));
    built.map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default();
        let reason = reason.strip_prefix("error: ").unwrap_or(reason);
        format!("invalid regular expression: {reason}")
    })
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
        assert!(pattern.is_match(b"/u/b") && !pattern.is_match(b"/x/u/b"));
    }

    #[test]
    fn every_byte_is_matched() {
        for text in ["^/secret/(.*)$", "^/secret/[^/]+$", r"^/secret/\S+$"] {
            let pattern = PathPattern::new(text).unwrap();
            for path in [
                &b"/secret/\xff"[..],
                b"/secret/x\xc3",
                b"/secret/\xe4\xb8\xad",
            ] {
                assert!(pattern.is_match(path), "{text} {path:?}");
            }
        }
        let dots = PathPattern::new("^/secret/.+$").unwrap();
        assert!(dots.is_match(b"/secret/a\n") && dots.is_match(b"/secret/\n"));
        let letters = PathPattern::new(r"^/[äöü]\p{Lu}$").unwrap();
        assert!(letters.is_match("/äÖ".as_bytes()) && !letters.is_match("/äö".as_bytes()));
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
