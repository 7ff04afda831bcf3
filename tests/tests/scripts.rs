//! Scripts in Ruby, with requests over every version of HTTP.

use h2o_tests::{Backend, ClosedPort, Server, Setup, eventually, run};

const CONFIG: &str = r##"
listen: @PORT@
num-threads: 2
access-log: {path: @DIR@/access.log, format: '%U %s %{FOO}e %{error}x'}
error-log: @DIR@/error.log
hosts:
  default:
    setenv: {COLOUR: red}
    paths:
      /hello:
        mruby.handler: |
          lambda do |env|
            who = env["QUERY_STRING"].empty? ? "nobody" : env["QUERY_STRING"]
            [200, {"content-type" => "text/plain"}, ["hello ", who, "\n"]]
          end
      /file: {mruby.handler-file: '@DIR@/app.rb'}
      /sub/:
        mruby.handler: |
          lambda { |env| [200, {}, [env.map { |k, v| String === v ? "#{k}=#{v}\n" : "" }.join]] }
      /input:
        mruby.handler: |
          lambda do |env|
            input = env["rack.input"]
            return [200, {}, ["none"]] unless input
            lines = input.map { |line| line }
            [200, {}, [env["CONTENT_LENGTH"], lines.inspect, input.read.inspect, input.rewind.read(2), input.byteindex(10).to_s]]
          end
      /raise:
        mruby.handler: |
          lambda { |env| raise "boom" }
      /exception:
        mruby.handler: |
          lambda { |env| raise Exception, "all" }
      /sleep:
        mruby.handler: |
          lambda { |env| [200, {}, [sleep(0.01).to_s]] }
      /each: {mruby.handler-file: '@DIR@/each.rb'}
      /large:
        mruby.handler: |
          lambda { |env| [200, {}, Class.new { def each() 64.times { yield "x" * 65536 } end }.new] }
      /string:
        mruby.handler: |
          lambda { |env| [200, {}, "no each"] }
      /next:
        - mruby.handler: |
            lambda { |env| [399, {"x-from" => "first", "x-fallthru-set-foo" => "bar"}, []] }
        - mruby.handler: |
            lambda { |env| sleep 0.01; [399, {"x-from" => "second"}, []] }
        - mruby.handler: |
            lambda { |env| [200, {"x-from" => "third"}, [env["FOO"]]] }
      /moved:
        - mruby.handler: |
            lambda { |env| [399, {"x-from" => "first"}, []] }
        - redirect: /elsewhere
      /varied:
        - mruby.handler: |
            lambda { |env| [399, {"vary" => "accept-encoding, cookie"}, []] }
        - file.dir: @DIR@
          file.send-compressed: ON
      /none:
        mruby.handler: |
          lambda { |env| [399, {"x-from" => "first"}, []] }
      /hints:
        mruby.handler: |
          lambda do |env|
            env["rack.early_hints"].call({"link" => "</a.css>; rel=preload\n</b.css>; rel=preload"})
            sleep 0.01
            env["rack.errors"].puts("noted")
            [200, {}, ["hinted"]]
          end
      /late:
        mruby.handler: |
          sleep 0.2
          lambda { |env| [200, {}, ["evaluated"]] }
      /broken:
        mruby.handler: |
          nil.foo
      /uncallable:
        mruby.handler: |
          5
      /channel:
        mruby.handler: |
          lambda do |env|
            channel = H2O::Channel.new
            task { sleep 0.01; channel.push(1); channel.push(nil) }
            task { channel.push(0) }
            [200, {}, [[channel.shift, channel.shift, channel.shift].inspect]]
          end
      /refused:
        mruby.handler: |
          lambda do |env|
            channel = H2O::Channel.new
            refused = begin
              Fiber.new { channel.shift }.resume
            rescue FiberError
              "refused"
            end
            task { sleep 0.01; channel.push(1) }
            [200, {}, ["#{refused}, then #{channel.shift}"]]
          end
      /sleeps:
        mruby.handler: |
          lambda do |env|
            ended = []
            channel = H2O::Channel.new
            5.times { |i| task { sleep 0.01; ended << i; channel.push(i) } }
            5.times { channel.shift }
            [200, {}, [ended.inspect]]
          end
      /unreachable:
        mruby.handler: |
          lambda do |env|
            channel = H2O::Channel.new
            task { channel.shift }
            [200, {}, ["forgotten"]]
          end
      /reachable:
        mruby.handler: |
          lambda do |env|
            $channel ||= H2O::Channel.new
            task { $shifted = $channel.shift }
            [200, {}, ["waits"]]
          end
      /pushed:
        mruby.handler: |
          lambda do |env|
            $channel.push("kept")
            [200, {}, [$shifted]]
          end
      /fibers:
        mruby.handler: |
          lambda do |env|
            GC.start
            GC.start
            [200, {}, [ObjectSpace.count_objects[:T_FIBER].to_s]]
          end
