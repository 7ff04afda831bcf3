//! Conversations over HTTP/3 by a client made with the library quiche. Arguments: `CONVERSATION PORT [ARGUMENT]`.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quiche::h3::{self, Header, NameValue as _};
use quiche::{ConnectionId, PathEvent, RecvInfo, Shutdown};
use sha2::{Digest as _, Sha256};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the largest UDP payload that the client sends and accepts.
const MAX_DATAGRAM: usize = 1350;
/// Length in bytes of the connection ids that the client chooses.
const ID_LEN: usize = 16;
/// A reserved QUIC version, which makes every server send Version Negotiation (RFC 9000 section 15).
const RESERVED_VERSION: u32 = 0x1a2a_3a4a;
const REQUEST_CANCELLED: u64 = 0x10c;

/// Returns from the function with the message as its error, unless the condition holds.
macro_rules! expect {
    ($condition:expr, $($found:tt)+) => {
        if !$condition {
            return Err(format!($($found)+).into());
        }
    };
}

/// A logger that counts the key updates which quiche reports in its log.
struct KeyUpdates;

static KEY_UPDATES: AtomicUsize = AtomicUsize::new(0);

impl log::Log for KeyUpdates {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().ends_with("key update verified") {
            KEY_UPDATES.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn flush(&self) {}
}

/// The response to a request.
#[derive(Default)]
struct Answer {
    fields: Vec<Header>,
    trailers: Vec<Header>,
    content: Vec<u8>,
    has_ended: bool,
    reset: Option<u64>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<String> {
        value_of(&self.fields, name)
    }
}

fn value_of(fields: &[Header], name: &str) -> Option<String> {
    let mut found = fields
        .iter()
        .filter(|field| field.name() == name.as_bytes());
    found
        .next()
        .map(|field| String::from_utf8_lossy(field.value()).into_owned())
}

/// Settings of a connection.
struct Options {
    version: u32,
    protocols: Vec<Vec<u8>>,
    session: Option<Vec<u8>>,
    has_early_data: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: quiche::PROTOCOL_VERSION,
            protocols: vec![b"h3".to_vec()],
            session: None,
            has_early_data: false,
        }
    }
}

struct Client {
    /// The client's sockets: a second one after it has migrated.
    sockets: Vec<UdpSocket>,
    server: SocketAddr,
    connection: quiche::Connection,
    h3: Option<h3::Connection>,
    answers: HashMap<u64, Answer>,
    /// By stream: the rest of a request's content, which waits for flow control; the stream ends after it.
    waiting: HashMap<u64, Vec<u8>>,
    validated: Option<SocketAddr>,
    /// Whether the client issues as many connection ids as the server accepts, and new ones for those retired: migration needs them.
    gives_ids: bool,
    buffer: Vec<u8>,
}

