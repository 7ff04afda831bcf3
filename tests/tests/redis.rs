//! `H2O::Redis`, the Redis client of scripts, with a Redis server.

use h2o_tests::{Backend, Folder, Server, Service, Setup, eventually, free_port};

const CONFIG: &str = r##"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /run:
        mruby.handler: |
          $redis = H2O::Redis.new(:host => "127.0.0.1", :port => REDIS, :db => 3, PASSWORD :timeout => LIMIT)
          lambda do |env|
            redis = $redis
            result = begin
              load env["HTTP_X_BLOCK"]
              $block.call(redis)
            rescue => e
              "#{e.class}: #{e.message}"
            end
            [200, {}, [result.inspect]]
          end
"##;

/// Starts a server whose scripts have a Redis client in the variable `redis`.
fn server(port: u16, password: &str, limit: &str) -> Server {
    let password = if password.is_empty() {
        String::new()
    } else {
        format!(":password => \"{password}\",")
    };
    let config = CONFIG
        .replace("REDIS", &port.to_string())
        .replace("PASSWORD", &password)
        .replace("LIMIT", limit);
    Setup::new(&config).start()
}

/// Runs a script in the server, and returns the printed form of its value.
fn run(server: &Server, script: &str) -> String {
    let file = server.folder.ruby_block("redis", script);
    let answer = server.ask(&format!("GET /run\nx-block: {file}"));
    assert_eq!(answer.code(), 200, "{script}: {answer}");
    answer.text()
}

fn check(server: &Server, cases: &[(&str, &str)]) {
    for (script, want) in cases {
        assert_eq!(run(server, script), *want, "{script}");
    }
}

#[test]
fn commands_and_replies_of_every_kind() {
    let folder = Folder::new();
    let port = free_port();
    let _redis = Service::redis(&folder, port, &["--requirepass", "secret"]);
    let server = server(port, "secret", "20");
    check(
        &server,
        &[
            ("redis.disconnected?", "true"),
            ("redis.set('a', 1).join", "\"OK\""),
            ("redis.disconnected?", "false"),
            ("redis.get(:a).join", "\"1\""),
            ("redis.incr('a').join", "2"),
            ("redis.get('none').join", "nil"),
            (
                "one = redis.get('none'); sleep 0.05; [one.join, one.join]",
                "[nil, nil]",
            ),
            ("redis.get('a').args", "[\"GET\", \"a\"]"),
            ("redis.del('l'); redis.rpush('l', 'x', :y, 3).join", "3"),
            ("redis.lrange('l', 0, -1).join", "[\"x\", \"y\", \"3\"]"),
            (
                "redis.eval('return {1,{2,false},\"x\"}', 0).join",
                "[1, [2, nil], \"x\"]",
            ),
            ("redis.config_get('maxclients').join[0]", "\"maxclients\""),
            ("redis.script_exists('x').join", "[0]"),
            ("redis.call(:echo, \"a\\r\\nb\").join", "\"a\\r\\nb\""),
            (
                "(0...1000).map { |i| redis.incr('n') }.map { |one| one.join }.last",
                "1000",
            ),
            ("redis.echo('x' * 3_000_000).join.size", "3000000"),
            // Redis reports that the connection uses database 3.
            (
                "redis.call('CLIENT', 'INFO').join.include?(' db=3 ')",
                "true",
            ),
            ("redis.db = 4; [redis.db, redis.get('a').join]", "[4, nil]"),
            ("redis.db = 3; redis.get('a').join", "\"2\""),
            (
                "redis.call('NOPE', 'x').join",
                "\"H2O::Redis::CommandError: ERR unknown command 'NOPE', with args beginning with: 'x'  (command: NOPE x)\"",
            ),
            (
                "redis.incr('l').join",
                "\"H2O::Redis::CommandError: WRONGTYPE Operation against a key holding the wrong kind of value (command: INCR l)\"",
            ),
            (
                "begin; redis.incr('l').join; rescue H2O::Redis::BaseError => e; e.command.args; end",
                "[\"INCR\", \"l\"]",
            ),
            (
                "redis.get(\"a\\0\")",
                "\"ArgumentError: string contains null byte\"",
            ),
            (
                "redis.monitor",
                "\"H2O::Redis::UnavailableCommandError: monitor command is unavailable\"",
            ),
            ("redis.ensure_connected { redis.ping.join }", "\"PONG\""),
            (
                "[redis.host, redis.port.class, redis.db, redis.password, redis.connect_timeout, redis.command_timeout]",
                "[\"127.0.0.1\", Integer, 3, \"secret\", 20, 20]",
            ),
            ("begin; H2O::Redis.new({}); rescue KeyError; 1; end", "1"),
        ],
    );
}

#[test]
fn transactions_are_executed_or_discarded() {
    let folder = Folder::new();
    let port = free_port();
    let _redis = Service::redis(&folder, port, &[]);
    let server = server(port, "", "20");
    check(
        &server,
        &[
            (
                "redis.multi { |r| r.set('a', 5); r.incr('a') }.join",
                "[\"OK\", 6]",
            ),
            (
                "redis.multi { |r| r.set('a', 'x'); r.incr('a') }.join",
                "\"H2O::Redis::CommandError: ERR value is not an integer or out of range (command: EXEC)\"",
            ),
            (
                "begin; redis.multi { |r| r.set('a', 7); raise 'no' }; rescue => e; [e.message, redis.get('a').join]; end",
                "[\"no\", \"x\"]",
            ),
            (
                "redis.watch('a') { other = H2O::Redis.new(:host => '127.0.0.1', :port => redis.port); other.select(3).join; other.set('a', 1).join; redis.multi { |r| r.get('a') }.join }",
                "\"H2O::Redis::CommandError: transaction was aborted (command: EXEC)\"",
            ),
            (
                "begin; redis.watch('a') { raise 'no' }; rescue => e; e.message; end",
                "\"no\"",
            ),
            ("redis.multi.join + redis.discard.join", "\"OKOK\""),
        ],
    );
}

