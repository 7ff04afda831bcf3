//! Valid HTTP/1 responses of backends.

use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use h2o_exchange::Body;
use h2o_http::Method;

use crate::kit::{
    GET, InterimResponses, TestRequest, answering, ask, backend, content, next, on_worker, send,
    send_and_tell, settings, settle, text, until, upstream,
};

#[test]
fn heads_come_back_as_they_were_sent() {
    let (address, _heads) = answering(
        "HTTP/1.1 418 Short and stout\r\nServer: x\r\nX-Two: a\r\nx-two: b\r\n\
         Connection: Close\r\ncontent-length: 3\r\n\r\npot",
    );
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let reply = send(&worker, &upstream, GET).await.unwrap();
        assert_eq!(reply.status.as_u16(), 418);
        assert_eq!(reply.reason.as_deref(), Some("Short and stout"));
        assert_eq!(
            text(&reply.headers),
            "server: x\nx-two: a\nx-two: b\nconnection: Close\n"
        );
        assert_eq!(reply.length, Some(3));
        assert!(reply.closes && !reply.is_tunnel);
        assert!(matches!(reply.body, Body::Bytes(bytes) if bytes == "pot"));
    });
}

#[test]
fn a_reason_is_told_if_it_is_not_the_usual_one() {
    for (line, want) in [
        ("HTTP/1.1 200 OK", None),
        ("HTTP/1.1 200 Fine", Some("Fine")),
        ("HTTP/1.1 200 ", Some("")),
        ("HTTP/1.1 404 Not Found", None),
    ] {
        let (address, _heads) = answering(format!("{line}\r\ncontent-length: 0\r\n\r\n"));
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            let reply = send(&worker, &upstream, GET).await.unwrap();
            assert_eq!(reply.reason.as_deref(), want, "{line}");
            assert!(matches!(reply.body, Body::Empty));
        });
    }
}

#[test]
fn some_responses_have_a_length_and_no_content() {
    let cases = [
        (Method::Head, "200 OK", 5),
        (Method::Get, "304 Not Modified", 6),
    ];
    for (method, status, length) in cases {
        let request = || TestRequest {
            method: method.clone(),
            ..GET
        };
        let (address, heads) = answering(format!(
            "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n"
        ));
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            let upstream = &upstream;
            let reply = send(&worker, upstream, request()).await.unwrap();
            assert_eq!(reply.length, Some(length), "{status}");
            assert!(matches!(reply.body, Body::Empty), "{status}");
            ask(&worker, upstream, request()).await;
        });
        let used: Vec<_> = heads.try_iter().map(|(index, _)| index).collect();
        assert_eq!(used, [0, 0], "{status}");
    }
}

/// The same response in each of the three ways to mark the end of a body.
fn framings(content: &[u8]) -> [Vec<u8>; 3] {
    let mut sized = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        content.len()
    );
    let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for chunk in content.chunks(5000) {
        write!(chunked, "{:x};x=y\r\n", chunk.len()).unwrap();
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\ntrailer: x\r\n\r\n");
    let until_close = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    sized.push_str("");
    [
        [sized.as_bytes(), content].concat(),
        chunked,
        [&until_close, content].concat(),
    ]
}

