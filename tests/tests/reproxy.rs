//! Resources that are fetched instead of the requested one: `reproxy`, and internal redirects and error documents on other servers; which
//! redirects of those servers are followed, and how many.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::http2::{Http2, encode};
use h2o_tests::{
    Backend, ClosedPort, Folder, Request, Response, Server, Service, Setup, Talk, curl, eventually,
};

/// The options that make curl use each version of HTTP.
const WAYS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// Starts a server with these paths, each with `reproxy: ON`, and `settings` at the global level.
fn start(settings: &str, paths: &[(&str, String)]) -> Server {
    Setup::new(&config(settings, paths))
        .file("www/a.txt", "a file")
        .start()
}

fn config(settings: &str, paths: &[(&str, String)]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|(path, content)| format!("      {path}: {{ {content} }}\n"))
        .collect();
    format!(
        "num-threads: 1\nreproxy: ON\nlisten: @PORT@\n{settings}\nhosts:\n  default:\n    paths:\n{}",
        paths.concat()
    )
}

fn to(backend: &Backend, path: &str) -> String {
    format!("proxy.reverse.url: '{}'", backend.url(path))
}

/// A backend whose response is chosen by the request: the field `x-go` is its x-reproxy-url, and `x-status` its status.
fn app() -> Backend {
    Backend::by_request(|request| {
        let status = request.field("x-status").unwrap_or("200");
        let url = request.field("x-go").unwrap_or("/");
        format!(
            "HTTP/1.1 {status} Sure\r\nX-Reproxy-URL: {url}\r\nx-reproxy-url: http://second.example/\r\n\
             set-cookie: app=1\r\nx-app: 1\r\ncontent-length: 9\r\n\r\ndiscarded"
        )
    })
}

/// A backend that answers with the method, the target and the content of the request.
fn echo() -> Backend {
    Backend::by_request(|request| answer(&format!("{} {}", line(request), text_of(&request.body))))
}

fn line(request: &Request) -> String {
    let (line, _) = request.head.split_once(" HTTP/1.1").unwrap_or_default();
    line.to_owned()
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn answer(content: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nx-echo: 1\r\ncontent-length: {}\r\n\r\n{content}",
        content.len()
    )
}

/// Sends the request over both versions of HTTP. Status, content and fields of the two responses must be the same.
fn ask(server: &Server, method: &str, path: &str, fields: &[(&str, &str)]) -> Response {
    let lines: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("\n{name}: {value}"))
        .collect();
    let response = server.ask(&format!("{method} {path}{}", lines.concat()));
    let pseudo = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "www.example.com"),
    ];
    let mut http2 = Http2::open(server.port(), &[]);
    let same = http2.ask(1, &encode(&[&pseudo, fields].concat()));
    assert_eq!(same.status(), response.code(), "{}", same.text());
    assert_eq!(same.text(), response.text());
    for name in ["x-echo", "x-app", "x-reproxy-url", "set-cookie", "x-path"] {
        assert_eq!(same.field(name), response.field(name), "{name}");
    }
    response
}

