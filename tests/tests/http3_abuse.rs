//! HTTP/3 and QUIC clients that cost a server more than they cost themselves. Each has a server of its own, on one thread. The
//! server must end the connection or not mind; hold at most two bytes of memory for each byte it was sent, and a megabyte; answer
//! another client all the while; and count in its status what it ended.
//!
//! | what the client does | what becomes of it | test |
//! |---|---|---|
//! | first flights from 200 ports, nothing more | at most three times the bytes go out; forgotten after `handshake-timeout` | `handshakes_nobody_goes_on_with` |
//! | half a ClientHello | the same | `halves_of_a_client_hello` |
//! | handshakes whose last message never comes | the same, however much the client says besides | `handshakes_that_never_end` |
//! | random bytes | no answer | `random_datagrams` |
//! | tokens that are not the server's | Retry or an error, three times the bytes at most | `tokens_the_server_never_gave` |
//! | versions that are unknown, Version Negotiation | one short answer each, or none | `versions_nobody_knows` |
//! | Initial packets in short datagrams | no answer | `initial_packets_in_short_datagrams` |
//! | short headers with unknown connection ids | stateless resets, fewer and shorter | `packets_of_connections_that_never_were` |
//! | CRYPTO frames with gaps | nothing above a buffer of the handshake is kept | `crypto_frames_with_gaps` |
//! | CRYPTO frames after the handshake | closed by TLS | `crypto_frames_after_the_handshake` |
//! | empty STREAM frames | closed, budget | `empty_stream_frames` |
//! | requests reset at once | closed, budget | `requests_that_are_reset` |
//! | requests whose response is refused at once | closed, budget | `responses_that_are_stopped` |
//! | windows that grow a byte at a time | closed, budget | `windows_that_trickle` |
//! | PING | closed, budget | `pings` |
//! | nothing but PADDING | nothing is sent back | `padding` |
//! | PATH_CHALLENGE | closed, budget | `path_challenges` |
//! | a new port for each packet | closed, budget | `migrations` |
//! | a key update for each packet | closed, budget | `key_updates` |
//! | the same, none confirmed | packets with keys of later phases cannot be read | `key_updates_before_the_last_is_confirmed` |
//! | NEW_CONNECTION_ID that retires the one before | closed, CONNECTION_ID_LIMIT_ERROR | `new_connection_ids` |
//! | RETIRE_CONNECTION_ID of all that is given | closed, budget | `retired_connection_ids` |
//! | ACK of what was never sent | closed, PROTOCOL_VIOLATION | `optimistic_acknowledgments` |
//! | ACK of hundreds of ranges, again and again | harmless | `acknowledgments_of_many_ranges` |
//! | STREAM data with gaps | closed, or little is kept | `streams_with_gaps` |
//! | STREAM_DATA_BLOCKED | closed, budget | `blocked_frames` |
//! | DATAGRAM frames of no tunnel | closed, budget | `datagrams_of_no_tunnel` |
//! | field sections that wait for insertions that never come | as many as there are streams, no more | `field_sections_that_wait_for_ever` |
//! | insertions nobody uses | closed, budget, or harmless | `a_table_that_churns` |
//! | small sections that stand for large ones | stream reset, then closed, budget | `field_sections_that_expand` |
//! | long field sections | stream reset, then closed, budget | `field_sections_too_long` |
//! | a frame that claims exabytes | closed, H3_GENERAL_PROTOCOL_ERROR | `a_frame_without_end` |
//! | unknown frames | closed, budget | `unknown_frames` |
//! | unidirectional streams of unknown types | closed, budget | `unknown_stream_types` |
//! | a second control stream | closed, H3_STREAM_CREATION_ERROR | `a_second_control_stream` |
//! | SETTINGS twice | closed, H3_FRAME_UNEXPECTED | `settings_twice` |
//! | PRIORITY_UPDATE | closed, budget | `priority_updates` |
//! | PRIORITY_UPDATE for requests that do not come | closed, H3_EXCESSIVE_LOAD | `priority_updates_of_requests_to_come` |
//! | MAX_PUSH_ID and CANCEL_PUSH | closed, budget or H3_ID_ERROR | `push_ids` |
//! | a hundred responses that are not read | little more than their windows is kept | `a_hundred_responses_nobody_reads` |
//! | the same, with windows that grow a little | the same | `a_hundred_responses_read_slowly` |
//! | a hundred responses that are not acknowledged | a window of the path is kept | `responses_nobody_acknowledges` |
//! | tunnels that are opened and reset | closed, budget | `tunnels_that_are_reset` |
//! | tunnels that say nothing | as many as there are streams | `tunnels_that_are_silent` |
//!
//! Heads that come a byte at a time, slow bodies and slow readers: `http3_connections.rs`.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2o_tests::http3::{Frame, encode, instruction, kind, section_prefix, varint};
use h2o_tests::quic::{
    Close, Header, Options, Quic, VERSION_1, control_streams, frame, get, long_header, request,
};
use h2o_tests::{Deadline, Folder, Random, Server, Setup, certs, eventually};

