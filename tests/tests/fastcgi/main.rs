//! FastCGI: what the server sends to applications, and what it makes of their responses.

mod early;
mod health;
mod kit;

use std::time::Duration;

use h2o_tests::{Backend, Raw, Response, Server, Setup, curl};

use kit::{Received, STDERR, STDOUT, application, ask, body, end, record, recorder, response};

fn start(backend: &Backend, settings: &str) -> Server {
    let port = backend.port();
    let config = format!(
        "
listen: @PORT@
num-threads: 1
server-name: test
{settings}
hosts:
  default:
    paths:
      /app: {{ fastcgi.connect: {port} }}
      /files:
        file.dir: @DIR@/www
        file.custom-handler:
          extension: .php
          setenv: {{ REDIRECT_STATUS: '200' }}
          fastcgi.connect: {{ port: {port}, host: 127.0.0.1 }}
"
    );
    let setup = Setup::new(&config)
        .file("www/a/t.php", "")
        .file("www/a/index.php", "");
    setup.start()
}

/// The parameters that an application receives, without those that name ports.
fn parameters(response: &Response) -> Vec<String> {
    let text = body(response);
    let lines = text.lines().take_while(|line| !line.is_empty());
    let lines =
        lines.filter(|line| !line.starts_with("REMOTE_PORT=") && !line.starts_with("SERVER_PORT="));
    lines.map(str::to_owned).collect()
}

#[test]
fn applications_receive_their_parameters_in_order() {
    let backend = recorder();
    let server = start(
        &backend,
        "fastcgi.document_root: /srv\nsetenv: { B: '1', HTTP_X_SET: ours }",
    );
    let fixed = [
        "-H",
        "Host: example.com",
        "-H",
        "User-Agent:",
        "-H",
        "Accept: */*",
    ];
    let args = [
        "-H",
        "X-One-Two: a",
        "-H",
        "X-One-Two: b",
        "-H",
        "X_One_Two: look-alike",
        "-H",
        "X_Forwarded_For: look-alike",
        "-H",
        "X-Set: theirs",
        "-H",
        "Proxy: evil",
        "-H",
        "Cookie: a=1",
        "-H",
        "Cookie: b=2",
        "-H",
        "Authorization: x",
        "-H",
        "Content-Type: text/plain",
        "--data",
        "hello",
    ];
    let got = ask(&server, "/app/%41b?q=1", &[&fixed[..], &args].concat());
    let want = [
        "CONTENT_LENGTH=5",
        "SCRIPT_NAME=",
        "PATH_INFO=/app/Ab",
        "DOCUMENT_ROOT=/srv",
        "PATH_TRANSLATED=/srv/app/Ab",
        "QUERY_STRING=q=1",
        "REMOTE_ADDR=127.0.0.1",
        "B=1",
        "HTTP_X_SET=ours",
        "REQUEST_METHOD=POST",
        "HTTP_HOST=example.com",
        "REQUEST_URI=/app/%41b?q=1",
        "SERVER_ADDR=127.0.0.1",
        "SERVER_NAME=default",
        "SERVER_PROTOCOL=HTTP/1.1",
        "SERVER_SOFTWARE=test",
        "HTTP_ACCEPT=*/*",
        "HTTP_X_ONE_TWO=a",
        "HTTP_X_ONE_TWO=b",
        "HTTP_AUTHORIZATION=x",
        "CONTENT_TYPE=text/plain",
        "HTTP_COOKIE=a=1;b=2",
    ];
    assert_eq!(parameters(&got), want);
    assert!(body(&got).ends_with("\n\nhello"), "{}", body(&got));
    let got = ask(&server, "/files/a/t.php/more?x", &fixed);
    let file = server.folder.name_of("www/a/t.php");
    let want = [
        &*format!("SCRIPT_FILENAME={file}"),
        "SCRIPT_NAME=/files/a/t.php",
        "PATH_INFO=/more",
        "DOCUMENT_ROOT=/srv",
        "PATH_TRANSLATED=/srv/more",
        "QUERY_STRING=x",
        "REMOTE_ADDR=127.0.0.1",
        "B=1",
        "HTTP_X_SET=ours",
        "REDIRECT_STATUS=200",
        "REQUEST_METHOD=GET",
        "HTTP_HOST=example.com",
        "REQUEST_URI=/files/a/t.php/more?x",
        "SERVER_ADDR=127.0.0.1",
        "SERVER_NAME=default",
        "SERVER_PROTOCOL=HTTP/1.1",
        "SERVER_SOFTWARE=test",
        "HTTP_ACCEPT=*/*",
    ];
    assert_eq!(parameters(&got), want);
    let connections = backend.connections();
    assert_eq!(ask(&server, "/files/a/missing.php", &[]).code(), 404);
    assert_eq!(
        backend.connections(),
        connections,
        "a missing script was asked for"
    );
}