#[test]
fn the_resource_that_a_response_names_is_sent_in_its_place() {
    let (app, echo) = (app(), echo());
    let server = start(
        "",
        &[
            (
                "/",
                format!("header.add: 'x-path: root', {}", to(&app, "/")),
            ),
            (
                "/files",
                "file.dir: @DIR@/www, header.add: 'x-path: files'".to_owned(),
            ),
            ("/echo", to(&echo, "/base")),
            ("/off", format!("reproxy: OFF, {}", to(&app, "/"))),
        ],
    );
    let other = echo.url("");
    let rows: &[(&str, &str, String, &str)] = &[
        // Columns: method, status of the backend's response (which is dropped), its x-reproxy-url, and the content that the client gets.
        ("GET", "200", format!("{other}/x?y#z"), "GET /x?y "),
        ("GET", "404", format!("{other}/x"), "GET /x "),
        ("GET", "302", other.clone(), "GET / "),
        ("PUT", "200", format!("{other}/x"), "GET /x "),
        ("POST", "308", format!("{other}/x"), "POST /x "),
        ("DELETE", "307", format!("{other}/x"), "DELETE /x "),
        (
            "GET",
            "200",
            format!("//127.0.0.1:{}/y", echo.port()),
            "GET /y ",
        ),
        ("GET", "200", "/echo/z?q".to_owned(), "GET /base/z?q "),
        ("GET", "200", "http://default/echo".to_owned(), "GET /base "),
        ("GET", "200", "files/a.txt".to_owned(), "a file"),
        ("GET", "200", "../../files/./a.txt".to_owned(), "a file"),
    ];
    for (method, status, url, want) in rows {
        let fields = [("x-go", &**url), ("x-status", *status)];
        let response = ask(&server, method, "/app", &fields);
        let shown = format!("{method} {status} {url}\n{response}");
        assert_eq!(response.text(), *want, "{shown}");
        assert_eq!(response.code(), 200, "{shown}");
        assert_eq!(response.field("x-app"), None, "{shown}");
        assert_eq!(response.field("set-cookie"), None, "{shown}");
        // A resource of another server passes the filters of the path whose backend named it; one of this server those of its own path.
        let path = match *want {
            "a file" => Some("files"),
            want if want.starts_with("GET /base") => None,
            _ => Some("root"),
        };
        assert_eq!(response.field("x-path"), path, "{shown}");
    }
    let off = ask(
        &server,
        "GET",
        "/off",
        &[("x-go", "/x"), ("x-status", "201")],
    );
    off.must_be(
        "201 Sure\nx-reproxy-url: /x\nx-reproxy-url: http://second.example/\nx-app: 1\n\ndiscarded",
    );
}

#[test]
fn the_other_server_gets_the_fields_of_the_client() {
    let (app, echo) = (app(), echo());
    let settings = "proxy.preserve-host: ON\nproxy.header.set: 'x-set: 1'";
    let server = start(settings, &[("/", to(&app, "/"))]);
    let other = echo.url("/x");
    server
        .ask(&format!(
            "GET /\nHost: www.example.com:81\nCookie: a=1\nAuthorization: Basic eA==\nX-Forwarded-For: 192.0.2.1\nX-Go: {other}"
        ))
        .must_be("200 OK\n\nGET /x ");
    let received = text_of(&echo.received(0)).replace("\r\n", "\n");
    let want = format!(
        "GET /x HTTP/1.1\nhost: 127.0.0.1:{}\nconnection: keep-alive\nAuthorization: Basic eA==\nX-Go: {other}\ncookie: a=1\n\
         x-forwarded-proto: http\nx-forwarded-for: 192.0.2.1, 127.0.0.1\nvia: 1.1 www.example.com:81\n\n",
        echo.port()
    );
    assert_eq!(received, want);
    let first = text_of(&app.received(0));
    assert!(
        first.contains("x-set: 1") && first.contains("host: www.example.com:81"),
        "{first}"
    );
    // The second request to the other server uses the same connection.
    server
        .ask(&format!("GET /\nX-Go: {}", echo.url("/next")))
        .must_be("200 OK\n\nGET /next ");
    assert_eq!(echo.connections(), 1);
}

#[test]
fn settings_of_the_global_level_apply() {
    let app = app();
    let silent = Backend::start(|talk: &mut Talk| talk.read_to_end());
    let settings = "proxy.timeout.first_byte: 200\nproxy.timeout.keepalive: 0";
    let path = format!("proxy.timeout.first_byte: 30000, {}", to(&app, "/"));
    let server = start(settings, &[("/", path)]);
    server
        .ask(&format!("GET /\nX-Go: {}", silent.url("/")))
        .must_be("502 Gateway Error\n\nfirst byte timeout");
    silent.wait_for("connection: close");
}

