//! HTTP/1 on the level of bytes: the tables of requests in `testkit`, sent over sockets, and the keeping of connections.

use h2o_testkit::table::{self, Entry};
use h2o_tests::{Backend, Raw, Server, Setup};

/// Starts a server that answers every request with a redirect, and logs the parts of each request as it understood them.
fn start(strict: bool) -> Server {
    let strict = if strict { "ON" } else { "OFF" };
    Setup::new(&format!(
        "
listen: @PORT@
num-threads: 1
http1-strict: {strict}
http1-upgrade-to-http2: OFF
access-log:
  path: @DIR@/access-log
  format: \"%m\\t%U%q\\t%V\\t%H\"
hosts:
  default:
    paths: {{ /: {{ redirect: 'http://elsewhere.example/?' }} }}
"
    ))
    .start()
}

#[test]
fn malformed_requests_are_refused_and_their_connection_closed() {
    let entries = table::malformed();
    assert!(entries.len() >= 40, "{} entries", entries.len());
    for strict in [false, true] {
        let server = start(strict);
        for entry in entries.iter().filter(|entry| entry.applies(strict)) {
            eprintln!("{}, strict {strict}", entry.name);
            refuse(&server, entry);
        }
    }
}

fn refuse(server: &Server, entry: &Entry) {
    let mut connection = server.connect();
    // The server may close the connection before all bytes are sent.
    let _ = connection.try_send(&entry.input);
    if entry.text("status") == Some("close") {
        let answer = connection.read_to_end();
        assert_eq!(answer.escape_ascii().to_string(), "", "{}", entry.name);
        return;
    }
    let (status, body) = (
        entry.text("status").unwrap_or_default(),
        entry.text("body").unwrap_or_default(),
    );
    let response = connection.read_response("GET");
    assert!(
        response.status.starts_with(status) && response.text() == body,
        "{}: {response}",
        entry.name
    );
    assert_eq!(response.field("connection"), Some("close"), "{response}");
    let type_ = response.field("content-type");
    assert_eq!(type_, Some("text/plain; charset=utf-8"), "{response}");
    let rest = connection.read_to_end();
    assert_eq!(rest.escape_ascii().to_string(), "", "{}", entry.name);
}

#[test]
fn unusual_requests_are_answered() {
    let entries = table::unusual();
    assert!(entries.len() >= 40, "{} entries", entries.len());
    for strict in [false, true] {
        let server = start(strict);
        let mut wanted = Vec::new();
        for entry in entries.iter().filter(|entry| entry.applies(strict)) {
            eprintln!("{}, strict {strict}", entry.name);
            accept(&server, entry, &mut wanted);
        }
        let end = server.ask("GET /the-end");
        assert_eq!(end.code(), 302);
        let log = server.read_until("access-log", "/the-end");
        let lines: Vec<_> = log.lines().collect();
        assert_eq!(lines.len(), wanted.len() + 1, "{log}");
        for (line, want) in lines.iter().zip(&wanted) {
            want.compare(line);
        }
    }
}

/// What the access log's line for one request must contain.
struct Wanted {
    name: String,
    /// Method, target, authority and version; `None` for a part that may have any value.
    columns: [Option<String>; 4],
}

impl Wanted {
    fn of(entry: &Entry) -> Self {
        let escaped = |key| entry.get(key).map(escape);
        let authority = escaped("authority").map(|authority| match authority.as_str() {
            // For a request without authority the log has the name of the host that was chosen.
            "" => "default".to_owned(),
            _ => authority,
        });
        Self {
            name: entry.name.clone(),
            columns: [
                escaped("method"),
                escaped("target"),
                authority,
                escaped("version"),
            ],
        }
    }

    fn anything() -> Self {
        Self {
            name: String::new(),
            columns: [const { None }; 4],
        }
    }

    fn compare(&self, line: &str) {
        // Tabs separate the columns only: in the values they are escaped.
        let got: Vec<_> = line.split('\t').collect();
        assert_eq!(got.len(), self.columns.len(), "{}: {line}", self.name);
        for (want, got) in self.columns.iter().zip(got) {
            if let Some(want) = want {
                assert_eq!(want, got, "{}: {line}", self.name);
            }
        }
    }
}

