//! The recipes of the manual: each configuration is started as it is pasted, and requests are sent to it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use h2o_tests::manual::{self, Example};
use h2o_tests::{
    Backend, Folder, RecipePage, Response, Server, Service, Setup, ask_by_name, curl, eventually,
    install, run, tool,
};

const RECIPES: RecipePage = RecipePage("docs/recipes.md");

fn recipe(heading: &str) -> Vec<Example> {
    RECIPES.recipe(heading)
}

fn block(heading: &str, language: &str) -> Example {
    RECIPES.block(heading, language)
}

fn cook(heading: &str, others: &[(&str, &str)]) -> Setup {
    RECIPES.cook(heading, others)
}

fn ask(server: &Server, args: &[&str]) -> Response {
    ask_by_name(server, args)
}

fn keeps_its_word(server: &Server, heading: &str) {
    RECIPES.keeps_its_word(server, heading);
}

fn location(response: &Response) -> (u16, &str) {
    (response.code(), response.field("location").unwrap_or(""))
}

#[test]
fn clear_text_is_redirected_to_https() {
    let server = cook("Redirect to HTTPS", &[])
        .file("var/www/site/a", "content")
        .start();
    keeps_its_word(&server, "Redirect to HTTPS");
    let answer = ask(&server, &["http://www.example.com/a?b"]);
    assert_eq!(location(&answer), (301, "https://www.example.com/a?b"));
    let answer = ask(&server, &["https://www.example.com/a?b"]);
    assert_eq!((answer.code(), &*answer.body), (200, &b"content"[..]));
}

#[test]
fn clear_text_is_redirected_to_https_under_every_name() {
    let any_name = [
        ("\"www.example.com:80\"", "\"*:80\""),
        ("url: https://www.example.com/", "url: \"https://*/\""),
    ];
    let server = cook("Redirect to HTTPS", &any_name).start();
    for name in ["www.example.com", "shop.example.com"] {
        let answer = ask(&server, &[&format!("http://{name}/a?b")]);
        assert_eq!(location(&answer), (301, &*format!("https://{name}/a?b")));
    }
}

#[test]
fn every_name_leads_to_www() {
    let server = cook("One name for the site", &[])
        .file("var/www/site/a", "content")
        .start();
    keeps_its_word(&server, "One name for the site");
    for url in [
        "http://example.com/a?b",
        "http://www.example.com/a?b",
        "https://example.com/a?b",
    ] {
        let answer = ask(&server, &[url]);
        assert_eq!(
            location(&answer),
            (301, "https://www.example.com/a?b"),
            "{url}"
        );
    }
    let answer = ask(&server, &["https://www.example.com/a"]);
    assert_eq!((answer.code(), &*answer.body), (200, &b"content"[..]));
}

#[test]
fn a_single_page_application_has_its_page_at_every_path() {
    let server = cook("Single-page application", &[])
        .file("var/www/app/index.html", "page")
        .file("var/www/app/robots.txt", "robots")
        .file("var/www/app/assets/main.0a1b.js", "script")
        .start();
    keeps_its_word(&server, "Single-page application");
    for (path, code, content, caching) in [
        ("/", 200, "page", Some("no-cache")),
        ("/users/7", 200, "page", Some("no-cache")),
        ("/users/", 200, "page", Some("no-cache")),
        ("/robots.txt", 200, "robots", Some("no-cache")),
        (
            "/assets/main.0a1b.js",
            200,
            "script",
            Some("max-age=31536000"),
        ),
        ("/assets/other.js", 404, "not found", None),
    ] {
        let answer = ask(&server, &[&format!("http://www.example.com{path}")]);
        let body = String::from_utf8_lossy(&answer.body);
        assert_eq!((answer.code(), &*body), (code, content), "{path}");
        assert_eq!(answer.field("cache-control"), caching, "{path}");
    }
}

/// A backend that answers health checks with `fine`, and other requests with its name.
fn application(name: &'static str) -> Backend {
    Backend::by_request(move |request| {
        let content = if request.target() == "/health" {
            "fine"
        } else {
            name
        };
        let host = request.field("host").unwrap_or_default();
        format!(
            "HTTP/1.1 200 OK\r\nx-host: {host}\r\ncontent-length: {}\r\n\r\n{content}",
            content.len()
        )
    })
}