#[test]
fn what_cannot_be_fetched_is_502() {
    let app = app();
    let closed = ClosedPort::new();
    let server = start(
        "access-log: { path: @DIR@/log, format: '\"%r\" %U %s %<s [%{error}x]' }",
        &[("/", to(&app, "/"))],
    );
    let unparsed = [
        "http://[",
        "http://",
        "http://a:99999/",
        "http://u@h/",
        "//a b/",
    ];
    for url in unparsed {
        let response = ask(&server, "GET", "/x?y", &[("x-go", url)]);
        assert_eq!(response.text(), "internal error", "{url}");
        response.must_be("502 Gateway Error\ncontent-type: text/plain; charset=utf-8");
        server.wait_for_message(&format!(
            "[core] in request:127.0.0.1:{}/x?y:failed to resolve internal redirect:{url}\n",
            app.port()
        ));
    }
    let url = format!("{}z", closed.url());
    let response = ask(&server, "GET", "/x?y", &[("x-go", &url)]);
    response.must_be("502 Gateway Error\n\nconnection refused");
    let place = closed.url().replace("http://", "");
    server.wait_for_message(&format!(
        "[lib/core/proxy.c] in request:{place}z:connection refused\n"
    ));
    let told = format!("[[lib/core/proxy.c] in request:{place}z:connection refused]\n");
    let log = server.read_until("log", &format!("HTTP/2\" /x 502 502 {told}"));
    assert!(
        log.contains(&format!("\"GET /x?y HTTP/1.1\" /x 502 502 {told}")),
        "{log}"
    );
    // A URL of another scheme counts as a path of this server. This path leads to the backend again, which goes on without end.
    let response = ask(&server, "GET", "/x", &[("x-go", "ftp://h/")]);
    assert_eq!(response.text(), "too many internal delegations");
    app.wait_for("GET /ftp://h/ HTTP/1.1");
}

#[test]
fn there_is_a_limit_to_how_often() {
    const TOO_MANY: &str = "502 Gateway Error\n\ntoo many internal delegations";
    let redirecting = |name: &str| {
        Backend::answering(format!(
            "HTTP/1.1 302 Found\r\n{name}: /\r\ncontent-length: 0\r\n\r\n"
        ))
    };
    let asked = |backend: &Backend| text_of(&backend.received_by_all()).matches("GET ").count();
    // An x-reproxy-url to a proxied path of this server counts as two delegations (`max-delegations`): one for the path, and one for forwarding to
    // the backend.
    let local = redirecting("x-reproxy-url");
    for (settings, want) in [
        ("", 3),
        ("max-delegations: 0", 1),
        ("max-delegations: 7", 4),
    ] {
        let server = start(settings, &[("/", to(&local, "/"))]);
        let before = asked(&local);
        server.ask("GET /").must_be(TOO_MANY);
        assert_eq!(asked(&local) - before, want, "{settings}");
    }
    // A request to another server counts as one delegation, whether x-reproxy-url or a redirect of another server names that server.
    let elsewhere = echo();
    let app = app();
    let location = redirecting("location");
    for (settings, want) in [("", 5), ("max-delegations: 1", 1)] {
        let server = start(settings, &[("/", to(&app, "/"))]);
        let before = asked(&location);
        server
            .ask(&format!("GET /\nX-Go: {}", location.url("/")))
            .must_be(TOO_MANY);
        assert_eq!(asked(&location) - before, want, "{settings}");
    }
    // Forwarding a request to the backend of its own path counts against `max-reprocesses`, the other limit.
    let server = start(
        "max-reprocesses: 0\nmax-delegations: 2",
        &[
            ("/", to(&elsewhere, "/")),
            (
                "/in",
                "redirect: { url: /, status: 307, internal: YES }".to_owned(),
            ),
        ],
    );
    ask(&server, "GET", "/", &[]).must_be("502 Gateway Error\n\ntoo many internal reprocesses");
    server.wait_for_message("/:too many internal reprocesses");
    ask(&server, "GET", "/in/x", &[]).must_be("200 OK\n\nGET /x ");
}