impl Client {
    fn start(options: &Options) -> Result<Self, Box<dyn std::error::Error>> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port().parse()?));
        let socket = new_socket()?;
        let mut config = quiche::Config::new(options.version)?;
        config.verify_peer(false);
        let protocols: Vec<&[u8]> = options.protocols.iter().map(Vec::as_slice).collect();
        config.set_application_protos(&protocols)?;
        config.set_max_idle_timeout(60_000);
        config.set_max_recv_udp_payload_size(MAX_DATAGRAM);
        config.set_max_send_udp_payload_size(MAX_DATAGRAM);
        config.set_initial_max_data(10_000_000);
        config.set_initial_max_stream_data_bidi_local(4_000_000);
        config.set_initial_max_stream_data_bidi_remote(1_000_000);
        config.set_initial_max_stream_data_uni(1_000_000);
        config.set_initial_max_streams_uni(10);
        config.set_active_connection_id_limit(4);
        if options.has_early_data {
            config.enable_early_data();
        }
        let mut connection = quiche::connect(
            Some("localhost"),
            &new_id(),
            socket.local_addr()?,
            server,
            &mut config,
        )?;
        if let Some(session) = &options.session {
            connection.set_session(session)?;
        }
        Ok(Self {
            sockets: vec![socket],
            server,
            connection,
            h3: None,
            answers: HashMap::new(),
            waiting: HashMap::new(),
            validated: None,
            gives_ids: false,
            buffer: vec![0; 65_536],
        })
    }

    /// Opens a connection; returns when requests can be sent, in early data if the session allows it.
    fn connect(options: &Options) -> Result<Self, Box<dyn std::error::Error>> {
        let mut client = Self::start(options)?;
        client.until(|client| {
            client.connection.is_established() || client.connection.is_in_early_data()
        })?;
        let mut config = h3::Config::new()?;
        config.enable_extended_connect(true);
        let h3 = h3::Connection::with_transport(&mut client.connection, &config)?;
        client.h3 = Some(h3);
        Ok(client)
    }

    fn until(&mut self, is_there: impl Fn(&Self) -> bool) -> Outcome {
        let begin = Instant::now();
        while !is_there(self) {
            expect!(
                !self.connection.is_closed(),
                "closed: {:?} {:?}",
                self.connection.peer_error(),
                self.connection.local_error()
            );
            expect!(
                begin.elapsed() < PATIENCE,
                "the server sends no more packets"
            );
            self.turn()?;
        }
        self.flush()
    }

    /// Sends and receives until the connection is closed.
    fn until_closed(&mut self) -> Outcome {
        let begin = Instant::now();
        while !self.connection.is_closed() {
            expect!(begin.elapsed() < PATIENCE, "the connection does not close");
            self.turn()?;
        }
        Ok(())
    }

    /// Sends what is ready to be sent, waits for datagrams or a timer, and handles what has come.
    fn turn(&mut self) -> Outcome {
        self.flush()?;
        let mut has_come = false;
        let wait = self.connection.timeout().unwrap_or(Duration::from_secs(1));
        // With two sockets the client waits only briefly for datagrams on the newer one, because it does not watch the older one
        // meanwhile.
        let limit = if self.sockets.len() > 1 { 5 } else { 100 };
        let wait = wait.clamp(Duration::from_millis(1), Duration::from_millis(limit));
        for index in 0..self.sockets.len() {
            let is_last = index + 1 == self.sockets.len();
            self.sockets[index].set_nonblocking(!is_last)?;
            self.sockets[index].set_read_timeout(Some(wait))?;
            while let Ok((len, from)) = self.sockets[index].recv_from(&mut self.buffer) {
                has_come = true;
                let to = self.sockets[index].local_addr()?;
                let datagram = &mut self.buffer[..len];
                // Packets to a connection id that the server has retired, such as late ones on the old path of a migration, are dropped:
                // quiche would close the connection for them.
                let header = quiche::Header::from_slice(datagram, ID_LEN);
                let is_known = header.is_ok_and(|header| {
                    let mut ids = self.connection.source_ids();
                    ids.any(|id| *id == header.dcid)
                });
                if is_known {
                    // A packet that cannot be decrypted is not an error.
                    let _ = self.connection.recv(datagram, RecvInfo { from, to });
                }
                self.sockets[index].set_nonblocking(true)?;
            }
        }
        if !has_come {
            self.connection.on_timeout();
        }
        while self.gives_ids && self.connection.scids_left() > 0 {
            self.connection.new_scid(&new_id(), reset_token(), true)?;
        }
        while let Some(event) = self.connection.path_event_next() {
            if let PathEvent::Validated(local, _) = event {
                self.validated = Some(local);
            }
        }
        self.take_in()
    }

    fn flush(&mut self) -> Outcome {
        self.write_waiting()?;
        let mut out = [0; MAX_DATAGRAM];
        loop {
            match self.connection.send(&mut out) {
                Ok((len, info)) => {
                    for socket in &self.sockets {
                        if socket.local_addr()? == info.from {
                            socket.set_nonblocking(false)?;
                            socket.send_to(&out[..len], info.to)?;
                        }
                    }
                }
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_waiting(&mut self) -> Outcome {
        let Some(h3) = &mut self.h3 else {
            return Ok(());
        };
        for (&stream, content) in &mut self.waiting {
            match h3.send_body(&mut self.connection, stream, content, true) {
                Ok(len) => drop(content.drain(..len)),
                Err(h3::Error::Done) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.waiting.retain(|_, content| !content.is_empty());
        Ok(())
    }

    fn take_in(&mut self) -> Outcome {
        let Some(h3) = &mut self.h3 else {
            return Ok(());
        };
        loop {
            let (stream, event) = match h3.poll(&mut self.connection) {
                Ok(found) => found,
                Err(h3::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let answer = self.answers.entry(stream).or_default();
            match event {
                h3::Event::Headers { list, .. } => {
                    let is_head = value_of(&list, ":status").is_some();
                    *(if is_head {
                        &mut answer.fields
                    } else {
                        &mut answer.trailers
                    }) = list;
                }
                h3::Event::Data => {
                    while let Ok(len) = h3.recv_body(&mut self.connection, stream, &mut self.buffer)
                    {
                        answer.content.extend_from_slice(&self.buffer[..len]);
                    }
                }
                h3::Event::Finished => answer.has_ended = true,
                h3::Event::Reset(code) => answer.reset = Some(code),
                h3::Event::GoAway | h3::Event::PriorityUpdate => {}
            }
        }
    }

    fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<Header> {
        let authority = format!("localhost:{}", port());
        let pseudo = [
            (":method", method),
            (":scheme", "https"),
            (":authority", &authority),
            (":path", path),
        ];
        let all = pseudo.iter().chain(fields);
        all.map(|(name, value)| Header::new(name.as_bytes(), value.as_bytes()))
            .collect()
    }

    /// Sends the head of a request as soon as stream limit and flow control allow it; returns the number of its stream.
    fn send_head(
        &mut self,
        head: &[Header],
        is_all: bool,
    ) -> Result<u64, Box<dyn std::error::Error>> {
        let begin = Instant::now();
        loop {
            self.until(|client| client.connection.peer_streams_left_bidi() > 0)?;
            let (h3, connection) = self.h3()?;
            match h3.send_request(connection, head, is_all) {
                Err(h3::Error::StreamBlocked) if begin.elapsed() < PATIENCE => self.turn()?,
                found => {
                    let stream = found?;
                    self.answers.insert(stream, Answer::default());
                    return Ok(stream);
                }
            }
        }
    }

    fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<u64, Box<dyn std::error::Error>> {
        self.send_head(&Self::head(method, path, fields), true)
    }

    fn h3(&mut self) -> Result<(&mut h3::Connection, &mut quiche::Connection), &'static str> {
        let h3 = self.h3.as_mut().ok_or("there is no HTTP/3 yet")?;
        Ok((h3, &mut self.connection))
    }

    fn answer(&mut self, stream: u64) -> Result<Answer, Box<dyn std::error::Error>> {
        self.until(|client| {
            let answer = client.answers.get(&stream);
            answer.is_none_or(|answer| answer.has_ended || answer.reset.is_some())
        })?;
        Ok(self.answers.remove(&stream).ok_or("no such stream")?)
    }

    fn expect(
        &mut self,
        stream: u64,
        status: u16,
        content: &[u8],
    ) -> Result<Answer, Box<dyn std::error::Error>> {
        let answer = self.answer(stream)?;
        let found = answer.field(":status");
        expect!(
            answer.reset.is_none()
                && found == Some(status.to_string())
                && answer.content == content,
            "status {found:?}, {} bytes of {}, reset {:?}",
            answer.content.len(),
            content.len(),
            answer.reset
        );
        Ok(answer)
    }

    fn get(&mut self, path: &str, content: &[u8]) -> Outcome {
        let stream = self.ask("GET", path, &[])?;
        self.expect(stream, 200, content).map(drop)
    }

    fn hello(&mut self) -> Outcome {
        self.get("/hello.txt", HELLO)
    }

    fn large(&mut self) -> Outcome {
        self.get("/large", &large())
    }

    fn close(mut self) -> Outcome {
        self.connection.close(true, 0x100, b"")?;
        self.flush()
    }
}

fn port() -> String {
    std::env::args().nth(2).unwrap_or_default()
}

fn argument() -> String {
    std::env::args().nth(3).unwrap_or_default()
}

fn new_socket() -> std::io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
}

/// A connection id that this process has not used before.
fn new_id() -> ConnectionId<'static> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let sum = Sha256::digest(format!(
        "{} {number} {:?}",
        std::process::id(),
        Instant::now()
    ));
    ConnectionId::from_vec(sum[..ID_LEN].to_vec())
}

/// A stateless reset token that no packet has as its last 16 bytes by chance.
fn reset_token() -> u128 {
    let sum = Sha256::digest(new_id());
    u128::from_be_bytes(std::array::from_fn(|at| sum[at]))
}

const HELLO: &[u8] = b"hello, world";

/// The content of the file `large`.
fn large() -> Vec<u8> {
    (0..50_000)
        .flat_map(|n| format!("{n:07x} ").into_bytes())
        .collect()
}

/// Client and server agree on HTTP/3, exchange SETTINGS, and end without an error.
fn handshake() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    client.until(|client| {
        client
            .h3
            .as_ref()
            .is_some_and(|h3| h3.peer_settings_raw().is_some())
    })?;
    let agreed = client.connection.application_proto();
    expect!(agreed == b"h3", "protocol {}", agreed.escape_ascii());
    client.close()
}

