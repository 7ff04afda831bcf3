//! Complete configurations as people write them.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, curl, run};

fn small() -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcSec1, "www.example.com");
    Setup::in_folder(folder, include_str!("../configs/small.conf"))
        .file("www/index.html", "<p>welcome</p>")
        .start()
}

#[test]
fn a_small_configuration_serves_a_site_over_http_and_https() {
    let server = small();
    let page = "200 OK\ncontent-type: text/html\ncontent-length: 14\n\n<p>welcome</p>";
    curl(&[&server.url("/")]).must_be(page);
    curl(&[
        "--cacert",
        &server.folder.name_of("server.crt"),
        &format!("https://127.0.0.1:{}/", server.port_of("TLS_PORT")),
    ])
    .must_be(page);

    let log = server.read_until("access-log", "\n127");
    for line in log.lines() {
        assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
        assert!(
            line.contains("] \"GET / HTTP/1.1\" 200 14 \"-\" \"curl/"),
            "{line}"
        );
    }
    let errors = server.folder.read("error-log");
    assert!(errors.contains("is ready to serve requests"), "{errors}");
}

#[test]
fn wget_mirrors_the_small_site() {
    let server = small();
    server.folder.write(
        "www/index.html",
        "<a href=\"a/\">a</a><a href=\"b.txt\">b</a>",
    );
    server
        .folder
        .write("www/a/index.html", "<a href=\"../b.txt\">b</a>");
    server.folder.write("www/b.txt", "the end");
    let mirror = server.folder.name_of("mirror");
    let _ = run(
        "wget",
        &[
            "-q",
            "-r",
            "-nH",
            "-P",
            &mirror,
            "--tries=1",
            &server.url("/"),
        ],
    )
    .success();
    for file in ["index.html", "a/index.html", "b.txt"] {
        assert_eq!(
            server.folder.read(&format!("mirror/{file}")),
            server.folder.read(&format!("www/{file}"))
        );
    }
}

fn large() -> Server {
    let folder = Folder::new();
    self_signed(&folder, "www", Key::RsaPkcs8, "www.example.com");
    self_signed(&folder, "static", Key::EcPkcs8, "static.example.com");
    let mut config = include_str!("../configs/large.conf").to_owned();
    if !rustix::process::geteuid().is_root() {
        config = config.replace("user: nobody\n", "");
    }
    Setup::in_folder(folder, &config)
        .file("www/start.html", "start")
        .file("www/game.pgn", "1. e4")
        .file("www/read.md", "# me")
        .file("www/data.exj", "{}")
        .file("www/page.html", "plain")
        .file("www/page.html.gz", "packed")
        .file("www/list/one", "1")
        .file("www/icons/site.ico", "icon")
        .file("new/both", "new both")
        .file("old/both", "old both")
        .file("old/only", "old only")
        .file("static/index.html", "static")
        .start()
}

/// Sends a request over TLS with curl, which verifies the certificate.
fn ask(
    server: &Server,
    host: &str,
    certificate: &str,
    more: &[&str],
    path: &str,
) -> h2o_tests::Response {
    let port = server.port_of("TLS_PORT");
    let certificate = server.folder.name_of(certificate);
    let resolve = format!("{host}:{port}:127.0.0.1");
    let url = format!("https://{host}:{port}{path}");
    let fixed = ["--cacert", &certificate, "--resolve", &resolve, &url];
    curl(&[more, &fixed].concat())
}

