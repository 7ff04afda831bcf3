//! How TLS connections to backends are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use h2o_exchange::{BodyPipe, RequestBody};
use h2o_http::{BodyLength, Method};
use h2o_upstream::{Balancing, UpstreamSettings};
use rcgen::{CertificateParams, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::kit::{
    GET, LONG, OK, TestRequest, ask, balanced, on_standing_clock, on_worker, pass, send, settings,
    settle, until,
};

type Peer = StreamOwned<ServerConnection, std::net::TcpStream>;

/// Starts a backend that runs `script` on every connection. Returns its URL, and how each connection ended: `Ok` if with
/// close_notify.
fn backend(
    script: impl Fn(&mut Peer) + Send + 'static,
) -> (String, mpsc::Receiver<Result<(), ErrorKind>>) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["name.example".to_string()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let (sender, ends) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut peer = StreamOwned::new(connection, stream);
            script(&mut peer);
            let end = peer.read_to_end(&mut Vec::new());
            let _ = sender.send(end.map(|_| ()).map_err(|error| error.kind()));
        }
    });
    (url, ends)
}

fn read_head(peer: &mut Peer) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        peer.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

#[test]
fn a_connection_that_is_not_needed_any_more_ends_with_a_word() {
    for (answer, keepalive) in [
        (OK, Duration::ZERO),
        (OK, Duration::from_millis(300)),
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
            LONG,
        ),
    ] {
        let (url, ends) = backend(move |peer| {
            read_head(peer);
            peer.write_all(answer.as_bytes()).unwrap();
        });
        on_standing_clock(|worker| async move {
            let settings = UpstreamSettings {
                keepalive,
                ..settings()
            };
            let upstream = balanced(&[(&url, 1)], Balancing::RoundRobin, settings);
            assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
            // The sweep of idle connections runs about a second after the connection's idle timeout.
            pass(keepalive.min(Duration::from_secs(1)) + Duration::from_secs(2)).await;
            assert_eq!(until(|| ends.try_recv().ok()).await, Ok(()));
        });
    }
}

#[test]
fn a_request_that_is_cut_off_does_not_end_as_if_it_were_whole() {
    let (sender, has_read) = mpsc::channel();
    let (url, ends) = backend(move |peer| {
        read_head(peer);
        sender.send(()).unwrap();
    });
    on_worker(|worker| async move {
        let upstream = balanced(&[(&url, 1)], Balancing::RoundRobin, settings());
        let pipe = Rc::new(BodyPipe::default());
        let request = TestRequest {
            method: Method::Post,
            length: BodyLength::Unknown,
            body: RequestBody::Stream(Rc::clone(&pipe)),
            ..GET
        };
        pipe.push("begun");
        let sending =
            tokio::task::spawn_local(
                async move { send(&worker, &upstream, request).await.is_ok() },
            );
        until(|| has_read.try_recv().ok()).await;
        settle().await;
        sending.abort();
        let end = until(|| ends.try_recv().ok()).await;
        assert_eq!(end, Err(ErrorKind::UnexpectedEof));
    });
}
