//! HTTP/2 between the proxy and real backends.

use h2o_tests::http2::{Frame, Http2, encode, flag};
use h2o_tests::{Folder, Service, Setup, curl, run};

use super::kit::config;
use super::real::{
    BeforeGo, WAYS, before_go, large, must_break_off, must_bring_content, must_understand,
};

#[test]
fn go_is_asked_by_http2_where_it_wants_that() {
    let folder = Folder::new();
    let (_service, servers) = before_go(&folder, true);
    must_understand(&folder, &servers);
    must_bring_content(&servers);
    must_break_off(&servers);
}

#[test]
fn requests_side_by_side_share_one_http2_connection() {
    let folder = Folder::new();
    let (_service, servers) = before_go(&folder, true);
    let (_, server) = &servers[0];
    // Later requests use the connection that this request has opened.
    assert_eq!(curl(&[&server.url("/connections")]).text(), "1");
    let out = folder.make_dir("out");
    let out = format!("{}/#1", out.display());
    let options = [
        "--silent",
        "--show-error",
        "--fail",
        "--parallel",
        "--parallel-max",
        "50",
        "--output",
        &out,
        &server.url("/content/[10000-10199]"),
    ];
    let _ = run("curl", &options).success();
    let connections = curl(&[&server.url("/connections")]).text();
    assert_eq!(connections, "1");
    let large = large();
    for length in 10_000..10_200 {
        let got = folder.read(&format!("out/{length}"));
        assert!(
            got.as_bytes() == &large[..length],
            "{length}: {} bytes",
            got.len()
        );
    }
}

#[test]
fn calls_have_their_trailers_and_go_both_ways_at_once() {
    let folder = Folder::new();
    for by_http2 in [false, true] {
        let (_service, servers) = before_go(&folder, by_http2);
        call(&servers);
    }
}

fn call(servers: &BeforeGo) {
    let section = encode(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/call"),
        (":authority", "www.example.com"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]);
    for (proto, server) in servers {
        let is_http2 = *proto == "HTTP/2.0";
        let mut client = Http2::open(server.port(), &[]);
        client.send_frame(&Frame::request_with_content(1, section.clone()));
        let mut sent = String::new();
        if is_http2 {
            for word in ["one ", "two ", "three"] {
                client.send_frame(&Frame::data(1, 0, word));
                sent += word;
                let so_far = sent.clone();
                client.read_until(word, |client| client.answer(1).text() == so_far);
            }
        }
        client.send_frame(&Frame::data(1, flag::END_STREAM, "end"));
        sent += "end";
        let answer = client.read_answer(1);
        assert_eq!((answer.status(), answer.text()), (200, sent), "{proto}");
        assert_eq!(answer.reset, None, "{proto}");
        let trailers = [("grpc-status", "7"), ("grpc-message", "not today")];
        let mut got = answer.trailers;
        got.sort();
        let mut want: Vec<_> = trailers
            .iter()
            .filter(|_| is_http2)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        want.sort();
        // Trailers of an HTTP/1 backend are dropped.
        assert_eq!(got, want, "{proto}");
    }
}

#[test]
fn nginx_is_asked_by_http2_in_cleartext_where_that_is_forced() {
    let folder = Folder::new();
    folder.write("www/large", large());
    let (_nginx, port) = Service::nginx(
        &folder,
        "
server {
    listen 127.0.0.1:@PORT@ http2;
    root @DIR@/www;
    location /proto { return 200 $server_protocol; }
}
",
    );
    let settings = "proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100";
    let server = Setup::new(&config(settings, &format!("http://127.0.0.1:{port}/"))).start();
    for way in WAYS {
        let response = curl(&[way, &[&server.url("/proto")]].concat());
        assert_eq!(response.text(), "HTTP/2.0", "{way:?}");
        let response = curl(&[way, &[&server.url("/large")]].concat());
        assert!(
            response.body == large(),
            "{way:?}: {} bytes",
            response.body.len()
        );
    }
}