/// What the server's memory may grow by for each byte it has been sent, and whatever it has been sent.
const MEMORY_PER_BYTE: usize = 2;
const MEMORY: usize = 1024 * 1024;
/// How often the other client must be answered while an attack goes on, and after it.
const ANSWERS: usize = 20;
/// How many hostile frames a server may take before it ends the connection.
const FRAMES: usize = 6000;
/// How long the server may take to close a connection after the last frame of an attack.
const CLOSES: Duration = Duration::from_secs(10);
/// Seconds after which the server forgets a handshake.
const HANDSHAKE_TIMEOUT: &str = "handshake-timeout: 2";

const EXCESSIVE_LOAD: u64 = 0x107;

fn start(settings: &str, attributes: &str) -> Server {
    let folder = Folder::new();
    certs::self_signed(&folder, "site", certs::Key::EcPkcs8, "localhost");
    let config = format!(
        "
{settings}
num-threads: 1
limit-request-body: 100000
listen: &tls
  host: 127.0.0.1
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/site.crt, key-file: @DIR@/site.key }}
listen:
  <<: *tls
  type: quic
  {attributes}
hosts:
  default:
    paths:
      /: {{ proxy.connect: [ '+127.0.0.1' ], file.dir: @DIR@/www }}
      /status: {{ status: ON }}
"
    );
    Setup::in_folder(folder, &config)
        .file("www/a.txt", "hello")
        .file("www/large", vec![b'x'; 20_000_000])
        .start()
}

/// Says that something is over, also when it ends in a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks for a small file again and again, as a client does, and says how long each answer took.
fn ask_while(neighbour: &mut Quic, goes_on: impl Fn(usize) -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while goes_on(times.len()) {
        let clock = Deadline::after_secs(60);
        let answer = neighbour.ask("/a.txt");
        times.push(clock.elapsed());
        assert_eq!((answer.status, &answer.content[..]), (200, &b"hello"[..]));
        // A client, not a wait.
        std::thread::sleep(Duration::from_millis(1));
    }
    times
}

fn percentile_99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let at = (times.len() * 99).div_ceil(100);
    times[at.saturating_sub(1)]
}

/// A counter of the server's status.
fn counter(client: &mut Quic, name: &str) -> u64 {
    let answer = client.ask("/status/json");
    let text = String::from_utf8(answer.content).expect("JSON is text");
    let (_, rest) =
        (text.split_once(&format!("\"{name}\":"))).unwrap_or_else(|| panic!("{name}: {text}"));
    let number: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    number.parse().expect("a counter is a number")
}

/// Has clients attack a server while another client uses it, and returns how the first of them was ended. They are open until
/// the server's memory has been looked at.
fn attack(server: &Server, hostile: impl FnOnce(u16) -> Vec<Quic>) -> (Quic, Vec<Quic>) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let port = server.port();
    // What is made once is made now.
    for _ in 0..3 {
        let mut client = Quic::open(port);
        for path in ["/none", "/a.txt", "/status/json"] {
            let _ = client.ask(path);
        }
        client.send_once(&frame::close(0x100));
    }
    let mut neighbour = Quic::open(port);
    let mut usual = ask_while(&mut neighbour, |asked| asked < 3 * ANSWERS);
    let before = server.memory_at_rest();

    let is_over = AtomicBool::new(false);
    let (clients, mut meanwhile) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            ask_while(&mut neighbour, |asked| {
                asked < ANSWERS || !is_over.load(Ordering::Relaxed)
            })
        });
        let over = Over(&is_over);
        let clients = hostile(port);
        drop(over);
        (clients, asking.join().expect("everybody else is served"))
    });
    let sent: usize = clients.iter().map(|client| client.bytes_sent).sum();
    let limit = before + MEMORY + MEMORY_PER_BYTE * sent;
    let at_once = server.memory();
    let mut memory = at_once;
    let deadline = Deadline::after_secs(15);
    while memory > limit && !deadline.has_passed() {
        memory = server.memory_at_rest();
    }
    eprintln!(
        "| {name} | {sent} | {} KB, then {} KB | {:.1?} | {:.1?} |",
        at_once.saturating_sub(before) / 1024,
        memory.saturating_sub(before) / 1024,
        percentile_99(&mut usual),
        percentile_99(&mut meanwhile),
    );
    assert!(
        memory <= limit,
        "{memory} bytes of memory, {before} before, {sent} were sent"
    );
    let _ = ask_while(&mut neighbour, |asked| asked < ANSWERS);
    let messages = server.messages();
    assert!(!messages.contains("panicked"), "{messages}");
    (neighbour, clients)
}

