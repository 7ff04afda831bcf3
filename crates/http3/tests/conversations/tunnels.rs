//! Tests of CONNECT, extended CONNECT (RFC 9220), CONNECT-UDP, and HTTP datagrams (RFC 9297).

use h2o_http3::Settings;
use h2o_testkit::http3::{kind, varint};

use crate::kit::server::{Conversation, outcome};
use crate::kit::{CONNECT, CONTROL, Fields, assert_said, control, data, frame, headers};

const WEBSOCKET: Fields<'static> = &[
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/chat"),
];
const UDP: Fields<'static> = &[
    (":method", "CONNECT-UDP"),
    (":scheme", "masque"),
    (":authority", "a.example:53"),
    (":path", "/"),
];

#[test]
fn extended_connect_is_an_upgrade() {
    let mut talk = Conversation::new();
    talk.sends(0, headers(WEBSOCKET));
    talk.expect(
        "extended CONNECT (RFC 9220) is a request",
        &["0 CONNECT https://a.example/chat"],
    );
    assert_eq!(talk.head.upgrade(), b"websocket");
    assert!(talk.head.asks_for_tunnel());
    assert_eq!(
        talk.responds(0, 200, &[], None, false),
        ["HEADERS :status=200 server=h2o"]
    );
    talk.sends(0, data(b"up"));
    talk.expect("bytes from the client", &["0 data up"]);
    let (key, mut out) = (talk.key(0), Vec::new());
    talk.connection.send_data(key, b"down", false, &mut out);
    assert_eq!(talk.read(0, &out), ["DATA down"]);
    talk.ends(0, b"");
    talk.expect(
        "the client has ended its direction of the tunnel",
        &["0 data  END"],
    );
    out.clear();
    talk.connection.send_data(key, b"more", true, &mut out);
    assert_eq!(
        talk.read(0, &out),
        ["DATA more"],
        "the server can still send"
    );
    talk.release(0);
    talk.expect(
        "a tunnel that has ended in both directions causes no frames",
        &[],
    );
}

#[test]
fn a_tunnel_has_nothing_but_data() {
    let unexpected = "close H3_FRAME_UNEXPECTED unexpected frame type";
    let asked = "0 CONNECT http://b.example:443b.example:443";
    for (why, input) in [
        ("trailers", headers(&[("x", "y")])),
        ("SETTINGS", frame(kind::SETTINGS, b"")),
        ("GOAWAY", frame(kind::GOAWAY, b"\0")),
        ("PING of HTTP/2", frame(6, b"")),
    ] {
        let input = [headers(CONNECT), data(b"a"), input].concat();
        let want = [asked, "0 data a", unexpected];
        assert_said(&outcome(Conversation::new, 0, &input, false), &want, why);
    }
    let input = [headers(CONNECT), frame(0x21, b"x"), data(b"a")].concat();
    let want = [asked, "0 data a"];
    assert_said(
        &outcome(Conversation::new, 0, &input, false),
        &want,
        "unknown frames are skipped",
    );
}

#[test]
fn a_tunnel_has_no_trailers_from_us_either() {
    let mut talk = Conversation::new();
    talk.sends(0, headers(CONNECT));
    talk.responds(0, 200, &[], None, false);
    let (key, mut out) = (talk.key(0), Vec::new());
    let trailers = crate::kit::server::fields(&[("x", "y")]);
    talk.connection.finish(key, Some(&trailers), &mut out);
    assert_eq!(out, b"");
}

fn datagram(stream: u64, payload: &[u8]) -> Vec<u8> {
    [varint(stream / 4), payload.to_vec()].concat()
}

