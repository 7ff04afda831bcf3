//! `file.dir` and `file.file`, tested by requests of clients.

use h2o_tests::{MODIFIED_TEXT, Server, Setup, curl, eventually, run};

const CONFIG: &str = "
listen: @PORT@
file.mime.addtypes: { text/x-note: .note }
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /pub:
        file.dir: @DIR@/pub
        file.dirlisting: ON
      /packed:
        file.dir: @DIR@/packed
        file.send-compressed: ON
      /unpacked:
        file.dir: @DIR@/packed
        file.send-compressed: gunzip
      /no-etag:
        file.dir: @DIR@/www
        file.etag: OFF
      /home:
        file.dir: @DIR@/www
        file.index: [ none.html, /hello.txt ]
      /no-index:
        file.dir: @DIR@/www
        file.index: []
      /one:
        file.file: @DIR@/www/hello.txt
      /gone:
        file.file: @DIR@/www/none
      /overlay:
        - file.dir: @DIR@/pub
        - file.dir: @DIR@/www
";

const NOTICE: &str = "it was decompressed\n";

fn start() -> Server {
    let setup = Setup::new(CONFIG)
        .file("www/index.html", "<p>index</p>")
        .file("www/hello.txt", "hello")
        .file("www/empty", "")
        .file("www/sub/index.htm", "sub")
        .file("www/bare/file", "no index here")
        .file("www/a b&c.note", "odd name")
        .file("www/UPPER.HTML", "shouting")
        .file("www/.hidden", "dot")
        .file("www/nested/index.html/index.html", "deep")
        .file("pub/a&b.txt", "1")
        .file("pub/.dot", "2")
        .file("pub/\"q\" <c>", "3")
        .file("pub/dir/file", "4")
        .file("packed/all.css", "plain")
        .file("packed/all.css.br", "brotli")
        .file("packed/all.css.zst", "zstd")
        .file("packed/all.css.gz", "gzip")
        .file("packed/old.css", "plain")
        .file("packed/old.css.zstd", "old suffix")
        .file("packed/notice.txt", NOTICE)
        .file("packed/index.html", "plain")
        .file("packed/index.html.gz", "gzip");
    let server = setup.start();
    let notice = server.folder.name_of("packed/notice.txt");
    let _ = run("gzip", &["-9", &notice]).success();
    server
}

/// Sends each request and compares the response with the text beside it.
fn check(server: &Server, cases: &[(&str, &str)]) {
    for (request, want) in cases {
        let response = server.ask(request);
        eprintln!("{request}");
        response.must_be(want);
    }
}

#[test]
fn files_are_sent_with_type_length_date_and_validators() {
    let modified = format!("last-modified: {MODIFIED_TEXT}");
    let full = format!(
        "200 OK\ncontent-type: text/plain\ncontent-length: 5\n{modified}\netag: \"65937d25-5\"\naccept-ranges: bytes\ndate: *\nserver: *\nconnection: close\n!vary\n!cache-control"
    );
    check(
        &start(),
        &[
            ("GET /hello.txt", &format!("{full}\n\nhello")),
            ("HEAD /hello.txt", &format!("{full}\n\n")),
            ("GET /hello.txt?query", &format!("{full}\n\nhello")),
            ("GET /%68ello.txt", &format!("{full}\n\nhello")),
            ("GET /sub/../hello.txt", &format!("{full}\n\nhello")),
            ("GET /sub/..%2fhello.txt", &format!("{full}\n\nhello")),
            ("GET /../../hello.txt", &format!("{full}\n\nhello")),
            (
                "GET /a%20b&c.note",
                "200 OK\ncontent-type: text/x-note\n\nodd name",
            ),
            (
                "GET /UPPER.HTML",
                "200 OK\ncontent-type: text/html\n\nshouting",
            ),
            (
                "GET /.hidden",
                "200 OK\ncontent-type: application/octet-stream\n\ndot",
            ),
            (
                "GET /empty",
                "200 OK\ncontent-type: application/octet-stream\ncontent-length: 0\netag: \"65937d25-0\"\n\n",
            ),
            (
                "GET /no-etag/hello.txt",
                &format!("200 OK\n!etag\n{modified}\n\nhello"),
            ),
            ("GET /one", "200 OK\ncontent-type: text/plain\n\nhello"),
            (
                "GET /one/below",
                "200 OK\ncontent-type: text/plain\n\nhello",
            ),
        ],
    );
}