#[test]
fn requests_are_shared_by_the_servers_that_are_up() {
    let mut applications = ["one", "two", "three"].map(|name| Some(application(name)));
    let address = |index: usize| {
        let port = applications[index].as_ref().map(Backend::port);
        format!("127.0.0.1:{}", port.unwrap_or_default())
    };
    let addresses = [address(0), address(1), address(2)];
    let server = cook(
        "Load balancing with health checks",
        &[
            ("127.0.0.1:9001", &addresses[0]),
            ("127.0.0.1:9002", &addresses[1]),
            ("127.0.0.1:9003", &addresses[2]),
        ],
    )
    .start();
    let ask_once = || {
        let answer = ask(&server, &["http://www.example.com/"]);
        assert_eq!(answer.code(), 200, "{}", server.messages());
        assert_eq!(answer.field("x-host"), Some("www.example.com"));
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    // On a busy machine the server may pass over a backend whose connection takes too long, so the test repeats this.
    eventually("responses of all three backends in turn", || {
        let round = [ask_once(), ask_once(), ask_once()];
        let names = ["one", "two", "three"];
        names
            .iter()
            .all(|name| round.iter().any(|answer| answer == name))
            .then_some(())
    });
    applications[1] = None;
    // Until the health check fails, requests to the ended backend are retried with another one, and the client sees no error.
    let down = format!("{} is down", addresses[1]);
    eventually("the check to fail", || {
        let _ = ask_once();
        server.messages().contains(&down).then_some(())
    });
    for _ in 0..9 {
        assert_ne!(ask_once(), "two");
    }
}

#[test]
fn a_websocket_reaches_the_application() {
    let folder = Folder::new();
    h2o_tests::certs::self_signed(&folder, "go", h2o_tests::certs::Key::EcPkcs8, "localhost");
    let (_service, port, _) = Service::go(&folder, "go");
    let server = cook(
        "WebSocket",
        &[("127.0.0.1:9000", &format!("127.0.0.1:{port}"))],
    )
    .start();
    keeps_its_word(&server, "WebSocket");

    let mut client = server.connect();
    client.send(
        "GET /ws HTTP/1.1\r\nhost: www.example.com\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    );
    assert_eq!(client.read_head().code(), 101);
    // A text message of a WebSocket, masked with zeros, and the backend's echo of it (RFC 6455 §5.2).
    client.send(b"\x81\x85\0\0\0\0hello");
    assert_eq!(client.read_exactly(7), b"\x81\x05hello");
}

#[test]
fn every_kind_of_grpc_call_gets_through() {
    let (_service, port) = Service::grpc();
    let server = cook("gRPC", &[("127.0.0.1:50051", &format!("127.0.0.1:{port}"))]).start();
    let output = run(
        &tool("grpc-check"),
        &[
            "call",
            &format!("localhost:{}", server.port_of("TLS_PORT")),
            &server.folder.name_of("manual.crt"),
        ],
    );
    let text = String::from_utf8(output.success()).unwrap();
    let mut lines = text.lines();
    for want in [
        "one call: NOT_SERVING OK",
        "an error: NotFound unknown service",
        "a stream: NOT_SERVING OK",
        "cancelled: true",
    ] {
        assert_eq!(lines.next(), Some(want), "{text}");
    }
    for _ in 0..5 {
        assert_eq!(lines.next(), Some("both ways: 1 0"), "{text}");
        assert_eq!(lines.next(), Some("both ways: 0 5"), "{text}");
    }
    assert_eq!(lines.collect::<Vec<_>>(), ["the end: EOF"; 5], "{text}");
}

#[test]
fn caching_is_told_by_path() {
    let backend = application("account");
    let server = cook(
        "Caching headers",
        &[("127.0.0.1:9000", &format!("127.0.0.1:{}", backend.port()))],
    )
    .file("var/www/site/index.html", "page")
    .file("var/www/site/img/a.png", "image")
    .file("var/www/site/assets/a.js", "script")
    .start();
    keeps_its_word(&server, "Caching headers");
    for (path, code, caching) in [
        ("/", 200, Some("no-cache")),
        ("/img/a.png", 200, Some("max-age=604800")),
        ("/assets/a.js", 200, Some("max-age=31536000")),
        ("/img/none.png", 404, None),
        ("/account/me", 200, Some("no-store")),
    ] {
        let answer = ask(&server, &[&format!("http://www.example.com{path}")]);
        assert_eq!(answer.code(), code, "{path}");
        assert_eq!(answer.field("cache-control"), caching, "{path}");
    }
    let page = ask(&server, &["http://www.example.com/"]);
    let tag = format!("If-None-Match: {}", page.field("etag").unwrap());
    let again = ask(&server, &["-H", &tag, "http://www.example.com/"]);
    assert_eq!(again.code(), 304);
}

#[test]
fn other_origins_are_told_what_they_may_do() {
    let backend = Backend::answering(h2o_tests::FINE);
    let server = cook(
        "CORS",
        &[("127.0.0.1:9000", &format!("127.0.0.1:{}", backend.port()))],
    )
    .file("var/www/fonts/a.woff2", "font")
    .start();
    keeps_its_word(&server, "CORS");
    let allowed = |answer: &Response| {
        let origin = answer.field("access-control-allow-origin");
        (answer.code(), origin.unwrap_or("").to_owned())
    };
    let origin = ["-H", "Origin: https://app.example.com"];
    let font = ask(
        &server,
        &[&origin[..], &["http://www.example.com/fonts/a.woff2"]].concat(),
    );
    assert_eq!(allowed(&font), (200, "*".to_owned()));
    let call = ask(
        &server,
        &[&origin[..], &["http://www.example.com/api/a"]].concat(),
    );
    assert_eq!(allowed(&call), (200, "https://app.example.com".to_owned()));
    assert_eq!(call.field("access-control-allow-credentials"), Some("true"));
    assert_eq!(call.field("vary"), Some("origin"));
    let preflight = ["-X", "OPTIONS", "-H", "Access-Control-Request-Method: PUT"];
    let preflight = ask(
        &server,
        &[&origin[..], &preflight, &["http://www.example.com/api/a"]].concat(),
    );
    assert_eq!(
        allowed(&preflight),
        (204, "https://app.example.com".to_owned())
    );
    let methods = preflight.field("access-control-allow-methods");
    assert_eq!(methods, Some("GET, POST, PUT, DELETE"));
}

#[test]
fn a_file_closes_the_site_for_maintenance() {
    let backend = application("fine");
    let server = cook(
        "Maintenance page",
        &[("127.0.0.1:9000", &format!("127.0.0.1:{}", backend.port()))],
    )
    .start();
    std::fs::remove_file(server.folder.at("var/www/down.html")).expect("the recipe's page exists");
    let visit = || {
        let answer = ask(&server, &["http://www.example.com/shop"]);
        (answer.code(), answer.text())
    };
    eventually("the site after maintenance", || {
        (visit() == (200, "fine".to_owned())).then_some(())
    });
    server.folder.write("var/www/down.html", "back soon");
    eventually("the page for maintenance", || {
        (visit() == (503, "back soon".to_owned())).then_some(())
    });
    keeps_its_word(&server, "Maintenance page");
}

#[test]
fn passwords_and_networks_are_asked_for() {
    let heading = "Passwords and networks";
    let server = cook(heading, &[])
        .file(
            "etc/h2o/staff.htpasswd",
            "ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n",
        )
        .file("var/www/staff/index.html", "staff")
        .start();
    keeps_its_word(&server, heading);
    let url = "http://www.example.com/staff/";
    assert_eq!(ask(&server, &["-u", "ann:secret", url]).text(), "staff");
}

#[test]
fn other_urls_lead_to_files_and_the_application() {
    let heading = "Other URLs";
    let backend = Backend::by_request(|request| {
        let target = request.target();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}",
            target.len()
        )
    });
    let application = format!("127.0.0.1:{}", backend.port());
    let server = cook(heading, &[("127.0.0.1:9000", &application)])
        .file("var/www/site/about.html", "about")
        .start();
    keeps_its_word(&server, heading);
    for (path, want) in [
        ("about", "about"),
        ("u/ann", "/user?name=ann"),
        ("shop/users", "/shop/users"),
    ] {
        let url = format!("http://www.example.com/{path}");
        assert_eq!(ask(&server, &[&url]).text(), want);
    }
}