#[test]
fn redirects_are_followed_once_a_request_was_redirected_here() {
    let echo = echo();
    let third = echo.url("");
    let other = Backend::by_request(move |request| {
        let (status, location) = match request.target() {
            "/relative/x" => ("302", "../to"),
            "/absolute" => ("301", "/to"),
            "/post" => ("302", "/to"),
            "/repeat" => ("308", "/to"),
            "/own" | "/base/own" => {
                let host = request.field("host").unwrap_or_default();
                return format!(
                    "HTTP/1.1 303 See Other\r\nlocation: http://{host}/base/to\r\ncontent-length: 0\r\n\r\n"
                );
            }
            "/base/start" => ("302", "/to"),
            "/third" | "/base/third" => ("302", &*third),
            "/304" => ("304", "/to"),
            _ => return answer(&format!("other: {}", line(request))),
        };
        format!("HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
    });
    let app = app();
    let server = start(
        "",
        &[
            ("/", to(&app, "/")),
            ("/plain", to(&other, "/absolute")),
            ("/mounted", to(&other, "/base")),
            (
                "/in",
                "redirect: { url: /mounted, status: 307, internal: YES }".to_owned(),
            ),
            (
                "/preserved",
                format!("proxy.preserve-host: ON, {}", to(&other, "/base")),
            ),
            (
                "/through",
                "redirect: { url: /preserved, status: 307, internal: YES }".to_owned(),
            ),
        ],
    );
    let rows = [
        // Columns: method, path on the other server; status and content that the client gets.
        ("GET", "/relative/x", 200, "other: GET /to"),
        ("GET", "/absolute", 200, "other: GET /to"),
        ("POST", "/post", 200, "other: GET /to"),
        ("PUT", "/post", 200, "other: PUT /to"),
        ("POST", "/repeat", 200, "other: POST /to"),
        ("GET", "/own", 200, "other: GET /base/to"),
        ("GET", "/third", 302, ""),
        ("GET", "/304", 304, ""),
    ];
    for (method, path, code, want) in rows {
        let url = other.url(path);
        let response = ask(&server, method, "/", &[("x-go", &url), ("x-status", "307")]);
        assert_eq!(
            (response.code(), &*response.text()),
            (code, want),
            "{method} {path}"
        );
    }
    // Redirects of a configured backend are followed to other servers too, after an internal redirect of this server.
    ask(&server, "GET", "/in/third", &[]).must_be("200 OK\n\nGET / ");
    // Without an internal redirect of this server, the client gets the backend's redirect.
    ask(&server, "GET", "/plain", &[]).must_be("301 Moved\nlocation: /to");
    // A redirect to a path of the same backend is followed below the path of the backend's URL.
    for path in ["/in/start", "/in/own", "/through/own"] {
        ask(&server, "GET", path, &[]).must_be("200 OK\n\nother: GET /base/to");
    }
    let received = text_of(&other.received_by_all());
    for line in received.lines().filter(|line| line.starts_with("via:")) {
        assert!(
            ["via: 1.1 www.example.com", "via: 2 www.example.com"].contains(&line),
            "{line}"
        );
    }
}

/// Answers every connection to a Unix socket; the receiver gets the requests.
fn at_socket(folder: &Folder) -> (String, mpsc::Receiver<String>) {
    let path = folder.name_of("inner.sock");
    let listener = UnixListener::bind(&path).expect("the test owns the folder");
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("the test owns the file");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut bytes = [0; 1000];
            let count = stream.read(&mut bytes).unwrap_or(0);
            let _ = stream.write_all(answer("the socket").as_bytes());
            if sender.send(text_of(&bytes[..count])).is_err() {
                return;
            }
        }
    });
    (format!("http://[unix:{path}]/x"), receiver)
}