#[test]
fn without_names_of_index_files_a_directory_is_missing() {
    let missing = "404 File Not Found\ncontent-type: text/plain; charset=utf-8\n\nnot found";
    check(
        &start(),
        &[
            ("GET /no-index/", missing),
            ("GET /no-index/bare/", missing),
            ("GET /no-index/none/", missing),
            ("GET /no-index/hello.txt", "200 OK\n\nhello"),
            (
                "GET /no-index/bare",
                "301 Moved Permanently\nlocation: /no-index/bare/",
            ),
        ],
    );
}

#[test]
fn what_cannot_be_served_is_answered_with_short_texts() {
    let text = "content-type: text/plain; charset=utf-8";
    let none = format!("404 File Not Found\n{text}\ncontent-length: 9\n!etag\n\nnot found");
    let method = format!("405 Method Not Allowed\n{text}\nallow: GET, HEAD\n\nmethod not allowed");
    check(
        &start(),
        &[
            ("GET /none", &none),
            (
                "HEAD /none",
                &format!("404 File Not Found\n{text}\ncontent-length: 9\n\n"),
            ),
            ("POST /none\nContent-Length: 0", &none),
            ("GET /hello.txt/", &none),
            ("GET /hello.txt/x", &none),
            ("GET /hello.txt%00", &none),
            ("GET /bare/", &none),
            ("GET /gone", &none),
            ("GET /one2", &none),
            ("POST /hello.txt\nContent-Length: 0", &method),
            ("OPTIONS /hello.txt", &method),
            ("DELETE /hello.txt", &method),
            ("POST /one\nContent-Length: 0", &method),
            ("POST /pub/\nContent-Length: 0", &method),
        ],
    );
    let server = start();
    let long = "x".repeat(300);
    let refused = format!("403 Access Forbidden\n{text}\n\naccess forbidden");
    check(&server, &[(&format!("GET /{long}"), &refused)]);
}

#[test]
fn what_the_server_may_not_read_is_forbidden() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let server = start();
    symlink("loop", server.folder.at("www/loop")).unwrap();
    let refused = "403 Access Forbidden\n\naccess forbidden";
    check(&server, &[("GET /loop", refused)]);
    let _ = run("mkfifo", &[&server.folder.name_of("www/fifo")]).success();
    check(&server, &[("GET /fifo", refused)]);
    let secret = server.folder.write("www/secret", "s");
    std::fs::set_permissions(secret, PermissionsExt::from_mode(0o000)).unwrap();
    // A server that root starts runs as `nobody`, who cannot read the file either.
    check(&server, &[("GET /secret", refused)]);
    symlink("hello.txt", server.folder.at("www/link.html")).unwrap();
    check(
        &server,
        &[("GET /link.html", "200 OK\ncontent-type: text/html\n\nhello")],
    );
}

#[test]
fn directories_lead_to_their_index() {
    let moved = |to: &str| {
        format!(
            "301 Moved Permanently\nlocation: {to}\ncontent-type: text/html; charset=utf-8\n\n<!DOCTYPE html><TITLE>Moved</TITLE><P>The document has moved <A HREF=\"{}\">here</A>",
            to.replace('&', "&amp;")
        )
    };
    check(
        &start(),
        &[
            ("GET /", "200 OK\ncontent-type: text/html\n\n<p>index</p>"),
            ("GET /sub/", "200 OK\ncontent-type: text/html\n\nsub"),
            ("GET /home/", "200 OK\ncontent-type: text/plain\n\nhello"),
            ("GET /sub", &moved("/sub/")),
            ("GET /sub?a&b", &moved("/sub/?a&b")),
            ("GET /%73ub", &moved("/sub/")),
            ("GET /pub", &moved("/pub/")),
            ("GET /pub?q", &moved("/pub/?q")),
            ("GET /pub/dir", &moved("/pub/dir/")),
        ],
    );
    let server = start();
    let nested = server.ask("GET /nested/");
    assert_eq!(nested.field("location"), Some("/nested/index.html/"));
    assert_eq!(nested.code(), 301);
    assert_eq!(server.ask("POST /sub\nContent-Length: 0").code(), 301);
    let head = server.ask("HEAD /sub");
    head.must_be("301 Moved Permanently\nlocation: /sub/\n\n");
}

