//! Scripts that loop, allocate, recurse or raise exceptions. Each such script costs only its own request: a limit ends it, the next request
//! in the same VM is answered, so is a request of another client that was sent meanwhile, and the memory is freed.

use h2o_tests::{Server, Setup, eventually, run};

/// What a client gets from a script that goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    /// The status 500.
    Failure,
    /// A response that is cut off, because its head had been sent before the script failed.
    CutOff,
    /// A complete response, because the script's fault had no effect on it or came too late.
    Response,
}

use Seen::{CutOff, Failure, Response};

/// Each script is the body of a `lambda { |env| ... }`.
const HOSTILE: &[(&str, Seen)] = &[
    // Scripts that loop without end.
    ("x = 0; while true; x += 1; end", Failure),
    ("loop {}", Failure),
    ("loop { begin; loop {}; rescue Exception; end }", Failure),
    (
        "begin; while true; end; ensure; while true; end; end",
        Failure,
    ),
    ("until false; end", Failure),
    ("for i in 1..10**18; end", Failure),
    ("[1].cycle { |x| x }", Failure),
    ("(1..10**18).inject(:+)", Failure),
    ("[3, 1, 2].sort { |a, b| while true; end }", Failure),
    ("Hash.new { |h, k| loop {} }[1]", Failure),
    ("eval('while true; end')", Failure),
    ("'x'.instance_eval('loop {}')", Failure),
    ("f = Fiber.new { loop {} }; f.resume", Failure),
    ("task { loop {} }; loop {}", Failure),
    ("'abc'.gsub(/b/) { loop {} }", Failure),
    (
        "def again; again; rescue SystemStackError; again; end; again; loop {}",
        Failure,
    ),
    // Scripts that allocate memory without end.
    ("'x' * (1 << 30)", Failure),
    ("s = 'x'; loop { s << s }", Failure),
    ("a = []; loop { a << 'x' * 1000 }", Failure),
    ("h = {}; i = 0; loop { h[i] = i; i += 1 }", Failure),
    ("i = 0; loop { \"symbol#{i}\".to_sym; i += 1 }", Failure),
    ("a = []; loop { a << Object.new }", Failure),
    (
        "a = []; loop { f = Fiber.new { Fiber.yield }; f.resume; a << f }",
        Failure,
    ),
    ("a = []; loop { a << eval('lambda { a }') }", Failure),
    (
        "a = []; i = 0; loop { a << Regexp.new(\"x#{i}(a|b)*[c-z]+\"); i += 1 }",
        Failure,
    ),
    ("a = [0]; loop { a += a }", Failure),
    // Scripts that recurse without end.
    ("f = lambda { f.call }; f.call", Failure),
    ("def down; [1].each { down }; end; down", Failure),
    (
        "class Deep; def to_s; \"#{self}\"; end; end; Deep.new.to_s",
        Failure,
    ),
    (
        "class Pairs; def ==(o); [self] == [Pairs.new]; end; end; Pairs.new == 1",
        Failure,
    ),
    ("a = []; 5000.times { a = [a] }; a.to_json", Failure),
    // Regular expressions that backtrack for very long.
    (
        "('a' * 5000 + 'b') =~ /\\A(?=(a+)+\\z)(a|a)*\\1c/; raise 'no match'",
        Failure,
    ),
    ("(/(a+)+\\1z/.match('a' * 3000)); raise 'no match'", Failure),
    // Exceptions raised in methods that the server calls.
    ("raise NoMemoryError", Failure),
    (
        "raise Class.new(Exception) { def message() raise 'again' end }",
        Failure,
    ),
    (
        "raise Class.new(StandardError) { def message() loop {} end }",
        Failure,
    ),
    (
        "o = Object.new; def o.to_i() raise 'status' end; [o, {}, []]",
        Failure,
    ),
    (
        "o = Object.new; def o.each() raise 'headers' end; [200, o, []]",
        Failure,
    ),
    (
        "o = Object.new; def o.to_s() raise 'value' end; [200, {'x' => o}, []]",
        Failure,
    ),
    (
        "o = Object.new; def o.to_s() loop {} end; [200, {o => 'x'}, []]",
        Failure,
    ),
    (
        "o = Object.new; def o.each() raise 'body' end; [200, {}, o]",
        CutOff,
    ),
    (
        "o = Object.new; def o.each() yield 'begun'; loop {} end; [200, {}, o]",
        CutOff,
    ),
    (
        "o = Object.new; def o.each() yield 'x' end; def o.close() raise 'close' end; [200, {}, o]",
        Response,
    ),
    (
        "o = Object.new; def o.each() yield 'x' end; def o.close() loop {} end; [200, {}, o]",
        Response,
    ),
    ("task { raise 'task' }; [200, {}, ['x']]", Response),
    ("task { sleep 0; loop {} }; [200, {}, ['x']]", Response),
    (
        "o = Object.new; def o.call(env) raise 'inner' end; H2O::Prometheus.new(o).call(env)",
        Failure,
    ),
    (
        "env['rack.early_hints'].call({'x' => Class.new { def to_s() raise 'hint' end }.new}); [200, {}, []]",
        Failure,
    ),
    (
        "env['rack.errors'].write(Class.new { def to_s() loop {} end }.new)",
        Failure,
    ),
    (
        "JSON.generate([Class.new { def to_json(*) raise 'json' end }.new])",
        Failure,
    ),
    ("Fiber.yield", Failure),
    (
        "20_000.times { Fiber.new { Fiber.yield }.resume }; raise 'all abandoned'",
        Failure,
    ),
    (
        "2000.times { task { sleep 0.01 } }; raise 'all wait'",
        Failure,
    ),
];