/// Fetches a small and a large file.
fn get() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    client.hello()?;
    client.large()?;
    client.close()
}

/// Fetches files over a path that loses, reorders or duplicates packets, or on which a NAT gives the client a new port.
fn download() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    for _ in 0..3 {
        client.ask("GET", "/large", &[])?;
    }
    for stream in [0, 4, 8] {
        client.expect(stream, 200, &large())?;
    }
    client.hello()?;
    client.close()
}

/// The ClientHello is too long for one datagram.
fn long_hello() -> Outcome {
    let mut options = Options::default();
    let fillers = (0..70).map(|n| format!("no-such-protocol-{n:03}").into_bytes());
    options.protocols.extend(fillers);
    let mut client = Client::connect(&options)?;
    client.hello()?;
    client.close()
}

/// The client begins with a QUIC version that the server does not support; both continue with version 1.
fn versions() -> Outcome {
    let version = RESERVED_VERSION;
    let mut client = Client::connect(&Options {
        version,
        ..Options::default()
    })?;
    client.hello()?;
    client.close()
}

/// Opens a connection to get a TLS session that can be resumed.
fn session() -> Result<Option<Vec<u8>>, Box<dyn std::error::Error>> {
    let mut client = Client::connect(&Options::default())?;
    client.hello()?;
    client.until(|client| client.connection.session().is_some())?;
    let session = client.connection.session().map(<[u8]>::to_vec);
    client.close()?;
    Ok(session)
}

