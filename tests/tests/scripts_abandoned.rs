//! Scripts that wait for something while their client closes the connection: when the wait is over, the server keeps nothing of the
//! request.

use std::fs;
use std::sync::{Arc, Condvar, Mutex};

use h2o_tests::http2::{Frame, Http2, get};
use h2o_tests::{Backend, Raw, Server, Setup, eventually};

const CONFIG: &str = r##"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /sleep:
        mruby.handler: |
          lambda { |env| sleep 0.05; [200, {}, ["x" * 1000]] }
      /fetch:
        mruby.handler: |
          lambda { |env| http_request("BACKEND/").join }
      /redis:
        mruby.handler: |
          $redis = H2O::Redis.new(:host => "127.0.0.1", :port => REDIS)
          lambda { |env| [200, {}, [$redis.call("PING").join.to_s]] }
      /body:
        mruby.handler: |
          class Slow
            def each
              2.times { yield "x" * 1000; sleep 0.02 }
            end
          end
          lambda { |env| [200, {}, Slow.new] }
      /left:
        mruby.handler: |
          lambda do |env|
            GC.start
            fibers = 0
            ObjectSpace.each_object(Fiber) { fibers += 1 }
            [200, {}, [fibers.to_s]]
          end
"##;

/// Number of requests on one connection.
const BATCH: u32 = 100;

/// Number of batches of requests that wait at the same time.
const AT_ONCE: u32 = 4;

/// Number of requests that clients abandon, unless the environment variable `H2O_ABANDONED` has another number.
const REQUESTS: u32 = 3000;

/// Largest number of fibers that a worker keeps for later requests.
const KEPT: usize = 256 + 10;

/// Makes the backends wait: they answer when `rounds`, which a test increases, has grown.
#[derive(Default)]
struct Gate {
    rounds: Mutex<u32>,
    opened: Condvar,
}

impl Gate {
    fn round(&self) -> u32 {
        *self
            .rounds
            .lock()
            .expect("no thread panics while it holds the lock")
    }

    fn open(&self) {
        *self
            .rounds
            .lock()
            .expect("no thread panics while it holds the lock") += 1;
        self.opened.notify_all();
    }

    fn wait_for_next(&self, round: u32) {
        let rounds = self
            .rounds
            .lock()
            .expect("no thread panics while it holds the lock");
        let later = self.opened.wait_while(rounds, |now| *now <= round);
        drop(later);
    }
}

fn descriptors(server: &Server) -> usize {
    let folder = format!("/proc/{}/fd", server.pid());
    fs::read_dir(folder).expect("the server runs").count()
}

fn fibers(server: &Server) -> usize {
    let text = server.ask("GET /left").text();
    text.parse().expect("the text is a number")
}

/// Sends a batch of requests on a new connection, waits until their scripts run, and closes the connection.
fn abandon(server: &Server, gate: &Gate) {
    let mut client = Http2::open(server.port(), &[]);
    for number in 0..BATCH {
        let path = ["/sleep", "/fetch", "/redis", "/body"][number as usize % 4];
        client.send_frame(&Frame::request(number * 2 + 1, get(path)));
    }
    client.ping();
    drop(client);
    gate.open();
}

