//! HTTP/2 requests and connections that end early.

use std::rc::Rc;

use h2o_exchange::RequestBody;
use h2o_http::BodyLength;
use h2o_http2::frame::{self, FrameType, StreamId, flags};
use h2o_http2::{ErrorCode, PeerError};
use tokio::time::Instant;

use super::kit::*;
use crate::http2::driver;

/// A HEADERS frame with `:status: 200` and no other field.
fn ok(stream: u32, end: bool) -> Vec<u8> {
    let end = if end { flags::END_STREAM } else { 0 };
    let flags = flags::END_HEADERS | end;
    let mut out = frame::header(1, FrameType::HEADERS, flags, StreamId::new(stream)).to_vec();
    out.push(0x88);
    out
}

fn data(stream: u32, len: usize, end: bool) -> Vec<u8> {
    let end = if end { flags::END_STREAM } else { 0 };
    let mut out = frame::header(len, FrameType::DATA, end, StreamId::new(stream)).to_vec();
    out.resize(out.len() + len, b'x');
    out
}

#[test]
fn goaway_refuses_what_the_server_has_not_looked_at() {
    run(async {
        let (connection, socket) = link(settings());
        let mut bare = Bare::new(socket).await;
        settle().await;
        let first = ask(&connection, "/1");
        let second = ask(&connection, "/2");
        bare.find(FrameType::HEADERS).await;
        let mut out = Vec::new();
        frame::goaway(&mut out, StreamId::new(1), ErrorCode::NO_ERROR, "");
        bare.send(&out).await;
        let failure = failure(second).await;
        assert_eq!((&*failure.text, failure.refused), ("refused stream", true));
        assert!(!connection.can_request() && !connection.is_reusable());
        // A request that the server has accepted completes; then the connection ends.
        bare.send(&ok(1, false)).await;
        bare.send(&data(1, 5, true)).await;
        let reply = reply(first).await;
        assert_eq!(reply.length, Some(5));
        drop(reply);
        while bare.frame().await.is_some() {}
    });
}

#[test]
fn what_is_not_http2_is_a_protocol_violation() {
    run(async {
        let cases: &[&[u8]] = &[
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            // The server sends PING in the place of its SETTINGS.
            b"\0\0\x08\x06\0\0\0\0\0abcdefgh",
        ];
        for bytes in cases {
            let (connection, mut socket) = link(settings());
            let call = ask(&connection, "/");
            settle().await;
            tokio::io::AsyncWriteExt::write_all(&mut socket, bytes)
                .await
                .unwrap();
            let failure = failure(call).await;
            assert_eq!(
                failure.text,
                "protocol violation",
                "{}",
                bytes.escape_ascii()
            );
            assert!(!connection.is_reusable());
        }
    });
}

#[test]
fn misdeeds_on_one_stream_are_that_streams() {
    run(async {
        let switching = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03101";
        let cases: &[(&[u8], &str)] = &[
            (switching, "protocol violation"),
            (&data(1, 1, false), "protocol violation"),
        ];
        for (bytes, want) in cases {
            let (connection, socket) = link(settings());
            let call = ask(&connection, "/");
            let mut bare = Bare::new(socket).await;
            bare.send(bytes).await;
            assert_eq!(failure(call).await.text, *want);
            let reset = bare.find(FrameType::RST_STREAM).await;
            assert_eq!(reset.stream, 1);
            assert!(
                connection.can_request(),
                "a reset of one stream leaves the connection usable"
            );
        }
        // The server sends more body than it has announced.
        let (connection, socket) = link(settings());
        let call = ask(&connection, "/");
        let mut bare = Bare::new(socket).await;
        // The fields are `:status: 200` and `content-length: 3` (literal without indexing).
        bare.send(b"\0\0\x05\x01\x04\0\0\0\x01\x88\x0f\x0d\x013")
            .await;
        let mut body = source(reply(call).await.body);
        bare.send(&data(1, 4, false)).await;
        assert_eq!(content(&mut body).await, Err("protocol violation".into()));
    });
}