"##;

const EACH: &str = r##"
class Chunks
  def initialize(env) @env = env end
  def each
    3.times { |i| yield "chunk#{i}\n"; sleep 0.01 }
  end
  def close() @env["rack.errors"].puts("closed") end
end
lambda { |env| [200, {}, Chunks.new(env)] }
"##;

fn start() -> Server {
    start_with(CONFIG)
}

fn start_with(config: &str) -> Server {
    Setup::new(config)
        .file("app.rb", "class App\n  def call(env)\n    [200, {}, [__FILE__[-6, 6], __LINE__.to_s]]\n  end\nend\nApp.new\n")
        .file("each.rb", EACH)
        .start()
}

#[test]
fn a_task_that_waits_for_a_channel_lives_as_long_as_a_script_can_reach_the_channel() {
    // Each worker has a VM of its own.
    let server = start_with(&CONFIG.replace("num-threads: 2", "num-threads: 1"));
    let get = |path: &str| run("curl", &["-s", &server.url(path)]).text();
    assert_eq!(get("/reachable"), "waits");
    let forgotten = get("/unreachable?[1-1000]");
    assert_eq!(forgotten.matches("forgotten").count(), 1000);
    // Idle fibers are kept for later requests, 256 at most.
    let fibers: usize = get("/fibers").parse().unwrap();
    assert!(fibers < 500, "{fibers}");
    assert_eq!(get("/pushed"), "kept");
}

#[test]
fn a_script_answers_over_http1_and_http2() {
    let server = start();
    for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        let got = run("curl", &["-s", "-i", version, &server.url("/hello?world")]).text();
        assert!(got.contains("content-type: text/plain"), "{got}");
        assert!(got.to_lowercase().contains("content-length: 12"), "{got}");
        assert!(got.ends_with("hello world\n"), "{got}");
    }
    server
        .ask("GET /hello")
        .must_be("200 OK\ndate: *\n\nhello nobody\n");
    server
        .ask("HEAD /hello")
        .must_be("200 OK\n!content-length\n\n");
    server.ask("GET /file").must_be("200 OK\n\napp.rb3");
}

#[test]
fn the_request_is_described_as_rack_says() {
    let server = start();
    let got = server
        .ask("GET /sub//a%20b/../c?q=1\nCookie: a=1\nCookie: b=2\nX-Two: 1\nX-Two: 2")
        .text();
    for line in [
        "REQUEST_METHOD=GET",
        "SCRIPT_NAME=/sub",
        "PATH_INFO=//a%20b/../c",
        "QUERY_STRING=q=1",
        "SERVER_NAME=default",
        "SERVER_PROTOCOL=HTTP/1.1",
        "SERVER_ADDR=127.0.0.1",
        "REMOTE_ADDR=127.0.0.1",
        "COLOUR=red",
        "HTTP_COOKIE=a=1; b=2",
        "HTTP_X_TWO=1, 2",
        "rack.url_scheme=http",
    ] {
        assert!(got.lines().any(|found| found == line), "{line}: {got}");
    }
    let http2 = run(
        "curl",
        &["-s", "--http2-prior-knowledge", &server.url("/sub/")],
    )
    .text();
    assert!(http2.contains("SERVER_PROTOCOL=HTTP/2\n"), "{http2}");
    let input = |body: &str| {
        run(
            "curl",
            &[
                "-s",
                "-H",
                "expect:",
                "--data-binary",
                body,
                &server.url("/input"),
            ],
        )
        .text()
    };
    assert_eq!(input("one\ntwo"), "7[\"one\\n\", \"two\"]\"\"on1");
    assert_eq!(server.ask("GET /input").text(), "none");
    // Content so large that the server collects it in a file.
    let large = server.folder.write("large", "z".repeat(3_000_000));
    let got = input(&format!("@{}", large.display()));
    assert!(
        got.starts_with("3000000[\"zzz") && got.ends_with("\"\"zz2999998"),
        "{}",
        got.len()
    );
}