/// A second connection resumes the session of the first; requests are sent after the handshake.
fn late_resumption() -> Outcome {
    let session = session()?;
    let mut client = Client::connect(&Options {
        session,
        ..Options::default()
    })?;
    expect!(
        client.connection.is_resumed(),
        "the session was not resumed"
    );
    client.hello()?;
    client.close()
}

/// A request in the early data of a resumed connection reaches the backend.
fn early_data() -> Outcome {
    let session = session()?;
    let options = Options {
        session,
        has_early_data: true,
        ..Options::default()
    };
    let mut client = Client::start(&options)?;
    client.flush()?;
    expect!(
        client.connection.is_in_early_data(),
        "no early data can be sent"
    );
    let h3 = h3::Connection::with_transport(&mut client.connection, &h3::Config::new()?)?;
    client.h3 = Some(h3);
    client.get("/backend/echo", b"")?;
    expect!(
        client.connection.is_resumed(),
        "the session was not resumed"
    );
    client.large()?;
    client.close()
}

/// The connection survives a key update that the server begins.
fn key_update() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    // The server begins a key update after a random number of packets below 1,000.
    for _ in 0..10 {
        client.large()?;
    }
    expect!(
        KEY_UPDATES.load(Ordering::Relaxed) > 0,
        "no key update took place"
    );
    client.hello()?;
    client.close()
}