#[test]
fn listings_name_every_entry_in_order() {
    let server = start();
    let fields = "200 OK\ncontent-type: text/html; charset=utf-8\ndate: *\n!etag\n!last-modified\n!accept-ranges";
    for path in ["/pub/", "/pub/../pub/./"] {
        let listing = server.ask(&format!("GET {path}"));
        listing.must_be(fields);
        let text = listing.text();
        assert!(text.contains("<TITLE>Index of /pub/</TITLE>"), "{text}");
        let links: Vec<_> = text
            .split("<A HREF=\"")
            .skip(1)
            .map(|rest| rest.split("</A>").next().unwrap())
            .collect();
        let want = [
            "..\">Parent Directory",
            "dir/\">dir",
            "%22q%22%20%3Cc%3E\">&quot;q&quot; &lt;c&gt;",
            ".dot\">.dot",
            "a&amp;b.txt\">a&amp;b.txt",
        ];
        assert_eq!(links, want);
    }
    check(
        &server,
        &[
            ("HEAD /pub/", &format!("{fields}\n\n")),
            ("GET /pub/%22q%22%20%3Cc%3E", "200 OK\n\n3"),
        ],
    );
}

#[test]
fn conditions_spare_the_content() {
    let not_modified = "304 Not Modified\netag: \"65937d25-5\"\ndate: *\n!content-length\n!content-type\n!last-modified\n\n";
    let full = "200 OK\ncontent-length: 5\n\nhello";
    check(
        &start(),
        &[
            (
                "GET /hello.txt\nIf-None-Match: \"65937d25-5\"",
                not_modified,
            ),
            (
                "HEAD /hello.txt\nIf-None-Match: \"65937d25-5\"",
                not_modified,
            ),
            ("GET /hello.txt\nIf-None-Match: \"65937d25-6\"", full),
            (
                "GET /hello.txt\nIf-Modified-Since: Tue, 02 Jan 2024 03:04:05 GMT",
                not_modified,
            ),
            (
                "GET /hello.txt\nIf-Modified-Since: Wed, 03 Jan 2024 03:04:05 GMT",
                not_modified,
            ),
            (
                "GET /hello.txt\nIf-Modified-Since: Tue, 02 Jan 2024 03:04:04 GMT",
                full,
            ),
            ("GET /hello.txt\nIf-Modified-Since: yesterday", full),
            (
                "GET /hello.txt\nIf-None-Match: \"other\"\nIf-Modified-Since: Wed, 03 Jan 2024 03:04:05 GMT",
                full,
            ),
            ("GET /hello.txt\nIf-Match: \"other\"", full),
            (
                "GET /hello.txt\nIf-Unmodified-Since: Mon, 01 Jan 2024 03:04:05 GMT",
                full,
            ),
            (
                "GET /no-etag/hello.txt\nIf-None-Match: \"65937d25-5\"",
                "304 Not Modified\n!etag\n\n",
            ),
        ],
    );
}

#[test]
fn single_ranges_are_cut_out() {
    let part = |range: &str, text: &str| {
        format!(
            "206 Partial Content\ncontent-range: bytes {range}/5\ncontent-length: {}\ncontent-type: text/plain\netag: \"65937d25-5\"\nlast-modified: {MODIFIED_TEXT}\n!accept-ranges\n\n{text}",
            text.len()
        )
    };
    let refused = |size: u32| {
        format!(
            "416 Request Range Not Satisfiable\ncontent-range: bytes */{size}\ncontent-type: text/plain; charset=utf-8\n\nrequested range not satisfiable"
        )
    };
    let cases = [
        ("bytes=0-1", part("0-1", "he")),
        ("bytes=1-", part("1-4", "ello")),
        ("bytes=-2", part("3-4", "lo")),
        ("bytes=-99", part("0-4", "hello")),
        ("bytes=4-99", part("4-4", "o")),
        ("bytes=0-1,9-", part("0-1", "he")),
        ("bytes=0-1 , \t,9-", part("0-1", "he")),
        ("bytes=5-", refused(5)),
        ("bytes=-0", refused(5)),
        ("bytes=3-2", refused(5)),
        ("bytes=a-b", refused(5)),
        ("bytes=", refused(5)),
        ("octets=0-1", refused(5)),
        ("Bytes=0-1", refused(5)),
    ];
    let server = start();
    for (range, want) in &cases {
        check(
            &server,
            &[(&format!("GET /hello.txt\nRange: {range}"), want)],
        );
    }
    let empty = refused(0);
    let head = part("0-1", "he").replace("\n\nhe", "\n\n");
    let full = "200 OK\ncontent-length: 5\n\nhello";
    check(
        &server,
        &[
            ("GET /empty\nRange: bytes=0-", &empty),
            ("HEAD /hello.txt\nRange: bytes=0-1", &head),
            (
                "GET /hello.txt\nRange: bytes=0-1\nIf-Range: \"65937d25-5\"",
                &part("0-1", "he"),
            ),
            (
                "GET /hello.txt\nRange: bytes=0-1\nIf-Range: \"other\"",
                full,
            ),
            (
                "GET /hello.txt\nRange: bytes=0-1\nIf-Range: W/\"65937d25-5\"",
                full,
            ),
            (
                "GET /hello.txt\nRange: bytes=0-1\nIf-Range: Tue, 02 Jan 2024 03:04:05 GMT",
                &part("0-1", "he"),
            ),
            (
                "GET /hello.txt\nRange: bytes=0-1\nIf-Range: Mon, 01 Jan 2024 03:04:05 GMT",
                full,
            ),
        ],
    );
}

