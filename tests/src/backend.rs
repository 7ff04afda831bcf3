//! Scripted backends: they record all bytes received, and answer as a test says, correctly or not.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use crate::eventually;

/// How long a backend waits for bytes, or for space to write, before it closes a connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// A complete HTTP/1.1 response (200, 4 bytes) that is valid for a request of any method but HEAD.
pub const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine";

/// A scripted backend, which listens on a port of its own. It stops when dropped.
#[derive(Debug)]
pub struct Backend {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    connections: Mutex<Vec<Connection>>,
}

/// State of one client's connection to the backend.
#[derive(Debug)]
struct Connection {
    /// The socket, for shutting the connection down; `None` if the script asked for a reset.
    stream: Option<TcpStream>,
    received: Vec<u8>,
    /// Whether the client has closed the connection.
    is_ended: bool,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections
            .lock()
            .expect("no thread panics while it holds the lock")
    }
}

impl Backend {
    /// Runs `script` for each connection on its own thread; the connection is closed when the script ends.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(script: impl Fn(&mut Talk) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("the socket is bound").port();
        let shared = Arc::new(Shared::default());
        let script = Arc::new(script);
        let accepting = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let over = shared.is_over.load(Ordering::Acquire);
                    let (false, Ok(stream)) = (over, stream) else {
                        return;
                    };
                    let mut talk = Talk::new(stream, &shared);
                    let script = Arc::clone(&script);
                    std::thread::spawn(move || script(&mut talk));
                }
            })
        };
        Self {
            port,
            shared,
            accepting: Some(accepting),
        }
    }

    /// Starts a backend that answers every request with `answer`, until the client closes the connection.
    #[must_use]
    pub fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |talk| {
            while talk.read_request().is_some() {
                talk.send(&answer);
            }
        })
    }

    /// Starts a backend that answers each request with the text that `answer` returns for it, until the client closes the connection.
    #[must_use]
    pub fn by_request(answer: impl Fn(&Request) -> String + Send + Sync + 'static) -> Self {
        Self::start(move |talk| {
            while let Some(request) = talk.read_request() {
                talk.send(answer(&request));
            }
        })
    }

    /// The port that the backend listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL `http://127.0.0.1:PORT` followed by `path`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Number of connections that the backend has accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections().len()
    }

    /// Number of connections that the client has closed.
    #[must_use]
    pub fn ended(&self) -> usize {
        let connections = self.shared.connections();
        connections.iter().filter(|each| each.is_ended).count()
    }

    /// All bytes that the backend received on the connection of this number; the first connection has number 0.
    #[must_use]
    pub fn received(&self, connection: usize) -> Vec<u8> {
        let connections = self.shared.connections();
        let found = connections.get(connection);
        found.map(|each| each.received.clone()).unwrap_or_default()
    }

    /// All bytes that the backend received on all connections, one connection after the other.
    #[must_use]
    pub fn received_by_all(&self) -> Vec<u8> {
        let connections = self.shared.connections();
        connections
            .iter()
            .flat_map(|each| each.received.clone())
            .collect()
    }

    /// Waits until the bytes received on all connections contain `text`.
    ///
    /// # Panics
    /// If they do not within the time limit of [`eventually`].
    pub fn wait_for(&self, text: &str) {
        eventually(&format!("`{text}` at the backend"), || {
            let received = self.received_by_all();
            let mut windows = received.windows(text.len());
            windows
                .any(|window| window == text.as_bytes())
                .then_some(())
        });
    }

    /// Waits until clients have closed this many of the backend's connections.
    ///
    /// # Panics
    /// If they do not within the time limit of [`eventually`].
    pub fn wait_for_ended(&self, count: usize) {
        eventually(&format!("{count} connections to be closed"), || {
            (self.ended() >= count).then_some(())
        });
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // This connection wakes the thread that waits in accept(), so that the thread sees `is_over` and ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        let connections = self.shared.connections();
        for stream in connections.iter().filter_map(|each| each.stream.as_ref()) {
            // The result is ignored: the script may have closed the connection already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// One connection of a client, as the script of a backend uses it.
#[derive(Debug)]
pub struct Talk {
    /// Number of the connection; the first one that the backend accepts has number 0.
    pub number: usize,
    stream: TcpStream,
    unread: Vec<u8>,
    is_reset: bool,
    shared: Arc<Shared>,
}

/// A request received by a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Request line, fields and the empty line, with their line ends.
    pub head: String,
    /// The body, without framing.
    pub body: Vec<u8>,
}

impl Request {
    /// The method, from the request line.
    #[must_use]
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// The request target, from the request line.
    #[must_use]
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// The value of the first field with this name, in any letter case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Talk {
    fn new(stream: TcpStream, shared: &Arc<Shared>) -> Self {
        stream
            .set_nodelay(true)
            .expect("the socket is a TCP socket");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("the time is not zero");
        let mut connections = shared.connections();
        connections.push(Connection {
            stream: stream.try_clone().ok(),
            received: Vec::new(),
            is_ended: false,
        });
        let talk = Self {
            number: connections.len() - 1,
            stream,
            unread: Vec::new(),
            is_reset: false,
            shared: Arc::clone(shared),
        };
        talk.set_patience(PATIENCE);
        talk
    }

    /// The socket of the connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes. Returns whether all were sent: false if the client has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Reads once from the socket into the buffer. Returns false at the end of input.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        let count = self.stream.read(&mut buffer);
        let mut connections = self.shared.connections();
        let known = &mut connections[self.number];
        match count {
            Ok(count) if count > 0 => {
                known.received.extend_from_slice(&buffer[..count]);
                self.unread.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            _ => {
                known.is_ended = true;
                false
            }
        }
    }

    /// Reads up to and including `end`; `None` if the connection ends first.
    pub fn read_until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            let mut windows = self.unread.windows(end.len());
            if let Some(at) = windows.position(|window| window == end) {
                return Some(self.unread.drain(..at + end.len()).collect());
            }
            if !self.receive() {
                return None;
            }
        }
    }

    /// Reads the next `count` bytes; `None` if the connection ends first.
    pub fn read_exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.unread.len() < count {
            if !self.receive() {
                return None;
            }
        }
        Some(self.unread.drain(..count).collect())
    }

    /// Reads the next request's head; `None` if the connection ends first.
    pub fn read_head(&mut self) -> Option<Request> {
        let head = self.read_until(b"\r\n\r\n")?;
        Some(Request {
            head: String::from_utf8_lossy(&head).into_owned(),
            body: Vec::new(),
        })
    }

    /// Reads the next request; `None` if the connection ends first.
    pub fn read_request(&mut self) -> Option<Request> {
        let mut request = self.read_head()?;
        if request.field("transfer-encoding") == Some("chunked") {
            request.body = self.read_chunks()?;
        } else if let Some(length) = request.field("content-length") {
            request.body = self.read_exactly(length.parse().ok()?)?;
        }
        Some(request)
    }

    /// Reads a chunked body; `None` if the connection ends first.
    pub fn read_chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.read_chunk()? {
            body.extend(chunk);
        }
        Some(body)
    }

    /// Reads the next chunk of a chunked body. The inner `None` means the last chunk; the outer `None` that the connection ended first.
    fn read_chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let line = self.read_until(b"\r\n")?;
        let size = usize::from_str_radix(String::from_utf8_lossy(&line).trim(), 16).ok()?;
        let chunk = self.read_exactly(size)?;
        let end = self.read_exactly(2)?;
        assert_eq!(end, b"\r\n", "a chunk ends in CR LF");
        Some((size > 0).then_some(chunk))
    }

    /// Returns the buffered bytes or, if there are none, the next ones from the socket; `None` at the end of input.
    pub fn read_some(&mut self) -> Option<Vec<u8>> {
        let has_some = !self.unread.is_empty() || self.receive();
        has_some.then(|| std::mem::take(&mut self.unread))
    }

    /// Whether more bytes arrive within `limit`.
    ///
    /// # Panics
    /// If `limit` is zero.
    pub fn has_more(&mut self, limit: Duration) -> bool {
        self.set_patience(limit);
        let has_more = !self.unread.is_empty() || self.receive();
        self.set_patience(PATIENCE);
        has_more
    }

    fn set_patience(&self, limit: Duration) {
        let set = self.stream.set_read_timeout(Some(limit));
        set.expect("the time is not zero");
    }

    /// Waits until the client closes the connection.
    pub fn read_to_end(&mut self) {
        while self.receive() {}
    }

    /// Marks the connection: when the script ends, it is closed by a TCP reset.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn reset(&mut self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO))
            .expect("the descriptor is a socket");
        // The kernel sends the reset when the last descriptor of the socket is closed; this drops the second one.
        self.shared.connections()[self.number].stream = None;
        self.is_reset = true;
    }
}

impl Drop for Talk {
    // Drop also runs when a script panics, so that the client sees the connection end and does not wait.
    fn drop(&mut self) {
        if !self.is_reset {
            // The result is ignored: the client may have reset the connection.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

/// A port that refuses connections while this value lives: bound, but not listening.
#[derive(Debug)]
pub struct ClosedPort {
    port: u16,
    _socket: OwnedFd,
}

impl ClosedPort {
    /// Picks a free port.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "the function binds a port, which no default should"
    )]
    pub fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .expect("the process may open more descriptors");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = getsockname(&socket).expect("the socket is bound");
        let address =
            SocketAddrV4::try_from(address).expect("the socket is bound to an IPv4 address");
        Self {
            port: address.port(),
            _socket: socket,
        }
    }

    /// The URL `http://127.0.0.1:PORT/` of the port.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}
