//! The memory that the server uses for clients that hardly read.
//!
//! Only the memory of the server's process is counted. Socket buffers in the kernel are not: their size is set by `net.ipv4.tcp_wmem` and
//! `tcp_rmem`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Frame, Http2, post};
use h2o_tests::{Folder, Server, Service, Setup, curl};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::kit::config;

/// Bytes of a response, where `proxy.max-buffer-size` makes the backend wait.
const LARGE: usize = 10_000_000;
/// Bytes of a response, where `proxy.max-buffer-size` is not set: the server stores the whole response, mostly in files.
const MEDIUM: usize = 1_500_000;
/// Bytes of memory that a stream may cost in addition to `proxy.max-buffer-size`.
const BESIDES: usize = 64 * 1024;
/// Bytes of a response that a stream keeps in memory without `proxy.max-buffer-size`. On a busy machine all of it is used, because the
/// disk is slower than the backend.
const IN_MEMORY: usize = 256 * 1024;

/// Clients of one kind: version of HTTP, TLS or not, number of connections and of streams.
#[derive(Clone, Copy, Debug)]
struct Clients {
    way: &'static str,
    security: &'static str,
    connections: usize,
    streams: usize,
    window: u32,
}

impl Clients {
    const fn http1(security: &'static str, connections: usize) -> Self {
        Self {
            way: "http1",
            security,
            connections,
            streams: 1,
            window: 0,
        }
    }

    const fn http2(security: &'static str, connections: usize, window: u32) -> Self {
        Self {
            way: "http2",
            security,
            connections,
            streams: 10,
            window,
        }
    }
}

/// A running `slow_clients.py`. The process is stopped when this value is dropped.
struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(clients: Clients, server: &Server, path: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/slow_clients.py");
        let name = if clients.security == "tls" {
            "TLS_PORT"
        } else {
            "PORT"
        };
        let numbers = [
            clients.connections,
            clients.streams,
            usize::try_from(clients.window).expect("the window fits into a usize"),
        ];
        let mut child = Command::new("/usr/bin/python3")
            .args([script, clients.way, clients.security])
            .arg(server.port_of(name).to_string())
            .arg(path)
            .args(numbers.map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python is installed");
        let stdin = child.stdin.take().expect("the stream is a pipe");
        let stdout = child.stdout.take().expect("the stream is a pipe");
        let mut running = Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        };
        assert_eq!(running.line(), "ready", "{clients:?}");
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self
            .stdout
            .read_line(&mut line)
            .expect("the bytes are UTF-8");
        line.trim_end().to_owned()
    }

    /// Makes every client read a little.
    fn read(&mut self) {
        self.stdin
            .write_all(b"read\n")
            .expect("the client program runs");
        let line = self.line();
        let (what, bytes) = line.split_once(' ').unwrap_or_default();
        let bytes: usize = bytes.parse().unwrap_or_default();
        assert!(what == "read" && bytes > 0, "{line}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Raises the limit of file descriptors to what all of these clients need, for this process and the programs that it starts.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Some(limit.maximum.map_or(16_384, |most| most.min(16_384)));
    if limit.current < wanted && limit.current.is_some() {
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).expect("the new limit is not above the maximum");
    }
}

/// Starts nginx with the large files: at a port over HTTP/1, and at Unix sockets in the folder over HTTP/2, and over both versions with
/// TLS.
fn backend() -> (Folder, Service, u16) {
    allow_descriptors();
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    folder.write("large", vec![b'x'; LARGE]);
    folder.write("medium", vec![b'x'; MEDIUM]);
    let (service, port) = Service::nginx(
        &folder,
        "server { listen 127.0.0.1:@PORT@ sndbuf=32k; root @DIR@; }
         server { listen unix:@DIR@/http2 http2; root @DIR@; }
         server {
           listen unix:@DIR@/tls ssl http2; root @DIR@;
           ssl_certificate @DIR@/server.crt; ssl_certificate_key @DIR@/server.key;
         }",
    );
    (folder, service, port)
}

/// Bytes of the server's memory for each stream.
fn cost(clients: Clients, settings: &str, path: &str, url: &str) -> usize {
    let config = format!(
        "{settings}
proxy.preserve-host: ON
proxy.timeout.io: 60000
http1-request-io-timeout: 60
num-threads: 1
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts: {{ default: {{ paths: {{ /: {{ proxy.reverse.url: '{url}' }} }} }} }}
"
    );
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let server = Setup::in_folder(folder, &config).start();
    // These requests make the server allocate what it allocates once, before its memory is measured.
    for _ in 0..4 {
        assert_eq!(curl(&[&server.url("/large")]).body.len(), LARGE);
    }
    let before = server.memory();
    let mut running = Running::start(clients, &server, path);
    let mut most = server.memory_at_rest();
    for _ in 0..4 {
        running.read();
        most = most.max(server.memory_at_rest());
    }
    let each = most.saturating_sub(before) / (clients.connections * clients.streams);
    eprintln!("{clients:?} {settings:?}: {each} bytes");
    each
}