/// An attack that the server ends, with an error of HTTP/3 and its counter.
fn is_ended(hostile: impl FnOnce(&mut Quic), code: u64, counted: &str) {
    is_ended_with(
        Options::default(),
        hostile,
        |close| matches!(close, Close::Application(found, _) if *found == code),
        counted,
    );
}

fn is_ended_with(
    options: Options,
    hostile: impl FnOnce(&mut Quic),
    is_right: impl FnOnce(&Close) -> bool,
    counted: &str,
) {
    let server = start("", "");
    let (mut neighbour, clients) = attack(&server, |port| {
        let mut client = Quic::open_with(port, options);
        hostile(&mut client);
        client.comes(CLOSES, |client| client.closed.is_some());
        vec![client]
    });
    let close = clients[0]
        .closed
        .as_ref()
        .expect("the server ends the connection");
    assert!(is_right(close), "{close:?}");
    assert_eq!(counter(&mut neighbour, counted), 1, "{counted}");
}

/// An attack that uses up the connection's budget.
fn is_overdrawn(hostile: impl FnOnce(&mut Quic)) {
    is_ended(hostile, EXCESSIVE_LOAD, "connections.overdrawn");
}

/// Sends frames, `each` in a packet, until the server ends the connection.
fn flood(client: &mut Quic, packets: usize, mut each: impl FnMut(&mut Quic, usize) -> Vec<u8>) {
    for n in 0..packets {
        if client.closed.is_some() {
            return;
        }
        let frames = each(client, n);
        client.send_once(&frames);
        if n % 8 == 7 {
            client.read(Duration::from_millis(1));
        }
    }
}

/// The same frame many times, as much as goes into a packet.
fn packed(frame: &[u8]) -> Vec<u8> {
    frame.repeat(1100 / frame.len())
}

/// A client that may be from anywhere: what it sends and receives is counted, and nothing is acknowledged.
fn stranger(port: u16, options: Options) -> Quic {
    let mut client = Quic::new(port, options);
    client.acknowledges = false;
    client
}

/// Takes in what servers send, until they have been silent for a second and a half, probes included. No server may send more than
/// three times what it got.
fn amplification(clients: &mut [Quic]) -> f64 {
    let mut quiet = Deadline::after(Duration::from_millis(1500));
    while !quiet.has_passed() {
        std::thread::sleep(Duration::from_millis(20));
        for client in &mut *clients {
            if client.receive_only(Duration::ZERO) {
                quiet = Deadline::after(Duration::from_millis(1500));
            }
        }
    }
    let factors = clients.iter().map(|client| {
        #[expect(clippy::cast_precision_loss, reason = "a few thousand bytes")]
        let factor = client.bytes_received as f64 / client.bytes_sent as f64;
        factor
    });
    let most = factors.fold(0.0, f64::max);
    assert!(most <= 3.0, "{most} bytes are sent for each one received");
    most
}

// --- before the handshake is complete ------------------------------------------------------------------------------

#[test]
fn handshakes_nobody_goes_on_with() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let flights = |port| {
        let mut clients: Vec<Quic> = (0..200)
            .map(|_| {
                let mut client = stranger(port, Options::default());
                client.flush();
                // No more than the server's socket takes.
                client.receive_only(Duration::from_secs(5));
                client
            })
            .collect();
        let most = amplification(&mut clients);
        assert!(most > 0.5, "the server answers first flights");
        clients
    };
    // The first time, what the tables of connections take is made.
    let _ = flights(server.port());
    let (mut neighbour, _) = attack(&server, flights);
    eventually("handshakes are counted", || {
        (counter(&mut neighbour, "ssl.errors") >= 400).then_some(())
    });
}

