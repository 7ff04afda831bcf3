//! The manual's list of directives.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::directive::Directive;
use crate::known::KNOWN;
use crate::registry::Registry;

/// A prefix shared by fewer directives than this makes no chapter of its own.
const MIN_CHAPTER: usize = 3;

impl<C> Registry<C> {
    /// The text of `docs/directives.md`: every directive with its levels, value, default and help, then the names that
    /// are known and refused.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "# Directives\n\n\
             Names are case-sensitive. A directive that occurs more than once in a mapping is executed each time. Inner\n\
             levels (global, host, path, extension) start with the settings of the outer one.\n",
        );
        for (chapter, directives) in self.chapters() {
            let _ = write!(out, "\n## {chapter}\n");
            directives
                .iter()
                .for_each(|directive| write_directive(&mut out, directive));
        }
        let missing: Vec<_> = KNOWN
            .iter()
            .filter(|name| self.find(name).is_none())
            .collect();
        if !missing.is_empty() {
            out.push_str(
                "\n## Not supported yet\n\nH2O has these; here they are refused by name.\n\n",
            );
            missing.iter().for_each(|name| {
                let _ = writeln!(out, "* `{name}`");
            });
        }
        out
    }

    /// Directives by what their names begin with, in the order of the registry; `general` comes first.
    fn chapters(&self) -> Vec<(&'static str, Vec<&'static Directive<C>>)> {
        let mut sizes = BTreeMap::new();
        for &directive in &self.built {
            *sizes.entry(prefix(directive.name)).or_insert(0) += 1;
        }
        let mut chapters: Vec<(_, Vec<_>)> = vec![("general", Vec::new())];
        for &directive in &self.built {
            let prefix = prefix(directive.name);
            let title = if sizes[prefix] >= MIN_CHAPTER {
                prefix
            } else {
                "general"
            };
            match chapters.iter_mut().find(|(known, _)| *known == title) {
                Some((_, directives)) => directives.push(directive),
                None => chapters.push((title, vec![directive])),
            }
        }
        chapters.retain(|(_, directives)| !directives.is_empty());
        chapters
    }
}

/// `file` of `file.dir`, `http2` of `http2-max-streams`, the name itself of all others.
fn prefix(name: &'static str) -> &'static str {
    let of_version = ["http1", "http2", "http3"]
        .into_iter()
        .find(|version| name.starts_with(*version));
    of_version.unwrap_or_else(|| name.split_once('.').map_or(name, |(prefix, _)| prefix))
}

fn write_directive<C>(out: &mut String, directive: &Directive<C>) {
    let Directive {
        name,
        levels,
        value,
        default,
        help,
        ..
    } = directive;
    let _ = write!(
        out,
        "\n### `{name}`\n\n{help}\n\n* Levels: {levels}\n* Value: {}\n",
        code_unless_prose(value)
    );
    if !default.is_empty() {
        let _ = writeln!(out, "* Default: {}", code_unless_prose(default));
    }
}

/// A grammar of one word is shown as code; a sentence is Markdown already.
fn code_unless_prose(text: &str) -> String {
    if text.contains([' ', '`']) {
        text.to_owned()
    } else {
        format!("`{text}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kinds, Levels, Pass};

    const fn directive(name: &'static str, default: &'static str) -> Directive<()> {
        Directive {
            name,
            levels: Levels::GLOBAL_HOST,
            pass: Pass::Settings,
            kinds: Kinds::SCALAR,
            value: "ON|OFF",
            default,
            help: "Helps.",
            apply: |(), _| Ok(()),
        }
    }

    static DIRECTIVES: [Directive<()>; 6] = [
        directive("file.etag", "ON"),
        directive("file.dir", ""),
        directive("user", ""),
        directive("file.index", ""),
        directive("proxy.tunnel", ""),
        directive("health-check", ""),
    ];

    #[test]
    fn the_manual_lists_built_directives_by_chapter_then_the_missing_ones() {
        let text = Registry::new(&[&DIRECTIVES]).markdown();
        let headings: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
        let want = [
            "# Directives",
            "## general",
            "### `user`",
            "### `proxy.tunnel`",
            "### `health-check`",
            "## file",
            "### `file.etag`",
            "### `file.dir`",
            "### `file.index`",
            "## Not supported yet",
        ];
        assert_eq!(headings, want);
        let entry = "\n### `file.etag`\n\nHelps.\n\n* Levels: global, host\n* Value: `ON|OFF`\n* Default: `ON`\n";
        assert!(text.contains(entry), "{text}");
        assert_eq!(text.matches("* `").count(), KNOWN.len() - 5);
        assert!(text.contains("\n* `hosts`\n") && !text.contains("* `user`"));
    }
}