#[test]
fn several_ranges_come_as_multipart() {
    let server = start();
    for (ranges, parts) in [
        (
            "0-0,-1,2-2",
            &[("0-0", "h"), ("4-4", "o"), ("2-2", "l")][..],
        ),
        ("4-,0-1", &[("4-4", "o"), ("0-1", "he")]),
        // Ranges that overlap or touch are sent as one part.
        ("0-0,-1,1-2,0-1", &[("0-2", "hel"), ("4-4", "o")]),
    ] {
        let response = server.ask(&format!("GET /hello.txt\nRange: bytes={ranges}"));
        response.must_be("206 Partial Content\n!content-range\netag: \"65937d25-5\"");
        let content_type = response.field("content-type").unwrap();
        let boundary = content_type
            .strip_prefix("multipart/byteranges; boundary=")
            .unwrap();
        assert!(
            boundary.len() == 20 && boundary.bytes().all(|c| c.is_ascii_alphanumeric()),
            "{boundary}"
        );
        let parts: String = parts
            .iter()
            .map(|(range, text)| {
                format!(
                    "--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes {range}/5\r\n\r\n{text}\r\n"
                )
            })
            .collect();
        assert_eq!(response.text(), format!("{parts}--{boundary}--\r\n"));
    }
    server.ask("GET /hello.txt\nRange: bytes=0-2,1-3").must_be(
        "206 Partial Content\ncontent-range: bytes 0-3/5\ncontent-type: text/plain\n\nhell",
    );
}

#[test]
fn compressed_variants_are_sent_to_those_who_take_them() {
    let sent = |coding: &str, text: &str| {
        let encoding = if coding.is_empty() {
            "!content-encoding".to_owned()
        } else {
            format!("content-encoding: {coding}")
        };
        format!(
            "200 OK\n{encoding}\nvary: accept-encoding\ncontent-type: text/css\ncontent-length: {0}\netag: \"65937d25-{0:x}\"\n\n{text}",
            text.len()
        )
    };
    let server = start();
    for (path, accept, coding, text) in [
        ("all.css", "br, gzip, zstd", "br", "brotli"),
        ("all.css", "gzip, zstd", "zstd", "zstd"),
        ("all.css", "gzip", "gzip", "gzip"),
        ("all.css", "GZIP", "gzip", "gzip"),
        ("all.css", "gzip;q=1, br;q=0.5", "", "plain"),
        ("all.css", "*", "", "plain"),
        ("all.css", "identity", "", "plain"),
        ("old.css", "zstd", "zstd", "old suffix"),
        ("old.css", "br", "", "plain"),
    ] {
        let request = format!("GET /packed/{path}\nAccept-Encoding: {accept}");
        check(&server, &[(&request, &sent(coding, text))]);
    }
    check(
        &server,
        &[
            ("GET /packed/all.css", &sent("", "plain")),
            ("GET /packed/notice.txt", "404 File Not Found"),
            (
                "GET /packed/\nAccept-Encoding: gzip",
                "200 OK\ncontent-type: text/html\ncontent-encoding: gzip\n\ngzip",
            ),
            (
                "GET /packed/all.css\nAccept-Encoding: br\nRange: bytes=0-1",
                "206 Partial Content\ncontent-encoding: br\ncontent-range: bytes 0-1/6\n\nbr",
            ),
            (
                "GET /packed/all.css\nAccept-Encoding: gzip\nIf-None-Match: \"65937d25-4\"",
                "304 Not Modified\nvary: accept-encoding",
            ),
        ],
    );
}

