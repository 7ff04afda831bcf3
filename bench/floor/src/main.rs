//! `h2o-floor`: a program that does the unavoidable work for an answer and nothing else. The processor time that it needs for a
//! request is the least that a small answer costs on this kernel and with this TLS library.
//!
//! It reads every file up to 16 KiB at its start, and encodes the answers for HTTP/1, HTTP/2 and HTTP/3. For a request it only finds
//! the path, looks it up, and sends the encoded answer; all answers to the requests of one `recv` go into one `send`. There is one
//! thread, one edge-triggered epoll set and `TCP_NODELAY`, and nothing is allocated for a request. With TLS, rustls runs the
//! handshake, and the program encrypts records in place with the keys that rustls hands over.
//!
//! HTTP/3 is served at the UDP port with the number of the TLS port: `quinn-proto` does QUIC with its defaults, one socket serves all
//! connections, all datagrams that have arrived are processed before anything is sent, and as many as the kernel takes are sent at
//! once.
//!
//! With `--fastcgi`, it is in front of a FastCGI application instead, and forwards requests as [`fastcgi`] says.
//!
//! It is not a web server. It ignores methods, other fields of a request and most errors, never reads a file again, sends the same
//! date for ever, and has no timeouts. Where it would have to do more, it closes the connection with a message on standard error: for
//! request bodies, CONTINUATION frames, a path in HPACK's dynamic table, a client whose flow-control window is smaller than the
//! answer or whose dynamic table is smaller than the default, and for TLS key updates.

mod connection;
mod fastcgi;
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

use fastcgi::Proxy;
use options::Mode;
use server::Server;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A reason for closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) &'static str);

fn main() -> ExitCode {
    let served = match Mode::parse(std::env::args_os().skip(1)) {
        Ok(Mode::Files(options)) => Server::bind(&options).and_then(Server::run),
        Ok(Mode::Fastcgi { http, application }) => {
            Proxy::bind(http, application).and_then(Proxy::run)
        }
        Err(problem) => Err(problem),
    };
    let Err(problem) = served;
    eprintln!("h2o-floor: {problem}");
    ExitCode::FAILURE
}
