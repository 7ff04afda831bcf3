//! The hash of a request that scripts get, and octets in it and around it that are not UTF-8.

use h2o_tests::{Backend, Setup};

/// Expressions that a script evaluates with `env`, the hash of a request, and the values they must have.
const LOOKS: &[(&str, &str)] = &[
    // The order of the keys does not depend on which values the script has used before.
    (
        "env['HTTP_X_B']; env['PATH_INFO']; env.keys.first(4)",
        r#"["REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING"]"#,
    ),
    (
        "env.keys.select { |key| key[0, 7] == 'HTTP_X_' }",
        r#"["HTTP_X_A", "HTTP_X_B", "HTTP_X_BLOCK"]"#,
    ),
    (
        "[env['nowhere'], env[:sym], env[nil], env['HTTP_NOWHERE']]",
        "[nil, nil, nil, nil]",
    ),
    (
        "[env.key?('HTTP_X_A'), env.key?('CONTENT_LENGTH')]",
        "[true, false]",
    ),
    ("env.fetch('HTTP_NONE', 5)", "5"),
    // This expression copies `env` in a way in which mruby does not ask it for its keys.
    ("Hash[env].keys.all? { |key| String === key }", "true"),
    ("[env[:HTTP_X_A], env[:source]]", "[nil, nil]"),
    ("env.fetch('HTTP_X_A')", r#""1""#),
    // Changes that a script makes to `env` remain visible.
    (
        "env['PATH_INFO'] << '!'; [env['PATH_INFO'], env.to_a.assoc('PATH_INFO')]",
        r#"["/x!", ["PATH_INFO", "/x!"]]"#,
    ),
    (
        "env['HTTP_X_A'] = '2'; env['new'] = 3; [env['HTTP_X_A'], env['new'], env.keys.last]",
        r#"["2", 3, "new"]"#,
    ),
    (
        "env.delete('HTTP_X_A'); [env['HTTP_X_A'], env.key?('HTTP_X_A')]",
        "[nil, false]",
    ),
    (
        "env.default = 7; [env['nowhere'], env['HTTP_X_A']]",
        r#"[7, "1"]"#,
    ),
    ("env.clear; [env['PATH_INFO'], env.size]", "[nil, 0]"),
    // `env` behaves as a Hash, for a script that asks for its class and for methods that take a Hash.
    (
        "[env.class, Hash === env, env.is_a?(Hash), env.instance_of?(Hash), env.nil?]",
        "[Hash, true, true, true, false]",
    ),
    (
        "[{}.merge(env).size == env.size, {'a' => 1}.update(env).size - env.size]",
        "[true, 1]",
    ),
    ("h = {}; h.replace(env); h['PATH_INFO']", r#""/x""#),
    (
        "h = env.dup; [h == env, env == h, h.size > 20]",
        "[true, true, true]",
    ),
    ("h = {}; env.each { |k, v| h[k] = v }; h == env", "true"),
    ("h = {'PATH_INFO' => '/x'}; h == env", "false"),
    ("env.frozen? || env.freeze.frozen?", "true"),
    (
        "env.each { |key, value| sleep 0.001 if key == 'PATH_INFO' }.size > 20",
        "true",
    ),
    (
        "begin; env.nonsense; rescue NoMethodError => e; e.name; end",
        ":nonsense",
    ),
    ("env['rack.errors'].equal?(env['rack.errors'])", "true"),
    (
        "[env['CONTENT_TYPE'], env['HTTP_CONTENT_TYPE'], env['SERVER_ADDR'], env['SERVER_PORT'].to_i > 1024]",
        r#"["a/b", nil, "127.0.0.1", true]"#,
    ),
    (
        "[env['HTTP_COOKIE'], env['HTTP_X_B']]",
        r#"["a=1; b=2", "1, 2"]"#,
    ),
    ("$kept = env; nil", "nil"),
    (
        "[$kept['HTTP_X_A'], $kept['REMOTE_ADDR'], $kept.size > 20]",
        r#"["1", "127.0.0.1", true]"#,
    ),
];

#[test]
fn the_request_is_a_hash_whatever_is_done_with_it() {
    let config = r#"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /look:
        mruby.handler: |
          lambda do |env|
            load env["HTTP_X_BLOCK"]
            [200, {}, [$block.call(env).inspect]]
          end
"#;
    let server = Setup::new(config).start();
    let mut wrong = Vec::new();
    for (text, want) in LOOKS {
        let file = server.folder.ruby_block("env", text);
        let got = server
            .ask(&format!(
                "GET /look/x\ncontent-type: a/b\nx-b: 1\nx-a: 1\nx-b: 2\ncookie: a=1\ncookie: b=2\nx-block: {file}"
            ))
            .text();
        if got != *want {
            wrong.push(format!("{text}\n    gave {got}\n  wanted {want}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn literals_and_arguments_copy_the_request_as_a_whole() {
    let config = r#"
listen: @PORT@
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /:
        mruby.handler: |
          def names(of) of.keys end
          lambda do |env|
            made = [{"X" => 1, **env}, {**{"X" => 1}, **env}]
            seen = made.map { |all| [all["REQUEST_METHOD"], all["X"], all.size - env.size] }
            odd = made.map(&:keys).flatten.reject { |key| String === key }
            [200, {}, [[seen, odd, names("X" => 1, **env) == ["X"] + env.keys].inspect]]
          end
"#;
    let server = Setup::new(config).start();
    let want = r#"[[["GET", 1, 1], ["GET", 1, 1]], [], true]"#;
    server.ask("GET /").must_be(&format!("200 OK\n\n{want}"));
}

#[test]
fn a_hash_that_a_script_keeps_describes_its_own_request_for_ever() {
    let config = r#"
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /:
        mruby.handler: |
          lambda do |env|
            $kept = env if env["QUERY_STRING"] == "keep"
            # Frees the Hashes of other requests, whose memory the next requests use.
            GC.start
            [200, {}, [env["PATH_INFO"], " ", $kept ? $kept["PATH_INFO"] : "none"]]
          end
"#;
    let server = Setup::new(config).start();
    for (path, want) in [
        ("/one", "/one none"),
        ("/two?keep", "/two /two"),
        ("/three", "/three /two"),
        ("/four", "/four /two"),
        ("/five?keep", "/five /five"),
        ("/six", "/six /five"),
    ] {
        let got = server.ask(&format!("GET {path}")).text();
        assert_eq!(got, want, "{path}");
    }
}

#[test]
fn octets_that_are_no_utf_8_stay_as_they_are() {
    let echo = Backend::by_request(|request| {
        let target = request.target().to_owned();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}",
            target.len()
        )
    });
    let config = "
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
hosts:
  default:
    paths:
      /variable:
        - mruby.handler: |
            lambda { |env| [399, {\"x-fallthru-set-foo\" => \"caf\\xe9\"}, []] }
        - mruby.handler: |
            lambda { |env| [200, {}, [env[\"FOO\"].bytes.inspect]] }
      /file: {mruby.handler-file: '@DIR@/latin.rb'}
      /fetch:
        mruby.handler: |
          lambda { |env| http_request(\"BACKEND\" + env[\"PATH_INFO\"]).join }
";
    let backend = echo.url("");
    let server = Setup::new(&config.replace("BACKEND", backend.trim_end_matches('/')))
        .file(
            "latin.rb",
            b"# Z\xfcrich\nlambda { |env| [200, {}, [\"\xe9\".bytes.inspect]] }\n",
        )
        .start();
    assert_eq!(server.ask("GET /variable").text(), "[99, 97, 102, 233]");
    assert_eq!(server.ask("GET /file").text(), "[233]");
    let mut client = server.connect();
    client.send(b"GET /fetch/caf\xe9 HTTP/1.1\r\nhost: a.test\r\n\r\n");
    assert_eq!(client.read_head().code(), 200);
    echo.wait_for("GET /caf");
    assert!(echo.received(0).starts_with(b"GET /caf\xe9 HTTP/1.1\r\n"));
}
