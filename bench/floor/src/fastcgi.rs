//! A proxy in front of a FastCGI application that does the least for a request: it receives the request, sends one that was encoded at
//! its start, receives the response, and sends the response's content behind a head that was encoded at its start. It has an epoll set
//! and one thread, and each client has its connection to the application. It is not a proxy: it looks at no path and passes no field on.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use memchr::memmem;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};
use slab::Slab;

use crate::Fault;
use crate::server::listen;

const BATCH: usize = 512;
const BUFFER: usize = 64 * 1024;
const HEADER: usize = 8;

/// The token of the listener. A connection of a client has an even token, that to the application for it the odd one behind.
const LISTENER: u64 = u64::MAX;

const END_REQUEST: u8 = 3;
const STDOUT: u8 = 6;

/// The parameters that servers send to every application, with values of the usual length.
const PARAMETERS: [(&str, &str); 19] = [
    ("QUERY_STRING", ""),
    ("REQUEST_METHOD", "GET"),
    ("CONTENT_TYPE", ""),
    ("CONTENT_LENGTH", ""),
    ("SCRIPT_NAME", "/1k.txt"),
    ("REQUEST_URI", "/1k.txt"),
    ("DOCUMENT_URI", "/1k.txt"),
    ("DOCUMENT_ROOT", "/usr/share/site"),
    ("SERVER_PROTOCOL", "HTTP/1.1"),
    ("REQUEST_SCHEME", "http"),
    ("GATEWAY_INTERFACE", "CGI/1.1"),
    ("SERVER_SOFTWARE", "floor"),
    ("REMOTE_ADDR", "127.0.0.1"),
    ("REMOTE_PORT", "40000"),
    ("SERVER_ADDR", "127.0.0.1"),
    ("SERVER_PORT", "8080"),
    ("SERVER_NAME", "localhost"),
    ("HTTP_HOST", "127.0.0.1:8080"),
    ("HTTP_USER_AGENT", "h2load nghttp2/1.52.0"),
];

struct Pair {
    client: OwnedFd,
    application: TcpStream,
    /// Whether the client wants no more responses.
    is_last: bool,
}

pub(crate) struct Proxy {
    epoll: OwnedFd,
    listener: TcpListener,
    application: SocketAddr,
    pairs: Slab<Pair>,
    close: memmem::Finder<'static>,
    request: Vec<u8>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Proxy {
    /// Listens on a port of 127.0.0.1, in front of the application on another one.
    pub(crate) fn bind(port: u16, application: u16) -> Result<Self, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(|error| format!("epoll: {error}"))?;
        let listener =
            listen(port).map_err(|error| format!("cannot listen on port {port}: {error}"))?;
        epoll::add(
            &epoll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )
        .map_err(|error| format!("epoll: {error}"))?;
        Ok(Self {
            epoll,
            listener,
            application: (Ipv4Addr::LOCALHOST, application).into(),
            pairs: Slab::new(),
            close: memmem::Finder::new(b"onnection: close\r\n"),
            request: request(),
            input: Vec::with_capacity(BUFFER),
            output: Vec::with_capacity(BUFFER),
        })
    }

