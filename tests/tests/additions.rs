//! Features that H2O does not have: rules for addresses, passwords, rewriting, patterns of paths, CORS, a maintenance page.

use h2o_tests::{Backend, FINE, Server, Setup, Talk, curl, eventually, run};

/// Starts a server with these lines of `paths`; each file in its `www/` contains its own name.
fn start(paths: &str) -> Server {
    let config = format!(
        "listen: @PORT@\naccess-log: {{ path: @DIR@/log, format: '%U %s %u %{{PATH_1}}e' }}\nhosts:\n  default:\n    paths:\n{paths}"
    );
    let mut setup = Setup::new(&config);
    for name in [
        "a.txt",
        "b.html",
        "docs/index.html",
        "app.html",
        "index.php",
    ] {
        setup = setup.file(&format!("www/{name}"), format!("this is {name}"));
    }
    setup.start()
}

/// Returns the status code and the content of the response.
fn ask(server: &Server, request: &str) -> String {
    let response = server.ask(request);
    format!("{} {}", response.code(), response.text().trim())
}

#[test]
fn addresses_are_allowed_and_denied_in_order() {
    let server = start(
        "      /open: { file.dir: @DIR@/www }
      /closed: { deny: all, file.dir: @DIR@/www }
      /inner: { allow: [10.0.0.0/8, 127.0.0.0/8], file.dir: @DIR@/www }
      /others: { allow: 10.0.0.0/8, file.dir: @DIR@/www }
      /local: { deny: 127.0.0.1, allow: all, file.dir: @DIR@/www }
      /nothing: { deny: all }
",
    );
    for (path, want) in [
        ("/open/a.txt", "200 this is a.txt"),
        ("/closed/a.txt", "403 forbidden"),
        ("/inner/a.txt", "200 this is a.txt"),
        ("/others/a.txt", "403 forbidden"),
        ("/local/a.txt", "403 forbidden"),
        ("/nothing/", "403 forbidden"),
    ] {
        assert_eq!(ask(&server, &format!("GET {path}")), want, "{path}");
    }
    server.wait_for_message("[access] in request:");
}

#[test]
fn no_spelling_of_a_path_leads_past_its_guards() {
    let server = start(
        "      /: { file.dir: @DIR@/www }
      /docs: { deny: all, file.dir: @DIR@/www/docs }
      '~ ^/[a-z]+\\.(.*)$': { deny: all, file.dir: @DIR@/www }
",
    );
    for (path, want) in [
        ("/docs/index.html", "403"),
        ("//docs/index.html", "404"),
        ("/%2fdocs/index.html", "404"),
        ("/x/..//docs/index.html", "404"),
        ("/a.txt", "403"),
        ("//a.txt", "404"),
        ("/a.%ff", "403"),
        ("/a.%0a", "403"),
        ("/app.html//", "403"),
        ("/docs//none", "403"),
        ("//none", "404"),
    ] {
        let answer = ask(&server, &format!("GET {path}"));
        assert_eq!(answer.split(' ').next(), Some(want), "{path}");
    }
}

#[test]
fn requests_that_come_back_to_the_server_are_answered() {
    let server = start("      /loop: { proxy.reverse.url: 'http://127.0.0.1:@PORT@/loop' }\n");
    let answer = ask(&server, "GET /loop");
    assert!(answer.starts_with("502 "), "{answer}");
    server.wait_for_message("request loop: the request has passed more than 20 proxies");
}