#[test]
fn php_answers_for_its_files() {
    let server = cook("PHP and other FastCGI applications", &[])
        .file("srv/www/style.css", "body {}")
        .file(
            "srv/www/hello.php",
            "<?php echo $_POST['who'], $_SERVER['PATH_INFO'], $_GET['x'];",
        )
        .start();
    let _php = Service::php(&server.folder.name_of("run/php/php-fpm.sock"));
    let url = "http://www.example.com/hello.php/more?x=1";
    let answer = ask(&server, &["-d", "who=all", url]);
    answer.must_be("200 OK\n\nall/more1");
    let answer = ask(&server, &["http://www.example.com/style.css"]);
    answer.must_be("200 OK\n\nbody {}");
    let answer = ask(&server, &["http://www.example.com/none.php"]);
    assert_eq!(answer.code(), 404);
}

#[test]
fn scripts_answer_below_their_path() {
    let server = cook("CGI scripts", &[])
        .file("srv/cgi-bin/show.sh", include_str!("cgi/show.sh"))
        .file("run/cgi/log", "")
        .start();
    let script = server.folder.at("srv/cgi-bin/show.sh");
    std::fs::set_permissions(script, Permissions::from_mode(0o755))
        .expect("the test owns the file");
    let command = block("CGI scripts", "sh").text;
    let words: Vec<&str> = command.split_whitespace().collect();
    let gateway = Folder::new();
    let program = words[0].replace("/usr/local", &install(&gateway));
    let socket = server.folder.name_of("run/cgi/cgi.sock");
    assert_eq!(words[1], "--listen=/run/cgi/cgi.sock");
    let log = server.folder.at("run/cgi/log");
    let _gateway = Service::cgi(&program, &socket, &words[2..], &log);
    let answer = ask(&server, &["http://www.example.com/cgi-bin/show.sh/a?b"]);
    assert_eq!(answer.code(), 201);
    assert!(
        answer.text().contains("GET /cgi-bin/show.sh /a b\n"),
        "{}",
        answer.text()
    );
}