#[test]
fn content_that_ends_too_soon_is_handed_on_as_far_as_it_came() {
    run(async {
        // The end of the stream arrives together with the head and the body, or together with the body after the client has taken
        // the head.
        for is_late in [false, true] {
            let (connection, socket) = link(settings());
            let call = ask(&connection, "/");
            let mut bare = Bare::new(socket).await;
            // The fields are `:status: 200` and `content-length: 3` (literal without indexing).
            let head = b"\0\0\x05\x01\x04\0\0\0\x01\x88\x0f\x0d\x013";
            let content = data(1, 2, true);
            let mut body = if is_late {
                bare.send(head).await;
                let body = source(reply(call).await.body);
                bare.send(&content).await;
                body
            } else {
                bare.send(&[head, &content[..]].concat()).await;
                source(reply(call).await.body)
            };
            let first = piece(&mut body).await.unwrap().unwrap();
            assert_eq!(first.len(), 2);
            let end = piece(&mut body).await.unwrap().unwrap_err();
            assert_eq!(end.to_string(), "protocol violation");
            assert!(
                connection.can_request(),
                "a reset of one stream leaves the connection usable"
            );
        }
    });
}

#[test]
fn misdeeds_of_the_connection_fail_all_and_are_answered() {
    run(async {
        let (connection, socket) = link(settings());
        let mut bare = Bare::new(socket).await;
        settle().await;
        let first = ask(&connection, "/");
        let second = ask(&connection, "/");
        bare.send(&ok(1, false)).await;
        let mut body = source(reply(first).await.body);
        // The server sends a response without `:status`.
        bare.send(b"\0\0\x01\x01\x04\0\0\0\x03\x84").await;
        assert_eq!(failure(second).await.text, "protocol violation");
        assert_eq!(content(&mut body).await, Err("protocol violation".into()));
        let goaway = bare.find(FrameType::GOAWAY).await;
        let (code, _) = PeerError::BadResponse.answer().unwrap();
        assert_eq!(goaway.payload[4..8], code.0.to_be_bytes());
        assert!(bare.frame().await.is_none(), "the connection is closed");
    });
}

#[test]
fn content_beyond_the_window_is_a_flow_control_error() {
    run(async {
        let (connection, socket) = link(with_window(1000));
        let call = ask(&connection, "/");
        let mut bare = Bare::new(socket).await;
        bare.send(&ok(1, false)).await;
        let mut body = source(reply(call).await.body);
        bare.send(&data(1, 1000, false)).await;
        bare.send(&data(1, 1, false)).await;
        let mut got = 0;
        let error = loop {
            match piece(&mut body).await {
                Some(Ok(piece)) => got += piece.len(),
                Some(Err(error)) => break error.to_string(),
                None => panic!("the content ended without an error"),
            }
            settle().await;
        };
        assert_eq!((got, &*error), (1000, "flow control error"));
    });
}

#[test]
fn whoever_waits_is_told_when_the_task_ends() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(1000);
        let (connection, driver) =
            driver::open(settings(), 0, ours, Rc::default(), &worker().timers);
        let task = worker().spawn(driver);
        let (pipe, body) = pipe();
        let call = call(&connection, post(BodyLength::Unknown), body);
        settle().await;
        task.abort();
        assert_eq!(failure(call).await.text, "I/O error");
        assert!(pipe.is_abandoned());
        assert!(!connection.can_request());
        drop(theirs);
    });
}

#[test]
fn a_server_that_takes_nothing_does_not_make_the_output_grow() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (connection, driver) =
            driver::open(settings(), 0, ours, Rc::default(), &worker().timers);
        worker().spawn(driver);
        let (mut reader, mut writer) = tokio::io::split(theirs);
        let began = Instant::now();
        // The server sends PINGs without end, and never reads the acknowledgements.
        let flood = tokio::task::spawn_local(async move {
            let mut out = Vec::new();
            frame::settings(&mut out, &[]);
            for _ in 0..100 {
                frame::ping(&mut out, 0, [0; 8]);
            }
            let mut sent = 0;
            while tokio::io::AsyncWriteExt::write_all(&mut writer, &out)
                .await
                .is_ok()
            {
                sent += out.len();
                out.drain(..out.len().min(9) * usize::from(sent == out.len()));
                assert!(sent < 10 << 20, "the client reads PINGs without limit");
            }
        });
        let call = call(&connection, get("/"), RequestBody::None);
        assert_eq!(
            failure(call).await.text,
            "first byte timeout",
            "the client stops reading, so no response arrives"
        );
        assert!(began.elapsed() >= std::time::Duration::from_secs(5));
        drop(flood);
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_buf(&mut reader, &mut rest).await;
    });
}

