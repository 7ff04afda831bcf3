//! `h2o-floor`: a program that does the unavoidable work of an answer and nothing else, so that the processor time it
//! needs for a request is what a small answer costs at the least on this kernel and with this TLS library.
//!
//! Every file up to 16 KiB is read at the start, and its answers are made ready, byte for byte: one for HTTP/1, one for
//! HTTP/2. A request is received, its path is found and looked up, and the ready answer is sent; all answers to what one
//! `recv` brought go into one `send`. There is one thread, one edge-triggered epoll set, `TCP_NODELAY`, and nothing is
//! allocated for a request. With TLS rustls does the handshake, and records are protected in place with the keys it
//! hands over.
//!
//! HTTP/3 is asked at the UDP port of the number that TLS has: `quinn-proto` does QUIC with its defaults, one socket serves all
//! connections, all datagrams that have come are taken in before anything is sent, and as many as the kernel takes are sent at once.
//!
//! It is not a web server. Methods, the other fields of a request and most faults are not looked at, files are never
//! read again, dates stand still, and nothing ever times out. What it cannot do right it does not do: it closes the
//! connection with a message on standard error. That goes for request bodies, for CONTINUATION frames, for a path in
//! HPACK's dynamic table, for a client whose flow-control window is smaller than the answer, for one that asks for a
//! smaller dynamic table than the default, and for TLS key updates.

mod connection;
mod http1;
mod http2;
mod http3;
mod options;
mod server;
mod sink;
mod site;
#[cfg(test)]
mod tests;
mod tls;

use std::process::ExitCode;

use options::Options;
use server::Server;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) &'static str);

fn main() -> ExitCode {
    let served = Options::parse(std::env::args_os().skip(1))
        .and_then(|options| Server::bind(&options))
        .and_then(Server::run);
    let Err(problem) = served;
    eprintln!("h2o-floor: {problem}");
    ExitCode::FAILURE
}
