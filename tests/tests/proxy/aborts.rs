//! Clients that close their connection before they get the response.

use std::time::Duration;

use h2o_tests::Backend;
use h2o_tests::http2::{Frame, Http2, code, get};
use rustix::net::sockopt::set_socket_linger;

use super::kit::proxy;

#[test]
fn a_client_that_goes_away_takes_the_connection_along() {
    let backend = Backend::start(|talk| {
        let _ = talk.read_request();
        talk.read_to_end();
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.wait_for("GET / ");
    // The client resets the connection: after an orderly end of its direction it would still get the response.
    set_socket_linger(client.stream(), Some(Duration::ZERO)).unwrap();
    drop(client);
    backend.wait_for_ended(1);
    let mut client = Http2::open(server.port(), &[]);
    client.send_frame(&Frame::request(1, get("/2")));
    backend.wait_for("GET /2 ");
    client.send_frame(&Frame::rst_stream(1, code::CANCEL));
    backend.wait_for_ended(2);
    client.ping();
}