#[test]
fn passwords_are_checked_against_a_file() {
    let server = start(
        "      /: { auth.basic: { file: @DIR@/users, realm: 'staff \"only\"' }, file.dir: @DIR@/www }
      /free: { auth.basic: OFF, file.dir: @DIR@/www }
      /broken: { auth.basic: @DIR@/none, file.dir: @DIR@/www }
",
    );
    let apr1 = run(
        "openssl",
        &["passwd", "-apr1", "-salt", "saltsalt", "secret"],
    )
    .text();
    // Hashes of passwords as `htpasswd -B` and `htpasswd -s` write them.
    let bcrypt = "$2b$04$P8RuztND1vn5rPLudBSnOe7RoMzUbtqy9vWWqu6kh6zpm44kYozia";
    let sha = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";
    let users = format!("# staff\nann:{apr1}bob:{bcrypt}\ncy:{sha}\ndan:plain\n");
    server.folder.write("users", users);
    let status = |user: &str, path: &str| curl(&["-u", user, &server.url(path)]).code();
    for (user, want) in [
        ("ann:secret", 200),
        ("ann:secret", 200),
        ("ann:other", 401),
        ("bob:secret", 200),
        ("bob:wrong", 401),
        ("cy:secret", 200),
        ("cy:", 401),
        ("dan:plain", 500),
        ("eve:secret", 401),
        ("#:", 401),
    ] {
        assert_eq!(status(user, "/a.txt"), want, "{user}");
    }
    server.wait_for_message("has {SHA} hashes, which are guessed quickly");
    server.wait_for_message("crypt-style password hash is not supported");
    let asked = server.ask("GET /a.txt");
    assert_eq!(asked.code(), 401);
    let challenge = "Basic realm=\"staff \\\"only\\\"\", charset=\"UTF-8\"";
    assert_eq!(asked.field("www-authenticate"), Some(challenge));
    assert_eq!(ask(&server, "GET /free/a.txt"), "200 this is a.txt");
    assert_eq!(status("ann:secret", "/broken/a.txt"), 500);
    let _ = server.read_until("log", "/a.txt 200 ann -\n");
    // A user who is removed from the file is refused, although the server has accepted and remembered the password before.
    server.folder.write("users", format!("cy:{sha}\n"));
    eventually("the new users", || {
        (status("ann:secret", "/a.txt") == 401).then_some(())
    });
    assert_eq!(status("cy:secret", "/a.txt"), 200);
}

#[test]
fn rewriting_is_seen_by_the_client_only_with_a_status() {
    let backend = Backend::start(|talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            let line = request.head.lines().next().unwrap_or_default().to_owned();
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let text = format!("{line} {body}");
            talk.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            ));
        }
    });
    let server = start(&format!(
        "      /:
        rewrite:
          - {{ match: '^/u/(?<name>[^/]+)$', to: '/backend/user?name=${{name}}' }}
          - {{ match: '^/old/(.*)$', to: '/$1', status: 301 }}
          - {{ match: '^/twice$', to: /a.txt }}
          - {{ match: '^/loop', to: /loop }}
        file.dir: @DIR@/www
      /backend: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/")
    ));
    assert_eq!(ask(&server, "GET /twice"), "200 this is a.txt");
    assert_eq!(ask(&server, "GET /a.txt"), "200 this is a.txt");
    let moved = server.ask("GET /old/x%20y?z");
    assert_eq!(
        (moved.code(), moved.field("location")),
        (301, Some("/x%20y?z"))
    );
    let posted = curl(&["-d", "content", &server.url("/u/ann%26x%3D1")]);
    assert_eq!(
        posted.text(),
        "POST /user?name=ann%26x%3D1 HTTP/1.1 content"
    );
    assert_eq!(server.ask("GET /loop").code(), 502);
}

#[test]
fn patterns_of_paths_come_after_prefixes() {
    let server = start(
        "      '~ ^/u/([a-z]+)': { file.file: @DIR@/www/app.html }
      '~ \\.txt$': { file.file: @DIR@/www/b.html }
      /u/ann: { file.file: @DIR@/www/a.txt }
      /: { file.dir: @DIR@/www }
",
    );
    for (path, want) in [
        ("/u/bob", "200 this is app.html"),
        ("/u/bob/x.txt", "200 this is app.html"),
        ("/u/ann", "200 this is a.txt"),
        ("/a.txt", "200 this is b.html"),
        ("/docs/", "200 this is docs/index.html"),
        ("/u/7", "404 not found"),
    ] {
        assert_eq!(ask(&server, &format!("GET {path}")), want, "{path}");
    }
    let _ = server.read_until("log", "/u/bob 200 - bob\n");
}