#[test]
fn a_limited_download_is_whole_and_clients_do_not_learn_the_limit() {
    let content = "0123456789".repeat(30_000);
    let server = cook("Limit the rate of downloads", &[])
        .file("srv/iso/a.iso", &content)
        .start();
    let answer = ask(&server, &["http://dl.example.com/iso/a.iso"]);
    assert_eq!(answer.code(), 200);
    assert_eq!(answer.field("x-traffic"), None);
    assert_eq!(answer.text(), content);
}

#[test]
fn the_site_of_nginx_answers_as_before() {
    const SECTION: &str = "Moving from nginx";
    let backend = Backend::by_request(|request| {
        let seen = format!(
            "{} {} {}",
            request.target(),
            request.field("host").unwrap_or_default(),
            request.field("x-forwarded-for").unwrap_or_default(),
        );
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{seen}",
            seen.len()
        )
    });
    let address = format!("127.0.0.1:{}", backend.port());
    let server = cook(SECTION, &[("127.0.0.1:9000", &address)])
        .file("var/www/site/index.html", "start")
        .file("var/www/site/404.html", "nothing here")
        .file("var/www/site/img/a.png", "image")
        .file("var/www/site/app/index.html", "application")
        .file("var/www/site/app/a.js", "script")
        .start();
    let theirs = block(SECTION, "nginx").moved();
    let theirs = theirs
        .replace("listen 80;", "listen 127.0.0.1:@PORT@;")
        .replace("127.0.0.1:9000", &address);
    let (_nginx, port) = Service::nginx(&server.folder, &theirs);
    let seen = |port: u16, path: &str| {
        let to = format!("::127.0.0.1:{port}");
        let answer = curl(&[
            "--connect-to",
            &to,
            &format!("http://www.example.com{path}"),
        ]);
        // nginx writes the host into `location`, and has other content for redirects; the comparison ignores both.
        let location = answer.field("location").unwrap_or("");
        let location = location.trim_start_matches("http://www.example.com");
        let location = location.trim_start_matches(&format!(":{port}"));
        let body = if answer.code() == 301 {
            &[][..]
        } else {
            &*answer.body
        };
        (
            answer.code(),
            location.to_owned(),
            answer.field("x-frame-options").map(str::to_owned),
            answer.field("cache-control").map(str::to_owned),
            String::from_utf8_lossy(body).into_owned(),
        )
    };
    for path in [
        "/",
        "/index.html",
        "/none",
        "/img/a.png",
        "/img/none.png",
        "/img",
        "/old",
        "/old?a=b",
        "/app/a.js",
        "/app/users/7",
        "/api/call?a=b",
        "/api/",
    ] {
        assert_eq!(seen(server.port(), path), seen(port, path), "{path}");
    }
    assert_eq!(
        seen(port, "/api/call?a=b").4,
        "/call?a=b www.example.com 127.0.0.1"
    );
}

