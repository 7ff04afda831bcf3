//! Tests of every type of frame in every place where a peer can send a frame, for both roles.

use h2o_http3::{ClientSettings, Settings};
use h2o_testkit::http3::{Frame, kind, varint};

use crate::kit::{CONNECT, CONTROL, Fields, GET, POST, client, data, frame, headers, server};

const TRAILERS: Fields<'static> = &[("x", "y")];
const OK: Fields<'static> = &[(":status", "200")];
const HINTS: Fields<'static> = &[(":status", "103")];
/// The stream identifier of the server's control stream.
const SERVER_CONTROL: u64 = 3;

/// Frames that at least one of the roles may send somewhere, each with a payload that is valid there.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("DATA", data(b"a")),
        ("empty DATA", data(b"")),
        ("request", headers(GET)),
        ("response", headers(OK)),
        ("trailers", headers(TRAILERS)),
        ("CANCEL_PUSH", Frame::with_id(kind::CANCEL_PUSH, 0).bytes()),
        ("SETTINGS", Frame::settings(&[]).bytes()),
        ("PUSH_PROMISE", frame(kind::PUSH_PROMISE, &[0, 0, 0])),
        ("GOAWAY", Frame::with_id(kind::GOAWAY, 0).bytes()),
        ("MAX_PUSH_ID", Frame::with_id(kind::MAX_PUSH_ID, 4).bytes()),
        ("PRIORITY_UPDATE", Frame::priority_update(4, "u=1").bytes()),
        (
            "PRIORITY_UPD., push",
            frame(kind::PRIORITY_UPDATE_PUSH, &varint(0)),
        ),
        ("HTTP/2 PRIORITY", frame(0x02, b"")),
        ("HTTP/2 PING", frame(0x06, b"")),
        ("HTTP/2 WINDOW", frame(0x08, b"")),
        ("HTTP/2 CONTIN.", frame(0x09, b"")),
        ("unknown", frame(0x21, b"whatever")),
        ("unknown, long", frame(0x1f * 1_000_000 + 0x21, b"")),
    ]
}

/// The letter that stands for what a frame has led to; [`frames_of_clients_mean_what_their_place_says`] lists the letters.
fn letter(said: &[String]) -> char {
    const LETTERS: [(&str, char); 16] = [
        ("close H3_FRAME_UNEXPECTED unexpected frame type", 'T'),
        ("close H3_FRAME_UNEXPECTED", 'U'),
        ("close H3_ID_ERROR", 'I'),
        ("close H3_GENERAL_PROTOCOL_ERROR", 'G'),
        ("close H3_MISSING_SETTINGS", 'M'),
        ("close QPACK_DECOMPRESSION_FAILED", 'F'),
        ("close H3_MESSAGE_ERROR", 'E'),
        ("settings", 's'),
        ("goaway", 'g'),
        ("rejected", 'x'),
        ("0 reset", 'x'),
        ("0 refused", 'r'),
        ("0 data", 'd'),
        ("0 trailers", 't'),
        ("0 GET", 'h'),
        ("0 200", 'h'),
    ];
    let Some(first) = said.first() else {
        return '.';
    };
    let found = LETTERS.iter().find(|(begin, _)| first.starts_with(begin));
    found.unwrap_or_else(|| panic!("{said:?}")).1
}

/// Compares the results of all frames in all places with a table of letters, which has a line for each frame and a column
/// for each place.
#[track_caller]
fn check(got: impl Fn(usize, &[u8]) -> Vec<String>, places: usize, want: &str) {
    let rows = frames().into_iter().map(|(name, bytes)| {
        let letters = (0..places).map(|place| letter(&got(place, &bytes)));
        let letters: Vec<String> = letters.map(String::from).collect();
        format!("{name:<19} {}", letters.join(" "))
    });
    let rows: Vec<String> = rows.collect();
    let want: Vec<&str> = want
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        // Skips the table's first line, which numbers the places.
        .skip(1)
        .collect();
    assert_eq!(rows, want, "{}", rows.join("\n"));
}

/// The letters of the table: `.` nothing, `d` content, `h` a head, `t` trailers, `s` SETTINGS, `g` GOAWAY; `x` the stream
/// is reset; or the connection is closed: `U` and `T` with H3_FRAME_UNEXPECTED (`T` in a tunnel), `I` with H3_ID_ERROR, `G`
/// with H3_GENERAL_PROTOCOL_ERROR, `F` with QPACK_DECOMPRESSION_FAILED, `E` with H3_MESSAGE_ERROR.
#[test]
fn frames_of_clients_mean_what_their_place_says() {
    type Place = (u64, fn(&mut server::Conversation));
    let places: [Place; 9] = [
        // Place 1 is the control stream after SETTINGS, place 2 the control stream after GOAWAY.
        (CONTROL, |_| {}),
        (CONTROL, |talk| {
            talk.sends(CONTROL, Frame::with_id(kind::GOAWAY, 0).bytes());
        }),
        // Place 3 is a request stream before its head, 4 after the head, 5 after content, 6 after trailers.
        (0, |_| {}),
        (0, |talk| {
            talk.sends(0, headers(POST));
        }),
        (0, |talk| {
            talk.sends(0, [headers(POST), data(b"b")].concat());
        }),
        (0, |talk| {
            talk.sends(0, [headers(POST), headers(TRAILERS)].concat());
        }),
        // Place 7 is a stream whose response is complete, 8 a tunnel, 9 a stream that was reset.
        (0, |talk| {
            talk.sends(0, headers(POST));
            talk.responds(0, 200, &[], None, true);
        }),
        (0, |talk| {
            talk.sends(0, headers(CONNECT));
            talk.responds(0, 200, &[], None, false);
        }),
        (0, |talk| {
            talk.sends(0, headers(POST)).resets(0, 0x10c);
        }),
    ];
    let got = |place: usize, bytes: &[u8]| {
        let (stream, prepare) = places[place];
        let begin = || {
            let mut talk = server::Conversation::new();
            prepare(&mut talk);
            talk
        };
        server::outcome(begin, stream, bytes, false)
    };
    let want = "
                            1 2 3 4 5 6 7 8 9
        DATA                U U U d d U d d .
        empty DATA          U U U . . U . . .
        request             U U h F F U F T .
        response            U U F F F U F T .
        trailers            U U x t t U t T .
        CANCEL_PUSH         I I U U U U U T .
        SETTINGS            U U U U U U U T .
        PUSH_PROMISE        U U U U U U U U .
        GOAWAY              g g U U U U U T .
        MAX_PUSH_ID         . . U U U U U T .
        PRIORITY_UPDATE     . . U U U U U T .
        PRIORITY_UPD., push G G U U U U U T .
        HTTP/2 PRIORITY     U U U U U U U T .
        HTTP/2 PING         U U U U U U U T .
        HTTP/2 WINDOW       U U U U U U U T .
        HTTP/2 CONTIN.      U U U U U U U T .
        unknown             . . . . . . . . .
        unknown, long       . . . . . . . . .
    ";
    check(got, places.len(), want);
}

