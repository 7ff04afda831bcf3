//! Fuzz targets as plain functions: each takes any bytes and panics if an invariant does not hold.
//!
//! They run in two ways: under libFuzzer (`fuzz_targets/`, see README.md), and under `cargo test`, which
//! replays the corpora and some thousands of mutations of them (`tests/replay.rs`).

mod acl;
mod additions;
mod backend_url;
mod capsules;
mod certificate;
mod chunked_body;
mod client_hello;
mod conditional;
mod configuration;
mod fastcgi;
mod forwarded_fields;
mod hpack;
mod http2_client;
mod http2_messages;
mod http2_output;
mod http2_server;
mod http3_client;
mod http3_server;
mod path;
mod pattern_engines;
mod proxied;
mod proxy_requests;
mod proxy_responses;
mod qpack;
mod quic;
mod range;
mod request_head;
mod response_head;
mod ruby;
mod script_responses;
mod server;
mod strict_http1;
mod ticket_store;
mod tls_client;

pub use acl::acl;
pub use additions::{htpasswd, rewrite};
pub use backend_url::backend_url;
pub use capsules::capsules;
pub use certificate::{OCSP_CHAIN, OCSP_TIME, certificate, ocsp_response};
pub use chunked_body::chunked_body;
pub use client_hello::client_hello;
pub use conditional::conditional;
pub use configuration::configuration;
pub use fastcgi::{fastcgi_head, fastcgi_records};
pub use forwarded_fields::forwarded_fields;
pub use hpack::{hpack_decode, hpack_round_trip};
pub use http2_client::http2_client;
pub use http2_server::http2_server;
pub use http3_client::http3_client;
pub use http3_server::http3_server;
pub use path::path;
pub use pattern_engines::ruby_pattern_engines;
pub use proxy_requests::proxy_requests;
pub use proxy_responses::proxy_responses;
pub use qpack::{qpack_decode, qpack_round_trip};
pub use quic::{quic_datagrams, quic_ids_and_tokens};
pub use range::range;
pub use request_head::request_head;
pub use response_head::response_head;
pub use ruby::{ruby_json, ruby_patterns, ruby_values};
pub use script_responses::script_responses;
pub use ticket_store::{stored_session, ticket_store};
pub use tls_client::{tls_handshake, tls_records};

/// A fuzz target: panics if the input breaks an invariant.
pub type Target = fn(&[u8]);

/// All targets by name. A new target needs a line here, a function in `src/`, a file in `fuzz_targets/` with its `[[bin]]` in Cargo.toml,
/// and some seeds in `corpus/NAME/`; the replay test names what is missing.
pub const TARGETS: &[(&str, Target)] = &[
    ("acl", acl),
    ("backend_url", backend_url),
    ("capsules", capsules),
    ("certificate", certificate),
    ("chunked_body", chunked_body),
    ("client_hello", client_hello),
    ("conditional", conditional),
    ("configuration", configuration),
    ("fastcgi_head", fastcgi_head),
    ("fastcgi_records", fastcgi_records),
    ("forwarded_fields", forwarded_fields),
    ("hpack_decode", hpack_decode),
    ("hpack_round_trip", hpack_round_trip),
    ("htpasswd", htpasswd),
    ("http2_client", http2_client),
    ("http2_server", http2_server),
    ("http3_client", http3_client),
    ("http3_server", http3_server),
    ("ocsp_response", ocsp_response),
    ("path", path),
    ("proxy_requests", proxy_requests),
    ("proxy_responses", proxy_responses),
    ("qpack_decode", qpack_decode),
    ("qpack_round_trip", qpack_round_trip),
    ("quic_datagrams", quic_datagrams),
    ("quic_ids_and_tokens", quic_ids_and_tokens),
    ("range", range),
    ("request_head", request_head),
    ("response_head", response_head),
    ("rewrite", rewrite),
    ("ruby_json", ruby_json),
    ("ruby_pattern_engines", ruby_pattern_engines),
    ("ruby_patterns", ruby_patterns),
    ("ruby_values", ruby_values),
    ("script_responses", script_responses),
    ("stored_session", stored_session),
    ("ticket_store", ticket_store),
    ("tls_handshake", tls_handshake),
    ("tls_records", tls_records),
];

/// Ways to cut an input into two or more pieces: for each way the positions of the cuts, in order. They depend on the bytes of the input,
/// so that a fuzzer can search for cuts that fail.
fn cuts(input: &[u8]) -> Vec<Vec<usize>> {
    let len = input.len();
    let mixed = input.iter().fold(len, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let within = |n: usize| n % (len + 1);
    let mut two = [within(mixed), within(mixed / 7)];
    two.sort_unstable();
    let mut ways = vec![vec![within(mixed / 3)], two.to_vec()];
    // One way cuts the input into single bytes, unless it is too long for that.
    if len <= 2048 {
        ways.push((1..len).collect());
    }
    ways
}

/// The pieces of `input` between the cuts.
fn pieces<'a>(input: &'a [u8], cuts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([input.len()]);
    starts.zip(ends).map(|(start, end)| &input[start..end])
}
