//! HTTP/1 requests as backends receive them.

use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{Body, BodyPipe, FileRange, OpenFile, RequestBody, Trace};
use h2o_http::{BodyLength, Method};
use h2o_upstream::UpstreamSettings;

use crate::kit::{
    GET, InterimResponses, LONG, OK, TestRequest, answering, ask, backend, content, next,
    on_worker, post, send, send_and_tell, settings, settle, until, upstream,
};

/// Sends a request to a backend that reads the head and `content` bytes of the body. Returns what the backend received.
fn sent(request: TestRequest, content: usize, settings: UpstreamSettings) -> String {
    let (sender, received) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        let mut request = peer.head().into_bytes();
        if request.starts_with(b"PROXY") {
            assert!(!request.is_empty());
        }
        request.extend(peer.read(content));
        peer.send(OK);
        sender.send(request).unwrap();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings);
        assert_eq!(ask(&worker, &upstream, request).await, "200 ok");
    });
    let received = received.recv_timeout(LONG).unwrap();
    String::from_utf8(received)
        .unwrap()
        .replace(&address.to_string(), "BACKEND")
}

#[test]
fn requests_are_as_they_are_documented() {
    let request = TestRequest {
        fields: &[("accept", "*/*"), ("via", "1.1 x")],
        ..GET
    };
    assert_eq!(
        sent(request, 0, settings()),
        "GET /path?query HTTP/1.1\r\nhost: BACKEND\r\nconnection: keep-alive\r\n\
         accept: */*\r\nvia: 1.1 x\r\n\r\n"
    );
    assert_eq!(
        sent(post("content"), 7, settings()),
        "POST /path?query HTTP/1.1\r\nhost: BACKEND\r\nconnection: keep-alive\r\n\
         content-length: 7\r\n\r\ncontent"
    );
    let empty = TestRequest {
        method: Method::Post,
        length: BodyLength::Known(0),
        ..GET
    };
    assert!(sent(empty, 0, settings()).ends_with("\r\ncontent-length: 0\r\n\r\n"));
}

#[test]
fn connections_begin_with_the_proxy_line() {
    let settings = UpstreamSettings {
        proxy_protocol: true,
        keepalive: Duration::ZERO,
        ..settings()
    };
    assert_eq!(
        sent(GET, 0, settings),
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\n\
         GET /path?query HTTP/1.1\r\nhost: BACKEND\r\nconnection: close\r\n\r\n"
    );
}

/// Digits that differ between positions, so that misplaced bytes are noticed.
fn large(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"0123456789abcdefg"[at % 17]).collect()
}

#[test]
fn large_content_arrives_from_memory_and_from_files() {
    let want = large(3_000_000);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&want).unwrap();
    file.rewind().unwrap();
    let range = FileRange {
        file: OpenFile::new(OwnedFd::from(file)),
        offset: 0,
        len: want.len() as u64,
    };
    for body in [
        Bytes::from(want.clone()).into_body(),
        RequestBody::File(range),
    ] {
        let (sender, received) = mpsc::channel();
        let len = want.len();
        let address = backend(move |_, mut peer| {
            peer.head();
            // The backend reads nothing for a while, so that the socket becomes full.
            std::thread::sleep(Duration::from_millis(100));
            sender.send(peer.read(len)).unwrap();
            peer.send(OK);
        });
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            let request = TestRequest {
                method: Method::Put,
                length: BodyLength::Known(len as u64),
                body,
                ..GET
            };
            assert_eq!(ask(&worker, &upstream, request).await, "200 ok");
        });
        assert!(
            received.recv().unwrap() == want,
            "the content differs from what was sent"
        );
    }
}

trait IntoBody {
    fn into_body(self) -> RequestBody;
}

impl IntoBody for Bytes {
    fn into_body(self) -> RequestBody {
        RequestBody::Bytes(self)
    }
}