/// Makes a directory for `PATH` with a program `systemctl` that does to the server what systemd would do by the manual's unit. The program
/// reads the server's process id from the file `pid`.
fn systemctl(folder: &Folder) -> String {
    let dir = folder.path().display();
    let program = format!(
        "#!/bin/sh\n\
         echo \"$*\" >> {dir}/systemctl.log\n\
         MAINPID=$(cat {dir}/pid)\n\
         case \"$*\" in\n\
         'reload h2o') {} ;;\n\
         'kill --kill-whom=main --signal=USR1 h2o') kill -USR1 $MAINPID ;;\n\
         *) exit 1 ;;\n\
         esac\n",
        unit_line("ExecReload=")
    );
    let path = folder.write("bin/systemctl", program);
    let _ = run("chmod", &["755", &path.display().to_string()]).success();
    format!("{dir}/bin:{}", std::env::var("PATH").unwrap_or_default())
}

fn unit_line(key: &str) -> String {
    let unit = block("systemd", "ini").text;
    let line = unit.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("the systemd unit has no {key}"))
        .to_owned()
}

/// Starts the server of the recipe for systemd.
fn service() -> Server {
    let mut replaced = Vec::new();
    // A server that is not started by root cannot change its user.
    if !rustix::process::geteuid().is_root() {
        replaced.push(("user: www-data\n", ""));
    }
    let setup = cook("systemd", &replaced).file("var/www/site/a", "content");
    let server = setup.start();
    server.folder.write("pid", server.pid().to_string());
    server
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_its_commands_do_what_they_should() {
    let unit = block("systemd", "ini");
    assert_eq!(
        unit.file(),
        Some("/usr/local/lib/systemd/system/h2o.service")
    );
    let server = service();
    let dir = server.folder.path().display().to_string();
    let h2o = h2o_tests::binary().display().to_string();
    let config = server.folder.name_of("h2o.conf");
    let here = |text: &str| {
        text.replace("/usr/local/bin/h2o", &h2o)
            .replace("/etc/h2o/h2o.conf", &config)
    };
    let file = server.folder.write("h2o.service", here(&unit.text));
    let verified = run("systemd-analyze", &["verify", &file.display().to_string()]);
    assert!(
        verified.code == 0 && verified.stderr.is_empty(),
        "{verified}"
    );

    let check = run("sh", &["-c", &here(&unit_line("ExecStartPre="))]);
    assert!(check.text().contains("configuration OK"), "{check}");
    assert!(!check.to_string().contains("[warning]"), "{check}");
    let start = unit_line("ExecStart=");
    assert_eq!(here(&start), format!("{h2o} -c {config}"));

    let answer = ask(&server, &["http://www.example.com/a"]);
    assert_eq!(answer.body, b"content");
    let path = systemctl(&server.folder);
    let reload = run("sh", &["-c", &format!("PATH={path} systemctl reload h2o")]);
    assert_eq!(reload.code, 0, "{reload}");
    let _ = server.read_until("var/log/h2o/error.log", "reopened logs");
    let folder = server.stop();
    let log = folder.read("var/log/h2o/access.log");
    assert!(log.contains("\"GET /a HTTP/1.1\" 200"), "{dir}: {log}");
}

#[test]
fn no_line_is_lost_when_logrotate_moves_the_logs() {
    let server = service();
    let block = recipe("Log rotation");
    let file = block
        .iter()
        .find(|block| block.file() == Some("/etc/logrotate.d/h2o"));
    let file = file.expect("the recipe has a file for logrotate");
    let dir = server.folder.path().display().to_string();
    // logrotate refuses directories that everyone may write to, and configurations that other users could have written.
    let _ = run("chmod", &["755", &server.folder.name_of("var/log/h2o")]).success();
    let config = file.moved().replace("@DIR@", &dir);
    let config = server
        .folder
        .write("logrotate", config)
        .display()
        .to_string();
    let _ = run("chmod", &["644", &config]).success();
    let _ = ask(&server, &["http://www.example.com/a"]);
    let _ = server.read_until("var/log/h2o/access.log", "GET /a");
    let path = systemctl(&server.folder);
    let command = recipe("Log rotation")
        .iter()
        .find(|block| block.language == "sh")
        .map(|block| block.text.replace("/etc/logrotate.d/h2o", &config))
        .expect("the recipe has a command");
    let state = format!("logrotate --state {dir}/state");
    let script = format!("PATH={path}; {}", command.replacen("logrotate", &state, 1));
    let rotated = run("sh", &["-c", &script]);
    assert!(rotated.code == 0 && rotated.stderr.is_empty(), "{rotated}");
    assert_eq!(
        server.folder.read("systemctl.log"),
        "kill --kill-whom=main --signal=USR1 h2o\n"
    );
    let _ = server.read_until("var/log/h2o/error.log", "reopened logs");
    let _ = ask(&server, &["http://www.example.com/b"]);
    let _ = server.read_until("var/log/h2o/access.log", "GET /b");
    let old = server.folder.read("var/log/h2o/access.log.1");
    assert_eq!(old.lines().count(), 1, "{old}");
    assert!(old.contains("GET /a"), "{old}");
}

/// The serial numbers of the certificate that the server presents, and of the certificate in `file`.
fn serials(server: &Server, file: &str) -> [String; 2] {
    let address = format!("127.0.0.1:{}", server.port_of("TLS_PORT"));
    let presented = format!(
        "openssl s_client -connect {address} -servername www.example.com </dev/null 2>/dev/null \
         | openssl x509 -noout -serial"
    );
    let stored = format!("openssl x509 -noout -serial -in {file}");
    [presented, stored].map(|command| run("sh", &["-c", &command]).text())
}

#[test]
fn certbot_gets_a_certificate_and_the_server_serves_the_renewed_one() {
    const HEADING: &str = "Certificates from Let's Encrypt";
    let blocks = recipe(HEADING);
    let text_of = |language: &str, index: usize| {
        let mut found = blocks.iter().filter(|block| block.language == language);
        found
            .nth(index)
            .expect("the recipe has two blocks in each language")
            .clone()
    };
    let port = h2o_tests::free_port();
    let configuration = |index: usize| {
        let text = text_of("yaml", index).moved();
        text.replace("listen: 80\n", &format!("listen: {port}\n"))
            .replace("port: 443\n", "port: @TLS_PORT@\n")
    };
    let folder = Folder::new();
    folder.make_dir("var/www/site");
    let dir = folder.path().display().to_string();
    let path = systemctl(&folder);
    let (_authority, authority_port) = Service::acme(port);
    let certbot = |command: &str| {
        let options = format!(
            "--server https://127.0.0.1:{authority_port}/dir --no-verify-ssl --config-dir {dir}/etc/letsencrypt \
             --work-dir {dir}/work --logs-dir {dir}/logs --non-interactive --agree-tos \
             --register-unsafely-without-email --no-random-sleep-on-renew"
        );
        let done = run("sh", &["-c", &format!("PATH={path}; {command} {options}")]);
        assert_eq!(done.code, 0, "{command}\n{done}");
    };
    let line_with = |index: usize, start: &str| {
        let commands = Example {
            text: text_of("sh", index).text,
            ..text_of("sh", index)
        };
        let commands = commands.moved().replace("@DIR@", &dir);
        let line = commands.lines().find(|line| line.starts_with(start));
        let line =
            line.unwrap_or_else(|| panic!("the recipe has no line that begins with `{start}`"));
        line.split(" # ").next().unwrap_or_default().to_owned()
    };

    let _ = run("sh", &["-c", &line_with(0, "mkdir ")]).success();
    let server = Setup::in_folder(folder, &configuration(0)).start();
    server.folder.write("pid", server.pid().to_string());
    certbot(&line_with(0, "certbot certonly "));
    let folder = server.stop();
    let file = folder.name_of("etc/letsencrypt/live/www.example.com/fullchain.pem");

    let server = Setup::in_folder(folder, &configuration(1)).start();
    server.folder.write("pid", server.pid().to_string());
    let [presented, stored] = serials(&server, &file);
    assert!(!stored.is_empty());
    assert_eq!(presented, stored);
    let plain = format!("http://127.0.0.1:{port}/a");
    let answer = curl(&["-H", "host: www.example.com", &plain]);
    assert_eq!(location(&answer), (301, "https://www.example.com/a"));

    certbot(&line_with(1, "certbot renew "));
    let [_, renewed] = serials(&server, &file);
    assert_ne!(renewed, stored);
    eventually("the renewed certificate to be served", || {
        (serials(&server, &file)[0] == renewed).then_some(())
    });
    let reloads = server.folder.read("systemctl.log");
    assert_eq!(reloads, "reload h2o\n".repeat(2));
}

/// The first example of the README: a configuration, commands that prepare files and check it, and a request.
#[test]
fn the_first_configuration_of_the_readme_works_as_pasted() {
    const SECTION: &str = "A first configuration of your own";
    let mut blocks = manual::examples("README.md");
    blocks.retain(|block| block.section == SECTION);
    let [config, prepare, question] = &blocks[..] else {
        panic!("the recipe does not have three blocks: {blocks:?}");
    };
    let folder = Folder::new();
    let dir = folder.path().display().to_string();
    let checked = config.moved().replace("@DIR@", &dir);
    folder.write("checked/h2o.conf", checked);
    let h2o = h2o_tests::binary().display().to_string();
    let (commands, serve) = prepare
        .text
        .rsplit_once("target/release/h2o -c h2o.conf")
        .expect("the last command of the recipe starts the server");
    assert!(serve.trim_start().starts_with('#'));
    let commands = Example {
        text: commands.to_owned(),
        ..prepare.clone()
    };
    let commands = commands
        .moved()
        .replace("@DIR@", &dir)
        .replace("target/release/h2o", &h2o);
    let script = format!("set -e; cd {dir}/checked; {commands}");
    let output = run("sh", &["-c", &script]);
    let text = output.text();
    assert!(text.contains("configuration OK"), "{output}");
    assert!(!format!("{output}").contains("[warning]"), "{output}");

    let served = config
        .moved()
        .replace("port: 80\n", "port: @PORT@\n")
        .replace("port: 443\n", "port: @TLS_PORT@\n");
    // The user that the server changes to must be able to write the logs.
    folder.make_dir("var/log/h2o");
    let served = served.replace("@DIR@/var/log/h2o/error_log", "@DIR@/error-log");
    let server = Setup::in_folder(folder, &served).start();
    let to = format!(
        "www.example.com:443:127.0.0.1:{}",
        server.port_of("TLS_PORT")
    );
    let command = question.text.replacen(
        "--resolve www.example.com:443:127.0.0.1",
        &format!("--silent --connect-to {to}"),
        1,
    );
    let answer = run("sh", &["-c", &command]);
    assert_eq!(answer.text(), "<h1>It works</h1>\n", "{answer}");
    let _ = server.read_until("var/log/h2o/access_log", "\"GET / HTTP/2\" 200");
}