/// Pseudo-random numbers, the same for each seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = self.roll(most + 1);
        (0..len).map(|_| self.roll(256).to_le_bytes()[0]).collect()
    }

    /// A random frame, which may be valid.
    fn frame(&mut self) -> Vec<u8> {
        let stream = StreamId::new(u32::try_from(self.roll(9)).unwrap());
        let mut out = Vec::new();
        match self.roll(14) {
            0..4 => out = ok(stream.get(), self.roll(4) == 0),
            4..8 => {
                let len = usize::try_from(self.roll(3000)).unwrap();
                out = data(stream.get(), len, self.roll(4) == 0);
            }
            8 => frame::rst_stream(
                &mut out,
                stream,
                ErrorCode(u32::try_from(self.roll(12)).unwrap()),
            ),
            9 => frame::window_update(&mut out, stream, u32::try_from(self.roll(70_000)).unwrap()),
            10 => {
                let id = u16::try_from(self.roll(10)).unwrap();
                let value = u32::try_from(self.roll(100_000)).unwrap();
                frame::settings(&mut out, &[(id, value)]);
            }
            11 => frame::ping(&mut out, 0, [7; 8]),
            12 if self.roll(20) == 0 => {
                frame::goaway(&mut out, stream, ErrorCode::NO_ERROR, "");
            }
            // A frame with random type, flags and payload.
            _ => {
                let payload = self.bytes(40);
                let kind = FrameType(self.roll(20).to_le_bytes()[0]);
                let flags = self.roll(256).to_le_bytes()[0];
                out = frame::header(payload.len(), kind, flags, stream).to_vec();
                out.extend(payload);
            }
        }
        out
    }
}

#[test]
fn whatever_a_server_sends_every_call_ends() {
    for seed in 1..400_u64 {
        run(async {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let (connection, socket) = link(with_window(5000));
            let mut calls = Vec::new();
            let mut pipes = Vec::new();
            for number in 0..4 {
                if number % 2 == 0 {
                    calls.push(ask(&connection, "/"));
                } else {
                    let (pipe, body) = pipe();
                    pipe.push(vec![0; 20_000]);
                    calls.push(call(&connection, post(BodyLength::Unknown), body));
                    pipes.push(pipe);
                }
            }
            settle().await;
            let mut bare = Bare::new(socket).await;
            for _ in 0..dice.roll(60) {
                let frame = dice.frame();
                let at = usize::try_from(dice.roll(frame.len() as u64 + 1)).unwrap();
                if bare.try_send(&frame[..at]).await.is_err() {
                    break;
                }
                if dice.roll(2) == 0 {
                    settle().await;
                }
                if bare.try_send(&frame[at..]).await.is_err() {
                    break;
                }
                if dice.roll(20) == 0
                    && let Some(call) = calls.pop()
                {
                    call.abort();
                }
            }
            // The uploads end. At random, the server keeps the connection open without sending anything more, or closes it.
            pipes.iter().for_each(|pipe| pipe.finish(Ok(())));
            let silent = (dice.roll(2) == 0).then_some(bare);
            for call in calls {
                if let Ok(reply) = call.await.expect("the task does not panic")
                    && let h2o_exchange::Body::Stream(mut source) = reply.body
                {
                    let _ = content(&mut source).await;
                }
            }
            settle().await;
            drop(silent);
            assert!(
                pipes
                    .iter()
                    .all(|pipe| pipe.is_abandoned() || pipe.queued() == 0),
                "seed {seed}"
            );
        });
    }
}