/// Makes a request with a streamed body, and returns it with the pipe of the body.
fn streamed(length: BodyLength) -> (TestRequest, Rc<BodyPipe>) {
    let pipe = Rc::new(BodyPipe::default());
    let request = TestRequest {
        method: Method::Post,
        length,
        body: RequestBody::Stream(Rc::clone(&pipe)),
        waits_for_content: true,
        ..GET
    };
    (request, pipe)
}

#[test]
fn content_that_is_there_as_a_whole_has_a_length() {
    for pieces in [&["con", "tent"][..], &["content"], &[]] {
        let (sender, received) = mpsc::channel();
        let len = pieces.concat().len();
        let address = backend(move |_, mut peer| {
            let head = peer.head();
            sender.send((head, peer.read(len))).unwrap();
            peer.send(OK);
        });
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            let (request, pipe) = streamed(BodyLength::Unknown);
            pieces.iter().for_each(|piece| pipe.push(piece));
            pipe.finish(Ok(()));
            assert_eq!(ask(&worker, &upstream, request).await, "200 ok");
        });
        let (head, content) = received.recv().unwrap();
        let want = format!("\r\ncontent-length: {len}\r\n\r\n");
        assert!(head.ends_with(&want), "{head}");
        assert_eq!(content, pieces.concat().as_bytes());
    }
}

#[test]
fn streamed_content_leaves_as_it_comes() {
    let (sender, received) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        let mut bytes = peer.head().into_bytes();
        for len in ["3\r\none\r\n".len(), "3\r\ntwo\r\n0\r\n\r\n".len()] {
            bytes.extend(peer.read(len));
            sender
                .send(String::from_utf8(bytes.clone()).unwrap())
                .unwrap();
        }
        peer.send(OK);
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = streamed(BodyLength::Unknown);
        let client = tokio::task::spawn_local(async move {
            settle().await;
            assert!(
                received.try_recv().is_err(),
                "nothing is sent before the first piece"
            );
            pipe.push("one");
            let first = until(|| received.try_recv().ok()).await;
            assert!(first.ends_with("\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"));
            pipe.push("two");
            pipe.finish(Ok(()));
            received
        });
        assert_eq!(ask(&worker, &upstream, request).await, "200 ok");
        let second = client.await.unwrap().recv_timeout(LONG).unwrap();
        assert!(second.ends_with("one\r\n3\r\ntwo\r\n0\r\n\r\n"));
    });
}

#[test]
fn a_backend_that_does_not_read_holds_up_the_client() {
    const PIECE: usize = 32 * 1024;
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let address = backend(move |_, mut peer| {
        peer.head();
        wait.lock().unwrap().recv().unwrap();
        peer.read(2000 * PIECE);
        peer.send(OK);
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = streamed(BodyLength::Known(2000 * PIECE as u64));
        let pushed = Rc::new(std::cell::Cell::new(0));
        let count = Rc::clone(&pushed);
        tokio::task::spawn_local(async move {
            while count.get() < 2000 {
                std::future::poll_fn(|context| pipe.poll_room(context)).await;
                pipe.push(vec![0; PIECE]);
                count.set(count.get() + 1);
            }
            pipe.finish(Ok(()));
        });
        let watch = Rc::clone(&pushed);
        let watcher = tokio::task::spawn_local(async move {
            // The upload continues until the client has to wait.
            let mut before = 0;
            until(|| {
                let now = watch.get();
                (now > 0 && std::mem::replace(&mut before, now) == now).then_some(())
            })
            .await;
            go.send(()).unwrap();
            watch.get()
        });
        assert_eq!(ask(&worker, &upstream, request).await, "200 ok");
        let held_up = watcher.await.unwrap();
        assert!(
            held_up < 1000,
            "{held_up} pieces were taken while the backend did not read"
        );
        assert_eq!(pushed.get(), 2000);
    });
}