    /// The address of the listener.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("the listener is bound")
    }

    /// Serves until a system call fails in a way that concerns all connections.
    pub(crate) fn run(mut self) -> Result<Infallible, String> {
        let mut events = Vec::with_capacity(BATCH);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(format!("epoll: {error}")),
            }
            for event in &events {
                let token = event.data.u64();
                if token == LISTENER {
                    self.accept()?;
                    continue;
                }
                let key = usize::try_from(token / 2).unwrap_or(usize::MAX);
                let turned = match token % 2 {
                    0 => self.on_request(key),
                    _ => self.on_response(key),
                };
                match turned {
                    Ok(true) => {}
                    Ok(false) => drop(self.pairs.try_remove(key)),
                    Err(Fault(problem)) => {
                        eprintln!("h2o-floor: a connection is closed: {problem}");
                        self.pairs.try_remove(key);
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> Result<(), String> {
        let Ok(client) = accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
        else {
            return Ok(());
        };
        let application = TcpStream::connect(self.application)
            .and_then(|application| {
                application.set_nodelay(true)?;
                application.set_nonblocking(true)?;
                Ok(application)
            })
            .map_err(|error| format!("cannot connect to the application: {error}"))?;
        let nodelay = sockopt::set_tcp_nodelay(&client, true);
        nodelay.map_err(|error| format!("TCP_NODELAY: {error}"))?;
        let entry = self.pairs.vacant_entry();
        let token = entry.key() as u64 * 2;
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &client, EventData::new_u64(token), flags)
            .and_then(|()| {
                let token = EventData::new_u64(token + 1);
                epoll::add(&self.epoll, &application, token, flags)
            })
            .map_err(|error| format!("epoll: {error}"))?;
        entry.insert(Pair {
            client,
            application,
            is_last: false,
        });
        Ok(())
    }

    /// Passes a request on. Returns false if the client has closed its connection.
    fn on_request(&mut self, key: usize) -> Result<bool, Fault> {
        let Some(pair) = self.pairs.get_mut(key) else {
            return Ok(true);
        };
        if !receive(&pair.client, &mut self.input)? {
            return Ok(false);
        }
        if self.input.is_empty() {
            return Ok(true);
        }
        if memmem::find(&self.input, b"\r\n\r\n") != Some(self.input.len() - 4) {
            return Err(Fault(
                "a request has content, comes in pieces, or with another one",
            ));
        }
        pair.is_last = self.close.find(&self.input).is_some();
        send_all(&pair.application, &self.request)?;
        Ok(true)
    }

    /// Passes a response on. Returns false if it was the last one, or the application has closed its connection.
    fn on_response(&mut self, key: usize) -> Result<bool, Fault> {
        let Some(pair) = self.pairs.get(key) else {
            return Ok(true);
        };
        if !receive(&pair.application, &mut self.input)? {
            return Ok(false);
        }
        if self.input.is_empty() {
            return Ok(true);
        }
        let content = content(&self.input)?;
        self.output.clear();
        self.output.extend_from_slice(
            b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: floor\r\n\
              Connection: keep-alive\r\nContent-Type: text/plain\r\nContent-Length: ",
        );
        self.output
            .extend_from_slice(content.len().to_string().as_bytes());
        self.output.extend_from_slice(b"\r\n\r\n");
        self.output.extend_from_slice(content);
        send_all(&pair.client, &self.output)?;
        Ok(!pair.is_last)
    }
}

/// Receives once. Returns false at the end of the input.
fn receive(socket: &impl rustix::fd::AsFd, input: &mut Vec<u8>) -> Result<bool, Fault> {
    input.clear();
    match recv(socket, spare_capacity(input), RecvFlags::empty()) {
        Ok((0, _)) => Ok(false),
        Ok(_) | Err(Errno::WOULDBLOCK) => Ok(true),
        Err(_) => Err(Fault("a connection cannot be read")),
    }
}

fn send_all(socket: &impl rustix::fd::AsFd, bytes: &[u8]) -> Result<(), Fault> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        _ => Err(Fault("a connection does not take a message as a whole")),
    }
}

/// The content of a response that has come as a whole: one record with a head and the content, an empty one, and the end.
fn content(input: &[u8]) -> Result<&[u8], Fault> {
    const UNLIKE: Fault = Fault("the response is not like those of the application of the bench");
    let (header, rest) = input.split_at_checked(HEADER).ok_or(UNLIKE)?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (output, rest) = rest.split_at_checked(len).ok_or(UNLIKE)?;
    let end = rest.get(HEADER + 1);
    if header[1] != STDOUT || end != Some(&END_REQUEST) || rest.len() != 3 * HEADER {
        return Err(UNLIKE);
    }
    let head = memmem::find(output, b"\r\n\r\n").ok_or(UNLIKE)?;
    Ok(&output[head + 4..])
}

/// A request that asks the application to keep the connection.
fn request() -> Vec<u8> {
    const BEGIN_REQUEST: u8 = 1;
    const PARAMS: u8 = 4;
    const STDIN: u8 = 5;
    let mut parameters = Vec::new();
    for (name, value) in PARAMETERS {
        let lens = [name, value].map(|text| u8::try_from(text.len()).unwrap_or(u8::MAX));
        parameters.extend_from_slice(&lens);
        parameters.extend_from_slice(name.as_bytes());
        parameters.extend_from_slice(value.as_bytes());
    }
    let mut out = Vec::new();
    let mut record = |kind, content: &[u8]| {
        let [high, low] = u16::try_from(content.len())
            .unwrap_or(u16::MAX)
            .to_be_bytes();
        out.extend_from_slice(&[1, kind, 0, 1, high, low, 0, 0]);
        out.extend_from_slice(content);
    };
    record(BEGIN_REQUEST, &[0, 1, 1, 0, 0, 0, 0, 0]);
    record(PARAMS, &parameters);
    record(PARAMS, b"");
    record(STDIN, b"");
    out
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// An application that answers the first request with the text "content".
    fn application() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = vec![0; request().len()];
            socket.read_exact(&mut asked).unwrap();
            assert_eq!(asked, request());
            let head = b"Content-Type: text/plain\r\n\r\ncontent";
            let mut answer = vec![1, STDOUT, 0, 1, 0, u8::try_from(head.len()).unwrap(), 0, 0];
            answer.extend_from_slice(head);
            answer.extend_from_slice(&[1, STDOUT, 0, 1, 0, 0, 0, 0]);
            answer.extend_from_slice(&[1, END_REQUEST, 0, 1, 0, 8, 0, 0]);
            answer.extend_from_slice(&[0; 8]);
            socket.write_all(&answer).unwrap();
            let _ = socket.read(&mut [0]);
        });
        port
    }

    #[test]
    fn a_request_is_passed_on_and_its_answer_comes_back() {
        let proxy = Proxy::bind(0, application()).unwrap();
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        std::thread::spawn(|| proxy.run());
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.ends_with("Content-Length: 7\r\n\r\ncontent"),
            "{answer}"
        );
    }
}
