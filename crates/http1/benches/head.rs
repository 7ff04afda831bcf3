//! Benchmark of the heads of one exchange over HTTP/1: the request's head is parsed, the response's head is written.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::{Headers, Known, RequestHead, ResponseHead, Scheme, StatusCode};
use h2o_http1::{Next, Received, ServerConnection, Settings};

const SHORTEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const H2LOAD: &[u8] =
    b"GET /1k.txt HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nuser-agent: h2load nghttp2/1.52.0\r\n\r\n";
const CURL: &[u8] =
    b"GET /1k.txt HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n";
const BROWSER: &[u8] =
    b"GET /assets/app.css?v=3 HTTP/1.1\r\nHost: www.example.com\r\nConnection: keep-alive\r\n\
      sec-ch-ua: \"Chromium\";v=\"124\", \"Google Chrome\";v=\"124\", \"Not-A.Brand\";v=\"99\"\r\n\
      sec-ch-ua-mobile: ?0\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 \
      (KHTML, like Gecko) Chrome/124.0.0.0 Safari/537.36\r\nsec-ch-ua-platform: \"Linux\"\r\n\
      Accept: text/css,*/*;q=0.1\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\n\
      Sec-Fetch-Dest: style\r\nReferer: https://www.example.com/\r\n\
      Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-GB,en;q=0.9\r\n\
      Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n";

fn main() {
    let bench = kit::Bench::from_arguments();
    for (name, title, request) in [
        (
            "parse-h2load",
            "Request head of h2load, first of its connection",
            H2LOAD,
        ),
        (
            "parse-curl",
            "Request head of curl, first of its connection",
            CURL,
        ),
        (
            "parse-browser",
            "Request head of a browser, first of its connection",
            BROWSER,
        ),
    ] {
        bench.case(name, title, || parse(request));
    }
    for (name, title, request) in [
        (
            "respond",
            "Response head of a file, to the shortest request",
            SHORTEST,
        ),
        (
            "exchange-h2load",
            "Heads of one exchange with h2load",
            H2LOAD,
        ),
        (
            "exchange-browser",
            "Heads of one exchange with a browser",
            BROWSER,
        ),
    ] {
        bench.case(name, title, || exchange(request));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the benchmark may begin at any instant"
)]
fn now() -> Instant {
    Instant::now()
}

fn parse(request: &'static [u8]) -> impl FnMut() {
    let now = now();
    let settings = Arc::new(Settings::default());
    let mut head = RequestHead::default();
    move || {
        let mut connection = ServerConnection::new(Arc::clone(&settings), Scheme::Http, now);
        let received = connection.receive(black_box(request), now, &mut head);
        assert!(matches!(received, Ok(Received::Request { .. })));
        black_box(head.path());
        black_box(connection);
    }
}

/// Handles one exchange after another on the same connection.
fn exchange(request: &'static [u8]) -> impl FnMut() {
    let now = now();
    let mut headers = Headers::new();
    headers.push(Known::ContentType, b"text/plain");
    headers.push(Known::LastModified, b"Sun, 06 Nov 1994 08:49:37 GMT");
    headers.push(Known::Etag, b"\"2ebc9b71-400\"");
    headers.push(Known::AcceptRanges, b"bytes");
    headers.push(Known::Date, b"Sun, 06 Nov 1994 08:49:37 GMT");
    let mut connection = ServerConnection::new(Arc::new(Settings::default()), Scheme::Http, now);
    let mut head = RequestHead::default();
    let mut out = Vec::new();
    move || {
        let response = ResponseHead {
            status: StatusCode::OK,
            reason: None,
            headers: black_box(&headers),
            length: Some(1024),
            server: Some(b"h2o"),
        };
        out.clear();
        let received = connection.receive(black_box(request), now, &mut head);
        assert!(matches!(received, Ok(Received::Request { .. })));
        black_box(head.path());
        connection.respond(black_box(&response), &mut out, now);
        // Writes only the framing of the content, as for data that the caller sends by other means (sendfile).
        let _ = connection.begin_data(1024, &mut out);
        connection.finish(None, &mut out);
        connection.on_written(out.len() + 1024, false, now);
        assert_eq!(connection.next(now), Next::Request);
        black_box(&out);
    }
}