#[test]
fn messages_of_channels_reach_the_fiber_that_waits() {
    let folder = Folder::new();
    let port = free_port();
    let _redis = Service::redis(&folder, port, &[]);
    let server = server(port, "", "20");
    let publish = "pub = H2O::Redis.new(:host => '127.0.0.1', :port => redis.port);";
    check(
        &server,
        &[
            (
                &format!(
                    "c = redis.subscribe('a', 'b').join; {publish} task {{ pub.publish('b', 'one'); pub.publish('a', 'two') }}; [c.shift, c.shift]"
                ),
                "[[\"b\", \"one\"], [\"a\", \"two\"]]",
            ),
            (
                &format!(
                    "c = redis.subscribe('c').join; {publish} pub.publish('c', 'x'); c.shift {{ |name, text| name + text }}"
                ),
                "\"cx\"",
            ),
            (
                &format!(
                    "c = redis.psubscribe('p*').join; {publish} pub.publish('pq', 'x').join; c.shift"
                ),
                "[\"pq\", \"x\"]",
            ),
            (
                &format!(
                    "c = redis.subscribe('d').join; {publish} pub.publish('d', 'x').join; [redis.unsubscribe('d').join, c.shift, c.shift, c.shift]"
                ),
                "[\"OK\", [\"d\", \"x\"], nil, nil]",
            ),
            (
                "redis.unsubscribe; redis.punsubscribe; redis.ping.join",
                "\"PONG\"",
            ),
            // The test sends more messages than the client keeps for a script that does not read them.
            (
                &format!(
                    "c = redis.subscribe('e').join; {publish} all = (0...5000).map {{ |i| pub.publish('e', i) }}; all.last.join; got = (0...5000).map {{ c.shift[1].to_i }}; got == (0...5000).to_a"
                ),
                "true",
            ),
            (
                "c = redis.subscribe('f').join; H2O::Redis.new(:host => '127.0.0.1', :port => redis.port).client_kill('TYPE', 'pubsub').join; 2.times.map { begin; c.shift; rescue => e; e.class; end }",
                "[H2O::Redis::ConnectionError, H2O::Redis::ConnectionError]",
            ),
            ("redis.ping.join", "\"PONG\""),
        ],
    );
}

#[test]
fn a_server_that_fails_or_is_late_is_an_error_and_the_next_command_connects_again() {
    let folder = Folder::new();
    let port = free_port();
    let server = server(port, "", "0.3");
    let refused = "\"H2O::Redis::ConnectionError: Connection Error\"";
    check(&server, &[("redis.ping.join", refused)]);
    let redis = Service::redis(&folder, port, &[]);
    check(
        &server,
        &[
            ("redis.ping.join", "\"PONG\""),
            // The script calls `join` only after the connection has ended.
            (
                "one = redis.blpop('none', 0); redis.disconnect; one.join",
                refused,
            ),
            ("redis.ping.join", "\"PONG\""),
            (
                "redis.quit { |command| command.join }; sleep 0.05; redis.disconnected?",
                "true",
            ),
            (
                "all = [redis.blpop('none', 0), redis.ping]; all.map { |one| begin; one.join; rescue => e; e.message; end }",
                "[\"Command Timeout\", \"Command Timeout\"]",
            ),
            ("redis.disconnected?", "true"),
            ("redis.ping.join", "\"PONG\""),
        ],
    );
    redis.kill();
    eventually("the script to notice that Redis has ended", || {
        (run(&server, "redis.disconnected?") == "true").then_some(())
    });
    let _redis = Service::redis(&folder, port, &[]);
    check(&server, &[("redis.ping.join", "\"PONG\"")]);
}

#[test]
fn what_is_no_redis_server_is_a_protocol_error() {
    let other = Backend::start(|talk| {
        let _ = talk.read_some();
        talk.send("HTTP/1.1 400 Bad Request\r\n\r\n");
        talk.read_to_end();
    });
    let server = server(other.port(), "", "20");
    check(
        &server,
        &[(
            "redis.ping.join",
            "\"H2O::Redis::ProtocolError: Protocol Error\"",
        )],
    );
}

#[test]
fn a_subscription_that_the_server_does_not_confirm_is_an_error() {
    let replies = [
        ("+OK\r\n", "ProtocolError: Protocol Error"),
        ("$2\r\nok\r\n", "ProtocolError: Protocol Error"),
        ("-ERR no\r\n", "CommandError: ERR no (command: SUBSCRIBE a)"),
    ];
    for (reply, want) in replies {
        let other = Backend::start(move |talk| {
            // The client chooses its database first.
            talk.read_until(b"SELECT\r\n$1\r\n3\r\n");
            talk.send("+OK\r\n");
            talk.read_until(b"SUBSCRIBE\r\n$1\r\na\r\n");
            talk.send(reply);
            talk.read_to_end();
        });
        let server = server(other.port(), "", "20");
        let want = format!("\"H2O::Redis::{want}\"");
        check(&server, &[("redis.subscribe('a').join.shift", &want)]);
    }
}