#[test]
fn responses_never_lead_to_unix_sockets() {
    let folder = Folder::new();
    let (url, asked) = at_socket(&folder);
    let app = app();
    let moved = url.clone();
    let moving = Backend::by_request(move |_| {
        format!("HTTP/1.1 307 Moved\r\nlocation: {moved}\r\ncontent-length: 0\r\n\r\n")
    });
    let server = start(
        "",
        &[
            ("/", to(&app, "/")),
            ("/moving", to(&moving, "/")),
            (
                "/in",
                "redirect: { url: /moving, status: 307, internal: YES }".to_owned(),
            ),
            (
                "/configured",
                format!("redirect: {{ url: '{url}', status: 307, internal: YES }}"),
            ),
        ],
    );
    let fields = [("x-go", &*url), ("x-status", "307")];
    ask(&server, "POST", "/", &fields).must_be("502 Gateway Error\n\ninternal error");
    // A server that is not configured as a backend redirects to the socket: the client gets that redirect.
    let stranger = moving.url("/");
    let fields = [("x-go", &*stranger), ("x-status", "307")];
    let response = ask(&server, "POST", "/", &fields);
    response.must_be(&format!("307 Moved\nlocation: {url}"));
    // A configured backend redirects to the socket: the request fails.
    ask(&server, "POST", "/in", &[]).must_be("502 Gateway Error\n\ninternal error");
    assert_eq!(asked.try_recv(), Err(mpsc::TryRecvError::Empty));
    // The configuration itself may redirect internally to a Unix socket.
    server
        .ask("GET /configured")
        .must_be("200 OK\n\nthe socket");
    assert!(asked.recv().unwrap().starts_with("GET /x HTTP/1.1"));
}

#[test]
fn servers_that_are_no_backends_never_lead_elsewhere() {
    let (app, inner) = (app(), echo());
    let server = start(
        "",
        &[
            ("/", to(&app, "/")),
            ("/private", "file.dir: @DIR@/www".to_owned()),
        ],
    );
    let places = [
        inner.url("/admin"),
        format!("//127.0.0.1:{}/admin", inner.port()),
        format!("https://127.0.0.1:{}/admin", inner.port()),
        "http://default/private/a.txt".to_owned(),
        "https://default/private/a.txt".to_owned(),
    ];
    for place in places {
        for (status, name) in [
            ("302", "location"),
            ("307", "location"),
            ("200", "x-reproxy-url"),
        ] {
            let told = place.clone();
            let stranger = Backend::by_request(move |_| {
                format!(
                    "HTTP/1.1 {status} Sure\r\n{name}: {told}\r\ncontent-length: 8\r\n\r\nstranger"
                )
            });
            let url = stranger.url("/");
            let fields = [
                ("x-go", &*url),
                ("x-status", "307"),
                ("cookie", "secret=1"),
                ("authorization", "Basic c2VjcmV0"),
            ];
            let response = ask(&server, "POST", "/", &fields);
            response.must_be(&format!("{status} Sure\n{name}: {place}\n\nstranger"));
        }
    }
    assert_eq!(inner.connections(), 0);
    // An x-reproxy-url of a configured backend may still name the path `/private`, which redirects of strangers may not.
    let response = ask(&server, "GET", "/", &[("x-go", "/private/a.txt")]);
    assert_eq!(response.text(), "a file");
}