#[test]
fn what_a_script_returns_becomes_a_response_or_a_logged_failure() {
    let result = |text: &str| {
        let config = "listen: @PORT@\nerror-log: @DIR@/error.log\nhosts:\n  www.example.com:\n    paths:\n      /result: {mruby.handler-file: '@DIR@/result.rb'}\n";
        let setup = Setup::new(config).file("result.rb", format!("lambda {{ |env| {text} }}"));
        let server = setup.start();
        let answer = server.ask("GET /result");
        (answer, server.folder.read("error.log"))
    };
    result("[404.9, [[:a, 1], ['B', nil]], ['x', :y, 1]]")
        .0
        .must_be("404 OK\na: 1\nb: \n\nxy1");
    result("[200, {'set-cookie' => \"a\\nb\", 'x' => ['1', 2]}, nil]")
        .0
        .must_be("200 OK\ncontent-length: 0\n\n");
    result("[200, {'content-length' => '2'}, ['abc']]")
        .0
        .must_be("200 OK\ncontent-length: 2\n\nab");
    result("[200, {'content-length' => '9', 'connection' => 'x', 'upgrade' => 'y'}, ['abc']]")
        .0
        .must_be("200 OK\ncontent-length: 3\n!upgrade\n\nabc");
    result("[200, {'a' => \"b\\tc\"}, ['x']]")
        .0
        .must_be("200 OK\na: b\tc\n\nx");
    result("[204, {}, []]")
        .0
        .must_be("204 OK\n!content-length\n\n");
    for (text, want) in [
        ("5", "rack app did not return an array (RuntimeError)"),
        ("[]", "nil cannot be converted to Integer (TypeError)"),
        (
            "['200', {}, []]",
            "String cannot be converted to Integer (TypeError)",
        ),
        (
            "[99, {}, []]",
            "status returned from rack app is out of range (RuntimeError)",
        ),
        (
            "[103, {'link' => '</a>'}, []]",
            "status returned from rack app is out of range (RuntimeError)",
        ),
        (
            "[101, {'upgrade' => 'x'}, nil]",
            "status returned from rack app is out of range (RuntimeError)",
        ),
        (
            "[-1, {}, []]",
            "status returned from rack app is out of range (RuntimeError)",
        ),
        ("[200]", "undefined method 'each' (NoMethodError)"),
        (
            "[200, [1], []]",
            "array element of headers MUST by an array (ArgumentError)",
        ),
        (
            "[200, {'a b' => ''}, []]",
            "invalid header name: a b (ArgumentError)",
        ),
        (
            "[200, {'a' => \"b\\r\"}, []]",
            "invalid value of header a (ArgumentError)",
        ),
        (
            "[200, {'a' => \"\\e[0m\"}, []]",
            "invalid value of header a (ArgumentError)",
        ),
        (
            "[200, {'a' => \"b\\x7f\"}, []]",
            "invalid value of header a (ArgumentError)",
        ),
        (
            "http_request('http://127.0.0.1:1/', {:headers => {'a' => \"\\x01\"}})",
            "invalid value of header a (ArgumentError)",
        ),
        (
            "H2O.next.request(env.merge('HTTP_A' => \"\\x1f\"))",
            "invalid value of header a (ArgumentError)",
        ),
        ("Fiber.yield(1)", "Fiber.yield must not be called"),
        ("http_request('ftp://a/')", "invaild URL (ArgumentError)"),
        (
            "env['rack.early_hints'][1]",
            "Integer cannot be converted to Hash (TypeError)",
        ),
        (
            "env['h2o.is_ech'].is_a?(Proc) or raise",
            "rack app did not return an array (RuntimeError)",
        ),
    ] {
        let (answer, log) = result(text);
        answer.must_be("500 Internal Server Error\ncontent-type: text/plain; charset=utf-8\n!date\n\nInternal Server Error");
        assert!(log.contains(want), "{text}: {log}");
    }
    let (_, log) = result("5");
    let want = "[h2o_mruby] in request:www.example.com/result:mruby raised: rack app did not return an array (RuntimeError)";
    assert!(log.contains(want), "{log}");
}

