//! Interim responses of back ends.

use h2o_tests::Backend;
use h2o_tests::http2::{Http2, get, setting};

use super::kit::proxy;

#[test]
fn hints_come_before_the_answer() {
    let backend = Backend::answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nx-hint: 2\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
    );
    let server = proxy("", &backend);
    let mut client = Http2::open(server.port(), &[(setting::ENABLE_PUSH, 0)]);
    let answer = client.ask(1, &get("/"));
    assert_eq!(answer.text(), "fine");
    let status = (":status".to_owned(), "103".to_owned());
    assert_eq!(answer.interim.len(), 2, "{:?}", answer.interim);
    assert!(answer.interim.iter().all(|fields| fields.contains(&status)));
    assert!(answer.interim[1].contains(&("x-hint".to_owned(), "2".to_owned())));
    // HTTP/1 clients get them only where that is configured.
    server.ask("GET /").must_be("200 OK\n\nfine");
    let server = proxy("send-informational: all", &backend);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    for want in ["link: </a>; rel=preload", "x-hint: 2"] {
        let hint = client.read_response("GET");
        assert_eq!(hint.code(), 103, "{hint}");
        hint.must_be(&format!("{}\n{want}", hint.status));
    }
    client.read_response("GET").must_be("200 OK\n\nfine");
}