#[test]
fn an_answer_passes_the_request_and_the_request_goes_on() {
    let (sender, received) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send(OK);
        sender
            .send(peer.read("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n".len()))
            .unwrap();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = streamed(BodyLength::Unknown);
        pipe.push("one");
        let reply = send(&worker, &upstream, request).await.unwrap();
        let Body::Stream(mut source) = reply.body else {
            panic!("the response to an incomplete request is streamed")
        };
        assert_eq!(next(&mut source).await.unwrap().unwrap(), "ok");
        pipe.push("two");
        pipe.finish(Ok(()));
        assert_eq!(next(&mut source).await, None);
    });
    assert_eq!(
        received.recv_timeout(LONG).unwrap(),
        b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    );
}

/// Sends two requests, the first with a slow upload: the backend sends `answer` before the body arrives and `rest` after it.
/// Returns whether both requests used the same connection.
fn is_kept_after(answer: &'static str, rest: &'static str) -> bool {
    let (sender, used) = mpsc::channel();
    let address = backend(move |index, mut peer| {
        if peer.head().starts_with("POST") {
            peer.send(answer);
            peer.read("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n".len());
            peer.send(rest);
            if peer.head().is_empty() {
                return;
            }
        }
        sender.send(index).unwrap();
        peer.send(OK);
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = streamed(BodyLength::Unknown);
        pipe.push("one");
        let reply = send(&worker, &upstream, request).await.unwrap();
        pipe.push("two");
        pipe.finish(Ok(()));
        assert_eq!(content(reply.body).await, (b"ok".to_vec(), Ok(())));
        assert_eq!(ask(&worker, &upstream, GET).await, "200 ok");
    });
    used.recv_timeout(LONG).unwrap() == 0
}

#[test]
fn a_backend_that_answers_early_is_asked_nothing_more_unless_it_has_waited_for_the_content() {
    assert!(!is_kept_after(OK, ""));
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n";
    assert!(is_kept_after(head, "1\r\nk\r\n0\r\n\r\n"));
}

/// Sends a request with a body that does not end. The backend sends the head of its response, and the content together with it
/// (`at_once`) or when the head has arrived; then it closes the connection (`closes`) or reads on. Returns whether the response ends
/// and the rest of the body is abandoned.
fn ends_early(head: &'static str, at_once: bool, closes: bool) -> bool {
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let address = backend(move |_, mut peer| {
        peer.head();
        // If the backend closed the connection with unread bytes, it would be reset before the response arrives.
        peer.read("3\r\none\r\n".len());
        let head = format!("{head}\r\ncontent-length: 2\r\n\r\n");
        if at_once {
            peer.send(head + "no");
        } else {
            peer.send(head);
            wait.lock().unwrap().recv().unwrap();
            peer.send("no");
        }
        if !closes {
            peer.rest();
        }
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = streamed(BodyLength::Unknown);
        pipe.push("one");
        let reply = send(&worker, &upstream, request).await.unwrap();
        go.send(()).unwrap();
        let got = tokio::time::timeout(LONG / 2, content(reply.body)).await;
        got == Ok((b"no".to_vec(), Ok(()))) && pipe.is_abandoned()
    })
}

#[test]
fn a_backend_that_refuses_or_closes_after_its_response_gets_no_more_of_the_request() {
    // Each case: the head of the response, and whether the backend closes the connection.
    let cases = [
        ("HTTP/1.1 200 OK\r\nconnection: close", false),
        ("HTTP/1.1 200 OK\r\nconnection: close, x", false),
        ("HTTP/1.0 200 OK", false),
        ("HTTP/1.1 413 Content Too Large", false),
        ("HTTP/1.1 200 OK", true),
    ];
    let mut kept_up = Vec::new();
    for (head, closes) in cases {
        for at_once in [true, false] {
            if !ends_early(head, at_once, closes) {
                kept_up.push((head, at_once));
            }
        }
    }
    assert_eq!(kept_up, []);
}