/// The connection moves to another socket of the client, once the client has probed the new path.
fn migration() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    client.hello()?;
    client.gives_ids = true;
    let stream = client.ask("GET", "/large", &[])?;
    client.until(|client| !client.answers[&stream].content.is_empty())?;
    let socket = new_socket()?;
    let local = socket.local_addr()?;
    client.sockets.push(socket);
    let server = client.server;
    client.until(|client| client.connection.available_dcids() > 0)?;
    client.connection.probe_path(local, server)?;
    client.until(|client| client.validated == Some(local))?;
    client.connection.migrate(local, server)?;
    client.expect(stream, 200, &large())?;
    client.large()?;
    client.hello()?;
    client.close()
}

/// More than 1,000 requests on one connection, as many at a time as the server allows.
fn requests() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    for _ in 0..12 {
        let mut streams = Vec::new();
        for _ in 0..100 {
            streams.push(client.ask("GET", "/hello.txt", &[])?);
        }
        for stream in streams {
            client.expect(stream, 200, HELLO)?;
        }
    }
    client.close()
}

/// A file of 100 MB arrives unchanged.
fn huge() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    let stream = client.ask("GET", "/huge", &[])?;
    let mut sum = Sha256::new();
    let mut len = 0;
    while !client.answers[&stream].has_ended {
        client.until(|client| {
            let answer = &client.answers[&stream];
            answer.has_ended || !answer.content.is_empty()
        })?;
        let content = client
            .answers
            .get_mut(&stream)
            .map(|answer| std::mem::take(&mut answer.content));
        let content = content.unwrap_or_default();
        len += content.len();
        sum.update(&content);
    }
    let sum: String = sum
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    expect!(sum == argument(), "{len} bytes that differ from the file");
    client.close()
}

/// A request's content reaches a backend, which sends it back.
fn upload() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    let content: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let head = Client::head(
        "POST",
        "/backend/echo",
        &[("content-length", &content.len().to_string())],
    );
    let stream = client.send_head(&head, false)?;
    client.waiting.insert(stream, content.clone());
    client.expect(stream, 200, &content)?;
    client.close()
}

/// HEAD, conditional requests and ranges.
fn semantics() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    let content = large();
    let stream = client.ask("HEAD", "/large", &[])?;
    let answer = client.expect(stream, 200, b"")?;
    let found = answer.field("content-length");
    expect!(
        found == Some(content.len().to_string()),
        "content-length of HEAD: {found:?}"
    );
    let etag = answer.field("etag").ok_or("no etag")?;
    let stream = client.ask("GET", "/large", &[("if-none-match", &etag)])?;
    client.expect(stream, 304, b"")?;
    let stream = client.ask("GET", "/large", &[("range", "bytes=100-299")])?;
    client.expect(stream, 206, &content[100..300])?;
    let stream = client.ask("GET", "/large", &[("range", "bytes=9999999-")])?;
    let status = client.answer(stream)?.field(":status");
    expect!(
        status.as_deref() == Some("416"),
        "416 expected, not {status:?}"
    );
    client.close()
}

/// A request with trailers is answered, and the trailers of the response arrive.
fn trailers() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    let head = Client::head("POST", "/go/call", &[("te", "trailers")]);
    let stream = client.send_head(&head, false)?;
    let (h3, connection) = client.h3()?;
    h3.send_body(connection, stream, HELLO, false)?;
    let tail = [Header::new(b"x-sum", b"of content")];
    h3.send_additional_headers(connection, stream, &tail, true, true)?;
    let answer = client.expect(stream, 200, HELLO)?;
    let found = value_of(&answer.trailers, "grpc-message");
    expect!(
        found.as_deref() == Some("not today"),
        "trailers {:?}",
        answer.trailers
    );
    client.close()
}

/// Responses that the client cancels by STOP_SENDING do not hold up other responses.
fn cancelled() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    for _ in 0..50 {
        let stream = client.ask("GET", "/huge", &[])?;
        client.until(|client| !client.answers[&stream].fields.is_empty())?;
        client
            .connection
            .stream_shutdown(stream, Shutdown::Read, REQUEST_CANCELLED)?;
    }
    client.hello()?;
    client.close()
}

