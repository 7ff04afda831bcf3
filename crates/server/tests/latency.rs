//! Tests of the latency optimisation of HTTP/2 (small TLS records), with settings that make every network path count as slow.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;
mod identity;
mod tls_client;

use h2o_testkit::patient;
use h2o_testkit::tls::{Client, client_config, record_lens};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpMaxSeg;
use rustix::net::{AddressFamily, SocketType};
use tls_client::{Running, content, get, preface};

/// Size of the file that the client downloads, in bytes.
const LEN: usize = 300_000;
/// Maximum segment size (MSS) of TCP that the client announces.
const CLIENT_MSS: u32 = 1400;

/// Downloads the file. Returns the lengths of the TLS records in which the server sent it.
fn records(settings: &str) -> Vec<usize> {
    let server = Running::start(&[], settings, "      /: { file.dir: FOLDER }\n");
    std::fs::write(server.folder.path().join("large"), vec![b'x'; LEN]).unwrap();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    setsockopt(&socket, TcpMaxSeg, &CLIENT_MSS).unwrap();
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], server.port()));
    rustix::net::connect(&socket, &to).unwrap();
    let socket = patient(socket.into());
    let mut client = Client::new(&client_config(b"h2"), socket);
    client.handshake();
    let request = [preface(), get(1, "/large", &[])].concat();
    client.send(&request);
    let before = client.wire.len();
    client.receive_until(|received| content(received, 1).1);
    assert_eq!(content(&client.received, 1).0, vec![b'x'; LEN]);
    record_lens(&client.wire[before..])
}

#[test]
fn on_a_long_path_records_stay_as_large_as_a_packet() {
    let short = records("");
    assert!(short.contains(&(16_384 + 22)), "{short:?}");
    let long = records(
        "http2-latency-optimization-min-rtt: 0\nhttp2-latency-optimization-max-additional-delay: 10000\nhttp2-latency-optimization-max-cwnd: 4294967295\n",
    );
    // One record fits into one packet. TCP timestamps, if enabled, take 12 bytes of the packet.
    let packet = *long.iter().max().unwrap();
    assert!(packet == 1400 || packet == 1388, "{long:?}");
    let full = long.iter().filter(|&&len| len == packet).count();
    assert!(full > LEN / 1400 / 2, "{long:?}");
    // With `http2-latency-optimization-max-cwnd: 0` every congestion window exceeds the limit: the server sends full records from the
    // start.
    let wide = records(
        "http2-latency-optimization-min-rtt: 0\nhttp2-latency-optimization-max-additional-delay: 10000\nhttp2-latency-optimization-max-cwnd: 0\n",
    );
    let full = wide.iter().filter(|&&len| len == 16_384 + 22).count();
    assert!(full > LEN / 16_384 / 2, "{wide:?}");
}