#[test]
fn what_applications_answer_becomes_a_response_or_503() {
    const FAILED: &str = "503 Internal Server Error";
    let long = [0xff_u8; 300];
    let long_head = |len: usize| {
        let head = format!("X-A: {}\n\nabc", "v".repeat(len));
        let records = head
            .as_bytes()
            .chunks(4000)
            .map(|piece| record(STDOUT, piece));
        [records.collect::<Vec<_>>().concat(), end()].concat()
    };
    let cases: Vec<(Vec<u8>, &str, &str)> = vec![
        (response("\n"), "200 OK", ""),
        (
            response("Status: 404 Gone Fishing\r\nX-A: 1\r\n\r\nno"),
            "404 Gone Fishing",
            "",
        ),
        (response("Location: /x\n\n"), "200 OK", ""),
        (long_head(90_000), "200 OK", ""),
        (long_head(420_000), FAILED, ":received broken response"),
        (response("Content-Length: 2\n\nabc"), "200 OK", ""),
        (
            [record(STDOUT, b"X-A: 1\n"), record(STDOUT, b"\nabc"), end()].concat(),
            "200 OK",
            "",
        ),
        (
            [record(STDERR, b"warning: x\n"), response("\nabc")].concat(),
            "200 OK",
            ":warning: x",
        ),
        ([record(STDOUT, b"\nabc")].concat(), "200 OK", ""),
        (vec![], FAILED, ":fastcgi connection closed unexpectedly"),
        (
            record(STDOUT, b"X-A: 1\n"),
            FAILED,
            ":fastcgi connection closed unexpectedly",
        ),
        (
            vec![1, 6, 0],
            FAILED,
            ":fastcgi connection closed unexpectedly",
        ),
        (
            end(),
            FAILED,
            ":received FCGI_END_REQUEST before end of the headers",
        ),
        (
            [record(STDOUT, b"X-A: 1\n"), end()].concat(),
            FAILED,
            ":received FCGI_END_REQUEST before end of the headers",
        ),
        (
            record(9, b"x"),
            FAILED,
            ":received unexpected record, type: 9",
        ),
        (
            record(10, b""),
            FAILED,
            ":received unexpected record, type: 10",
        ),
        (
            response("nonsense\n\n"),
            FAILED,
            ":received broken response",
        ),
        (
            response(": nonsense\n\n"),
            FAILED,
            ":received broken response",
        ),
        (response("a b: c\n\n"), FAILED, ":received broken response"),
        (
            response(long),
            FAILED,
            ":received FCGI_END_REQUEST before end of the headers",
        ),
        (
            response("Status: ok\n\n"),
            FAILED,
            ":failed to parse Status header, got: ok",
        ),
        (
            response("Status: 99\n\n"),
            FAILED,
            ":failed to parse Status header, got: 99",
        ),
        (
            response("Status: 101 x\n\n"),
            FAILED,
            ":failed to parse Status header, got: 101 x",
        ),
        (
            response("Content-Length: 1\nContent-Length: 1\n\na"),
            FAILED,
            ":received multiple content-length headers from fcgi",
        ),
        (
            response("Content-Length: a\n\na"),
            FAILED,
            ":failed to parse content-length header sent from fcgi: a",
        ),
        (
            response("a: b\n".repeat(101) + "\n"),
            FAILED,
            ":received broken response",
        ),
        (
            response("Status: 304 Not Modified\n\n"),
            "304 Not Modified",
            "",
        ),
    ];
    let answers: Vec<_> = cases.iter().map(|(answer, ..)| answer.clone()).collect();
    let backend = Backend::start(move |talk| {
        let Some(request) = Received::read(talk) else {
            return;
        };
        let number = request
            .parameters
            .iter()
            .find_map(|line| line.strip_prefix("QUERY_STRING="));
        let number: usize = number
            .and_then(|number| number.parse().ok())
            .expect("the text is a number");
        talk.send(&answers[number]);
    });
    let server = start(&backend, "");
    for (number, (_, status, log)) in cases.iter().enumerate() {
        let response = ask(&server, &format!("/app?{number}"), &["-H", "Host: a"]);
        assert_eq!(response.status, *status, "{number}");
        if *status == FAILED {
            assert_eq!(response.body, b"Internal Server Error", "{number}");
        }
        let line = format!("[fastcgi] in request:a/app?{number}{log}");
        if !log.is_empty() {
            h2o_tests::eventually(&line, || server.messages().contains(&line).then_some(()));
        }
    }
    let response = ask(&server, "/app?5", &[]);
    assert_eq!(
        (response.field("content-length"), &*response.body),
        (Some("2"), &b"ab"[..])
    );
    // The length of a 304 would be that of the content that the client has.
    let last = ask(&server, &format!("/app?{}", cases.len() - 1), &[]);
    assert_eq!((last.code(), last.field("content-length")), (304, None));
}