#[test]
fn a_script_that_raises_costs_one_request() {
    let server = start();
    for _ in 0..3 {
        server
            .ask("GET /raise")
            .must_be("500 Internal Server Error\n\nInternal Server Error");
        server
            .ask("GET /exception")
            .must_be("500 Internal Server Error\n\nInternal Server Error");
        server.ask("GET /hello").must_be("200 OK\n\nhello nobody\n");
    }
    server
        .ask("GET /broken")
        .must_be("500 OK\n\nInternal Server Error");
    server
        .ask("GET /uncallable")
        .must_be("500 OK\n\nInternal Server Error");
    let log = server.folder.read("error.log");
    assert_eq!(
        log.matches("mruby raised: undefined method 'foo' (NoMethodError)")
            .count(),
        2,
        "the script did not run once per worker: {log}"
    );
    assert!(
        log.contains("mruby raised: app is not callable (RuntimeError)"),
        "{log}"
    );
}

#[test]
fn waiting_scripts_hold_nobody_up_and_tasks_talk_by_channels() {
    let server = start();
    server.ask("GET /late").must_be("200 OK\n\nevaluated");
    server.ask("GET /sleep").must_be("200 OK\n\n0");
    server.ask("GET /channel").must_be("200 OK\n\n[0, 1, nil]");
    // A wait that is refused takes no part in the queue.
    server
        .ask("GET /refused")
        .must_be("200 OK\n\nrefused, then 1");
    server
        .ask("GET /sleeps")
        .must_be("200 OK\n\n[0, 1, 2, 3, 4]");
}

#[test]
fn a_body_with_each_is_sent_while_it_is_made_and_closed_once() {
    let server = start();
    server
        .ask("GET /each")
        .must_be("200 OK\n!content-length\n\nchunk0\nchunk1\nchunk2\n");
    let got = run(
        "curl",
        &["-s", "--http2-prior-knowledge", &server.url("/each")],
    )
    .text();
    assert_eq!(got, "chunk0\nchunk1\nchunk2\n");
    eventually("the calls of close() for both bodies", || {
        let log = server.folder.read("error.log");
        (log.matches("closed").count() == 2).then_some(())
    });
    assert_eq!(server.ask("GET /large").text().len(), 64 * 65536);
    // The head of the response has been sent, so the server can only cut the response off.
    assert_ne!(run("curl", &["-s", &server.url("/string")]).code, 0);
    let log = server.folder.read("error.log");
    assert!(
        log.contains("mruby raised: undefined method 'each' (NoMethodError)"),
        "{log}"
    );
}

