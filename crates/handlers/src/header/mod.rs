//! The directives `header.*`: rules that edit the fields of responses.
//!
//! The rules of a path are those of the global level, of its host and its own, in this order. An inner level adds rules and
//! cannot remove any.

mod cookie;
mod edit;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels, Node};
use h2o_exchange::{Exchange, Filter, FilterResult, Response, Scope, SettingsMap};
use h2o_http::Headers;

pub(crate) use self::edit::Edit;
use self::edit::{FieldLine, FieldName};

/// The kinds of responses that a rule of `header.*` applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The rule applies to final responses only.
    Final,
    /// The rule applies to interim responses 103 (Early Hints) only.
    Early,
    /// The rule applies to final responses and to 103 responses.
    All,
}

/// One rule of `header.*` for a path.
#[derive(Clone, Debug)]
struct Rule {
    edit: Edit,
    when: When,
}

/// The rules of `header.*` at a configuration level, inherited ones first.
#[derive(Clone, Debug, Default)]
struct Rules(Vec<Rule>);

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    directive(
        "header.add",
        LINES,
        "Adds the header to the response, also if it has one of that name.",
        |scope, command| add_rules(scope, command, Verb::Add),
    ),
    directive(
        "header.append",
        LINES,
        "Appends the value to the first header of that name in the response, after a comma; adds the header if there is none.",
        |scope, command| add_rules(scope, command, Verb::Append),
    ),
    directive(
        "header.merge",
        LINES,
        "As `header.append`, but does nothing if the value is already an element of the first header of that name.",
        |scope, command| add_rules(scope, command, Verb::Merge),
    ),
    directive(
        "header.set",
        LINES,
        "Replaces all headers of that name in the response by this one.",
        |scope, command| add_rules(scope, command, Verb::Set),
    ),
    directive(
        "header.setifempty",
        LINES,
        "Adds the header if the response has none of that name.",
        |scope, command| add_rules(scope, command, Verb::SetIfEmpty),
    ),
    directive(
        "header.unset",
        NAMES,
        "Removes all headers of these names from the response.",
        |scope, command| add_rules(scope, command, Verb::Unset),
    ),
    directive(
        "header.unsetunless",
        NAMES,
        "Removes all headers but those of these names from the response.",
        |scope, command| add_rules(scope, command, Verb::UnsetUnless),
    ),
    directive(
        "header.cookie.unset",
        COOKIES,
        "Removes the cookies of these names from `cookie` headers of responses, which hardly any response has; `set-cookie` headers \
         stay as they are. `proxy.header.cookie.unset` is for the cookies that clients send.",
        |scope, command| add_rules(scope, command, Verb::CookieUnset),
    ),
    directive(
        "header.cookie.unsetunless",
        COOKIES,
        "Removes all cookies but those of these names from `cookie` headers of responses; `set-cookie` headers stay as they are. \
         `proxy.header.cookie.unsetunless` is for the cookies that clients send.",
        |scope, command| add_rules(scope, command, Verb::CookieUnsetUnless),
    ),
];

pub(crate) const LINES: &str = "`NAME: VALUE`, a sequence of those, or a mapping";
pub(crate) const NAMES: &str = "NAME, a sequence of those, or a mapping";
pub(crate) const COOKIES: &str = "COOKIE, a sequence of those, or a mapping";

/// Creates a directive that edits fields; also used for `proxy.header.*`.
pub(crate) const fn directive(
    name: &'static str,
    value: &'static str,
    help: &'static str,
    apply: fn(&mut Scope, &Command<'_>) -> Result<(), Error>,
) -> Directive<Scope> {
    Directive {
        levels: Levels::ALL_BUT_EXTENSION,
        kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
        ..Directive::setting(name, value, "", help, apply)
    }
}

fn add_rules(scope: &mut Scope, command: &Command<'_>, verb: Verb) -> Result<(), Error> {
    let (edits, when) = read(command, verb)?;
    let rules = edits.into_iter().map(|edit| Rule { edit, when });
    scope.edit::<Rules>().0.extend(rules);
    Ok(())
}

/// How a directive edits fields; also used for `proxy.header.*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Append,
    Merge,
    Set,
    SetIfEmpty,
    Unset,
    UnsetUnless,
    CookieUnset,
    CookieUnsetUnless,
}