#[test]
fn halves_of_a_client_hello() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let _ = attack(&server, |port| {
        let options = Options {
            hello_piece: 120,
            ..Options::default()
        };
        let mut clients: Vec<Quic> = (0..100)
            .map(|_| {
                let mut client = stranger(port, options.clone());
                let datagrams = client.handshake_datagrams();
                assert!(datagrams.len() > 1);
                client.send_datagram(&datagrams[0]);
                client
            })
            .collect();
        amplification(&mut clients);
        clients
    });
}

#[test]
fn handshakes_that_never_end() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let (mut neighbour, _) = attack(&server, |port| {
        let mut clients: Vec<Quic> = (0..30)
            .map(|_| {
                let mut client = Quic::new(port, Options::default());
                client.flush();
                let deadline = Deadline::after_secs(10);
                while !client.can_send() && !deadline.has_passed() {
                    client.receive_only(Duration::from_millis(50));
                }
                assert!(client.can_send(), "the server's first flight is whole");
                client
            })
            .collect();
        // All but the Finished message of TLS.
        let deadline = Deadline::after_secs(20);
        while clients.iter().any(|client| client.closed.is_none()) {
            assert!(!deadline.has_passed(), "the server waits for ever");
            for client in &mut clients {
                let ping = client.packet(Header::Handshake, &frame::ping());
                client.send_datagram(&ping);
                client.receive_only(Duration::from_millis(2));
            }
        }
        clients
    });
    assert!(counter(&mut neighbour, "ssl.errors") >= 30);
}

#[test]
fn random_datagrams() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut random = Random::new(7);
        let mut clients: Vec<Quic> = (0..8).map(|_| stranger(port, Options::default())).collect();
        for _ in 0..500 {
            for client in &mut clients {
                let len = 1 + random.below(1400);
                let mut bytes = random.bytes(len);
                // Neither a version nor the fixed bit of QUIC: an answer could only be to the latter.
                bytes[0] &= 0x3f;
                client.send_datagram(&bytes);
            }
        }
        amplification(&mut clients);
        assert!(clients.iter().all(|client| client.bytes_received == 0));
        clients
    });
}

#[test]
fn tokens_the_server_never_gave() {
    for attributes in ["", "quic: { retry: ON }"] {
        let server = start(HANDSHAKE_TIMEOUT, attributes);
        let _ = attack(&server, |port| {
            let mut random = Random::new(11);
            let mut clients: Vec<Quic> = (0..60)
                .map(|_| {
                    let len = 1 + random.below(200);
                    let token = random.bytes(len);
                    let mut client = stranger(
                        port,
                        Options {
                            token,
                            ..Options::default()
                        },
                    );
                    client.flush();
                    client
                })
                .collect();
            amplification(&mut clients);
            clients
        });
    }
}

#[test]
fn versions_nobody_knows() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = stranger(port, Options::default());
        let (sent, mut answers) = (1000, 0);
        for n in 0..sent {
            let mut datagram = long_header(0, 0x1a2a_3a4a, b"12345678", b"abcdefgh");
            datagram.resize(1200, 0);
            client.send_datagram(&datagram);
            // Version Negotiation is not answered, whoever sends it.
            let mut negotiation = long_header(0, 0, b"12345678", b"abcdefgh");
            negotiation.extend(VERSION_1.to_be_bytes());
            negotiation.resize(1200, 1);
            client.send_datagram(&negotiation);
            if n % 16 == 15 {
                let before = client.bytes_received;
                client.receive_only(Duration::from_millis(1));
                answers += client.bytes_received - before;
            }
        }
        assert!(
            client
                .versions
                .take()
                .is_some_and(|versions| versions.contains(&VERSION_1))
        );
        assert!(answers <= sent * 60, "{answers} bytes of answers");
        let most = amplification(std::slice::from_mut(&mut client));
        assert!(most < 0.1, "{most}");
        vec![client]
    });
}