/// Escapes a value as the access log does.
fn escape(text: &[u8]) -> String {
    text.iter()
        .map(|&byte| match byte {
            b'"' => "\\x22".to_owned(),
            0x20..=0x7c => char::from(byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        })
        .collect()
}

fn accept(server: &Server, entry: &Entry, wanted: &mut Vec<Wanted>) {
    let mut connection = server.connect();
    connection.send(&entry.input);
    let requests = entry.text("requests").unwrap_or("1");
    let requests: usize = requests.parse().expect("the text is a number");
    for number in 1..=requests {
        let response = read_final(&mut connection);
        let is_answer = match response.code() {
            // The port speaks cleartext, so the server answers 421 to a target with the scheme https.
            421 => entry.input.windows(9).any(|text| text == b" https://"),
            // The server answers 405 to CONNECT, because no handler of this configuration opens tunnels.
            code => matches!(code, 302 | 405),
        };
        assert!(is_answer, "{}: {response}", entry.name);
        wanted.push(if number == requests {
            Wanted::of(entry)
        } else {
            Wanted::anything()
        });
        let is_kept = number < requests || entry.text("kept") == Some("yes");
        let announced = response.field("connection");
        let want = if is_kept { "keep-alive" } else { "close" };
        assert_eq!(announced, Some(want), "{}: {response}", entry.name);
    }
    if entry.text("kept") == Some("yes") {
        connection.send("GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = read_final(&mut connection);
        assert_eq!(response.code(), 302, "{}: {response}", entry.name);
        wanted.push(Wanted::anything());
    } else {
        let rest = connection.read_to_end();
        assert_eq!(rest.escape_ascii().to_string(), "", "{}", entry.name);
    }
}

fn read_final(connection: &mut Raw) -> h2o_tests::Response {
    loop {
        let response = connection.read_response("GET");
        if response.code() >= 200 {
            return response;
        }
    }
}

#[test]
fn a_body_is_asked_for_before_it_is_sent() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let server = Setup::new(&format!(
        "listen: @PORT@\nhosts: {{ default: {{ paths: {{ /: {{ proxy.reverse.url: '{}' }} }} }} }}",
        backend.url("/")
    ))
    .start();
    let mut connection = server.connect();
    connection
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(connection.read_head().status, "100 Continue");
    connection.send("abc");
    connection.read_response("POST").must_be("200 OK");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = start(false);
    let mut connection = server.connect();
    let requests: String = (0..200)
        .map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    connection.send(requests);
    for n in 0..200 {
        let want = format!("302 Redirected\nlocation: http://elsewhere.example/?/{n}");
        connection.read_response("GET").must_be(&want);
    }
}

#[test]
fn requests_arrive_in_any_number_of_pieces() {
    let server = start(false);
    let mut connection = server.connect();
    let request =
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for _ in 0..3 {
        for byte in request.bytes() {
            connection.send([byte]);
        }
        connection.read_response("POST").must_be(
            "302 Redirected\nconnection: keep-alive\nlocation: http://elsewhere.example/?/a",
        );
    }
}

#[test]
fn python_keeps_its_connection() {
    let server = start(false);
    let program = "
import http.client, sys
connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)
socket = None
for number, (method, body) in enumerate([('GET', None), ('POST', b'abc'), ('POST', iter([b'a', b'', b'bc'])), ('HEAD', None)]):
    connection.request(method, '/%d' % number, body, encode_chunked=body is not None and not isinstance(body, bytes),
                       headers={'Transfer-Encoding': 'chunked'} if number == 2 else {})
    assert socket in (None, connection.sock), 'a new connection was made'
    socket = connection.sock
    response = connection.getresponse()
    text = response.read()
    assert response.status == 302 and response.reason == 'Redirected', response.status
    assert response.getheader('location').endswith('/?/%d' % number), response.getheader('location')
    assert (text == b'') == (method == 'HEAD'), text
";
    let port = server.port().to_string();
    let output = h2o_tests::run("python3", &["-c", program, &port]);
    assert_eq!(output.code, 0, "{output}");
}

#[test]
fn a_client_that_has_sent_all_it_will_still_gets_its_answer() {
    let server = start(false);
    let mut connection = server.connect();
    connection.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    connection.finish();
    connection.read_response("GET").must_be("302 Redirected");
    assert_eq!(connection.read_to_end(), b"");
}

#[test]
fn answers_to_http_1_0_have_a_length_or_end_with_the_connection() {
    let server = start(false);
    let mut connection = server.connect();
    connection.send("GET /a HTTP/1.0\r\n\r\n");
    connection
        .read_response("GET")
        .must_be("302 Redirected\nconnection: close\ncontent-length: *\n!transfer-encoding");
    assert_eq!(connection.read_to_end(), b"");
}
