//! HTTP/3 and QUIC clients that cost a server more than they cost themselves. Each attack runs against a server of its own with one
//! thread. The server must close the attacker's connection, or take no harm. Its memory may grow at any time by at most two bytes for
//! each byte that it was sent, and a megabyte; it must answer another client all the while; and its status must count what it closed.
//! "Closed, budget" means closed with H3_EXCESSIVE_LOAD, because the connection has used up its budget (`connection-budget`).
//!
//! | what the client does | what becomes of it | test |
//! |---|---|---|
//! | first flights from 200 ports, and no further packet | at most three times the bytes go out; forgotten after `handshake-timeout`; most get a Retry | `handshakes_nobody_goes_on_with` |
//! | half a ClientHello from each port | as for first flights | `halves_of_a_client_hello` |
//! | handshakes whose last message the client never sends | closed when the server has sent too many packets for the handshake | `handshakes_that_never_end` |
//! | random bytes | no answer | `random_datagrams` |
//! | tokens that are not the server's | Retry or an error, three times the bytes at most | `tokens_the_server_never_gave` |
//! | unknown versions, and Version Negotiation packets | one short answer each, or none | `versions_nobody_knows` |
//! | Initial packets in short datagrams | no answer | `initial_packets_in_short_datagrams` |
//! | short headers with unknown connection ids | stateless resets, fewer and shorter than the packets | `packets_of_connections_that_never_were` |
//! | CRYPTO frames with gaps | the server keeps at most one handshake buffer | `crypto_frames_with_gaps` |
//! | CRYPTO frames after the handshake | closed by TLS | `crypto_frames_after_the_handshake` |
//! | empty STREAM frames | closed, budget | `empty_stream_frames` |
//! | requests reset at once | closed, budget | `requests_that_are_reset` |
//! | requests whose response is refused at once | closed, budget | `responses_that_are_stopped` |
//! | windows that grow a byte at a time | closed, budget | `windows_that_trickle` |
//! | PING | closed, budget | `pings` |
//! | nothing but PADDING | nothing is sent back | `padding` |
//! | PATH_CHALLENGE | closed, budget | `path_challenges` |
//! | a new port for each packet | closed, budget | `migrations` |
//! | packets from addresses where nobody receives | at most three times the bytes go there | `paths_that_nobody_confirms` |
//! | PATH_CHALLENGE from such addresses | at most three times the bytes go there | `challenges_from_elsewhere` |
//! | a key update for each packet | closed, budget | `key_updates` |
//! | key updates that do not wait for confirmation | packets with keys of later phases cannot be read | `key_updates_before_the_last_is_confirmed` |
//! | NEW_CONNECTION_ID that retires the one before | closed, CONNECTION_ID_LIMIT_ERROR | `new_connection_ids` |
//! | RETIRE_CONNECTION_ID for every id that the server issues | closed, budget | `retired_connection_ids` |
//! | ACK of what was never sent | closed, PROTOCOL_VIOLATION | `optimistic_acknowledgments` |
//! | ACK of hundreds of ranges, again and again | harmless | `acknowledgments_of_many_ranges` |
//! | STREAM data with gaps | closed, or little is kept | `streams_with_gaps` |
//! | STREAM_DATA_BLOCKED | closed, budget | `blocked_frames` |
//! | DATAGRAM frames that belong to no tunnel | closed, budget | `datagrams_of_no_tunnel` |
//! | field sections that refer to insertions that never come | at most one waits on each stream | `field_sections_that_wait_for_ever` |
//! | insertions into the QPACK table that no field section uses | closed, budget, or harmless | `a_table_that_churns` |
//! | small field sections that are large when decoded | stream reset, then closed, budget | `field_sections_that_expand` |
//! | long field sections | stream reset, then closed, budget | `field_sections_too_long` |
//! | a frame whose length is exabytes | closed, H3_GENERAL_PROTOCOL_ERROR | `a_frame_without_end` |
//! | unknown frames | closed, budget | `unknown_frames` |
//! | unidirectional streams of unknown types | closed, budget | `unknown_stream_types` |
//! | a second control stream | closed, H3_STREAM_CREATION_ERROR | `a_second_control_stream` |
//! | SETTINGS twice | closed, H3_FRAME_UNEXPECTED | `settings_twice` |
//! | PRIORITY_UPDATE | closed, budget | `priority_updates` |
//! | PRIORITY_UPDATE for requests that never come | closed, H3_EXCESSIVE_LOAD | `priority_updates_of_requests_to_come` |
//! | MAX_PUSH_ID and CANCEL_PUSH | closed, budget or H3_ID_ERROR | `push_ids` |
//! | a hundred responses that are not read | the server keeps little more than their windows | `a_hundred_responses_nobody_reads` |
//! | a hundred responses whose windows grow a little | little more than the windows is kept | `a_hundred_responses_read_slowly` |
//! | a hundred responses that are not acknowledged | the server keeps one congestion window | `responses_nobody_acknowledges` |
//! | tunnels that are opened and reset | closed, budget | `tunnels_that_are_reset` |
//! | tunnels that carry nothing | at most one for each stream | `tunnels_that_are_silent` |
//!
//! Request heads that come a byte at a time, slow request bodies and slow readers are tested in `http3_connections.rs`.

