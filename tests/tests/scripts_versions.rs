//! Scripts, and scripts whose response names another resource (`x-reproxy-url`), with the same requests over HTTP/1, HTTP/2 and HTTP/3.

use h2o_tests::quic::{Quic, get, request};
use h2o_tests::{Backend, Server, Setup, run};

const PATHS: &str = r#"
      /hello:
        mruby.handler: |
          lambda { |env| [200, {"content-type" => "text/plain", "x-version" => env["SERVER_PROTOCOL"]}, ["hello ", env["QUERY_STRING"]]] }
      /rtt:
        mruby.handler: |
          lambda { |env| [200, {}, [env.key?("h2o.get_rtt").to_s, env["h2o.is_ech"].call.to_s, env["rack.url_scheme"]]] }
      /waits:
        mruby.handler: |
          lambda { |env| sleep 0.01; [201, {}, [http_request("BACKEND/a").join[2].join]] }
      /pieces:
        mruby.handler-file: '@DIR@/pieces.rb'
      /raise:
        mruby.handler: |
          lambda { |env| raise "boom" }
      /loop:
        mruby.handler: |
          lambda { |env| loop {} }
      /declined:
        - mruby.handler: |
            lambda { |env| [399, {"x-from" => "first"}, []] }
        - mruby.handler: |
            lambda { |env| [200, {}, ["second"]] }
      /reproxy:
        reproxy: ON
        mruby.handler: |
          lambda { |env| [200, {"x-reproxy-url" => env["QUERY_STRING"], "set-cookie" => "a=1"}, ["discarded"]] }
      /kept:
        mruby.handler: |
          lambda { |env| [200, {"x-reproxy-url" => "/hello"}, ["not reproxied"]] }
      /input:
        mruby.handler: |
          lambda { |env| [200, {}, [env["REQUEST_METHOD"], env["rack.input"] ? env["rack.input"].read : "none"]] }
error-log: @DIR@/error.log
"#;

const PIECES: &str = r#"
class Pieces
  def each
    200.times { |number| yield number.to_s * 1000; sleep 0.001 if number % 50 == 0 }
  end
end
lambda { |env| [200, {}, Pieces.new] }
"#;

/// The requests: target, the status expected, and the end of the content expected.
fn conversation(backend: &str) -> Vec<(String, u16, String)> {
    let pieces: String = (0..200)
        .map(|number| number.to_string().repeat(1000))
        .collect();
    let to = |target: &str| format!("/reproxy?{target}");
    [
        ("/hello?world", 200, "hello world"),
        ("/waits", 201, "from the backend"),
        ("/pieces", 200, &*pieces),
        ("/raise", 500, "Internal Server Error"),
        ("/loop", 500, "Internal Server Error"),
        ("/declined", 200, "second"),
        (&*to("/hello?inner"), 200, "hello inner"),
        (&*to(&format!("{backend}/b")), 200, "from the backend"),
        (&*to("/raise"), 500, "Internal Server Error"),
        ("/kept", 200, "not reproxied"),
        ("/hello?after", 200, "hello after"),
    ]
    .map(|(target, status, content)| (target.to_owned(), status, content.to_owned()))
    .to_vec()
}

fn start() -> (Server, Backend) {
    let backend = Backend::answering(
        "HTTP/1.1 200 OK\r\ncontent-length: 16\r\nconnection: close\r\n\r\nfrom the backend",
    );
    let paths = PATHS.replace("BACKEND", backend.url("").trim_end_matches('/'));
    let server = Setup::http3("num-threads: 1\nmruby.time-limit: 50", "", &paths)
        .file("pieces.rb", PIECES)
        .start();
    (server, backend)
}

/// Requests `target` over TLS with curl. Returns status and content.
fn curl(server: &Server, version: &str, target: &str) -> (u16, String) {
    let url = format!("https://127.0.0.1:{}{target}", server.port());
    let got = run("curl", &["-sk", version, "-w", "\n%{http_code}", &url]).text();
    let (content, status) = got.rsplit_once('\n').unwrap_or_default();
    (status.parse().unwrap_or(0), content.to_owned())
}

#[test]
fn scripts_answer_alike_over_every_version() {
    let (server, backend) = start();
    let backend = backend.url("");
    let mut quic = Quic::open(server.port());
    for (target, status, content) in conversation(backend.trim_end_matches('/')) {
        let answer = quic.ask(&target);
        let text = String::from_utf8_lossy(&answer.content).into_owned();
        assert_eq!(
            (answer.status, &*text),
            (status, &*content),
            "HTTP/3 {target}"
        );
        for version in ["--http1.1", "--http2"] {
            let got = curl(&server, version, &target);
            assert_eq!(got, (status, content.clone()), "{version} {target}");
        }
    }
    let version = quic.ask("/hello").fields;
    let version = version.iter().find(|(name, _)| name == "x-version");
    assert_eq!(version.map(|(_, value)| &**value), Some("HTTP/3"));
    // Only over HTTP/2 does the script get the round-trip time.
    assert_eq!(quic.ask("/rtt").content, b"falsefalsehttps");
    assert_eq!(curl(&server, "--http2", "/rtt").1, "truefalsehttps");
    assert_eq!(curl(&server, "--http1.1", "/rtt").1, "falsefalsehttps");
    let log = server.folder.read("error.log");
    assert_eq!(log.matches("mruby raised: boom").count(), 6, "{log}");
    assert!(!log.contains("panic"), "{log}");
}

#[test]
fn a_script_waits_for_each_of_many_streams() {
    let (server, _backend) = start();
    let mut quic = Quic::open(server.port());
    let streams: Vec<u64> = (0..50).map(|_| quic.send_request(&get("/waits"))).collect();
    for stream in streams {
        quic.wait_for("the response on each stream", |quic| quic.has_ended(stream));
        assert_eq!(quic.answer(stream).map(|answer| answer.status), Some(201));
    }
    let put = quic.send_request(&request("PUT", "/input", &[]));
    quic.wait_for("the response to PUT", |quic| quic.has_ended(put));
    let content = quic.answer(put).map(|answer| answer.content);
    assert_eq!(content.as_deref(), Some(&b"PUTnone"[..]));
}
