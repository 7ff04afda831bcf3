//! The directive `rewrite`: paths that match a regular expression get another URL.

use std::borrow::Cow;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{
    BodyUse, EarlyReroute, Exchange, Handler, Outcome, PathRegex, Reroute, RerouteKind, Response,
    Scope,
};
use h2o_http::{StatusCode, escape};
use regex::bytes::Captures;

const ATTRIBUTES: [Attribute; 3] = [
    Attribute::required(
        "match",
        Kinds::SCALAR,
        "REGULAR EXPRESSION",
        "The expression, which has to match somewhere in the decoded path of the request, without its query; `^` and `$` stand for \
         the beginning and the end of the path.",
    ),
    Attribute::required(
        "to",
        Kinds::SCALAR,
        "URL",
        "The new path or URL. `$1` or `${NAME}` stand for the text that a group has matched, `$$` for a dollar sign. The query of \
         the request is appended, unless the value of `to` has a `?`.",
    ),
    Attribute::optional(
        "status",
        Kinds::SCALAR,
        "300 to 399",
        "",
        "Redirects the client with this status. Without it the server runs the request again at the new path, and the \
         client does not see that.",
    ),
];

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "rewrite",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::MAPPING
        .or(Kinds::SEQUENCE)
        .with_attributes(&ATTRIBUTES),
    value: "a mapping, or a sequence of mappings",
    default: "",
    help: "Runs requests whose path matches a [regular expression](https://docs.rs/regex/#syntax) again at another URL, or \
           redirects the client there. The first rule that matches counts; if none does, the next handler of the path is tried. \
           Matching takes time in proportion to the length of the path.",
    apply: |scope, command| {
        let rewrite = read(command)?;
        scope.handlers.push(Box::new(rewrite));
        Ok(())
    },
}];

struct Rewrite(Box<[RewriteRule]>);

struct RewriteRule {
    regex: PathRegex,
    to: Template,
    /// The status of the redirect to the client; `None` if the server runs the request again at the URL.
    status: Option<StatusCode>,
}

/// The URL of a rule, with references to groups of the regular expression.
struct Template {
    parts: Box<[Part]>,
    has_query: bool,
    /// Whether the URL begins with a scheme or `//`.
    names_host: bool,
}

enum Part {
    Text(Box<str>),
    Group(usize),
}

fn read(command: &Command<'_>) -> Result<Rewrite, Error> {
    let rules = command.node.one_or_more().iter().map(read_rule);
    Ok(Rewrite(rules.collect::<Result<_, _>>()?))
}

fn read_rule(node: &Node) -> Result<RewriteRule, Error> {
    let attributes = node.attributes(&ATTRIBUTES)?;
    let pattern = attributes.require("match")?;
    let regex = PathRegex::new(pattern.scalar()?).map_err(|text| pattern.error(text))?;
    let to = attributes.require("to")?;
    let template = Template::parse(to.scalar()?, &regex).map_err(|text| to.error(text))?;
    let status = match attributes.get("status") {
        None => None,
        Some(node) => Some(
            Some(node.integer("%d", 0..=u64::MAX)?)
                .filter(|code| (300..=399).contains(code))
                .and_then(StatusCode::new)
                .ok_or_else(|| node.error("status should be within 300 to 399"))?,
        ),
    };
    Ok(RewriteRule {
        regex,
        to: template,
        status,
    })
}