#[test]
fn a_body_that_is_not_sent_is_made_nevertheless() {
    let server = Setup::new(
        r##"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
access-log: {path: @DIR@/access.log, format: '%U %{error}x'}
hosts:
  default:
    paths:
      /:
        - mruby.handler: |
            class Slow < Struct.new(:name)
              def each
                yield "a"
                sleep 0.01
                yield "b"
                raise "broken" if name == "broken"
                $stderr.puts "#{name} done"
              end
              def close() $stderr.puts "#{name} closed" end
            end
            class Waits < Slow
              def each
                super
                sleep 0.01
                $stderr.puts "#{name} waited"
              end
            end
            lambda do |env|
              name = env["QUERY_STRING"]
              status = name == "no-content" ? 204 : 200
              length = {"cut" => 1, "nothing" => 0, "exact" => 2}[name.split("-")[0]]
              body = length ? Waits.new(name) : Slow.new(name)
              [status, length ? {"content-length" => length.to_s} : {}, body]
            end
      /inner:
        mruby.handler: |
          lambda { |env| env["PATH_INFO"] = "/"; env["SCRIPT_NAME"] = ""; H2O.reprocess.request(env).join }
      /endless:
        mruby.handler: |
          lambda { |env| [200, {}, Class.new { def each() loop { yield "x" } end }.new] }
      /slowly:
        mruby.handler: |
          class Slowly < Struct.new(:name)
            def each() loop { yield "x"; sleep 0.01 } end
            def close() $stderr.puts "#{name} closed" end
          end
          lambda { |env| [200, {}, Slowly.new(env["QUERY_STRING"])] }
      /limit:
        - mruby.handler: |
            lambda { |env| [399, {"content-length" => "3"}, []] }
        - mruby.handler: |
            lambda { |env| [200, {}, ["hello"]] }
"##,
    )
    .start();
    for (method, name) in [("GET", "all"), ("HEAD", "head"), ("GET", "no-content")] {
        let _ = server.ask(&format!("{method} /?{name}"));
        let _ = server.read_until("error.log", &format!("{name} done\n{name} closed\n"));
    }
    // The connection may drop the body as soon as it has all that was announced.
    for (kind, content) in [("cut", "a"), ("exact", "ab"), ("nothing", "")] {
        for (way, path, option) in [
            ("http1", "/", "--http1.1"),
            ("http2", "/", "--http2-prior-knowledge"),
            ("inner", "/inner", "--http1.1"),
        ] {
            let name = format!("{kind}-{way}");
            let url = server.url(&format!("{path}?{name}"));
            let got = run("curl", &["-s", option, &url]).stdout;
            assert_eq!(got, content.as_bytes(), "{name}");
            let end = format!("{name} done\n{name} waited\n{name} closed\n");
            let _ = server.read_until("error.log", &end);
        }
    }
    let log = server.folder.read("error.log");
    assert!(!log.contains("mruby raised"), "{log}");
    server.ask("HEAD /endless").must_be("200 OK\n\n");
    let closed = "mruby raised: downstream HTTP closed (RuntimeError)\n";
    let _ = server.read_until("error.log", closed);
    server
        .ask("GET /limit")
        .must_be("200 OK\ncontent-length: 3\n\nhel");
    server
        .ask("HEAD /limit")
        .must_be("200 OK\ncontent-length: 3\n\n");
    // A hundred scripts may go on although nobody gets what they yield. One more ends the oldest.
    for number in 0..=100 {
        server
            .ask(&format!("HEAD /slowly?{number}."))
            .must_be("200 OK\n\n");
    }
    let log = server.read_until("error.log", "0. closed\n");
    assert!(!log.contains("1. closed"), "{log}");
    // An exception in `each` is reported once.
    assert_ne!(run("curl", &["-s", &server.url("/?broken")]).code, 0);
    let _ = server.read_until("access.log", "/endless \n/limit");
    let log = server.read_until("error.log", "broken closed\n");
    assert_eq!(log.matches("mruby raised: broken").count(), 1, "{log}");
}

#[test]
fn a_client_that_goes_away_ends_the_body_of_a_script() {
    let server = start();
    // The client receives nothing and closes the connection.
    let mut client = server.connect();
    client.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n");
    drop(client);
    let _ = server.read_until(
        "error.log",
        "mruby raised: downstream HTTP closed (RuntimeError)",
    );
    server.ask("GET /hello").must_be("200 OK\n\nhello nobody\n");
}