#[test]
fn compressed_files_are_decompressed_for_those_who_cannot() {
    let server = start();
    server.ask("GET /unpacked/notice.txt").must_be(&format!(
        "200 OK\n!content-encoding\n!content-length\nvary: accept-encoding\ncontent-type: text/plain\n\n{NOTICE}"
    ));
    curl(&["--compressed", &server.url("/unpacked/notice.txt")]).must_be(&format!(
        "200 OK\ncontent-encoding: gzip\nvary: accept-encoding\n\n{NOTICE}"
    ));
    server
        .ask("GET /unpacked/all.css")
        .must_be("200 OK\n\nplain");
}

#[test]
fn variants_are_not_for_http_1_0() {
    let server = start();
    let mut connection = server.connect();
    connection.send("GET /packed/all.css HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
    connection
        .read_response("GET")
        .must_be("200 OK\n!content-encoding\n\nplain");
}

#[test]
fn trees_are_laid_over_each_other() {
    let server = start();
    check(
        &server,
        &[
            ("GET /overlay/dir/file", "200 OK\n\n4"),
            ("GET /overlay/hello.txt", "200 OK\n\nhello"),
            ("GET /overlay/none", "404 File Not Found"),
        ],
    );
    let response = server.ask("GET /overlay/hello.txt");
    assert_eq!(response.all("date").count(), 1);
}

#[test]
fn changed_files_are_seen_by_the_next_request() {
    let server = start();
    let mut connection = server.connect();
    for text in ["first", "the second", "3"] {
        server.folder.write("www/changing", text);
        connection.send("GET /changing HTTP/1.1\r\nHost: a\r\n\r\n");
        connection
            .read_response("GET")
            .must_be(&format!("200 OK\nconnection: keep-alive\n\n{text}"));
    }
    std::fs::remove_file(server.folder.at("www/changing")).unwrap();
    connection.send("GET /changing HTTP/1.1\r\nHost: a\r\n\r\n");
    connection
        .read_response("GET")
        .must_be("404 File Not Found");
}

#[test]
fn large_files_arrive_whole_and_can_be_resumed() {
    let server = start();
    let content: Vec<u8> = (0..10_000_019_u32).map(|n| (n % 251) as u8).collect();
    server.folder.write("www/large", &content);
    let all = server.folder.name_of("all");
    let _ = run("wget", &["-q", "-O", &all, &server.url("/large")]).success();
    assert!(
        std::fs::read(&all).unwrap() == content,
        "wget gets the whole file"
    );
    std::fs::write(server.folder.at("part"), &content[..3_333_333]).unwrap();
    let part = server.folder.name_of("part");
    let _ = run("wget", &["-q", "-c", "-O", &part, &server.url("/large")]).success();
    assert!(
        std::fs::read(&part).unwrap() == content,
        "wget resumes the file"
    );
}

/// The server keeps files of more than 64 KiB open for later requests.
const LARGE: usize = 70_000;

#[test]
fn files_that_are_kept_open_take_no_descriptor_that_is_needed() {
    let config = "
listen: @PORT@
num-threads: 4
max-connections: 20
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let mut setup = Setup::new(config).launched_by(&["sh", "-c", "ulimit -n 100; exec $0 $*"]);
    for number in 0..150 {
        setup = setup.file(&format!("www/{number}"), "x".repeat(LARGE));
    }
    let server = setup.start();
    for number in (0..150).chain(0..150) {
        let response = server.ask(&format!("GET /{number}"));
        assert_eq!(
            (response.code(), response.text().len()),
            (200, LARGE),
            "{number}"
        );
    }
}

#[test]
fn the_descriptor_of_a_deleted_file_is_closed_without_further_requests() {
    let server = Setup::new(
        "listen: @PORT@\nhosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }\n",
    )
    .file("www/large", "x".repeat(LARGE))
    .start();
    assert_eq!(server.ask("GET /large").code(), 200);
    let file = server.folder.name_of("www/large");
    let is_open = || {
        let folder =
            std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the server runs");
        let mut targets = folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.any(|target| target.to_string_lossy().starts_with(&file))
    };
    assert!(is_open());
    std::fs::remove_file(&file).expect("the file is there");
    eventually("the file to be closed", || (!is_open()).then_some(()));
}