/// An error after the header block of a response cannot change the status any more: if the response had a length, the client sees that it
/// was cut off, and bytes after the error are taken for no other response.
#[test]
fn what_breaks_off_behind_the_head_is_cut_off_and_leaks_into_no_other_response() {
    /// The number of the response after which the connection is reset.
    const RESET: usize = 6;
    let head = |length: usize| format!("Content-Length: {length}\n\n");
    let cases: Vec<(Vec<u8>, &[u8], bool)> = vec![
        // The content is shorter than announced, and the response ends with END_REQUEST, without it, or within a record.
        (response(head(5) + "abc"), b"abc", false),
        (record(STDOUT, (head(5) + "abc").as_bytes()), b"abc", false),
        (
            [
                record(STDOUT, head(5).as_bytes()),
                vec![1, 6, 0, 1, 0, 5, 0, 0, b'a'],
            ]
            .concat(),
            b"a",
            false,
        ),
        // The response has no length, and ends within a record: in its content, its header or its padding.
        (
            [record(STDOUT, b"\nabc"), vec![1, 6, 0, 1, 0, 5, 0, 0, b'd']].concat(),
            b"abcd",
            false,
        ),
        (
            [record(STDOUT, b"\nabc"), vec![1, 6, 0]].concat(),
            b"abc",
            false,
        ),
        (
            [
                record(STDOUT, b"\nabc"),
                vec![1, 6, 0, 1, 0, 1, 4, 0, b'd', 0],
            ]
            .concat(),
            b"abcd",
            false,
        ),
        (record(STDOUT, b"\nabc"), b"abc", false),
        // Without a length, the end of the connection between two records ends the response.
        (record(STDOUT, b"\nabc"), b"abc", true),
        // Within the content comes a record of a type that an application must not send.
        (
            [record(STDOUT, (head(5) + "ab").as_bytes()), record(9, b"c")].concat(),
            b"ab",
            false,
        ),
        (
            [record(STDOUT, b"\nabc"), record(9, b"c")].concat(),
            b"abc",
            false,
        ),
        // Records after END_REQUEST belong to no request.
        (
            [response(head(3) + "abc"), record(STDOUT, b"\nother"), end()].concat(),
            b"abc",
            true,
        ),
        ([response("\nabc"), vec![1, 6, 0]].concat(), b"abc", true),
        // There is more content than announced, in the same record or in the next.
        (response(head(3) + "abcde"), b"abc", true),
        (
            [
                record(STDOUT, (head(3) + "abc").as_bytes()),
                record(STDOUT, b"de"),
                end(),
            ]
            .concat(),
            b"abc",
            true,
        ),
    ];
    let answers: Vec<_> = cases.iter().map(|(answer, ..)| answer.clone()).collect();
    let backend = Backend::start(move |talk| {
        while let Some(request) = Received::read(talk) {
            let number: Option<usize> = request.value("QUERY_STRING").parse().ok();
            match number {
                Some(number) => {
                    talk.send(&answers[number]);
                    if number == RESET {
                        // The reset comes once the server has read the record.
                        std::thread::sleep(Duration::from_millis(200));
                        talk.reset();
                    }
                    if !answers[number].ends_with(&end()) {
                        return;
                    }
                }
                None => {
                    talk.send(response("\nfine"));
                }
            }
        }
    });
    // With `server-timing: ENFORCE` the response of the server has no length, even if that of the application has one.
    for timing in ["", "server-timing: ENFORCE\n"] {
        let server = start(
            &backend,
            &format!("{timing}fastcgi.timeout.keepalive: 10000"),
        );
        for (number, (_, content, is_whole)) in cases.iter().enumerate() {
            let url = format!("http://127.0.0.1:{}/app?{number}", server.port());
            let got = h2o_tests::run("curl", &["-s", "--max-time", "20", &url]);
            assert_eq!(got.stdout, *content, "{number}");
            assert_eq!(got.code == 0, *is_whole, "{number}: {}", got.code);
            for _ in 0..3 {
                let other = body(&ask(&server, "/app", &[]));
                assert!(other.starts_with("fine"), "{number}: {other}");
            }
        }
    }
}

