//! Reloads that change everything at once (listeners, hosts, certificates, backends) under a load of HTTP/1, HTTP/2, HTTP/3 and tunnels: no
//! request fails, and no connection is dropped.
//!
//! The environment variable `RELOADS` sets the number of reloads, and `RELOAD_SECONDS` the time that they are spread over, which must be
//! less than 60, the time limit of client programs in these tests.

use std::path::Path;
use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Backend, Deadline, Folder, Raw, Server, Setup, Talk, eventually, run, tool};

/// Name of the file whose existence ends the load.
const STOP: &str = "stop";

/// A backend that answers requests, and echoes the bytes of tunnels.
fn backend() -> Backend {
    Backend::start(|talk: &mut Talk| {
        while let Some(request) = talk.read_head() {
            if request.field("upgrade").is_none() {
                talk.send(h2o_tests::FINE);
                continue;
            }
            talk.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
            );
            while let Some(bytes) = talk.read_some() {
                talk.send(bytes);
            }
        }
    })
}

/// The configuration after this number of reloads: two versions take turns, which differ in listeners, certificate, host, script and
/// backend. TLS sessions are kept for one second: an hour's sessions of all the load's connections would hide what reloads leave behind.
fn config(turn: usize, backends: &[Backend; 2]) -> String {
    let (name, url) = (["site", "other"][turn % 2], backends[turn % 2].url("/"));
    let extra = if turn.is_multiple_of(2) {
        ""
    } else {
        "listen: { host: 127.0.0.1, port: @EXTRAPORT@ }\nlisten: { <<: *tls, port: @EXTRAQUICPORT@, type: quic }"
    };
    format!(
        "
num-threads: 2
ssl-session-resumption: {{ lifetime: 1 }}
listen: {{ host: 127.0.0.1, port: @CLEARPORT@ }}
listen: &tls
  host: 127.0.0.1
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/{name}.crt, key-file: @DIR@/{name}.key }}
listen: {{ <<: *tls, type: quic }}
{extra}
access-log: {{ path: @DIR@/log-{name}, format: '%s' }}
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /status: {{ status: ON }}
      /script: {{ mruby.handler: 'proc {{ |env| [200, {{}}, [\"turn {turn}\"]] }}' }}
      /backend: {{ proxy.reverse.url: '{url}' }}
      /tunnel: {{ proxy.reverse.url: '{}', proxy.tunnel: ON }}
  \"host-{turn}.test\":
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
",
        backends[0].url("/")
    )
}

/// Runs h2load again and again until the load ends. Returns the number of requests.
fn h2load(server: &Server, options: &[&str], stop: &Path) -> usize {
    const REQUESTS: usize = 600;
    let urls = ["a.txt", "backend", "script"]
        .map(|path| format!("https://127.0.0.1:{}/{path}", server.port()));
    let count = REQUESTS.to_string();
    let mut asked = 0;
    while !stop.exists() {
        let fixed = ["-n", &count, "-c", "4", &urls[0], &urls[1], &urls[2]];
        let text = run("h2load", &[options, &fixed].concat()).text();
        let all = format!(" {REQUESTS} succeeded, 0 failed, 0 errored, 0 timeout");
        let good = format!("status codes: {REQUESTS} 2xx");
        assert!(text.contains(&all) && text.contains(&good), "{text}");
        asked += REQUESTS;
    }
    asked
}