#[test]
fn status_399_lets_the_next_handler_answer() {
    let server = start();
    let answer = server.ask("GET /next");
    answer.must_be("200 OK\n\nbar");
    assert_eq!(
        answer.all("x-from").collect::<Vec<_>>(),
        ["first", "second", "third"]
    );
    server
        .ask("GET /none")
        .must_be("404 File Not Found\n!x-from\n\nnot found");
    server
        .ask("GET /moved")
        .must_be("302 Redirected\nx-from: first\nlocation: /elsewhere");
    server
        .ask("GET /varied/h2o.conf")
        .must_be("200 OK\nvary: accept-encoding, cookie");
    let _ = server.read_until("access.log", "/next 200 bar ");
}

#[test]
fn early_hints_and_error_lines_of_a_script_arrive() {
    let server = start();
    let got = run(
        "curl",
        &["-s", "-i", "--http2-prior-knowledge", &server.url("/hints")],
    )
    .text();
    assert!(got.starts_with("HTTP/2 103 \r\nlink: </a.css>; rel=preload\r\nlink: </b.css>; rel=preload\r\n\r\nHTTP/2 200"), "{got}");
    server.ask("GET /hints").must_be("200 OK\n\nhinted");
    let _ = server.read_until("access.log", "/hints 200 - noted");
}

#[test]
fn syntax_errors_are_found_with_the_line_of_the_configuration() {
    let refused = |config: &str, want: &str| {
        let setup = Setup::new(config).file("bad.rb", "\n\nlambda {");
        let error = setup
            .try_start()
            .err()
            .map(|refused| refused.stderr)
            .unwrap_or_default();
        assert!(error.contains(want), "{error}");
    };
    let paths = "listen: @PORT@\nhosts:\n  default:\n    paths:\n      /:\n";
    refused(
        &format!("{paths}        mruby.handler: |\n          x = 1\n          y = (\n"),
        "h2o.conf:7] in command mruby.handler, ruby compile error:line 9:syntax error, unexpected $end",
    );
    refused(
        &format!("{paths}        mruby.handler-file: @DIR@/bad.rb\n"),
        "bad.rb:line 3:syntax error, unexpected $end",
    );
    refused(
        &format!("{paths}        mruby.handler-file: /nowhere.rb\n"),
        "failed to open file: /nowhere.rb:No such file or directory",
    );
    refused(
        &format!("{paths}        mruby.handler_path: x\n"),
        "the command has been removed",
    );
    refused(
        &format!("{paths}        mruby.handler: [a]\n"),
        "argument cannot be a sequence",
    );
    refused(
        "listen: @PORT@\nmruby.handler: 1\n",
        "the command cannot be used at this level",
    );
}

const CALLS: &str = r##"
listen: @PORT@
error-log: @DIR@/error.log
proxy.timeout.io: 5000
hosts:
  default:
    paths:
      /whole:
        mruby.handler: |
          lambda do |env|
            one = http_request("BACKEND/a?x=1", {:method => "POST", :headers => {"X-a" => "b"}, :body => "sent"})
            two = http_request("BACKEND/two")
            status, headers, body = one.join
            [status, {"x-two" => two.join[2].join, "x-same" => one.join.equal?(one.join).to_s}, [headers["x-lines"].inspect, body.join]]
          end
      /handed-on:
        mruby.handler: |
          lambda { |env| http_request("BACKEND/large").join }
      /pieces:
        mruby.handler: |
          lambda do |env|
            status, headers, body = http_request("BACKEND/large").join
            length = 0
            body.each { |piece| length += piece.size }
            again = begin; body.join; rescue => e; e.message; end
            [200, {}, [length.to_s, again]]
          end
      /encoded:
        mruby.handler: |
          lambda do |env|
            encoded = "3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n"
            headers = {"Transfer-Encoding" => "chunked", "Connection" => "close"}
            encoded = "3\r\nabcd" if env["QUERY_STRING"] == "broken"
            headers["transfer-encoding"] = "gzip, chunked" if env["QUERY_STRING"] == "gzip"
            http_request("BACKEND/encoded", {:method => "POST", :headers => headers, :body => encoded}).join
          end
      /chunked:
        mruby.handler: |
          lambda { |env| s, h, b = http_request("BACKEND/two").join; h["x-te"] = h["transfer-encoding"].inspect; [s, h, b] }
      /refused:
        mruby.handler: |
          lambda { |env| http_request("CLOSED").join }
      /forgotten:
        mruby.handler: |
          lambda { |env| 100.times { http_request("BACKEND/large") }; [200, {}, ["sent"]] }