#[test]
fn a_client_that_breaks_off_is_no_complete_request() {
    let (sender, received) = mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        sender.send(peer.rest()).unwrap();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let (request, pipe) = streamed(BodyLength::Unknown);
        pipe.push("one");
        let client = Rc::clone(&pipe);
        tokio::task::spawn_local(async move {
            settle().await;
            client.finish(Err("gone".into()));
        });
        assert_eq!(ask(&worker, &upstream, request).await, "I/O error");
    });
    let rest = received.recv_timeout(LONG).unwrap();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", rest.escape_ascii());
}

#[test]
fn content_waits_for_100_or_a_final_response() {
    let cases = [
        ("HTTP/1.1 100 Continue\r\n\r\n", OK, vec![]),
        (
            "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
            OK,
            vec![(103, "link: x\n".to_string())],
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", "ok", vec![]),
    ];
    for (first, second, told_of) in cases {
        let (sender, received) = mpsc::channel();
        let (has_head, head_has_come) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let wait = Mutex::new(wait);
        let address = backend(move |_, mut peer| {
            let head = peer.head();
            assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
            has_head.send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
            peer.0.set_nonblocking(true).unwrap();
            assert!(
                peer.0.read(&mut [0]).is_err(),
                "no content is sent before 100 (Continue)"
            );
            peer.0.set_nonblocking(false).unwrap();
            peer.send(first);
            sender.send(peer.read(7)).unwrap();
            peer.send(second);
        });
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            let told = InterimResponses::default();
            let request = TestRequest {
                expects_continue: true,
                ..post("content")
            };
            tokio::task::spawn_local(async move {
                until(|| head_has_come.try_recv().ok()).await;
                go.send(()).unwrap();
            });
            let reply = send_and_tell(&worker, &upstream, request, &told)
                .await
                .unwrap();
            assert_eq!(content(reply.body).await, (b"ok".to_vec(), Ok(())));
            assert_eq!(told.take(), told_of);
        });
        assert_eq!(received.recv_timeout(LONG).unwrap(), b"content");
    }
}

#[test]
fn nothing_is_expected_without_content() {
    let (address, heads) = answering(OK);
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let request = TestRequest {
            expects_continue: true,
            ..GET
        };
        assert_eq!(ask(&worker, &upstream, request).await, "200 ok");
    });
    assert!(!heads.recv().unwrap().1.contains("expect"));
}

#[test]
fn what_happens_is_noted_for_logs() {
    const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\n\r\n";
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n";
    let address = backend(|_, mut peer| {
        peer.head();
        peer.read(7);
        peer.send(INTERIM.to_owned() + HEAD + "a");
        std::thread::sleep(Duration::from_millis(20));
        peer.send("bc");
        peer.rest();
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let trace = Rc::new(Trace::default());
        let request = TestRequest {
            trace: Some(Rc::clone(&trace)),
            ..post("content")
        };
        let reply = send(&worker, &upstream, request).await.unwrap();
        assert!(trace.request_ended.get().is_some());
        assert_eq!(trace.response_ended.get(), None);
        let (bytes, ended) = content(reply.body).await;
        assert_eq!((&bytes[..], ended), (&b"abc"[..], Ok(())));
        let head = format!(
            "POST /path?query HTTP/1.1\r\nhost: {address}\r\nconnection: keep-alive\r\ncontent-length: 7\r\n\r\n"
        );
        let sent = (trace.sent_head.get(), trace.sent.get());
        assert_eq!(sent, (head.len() as u64, head.len() as u64 + 7));
        let heads = (INTERIM.len() + HEAD.len()) as u64;
        let received = (trace.received_head.get(), trace.received.get());
        assert_eq!(received, (heads, heads + 3));
        let moments = [
            trace.request_begun.get(),
            trace.request_ended.get(),
            trace.response_begun.get(),
            trace.response_ended.get(),
        ];
        assert!(moments.iter().all(Option::is_some) && moments.is_sorted());
        assert!(trace.tls.borrow().is_none());
    });
}