#[test]
fn files_are_tried_before_the_last_element() {
    let server = start(
        "      /: { file.try-files: [$path.html, $path/, '/index.php$query'], file.dir: @DIR@/www }
      /front: { file.try-files: '/index.php$query', file.dir: @DIR@/www }
      /spa: { file.dir: @DIR@/www, file.try-files: /spa/app.html }
      /strict: { file.try-files: [$path.html, =410], file.dir: @DIR@/www }
      /legal: { file.try-files: [$path.html, =451], file.dir: @DIR@/www }
",
    );
    for (path, want) in [
        ("/a.txt", "200 this is a.txt"),
        ("/b", "200 this is b.html"),
        ("/docs/", "200 this is docs/index.html"),
        ("/docs", "200 this is docs/index.html"),
        ("/some/article?x", "200 this is index.php"),
        ("/front/", "200 this is index.php"),
        ("/front/docs", "200 this is index.php"),
        ("/spa/any/view", "200 this is app.html"),
        ("/spa/a.txt", "200 this is a.txt"),
        ("/strict/b", "200 this is b.html"),
        ("/strict/c", "410 Gone"),
        ("/legal/c", "451 Unavailable For Legal Reasons"),
        ("/%2e%2e/secret", "200 this is index.php"),
    ] {
        assert_eq!(ask(&server, &format!("GET {path}")), want, "{path}");
    }
}

