//! The directive `file.hide`: names of files and directories that are neither listed nor served.

use std::sync::Arc;

use glob::Pattern;
use h2o_config::{Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::Scope;

use super::settings::FileSettings;

pub(super) const HIDE: Directive<Scope> = Directive {
    name: "file.hide",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
    value: "OFF|PATTERN|[PATTERN, ...]",
    default: "OFF",
    help: "Not in H2O: names of files and directories that are neither listed nor served, at any depth below `file.dir`; \
           requests for them are answered as for what does not exist. A pattern has `*`, `?` and `[...]`; one that \
           begins with `!` names an exception to those before it: `[\".*\", \"!.well-known\"]`.",
    apply: |scope, command| {
        scope.edit::<FileSettings>().hidden = read(command)?;
        Ok(())
    },
};

/// The rules of `file.hide`, which tell the hidden names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hidden(Arc<[Rule]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    hides: bool,
}

fn read(command: &Command<'_>) -> Result<Hidden, Error> {
    match command.node.as_str() {
        Some(text) if text.eq_ignore_ascii_case("OFF") => return Ok(Hidden::default()),
        Some(_) if command.node.means_on() => {
            return Err(command
                .error("the names that are hidden must be given")
                .with_hint("write `\".*\"` to hide what begins with a dot"));
        }
        Some(_) | None => {}
    }
    let rules = command.node.one_or_more().iter().map(read_rule);
    Ok(Hidden(rules.collect::<Result<_, _>>()?))
}

fn read_rule(node: &Node) -> Result<Rule, Error> {
    let text = node.scalar()?;
    let (name, hides) = match text.strip_prefix('!') {
        Some(name) => (name, false),
        None => (text, true),
    };
    if name.is_empty() || name.contains('/') {
        return Err(node
            .error(format!(
                "the pattern `{text}` matches no name of a file or directory"
            ))
            .with_hint(
                "write a name or pattern without a slash: `.*` hides dot files in every directory",
            ));
    }
    let pattern = Pattern::new(name)
        .map_err(|error| node.error(format!("the pattern `{text}` is malformed: {}", error.msg)))?;
    Ok(Rule { pattern, hides })
}

impl Hidden {
    /// Whether a file or directory of this name is hidden. The last rule that names it decides.
    pub(super) fn hides(&self, name: &[u8]) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let name = String::from_utf8_lossy(name);
        let rule = self.0.iter().rev().find(|rule| rule.pattern.matches(&name));
        rule.is_some_and(|rule| rule.hides)
    }

    /// The rules with these patterns, for tests.
    #[cfg(test)]
    pub(super) fn of(patterns: &[&str]) -> Self {
        let rules = patterns.iter().map(|text| Rule {
            pattern: Pattern::new(text.trim_start_matches('!')).unwrap(),
            hides: !text.starts_with('!'),
        });
        Self(rules.collect())
    }

    /// Whether a component of the path is hidden.
    pub(super) fn hides_any_of(&self, path: &[u8]) -> bool {
        !self.0.is_empty()
            && path
                .split(|&byte| byte == b'/')
                .any(|name| self.hides(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_names_it_decides() {
        let dots = &[".*", "!.well-known"][..];
        let cases = [
            (dots, ".env", true),
            (dots, "a/.git/config", true),
            (dots, ".well-known/x", false),
            (dots, ".well-known/.x", true),
            (dots, "a.b", false),
            (dots, "a//b", false),
            (&["*.bak", "[a-c]?"], "x/old.bak/", true),
            (&["*.bak", "[a-c]?"], "b1", true),
            (&["*.bak", "[a-c]?"], "d1", false),
            (&["!a", "a"], "a", true),
            (&[], ".env", false),
        ];
        for (patterns, path, want) in cases {
            let got = Hidden::of(patterns).hides_any_of(path.as_bytes());
            assert_eq!(got, want, "{patterns:?} {path}");
        }
        assert!(Hidden::of(&[".*"]).hides(b".\xff"));
    }
}