"##;

#[test]
fn scripts_ask_other_servers() {
    let backend = Backend::by_request(|request| match request.target() {
        "/a?x=1" => {
            assert_eq!(
                (request.method(), request.field("x-a")),
                ("POST", Some("b"))
            );
            assert!(request.head.contains("\r\nX-a: b\r\n"), "{}", request.head);
            assert_eq!(request.field("content-length"), Some("4"));
            "HTTP/1.1 201 Made\r\nx-lines: 1\r\nx-lines: 2\r\ncontent-length: 3\r\n\r\none"
                .to_owned()
        }
        "/encoded" => {
            let kept = ["transfer-encoding", "content-length", "connection"]
                .map(|name| request.field(name).unwrap_or("-"));
            assert_eq!(kept, ["chunked", "-", "close"]);
            format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}",
                request.body.len(),
                String::from_utf8_lossy(&request.body)
            )
        }
        "/large" => format!(
            "HTTP/1.1 200 OK\r\nx-from: backend\r\ncontent-length: 500000\r\n\r\n{}",
            "z".repeat(500_000)
        ),
        _ => {
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n".to_owned()
        }
    });
    let closed = ClosedPort::new();
    let config = CALLS.replace("BACKEND", backend.url("").trim_end_matches('/'));
    let server = Setup::new(&config.replace("CLOSED", &closed.url())).start();
    server
        .ask("GET /whole")
        .must_be("201 OK\nx-two: two\nx-same: true\n\n\"1\\n2\"one");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let got = run("curl", &["-s", version, &server.url("/handed-on")]);
        assert_eq!(got.text(), "z".repeat(500_000));
    }
    server
        .ask("GET /handed-on")
        .must_be("200 OK\nx-from: backend\ncontent-length: 500000");
    server
        .ask("GET /encoded")
        .must_be("200 OK\ncontent-length: 5\n\nabcde");
    server
        .ask("GET /encoded?broken")
        .must_be("500 Internal Server Error");
    let _ = server.read_until(
        "error.log",
        "the body is not in chunked coding (ArgumentError)",
    );
    server
        .ask("GET /encoded?gzip")
        .must_be("500 Internal Server Error");
    server
        .ask("GET /chunked")
        .must_be("200 OK\nx-te: \"chunked\"\n\ntwo");
    server
        .ask("GET /pieces")
        .must_be("200 OK\n\n500000http response body is already consumed");
    server.ask("GET /refused").must_be(
        "500 OK\nclient-warning: connection refused\ncontent-type: text/plain; charset=utf-8\n\nconnection refused",
    );
    server.ask("GET /forgotten").must_be("200 OK\n\nsent");
    server.ask("GET /whole").must_be("201 OK\nx-two: two");
}

#[test]
fn access_rules_see_patterns_and_let_the_next_handler_answer() {
    let config = r##"
listen: @PORT@
hosts:
  default:
    paths:
      /:
        - mruby.handler: |
            acl {
              respond(429, {"retry-after" => "60"}, ["slow\n"]) { user_agent =~ /scraper/i }
              redirect("/new/", 301) { path.match?(/\A\/old(\/|\z)/) }
              allow { header("x-pass") == "yes" }
              deny
            }
        - mruby.handler: |
            lambda { |env| [200, {}, [env["PATH_INFO"].gsub(/(\d+)/) { "<#{$1}>" }]] }
"##;
    let server = Setup::new(config).start();
    server
        .ask("GET /a12b3\nX-Pass: yes")
        .must_be("200 OK\n\n/a<12>b<3>");
    server
        .ask("GET /\nUser-Agent: a Scraper")
        .must_be("429 OK\nretry-after: 60\n\nslow\n");
    server
        .ask("GET /old/x\nX-Pass: yes")
        .must_be("301 OK\nlocation: /new/\n\n");
    server.ask("GET /").must_be("403 OK\n\nForbidden");
}