#[test]
fn credentials_never_follow_a_redirect_to_another_origin() {
    let elsewhere = Backend::by_request(|request| {
        let is_bare = ["cookie", "authorization"]
            .iter()
            .all(|name| request.field(name).is_none());
        let other = request.field("x-other").unwrap_or_default();
        answer(&format!("bare: {is_bare}, {other}"))
    });
    let third = elsewhere.url("/");
    let backend = Backend::by_request(move |request| {
        let location = match request.target() {
            "/third" => &*third,
            "/own" => "/to",
            "/client" => "http://www.example.com/bare",
            _ => return answer(request.field("cookie").unwrap_or_default()),
        };
        format!("HTTP/1.1 302 Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
    });
    let server = Setup::new(&format!(
        "
num-threads: 1
listen: @PORT@
access-log: {{ path: @DIR@/log, format: '%r [%{{cookie}}i]' }}
hosts:
  default:
    paths:
      /: {{ redirect: {{ url: /backend, status: 307, internal: YES }} }}
      /backend: {{ {} }}
  www.example.com:
    paths:
      /client: {{ redirect: {{ url: 'http://default/backend/client', status: 307, internal: YES }} }}
      /bare: {{ {} }}
",
        to(&backend, "/"),
        to(&elsewhere, "/")
    ))
    .start();
    for (path, host, want) in [
        ("/third", "a.example", "bare: true, 1"),
        ("/third", "www.example.com:1", "bare: true, 1"),
        ("/client", "a.example", "bare: true, 1"),
        // Here the client itself has sent the credentials to the origin `www.example.com`.
        ("/client", "www.example.com:80", "bare: false, 1"),
        ("/own", "a.example", "a=1"),
    ] {
        let response = server.ask(&format!(
            "GET {path}\nHost: {host}\nCookie: a=1\nAuthorization: Basic eA==\nX-Other: 1"
        ));
        assert_eq!(response.text(), want, "{path} {host}");
    }
    let log = server.read_until("log", "/own");
    assert_eq!(log.matches("[a=1]").count(), 5, "{log}");
}

#[test]
fn internal_redirects_and_error_documents_lead_to_other_servers() {
    let echo = echo();
    let failing = Backend::answering(
        "HTTP/1.1 500 Broken\r\nx-failed: 1\r\ncontent-type: text/x-failed\r\ncontent-length: 6\r\n\r\nbroken",
    );
    let document = Backend::by_request(|request| {
        let content = line(request);
        let bare = ["cookie", "x-own"]
            .iter()
            .all(|name| request.field(name).is_none());
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/x-document\r\nset-cookie: bare={bare}\r\netag: \"e\"\r\ncontent-length: {}\r\n\r\n{content}",
            content.len()
        )
    });
    let closed = ClosedPort::new();
    let server = start(
        "",
        &[
            (
                "/",
                format!(
                    "error-doc: {{ status: 500, url: '{}' }}, {}",
                    document.url("/d?x"),
                    to(&failing, "/")
                ),
            ),
            (
                "/none",
                format!("error-doc: {{ status: 404, url: '{}' }}", closed.url()),
            ),
            (
                "/get",
                format!(
                    "redirect: {{ url: '{}', status: 302, internal: YES }}",
                    echo.url("/e")
                ),
            ),
            (
                "/same",
                format!(
                    "redirect: {{ url: '{}', status: 307, internal: YES }}",
                    echo.url("/e/")
                ),
            ),
            (
                "/bad",
                "redirect: { url: 'http://[', status: 307, internal: YES }".to_owned(),
            ),
        ],
    );
    for (method, asked) in [("GET", "GET"), ("POST", "GET"), ("DELETE", "DELETE")] {
        let fields = [("cookie", "a=1"), ("x-own", "1")];
        let response = ask(&server, method, "/x", &fields);
        response.must_be(&format!(
            "500 Broken\nx-failed: 1\ncontent-type: text/x-document\nset-cookie: bare=true\n!etag\n\n{asked} /d?x"
        ));
        assert_eq!(response.all("content-type").count(), 1, "{response}");
    }
    ask(&server, "GET", "/none", &[]).must_be("404 File Not Found\n\nconnection refused");
    ask(&server, "PUT", "/get/x?y", &[]).must_be("200 OK\n\nGET /e/x?y ");
    ask(&server, "PUT", "/same/x%2Fy", &[]).must_be("200 OK\n\nPUT /e/x/y ");
    ask(&server, "GET", "/bad", &[]).must_be("503 Internal Server Error\n\ninternal server error");
}

#[test]
fn heads_have_no_content_whatever_was_asked_for() {
    let (app, echo) = (app(), echo());
    let server = start("", &[("/", to(&app, "/"))]);
    let mut client = server.connect();
    for _ in 0..2 {
        client.send(format!(
            "HEAD / HTTP/1.1\r\nHost: h\r\nX-Go: {}\r\n\r\n",
            echo.url("/abc")
        ));
        let response = client.read_response("HEAD");
        response.must_be("200 OK\ncontent-length: 9\nx-echo: 1");
    }
    let fields = [("x-go", &*echo.url("/abc"))];
    assert_eq!(ask(&server, "HEAD", "/", &fields).text(), "");
    assert!(text_of(&echo.received(0)).starts_with("GET /abc "));
}

/// A text of this length in which every 8 bytes are different.
fn content(len: usize) -> String {
    let mut text = String::with_capacity(len + 8);
    for number in 0.. {
        if text.len() >= len {
            break;
        }
        text.push_str(&format!("{number:07} "));
    }
    text.truncate(len);
    text
}