/// Reads the argument of a directive: the changes in order, and the kinds of responses that they apply to.
pub(crate) fn read(command: &Command<'_>, verb: Verb) -> Result<(Vec<Edit>, When), Error> {
    let (argument, when) = list_and_when(command)?;
    let list = argument.one_or_more();
    let lines = |edit: fn(FieldLine) -> Edit| -> Result<Vec<Edit>, Error> {
        let lines = list.iter().map(FieldLine::read);
        lines.map(|line| line.map(edit)).collect()
    };
    let edits = match verb {
        Verb::Add => lines(Edit::Add)?,
        Verb::Append => lines(Edit::Append)?,
        Verb::Merge => lines(Edit::Merge)?,
        Verb::Set => lines(Edit::Set)?,
        Verb::SetIfEmpty => lines(Edit::SetIfEmpty)?,
        Verb::Unset => vec![Edit::Unset(FieldName::read_all(list)?)],
        Verb::UnsetUnless => vec![Edit::UnsetUnless(FieldName::read_all(list)?)],
        Verb::CookieUnset => vec![Edit::CookieUnset(cookie::read_all(list)?)],
        Verb::CookieUnsetUnless => vec![Edit::CookieUnsetUnless(cookie::read_all(list)?)],
    };
    Ok((edits, when))
}

const ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "header",
        Kinds::SCALAR.or(Kinds::SEQUENCE),
        "`NAME: VALUE`, NAME or COOKIE, whichever the directive takes; or a sequence of those",
        "The headers or cookies to edit.",
    ),
    Attribute::optional(
        "when",
        Kinds::SCALAR,
        "final|early|all",
        "final",
        "Which responses are edited: the final one, `103 Early Hints`, or both. With `early` and `all` the server also sends a 103 \
         of its own while the client waits for a backend. `proxy.header.*` ignores `when`.",
    ),
];

fn list_and_when<'a>(command: &Command<'a>) -> Result<(&'a Node, When), Error> {
    if command.node.as_mapping().is_none() {
        return Ok((command.node, When::Final));
    }
    let attributes = command
        .node
        .attributes(&ATTRIBUTES)
        .map_err(|error| explain(command, error))?;
    let when = match attributes.get("when") {
        None => When::Final,
        Some(word) => {
            [When::Final, When::Early, When::All][word.one_of(&["final", "early", "all"])?]
        }
    };
    Ok((attributes.require("header")?, when))
}

/// Adds a hint to the error about `header.set: { X: y }`, a common mistake.
fn explain(command: &Command<'_>, error: Error) -> Error {
    let Some([(name, value)]) = command.node.as_mapping() else {
        return error;
    };
    match (name.as_str(), value.as_str(), &error.hint) {
        (Some(name), Some(value), None) if name != "when" => {
            error.with_hint(format!("write `{}: \"{name}: {value}\"`", command.name))
        }
        _ => error,
    }
}

/// Edits the fields of a 103 response by the rules for a path with these settings.
pub(crate) fn edit_early(settings: &SettingsMap, headers: &mut Headers) {
    let Some(rules) = settings.peek::<Rules>() else {
        return;
    };
    for rule in &rules.0 {
        if matches!(rule.when, When::Early | When::All) {
            rule.edit.apply(headers);
        }
    }
}

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    let rules = scope.settings.peek::<Rules>()?;
    let edits: Box<[Edit]> = rules
        .0
        .iter()
        .filter(|rule| matches!(rule.when, When::Final | When::All))
        .map(|rule| rule.edit.clone())
        .collect();
    let mut early = Headers::new();
    edit_early(&scope.settings, &mut early);
    if edits.is_empty() && early.is_empty() {
        return None;
    }
    Some(Box::new(HeaderFilter { edits, early }))
}

struct HeaderFilter {
    edits: Box<[Edit]>,
    /// The fields of the 103 response that the server sends because of the rules: those that the rules add to a
    /// response without fields.
    early: Headers,
}

impl Filter for HeaderFilter {
    fn on_response(&self, exchange: &mut Exchange, response: &mut Response) -> FilterResult {
        for edit in &self.edits {
            if exchange.awaits_error_document {
                // An error document takes the place of a failed response that the rules of its path have edited
                // already. The document's path may have the same rules, so they add nothing a second time.
                edit.apply_again(&mut response.headers);
            } else {
                edit.apply(&mut response.headers);
            }
        }
        FilterResult::Continue
    }