#[test]
fn initial_packets_in_short_datagrams() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut clients: Vec<Quic> = (0..200)
            .map(|n| {
                let mut client = stranger(port, Options::default());
                let datagram = client.handshake_datagrams().remove(0);
                client.send_datagram(&datagram[..1199 - n]);
                client
            })
            .collect();
        amplification(&mut clients);
        assert!(clients.iter().all(|client| client.bytes_received == 0));
        clients
    });
}

#[test]
fn packets_of_connections_that_never_were() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut random = Random::new(3);
        // Ids that only differ from one that the server has made, and any others.
        let mut made = Quic::open(port);
        let (_, id) = made.ids[0].clone();
        let mut client = stranger(port, Options::default());
        for n in 0..2000 {
            let mut packet = vec![0x40 | random.bytes(1)[0] & 0x3f];
            let mut id = id.clone();
            if n % 2 == 0 {
                id = random.bytes(id.len());
            } else {
                let at = 1 + random.below(id.len() - 1);
                id[at] ^= random.bytes(1)[0];
            }
            packet.extend(id);
            let len = 30 + random.below(60);
            packet.extend(random.bytes(len));
            client.send_datagram(&packet);
            // What looks like a reset of a live connection is none.
            if n % 50 == 0 {
                made.send_datagram(&random.bytes(39));
            }
        }
        let most = amplification(std::slice::from_mut(&mut client));
        assert!(most < 1.0, "{most}");
        assert_eq!(made.ask("/a.txt").status, 200);
        vec![client, made]
    });
}

#[test]
fn crypto_frames_with_gaps() {
    let server = start(HANDSHAKE_TIMEOUT, "");
    let _ = attack(&server, |port| {
        let mut clients: Vec<Quic> = (0..20)
            .map(|_| {
                let mut client = stranger(port, Options::default());
                for n in 0..200 {
                    let frame = frame::crypto(1 + n * 301, &[1; 300]);
                    let token = Vec::new();
                    let packet = client.packet(Header::Initial(&token), &frame);
                    client.send_datagram(&packet);
                    client.receive_only(Duration::ZERO);
                }
                client
            })
            .collect();
        amplification(&mut clients);
        clients
    });
}

#[test]
fn crypto_frames_after_the_handshake() {
    is_ended_with(
        Options::default(),
        |client| {
            flood(client, 200, |_, n| {
                let offset = u64::try_from(n).expect("few") * 600;
                frame::crypto(offset, &[0x0b; 600])
            });
        },
        |close| matches!(close, Close::Transport(_, _)),
        "http3-errors.transport",
    );
}

// --- frames of QUIC ------------------------------------------------------------------------------------------------

#[test]
fn empty_stream_frames() {
    is_overdrawn(|client| {
        let stream = client.next_request();
        let head = request("POST", "/a.txt", &[]);
        client.send_stream(stream, &head, false);
        let empty = client.stream_frame(stream, &[], false);
        flood(client, FRAMES, |_, _| packed(&empty));
    });
}

#[test]
fn requests_that_are_reset() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let head = client.stream_frame(stream, &get("/large"), false);
            let len = get("/large").len() as u64;
            [
                head,
                frame::reset_stream(stream, 0x10c, len),
                frame::stop_sending(stream, 0x10c),
            ]
            .concat()
        });
    });
}

#[test]
fn responses_that_are_stopped() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let head = client.stream_frame(stream, &get("/large"), true);
            [head, frame::stop_sending(stream, 0x10c)].concat()
        });
    });
}

#[test]
fn windows_that_trickle() {
    let options = Options {
        max_stream_data: 1,
        ..Options::default()
    };
    is_ended_with(
        options,
        |client| {
            let streams: Vec<u64> = (0..50)
                .map(|_| client.send_request(&get("/large")))
                .collect();
            flood(client, FRAMES, |_, n| {
                let window = 2 + u64::try_from(n).expect("few");
                let frames = streams
                    .iter()
                    .map(|stream| frame::max_stream_data(*stream, window));
                frames.collect::<Vec<_>>().concat()
            });
        },
        |close| matches!(close, Close::Application(EXCESSIVE_LOAD, _)),
        "connections.overdrawn",
    );
}

#[test]
fn pings() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |_, _| {
            packed(&[frame::ping(), frame::padding(1)].concat())
        })
    });
}

#[test]
fn padding() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        client.read(Duration::from_millis(50));
        let before = client.bytes_received;
        flood(&mut client, 3000, |_, _| frame::padding(1000));
        let answers = client.bytes_received - before;
        assert!(
            answers < client.bytes_sent / 20,
            "{answers} bytes of answers"
        );
        if client.closed.is_none() {
            assert_eq!(client.ask("/a.txt").status, 200);
        }
        vec![client]
    });
}