/// The letters of the table are those of [`frames_of_clients_mean_what_their_place_says`]; `r` means that the request is
/// refused.
#[test]
fn frames_of_servers_mean_what_their_place_says() {
    type Place = (u64, fn(&mut client::Conversation));
    let places: [Place; 8] = [
        // Place 1 is the control stream after SETTINGS, place 2 the control stream after GOAWAY.
        (SERVER_CONTROL, |_| {}),
        (SERVER_CONTROL, |talk| {
            talk.server_sends(SERVER_CONTROL, Frame::with_id(kind::GOAWAY, 0).bytes());
        }),
        // Place 3 is a request stream before the response, 4 after an interim response, 5 after the head of the final
        // response, 6 after content, 7 after trailers.
        (0, |talk| {
            talk.gets();
        }),
        (0, |talk| {
            talk.gets();
            talk.server_sends(0, headers(HINTS));
        }),
        (0, |talk| {
            talk.gets();
            talk.server_sends(0, headers(OK));
        }),
        (0, |talk| {
            talk.gets();
            talk.server_sends(0, [headers(OK), data(b"b")].concat());
        }),
        (0, |talk| {
            talk.gets();
            talk.server_sends(0, [headers(OK), headers(TRAILERS)].concat());
        }),
        // Place 8 is a stream whose request is still being sent.
        (0, |talk| {
            talk.posts();
            talk.server_sends(0, headers(OK));
        }),
    ];
    let got = |place: usize, bytes: &[u8]| {
        let (stream, prepare) = places[place];
        let begin = || {
            let mut talk = client::Conversation::new();
            prepare(&mut talk);
            talk
        };
        client::outcome(begin, stream, bytes, false)
    };
    let want = "
                            1 2 3 4 5 6 7 8
        DATA                U U U U d d U d
        empty DATA          U U U U . . U .
        request             U U E E E E U E
        response            U U h h E E U E
        trailers            U U E E t t U t
        CANCEL_PUSH         I I U U U U U U
        SETTINGS            U U U U U U U U
        PUSH_PROMISE        U U I I I I I I
        GOAWAY              g g U U U U U U
        MAX_PUSH_ID         U U U U U U U U
        PRIORITY_UPDATE     U U U U U U U U
        PRIORITY_UPD., push U U U U U U U U
        HTTP/2 PRIORITY     U U U U U U U U
        HTTP/2 PING         U U U U U U U U
        HTTP/2 WINDOW       U U U U U U U U
        HTTP/2 CONTIN.      U U U U U U U U
        unknown             . . . . . . . .
        unknown, long       . . . . . . . .
    ";
    check(got, places.len(), want);
}

#[test]
fn nothing_comes_before_settings() {
    for (name, bytes) in frames() {
        let want = if name == "SETTINGS" {
            "settings"
        } else {
            "close"
        };
        let begin = || {
            let mut talk = server::Conversation::unopened(Settings::default());
            talk.sends(CONTROL, varint(0));
            talk
        };
        let got = server::outcome(begin, CONTROL, &bytes, false);
        assert!(got[0].starts_with(want), "{name} sent by a client: {got:?}");
        let begin = || {
            let mut talk = client::Conversation::unopened(ClientSettings::default());
            talk.server_sends(SERVER_CONTROL, varint(0));
            talk
        };
        let got = client::outcome(begin, SERVER_CONTROL, &bytes, false);
        assert!(got[0].starts_with(want), "{name} sent by a server: {got:?}");
    }
}

#[test]
fn nothing_on_streams_of_unknown_types_means_anything() {
    for (name, bytes) in frames() {
        let begin = || {
            let mut talk = server::Conversation::new();
            talk.sends(14, varint(0x21));
            talk
        };
        let got = server::outcome(begin, 14, &bytes, false);
        assert_eq!(got, Vec::<String>::new(), "{name} sent by a client");
        let begin = || {
            let mut talk = client::Conversation::new();
            talk.server_sends(15, varint(0x21));
            talk
        };
        let got = client::outcome(begin, 15, &bytes, false);
        assert_eq!(got, Vec::<String>::new(), "{name} sent by a server");
    }
}
