mod config;
mod requests;
mod responses;

use h2o_exchange::{Exchange, Site};
use h2o_http::{Headers, RequestHead};

use super::DIRECTIVES;
use crate::testing::{self, Setup};

const SETUP: Setup = Setup::new(DIRECTIVES, None);

/// Creates a site configuration whose path `path` has these directives.
fn site(path: &'static str, config: &str) -> Site {
    let setup = Setup { path, ..SETUP };
    setup
        .read(["", "", config])
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Creates a request with these fields, whose names are spelt as the client writes them.
fn request(site: Site, line: &str, authority: &str, fields: &str) -> Exchange {
    let (method, target) = line.split_once(' ').unwrap();
    let mut exchange = testing::request(site, method, authority, target);
    push(&mut exchange.request.headers, fields);
    exchange
}

fn push(headers: &mut Headers, fields: &str) {
    for line in fields.lines() {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        let (name, value) = (
            headers.store(name.as_bytes()),
            headers.store(value.as_bytes()),
        );
        headers.push_stored(name, value);
    }
}

/// The fields as text, with the names in the spelling in which they are sent.
fn shown(headers: &Headers) -> String {
    let lines: Vec<_> = headers
        .iter()
        .map(|field| {
            let name = field.spelling.unwrap_or(field.name.as_str().as_bytes());
            format!("{}: {}", name.escape_ascii(), field.value.escape_ascii())
        })
        .collect();
    lines.join("\n")
}

/// The method, target and authority of a request, as text.
fn line(head: &RequestHead) -> String {
    format!(
        "{} {} {}",
        head.method.as_str(),
        head.target().escape_ascii(),
        head.authority().escape_ascii()
    )
}
