//! Requests that scripts send to the server itself: `H2O.next` and `H2O.reprocess`.

use h2o_tests::{Backend, Server, Setup, run};

const CONFIG: &str = r##"
listen: @PORT@
num-threads: 1
access-log: {path: @DIR@/access.log, format: '%U %s %{error}x'}
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /timed:
        - mruby.handler-file: '@DIR@/timing.rb'
        - header.add: "x-filter: once"
          proxy.reverse.url: BACKEND/
      /request:
        - mruby.handler: |
            lambda { |env| H2O.next.request(env) }
        - proxy.reverse.url: BACKEND/
      /joined:
        - mruby.handler: |
            lambda { |env| request = H2O.next.request(env); request.join; request }
        - proxy.reverse.url: BACKEND/
      /kept:
        - mruby.handler: |
            lambda { |env| $kept ||= H2O.next.call(env)[2]; [200, {}, $kept] }
        - proxy.reverse.url: BACKEND/
      /changed:
        - mruby.handler: |
            lambda do |env|
              env["PATH_INFO"] = "/other"
              env["REQUEST_METHOD"] = "PUT"
              env["rack.input"] = InputStream.new("from the script")
              env["CONTENT_LENGTH"] = "8"
              env["HTTP_X_MORE"] = ["1", "2"]
              status, headers, body = H2O.next.call(env)
              text = body.join
              headers.delete("content-length")
              [status, headers, [text.upcase, body.join]]
            end
        - proxy.reverse.url: BACKEND/
      /parts:
        - mruby.handler: |
            lambda do |env|
              body = H2O.next.call(env)[2]
              first = nil
              body.each { |piece| first = piece; break }
              second = body.to_enum.first
              begin
                Fiber.new { body.join }.resume
              rescue FiberError
              end
              body.each { |piece| second += piece; break }
              [200, {}, [first, "|", second, "|", body.join, "|", body.join]]
            end
        - mruby.handler: |
            class Slow
              def each
                5.times { |i| yield "#{i} "; sleep 0.01 }
              end
            end
            lambda { |env| [200, {}, Slow.new] }
      /left:
        - mruby.handler: |
            lambda do |env|
              status, headers, body = H2O.next.call(env)
              body.each { |piece| break }
              [status, {}, body]
            end
        - mruby.handler: |
            lambda { |env| [200, {}, Slow.new] }
      /many:
        - mruby.handler: |
            lambda do |env|
              all = (0...20).map do |i|
                env["PATH_INFO"] = "/#{i}"
                H2O.next.request(env)
              end
              [200, {}, all.reverse.map { |one| one.join[2].join }]
            end
        - mruby.handler: |
            lambda { |env| sleep 0.01; [200, {}, [env["PATH_INFO"]]] }
      /fail:
        - mruby.handler: |
            lambda { |env| H2O.next.request(env) }
        - mruby.handler: |
            lambda { |env| env["rack.errors"].puts("noted"); raise "inner" }
      /nobody:
        - mruby.handler: |
            lambda { |env| H2O.next.request(env) }
      /declined:
        - mruby.handler: |
            lambda { |env| H2O.next.call(env) }
        - mruby.handler: |
            lambda { |env| [399, {"set-cookie" => ["a=1", "b=2"]}, []] }
        - mruby.handler: |
            lambda { |env| [200, {"x-from" => "third", "set-cookie" => "c=3"}, ["third"]] }
      /strict:
        - mruby.handler: |
            lambda do |env|
              load env["HTTP_X_BLOCK"]
              $block.call(env)
              H2O.next.call(env)
            end
        - mruby.handler: |
            lambda { |env| [200, {}, ["fine"]] }
      /again:
        - mruby.handler: |
            lambda do |env|
              env["SCRIPT_NAME"] = ""
              env["PATH_INFO"] = env["QUERY_STRING"].empty? ? "/target/x" : env["QUERY_STRING"]
              env["HTTP_HOST"] = "other.example"
              env["SCRIPT_VARIABLE"] = 7
              env["h2o.remaining_delegations"] = env["HTTP_X_LEFT"].to_i if env["HTTP_X_LEFT"]
              H2O.reprocess.request(env)
            end
      /sink:
        - mruby.handler-file: '@DIR@/sink.rb'
        - mruby.handler: |
            lambda { |env| raise "told" }
      /facts:
        mruby.handler: |
          lambda do |env|
            sleep 0.05
            rtt = env["h2o.get_rtt"]
            [200, {}, [env["h2o.is_ech"].call.inspect, " ", rtt ? rtt.call.class.to_s : "none"]]
          end
  other.example:
    paths:
      /target:
        setenv: {COLOUR: red}
        header.add: "x-filter: there"
        mruby.handler: |
          lambda do |env|
            body = env["rack.input"] ? env["rack.input"].read : "-"
            facts = %w(HTTP_HOST SERVER_NAME SCRIPT_NAME PATH_INFO COLOUR SCRIPT_VARIABLE REMOTE_ADDR h2o.get_rtt h2o.remaining_delegations)
            [201, {"x-ech" => env["h2o.is_ech"].call.inspect}, [facts.map { |name| env[name].inspect }.join(" "), " ", body]]
          end
      /round:
        mruby.handler: |
          lambda { |env| H2O.reprocess.request(env) }