#[test]
fn path_challenges() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |_, n| {
            packed(&frame::path_challenge((n as u64).to_be_bytes()))
        });
    });
}

#[test]
fn migrations() {
    let server = start("", "");
    let (mut neighbour, _) = attack(&server, |port| {
        let mut client = Quic::open(port);
        for n in 0..300_u16 {
            let last = u8::try_from(1 + n % 250).expect("less than 251");
            client.move_to([127, 0, 1, last]);
            client.send_once(&[frame::ping(), frame::padding(40)].concat());
            client.read(Duration::from_millis(5));
        }
        vec![client]
    });
    // CONNECTION_CLOSE went to an address that the client has left.
    assert_eq!(counter(&mut neighbour, "connections.overdrawn"), 1);
}

#[test]
fn key_updates() {
    is_overdrawn(|client| {
        for _ in 0..1000 {
            client.update_keys();
            client.send(&frame::ping());
            client.comes(CLOSES, Quic::is_acknowledged);
            if client.closed.is_some() {
                return;
            }
        }
    });
}

#[test]
fn key_updates_before_the_last_is_confirmed() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        flood(&mut client, 2000, |client, _| {
            client.update_keys();
            frame::ping()
        });
        vec![client]
    });
}

#[test]
fn new_connection_ids() {
    is_ended_with(
        Options::default(),
        |client| {
            flood(client, FRAMES, |_, n| {
                let frames = (1..30_u64).map(|each| {
                    let sequence = 29 * (n as u64) + each;
                    let mut id = [7; 8];
                    id[..4].copy_from_slice(&sequence.to_be_bytes()[4..]);
                    let mut token = [9; 16];
                    token[..8].copy_from_slice(&sequence.to_be_bytes());
                    frame::new_connection_id(sequence, sequence, &id, token)
                });
                frames.collect::<Vec<_>>().concat()
            });
        },
        |close| matches!(close, Close::Transport(0x09, _)),
        "http3-errors.transport",
    );
}

#[test]
fn retired_connection_ids() {
    is_overdrawn(|client| {
        for _ in 0..FRAMES {
            if client.closed.is_some() {
                return;
            }
            let mut given = std::mem::take(&mut client.ids);
            given.sort();
            // The newest is used, the others are retired.
            if let Some((_, newest)) = given.last() {
                client.destination.clone_from(newest);
            }
            let frames: Vec<Vec<u8>> = (given.iter())
                .take(given.len().saturating_sub(1))
                .map(|(sequence, _)| frame::retire_connection_id(*sequence))
                .collect();
            client.ids.extend(given.pop());
            client.send_once(&[frames.concat(), frame::ping()].concat());
            client.read(Duration::from_millis(3));
        }
    });
}

#[test]
fn optimistic_acknowledgments() {
    is_ended_with(
        Options::default(),
        |client| {
            let _ = client.send_request(&get("/large"));
            flood(client, 200, |_, n| {
                let until = 1000 * (n as u64 + 1);
                frame::ack(&[(0, until)])
            });
        },
        |close| matches!(close, Close::Transport(0x0a, _)),
        "http3-errors.transport",
    );
}

#[test]
fn acknowledgments_of_many_ranges() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        for _ in 0..600 {
            client.ask("/a.txt");
        }
        // All of them are old news.
        let numbers = client.received_numbers();
        let ranges: Vec<(u64, u64)> = (numbers.iter().step_by(2))
            .map(|number| (*number, *number))
            .collect();
        flood(&mut client, 2000, |_, _| {
            frame::ack(&ranges[..ranges.len().min(250)])
        });
        client.read(Duration::from_millis(100));
        assert_eq!(client.ask("/a.txt").status, 200);
        vec![client]
    });
}

#[test]
fn streams_with_gaps() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        let streams: Vec<u64> = (0..50).map(|_| client.next_request()).collect();
        // A byte in three, from the end of the window to its beginning: nothing can be read.
        flood(&mut client, 4000, |_, n| {
            let stream = streams[n % 50];
            let at = 300_000 - 3 * 30 * (n as u64 / 50);
            let bytes = (0..30).map(|each| frame::stream(stream, at - 3 * each, b"x", false));
            bytes.collect::<Vec<_>>().concat()
        });
        vec![client]
    });
}