/// Sends messages through one tunnel until the load ends. Returns the number of messages.
fn tunnel(server: &Server, stop: &Path) -> usize {
    let mut client = Raw::connect(server.port_of("CLEARPORT"));
    client.send("GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(client.read_head().code(), 101);
    let mut sent = 0;
    while !stop.exists() {
        let message = format!("message {sent:8}");
        client.send(&message);
        assert_eq!(client.read_exactly(message.len()), message.as_bytes());
        sent += 1;
    }
    sent
}

/// Sends requests over HTTP/3, and bytes through a tunnel, until the load ends. Returns the number of requests.
fn http3(server: &Server, stop: &Path) -> usize {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py");
    let (port, stop) = (server.port().to_string(), stop.display().to_string());
    let args = [
        "300",
        &*tool("aioquic/bin/python3"),
        script,
        "through_reloads",
        &port,
        &stop,
    ];
    let output = run("timeout", &args);
    let text = output.text();
    assert!(output.code == 0 && text.ends_with("ok\n"), "{output}");
    text.lines()
        .next()
        .and_then(|line| line.parse().ok())
        .unwrap_or_default()
}

/// When dropped, writes the file that ends the load.
struct EndOfLoad<'a>(&'a Path);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        std::fs::write(self.0, "").expect("the folder is writable");
    }
}

fn knob(name: &str, default: usize) -> usize {
    let text = std::env::var(name).unwrap_or_default();
    text.parse().unwrap_or(default)
}

/// Reloads `count` times, spread over `time`, under load. Returns the number of requests or messages of each of the four loads.
fn reload_under_load(
    server: &mut Server,
    backends: &[Backend; 2],
    count: usize,
    time: Duration,
) -> [usize; 4] {
    let stop = server.folder.at(STOP);
    let _ = std::fs::remove_file(&stop);
    let shared = &*server;
    std::thread::scope(|scope| {
        let stop = &stop;
        // Dropped also if the test fails, so that the load ends.
        let end = EndOfLoad(stop);
        let loads = [
            scope.spawn(|| h2load(shared, &["--h1"], stop)),
            scope.spawn(|| h2load(shared, &["-m", "5"], stop)),
            scope.spawn(|| http3(shared, stop)),
            scope.spawn(|| tunnel(shared, stop)),
        ];
        let pause = time / u32::try_from(count).unwrap_or(u32::MAX);
        for turn in 1..=count {
            let next = Deadline::after(pause);
            shared.replace_config(&config(turn, backends));
            shared.reload();
            while !next.has_passed() {
                std::thread::sleep(Duration::from_millis(5));
            }
            if loads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        drop(end);
        loads.map(|load| load.join().expect("every request is answered"))
    })
}

#[test]
fn nobody_loses_anything_when_everything_changes() {
    let (reloads, seconds) = (knob("RELOADS", 12), knob("RELOAD_SECONDS", 6));
    let folder = Folder::new();
    self_signed(&folder, "site", Key::EcPkcs8, "localhost");
    self_signed(&folder, "other", Key::EcPkcs8, "localhost");
    let backends = [backend(), backend()];
    // The first configuration has all ports, so that all are picked at the start.
    let mut server = Setup::in_folder(folder, &config(1, &backends))
        .file("www/a.txt", "hello")
        .start();
    // The same load and reloads come first, because buffers, caches and the allocator's reserves grow with the first ones.
    let time = Duration::from_secs(seconds as u64);
    reload_under_load(&mut server, &backends, reloads, time);
    let before = at_rest(&server);
    let [h1, h2, h3, messages] = reload_under_load(&mut server, &backends, reloads, time);
    let after = at_rest(&server);
    println!(
        "{reloads} reloads: {h1} + {h2} + {h3} requests, {messages} messages; {before} -> {after} bytes"
    );
    assert!([h1, h2, h3, messages].iter().all(|count| *count > 0));
    assert!(after < before * 3 / 2, "{before} -> {after} bytes");
    assert!(
        !server.messages().contains("panicked"),
        "{}",
        server.messages()
    );
}

/// The server's memory when no earlier configuration is in use any more.
fn at_rest(server: &Server) -> usize {
    eventually("the end of earlier configurations", || {
        let url = format!(
            "http://127.0.0.1:{}/status/json?show=reloads",
            server.port_of("CLEARPORT")
        );
        let text = h2o_tests::curl(&[&url]).text();
        text.contains("\"reloads.retiring\": 0").then_some(())
    });
    server.memory_at_rest()
}