#[test]
fn content_arrives_however_it_is_framed_and_cut() {
    let large: Vec<u8> = (0..400_000u32)
        .map(|at| at.to_le_bytes()[0] ^ b'x')
        .collect();
    for want in [&b"x"[..], b"small content", &large] {
        for answer in framings(want) {
            for piece in [1, 7, 1000, usize::MAX] {
                if want.len() > 1000 && piece < 1000 {
                    continue;
                }
                let answer = answer.clone();
                let address = backend(move |_, mut peer| {
                    peer.head();
                    peer.0.set_nodelay(true).unwrap();
                    for (index, piece) in answer.chunks(piece.min(answer.len())).enumerate() {
                        peer.send(piece);
                        if index % 16 == 0 {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                    }
                });
                on_worker(|worker| async move {
                    let upstream = upstream(&[address], settings());
                    let reply = send(&worker, &upstream, GET).await.unwrap();
                    let (got, end) = content(reply.body).await;
                    assert_eq!(end, Ok(()));
                    assert!(got == want, "{} bytes in pieces of {piece}", want.len());
                });
            }
        }
    }
}

#[test]
fn small_content_that_comes_with_the_head_is_not_streamed() {
    let [sized, chunked, _] = framings(b"content");
    for (answer, length) in [(sized, Some(7)), (chunked, None)] {
        let (address, _heads) = answering(answer);
        on_worker(|worker| async move {
            let upstream = upstream(&[address], settings());
            let reply = send(&worker, &upstream, GET).await.unwrap();
            assert_eq!(reply.length, length);
            assert!(matches!(reply.body, Body::Bytes(bytes) if bytes == "content"));
        });
    }
}

#[test]
fn what_the_client_does_not_take_is_not_read() {
    const LEN: usize = 64 << 20;
    let (sender, stuck) = std::sync::mpsc::channel();
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {LEN}\r\n\r\n"));
        let mut left = LEN;
        while left > 0 {
            peer.0.set_nonblocking(true).unwrap();
            let mut taken = peer.0.write(&vec![0; left.min(1 << 20)]);
            peer.0.set_nonblocking(false).unwrap();
            if taken.is_err() {
                sender.send(LEN - left).unwrap();
                taken = peer.0.write(&[0]);
            }
            match taken {
                Ok(taken) => left -= taken,
                Err(_) => return,
            }
        }
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let reply = send(&worker, &upstream, GET).await.unwrap();
        let Body::Stream(mut source) = reply.body else {
            panic!("content longer than one read is streamed")
        };
        let first = next(&mut source).await.unwrap().unwrap();
        assert!(first.len() <= 64 * 1024);
        // The backend sends until the socket takes no more.
        let mut before = until(|| stuck.try_recv().ok()).await;
        settle().await;
        while let Some(more) = stuck.try_iter().last() {
            before = more;
            settle().await;
        }
        assert!(before < LEN / 2, "the proxy read {before} bytes ahead");
        let (rest, end) = content(Body::Stream(source)).await;
        assert_eq!((first.len() + rest.len(), end), (LEN, Ok(())));
    });
}

#[test]
fn small_chunks_do_not_make_small_pieces() {
    let (go, wait) = std::sync::mpsc::channel();
    let wait = Mutex::new(wait);
    let address = backend(move |_, mut peer| {
        peer.head();
        peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        wait.lock().unwrap().recv().unwrap();
        peer.send("1\r\nx\r\n".repeat(1000) + "0\r\n\r\n");
    });
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let reply = send(&worker, &upstream, GET).await.unwrap();
        let Body::Stream(mut source) = reply.body else {
            panic!("content that arrives after the head is streamed")
        };
        go.send(()).unwrap();
        let (mut pieces, mut len) = (0, 0);
        while let Some(piece) = next(&mut source).await {
            len += piece.unwrap().len();
            pieces += 1;
        }
        assert_eq!(len, 1000);
        assert!(pieces < 10, "the content came in {pieces} pieces");
    });
}

#[test]
fn interim_responses_are_told_in_order() {
    let (address, _heads) = answering(
        "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 100 x\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nlink: b\r\nx: y\r\n\r\n\
         HTTP/1.1 204 No Content\r\nz: 1\r\n\r\n",
    );
    on_worker(|worker| async move {
        let upstream = upstream(&[address], settings());
        let told = InterimResponses::default();
        let reply = send_and_tell(&worker, &upstream, GET, &told).await.unwrap();
        assert_eq!(text(&reply.headers), "z: 1\n");
        let want = [(103, "link: a\n"), (100, ""), (103, "link: b\nx: y\n")];
        assert_eq!(
            *told.borrow(),
            want.map(|(status, fields)| (status, fields.to_string()))
        );
    });
}
