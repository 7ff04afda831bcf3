//! Sessions of TLS 1.2 that are resumed by session id.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use h2o_tests::{Folder, Server, eventually, free_port, run};

use super::{STORES, Store, certificate, command, resumes, talk};

const TLS12: &str = "-tls1_2";

/// A TLS session as the client has it.
struct Session {
    file: String,
    /// What `openssl s_client` prints about the session.
    text: String,
}

impl Session {
    fn begin(server: &Server) -> Self {
        let file = server.folder.name_of("session");
        let _ = std::fs::remove_file(&file);
        let text = talk(server, &[TLS12, "-sess_out", &file]);
        Self { file, text }
    }

    fn goes_on_at(&self, server: &Server) -> bool {
        talk(server, &[TLS12, "-sess_in", &self.file]).contains("Reused, ")
    }

    /// The rest of the line that begins with `name` in the client's output.
    fn line(&self, name: &str) -> &str {
        let lines = self.text.lines().map(str::trim);
        let mut lines = lines.filter_map(|line| line.strip_prefix(name));
        lines.next().expect("the client prints the line")
    }

    /// The key of the session's entry in the store.
    fn key(&self) -> String {
        let digits = self.line("Session-ID: ");
        let byte =
            |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("the text is hexadecimal");
        let id: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        format!("h2o:ssl-session-cache:{}", URL_SAFE_NO_PAD.encode(id))
    }

    /// Waits until the store has the session, and returns the value of its entry.
    fn stored(&self, store: Store, port: u16) -> String {
        let key = self.key();
        eventually("the session to be in the store", || {
            let answer = store.read(port, &key);
            // The value stands between the line with its length and the last line of the answer.
            answer
                .split("\r\n")
                .nth(1)
                .map(str::to_owned)
                .filter(|value| !value.is_empty())
        })
    }
}

/// Starts two servers, and waits until each resumes sessions of the other through the store.
fn two_servers(store: Store, certificate: &Folder, port: u16) -> [Server; 2] {
    let servers = [(); 2].map(|()| store.server("cache", certificate, port));
    let [one, two] = &servers;
    for (first, second) in [(one, two), (two, one)] {
        eventually("a session to be resumed by the other server", || {
            resumes(TLS12, first, second).then_some(())
        });
    }
    servers
}

#[test]
fn sessions_of_one_server_go_on_at_another() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let service = store.start(&certificate, port);
        let [one, two] = two_servers(store, &certificate, port);
        let session = Session::begin(&one);
        let _ = session.stored(store, port);
        assert!(session.goes_on_at(&two), "{store:?}");
        let key = session.key();
        let id = key.rsplit_once(':').map_or("", |(_, id)| id);
        let _ = two.read_until("access.log", &format!("{id} 1\n"));
        // While the store is down, a server resumes its own sessions, and makes full handshakes for sessions of other servers.
        service.kill();
        let session = Session::begin(&one);
        assert!(!session.goes_on_at(&two), "{store:?}");
        assert!(session.goes_on_at(&one), "{store:?}");
        eventually("the message that the store does not answer", || {
            let log = two.folder.read("error.log");
            log.contains("cannot use the TLS sessions in ")
                .then_some(())
        });
        let _service = store.start(&certificate, port);
        eventually("the store to be used again", || {
            resumes(TLS12, &one, &two).then_some(())
        });
        let log = two.folder.read("error.log");
        assert!(log.contains("TLS sessions are kept in "), "{log}");
    }
}

#[test]
fn a_store_that_closes_idle_connections_costs_no_session() {
    let certificate = certificate();
    let port = free_port();
    let _service = Store::Redis.start(&certificate, port);
    let [one, two] = two_servers(Store::Redis, &certificate, port);
    // Closes the connections of both servers, as a time limit of the store or a firewall does.
    let close_all = || command(port, "CLIENT KILL TYPE normal SKIPME yes\r\n");
    for _ in 0..3 {
        assert_ne!(close_all(), ":0\r\n");
        let session = Session::begin(&one);
        let _ = session.stored(Store::Redis, port);
        close_all();
        assert!(session.goes_on_at(&two));
    }
    for server in [one, two] {
        let log = server.folder.read("error.log");
        assert!(!log.contains("cannot use the TLS sessions"), "{log}");
    }
}