#[test]
fn content_comes_along_where_the_method_stays() {
    let (app, echo) = (app(), echo());
    let url = echo.url("/x");
    let server = start(
        "",
        &[
            ("/", to(&app, "/")),
            (
                "/in",
                format!("redirect: {{ url: '{url}', status: 307, internal: YES }}"),
            ),
        ],
    );
    let folder = Folder::new();
    for len in [0, 1, 70_000, 1_000_000] {
        let content = content(len);
        let file = format!("@{}", folder.write("upload", &content).display());
        for way in WAYS {
            for framing in ["x-none: 1", "transfer-encoding: chunked"] {
                let post = |path: &str, status: &str| {
                    let (go, status) = (format!("x-go: {url}"), format!("x-status: {status}"));
                    let url = server.url(path);
                    let framing = if way == WAYS[0] { framing } else { "x-none: 1" };
                    let options = [
                        way,
                        "-H",
                        framing,
                        "-H",
                        &go,
                        "-H",
                        &status,
                        "-H",
                        "expect:",
                        "--data-binary",
                        &file,
                        &url,
                    ];
                    curl(&options).text()
                };
                let shown = format!("{len} {way} {framing}");
                let same = format!("POST /x {content}");
                assert!(post("/", "307") == same, "{shown}");
                assert!(post("/in", "307") == same, "{shown}, redirected");
                assert_eq!(post("/", "200"), "GET /x ", "{shown}");
            }
        }
    }
    // Content of 3 MB is more than the server keeps for sending it again.
    let file = format!("@{}", folder.write("upload", content(3_000_000)).display());
    for way in WAYS {
        let (go, to) = (format!("x-go: {url}"), server.url("/"));
        let options = [
            way,
            "-H",
            &go,
            "-H",
            "x-status: 307",
            "--data-binary",
            &file,
            &to,
        ];
        let response = curl(&options);
        assert_eq!(
            (response.code(), &*response.text()),
            (502, "internal error"),
            "{way}"
        );
        server.wait_for_message(
            "cannot redirect internally: the request body was not kept and cannot be sent again\n",
        );
        let options = [way, "-H", &go, "--data-binary", &file, &to];
        assert_eq!(curl(&options).text(), "GET /x ", "{way}");
    }
}

#[test]
fn content_that_is_still_on_its_way_comes_along() {
    let echo = echo();
    let url = echo.url("/x");
    let early = Backend::start(move |talk| {
        if talk.read_head().is_some() {
            let _ = talk.read_exactly(10_000);
            talk.send(format!(
                "HTTP/1.1 307 Elsewhere\r\nconnection: close\r\nx-reproxy-url: {url}\r\ncontent-length: 0\r\n\r\n"
            ));
            talk.read_to_end();
        }
    });
    let server = start("", &[("/", to(&early, "/"))]);
    let content = content(100_000);
    let want = format!("POST /x {content}");
    let mut client = server.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        content.len()
    ));
    client.send(&content[..20_000]);
    // The other server has received the first part of the content before the client sends the rest.
    echo.wait_for("0001249 ");
    client.send(&content[20_000..]);
    let response = client.read_response("POST");
    assert!(response.text() == want, "{}", response.code());
    let folder = Folder::new();
    let file = format!("@{}", folder.write("upload", &content).display());
    for way in WAYS {
        assert!(
            curl(&[way, "--data-binary", &file, &server.url("/")]).text() == want,
            "{way}"
        );
    }
    let url = server.url("/");
    let chunked = [
        "-H",
        "transfer-encoding: chunked",
        "--data-binary",
        &file,
        &url,
    ];
    assert!(curl(&chunked).text() == want, "chunked");
    early.wait_for_ended(4);
}

#[test]
fn a_large_response_that_is_dropped_is_not_read() {
    let echo = echo();
    let url = echo.url("/x");
    let endless = Backend::start(move |talk| {
        while talk.read_request().is_some() {
            talk.send(format!(
                "HTTP/1.1 200 OK\r\nx-reproxy-url: {url}\r\ntransfer-encoding: chunked\r\n\r\n"
            ));
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(65_536));
            while talk.send(&chunk) {}
        }
    });
    let server = start("", &[("/", to(&endless, "/"))]);
    for number in 1..=3 {
        ask(&server, "GET", "/", &[]).must_be("200 OK\n\nGET /x ");
        endless.wait_for_ended(2 * number);
    }
    assert_eq!(echo.connections(), 1);
}