impl Template {
    fn parse(text: &str, regex: &PathRegex) -> Result<Self, Cow<'static, str>> {
        if text.is_empty() || text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err("the URL must not be empty, and must not contain blanks".into());
        }
        let rest = ["https:", "http:"]
            .iter()
            .find_map(|it| text.strip_prefix(it));
        let host = match rest.unwrap_or(text).strip_prefix("//") {
            Some(host) => Some(host),
            None if rest.is_some() => {
                return Err("the URL has a scheme and no host; write `http://HOST/PATH`".into());
            }
            None => None,
        };
        if let Some(host) = host {
            let end = host.find(['/', '?', '#']).unwrap_or(host.len());
            if end == 0 || end == host.len() || host[..end].contains('$') {
                return Err("a host must be written in full, with a `/` behind it: the path of a request cannot choose it".into());
            }
        } else if !text.starts_with(['/', '$']) {
            return Err("the URL must begin with `/`, `http://` or `https://`".into());
        }
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            plain.push_str(before);
            if let Some(more) = behind.strip_prefix('$') {
                plain.push('$');
                rest = more;
                continue;
            }
            let (name, more) = match behind.strip_prefix('{') {
                Some(behind) => behind
                    .split_once('}')
                    .ok_or("the URL has `${` without `}`")?,
                None => {
                    let end = behind
                        .find(|it: char| !it.is_ascii_digit())
                        .unwrap_or(behind.len());
                    if end == 0 {
                        return Err("after `$` comes the number of a group, its name in braces (`${name}`), or a second `$`, which stands for one `$`".into());
                    }
                    behind.split_at(end)
                }
            };
            let group = match name.parse() {
                Ok(number) => Some(number).filter(|number| *number < regex.group_names().count()),
                Err(_) => regex.group_names().position(|it| it == Some(name)),
            };
            let group = group.ok_or_else(|| format!("the expression has no group `{name}`"))?;
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain).into()));
            }
            parts.push(Part::Group(group));
            rest = more;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain.into()));
        }
        Ok(Self {
            parts: parts.into(),
            has_query: text.contains('?'),
            names_host: host.is_some(),
        })
    }

    /// The URL for a match. The text of groups is escaped, so that it stays within the path or query: only the template
    /// can name a host.
    fn expand(&self, captures: &Captures<'_>, query: &[u8]) -> Vec<u8> {
        let mut url = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => url.extend_from_slice(text.as_bytes()),
                Part::Group(number) => {
                    let keep: &[u8] = if url.contains(&b'?') { b"" } else { b"/@:" };
                    let matched = captures.get(*number).map_or(&b""[..], |it| it.as_bytes());
                    if keep.is_empty() {
                        encode_query(matched, &mut url);
                    } else {
                        escape::uri(matched, keep, &mut url);
                    }
                }
            }
        }
        if !self.names_host {
            let slashes = url.iter().take_while(|byte| **byte == b'/').count();
            url.splice(..slashes, *b"/");
        }
        if !self.has_query {
            url.extend_from_slice(query);
        }
        url
    }
}