#[test]
fn datagrams_are_of_tunnels() {
    let mut talk = Conversation::new();
    talk.gets(0);
    talk.sends(4, headers(UDP));
    talk.expect(
        "the method of the early draft",
        &["4 CONNECT-UDP masque://a.example:53/"],
    );
    let key = talk.key(4);
    let got = talk.connection.on_datagram(&datagram(4, b"abc"));
    assert_eq!(
        got,
        Ok(Some((key, 1))),
        "the position at which the payload begins"
    );
    assert_eq!(
        talk.connection.on_datagram(&datagram(4, b"")),
        Ok(Some((key, 1)))
    );
    for (why, stream) in [("no tunnel", 0), ("not opened", 8), ("far away", 1 << 20)] {
        assert_eq!(
            talk.connection.on_datagram(&datagram(stream, b"a")),
            Ok(None),
            "{why}"
        );
    }
    let mut out = Vec::new();
    assert!(talk.connection.begin_datagram(key, &mut out));
    assert_eq!(out, [1]);
    let plain = talk.key(0);
    assert!(!talk.connection.begin_datagram(plain, &mut out));
    talk.release(4);
    assert_eq!(talk.connection.on_datagram(&datagram(4, b"late")), Ok(None));
    assert!(!talk.connection.begin_datagram(key, &mut out));
}

#[test]
fn tunnels_of_the_draft_name_their_datagrams_themselves() {
    let asked = |flow: &'static str| {
        let mut fields = UDP.to_vec();
        fields.push(("datagram-flow-id", flow));
        fields
    };
    let mut talk = Conversation::new();
    talk.sends(0, headers(UDP));
    talk.sends(4, headers(&asked("10; ecn=1")));
    // A flow id that is too large for a datagram, or that is not a number, is ignored: the stream's identifier is used
    // instead.
    talk.sends(8, headers(&asked("1152921504606846976")));
    talk.sends(12, headers(&asked("-1")));
    for (stream, name) in [(0, 0), (4, 10), (8, 2), (12, 3)] {
        let (key, mut out) = (talk.key(stream), Vec::new());
        let got = talk.connection.on_datagram(&datagram(name * 4, b"abc"));
        assert_eq!(got, Ok(Some((key, 1))), "{stream}");
        assert!(talk.connection.begin_datagram(key, &mut out));
        assert_eq!(out, varint(name), "{stream}");
    }
    assert_eq!(talk.connection.on_datagram(&datagram(4, b"abc")), Ok(None));
}

#[test]
fn datagrams_of_no_tunnel_cost_a_little() {
    let mut talk = Conversation::new();
    talk.sends(0, headers(UDP));
    let _ = talk.connection.take_costs();
    for _ in 0..160 {
        let lost = talk.connection.on_datagram(&datagram(400, b""));
        assert_eq!(lost, Ok(None));
        let meant = talk.connection.on_datagram(&datagram(0, b""));
        assert!(meant.is_ok_and(|key| key.is_some()));
    }
    assert_eq!(talk.connection.take_costs(), 10);
}

#[test]
fn datagrams_without_a_stream_end_the_connection() {
    for wrong in [&b""[..], b"\x40", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
        let mut talk = Conversation::new();
        let error = talk
            .connection
            .on_datagram(wrong)
            .expect_err("the datagram is malformed");
        assert_eq!(error.answer().0.0, 0x33, "H3_DATAGRAM_ERROR");
        assert!(talk.connection.is_over());
    }
}

#[test]
fn datagrams_are_sent_once_the_client_has_said_that_it_takes_them() {
    let mut talk = Conversation::unopened(Settings::default());
    talk.sends(0, headers(UDP));
    let (key, mut out) = (talk.key(0), Vec::new());
    assert!(!talk.connection.begin_datagram(key, &mut out));
    talk.sends(CONTROL, control(&[(0x276, 1)]));
    assert!(talk.connection.begin_datagram(key, &mut out));
    let mut talk = Conversation::unopened(Settings::default());
    talk.sends(CONTROL, control(&[(0x33, 0)]))
        .sends(0, headers(UDP));
    let key = talk.key(0);
    assert!(!talk.connection.begin_datagram(key, &mut out));
}