    fn early_hints(&self) -> Option<&Headers> {
        Some(&self.early).filter(|early| !early.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request, shown};
    use h2o_exchange::Body;
    use h2o_http::StatusCode;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    fn filtered(levels: [&str; 3], before: &str) -> String {
        let site = SETUP.read(levels).unwrap_or_else(|error| panic!("{error}"));
        let mut exchange = request(site, "GET", "default", "/");
        let mut response = Response::new(StatusCode::OK, headers(before), Body::Empty);
        let site = std::rc::Rc::clone(&exchange.site);
        for filter in &site.path(exchange.route).filters {
            assert!(matches!(
                filter.on_response(&mut exchange, &mut response),
                FilterResult::Continue
            ));
        }
        shown(&response.headers)
    }

    #[test]
    fn each_command_edits_the_fields_it_names() {
        let cases = [
            ("header.add: 'X-A: 1'", "x-a: 0", "x-a: 0\nx-a: 1"),
            ("header.add: 'x-a  :  b: c '", "", "x-a: b: c"),
            ("header.add: 'x-a:'", "", "x-a: "),
            ("header.add: [ 'x-a: 1', 'x-b: 2' ]", "", "x-a: 1\nx-b: 2"),
            (
                "header.append: 'vary: b'",
                "vary: a\nvary: c",
                "vary: a, b\nvary: c",
            ),
            ("header.append: 'vary: b'", "vary: ", "vary: b"),
            ("header.append: 'vary: b'", "", "vary: b"),
            ("header.merge: 'Vary: B'", "vary: a, b", "vary: a, b"),
            ("header.merge: 'vary: b'", "vary: ab", "vary: ab, b"),
            (
                "header.merge: 'vary: b'",
                "vary: a\nvary: b",
                "vary: a, b\nvary: b",
            ),
            ("header.merge: 'vary: b'", "x-a: b", "x-a: b\nvary: b"),
            (
                "header.set: 'x-a: 1'",
                "x-a: 0\nx-b: 0\nx-a: 9",
                "x-b: 0\nx-a: 1",
            ),
            ("header.setifempty: 'x-a: 1'", "x-a: ", "x-a: "),
            ("header.setifempty: 'x-a: 1'", "x-b: ", "x-b: \nx-a: 1"),
            ("header.unset: X-A", "x-a: 0\nx-b: 0\nx-a: 9", "x-b: 0"),
            (
                "header.unset: [ x-a, etag ]",
                "etag: 0\nx-b: 0\nx-a: 9",
                "x-b: 0",
            ),
            (
                "header.unsetunless: [ x-a, etag ]",
                "etag: 0\nx-b: 0\ndate: now\nx-a: 9",
                "etag: 0\nx-a: 9",
            ),
            (
                "header.cookie.unset: a",
                "cookie: a=1; b=2\ncookie: a=3",
                "cookie: b=2",
            ),
            (
                "header.cookie.unsetunless: [ a ]",
                "x-a: 1\ncookie: a=1; b=2",
                "x-a: 1\ncookie: a=1",
            ),
            ("header.cookie.unset: A", "cookie: a=1", "cookie: a=1"),
            ("header.add: { header: 'x-a: 1' }", "", "x-a: 1"),
            (
                "header.add: { header: [ 'x-a: 1', 'x-b: 2' ], when: ALL }",
                "",
                "x-a: 1\nx-b: 2",
            ),
            (
                "header.set: { header: 'x-a: 1', when: early }",
                "x-a: 0",
                "x-a: 0",
            ),
            ("header.set: 'x-a: |\n  1'", "", "x-a: | 1"),
            ("header.set: |\n  x-a: 1\n", "", "x-a: 1"),
        ];
        for (config, before, want) in cases {
            assert_eq!(filtered(["", "", config], before), want, "{config}");
        }
    }

    #[test]
    fn rules_run_from_the_outermost_level_inwards_in_file_order() {
        let levels = [
            "header.add: 'x: global'",
            "header.add: 'x: host 1'\nheader.append: 'x: host 2'\nheader.add: 'x: host 3'",
            "header.unset: y\nheader.add: 'x: path'",
        ];
        assert_eq!(
            filtered(levels, "y: 0"),
            "x: global, host 2\nx: host 1\nx: host 3\nx: path"
        );
    }

    #[test]
    fn an_inner_level_leaves_its_neighbours_alone() {
        let mut scope = SETUP
            .read(["header.add: 'x: 1'", "", "header.add: 'x: 2'"])
            .unwrap();
        // The entry for requests that match no path has the rules of the host only.
        let outside = scope.hosts[0].paths.pop().unwrap();
        assert_eq!(outside.settings.get::<Rules>().0.len(), 1);
        assert_eq!(scope.hosts[0].paths[0].settings.get::<Rules>().0.len(), 2);
        assert_eq!(scope.settings.get::<Rules>().0.len(), 1);
    }

    #[test]
    fn a_path_without_rules_has_no_filter() {
        for config in [
            "",
            "header.add: []",
            "header.unset: { header: x, when: early }",
        ] {
            let site = SETUP.read(["", "", config]).unwrap();
            assert!(site.hosts[0].paths[0].filters.is_empty(), "{config}");
        }
    }

    #[test]
    fn early_hints_are_what_the_rules_make_of_no_fields() {
        let outer = "header.add: { header: 'x-a: 1', when: early }";
        for (config, want) in [
            ("", Some("x-a: 1")),
            ("header.add: 'x-b: 1'", Some("x-a: 1")),
            (
                "header.append: { header: 'X-A: 2', when: all }",
                Some("x-a: 1, 2"),
            ),
            ("header.unset: { header: x-a, when: early }", None),
        ] {
            let site = SETUP.read([outer, "", config]).unwrap();
            let hints = site.hosts[0].paths[0].early_hints.as_ref();
            let hints = hints.map(|hints| {
                let lines = hints.iter().map(|field| {
                    let value = String::from_utf8_lossy(field.value).into_owned();
                    format!("{}: {value}", field.name.as_str())
                });
                lines.collect::<Vec<_>>().join("\n")
            });
            assert_eq!(hints.as_deref(), want, "{config}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        let in_add = |text: &str| format!("[f:1] in command header.add, {text}");
        let form = "failed to parse the value; should be in form of `name: value`";
        let fixed = "the named header cannot be rewritten";
        let cases = [
            ("header.add: x", in_add(&format!("{form} (column 13)"))),
            ("header.add: ''", in_add(&format!("{form} (column 13)"))),
            ("header.add: ': x'", in_add(&format!("{form} (column 13)"))),
            (
                "header.add: [ 'a: b', c ]",
                in_add(&format!("{form} (column 23)")),
            ),
            (
                "header.add: [ [ 'a: b' ] ]",
                in_add("argument must be a scalar (column 15)"),
            ),
            (
                "header.add: 'a b: c'",
                in_add("invalid header name (column 13; write letters, digits and hyphens)"),
            ),
            (
                "header.add: \"a: b\\r\\nc: d\"",
                in_add("invalid header value (column 13; a header value cannot have line breaks and other control characters)"),
            ),
            (
                "header.add: 'Date: now'",
                in_add(&format!("{fixed} (column 13; the server itself sets this header)")),
            ),
            (
                "header.add: 'content-length: 1'",
                in_add(&format!("{fixed} (column 13; the server itself sets this header)")),
            ),
            (
                "header.add: 'Connection: close'",
                in_add(&format!("{fixed} (column 13; the server itself sets this header)")),
            ),
            (
                "header.add: 'transfer-encoding: x'",
                in_add(&format!("{fixed} (column 13; the server itself sets this header)")),
            ),
            (
                "header.add: 'server: x'",
                in_add(&format!("{fixed} (column 13; the server itself sets this header)")),
            ),
            (
                "header.add: {}",
                in_add("cannot find mandatory attribute: header (column 13)"),
            ),
            (
                "header.add: { header: {} }",
                in_add("attribute `header` must be a scalar or a sequence (column 23)"),
            ),
            (
                "header.add: { header: 'a: b', when: never }",
                in_add("argument must be one of: final,early,all (column 37)"),
            ),
            (
                "header.unset: 'a: b'",
                "[f:1] in command header.unset, invalid header name (column 15; write letters, digits and hyphens)".to_owned(),
            ),
            (
                "header.unset:",
                "[f:1] in command header.unset, invalid header name (column 14; write letters, digits and hyphens)".to_owned(),
            ),
            (
                "header.unsetunless: [ a, server ]",
                format!("[f:1] in command header.unsetunless, {fixed} (column 26; the server itself sets this header)"),
            ),
            (
                "header.cookie.unset: 'a=b'",
                "[f:1] in command header.cookie.unset, invalid cookie name (column 22; write a name without `=` and `;`)".to_owned(),
            ),
        ];
        for (config, want) in cases {
            assert_eq!(SETUP.refusal(config), want, "{config}");
        }
    }
}