/// Appends a value to a query. It is escaped, so that no character in it separates parameters.
fn encode_query(value: &[u8], url: &mut Vec<u8>) {
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            url.push(byte);
        } else {
            url.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

impl Rewrite {
    /// The first rule that matches the path, and the URL that it makes.
    fn find(&self, path: &[u8], query: &[u8]) -> Option<(&RewriteRule, Vec<u8>)> {
        self.0.iter().find_map(|rule| {
            let captures = rule.regex.captures(path)?;
            Some((rule, rule.to.expand(&captures, query)))
        })
    }
}

impl Handler for Rewrite {
    fn body_use(&self, exchange: &Exchange) -> BodyUse {
        let path = exchange.request.path();
        let rule = self
            .0
            .iter()
            .find(|rule| rule.regex.is_match(path) == Some(true));
        match rule {
            Some(rule) if rule.status.is_none() => BodyUse::Whole,
            Some(_) | None => BodyUse::None,
        }
    }

    fn early_reroute(&self, exchange: &Exchange) -> EarlyReroute {
        let request = &exchange.request;
        match self.find(request.path(), request.query()) {
            Some((rule, url)) if rule.status.is_none() && !rule.to.names_host => {
                EarlyReroute::Now(internal(url, exchange))
            }
            Some(_) | None => EarlyReroute::None,
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let request = &exchange.request;
        let Some((rule, url)) = self.find(request.path(), request.query()) else {
            return Outcome::Declined;
        };
        match rule.status {
            None => Outcome::Reroute(internal(url, exchange)),
            Some(status) => {
                let headers = exchange.headers();
                Outcome::Done(Response::redirect(headers, status, "Redirected", &url))
            }
        }
    }
}

/// Returns the order to run the request again inside the server, with `url` as its target.
fn internal(url: Vec<u8>, exchange: &Exchange) -> Reroute {
    let method = exchange.request.method.clone();
    let mut order = Reroute::to(url, method);
    // The response goes to the client as it is: if it is a redirect, the server does not follow it.
    order.kind = RerouteKind::Reprocess;
    order
}

/// Entry points for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::{PathRegex, Template};

    /// Makes a rule of the expression and the template, if they are valid, and rewrites the path by it.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn rewrite(expression: &str, to: &str, path: &[u8]) {
        let Ok(regex) = PathRegex::new(expression) else {
            return;
        };
        let Ok(template) = Template::parse(to, &regex) else {
            return;
        };
        let Some(captures) = regex.captures(path) else {
            return;
        };
        let url = template.expand(&captures, b"");
        assert!(
            !url.iter().any(|byte| *byte <= b' ' || *byte == 0x7f),
            "{}",
            url.escape_ascii()
        );
        if template.names_host {
            // The scheme and host in the template stay in the URL.
            let end = to.match_indices('/').nth(2);
            if let Some((end, _)) = end {
                assert!(url.starts_with(&to.as_bytes()[..end]));
            }
        } else {
            assert!(url.starts_with(b"/") && !url.starts_with(b"//"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, request};
    use std::rc::Rc;

    const SETUP: Setup = Setup::new(DIRECTIVES, None);

    fn ask(config: &str, target: &str) -> String {
        let mut exchange = request(
            SETUP.read(["", "", config]).unwrap(),
            "GET",
            "default",
            target,
        );
        let site = Rc::clone(&exchange.site);
        match site.path(exchange.route).handlers[0].on_request(&mut exchange) {
            Outcome::Declined => "declined".to_owned(),
            Outcome::Reroute(order) => String::from_utf8(order.url).unwrap(),
            Outcome::Done(response) => {
                let location = response.headers.get(h2o_http::Known::Location).unwrap();
                format!("{} {}", response.status.as_u16(), location.escape_ascii())
            }
            Outcome::Later(_) | Outcome::Next(_) => panic!("a rewrite rule waits for nothing"),
        }
    }

    #[test]
    fn groups_are_filled_in_and_cannot_leave_their_place() {
        let user =
            "rewrite: { match: '^/u/(?<name>[^/]+)/?(.*)$', to: '/user.php?n=${name}&p=$2' }";
        let moved = "rewrite: { match: '^/old/(.*)$', to: '/new/$1', status: 301 }";
        let bare = "rewrite: { match: '^/go(.*)$', to: '$1', status: 302 }";
        let host = "rewrite: { match: '^/x(.*)$', to: 'https://h.example/$1', status: 308 }";
        for (config, target, want) in [
            (user, "/u/ann/7", "/user.php?n=ann&p=7"),
            (user, "/u/a%26b%3Dc", "/user.php?n=a%26b%3Dc&p="),
            (user, "/v/ann", "declined"),
            (moved, "/old/a%20b?c=d", "301 /new/a%20b?c=d"),
            (moved, "/old/a%3Fb%0dc:d", "301 /new/a%3Fb%0Dc:d"),
            (bare, "/go//evil.example/x", "302 /evil.example/x"),
            (bare, "/goevil.example", "302 /evil.example"),
            (host, "/x.evil/", "308 https://h.example/.evil/"),
            (
                "rewrite: [{ match: ^/a, to: /1 }, { match: ^/, to: '/2$$' }]",
                "/b",
                "/2$",
            ),
        ] {
            assert_eq!(ask(config, target), want, "{config} {target}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (rule, want) in [
            (
                "match: '(', to: /",
                "invalid regular expression: unclosed group",
            ),
            ("match: a, to: /$1", "no group `1`"),
            ("match: a, to: '/${x}'", "no group `x`"),
            ("match: a, to: '/${x'", "without `}`"),
            ("match: a, to: /$x", "its name in braces"),
            ("match: a, to: /a$", "which stands for one `$`"),
            ("match: a, to: b", "must begin with"),
            ("match: (a), to: 'http://$1/'", "written in full"),
            ("match: (a), to: '//h$1'", "written in full"),
            ("match: a, to: 'http:/b'", "no host"),
            ("match: a, to: '/ b'", "blanks"),
            ("match: a, to: /, status: 200", "within 300 to 399"),
        ] {
            let got = SETUP.refusal(&format!("rewrite: {{ {rule} }}"));
            assert!(got.contains(want), "{rule}: {got}");
        }
    }
}