mod handshakes;
mod http3_frames;
mod slow_clients;
mod transport_frames;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2o_tests::quic::{Close, Options, Quic, frame};
use h2o_tests::{Deadline, Server, Setup};

/// Bytes by which the server's memory may grow for each byte that it was sent, and (`MEMORY`) in addition to that.
const MEMORY_PER_BYTE: usize = 2;
const MEMORY: usize = 1024 * 1024;
/// Number of requests of the well-behaved client that the server must answer during an attack, and again after it.
const ANSWERS: usize = 20;
/// Number of hostile frames after which the server must have closed the connection.
const FRAMES: usize = 6000;
/// How long the server may take to close a connection after the last frame of an attack.
const CLOSES: Duration = Duration::from_secs(10);
/// The directive that makes the server forget a handshake after two seconds.
const HANDSHAKE_TIMEOUT: &str = "handshake-timeout: 2";

const EXCESSIVE_LOAD: u64 = 0x107;

fn start(settings: &str, attributes: &str) -> Server {
    let settings = format!("num-threads: 1\nlimit-request-body: 100000\n{settings}");
    Setup::http3(&settings, attributes, "      /status: { status: ON }")
        .file("www/a.txt", "hello")
        .file("www/large", vec![b'x'; 20_000_000])
        .start()
}

/// Sets the flag when it is dropped, so also when the attack panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests a small file again and again while `goes_on` is true. Returns how long each response took.
fn ask_while(neighbour: &mut Quic, mut goes_on: impl FnMut(usize) -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while goes_on(times.len()) {
        let clock = Deadline::after_secs(60);
        let answer = neighbour.ask("/a.txt");
        times.push(clock.elapsed());
        assert_eq!((answer.status, &answer.content[..]), (200, &b"hello"[..]));
        // The pause is the client's behaviour; the test waits for nothing here.
        std::thread::sleep(Duration::from_millis(1));
    }
    times
}

fn percentile_99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let at = (times.len() * 99).div_ceil(100);
    times[at.saturating_sub(1)]
}

/// The value of a counter in the server's status.
fn counter(client: &mut Quic, name: &str) -> u64 {
    let answer = client.ask("/status/json");
    let text = String::from_utf8(answer.content).expect("the JSON of the status report is UTF-8");
    let (_, rest) =
        (text.split_once(&format!("\"{name}\":"))).unwrap_or_else(|| panic!("{name}: {text}"));
    let number: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    number.parse().expect("a counter is a number")
}

/// Runs the attack `hostile` while a well-behaved client uses the server, and checks the server's memory. Returns the well-behaved client
/// and the attackers, whose connections stay open until the memory has been checked.
fn attack(server: &Server, hostile: impl FnOnce(u16) -> Vec<Quic>) -> (Quic, Vec<Quic>) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let port = server.port();
    // These requests make the server allocate what it allocates once, such as caches, before its memory is measured.
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
    let mut peak = before;
    let (clients, mut meanwhile) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            ask_while(&mut neighbour, |asked| {
                peak = peak.max(server.memory());
                asked < ANSWERS || !is_over.load(Ordering::Relaxed)
            })
        });
        let over = Over(&is_over);
        let clients = hostile(port);
        drop(over);
        (
            clients,
            asking
                .join()
                .expect("the thread of the other clients does not panic"),
        )
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
        "| {name} | {sent} | {} KB, {} KB, then {} KB | {:.1?} | {:.1?} |",
        peak.saturating_sub(before) / 1024,
        at_once.saturating_sub(before) / 1024,
        memory.saturating_sub(before) / 1024,
        percentile_99(&mut usual),
        percentile_99(&mut meanwhile),
    );
    assert!(
        peak.max(at_once) <= limit,
        "{peak} bytes of memory meanwhile, {before} before, {sent} were sent"
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

/// Runs an attack that the server must end by closing the connection with this HTTP/3 error code; the counter `counted` must be 1.
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

/// Runs an attack that must use up the budget of its connection.
fn is_overdrawn(hostile: impl FnOnce(&mut Quic)) {
    is_ended(hostile, EXCESSIVE_LOAD, "connections.overdrawn");
}

/// Sends up to `packets` packets, with the frames that `each` returns, until the server closes the connection.
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

/// The frame repeated as many times as fit into a packet.
fn packed(frame: &[u8]) -> Vec<u8> {
    frame.repeat(1100 / frame.len())
}

/// A client whose address the server has not validated: bytes sent and received are counted, and it acknowledges nothing.
fn stranger(port: u16, options: Options) -> Quic {
    let mut client = Quic::new(port, options);
    client.acknowledges = false;
    client
}

/// Receives what the server sends to the clients until it has been silent for 1.5 s, which is longer than its probe timeouts. Returns the
/// largest ratio of bytes received to bytes sent, which must not exceed three.
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
        #[expect(
            clippy::cast_precision_loss,
            reason = "the numbers are small enough for an exact conversion"
        )]
        let factor = client.bytes_received as f64 / client.bytes_sent as f64;
        factor
    });
    let most = factors.fold(0.0, f64::max);
    assert!(most <= 3.0, "{most} bytes are sent for each one received");
    most
}