#[test]
fn blocked_frames() {
    is_overdrawn(|client| {
        let stream = client.send_request(&get("/large"));
        flood(client, FRAMES, |_, n| {
            packed(&frame::stream_data_blocked(stream, n as u64))
        });
    });
}

#[test]
fn datagrams_of_no_tunnel() {
    is_overdrawn(|client| {
        flood(client, 40_000, |_, _| {
            packed(&frame::datagram(&[varint(25), vec![1; 4]].concat()))
        });
    });
}

// --- HTTP/3 --------------------------------------------------------------------------------------------------------

#[test]
fn field_sections_that_wait_for_ever() {
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let mut client = Quic::open(port);
        // They refer to the first insertion, which never comes.
        let mut section = section_prefix(16_384, 1, 1);
        section.push(0x80);
        section.extend(&encode(&[("x", "y".repeat(3000))])[2..]);
        for _ in 0..100 {
            let head = Frame::headers(section.clone()).bytes();
            client.send_request(&head);
            client.read(Duration::from_millis(2));
        }
        client.comes(Duration::from_secs(2), |client| client.closed.is_some());
        vec![client]
    });
    assert_eq!(
        clients[0].closed, None,
        "as many may wait as there are streams"
    );
}

#[test]
fn a_table_that_churns() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        client.send_stream(6, &instruction::capacity(16_384), false);
        for n in 0..2000_u32 {
            if client.closed.is_some() {
                break;
            }
            let inserts =
                (0..30).map(|each| instruction::insert(b"x", format!("{n}-{each}").as_bytes()));
            client.send_stream(6, &inserts.collect::<Vec<_>>().concat(), false);
            client.read(Duration::from_millis(1));
        }
        vec![client]
    });
}

#[test]
fn field_sections_that_expand() {
    is_overdrawn(|client| {
        let table = [
            instruction::capacity(16_384),
            instruction::insert(b"x", &[b'y'; 16_000]),
        ];
        client.send_stream(6, &table.concat(), false);
        let mut section = section_prefix(16_384, 1, 1);
        section.extend([0x80; 900]);
        let head = Frame::headers(section).bytes();
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            client.stream_frame(stream, &head, true)
        });
    });
}

#[test]
fn field_sections_too_long() {
    is_overdrawn(|client| {
        // One that is there, and many of which the server need not wait for the end.
        let section = encode(&[("x", "y".repeat(400_000))]);
        let _ = client.send_request(&Frame::headers(section).bytes());
        let claim = [varint(kind::HEADERS), varint(500_000), vec![0; 20]].concat();
        let mut before = None;
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let len = claim.len() as u64;
            let reset = before
                .replace(stream)
                .map(|stream| frame::reset_stream(stream, 0x10c, len));
            [
                client.stream_frame(stream, &claim, false),
                reset.unwrap_or_default(),
            ]
            .concat()
        });
    });
}

#[test]
fn a_frame_without_end() {
    is_ended(
        |client| {
            let stream = client.next_request();
            let head = [varint(0x21 + 0x1f * 7), varint((1 << 62) - 1)].concat();
            client.send_stream(stream, &head, false);
            flood(client, 380, |client, _| {
                client.stream_frame(stream, &[7; 1000], false)
            });
        },
        0x101,
        "http3-errors.general-protocol",
    );
}

#[test]
fn unknown_frames() {
    is_overdrawn(|client| {
        let stream = client.next_request();
        let unknown = Frame::new(0x21, Vec::new()).bytes().repeat(300);
        flood(client, FRAMES, |client, _| {
            client.stream_frame(stream, &unknown, false)
        });
    });
}

#[test]
fn unknown_stream_types() {
    is_overdrawn(|client| {
        flood(client, 2 * FRAMES, |client, _| {
            let stream = client.next_unidirectional();
            client.stream_frame(stream, &varint(0x21 + 0x1f * stream), true)
        });
    });
}

#[test]
fn a_second_control_stream() {
    is_ended(
        |client| client.send_stream(14, &control_streams(&[])[0].1, false),
        0x103,
        "http3-errors.stream-creation",
    );
}

#[test]
fn settings_twice() {
    is_ended(
        |client| client.send_stream(2, &Frame::settings(&[]).bytes(), false),
        0x105,
        "http3-errors.frame-unexpected",
    );
}