"##;

const TIMING: &str = r##"
class Timing
  def initialize(inner) @inner = inner end
  def call(env)
    status, headers, body = @inner.call(env)
    headers["x-seen"] = headers.map { |name, value| "#{name}=#{value.inspect}" }.join(" ")
    [status, headers, body]
  end
end
Timing.new(H2O.next)
"##;

const SINK: &str = r##"
class Sink
  attr_reader :lines
  def initialize() @lines = [] end
  def write(text) @lines << text end
end
lambda do |env|
  sink = Sink.new
  env["rack.errors"] = sink
  status, headers, body = H2O.next.call(env)
  [200, {}, [status.to_s, " ", sink.lines.join("|")]]
end
"##;

fn start(backend: &Backend) -> Server {
    let backend = backend.url("");
    Setup::new(&CONFIG.replace("BACKEND", backend.trim_end_matches('/')))
        .file("timing.rb", TIMING)
        .file("sink.rb", SINK)
        .start()
}

/// A backend that answers with the request line and the values of some fields.
fn echo() -> Backend {
    Backend::by_request(|request| {
        let body = format!(
            "{} {} {:?} {:?}",
            request.method(),
            request.target(),
            request.field("content-length"),
            request.field("x-more"),
        );
        format!(
            "HTTP/1.1 203 Told\r\nx-a: 1\r\nx-a: 2\r\nset-cookie: a\r\nset-cookie: b\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    })
}

#[test]
fn a_script_gets_the_response_of_the_handlers_behind_it() {
    let backend = echo();
    let server = start(&backend);
    let answer = server.ask("GET /timed/x?y");
    answer.must_be("203 OK\nx-filter: once\n\nGET /x?y None None");
    let seen = answer.field("x-seen").unwrap_or_default();
    assert!(
        seen.contains("x-a=\"1, 2\"") && seen.contains("set-cookie=[\"a\", \"b\"]"),
        "{seen}"
    );
    assert!(seen.ends_with("content-length=\"18\""), "{seen}");
    assert!(!seen.contains("x-filter"), "{seen}");
    assert_eq!(answer.all("set-cookie").collect::<Vec<_>>(), ["a", "b"]);
    server
        .ask("HEAD /timed/x")
        .must_be("203 OK\ncontent-length: 17\n\n");
    // `H2O.next.request` passes the response on without making it a Ruby value, so its reason phrase is kept.
    server
        .ask("GET /request/x")
        .must_be("203 Told\ncontent-length: 16\n\nGET /x None None");
    server
        .ask("GET /joined/x")
        .must_be("203 OK\ncontent-length: 16\n\nGET /x None None");
    // Both requests reach the same worker, by one connection. The body that the first response has taken is empty for the second.
    let twice = server.url("/kept/x");
    let got = run("curl", &["-s", "-w", "%{http_code}|", &twice, &twice]).text();
    assert_eq!(got, "GET /x None None200|200|");
    server
        .ask("GET /changed/x\nContent-Length: 3\n\nabc")
        .must_be("203 OK\n\nPUT /OTHER SOME(\"8\") SOME(\"1\")");
    let got = run(
        "curl",
        &["-s", "--http2-prior-knowledge", &server.url("/many/x")],
    )
    .text();
    let want: String = (0..20).rev().map(|i| format!("/{i}")).collect();
    assert_eq!(got, want);
}

#[test]
fn failures_of_inner_handlers_are_responses() {
    let backend = echo();
    let server = start(&backend);
    server
        .ask("GET /fail")
        .must_be("500 Internal Server Error\n\nInternal Server Error");
    let _ = server.read_until("access.log", "/fail 500 ");
    let log = server.folder.read("error.log");
    assert!(log.contains("noted"), "{log}");
    assert_eq!(
        log.matches("mruby raised: inner (RuntimeError)").count(),
        1,
        "{log}"
    );
    server
        .ask("GET /nobody")
        .must_be("404 File Not Found\n\nnot found");
    let answer = server.ask("GET /declined");
    answer.must_be("200 OK\nx-from: third\n\nthird");
    assert_eq!(
        answer.all("set-cookie").collect::<Vec<_>>(),
        ["a=1", "b=2", "c=3"]
    );
    let told = server.ask("GET /sink").text();
    assert!(
        told.starts_with(
            "500 [h2o_mruby] in request:www.example.com/sink:mruby raised: told (RuntimeError)"
        ),
        "{told}"
    );
}

#[test]
fn a_hash_that_is_no_request_is_refused_with_its_reason() {
    let backend = echo();
    let server = start(&backend);
    for (change, want) in [
        (
            "env.delete('REQUEST_METHOD')",
            "missing required environment key: REQUEST_METHOD (RuntimeError)",
        ),
        (
            "env['rack.url_scheme'] = ''",
            "rack.url_scheme must be not empty (RuntimeError)",
        ),
        (
            "env.delete('QUERY_STRING')",
            "missing required environment key: QUERY_STRING (RuntimeError)",
        ),
        (
            "env['PATH_INFO'] = 'x'",
            "PATH_INFO must start with `/` (RuntimeError)",
        ),
        (
            "env['SCRIPT_NAME'] = 'x'",
            "SCRIPT_NAME must start with `/` (RuntimeError)",
        ),
        (
            "env['SCRIPT_NAME'] = '/x'",
            "can't modify `SCRIPT_NAME` with `H2O.next`. Is `H2O.reprocess` what you want? (RuntimeError)",
        ),
        (
            "env.delete('HTTP_HOST'); env.delete('SERVER_PORT')",
            "HTTP_HOST or (SERVER_NAME and SERVER_PORT) is required (RuntimeError)",
        ),
        (
            "env['PATH_INFO'] = \"/a b\"",
            "env variable contains invalid values (ArgumentError)",
        ),
        (
            "env['HTTP_HOST'] = 'a@b'",
            "env variable contains invalid values (ArgumentError)",
        ),
        (
            "env['HTTP_HOST'] = '[bad'",
            "env variable contains invalid values (ArgumentError)",
        ),
        (
            "env['HTTP_HOST'] = ''; env.delete('SERVER_PORT')",
            "HTTP_HOST or (SERVER_NAME and SERVER_PORT) is required (RuntimeError)",
        ),
        (
            "env['QUERY_STRING'] = \"a\\r\\nb\"",
            "env variable contains invalid values (ArgumentError)",
        ),
        (
            "env['REQUEST_METHOD'] = 'CONNECT'",
            "env variable contains invalid values (ArgumentError)",
        ),
        (
            "env['rack.input'] = 5",
            "'rack.input' must respond to 'read' (RuntimeError)",
        ),
        (
            "env['rack.input'] = Class.new { def read() 5 end }.new",
            "return value of `read` must be a string (RuntimeError)",
        ),
        (
            "env['HTTP_A'] = \"b\\rc\"",
            "invalid value of header a (ArgumentError)",
        ),
        (
            "H2O.next.request(5)",
            "cannot be converted to Hash (TypeError)",
        ),
    ] {
        let file = server.folder.ruby_block("env", change);
        server
            .ask(&format!("GET /strict\nx-block: {file}"))
            .must_be("500 Internal Server Error\n\nInternal Server Error");
        let log = server.folder.read("error.log");
        assert!(log.contains(want), "{change}: {log}");
    }
    let change = "env.delete('HTTP_HOST'); env['rack.foo'] = nil; env[''] = 1";
    let file = server.folder.ruby_block("env", change);
    server
        .ask(&format!("GET /strict\nx-block: {file}"))
        .must_be("200 OK\n\nfine");
}

#[test]
fn a_script_sends_a_request_to_another_path() {
    let backend = echo();
    let server = start(&backend);
    let answer = server.ask("POST /again\nContent-Length: 4\n\nsent");
    answer.must_be(
        "201 OK\nx-filter: there\nx-ech: false\n\n\"other.example\" \"other.example\" \"/target\" \"/x\" \"red\" \"7\" \"127.0.0.1\" nil 4 sent",
    );
    // The log has a line for the request that the script sent, and one for the client's own request.
    let _ = server.read_until("access.log", "/target/x 201 ");
    let _ = server.read_until("access.log", "/again 201 ");
    for request in [
        "GET /again?/round",
        "GET /again\nx-left: 0",
        "GET /again\nx-left: -1",
    ] {
        server
            .ask(request)
            .must_be("502 Gateway Error\n\ntoo many internal delegations");
    }
    server.ask("GET /again\nx-left: 1").must_be("201 OK");
}

#[test]
fn a_script_learns_the_round_trip_time_of_an_http2_client() {
    let backend = echo();
    let server = start(&backend);
    server.ask("GET /facts").must_be("200 OK\n\nfalse none");
    let http2 = run(
        "curl",
        &["-s", "--http2-prior-knowledge", &server.url("/facts")],
    );
    assert_eq!(http2.text(), "false Integer");
}

#[test]
fn what_is_left_of_a_body_can_be_read_later() {
    let server = start(&Backend::answering(""));
    let text = server.ask("GET /parts").text();
    assert_eq!(text, "0 |1 2 |3 4 |");
    assert_eq!(server.ask("GET /left").text(), "1 2 3 4 ");
}