#[test]
fn servers_are_asked_over_tls_and_http2() {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "localhost");
    let (_go, http, https) = Service::go(&folder, "backend");
    let app = app();
    let ca = format!("proxy.ssl.cafile: {}", folder.name_of("backend.crt"));
    let rows = [
        (
            format!("{ca}\n"),
            format!("https://localhost:{https}"),
            "HTTP/2.0",
        ),
        (
            format!("{ca}\nproxy.http2.ratio: 0"),
            format!("https://localhost:{https}"),
            "HTTP/1.1",
        ),
        (
            "proxy.http2.ratio: 100\nproxy.http2.force-cleartext: ON".to_owned(),
            format!("http://127.0.0.1:{http}"),
            "HTTP/1.1",
        ),
    ];
    for (settings, other, proto) in rows {
        let path = format!(
            "proxy.http2.ratio: 0, proxy.http2.force-cleartext: OFF, {}",
            to(&app, "/")
        );
        let server = start(&settings, &[("/", path)]);
        for way in WAYS {
            let (go, url) = (format!("x-go: {other}/echo/1"), server.url("/"));
            let told = curl(&[way, "-H", &go, "-H", "x-status: 307", "-d", "content", &url]).text();
            assert!(told.contains(&format!("\"proto\":\"{proto}\"")), "{told}");
            assert!(told.contains("\"bytes\":7"), "{told}");
            assert!(told.contains("\"X-Forwarded-Proto\":[\"http\"]"), "{told}");
            let (go, len) = (format!("x-go: {other}/content/3000000"), 3_000_000);
            assert_eq!(
                curl(&[way, "-H", &go, &url]).body.len(),
                len,
                "{way} {proto}"
            );
        }
    }
    // The backend uses HTTP/2, also for the response that is dropped.
    let path = format!("proxy.reverse.url: 'https://localhost:{https}/'");
    let server = start(&ca, &[("/", path)]);
    let told = curl(&[&server.url("/echo")]).text();
    assert!(told.contains("\"proto\":\"HTTP/2.0\""), "{told}");
    let content = content(300_000);
    let file = format!("@{}", folder.write("upload", &content).display());
    let same = format!("POST /x {content}");
    let echo = echo();
    for way in WAYS {
        let go = format!("x-go: {}", echo.url("/x"));
        for path in ["/instead", "/instead?early"] {
            let url = server.url(path);
            let options = [
                way,
                "-H",
                &go,
                "-H",
                "x-status: 307",
                "--data-binary",
                &file,
                &url,
            ];
            assert!(curl(&options).text() == same, "{way} {path}");
        }
        let url = server.url("/instead");
        assert_eq!(curl(&[way, "-H", &go, &url]).text(), "GET /x ", "{way}");
    }
    eventually("the end of the responses that the server dropped", || {
        (curl(&[&server.url("/insteads")]).text() == "0").then_some(())
    });
    // The server trusts only the authorities that the system trusts.
    let server = start("", &[("/", to(&app, "/"))]);
    server
        .ask(&format!("GET /\nX-Go: https://localhost:{https}/echo"))
        .must_be("502 Gateway Error\n\nself-signed certificate");
}

#[test]
fn of_many_servers_some_are_forgotten() {
    let app = app();
    let backends: Vec<Backend> = (0..300)
        .map(|_| Backend::answering(h2o_tests::FINE))
        .collect();
    let server = start("proxy.timeout.keepalive: 600000", &[("/", to(&app, "/"))]);
    let mut client = server.connect();
    for backend in &backends {
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: h\r\nX-Go: {}\r\n\r\n",
            backend.url("/")
        ));
        assert_eq!(client.read_response("GET").text(), "fine");
    }
    // The server keeps connections to a limited number of servers that `x-reproxy-url` names, and forgets those that it has not asked for
    // longest.
    for backend in &backends[..40] {
        backend.wait_for_ended(1);
    }
    assert_eq!(backends[299].ended(), 0);
}
