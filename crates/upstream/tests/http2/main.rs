//! HTTP/2 to an independent server: Go's net/http, over clear text and TLS.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod kit;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{Body, BodyPipe, RequestBody, Trailers, Worker};
use h2o_http::{BodyLength, Name};
use h2o_upstream::{Failure, Protocol, Upstream, UpstreamSettings};
use kit::{Backends, TestRequest, get, on_worker, post, send, settings, text, upstream};

#[test]
fn requests_share_a_connection_over_clear_text() {
    let backends = Backends::start();
    on_worker(async |worker| {
        let upstream = upstream(&backends.clear(), kit::cleartext());
        let first = send(&worker, &upstream, get("/hello")).await.unwrap();
        assert_eq!(first.protocol, Protocol::Http2);
        assert_eq!(text(first.body).await, "HTTP/2.0 te=trailers");
        for len in at_once(50, &worker, &upstream, "/big?n=100").await {
            assert_eq!(len.unwrap(), 100_000);
        }
        let reply = send(&worker, &upstream, get("/connections")).await.unwrap();
        assert_eq!(text(reply.body).await, "1");
    });
}

#[test]
fn requests_that_come_at_once_open_as_few_connections_as_they_need() {
    let backends = Backends::start();
    // Each case: the number of requests, the limit of streams, and the number of connections.
    for (requests, max_streams, want) in [(50, 100, "1"), (50, 10, "5")] {
        for (address, settings) in [
            (backends.clear(), kit::cleartext()),
            (backends.both(), settings()),
        ] {
            on_worker(async |worker| {
                let upstream = upstream(
                    &address,
                    UpstreamSettings {
                        http2_max_streams: max_streams,
                        ..settings.clone()
                    },
                );
                // The request for `/connections` opens a connection itself, which the backend counts as well.
                let other = kit::upstream(
                    &address,
                    UpstreamSettings {
                        http2_max_streams: 100,
                        ..settings.clone()
                    },
                );
                let before = send(&worker, &other, get("/connections")).await.unwrap();
                let before: usize = text(before.body).await.parse().unwrap();
                for len in at_once(requests, &worker, &upstream, "/big?n=100").await {
                    assert_eq!(len.unwrap(), 100_000);
                }
                let after = send(&worker, &upstream, get("/connections")).await.unwrap();
                let after: usize = text(after.body).await.parse().unwrap();
                assert_eq!(
                    (after - before).to_string(),
                    want,
                    "{address} {max_streams}"
                );
            });
        }
    }
}

#[test]
fn requests_that_come_at_once_keep_to_the_backends_limit_of_streams() {
    let backends = Backends::start();
    on_worker(async |worker| {
        let upstream = upstream(&backends.narrow(), kit::cleartext());
        for len in at_once(30, &worker, &upstream, "/big?n=100").await {
            assert_eq!(len.expect("no request is refused"), 100_000);
        }
        let reply = send(&worker, &upstream, get("/connections")).await.unwrap();
        let connections: usize = text(reply.body).await.parse().unwrap();
        assert!((6..=8).contains(&connections), "{connections}");
    });
}

#[test]
fn nobody_waits_long_for_a_backend_that_sends_no_settings() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    on_worker(async |worker| {
        let settings = UpstreamSettings {
            connect_timeout: Duration::from_millis(100),
            first_byte_timeout: Duration::from_secs(1),
            ..kit::cleartext()
        };
        let upstream = upstream(&address, settings);
        for len in at_once(3, &worker, &upstream, "/").await {
            assert_eq!(len.unwrap_err().text, "first byte timeout");
        }
    });
    listener.set_nonblocking(true).unwrap();
    let connections = std::iter::from_fn(|| listener.accept().ok()).count();
    assert_eq!(connections, 3, "each request has opened a connection");
}

#[test]
fn nobody_waits_for_a_connection_that_cannot_be_opened() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    on_worker(async |worker| {
        let upstream = upstream(&address, kit::cleartext());
        for len in at_once(20, &worker, &upstream, "/").await {
            assert_eq!(len.unwrap_err().text, "connection refused");
        }
    });
}

