//! `send-informational`: which clients get a 100 (Continue) when the server wants their content.

use h2o_tests::http2::{Frame, Http2, encode, flag, get, post};
use h2o_tests::{Backend, Server, Setup};

/// Starts a server that uses the content of requests: it forwards them to `backend`.
fn start(setting: &str, backend: &Backend) -> Server {
    Setup::new(&format!(
        "
{setting}
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/")
    ))
    .start()
}

fn backend() -> Backend {
    Backend::answering("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n")
}

/// The statuses of the informational responses to an upload over HTTP/2 that has this field in addition.
fn over_http2(server: &Server, field: (&str, &str)) -> Vec<String> {
    let mut client = Http2::open(server.port(), &[]);
    let section = [post("/"), encode(&[("expect", "100-continue"), field])].concat();
    client.send_frame(&Frame::request_with_content(1, section));
    client.send_frame(&Frame::data(1, flag::END_STREAM, "content"));
    let answer = client.read_answer(1);
    assert_eq!(answer.status(), 302);
    let statuses = answer.interim.iter().map(|fields| fields[0].1.clone());
    statuses.collect()
}

#[test]
fn a_client_of_http2_is_told_to_continue_if_it_may_be() {
    let any = ("x-any", "1");
    let hush = ("no-early-hints", "1");
    let other = ("no-early-hints", "?0");
    let backend = backend();
    for (setting, field, want) in [
        ("", any, &["100"][..]),
        ("", hush, &[]),
        ("", other, &["100"]),
        ("send-informational: except-h1", any, &["100"]),
        ("send-informational: all", any, &["100"]),
        ("send-informational: all", hush, &[]),
        ("send-informational: none", any, &[]),
    ] {
        let server = start(setting, &backend);
        assert_eq!(over_http2(&server, field), want, "{setting} {field:?}");
    }
}

#[test]
fn a_client_of_http1_is_always_told_to_continue() {
    let backend = backend();
    for setting in ["", "send-informational: none", "send-informational: all"] {
        let server = start(setting, &backend);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\nno-early-hints: 1\r\n\r\n");
        let told = client.read_until(b"\r\n\r\n");
        assert!(
            told.starts_with(b"HTTP/1.1 100 "),
            "{setting}: {}",
            told.escape_ascii()
        );
        client.send("abc");
        assert_eq!(client.read_response("POST").code(), 302, "{setting}");
    }
}

#[test]
fn early_hints_of_a_path_are_sent_while_its_script_waits() {
    let server = Setup::new(
        r#"
listen: @PORT@
header.add: { header: 'x-hint: 1', when: early }
hosts:
  default:
    paths:
      /waits:
        mruby.handler: |
          lambda { |env| sleep 0.1; [200, {}, []] }
      /answers:
        mruby.handler: |
          lambda { |env| [200, {}, []] }
      /hints:
        mruby.handler: |
          lambda { |env| env["rack.early_hints"].call({"link" => "</a>"}); [200, {}, []] }
"#,
    )
    .start();
    let path_only = &[("x-hint", "1")][..];
    let of_script = &[("link", "</a>"), ("x-hint", "1")];
    for (path, want) in [
        ("/waits", Some(path_only)),
        ("/answers", None),
        ("/hints", Some(of_script)),
    ] {
        let mut client = Http2::open(server.port(), &[]);
        client.send_frame(&Frame::request(1, get(path)));
        let answer = client.read_answer(1);
        assert_eq!(answer.status(), 200, "{path}");
        let interim = answer.interim.iter();
        let got: Vec<Vec<_>> = interim
            .map(|fields| {
                assert_eq!(fields[0].1, "103", "{path}");
                let fields = fields[1..].iter();
                fields.map(|(name, value)| (&**name, &**value)).collect()
            })
            .collect();
        assert_eq!(got.first().map(|fields| &**fields), want, "{path}");
        assert!(got.len() <= 1, "{path}: {got:?}");
    }
}
