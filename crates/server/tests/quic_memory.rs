//! Tests how much heap memory HTTP/3 connections hold on their worker's thread, as counted by the allocator.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod http3_client;
mod identity;
mod trick;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use embedded::Embedded;
use h2o_config::Directive;
use h2o_exchange::{Body, BodyUse, Exchange, Handler, Outcome, Response, Scope};
use h2o_http::{Headers, StatusCode};
use h2o_quic::StreamId;
use http3_client::Client;
use identity::quic_listener;
use trick::handlers;

/// An allocator that counts the bytes which each thread has allocated and not freed.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // The thread's counter may no longer exist: a thread that ends frees memory after its thread-local variables.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

#[expect(unsafe_code, reason = "the methods of an allocator are unsafe")]
// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is also that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, which is also that of the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A handler that answers with the number of bytes of heap memory that its worker's thread holds.
struct Held;

impl Handler for Held {
    fn on_request(&self, _: &mut Exchange) -> Outcome {
        let body = Body::Bytes(HELD.with(Cell::get).to_string().into());
        Outcome::Done(Response::new(StatusCode::OK, Headers::new(), body))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }
}

const DIRECTIVES: &[Directive<Scope>] = &[handlers("test.held", |scope, _| {
    scope.handlers.push(Box::new(Held));
    Ok(())
})];

fn start() -> (tempfile::TempDir, Embedded) {
    let folder = identity::folder();
    let files = folder.path().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("large"), vec![b'x'; 4_000_000]).unwrap();
    let files = files.display();
    let server = Embedded::start(DIRECTIVES, |port| {
        let quic = quic_listener(folder.path(), port);
        format!(
            "num-threads: 1
http3-idle-timeout: 600
{quic}hosts:
  default:
    paths:
      /: {{ file.dir: {files} }}
      /held: {{ test.held: ON }}
"
        )
    });
    (folder, server)
}

fn ask(client: &mut Client, path: &str) -> StreamId {
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", path),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0)"),
        ("accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
    ];
    client.ask(&head, true)
}

/// Asks the server how many bytes of heap memory its worker's thread holds.
fn held(client: &mut Client) -> isize {
    let stream = ask(client, "/held");
    client.until(|client| client.answer(stream).has_ended);
    let text = String::from_utf8(client.answer(stream).content.clone());
    text.unwrap().parse().unwrap()
}

/// Opens `count` connections, each of which has made one request.
fn connect(server: &Embedded, count: usize) -> Vec<Client> {
    let connect_one = |_| {
        let mut client = Client::connect(server.port);
        held(&mut client);
        client
    };
    let mut clients: Vec<Client> = (0..count).map(connect_one).collect();
    clients.iter_mut().for_each(Client::settle);
    clients
}

/// Largest number of bytes of heap memory that an idle connection may hold. Memory that the C library allocates is not counted: what
/// ciphers have computed from keys, which a thread keeps for a limited number of keys.
const IDLE: isize = 16_000;

#[test]
fn an_idle_connection_holds_no_buffers() {
    let (_folder, server) = start();
    // Many connections are opened, so that the server has idle ones free as much memory as they can.
    let others = connect(&server, 260);
    let mut observer = Client::connect(server.port);
    held(&mut observer);
    let before = held(&mut observer);
    let idle = connect(&server, 20);
    let each = (held(&mut observer) - before) / 20;
    eprintln!("{each} bytes per idle connection");
    assert!(each <= IDLE, "{each} bytes per idle connection");
    drop((idle, others));
}

/// Largest number of bytes of heap memory that a handshake may hold whose client has sent a ClientHello and nothing more. Memory that the C
/// library allocates is not counted.
const HALF_OPEN: isize = 23_500;

#[test]
fn a_handshake_that_its_client_leaves_holds_little() {
    // With more handshakes in progress than 24, clients get a Retry first.
    const COUNT: usize = 20;
    let (_folder, server) = start();
    let mut observer = Client::connect(server.port);
    // The first handshakes are not measured: they make tables of the server grow.
    let first: Vec<Client> = (0..4).map(|_| Client::half_open(server.port)).collect();
    held(&mut observer);
    let before = held(&mut observer);
    let left: Vec<Client> = (first.len()..COUNT)
        .map(|_| Client::half_open(server.port))
        .collect();
    let each = (held(&mut observer) - before) / left.len().cast_signed();
    eprintln!("{each} bytes per handshake");
    assert!(
        each > 5_000,
        "only {each} bytes per handshake: the handshakes have not begun"
    );
    assert!(each <= HALF_OPEN, "{each} bytes per handshake");
}

#[test]
fn streams_whose_clients_do_not_read_hold_less_than_their_windows() {
    const STREAMS: usize = 99;
    const WINDOW: usize = 32 * 1024;
    let (_folder, server) = start();
    let mut observer = Client::connect(server.port);
    let mut client = Client::stalled(server.port, WINDOW as u64);
    held(&mut observer);
    let before = held(&mut observer);
    for _ in 0..STREAMS {
        ask(&mut client, "/large");
    }
    client.settle();
    let all = usize::try_from(held(&mut observer) - before).unwrap();
    assert!(
        all > STREAMS * 1000,
        "only {all} bytes: the responses have not begun"
    );
    assert!(all < STREAMS * WINDOW, "{all} bytes for all responses");
}