/// Sends `count` requests at the same time, and returns the length of each response's body.
async fn at_once(
    count: usize,
    worker: &Rc<Worker>,
    upstream: &Arc<Upstream>,
    target: &'static str,
) -> Vec<Result<usize, Failure>> {
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let (worker, upstream) = (Rc::clone(worker), Arc::clone(upstream));
            tokio::task::spawn_local(async move {
                let reply = send(&worker, &upstream, get(target)).await?;
                Ok(text_len(reply.body).await)
            })
        })
        .collect();
    let mut lengths = Vec::new();
    for task in tasks {
        lengths.push(task.await.unwrap());
    }
    lengths
}

async fn text_len(body: Body) -> usize {
    kit::content(body).await.unwrap().len()
}

#[test]
fn the_server_chooses_where_nothing_is_said() {
    let backends = Backends::start();
    on_worker(async |worker| {
        let upstream = upstream(&backends.both(), settings());
        for _ in 0..3 {
            let reply = send(&worker, &upstream, get("/hello")).await.unwrap();
            assert_eq!(reply.protocol, Protocol::Http2);
            assert_eq!(text(reply.body).await, "HTTP/2.0 te=trailers");
        }
        // A request that asks for an upgrade uses HTTP/1.
        let ask = TestRequest {
            needs_http1: true,
            ..get("/hello")
        };
        let reply = send(&worker, &upstream, ask).await.unwrap();
        assert_eq!(reply.protocol, Protocol::Http1);
        assert_eq!(text(reply.body).await, "HTTP/1.1 te=");

        let upstream = kit::upstream(&backends.http1(), settings());
        for _ in 0..3 {
            let reply = send(&worker, &upstream, get("/connections")).await.unwrap();
            assert_eq!(reply.protocol, Protocol::Http1);
            assert_eq!(text(reply.body).await, "1", "the connection is used again");
        }
    });
}

#[test]
fn a_ratio_shares_requests_out() {
    let backends = Backends::start();
    on_worker(async |worker| {
        for (ratio, want) in [(0, "1111"), (50, "1212"), (100, "2222")] {
            let settings = UpstreamSettings {
                http2_ratio: Some(ratio),
                ..settings()
            };
            let upstream = upstream(&backends.both(), settings);
            let mut used = String::new();
            for _ in 0..4 {
                let reply = send(&worker, &upstream, get("/hello")).await.unwrap();
                used.push(match reply.protocol {
                    Protocol::Http1 => '1',
                    Protocol::Http2 => '2',
                    Protocol::Http3 => '3',
                    Protocol::Fastcgi => 'f',
                });
                text_len(reply.body).await;
            }
            assert_eq!(used, want, "{ratio}%");
        }
        // A backend without HTTP/2 is sent HTTP/1 requests over connections with keep-alive.
        let settings = UpstreamSettings {
            http2_ratio: Some(100),
            ..settings()
        };
        let upstream = upstream(&backends.http1(), settings);
        for _ in 0..3 {
            let reply = send(&worker, &upstream, get("/connections")).await.unwrap();
            assert_eq!(reply.protocol, Protocol::Http1);
            assert_eq!(text(reply.body).await, "1");
        }
    });
}