#[test]
fn a_large_configuration_serves_each_host_with_its_settings() {
    let server = large();
    let common = "server: An Example\nx-content-type-options: nosniff\nreferrer-policy: no-referrer\nx-level: global";
    let www = |path| ask(&server, "www.example.com", "www.crt", &[], path);
    www("/").must_be(&format!(
        "200 OK\n{common}\nx-level: host\ncontent-type: text/html\ncache-control: max-age=86400\n\nstart"
    ));
    www("/game.pgn").must_be("200 OK\ncontent-type: application/x-chess-pgn\n\n1. e4");
    www("/read.md").must_be("200 OK\ncontent-type: text/markdown; charset=utf-8\n\n# me");
    www("/data.exj").must_be("200 OK\ncontent-type: application/vnd.example+json\n\n{}");
    www("/page.html").must_be("200 OK\nvary: accept-encoding\n!content-encoding\n\nplain");
    ask(
        &server,
        "www.example.com",
        "www.crt",
        &["-H", "accept-encoding: gzip"],
        "/page.html",
    )
    .must_be(
        "200 OK\ncontent-encoding: gzip\nvary: accept-encoding\ncontent-type: text/html\n\npacked",
    );
    www("/list/").must_be("200 OK\ncontent-type: text/html; charset=utf-8");
    www("/favicon.ico").must_be(
        "200 OK\ncontent-type: image/x-icon\ncache-control: max-age=31536000\nx-level: host\n\nicon",
    );
    // The mappings in the sequence for `/download` become one set of directives, so `expires` applies to both directories.
    www("/download/both").must_be(&format!(
        "200 OK\n{common}\nx-level: host\nx-level: path\ncache-control: max-age=2592000\n\nnew both"
    ));
    www("/download/only").must_be("200 OK\n\nold only");
    www("/none").must_be(&format!(
        "404 File Not Found\n{common}\n!cache-control\n\nnot found"
    ));

    let other = |path| ask(&server, "static.example.com", "static.crt", &[], path);
    other("/").must_be(&format!("200 OK\n{common}\n!cache-control\n\nstatic"));
    other("/download/only").must_be("200 OK\ncache-control: max-age=2592000\n\nold only");

    let target = format!("https://www.example.com:{}/a?b", server.port_of("TLS_PORT"));
    let request = format!("GET /a?b\nHost: www.example.com:{}", server.port());
    server.ask(&request).must_be(&format!(
        "301 Redirected\nlocation: {target}\ncache-control: max-age=86400\nx-level: global"
    ));
}

#[test]
fn a_large_configuration_logs_in_its_own_format() {
    let server = large();
    // Requests may be served by different threads, so the test waits for each line to keep their order.
    for (option, path) in [
        (&["--tlsv1.3"][..], "/game.pgn"),
        (&["--tls-max", "1.2"], "/none"),
    ] {
        let _ = ask(&server, "www.example.com", "www.crt", option, path);
        let _ = server.read_until("access-log", &format!("GET {path} "));
    }
    let _ = server.ask(&format!("GET /\nHost: www.example.com:{}", server.port()));
    let log = server.read_until("access-log", "301 127.0.0.1");
    let lines: Vec<_> = log.lines().collect();
    let want = [
        "200 127.0.0.1 GET /game.pgn HTTP/1.1 5 TLSv1.3 TLS_AES_",
        "404 127.0.0.1 GET /none HTTP/1.1 9 TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 - 0",
        "301 127.0.0.1 GET / HTTP/1.1 ",
    ];
    assert_eq!(lines.len(), want.len(), "{log}");
    for (line, want) in lines.iter().zip(want) {
        let (time, rest) = line.split_at("2024-01-02 03:04:05.678 ".len());
        let digits: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(digits, "0000-00-00 00:00:00.000 ", "{line}");
        assert!(rest.starts_with(want), "{line}");
    }
    assert!(lines[0].ends_with(" - 0"), "{log}");
    assert!(lines[2].ends_with(" - - - -"), "{log}");
}

#[test]
fn a_large_configuration_bounds_request_bodies() {
    let server = large();
    let data = server.folder.write("big", vec![b'x'; 65_537]);
    let data = format!("@{}", data.display());
    ask(
        &server,
        "www.example.com",
        "www.crt",
        &["-H", "expect:", "--data-binary", &data],
        "/",
    )
    .must_be("413 Request Entity Too Large\n\nrequest entity is too large");
}