#[test]
fn connections_are_kept_where_that_is_wanted_and_nothing_leaks_between_requests() {
    for (keepalive, connections) in [("0", 5), ("10000", 1)] {
        let backend = recorder();
        let server = start(&backend, &format!("fastcgi.timeout.keepalive: {keepalive}"));
        for number in 0..5 {
            let content = "x".repeat(number * 40_000);
            let path = server.folder.write("content", &content);
            let data = format!("@{}", path.display());
            let response = ask(
                &server,
                &format!("/app/{number}"),
                &["--data-binary", &data],
            );
            let text = body(&response);
            assert!(
                text.contains(&format!("PATH_INFO=/app/{number}\n")),
                "{number}"
            );
            assert!(text.ends_with(&format!("\n\n{content}")), "{number}");
        }
        assert_eq!(backend.connections(), connections);
    }
}

#[test]
fn an_application_that_closes_a_kept_connection_is_asked_over_a_new_one() {
    let backend = Backend::start(|talk| {
        if Received::read(talk).is_some() {
            talk.send(response("\nfine"));
        }
    });
    let server = start(&backend, "fastcgi.timeout.keepalive: 60000");
    // The connection may be found to be closed before the next request takes it, or only then.
    let line = "less than `fastcgi.timeout.keepalive`";
    h2o_tests::eventually(line, || {
        assert_eq!(body(&ask(&server, "/app", &[])), "fine");
        server.messages().contains(line).then_some(())
    });
}

#[test]
fn an_application_that_is_not_there_is_503() {
    let port = h2o_tests::free_port();
    let config = format!(
        "listen: @PORT@\nhosts:\n  default:\n    paths:\n      /: {{ fastcgi.connect: {port} }}\n"
    );
    let server = Setup::new(&config).start();
    let response = ask(&server, "/", &["-H", "Host: a"]);
    assert_eq!(response.status, "503 Internal Server Error");
    let line = "[fastcgi] in request:a/:connection failed:connection refused";
    h2o_tests::eventually(line, || server.messages().contains(line).then_some(()));
}