/// A response that PRIORITY_UPDATE makes more urgent is completed before others that were requested earlier.
fn priorities() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    let mut low = Vec::new();
    for n in 0..3 {
        low.push(client.ask("GET", &format!("/part/{n}"), &[("priority", "u=6")])?);
    }
    let first = low[0];
    client.until(|client| !client.answers[&first].content.is_empty())?;
    let high = client.ask("GET", "/part/3", &[("priority", "u=7")])?;
    let (h3, connection) = client.h3()?;
    h3.send_priority_update_for_request(connection, high, &h3::Priority::new(1, false))?;
    client.answer(high)?;
    for stream in &low {
        expect!(
            !client.answers[stream].has_ended,
            "the response on stream {stream} was complete before that on {high}"
        );
    }
    for stream in low {
        client.answer(stream)?;
    }
    client.close()
}

/// A WebSocket by extended CONNECT: a message goes to the backend and comes back.
fn websocket() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    client.until(|client| {
        client
            .h3
            .as_ref()
            .is_some_and(|h3| h3.peer_settings_raw().is_some())
    })?;
    let (h3, _) = client.h3()?;
    expect!(
        h3.extended_connect_enabled_by_peer(),
        "no extended CONNECT in the SETTINGS"
    );
    let fields = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    let mut head = Client::head("CONNECT", "/backend/websocket", &fields);
    // Pseudo-header fields must precede the other fields.
    head.sort_by_key(|field| field.name()[0] != b':');
    let stream = client.send_head(&head, false)?;
    let mut frame = b"\x81\x85mask".to_vec();
    frame.extend(
        b"hello"
            .iter()
            .zip(b"maskm")
            .map(|(byte, mask)| byte ^ mask),
    );
    client.until(|client| !client.answers[&stream].fields.is_empty())?;
    let (h3, connection) = client.h3()?;
    h3.send_body(connection, stream, &frame, false)?;
    client.until(|client| client.answers[&stream].content.len() >= 7)?;
    let (h3, connection) = client.h3()?;
    h3.send_body(connection, stream, b"\x88\x80mask", false)?;
    client.expect(stream, 200, b"\x81\x05hello\x88\0")?;
    client.close()
}

/// The server closes a connection that is idle; a new one is served.
fn idle() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    client.hello()?;
    client.until_closed()?;
    expect!(
        client.connection.is_timed_out(),
        "the connection ended by {:?}",
        client.connection.peer_error()
    );
    get()
}

/// On SIGTERM the server completes the responses in flight, then closes the connection.
fn shutdown() -> Outcome {
    let mut client = Client::connect(&Options::default())?;
    client.hello()?;
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(client.ask("GET", "/large", &[])?);
    }
    let last = streams[9];
    client.until(|client| !client.answers[&last].fields.is_empty())?;
    let killed = Command::new("kill").arg(argument()).status()?;
    expect!(killed.success(), "kill: {killed}");
    for stream in streams {
        client.expect(stream, 200, &large())?;
    }
    client.until_closed()?;
    let code = client.connection.peer_error().map(|error| error.error_code);
    expect!(
        code == Some(0x100),
        "the connection ended by {:?}",
        client.connection.peer_error()
    );
    Ok(())
}

fn main() -> ExitCode {
    if log::set_logger(&KeyUpdates).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
    let conversation = std::env::args().nth(1).unwrap_or_default();
    let outcome = match conversation.as_str() {
        "handshake" => handshake(),
        "get" => get(),
        "download" => download(),
        "long_hello" => long_hello(),
        "versions" => versions(),
        "late_resumption" => late_resumption(),
        "early_data" => early_data(),
        "key_update" => key_update(),
        "migration" => migration(),
        "requests" => requests(),
        "huge" => huge(),
        "upload" => upload(),
        "semantics" => semantics(),
        "trailers" => trailers(),
        "cancelled" => cancelled(),
        "priorities" => priorities(),
        "websocket" => websocket(),
        "idle" => idle(),
        "shutdown" => shutdown(),
        _ => Err("no such conversation".into()),
    };
    match outcome {
        Ok(()) => {
            println!("ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