#[test]
fn requests_that_clients_abandon_leave_nothing() {
    let count = std::env::var("H2O_ABANDONED").ok();
    let count = count.map_or(REQUESTS, |count| {
        count.parse().expect("the text is a number")
    });
    let gate = Arc::new(Gate::default());
    let backend = {
        let gate = Arc::clone(&gate);
        Backend::start(move |talk| {
            while talk.read_head().is_some() {
                gate.wait_for_next(gate.round());
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{}",
                    "y".repeat(1000)
                );
                talk.send(answer);
            }
        })
    };
    let redis = Backend::start(|talk| {
        while talk.read_until(b"PING\r\n").is_some() {
            talk.send("+PONG\r\n");
        }
    });
    let config = CONFIG
        .replace("BACKEND", backend.url("").trim_end_matches('/'))
        .replace("REDIS", &redis.port().to_string());
    let server = Setup::new(&config).start();
    // The server allocates here what it allocates once or keeps for later requests, before its memory is measured.
    for _ in 0..AT_ONCE {
        abandon(&server, &gate);
    }
    let at_rest = |open: usize| {
        eventually("the end of all fibers and connections", || {
            gate.open();
            (descriptors(&server) <= open && fibers(&server) <= KEPT).then_some(())
        });
    };
    at_rest(usize::MAX);
    let (open, memory) = (descriptors(&server), server.memory_at_rest());
    for batch in 0..count / BATCH {
        abandon(&server, &gate);
        // The test is about what stays allocated, so the number of requests that wait at a time is limited.
        if batch % AT_ONCE == 0 {
            at_rest(usize::MAX);
        }
    }
    // The connections of the batches are closed, and backends may have closed some of theirs.
    at_rest(open);
    let after = server.memory_at_rest();
    // `cargo test -- --nocapture` shows this line.
    println!("{count} requests abandoned: {memory} bytes before, {after} after");
    assert!(
        after < memory + 8 * 1024 * 1024,
        "{memory} before, {after} after"
    );
}

const BODIES: &str = r#"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /break:
        mruby.handler: |
          lambda do |env|
            body = http_request("BACKEND/").join[2]
            body.each { |piece| break }
            begin
              [200, {}, [body.join]]
            rescue => error
              [200, {}, [error.message]]
            end
          end
      /raise:
        mruby.handler: |
          lambda do |env|
            body = http_request("BACKEND/").join[2]
            begin
              body.each { |piece| raise "enough" }
            rescue => error
              [200, {}, [error.message]]
            end
          end
      /ignore:
        mruby.handler: |
          lambda { |env| [200, {}, [http_request("BACKEND/").join[0].to_s]] }
      /next:
        - mruby.handler: |
            lambda do |env|
              body = H2O.next.call(env)[2]
              begin
                body.each { |piece| raise "enough" }
              rescue => error
                [200, {}, [error.message + body.join]]
              end
            end
        - proxy.reverse.url: BACKEND/
      /wrapped:
        mruby.handler: |
          Wrapped = Struct.new(:body) do
            def each
              body.each { |piece| yield piece }
            end
          end
          lambda do |env|
            status, headers, body = http_request("BACKEND/").join
            [status, {}, Wrapped.new(body)]
          end
"#;

/// A body that a script does not read to its end closes the connection to its backend at once, and not when the garbage collector has
/// found the body: so few objects are made per request that it may not run for a thousand of them.
#[test]
fn a_body_that_a_script_stops_reading_keeps_no_connection() {
    let backend = Backend::start(|talk| {
        if talk.read_head().is_some() {
            talk.send("HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n");
            let piece = "y".repeat(50_000);
            for _ in 0..1000 {
                if !talk.send(&piece) {
                    return;
                }
            }
        }
    });
    let config = BODIES.replace("BACKEND", backend.url("").trim_end_matches('/'));
    let server = Setup::new(&config).start();
    let open = descriptors(&server);
    for (path, want) in [
        ("/break", "http response body is already consumed"),
        ("/raise", "enough"),
        ("/next", "enough"),
    ] {
        for _ in 0..20 {
            assert_eq!(server.ask(&format!("GET {path}")).text(), want);
        }
        eventually(path, || (descriptors(&server) <= open + 2).then_some(()));
    }
    // The collector is asked to find the bodies that scripts never read once there are some dozens of them.
    for _ in 0..200 {
        assert_eq!(server.ask("GET /ignore").text(), "200");
    }
    eventually("/ignore", || {
        (descriptors(&server) <= open + 80).then_some(())
    });
    let open = descriptors(&server);
    for _ in 0..20 {
        let mut client = Raw::connect(server.port());
        client.send("GET /wrapped HTTP/1.1\r\nhost: a.test\r\n\r\n");
        client.read_until(b"yyyy");
    }
    eventually("/wrapped", || {
        (descriptors(&server) <= open + 2).then_some(())
    });
}