const CONFIG: &str = r##"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
mruby.time-limit: 50
mruby.memory-limit: 67108864
hosts:
  default:
    paths:
      /status: {status: ON}
      /fine:
        mruby.handler: |
          require "prometheus.rb"
          lambda { |env| [200, {}, [[1, 2].map { |x| x + 1 }.join]] }
"##;

fn start() -> Server {
    let mut config = CONFIG.to_owned();
    for number in 0..HOSTILE.len() {
        config += &format!("      /h{number}: {{mruby.handler-file: '@DIR@/{number}.rb'}}\n");
    }
    let mut setup = Setup::new(&config);
    for (number, (script, _)) in HOSTILE.iter().enumerate() {
        let text = format!("lambda {{ |env| {script} }}");
        setup = setup.file(&format!("{number}.rb"), &text);
    }
    setup.start()
}

// How long another client waits because of a hostile script is measured by bench/hostile_scripts.py.
#[test]
fn a_hostile_script_costs_its_own_request() {
    let server = start();
    let mut neighbour = server.connect();
    let mut wrong = Vec::new();
    let before = server.memory_at_rest();
    for (number, (script, want)) in HOSTILE.iter().enumerate() {
        let mut client = server.connect();
        client.send(format!(
            "GET /h{number} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        ));
        neighbour.send("GET /fine HTTP/1.1\r\nhost: a\r\n\r\n");
        let fine = neighbour.read_response("GET");
        assert_eq!((fine.code(), &*fine.text()), (200, "23"), "{script}");
        let got = client.read_to_end();
        let got = String::from_utf8_lossy(&got);
        let is_whole = got.ends_with("0\r\n\r\n") || got.contains("Content-Length");
        let seen = match got.split(' ').nth(1) {
            Some("500") => Failure,
            Some("200") if is_whole => Response,
            _ => CutOff,
        };
        if seen != *want {
            wrong.push(format!("{script}: {got}"));
        }
        server.ask("GET /fine").must_be("200 OK\n\n23");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let most = before + 64 * 1024 * 1024;
    eventually("the memory of the scripts to be given back", || {
        (server.memory_at_rest() < most).then_some(())
    });
    let log = server.folder.read("error.log");
    assert!(!log.contains("panic"), "{log}");
}

#[test]
fn memory_comes_back_although_no_other_request_comes() {
    let server = start();
    server.ask("GET /fine").must_be("200 OK\n\n23");
    let before = server.memory_at_rest();
    let scripts = HOSTILE.iter().enumerate();
    let mut hungry = scripts.filter(|(_, (script, _))| script.contains("'x' * 1000"));
    let (number, _) = hungry.next().expect("the script is in the table");
    server
        .ask(&format!("GET /h{number}"))
        .must_be("500 Internal Server Error\n\nInternal Server Error");
    let most = before + 16 * 1024 * 1024;
    eventually("the memory to come back", || {
        (server.memory() < most).then_some(())
    });
}

#[test]
fn the_log_and_the_status_tell_of_limits() {
    let server = start();
    for _ in 0..3 {
        server
            .ask("GET /h0")
            .must_be("500 Internal Server Error\n\nInternal Server Error");
        server.ask("GET /fine").must_be("200 OK\n\n23");
    }
    let at = HOSTILE
        .iter()
        .position(|(script, _)| script.contains("'begun'"));
    let path = format!("/h{}", at.expect("the script is in the table"));
    assert_ne!(run("curl", &["-s", &server.url(&path)]).code, 0);
    let log = server.folder.read("error.log");
    let file = server.folder.name_of("0.rb");
    let want = format!(
        "the script was stopped: it has run for 50 ms without waiting (`mruby.time-limit`) (H2O::TimeLimitError) at {file}:1"
    );
    assert!(log.contains(&want), "{log}");
    let status = server.ask("GET /status/json").text();
    assert!(status.contains("\"scripts.time-limit\": 4"), "{status}");
}

#[test]
fn a_call_that_blocks_its_worker_is_named_in_the_log() {
    let config = "
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /: {mruby.handler-file: '@DIR@/app.rb'}
";
    let text = "lambda do |env|\n  text = IO.popen('sleep 0.5; echo read').read\n  [200, {}, [text]]\nend\n";
    let server = Setup::new(config).file("app.rb", text).start();
    server.ask("GET /").must_be("200 OK\n\nread\n");
    let file = server.folder.name_of("app.rb");
    let want =
        format!("a script held its worker for more than 100 ms in a call that blocks, at {file}:2");
    let log = server.read_until("error.log", &want);
    server.ask("GET /").must_be("200 OK\n\nread\n");
    assert_eq!(log.matches("that blocks").count(), 1, "{log}");
}