/// Kind of clients, value of `proxy.max-buffer-size`, further directives.
type Row = (Clients, Option<usize>, &'static str);

/// Fails if a stream of a row costs more memory than it may.
fn must_be_modest(rows: &[Row], url: &str) {
    for (clients, limit, settings) in rows {
        let limited = limit.map(|limit| format!("proxy.max-buffer-size: {limit}\n"));
        let path = if limit.is_some() { "/large" } else { "/medium" };
        let settings = limited.unwrap_or_default() + settings;
        let each = cost(*clients, &settings, path, url);
        let limit = limit.unwrap_or(IN_MEMORY);
        // The allocator loses an eighth between pieces of different sizes.
        let most = limit + limit / 8 + BESIDES;
        assert!(each <= most, "{clients:?} {limit}: {each} bytes");
    }
}

/// A window so large that it never limits the server.
const WIDE: u32 = 0x7fff_ffff;
/// A window that is used up before the socket is full.
const NARROW: u32 = 65_535;

#[test]
fn slow_clients_of_http1_hold_no_more_than_the_limit() {
    let (_folder, _service, port) = backend();
    let rows = [
        (Clients::http1("clear", 1000), Some(32_768), ""),
        (Clients::http1("clear", 1000), None, ""),
        (Clients::http1("tls", 200), Some(32_768), ""),
        (Clients::http1("tls", 200), Some(262_144), ""),
    ];
    must_be_modest(&rows, &format!("http://127.0.0.1:{port}/"));
}

#[test]
fn slow_clients_of_http2_hold_no_more_than_the_limit() {
    let (_folder, _service, port) = backend();
    let rows = [
        (Clients::http2("clear", 100, WIDE), Some(32_768), ""),
        (Clients::http2("tls", 20, WIDE), None, ""),
        (Clients::http2("clear", 20, NARROW), Some(262_144), ""),
    ];
    must_be_modest(&rows, &format!("http://127.0.0.1:{port}/"));
}

#[test]
fn slow_clients_before_an_http2_back_end_hold_no_more_than_the_limit() {
    const HTTP2: &str = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100\n";
    let (folder, _service, _) = backend();
    let rows = [
        (Clients::http1("clear", 200), Some(262_144), HTTP2),
        (Clients::http2("clear", 20, WIDE), Some(32_768), HTTP2),
        (Clients::http2("tls", 20, NARROW), None, HTTP2),
    ];
    let url = format!("http://[unix:{}]/", folder.at("http2").display());
    must_be_modest(&rows, &url);
}

#[test]
fn slow_clients_before_a_back_end_with_tls_hold_no_more_than_the_limit() {
    const HTTP2: &str = "proxy.ssl.verify-peer: OFF\n";
    const HTTP1: &str = "proxy.ssl.verify-peer: OFF\nproxy.http2.ratio: 0\n";
    let (folder, _service, _) = backend();
    let rows = [
        (Clients::http1("clear", 200), Some(32_768), HTTP1),
        (Clients::http1("clear", 200), Some(262_144), HTTP2),
    ];
    let url = format!("https://[unix:{}]/", folder.at("tls").display());
    must_be_modest(&rows, &url);
}

/// The server's receive window for a connection, and for each stream unless a directive sets the window of streams.
const WINDOW: usize = 16 << 20;
/// Bytes that an allocator holds in addition when several uploads are read and freed in turns.
const SPREAD: usize = 2 << 20;
/// Bytes in each DATA frame of these tests; allocators have no size class of this size.
const PAYLOAD: usize = 9_000;

/// Sends content on `streams` until no window allows more. Returns the number of bytes sent.
fn fill_windows(client: &mut Http2, streams: &[u32]) -> usize {
    let mut sent = vec![0; streams.len()];
    loop {
        client.ping();
        let before: usize = sent.iter().sum();
        for (sent_on, stream) in sent.iter_mut().zip(streams) {
            let of_all = client.allowed(0) - before;
            let of_stream = client.allowed(*stream) - *sent_on;
            // A part of the window for each stream in turn, as if all were sending at the same time.
            let bytes = of_stream.min(of_all / streams.len()).min(16 * PAYLOAD);
            for _ in 0..bytes / PAYLOAD {
                client.send_frame(&Frame::data(*stream, 0, [b'x'; PAYLOAD]));
                *sent_on += PAYLOAD;
            }
        }
        let sent: usize = sent.iter().sum();
        if sent == before {
            return sent;
        }
    }
}

#[test]
fn uploads_that_no_back_end_takes_hold_no_more_than_the_window() {
    // The kernel accepts connections for this backend, but no process reads from them.
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let port = listener.local_addr().expect("the socket is bound").port();
    for streams in [1, 4, 40] {
        let settings =
            "proxy.timeout.io: 60000\nhttp2-max-concurrent-streaming-requests-per-connection: 100";
        let url = format!("http://127.0.0.1:{port}/");
        let server = Setup::new(&config(settings, &url))
            // The allocator returns freed memory to the system at once, so that it is not counted.
            .variable("MIMALLOC_PURGE_DELAY", "0")
            .start();
        let mut client = Http2::open(server.port(), &[]);
        let streams: Vec<u32> = (0..streams).map(|number| 2 * number + 1).collect();
        let before = server.memory_at_rest();
        for stream in &streams {
            client.send_frame(&Frame::request_with_content(*stream, post("/")));
        }
        let sent = fill_windows(&mut client, &streams);
        assert!(
            sent >= WINDOW,
            "the client could not fill the windows of its streams: {sent}"
        );
        let held = server.memory_at_rest().saturating_sub(before);
        let number = streams.len();
        eprintln!("{number} uploads: {held} bytes of {sent}");
        let spread = if number > 1 { SPREAD } else { 0 };
        assert!(
            held <= WINDOW + WINDOW / 10 + number * BESIDES + spread,
            "{number} uploads: {held} bytes of {sent}"
        );
    }
}
