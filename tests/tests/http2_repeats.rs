//! Requests that are repeated on one connection: each has a response and a log line of its own, although the server reuses encoded heads.

use h2o_tests::http2::{Frame, Http2, encode, flag};
use h2o_tests::{Server, Setup, eventually};

fn start() -> Server {
    Setup::new(
        "
listen: @PORT@
num-threads: 1
access-log: { path: @DIR@/access-log, format: '%U %m %s %b %{http2.stream-id}x %{location}o' }
hosts:
  default:
    paths:
      /: { file.dir: @DIR@/www }
      /moved: { redirect: { url: 'http://elsewhere.example/', status: 301 } }
      /edited:
        redirect: { url: 'http://elsewhere.example/', status: 302 }
        header.add: 'x-edited: yes'
",
    )
    .file("www/a.txt", "hello")
    .start()
}

struct Request {
    method: &'static str,
    path: &'static str,
}

impl Request {
    fn section(&self) -> Vec<u8> {
        encode(&[
            (":method", self.method),
            (":scheme", "http"),
            (":authority", "a.example"),
            (":path", self.path),
        ])
    }

    fn status(&self) -> u16 {
        match self.path {
            "/a.txt" => 200,
            "/edited" => 302,
            _ => 301,
        }
    }

    fn location(&self) -> Option<String> {
        let rest = self.path.strip_prefix("/moved").unwrap_or("/");
        let rest = rest.trim_start_matches('/');
        (self.path != "/a.txt").then(|| format!("http://elsewhere.example/{rest}"))
    }
}

/// Sends all requests, their bytes cut into pieces of `size`, and compares each response and each log line.
fn check(requests: &[Request], size: usize) {
    let server = start();
    let mut connection = Http2::open(server.port(), &[]);
    let streams = || (1u32..).step_by(2);
    let bytes: Vec<u8> = requests
        .iter()
        .zip(streams())
        .flat_map(|(request, stream)| Frame::request(stream, request.section()).bytes())
        .collect();
    for piece in bytes.chunks(size) {
        connection.send(piece);
    }
    let mut want = Vec::new();
    for (request, stream) in requests.iter().zip(streams()) {
        let answer = connection.read_answer(stream);
        let what = format!("{} {} on {stream}", request.method, request.path);
        let location = request.location();
        assert_eq!(answer.status(), request.status(), "{what}");
        assert_eq!(answer.field("location"), location.as_deref(), "{what}");
        let is_edited = answer.field("x-edited").is_some();
        assert_eq!(is_edited, request.path == "/edited", "{what}");
        let text = answer.text();
        match &location {
            _ if request.method == "HEAD" => assert_eq!(text, "", "{what}"),
            Some(url) => assert!(text.contains(&format!("\"{url}\"")), "{what}: {text}"),
            None => assert_eq!(text, "hello", "{what}"),
        }
        let location = location.as_deref().unwrap_or("-");
        want.push(format!(
            "{} {} {} {} {stream} {location}",
            request.path,
            request.method,
            request.status(),
            text.len(),
        ));
    }
    let got: Vec<String> = eventually("the access log", || {
        let log = server.folder.read("access-log");
        let is_complete = log.lines().count() >= want.len() && log.ends_with('\n');
        is_complete.then(|| log.lines().map(str::to_owned).collect())
    });
    assert_eq!(got, want, "in pieces of {size}");
}

#[test]
fn each_repeat_has_its_own_answer_and_log_line() {
    let runs = [
        ("GET", "/moved", 5),
        ("GET", "/moved/further", 1),
        ("GET", "/moved", 4),
        ("GET", "/moved/further", 6),
        ("GET", "/a.txt", 4),
        ("GET", "/moved", 1),
        ("GET", "/a.txt", 3),
        ("GET", "/edited", 5),
        ("HEAD", "/moved", 4),
        ("GET", "/moved", 4),
    ];
    let requests: Vec<Request> = runs
        .iter()
        .flat_map(|&(method, path, count)| (0..count).map(move |_| Request { method, path }))
        .collect();
    for size in [usize::MAX, 1000, 100, 1] {
        check(&requests, size);
    }
}

#[test]
fn an_answer_in_between_does_not_get_into_the_repeats() {
    let moved = Request {
        method: "GET",
        path: "/moved",
    };
    let upload = Request {
        method: "POST",
        path: "/a.txt",
    };
    let server = start();
    let mut connection = Http2::open(server.port(), &[]);
    let mut bytes = Frame::request_with_content(1, upload.section()).bytes();
    for stream in [3, 5, 7, 9] {
        bytes.extend(Frame::request(stream, moved.section()).bytes());
    }
    // This frame completes the upload, so the server writes a response with another head between those of the repeats.
    bytes.extend(Frame::data(1, flag::END_STREAM, *b"x").bytes());
    for stream in [11, 13, 15] {
        bytes.extend(Frame::request(stream, moved.section()).bytes());
    }
    connection.send(&bytes);
    assert_eq!(connection.read_answer(1).status(), 405);
    for stream in [3, 5, 7, 9, 11, 13, 15] {
        let answer = connection.read_answer(stream);
        assert_eq!(answer.status(), 301, "on {stream}");
        assert_eq!(
            answer.field("location"),
            moved.location().as_deref(),
            "on {stream}"
        );
    }
}
