//! Tests that talk with the engine in either role, on a virtual clock.

#[path = "../kit/mod.rs"]
mod kit;

mod client;
mod limits;
mod properties;
mod requests;
mod responses;

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

fn post(fields: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n\r\n")
}