#[test]
fn pages_may_read_errors_whose_document_comes_from_another_path() {
    let server = start(
        "      /: { file.dir: @DIR@/www, cors: { origins: [https://a.example] } }
      /documented:
        file.dir: @DIR@/www
        cors: { origins: [https://a.example], credentials: YES, expose: etag }
        error-doc: { status: 404, url: /a.txt }
      /elsewhere:
        file.dir: @DIR@/www
        error-doc: { status: 404, url: /a.txt }
",
    );
    let names = [
        "access-control-allow-origin",
        "access-control-allow-credentials",
        "access-control-expose-headers",
        "vary",
    ];
    for (path, want) in [
        ("/documented", "https://a.example; true; etag; origin"),
        ("/elsewhere", "-; -; -; -"),
    ] {
        let response = server.ask(&format!("GET {path}/none\nOrigin: https://a.example"));
        let values = names.map(|name| response.field(name).unwrap_or("-").to_owned());
        let text = response.text();
        assert_eq!(
            (response.code(), text.trim(), &*values.join("; ")),
            (404, "this is a.txt", want),
            "{path}"
        );
    }
}

#[test]
fn pages_of_named_origins_may_ask() {
    let backend = Backend::answering(FINE);
    let server = start(&format!(
        "      /:
        cors: {{ origins: [https://a.example], methods: [GET, PUT], headers: content-type, credentials: YES, max-age: 60 }}
        auth.basic: @DIR@/users
        proxy.reverse.url: '{}'
",
        backend.url("/")
    ));
    let preflight = |origin: &str| {
        server.ask(&format!(
            "OPTIONS /\nOrigin: {origin}\nAccess-Control-Request-Method: PUT"
        ))
    };
    let fields = |origin| {
        let response = preflight(origin);
        let names = ["origin", "methods", "headers", "credentials"];
        let values = names.map(|name| {
            let value = response.field(&format!("access-control-allow-{name}"));
            value.unwrap_or("-").to_owned()
        });
        (response.code(), values.join("; "))
    };
    let allowed = "https://a.example; GET, PUT; content-type; true".to_owned();
    assert_eq!(fields("https://a.example"), (204, allowed));
    assert_eq!(fields("https://b.example"), (204, "-; -; -; -".to_owned()));
    // A 401 has the CORS fields too, so that scripts of an allowed origin may read that a password is needed.
    let refused = server.ask("GET /\nOrigin: https://a.example");
    assert_eq!(refused.code(), 401);
    let origin = refused.field("access-control-allow-origin");
    assert_eq!(
        (origin, refused.field("vary")),
        (Some("https://a.example"), Some("origin"))
    );
}

#[test]
fn a_file_switches_the_maintenance_page_on_and_off() {
    let server = start(
        "      /: { maintenance: { file: @DIR@/down.html, retry-after: 60 }, file.dir: @DIR@/www }
      /team: { maintenance: { file: @DIR@/down.html, except: 127.0.0.1 }, file.dir: @DIR@/www }
",
    );
    assert_eq!(ask(&server, "GET /a.txt"), "200 this is a.txt");
    let file = server.folder.write("down.html", "<p>back soon");
    eventually("the error page that replaces the site", || {
        (server.ask("GET /a.txt").code() == 503).then_some(())
    });
    let response = server.ask("GET /missing");
    assert_eq!(response.field("retry-after"), Some("60"));
    assert_eq!(
        response.field("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(response.text(), "<p>back soon");
    assert_eq!(ask(&server, "GET /team/a.txt"), "200 this is a.txt");
    std::fs::remove_file(file).expect("the file of the error page exists");
    eventually("the site in place of the error page", || {
        (server.ask("GET /a.txt").code() == 200).then_some(())
    });
}

#[test]
fn every_directive_of_the_reference_is_accepted() {
    let config = "crash-handler: /bin/true\ncrash-handler.wait-pipe-close: OFF\nio_uring-batch-size: 4\nneverbleed-offload: QAT\nusdt-selective-tracing: ON\nlisten: @PORT@\nhosts:\n  default:\n    h2olog: appdata\n    paths:\n      /: { self-trace: ON, file.dir: @DIR@/www }\n";
    let server = Setup::new(config).file("www/a.txt", "hello").start();
    assert_eq!(ask(&server, "GET /a.txt"), "200 hello");
    let messages = server.messages();
    for name in [
        "crash-handler",
        "io_uring-batch-size",
        "neverbleed-offload",
        "usdt-selective-tracing",
        "h2olog",
        "self-trace",
    ] {
        let line = format!("in command {name}, ");
        assert!(messages.contains(&line), "{name}: {messages}");
    }
}

#[test]
fn bodies_that_come_while_the_guards_decide_are_whole() {
    let backend = Backend::start(|talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            let text = request.body.len().to_string();
            talk.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            ));
        }
    });
    let server = start(&format!(
        "      /upload:
        maintenance: @DIR@/none.html
        auth.basic: @DIR@/users
        rewrite: {{ match: '^/upload', to: /backend }}
      /backend: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/")
    ));
    server
        .folder
        .write("users", "cy:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    let large = "x".repeat(3_000_000);
    server.folder.write("large", &large);
    let content = format!("@{}", server.folder.name_of("large"));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for (user, content, want) in [
            ("cy:secret", "short", "200 5"),
            ("cy:secret", &*content, "200 3000000"),
            ("cy:wrong", "short", "401 Authorization Required"),
            ("cy:wrong", &*content, "401 Authorization Required"),
        ] {
            // An empty `Expect` makes curl send the body right after the head, without waiting for 100 (Continue).
            let (url, expect) = (server.url("/upload"), "expect:");
            let response = curl(&[
                version,
                "-u",
                user,
                "-H",
                expect,
                "--data-binary",
                content,
                &url,
            ]);
            let got = format!("{} {}", response.code(), response.text().trim());
            assert_eq!(got, want, "{version} {user}");
        }
    }
}

#[test]
fn a_connection_goes_on_behind_a_short_body_that_a_guard_refuses() {
    let backend = Backend::answering(FINE);
    let server = start(&format!(
        "      /:
        auth.basic: @DIR@/users
        proxy.reverse.url: '{}'
      /closed:
        deny: all
        proxy.reverse.url: '{0}'
",
        backend.url("/")
    ));
    // The case: its name, the target, what is sent behind the target, what is sent once the response has come, and whether another
    // request may follow.
    let long = format!("Content-Length: 100000\r\n\r\n{}", "x".repeat(100));
    for (name, target, rest, later, is_kept) in [
        ("short", "/", "Content-Length: 5\r\n\r\nhello", "", true),
        (
            "denied",
            "/closed",
            "Content-Length: 5\r\n\r\nhello",
            "",
            true,
        ),
        (
            "chunked",
            "/",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "",
            true,
        ),
        ("in pieces", "/", "Content-Length: 5\r\n\r\nhe", "llo", true),
        ("late", "/", "Content-Length: 5\r\n\r\n", "hello", true),
        (
            "chunked and late",
            "/",
            "Transfer-Encoding: chunked\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            true,
        ),
        ("long", "/", &long, "", false),
        (
            "waits for 100 Continue",
            "/",
            "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
            "",
            false,
        ),
    ] {
        let mut connection = server.connect();
        connection.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\n{rest}"));
        let response = connection.read_response("POST");
        let code = if target == "/" { 401 } else { 403 };
        let kept = if is_kept { "keep-alive" } else { "close" };
        assert_eq!(
            (response.code(), response.field("connection")),
            (code, Some(kept)),
            "{name}"
        );
        if is_kept {
            connection.send(format!("{later}GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(connection.read_response("GET").code(), 401, "{name}");
        } else {
            assert_eq!(connection.read_to_end(), b"", "{name}");
        }
    }
}
