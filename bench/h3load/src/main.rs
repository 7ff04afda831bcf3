//! `h3load`: the client of the HTTP/3 cases. It uses the published `quinn-proto` with its defaults, and treats all servers alike.
//!
//! ```text
//! h3load ADDRESS PORT ask PATH                     one request: status, length of its field section, length of its body
//! h3load ADDRESS PORT requests COUNT CONNECTIONS STREAMS PATH
//! h3load ADDRESS PORT full|resumed COUNT CONNECTIONS PATH   a new connection for each request, some at a time
//! h3load ADDRESS PORT page COUNT PATH FILES KBIT MS KB  pages over a link with this rate, round trip and queue
//! h3load ADDRESS PORT idle CONNECTIONS PATH             one request on each connection, which then stays open
//! ```
//!
//! Except with `ask`, it prints "ready" after its preparations, waits for a line on standard input, does its work, and prints the
//! figures as one line of JSON. It then keeps its connections open until standard input ends.

mod client;
mod http3;
mod link;
mod load;
mod tls;

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use client::Client;
use load::{Load, Plan};

/// The reason why there is no result.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) String);

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Fault(problem)) => {
            eprintln!("h3load: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Fault> {
    let [address, port, mode, rest @ ..] = words else {
        return Err(Fault(
            "usage: see the beginning of bench/h3load/src/main.rs".to_owned(),
        ));
    };
    let address = SocketAddr::new(address.parse()?, port.parse()?);
    let mut load = Load::default();
    match (*mode, rest) {
        ("ask", [path]) => {
            let plan = Plan::requests(1, 1, 1, path);
            let mut client = Client::new(address, plan.resumes(), address.to_string())?;
            load.prepare(&mut client, &plan)?;
            load.go(&mut client, &plan)?;
            let length = load.octets;
            let (status, head) = (load.status, load.head_octets);
            tell(&format!(
                "{{\"status\": {status}, \"head\": {head}, \"body\": {length}}}"
            ))
        }
        ("requests", [count, connections, streams, path]) => {
            let plan = Plan::requests(count.parse()?, connections.parse()?, streams.parse()?, path);
            measure(address, &plan, address)
        }
        ("full" | "resumed", [count, connections, path]) => {
            let plan = Plan::connections(
                count.parse()?,
                connections.parse()?,
                *mode == "resumed",
                path,
            );
            measure(address, &plan, address)
        }
        ("page", [count, path, files, rate, round_trip, queue]) => {
            let plan = Plan::pages(count.parse()?, path, files.parse()?)?;
            let link = link::begin(address, rate.parse()?, round_trip.parse()?, queue.parse()?)?;
            measure(link, &plan, address)
        }
        ("idle", [connections, path]) => {
            let connections = connections.parse()?;
            let plan = Plan::requests(connections, usize::try_from(connections)?, 1, path);
            let mut client = Client::new(address, plan.resumes(), address.to_string())?;
            load.prepare(&mut client, &plan)?;
            load.go(&mut client, &plan)?;
            tell("ready")?;
            client.stay()
        }
        _ => Err(Fault(format!(
            "{mode} is no mode of h3load, or has other arguments"
        ))),
    }
}

/// Carries out the plan against `remote`; requests name `server` as their authority.
fn measure(remote: SocketAddr, plan: &Plan, server: SocketAddr) -> Result<(), Fault> {
    let mut client = Client::new(remote, plan.resumes(), server.to_string())?;
    let mut load = Load::default();
    load.prepare(&mut client, plan)?;
    tell("ready")?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    load.go(&mut client, plan)?;
    tell(&load.told())?;
    client.stay()
}

fn tell(line: &str) -> Result<(), Fault> {
    let mut out = io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