#[test]
fn content_of_several_windows_goes_both_ways() {
    let backends = Backends::start();
    for (address, settings) in [
        (backends.clear(), kit::cleartext()),
        (backends.both(), settings()),
    ] {
        on_worker(async |worker| {
            let upstream = upstream(&address, settings.clone());
            let reply = send(&worker, &upstream, get("/big?n=3000")).await.unwrap();
            let content = kit::content(reply.body).await.unwrap();
            assert_eq!(content.len(), 3_000_000);
            for (at, byte) in content.iter().enumerate() {
                assert_eq!(
                    usize::from(*byte),
                    at / 1000 % 256,
                    "content differs at byte {at}"
                );
            }
            // The server echoes a streamed upload, through flow-control windows and a pipe that are all smaller than the upload.
            let pipe = Rc::new(BodyPipe::default());
            let ask = TestRequest {
                body: RequestBody::Stream(Rc::clone(&pipe)),
                length: BodyLength::Unknown,
                ..post("/echo", Bytes::new())
            };
            let client = tokio::task::spawn_local(async move {
                for number in 0..1000_u32 {
                    let room = std::future::poll_fn(|task| pipe.poll_room(task));
                    assert!(room.await > 0);
                    pipe.push(vec![number.to_be_bytes()[3]; 2000]);
                }
                pipe.finish(Ok(()));
            });
            let reply = send(&worker, &upstream, ask).await.unwrap();
            let content = kit::content(reply.body).await.unwrap();
            client.await.unwrap();
            assert_eq!(content.len(), 2_000_000);
            for (at, byte) in content.iter().enumerate() {
                assert_eq!(
                    usize::from(*byte),
                    at / 2000 % 256,
                    "content differs at byte {at}"
                );
            }
            // A POST request whose body is complete from the start.
            let ask = post("/echo", Bytes::from(vec![b'x'; 500_000]));
            let reply = send(&worker, &upstream, ask).await.unwrap();
            assert_eq!(text_len(reply.body).await, 500_000);
        });
    }
}

#[test]
fn an_upload_that_is_refused_ends() {
    let backends = Backends::start();
    on_worker(async |worker| {
        let upstream = upstream(&backends.both(), settings());
        for _ in 0..3 {
            let pipe = Rc::new(BodyPipe::default());
            pipe.push(b"begun");
            let ask = TestRequest {
                body: RequestBody::Stream(Rc::clone(&pipe)),
                length: BodyLength::Known(1_000_000),
                ..post("/refuse", Bytes::new())
            };
            let reply = send(&worker, &upstream, ask).await.unwrap();
            assert_eq!(reply.status.as_u16(), 403);
            drop(reply);
            while !pipe.is_abandoned() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        let reply = send(&worker, &upstream, get("/connections")).await.unwrap();
        assert_eq!(text(reply.body).await, "1");
    });
}

#[test]
fn trailers_and_hints_arrive() {
    let backends = Backends::start();
    on_worker(async |worker| {
        let upstream = upstream(&backends.both(), settings());
        let reply = send(&worker, &upstream, get("/trailers")).await.unwrap();
        let Body::Stream(mut source) = reply.body else {
            panic!("the response has trailers");
        };
        assert_eq!(kit::drain(&mut source).await.unwrap(), b"message");
        let Trailers::Fields(fields) = source.trailers() else {
            panic!("the response has trailers");
        };
        assert_eq!(fields.get(Name::from_lower("grpc-status")), Some(&b"0"[..]));
        let (told, reply) = kit::send_and_tell(&worker, &upstream, get("/hints")).await;
        assert_eq!(told, [103]);
        assert_eq!(text(reply.unwrap().body).await, "hinted");
    });
}

#[test]
fn what_is_given_up_is_cancelled_and_what_breaks_off_is_an_error() {
    let backends = Backends::start();
    on_worker(async |worker| {
        let upstream = upstream(&backends.both(), settings());
        let waiting = {
            let (worker, upstream) = (Rc::clone(&worker), upstream.clone());
            tokio::task::spawn_local(
                async move { send(&worker, &upstream, get("/wait")).await.is_ok() },
            )
        };
        let reply = send(&worker, &upstream, get("/hello")).await.unwrap();
        text_len(reply.body).await;
        for count in ["/waiting", "/cancelled"] {
            loop {
                let reply = send(&worker, &upstream, get(count)).await.unwrap();
                if text(reply.body).await == "1" {
                    break;
                }
            }
            waiting.abort();
        }
        let reply = send(&worker, &upstream, get("/abort")).await.unwrap();
        assert_eq!(kit::content(reply.body).await.unwrap_err(), "I/O error");
    });
}
