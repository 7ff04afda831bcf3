//! Servers that share ticket keys by memcached or Redis, which may be gone, slow or full of nonsense.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Service, Setup, eventually, free_port, run_with_input};

/// A store with its configuration for the server.
#[derive(Clone, Copy, Debug)]
enum Store {
    MemcachedBinary,
    MemcachedAscii,
    Redis,
}

const STORES: [Store; 3] = [Store::MemcachedBinary, Store::MemcachedAscii, Store::Redis];
const ENTRY: &str = "h2o:ssl-session-key";

impl Store {
    fn start(self, folder: &Folder, port: u16) -> Service {
        match self {
            Self::MemcachedBinary | Self::MemcachedAscii => Service::memcached(port),
            Self::Redis => Service::redis(folder, port, &[]),
        }
    }

    fn server(self, certificate: &Folder, port: u16) -> Server {
        let store = match self {
            Self::MemcachedBinary => {
                format!("ticket-store: memcached, memcached: {{ host: 127.0.0.1, port: {port} }}")
            }
            Self::MemcachedAscii => format!(
                "ticket-store: memcached, memcached: {{ host: 127.0.0.1, port: {port}, protocol: ASCII }}"
            ),
            Self::Redis => {
                format!("ticket-store: redis, redis: {{ host: 127.0.0.1, port: {port} }}")
            }
        };
        let crt = certificate.name_of("server.crt");
        let key = certificate.name_of("server.key");
        let config = format!(
            "
error-log: @DIR@/error.log
ssl-session-resumption: {{ mode: ticket, {store} }}
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

    /// The entry of the ticket keys.
    fn read(self, port: u16) -> String {
        match self {
            Self::Redis => command(port, &format!("GET {ENTRY}\r\n")),
            _ => command(port, &format!("get {ENTRY}\r\n")),
        }
    }

    /// Writes the entry, as another server or anybody else.
    fn write(self, port: u16, value: &str) {
        let len = value.len();
        let (text, want) = match self {
            Self::Redis => (
                format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{ENTRY}\r\n${len}\r\n{value}\r\n",
                    ENTRY.len()
                ),
                "+OK\r\n",
            ),
            _ => (
                format!("set {ENTRY} 0 3600 {len}\r\n{value}\r\n"),
                "STORED\r\n",
            ),
        };
        assert_eq!(command(port, &text), want);
    }
}

/// What a store answers to a command, the last one of a connection.
fn command(port: u16, text: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the store runs");
    stream.write_all(text.as_bytes()).expect("it reads");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

fn certificate() -> Folder {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    folder
}

/// A handshake and a request, which must succeed.
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

const VERSIONS: [&str; 2] = ["-tls1_2", "-tls1_3"];

/// Whether a session begun on one server goes on at another one.
fn resumes(version: &str, first: &Server, second: &Server) -> bool {
    let session = first.folder.name_of("session");
    let _ = std::fs::remove_file(&session);
    let _ = talk(first, &[version, "-sess_out", &session]);
    first.folder.at("session").exists()
        && talk(second, &[version, "-sess_in", &session]).contains("Reused, ")
}

#[test]
fn sessions_of_one_server_go_on_at_another() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let service = store.start(&certificate, port);
        let [one, two] = [(); 2].map(|()| store.server(&certificate, port));
        for version in VERSIONS {
            assert!(resumes(version, &one, &two), "{store:?} {version}");
            assert!(resumes(version, &two, &one), "{store:?} {version}");
        }
        let before = store.read(port);
        assert_eq!(before.matches("- name: ").count(), 1, "{before}");
        // The servers go on with their keys while the store is gone, and give them to the next one.
        service.kill();
        for version in VERSIONS {
            assert!(resumes(version, &one, &two), "{store:?} {version}");
        }
        eventually("the store is missed", || {
            one.folder
                .read("error.log")
                .contains("cannot load session ticket secrets from ")
                .then_some(())
        });
        let _service = store.start(&certificate, port);
        let key = |text: &str| {
            text.lines()
                .find(|line| line.contains("  key: "))
                .map(str::to_owned)
        };
        eventually("the keys are there again", || {
            (key(&store.read(port)) == key(&before)).then_some(())
        });
        let third = store.server(&certificate, port);
        for version in VERSIONS {
            assert!(resumes(version, &one, &third), "{store:?} {version}");
        }
    }
}

#[test]
fn keys_that_another_server_has_made_are_used() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let _service = store.start(&certificate, port);
        let (name, material) = ("07".repeat(16), "0a".repeat(96));
        let text = format!(
            "---\n- name: {name}\n  cipher: AES-256-CBC\n  hash: SHA256\n  key: {material}\n  not_before: 1000000000\n  not_after: 9000000000\n"
        );
        store.write(port, &text);
        let server = store.server(&certificate, port);
        let text = talk(&server, &["-tls1_2"]);
        let ticket = "    0000 - 07 07 07 07 07 07 07 07-07 07 07 07 07 07 07 07";
        assert!(text.contains(ticket), "{store:?}: {text}");
        // It is older than a quarter of the lifetime: there is a new one besides, for later.
        let text = store.read(port);
        assert!(text.contains(&format!("- name: {name}\n")), "{text}");
        assert_eq!(text.matches("- name: ").count(), 2, "{text}");
    }
}

#[test]
fn nonsense_in_the_store_is_replaced() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let _service = store.start(&certificate, port);
        store.write(port, "- [ {nonsense");
        let [one, two] = [(); 2].map(|()| store.server(&certificate, port));
        for version in VERSIONS {
            assert!(resumes(version, &one, &two), "{store:?} {version}");
        }
        let log = one.folder.read("error.log");
        assert!(
            log.contains("failed to load session ticket secrets from "),
            "{log}"
        );
    }
}

#[test]
fn a_store_that_is_not_there_costs_a_full_handshake() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let server = store.server(&certificate, port);
        for version in VERSIONS {
            assert!(!resumes(version, &server, &server), "{store:?} {version}");
        }
        let _service = store.start(&certificate, port);
        eventually("the store is found", || {
            resumes("-tls1_3", &server, &server).then_some(())
        });
    }
}

#[test]
fn a_store_that_does_not_answer_holds_nobody_up() {
    let certificate = certificate();
    for store in STORES {
        // The kernel accepts connections, and nobody reads.
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = store.server(&certificate, port);
        for version in VERSIONS {
            assert!(!resumes(version, &server, &server), "{store:?} {version}");
        }
        drop(listener);
    }
}
