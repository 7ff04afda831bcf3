//! Servers that share TLS ticket keys or sessions through memcached or Redis, and what they do when the store is down, slow or corrupted.

mod sessions;
mod tickets;

use std::io::{Read, Write};
use std::net::TcpStream;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Service, Setup, run_with_input};

/// A kind of store, with the configuration by which the server uses it.
#[derive(Clone, Copy, Debug)]
enum Store {
    MemcachedBinary,
    MemcachedAscii,
    Redis,
}

const STORES: [Store; 3] = [Store::MemcachedBinary, Store::MemcachedAscii, Store::Redis];
impl Store {
    fn start(self, folder: &Folder, port: u16) -> Service {
        match self {
            Self::MemcachedBinary | Self::MemcachedAscii => Service::memcached(port),
            Self::Redis => Service::redis(folder, port, &[]),
        }
    }

    /// Starts a server that keeps TLS sessions (`cache`) or ticket keys (`ticket`) in the store at this port.
    fn server(self, mode: &str, certificate: &Folder, port: u16) -> Server {
        let (name, more) = match self {
            Self::MemcachedBinary => ("memcached", ""),
            Self::MemcachedAscii => ("memcached", ", protocol: ASCII"),
            Self::Redis => ("redis", ""),
        };
        let store =
            format!("{mode}-store: {name}, {name}: {{ host: 127.0.0.1, port: {port}{more} }}");
        let crt = certificate.name_of("server.crt");
        let key = certificate.name_of("server.key");
        let config = format!(
            "
error-log: @DIR@/error.log
access-log: {{ path: @DIR@/access.log, format: '%{{ssl.session-id}}x %{{ssl.session-reused}}x' }}
ssl-session-resumption: {{ mode: {mode}, cache-memcached-num-threads: 2, {store} }}
listen:
  port: @PORT@
  ssl: {{ certificate-file: {crt}, key-file: {key} }}
hosts:
  default:
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
"
        );
        Setup::new(&config).file("www/hello.txt", "hello").start()
    }

    /// What the store answers when it is asked for the entry of this key.
    fn read(self, port: u16, key: &str) -> String {
        match self {
            Self::Redis => command(port, &format!("GET {key}\r\n")),
            _ => command(port, &format!("get {key}\r\n")),
        }
    }

    /// Writes an entry into the store, as another server or an attacker would.
    fn write(self, port: u16, key: &str, value: &str) {
        let len = value.len();
        let (text, want) = match self {
            Self::Redis => (
                format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n{value}\r\n",
                    key.len()
                ),
                "+OK\r\n",
            ),
            _ => (
                format!("set {key} 0 3600 {len}\r\n{value}\r\n"),
                "STORED\r\n",
            ),
        };
        assert_eq!(command(port, &text), want);
    }
}

/// Opens a connection to the store, sends a command and ends the client's side. Returns everything that the store answers.
fn command(port: u16, text: &str) -> String {
    let mut stream =
        TcpStream::connect(("127.0.0.1", port)).expect("the store accepts connections");
    stream
        .write_all(text.as_bytes())
        .expect("the store reads the command");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("the connection is open");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the store closes the connection after its answer");
    answer
}

fn certificate() -> Folder {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    folder
}

/// Makes a handshake and a request with `openssl s_client`, which must succeed. Returns what it prints.
fn talk(server: &Server, args: &[&str]) -> String {
    let address = format!("127.0.0.1:{}", server.port());
    let fixed = ["s_client", "-ign_eof", "-connect", &address];
    let request = "GET /hello.txt HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";
    let output = run_with_input("openssl", &[&fixed[..], args].concat(), request);
    let text = output.text();
    assert!(
        output.code == 0 && text.contains("HTTP/1.1 200 OK"),
        "{args:?}: {output}"
    );
    text
}

/// Whether a TLS session that was made on the first server can be resumed on the second.
fn resumes(version: &str, first: &Server, second: &Server) -> bool {
    let session = first.folder.name_of("session");
    let _ = std::fs::remove_file(&session);
    let _ = talk(first, &[version, "-sess_out", &session]);
    first.folder.at("session").exists()
        && talk(second, &[version, "-sess_in", &session]).contains("Reused, ")
}