#[test]
fn priority_updates() {
    is_overdrawn(|client| {
        let stream = client.send_request(&get("/large"));
        let frames = Frame::priority_update(stream, "u=1").bytes().repeat(60);
        flood(client, FRAMES, |client, _| {
            client.stream_frame(2, &frames, false)
        });
    });
}

#[test]
fn priority_updates_of_requests_to_come() {
    is_ended(
        |client| {
            flood(client, FRAMES, |client, n| {
                let frames = (0..40).map(|each| {
                    let stream = 4 * ((40 * n as u64 + each) % 90);
                    Frame::priority_update(stream, "u=1").bytes()
                });
                let frames = frames.collect::<Vec<_>>().concat();
                client.stream_frame(2, &frames, false)
            });
        },
        EXCESSIVE_LOAD,
        "http3-errors.excessive-load",
    );
}

#[test]
fn push_ids() {
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, n| {
            let frames = (0..100)
                .map(|each| Frame::with_id(kind::MAX_PUSH_ID, 100 * n as u64 + each).bytes());
            let frames = frames.collect::<Vec<_>>().concat();
            client.stream_frame(2, &frames, false)
        });
    });
}

#[test]
fn a_hundred_responses_nobody_reads() {
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let mut client = Quic::open_with(
            port,
            Options {
                max_stream_data: 1000,
                ..Options::default()
            },
        );
        let streams: Vec<u64> = (0..100)
            .map(|_| client.send_request(&get("/large")))
            .collect();
        client.wait_for("the windows", |client| {
            streams
                .iter()
                .all(|stream| client.received(*stream).len() == 1000)
        });
        vec![client]
    });
    assert_eq!(clients[0].closed, None);
}

#[test]
fn a_hundred_responses_read_slowly() {
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let options = Options {
            max_stream_data: 1000,
            ..Options::default()
        };
        let mut client = Quic::open_with(port, options);
        let streams: Vec<u64> = (0..100)
            .map(|_| client.send_request(&get("/large")))
            .collect();
        for window in [1000, 2500, 4000] {
            for stream in &streams {
                client.send(&frame::max_stream_data(*stream, window));
            }
            client.wait_for("the windows", |client| {
                let window = usize::try_from(window).expect("small");
                streams
                    .iter()
                    .all(|stream| client.received(*stream).len() == window)
            });
        }
        vec![client]
    });
    assert_eq!(clients[0].closed, None);
}

#[test]
fn responses_nobody_acknowledges() {
    let server = start("", "");
    let _ = attack(&server, |port| {
        let mut client = Quic::open(port);
        client.acknowledges = false;
        for _ in 0..100 {
            let frame = {
                let stream = client.next_request();
                client.stream_frame(stream, &get("/large"), true)
            };
            client.send_once(&frame);
        }
        let quiet = Deadline::after_secs(2);
        while !quiet.has_passed() {
            client.receive_only(Duration::from_millis(50));
        }
        vec![client]
    });
}

/// The head of a request for a tunnel.
fn connect(port: u16) -> Vec<u8> {
    let authority = format!("127.0.0.1:{port}");
    Frame::headers(encode(&[
        (":method", "CONNECT"),
        (":authority", &authority),
    ]))
    .bytes()
}

#[test]
fn tunnels_that_are_reset() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = target.local_addr().expect("it has one").port();
    let head = connect(port);
    is_overdrawn(|client| {
        flood(client, FRAMES, |client, _| {
            let stream = client.next_request();
            let open = client.stream_frame(stream, &head, false);
            let len = head.len() as u64;
            [
                open,
                frame::reset_stream(stream, 0x10c, len),
                frame::stop_sending(stream, 0x10c),
            ]
            .concat()
        });
    });
}

#[test]
fn tunnels_that_are_silent() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let head = connect(target.local_addr().expect("it has one").port());
    let server = start("", "");
    let (_, clients) = attack(&server, |port| {
        let mut client = Quic::open_with(
            port,
            Options {
                max_stream_data: 4000,
                ..Options::default()
            },
        );
        for _ in 0..100 {
            let stream = client.next_request();
            client.send_stream(stream, &head, false);
            client.wait_for("the answer", |client| client.answer(stream).is_some());
            assert_eq!(client.answer(stream).expect("it is there").status, 200);
        }
        vec![client]
    });
    assert_eq!(clients[0].closed, None);
}