#[test]
fn openssl_reads_the_sessions() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let _service = store.start(&certificate, port);
        let [one, _] = two_servers(store, &certificate, port);
        let session = Session::begin(&one);
        let value = session.stored(store, port);
        let value = URL_SAFE_NO_PAD
            .decode(value)
            .expect("the text is base64url");
        one.folder.write("session.der", value);
        let file = one.folder.name_of("session.der");
        let args = ["sess_id", "-inform", "DER", "-noout", "-text", "-in", &file];
        let text = run("openssl", &args).text();
        for name in [
            "Protocol  : ",
            "Cipher    : ",
            "Session-ID: ",
            "Master-Key: ",
        ] {
            let line = format!("{name}{}\n", session.line(name));
            assert!(text.contains(&line), "{store:?} {line} {text}");
        }
        for line in [
            "Session-ID-ctx: \n",
            "Extended master secret: yes\n",
            "Timeout   : 3600 (sec)\n",
        ] {
            assert!(text.contains(line), "{store:?} {line} {text}");
        }
    }
}

#[test]
fn nonsense_in_the_store_costs_a_full_handshake() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let _service = store.start(&certificate, port);
        let [one, two] = two_servers(store, &certificate, port);
        let other = Session::begin(&one).stored(store, port);
        for value in ["", "nonsense", "AAAA", "MAA", &other, &"A".repeat(100_000)] {
            let session = Session::begin(&one);
            let right = session.stored(store, port);
            store.write(port, &session.key(), value);
            assert!(!session.goes_on_at(&two), "{store:?} {value}");
            store.write(port, &session.key(), &right);
            eventually("the session to be found", || {
                session.goes_on_at(&two).then_some(())
            });
        }
    }
}

#[test]
fn a_store_that_is_not_there_costs_a_full_handshake() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let [one, two] = [(); 2].map(|()| store.server("cache", &certificate, port));
        assert!(!resumes(TLS12, &one, &two), "{store:?}");
        assert!(resumes(TLS12, &one, &one), "{store:?}");
        let _service = store.start(&certificate, port);
        eventually("the message that the store answers again", || {
            resumes(TLS12, &one, &two).then_some(())
        });
    }
}

#[test]
fn a_store_that_does_not_answer_holds_nobody_up() {
    let certificate = certificate();
    for store in STORES {
        // The kernel accepts connections to this store, but no process reads from them.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("the socket is bound").port();
        let [one, two] = [(); 2].map(|()| store.server("cache", &certificate, port));
        assert!(!resumes(TLS12, &one, &two), "{store:?}");
        drop(listener);
    }
}

#[test]
fn a_store_that_falls_silent_delays_a_handshake_only_shortly() {
    let certificate = certificate();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket is bound").port();
    let (asked, questions) = mpsc::channel();
    // This store answers only the first command on each connection.
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("the server connects"));
            let mut line = String::new();
            let _ = stream.read_line(&mut line);
            let _ = stream.get_mut().write_all(b"END\r\n");
            let asked = asked.clone();
            let read = stream.get_ref().try_clone();
            open.push(stream);
            std::thread::spawn(move || {
                let lines = BufReader::new(read.expect("the connection is open")).lines();
                for line in lines.map_while(Result::ok) {
                    let _ = asked.send(line);
                }
            });
        }
    });
    // The first server uses another store, so the second one can look for its sessions only here, where there are none.
    let [one, two] =
        [free_port(), port].map(|port| Store::MemcachedAscii.server("cache", &certificate, port));
    eventually("a request to the store that gives no answer", || {
        let session = Session::begin(&one);
        assert!(!session.goes_on_at(&two));
        let asked: Vec<_> = questions.try_iter().collect();
        asked
            .contains(&format!("gets {}", session.key()))
            .then_some(())
    });
    let session = Session::begin(&two);
    assert!(session.goes_on_at(&two));
}