/// A chunked request is collected before an application gets it. The guard of the path, here `auth.basic`, is asked before that.
#[test]
fn whom_a_guard_refuses_makes_the_server_store_nothing() {
    let backend = recorder();
    let settings =
        "temp-buffer-threshold: 1048576\ntemp-buffer-max-size: 5000000\nauth.basic: @DIR@/users";
    let server = start(&backend, settings);
    // Hash of the password `secret`, as `htpasswd -B` writes it.
    let bcrypt = "$2b$04$P8RuztND1vn5rPLudBSnOe7RoMzUbtqy9vWWqu6kh6zpm44kYozia";
    server.folder.write("users", format!("bob:{bcrypt}\n"));
    // The credentials are the base64 form of `bob:wrong`.
    for credentials in ["", "Authorization: Basic Ym9iOndyb25n\r\n"] {
        let mut client = Raw::connect(server.port());
        client.send(format!(
            "POST /app HTTP/1.1\r\nHost: a\r\n{credentials}Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"
        ));
        // The request's content never ends; the response must not wait for it.
        assert_eq!(client.read_response("POST").code(), 401, "{credentials}");
        let mut client = Raw::connect(server.port());
        client.send(format!(
            "POST /app HTTP/1.1\r\nHost: a\r\n{credentials}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        ));
        assert_eq!(client.read_head().code(), 401, "{credentials}");
    }
    for (len, kind, want) in [
        (3, "memory", 200),
        (900_000, "memory", 200),
        (3_000_000, "file", 200),
        (6_000_000, "none", 413),
    ] {
        server.folder.write("content", "x".repeat(len));
        let file = format!("@{}", server.folder.at("content").display());
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            for expect in ["Expect: 100-continue", "Expect:"] {
                let response = curl(&[
                    version,
                    "-u",
                    "bob:secret",
                    "-H",
                    expect,
                    "-H",
                    "Transfer-Encoding: chunked",
                    "--data-binary",
                    &file,
                    &server.url("/app"),
                ]);
                let place = format!("{len} {kind} {version} {expect}");
                assert_eq!(response.code(), want, "{place}: {}", server.messages());
                if want == 200 {
                    let text = String::from_utf8_lossy(&response.body).into_owned();
                    let (parameters, content) = text
                        .split_once("\n\n")
                        .expect("the response of the recording application has an empty line");
                    assert!(
                        parameters.contains(&format!("CONTENT_LENGTH={len}\n")),
                        "{place}: {parameters}"
                    );
                    assert_eq!(content.len(), len, "{place}");
                }
            }
        }
    }
}

#[test]
fn applications_are_not_told_a_name_that_clients_are_not_told() {
    let backend = recorder();
    for (setting, want) in [("ON", "test"), ("OFF", ""), ("preserve", "")] {
        let server = start(&backend, &format!("send-server-name: {setting}"));
        let got = parameters(&ask(&server, "/app", &[]));
        let want = format!("SERVER_SOFTWARE={want}");
        assert!(got.contains(&want), "{setting}: {got:?}");
    }
}

#[test]
fn the_content_comes_along_where_an_application_names_another_resource() {
    let backend = kit::application(|request| {
        if request.value("REQUEST_URI") == "/app/other" {
            let method = request.value("REQUEST_METHOD");
            let content = String::from_utf8_lossy(&request.content).into_owned();
            return response(format!("X-A: b\r\n\r\n{method} {content}"));
        }
        response("Status: 307 Elsewhere\r\nX-Reproxy-URL: /app/other\r\n\r\n")
    });
    let server = start(&backend, "reproxy: ON\nfastcgi.send-delegated-uri: ON");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let response = ask(&server, "/app/first", &[version, "--data", "content"]);
        assert_eq!(body(&response), "POST content", "{version}: {response}");
    }
}

/// Errors of applications that `file.custom-handler` runs: its mapping, not the path, says whether they go to the error log.
#[test]
fn a_custom_handler_says_whether_errors_go_to_the_error_log() {
    let backend = application(|request| {
        let warning = format!("warning: {}\n", request.value("SCRIPT_NAME"));
        [record(STDERR, warning.as_bytes()), response("\nabc")].concat()
    });
    let port = backend.port();
    let config = format!(
        "
listen: @PORT@
access-log: {{ path: @DIR@/access.log, format: '%U%{{error}}x' }}
hosts:
  default:
    paths:
      /quiet:
        file.dir: @DIR@/www
        file.custom-handler:
          extension: .php
          error-log.emit-request-errors: OFF
          fastcgi.connect: {port}
      /loud:
        error-log.emit-request-errors: OFF
        file.dir: @DIR@/www
        file.custom-handler:
          extension: .php
          error-log.emit-request-errors: ON
          fastcgi.connect: {port}
"
    );
    let server = Setup::new(&config).file("www/t.php", "").start();
    for target in ["/quiet/t.php", "/loud/t.php"] {
        assert_eq!(body(&ask(&server, target, &[])), "abc");
    }
    server.wait_for_message("warning: /loud/t.php");
    assert!(!server.messages().contains("warning: /quiet/t.php"));
    let _ = server.read_until("access.log", "warning: /quiet/t.php");
}
