//! The list of directives for the manual.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::directive::Directive;
use crate::kinds::Attribute;
use crate::known::KNOWN;
use crate::registry::Registry;

/// Minimum number of directives with the same prefix for which the manual has a chapter of their own.
const MIN_CHAPTER: usize = 3;

impl<C> Registry<C> {
    /// The text of `docs/directives.md`: every directive with its levels, value, default and help, then the names of H2O's
    /// directives that are refused.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "# Directives\n\n\
             Names are case-sensitive. A directive that occurs more than once in a mapping is applied each time, in the order of\n\
             the file. The levels are, from the outermost to the innermost: global, host, path, extension (within\n\
             [`file.custom-handler`](#filecustom-handler)). An inner level starts with the settings of the level around it.\n",
        );
        for (chapter, directives) in self.chapters() {
            let _ = write!(out, "\n## {chapter}\n");
            for (index, directive) in directives.iter().enumerate() {
                write_directive(&mut out, directive, &|text| {
                    self.linked(text, directive.name)
                });
                let attributes = directive.kinds.attributes;
                let same = directives[..index]
                    .iter()
                    .find(|earlier| is_same_table(earlier.kinds.attributes, attributes));
                match same {
                    Some(earlier) => write_reference(&mut out, earlier.name),
                    None => write_attributes(&mut out, attributes, &|text| {
                        self.linked(text, directive.name)
                    }),
                }
            }
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

    /// Adds links to a text for the manual: each directive that the text names in backticks is linked to its entry, except
    /// the directive `own`. Names of one word are not linked, as they could be names of attributes.
    fn linked(&self, text: &str, own: &str) -> String {
        let mut out = String::new();
        for (index, part) in text.split('`').enumerate() {
            if index % 2 == 0 {
                out.push_str(part);
                continue;
            }
            let name = part.split_once(": ").map_or(part, |(name, _)| name);
            let is_other = name != own && name.contains(['.', '-']) && self.find(name).is_some();
            if is_other && !out.ends_with('[') {
                let _ = write!(out, "[`{part}`](#{})", anchor(name));
            } else {
                let _ = write!(out, "`{part}`");
            }
        }
        out
    }

    /// The chapters of the manual: the directives grouped by the prefix of their names, in the order of the registry. The
    /// chapter `general` comes first.
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

/// A function that turns the names of directives in a text into links.
type Linker<'a> = &'a dyn Fn(&str) -> String;

/// The prefix that decides in which chapter a directive is: `http2` for a name that begins so, such as `http2-max-streams`, and
/// likewise `http1` and `http3`; otherwise the name up to its first dot, such as `file` for `file.dir`.
fn prefix(name: &'static str) -> &'static str {
    let of_version = ["http1", "http2", "http3"]
        .into_iter()
        .find(|version| name.starts_with(*version));
    of_version.unwrap_or_else(|| name.split_once('.').map_or(name, |(prefix, _)| prefix))
}

fn write_directive<C>(out: &mut String, directive: &Directive<C>, linked: Linker<'_>) {
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
        "\n### `{name}`\n\n{}\n\n* Levels: {levels}\n* Value: {}\n",
        linked(help),
        linked(&code_unless_prose(value))
    );
    if !default.is_empty() {
        let _ = writeln!(out, "* Default: {}", linked(&code_unless_prose(default)));
    }
}

/// Whether both tables of attributes are equal. Their contents are compared, since constants have no unique address.
fn is_same_table(one: &[Attribute], other: &[Attribute]) -> bool {
    let texts = |attribute: &Attribute| (attribute.name, attribute.value, attribute.help);
    !one.is_empty() && one.iter().map(texts).eq(other.iter().map(texts))
}

fn write_reference(out: &mut String, name: &str) {
    let anchor = anchor(name);
    let _ = writeln!(
        out,
        "\nA mapping has the attributes that [`{name}`](#{anchor}) has."
    );
}

/// The HTML anchor of a directive's entry, as GitHub makes it from the heading.
fn anchor(name: &str) -> String {
    name.chars().filter(|&c| c != '.').collect()
}

/// Writes a table of attributes, then one table for each attribute whose value is itself a mapping.
fn write_attributes(out: &mut String, attributes: &[Attribute], linked: Linker<'_>) {
    if attributes.is_empty() {
        return;
    }
    out.push_str("\n| Attribute | Value | Default | Meaning |\n|---|---|---|---|\n");
    for attribute in attributes {
        let default = match (attribute.required, attribute.default) {
            (true, _) => "mandatory".to_owned(),
            (false, "") => String::new(),
            (false, default) => code_unless_prose(default),
        };
        let cells = [
            format!("`{}`", attribute.name),
            linked(&code_unless_prose(attribute.value)),
            linked(&default),
            linked(&meaning(attribute)),
        ];
        // A `|` would end the cell of the table, even within backticks.
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    for attribute in attributes {
        let inner = attribute.kinds.attributes;
        if !inner.is_empty() {
            let _ = write!(out, "\nAttributes of `{}`:\n", attribute.name);
            write_attributes(out, inner, linked);
        }
    }
}

fn meaning(attribute: &Attribute) -> String {
    let aliases: Vec<_> = attribute
        .aliases
        .iter()
        .map(|alias| format!("`{alias}`"))
        .collect();
    if aliases.is_empty() {
        attribute.help.to_owned()
    } else {
        format!("{} Also written {}.", attribute.help, aliases.join(", "))
    }
}

/// Formats a grammar of one word as code. A longer text is returned as it is, since it is Markdown already.
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
    fn attributes_are_listed_with_those_of_inner_mappings() {
        const INNER: [Attribute; 1] = [Attribute::required(
            "file",
            Kinds::SCALAR,
            "FILE",
            "A file.",
        )];
        const OUTER: [Attribute; 3] = [
            Attribute::optional("mode", Kinds::SCALAR, "ON|OFF", "OFF", "Switches.")
                .aliases(&["m"]),
            Attribute::optional(
                "pairs",
                Kinds::SEQUENCE.with_attributes(&INNER),
                "a sequence",
                "",
                "Files.",
            ),
            Attribute::optional("last", Kinds::SCALAR, "TEXT", "", "Ends."),
        ];
        const LOG: Directive<()> = Directive {
            kinds: Kinds::MAPPING.with_attributes(&OUTER),
            ..directive("log", "")
        };
        static DIRECTIVES: [Directive<()>; 3] = [
            LOG,
            directive("user", ""),
            Directive {
                name: "old-log",
                ..LOG
            },
        ];
        let text = Registry::new(&[&DIRECTIVES]).markdown();
        let want = "* Value: `ON|OFF`\n\
            \n| Attribute | Value | Default | Meaning |\n|---|---|---|---|\n\
            | `mode` | `ON\\|OFF` | `OFF` | Switches. Also written `m`. |\n\
            | `pairs` | a sequence |  | Files. |\n\
            | `last` | `TEXT` |  | Ends. |\n\
            \nAttributes of `pairs`:\n\
            \n| Attribute | Value | Default | Meaning |\n|---|---|---|---|\n\
            | `file` | `FILE` | mandatory | A file. |\n\
            \n### `user`";
        assert!(text.contains(want), "{text}");
        assert!(
            text.contains("\nA mapping has the attributes that [`log`](#log) has.\n"),
            "{text}"
        );
        assert_eq!(text.matches("| `last`").count(), 1, "{text}");
    }

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
