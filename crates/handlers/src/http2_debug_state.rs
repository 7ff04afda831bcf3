//! `http2-debug-state`: the state of an HTTP/2 connection as JSON, requested over that connection itself
//! (draft-benfield-http2-debug-state-01).

use std::fmt::Write;

use h2o_config::{Directive, Kinds, Level, Levels, Pass};
use h2o_exchange::{Body, BodyUse, DebugState, Exchange, Handler, Outcome, Response, Scope};
use h2o_http::{Known, StatusCode, Version};

const PATH: &str = "/.well-known/h2/state";

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "http2-debug-state",
    levels: Levels::HOST,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "`minimum` or `hpack`",
    default: "",
    help: "Answers `/.well-known/h2/state` with the state of the HTTP/2 connection itself as JSON: settings, windows, \
           streams; with `hpack` also the tables of header compression, and so headers of earlier requests. Other HTTP \
           versions get 404 there.",
    apply: |scope, command| {
        let detail = match command.node.one_of(&["minimum", "hpack"])? {
            0 => DebugState::Minimum,
            _ => DebugState::Hpack,
        };
        let route = scope.enter(Level::Path, |scope| {
            scope.path = Some(PATH.into());
            scope.handlers.push(Box::new(Http2DebugState { detail }));
            Ok(scope.build_path(PATH))
        })?;
        scope.paths.push(route);
        Ok(())
    },
}];

struct Http2DebugState {
    detail: DebugState,
}

impl Handler for Http2DebugState {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    /// The driver of the HTTP/2 connection adds the content and the fields that depend on it.
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.request.version != Version::Http2 {
            return Outcome::Declined;
        }
        let Some(stream) = exchange.protocol.http2_mut() else {
            return Outcome::Declined;
        };
        stream.debug_state = Some(self.detail);
        let mut headers = exchange.headers();
        headers.push(Known::ContentType, b"application/json; charset=utf-8");
        headers.push(Known::CacheControl, b"no-cache, no-store");
        Outcome::Done(Response::new(StatusCode::OK, headers, Body::Empty))
    }
}

/// The state of an HTTP/2 connection, for a report in JSON that people read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Http2Report {
    /// The server's settings.
    pub settings: SettingsReport,
    /// The client's settings; their initial values until the client has sent them.
    pub peer_settings: SettingsReport,
    /// Receive window of the connection in bytes.
    pub conn_flow_in: i64,
    /// Send window of the connection in bytes.
    pub conn_flow_out: i64,
    /// The streams in ascending order of their identifiers.
    pub streams: Vec<StreamReport>,
    /// The dynamic tables of HPACK; `None` to leave them out.
    pub hpack: Option<HpackReport>,
}

/// The settings of one side of an HTTP/2 connection (RFC 9113 §6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingsReport {
    /// The value of SETTINGS_HEADER_TABLE_SIZE.
    pub header_table_size: u32,
    /// The value of SETTINGS_ENABLE_PUSH, 0 or 1.
    pub enable_push: u32,
    /// The value of SETTINGS_MAX_CONCURRENT_STREAMS; `u32::MAX` for no limit.
    pub max_concurrent_streams: u32,
    /// The value of SETTINGS_INITIAL_WINDOW_SIZE.
    pub initial_window_size: u32,
    /// The value of SETTINGS_MAX_FRAME_SIZE.
    pub max_frame_size: u32,
}

/// The default has the initial values of the settings, before any SETTINGS frame.
impl Default for SettingsReport {
    fn default() -> Self {
        Self {
            header_table_size: 4096,
            enable_push: 1,
            max_concurrent_streams: u32::MAX,
            initial_window_size: 65_535,
            max_frame_size: 16_384,
        }
    }
}

/// The state of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// The identifier of the stream.
    pub id: u32,
    /// The state of the stream: `OPEN`, `HALF_CLOSED_REMOTE` or `RESERVED_LOCAL`.
    pub state: &'static str,
    /// Receive window of the stream in bytes.
    pub flow_in: i64,
    /// Send window of the stream in bytes.
    pub flow_out: i64,
    /// Bytes of the request's content that were received.
    pub data_in: u64,
    /// Bytes of the response's content that were sent.
    pub data_out: u64,
    /// When the stream began, in seconds since the Unix epoch.
    pub created: u64,
}

/// The dynamic tables of HPACK (RFC 7541 §2.3.2) as names and values, newest entry first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HpackReport {
    /// The dynamic table of the server's decoder, which the client fills.
    pub inbound: Vec<(Vec<u8>, Vec<u8>)>,
    /// The dynamic table of the server's encoder.
    pub outbound: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Http2Report {
    /// The state as indented JSON. H2O compatibility: H2O has the same members in the same order.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = Json::default();
        json.object(|json| {
            json.string("version", b"draft-01");
            json.member("settings");
            json.settings(&self.settings);
            json.member("peerSettings");
            json.settings(&self.peer_settings);
            json.number("connFlowIn", self.conn_flow_in);
            json.number("connFlowOut", self.conn_flow_out);
            json.member("streams");
            json.object(|json| {
                for stream in &self.streams {
                    json.member(itoa::Buffer::new().format(stream.id));
                    json.stream(stream);
                }
            });
            if let Some(hpack) = &self.hpack {
                json.member("hpack");
                json.object(|json| {
                    json.number("inboundTableSize", hpack.inbound.len());
                    json.member("inboundDynamicHeaderTable");
                    json.table(&hpack.inbound);
                    json.number("outboundTableSize", hpack.outbound.len());
                    json.member("outboundDynamicHeaderTable");
                    json.table(&hpack.outbound);
                });
            }
        });
        json.out.push('\n');
        json.out
    }
}

/// A writer of JSON: one member per line, indented by two blanks per level.
#[derive(Default)]
struct Json {
    out: String,
    depth: usize,
}

impl Json {
    fn object(&mut self, members: impl FnOnce(&mut Self)) {
        self.group(['{', '}'], members);
    }

    fn group(&mut self, [open, close]: [char; 2], content: impl FnOnce(&mut Self)) {
        self.out.push(open);
        self.depth += 1;
        content(self);
        self.depth -= 1;
        if !self.out.ends_with(open) {
            self.line();
        }
        self.out.push(close);
    }

    fn line(&mut self) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n("  ", self.depth));
    }

    /// Begins the line of a member of a JSON object or of an element of an array.
    fn item(&mut self) {
        if !self.out.ends_with(['{', '[']) {
            self.out.push(',');
        }
        self.line();
    }

    /// Begins a member of a JSON object. Its name needs no escapes.
    fn member(&mut self, name: &str) {
        self.item();
        self.quoted(name.as_bytes());
        self.out.push_str(": ");
    }

    fn number(&mut self, name: &str, number: impl itoa::Integer) {
        self.member(name);
        self.out.push_str(itoa::Buffer::new().format(number));
    }

    fn string(&mut self, name: &str, text: &[u8]) {
        self.member(name);
        self.quoted(text);
    }

    /// Writes a string. Text that is not UTF-8 is read as ISO-8859-1.
    fn quoted(&mut self, text: &[u8]) {
        self.out.push('"');
        for chunk in text.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter {
                    '"' | '\\' => self.out.extend(['\\', letter]),
                    // Control characters that JSON allows in strings, such as DEL, are escaped as well, because people
                    // could not read them.
                    letter if letter.is_control() => self.escaped(letter.into()),
                    letter => self.out.push(letter),
                }
            }
            for &byte in chunk.invalid() {
                self.escaped(byte.into());
            }
        }
        self.out.push('"');
    }

    fn escaped(&mut self, code: u32) {
        // Writing to a string cannot fail.
        let _ = write!(self.out, "\\u{code:04x}");
    }

    fn settings(&mut self, settings: &SettingsReport) {
        self.object(|json| {
            json.number("SETTINGS_HEADER_TABLE_SIZE", settings.header_table_size);
            json.number("SETTINGS_ENABLE_PUSH", settings.enable_push);
            json.number(
                "SETTINGS_MAX_CONCURRENT_STREAMS",
                settings.max_concurrent_streams,
            );
            json.number("SETTINGS_INITIAL_WINDOW_SIZE", settings.initial_window_size);
            json.number("SETTINGS_MAX_FRAME_SIZE", settings.max_frame_size);
        });
    }

    fn stream(&mut self, stream: &StreamReport) {
        self.object(|json| {
            json.string("state", stream.state.as_bytes());
            json.number("flowIn", stream.flow_in);
            json.number("flowOut", stream.flow_out);
            json.number("dataIn", stream.data_in);
            json.number("dataOut", stream.data_out);
            json.number("created", stream.created);
        });
    }

    fn table(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) {
        self.group(['[', ']'], |json| {
            for (name, value) in entries {
                json.item();
                json.group(['[', ']'], |json| {
                    for text in [name, value] {
                        json.item();
                        json.quoted(text);
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, request, shown};
    use h2o_exchange::{Http2Stream, Protocol};

    const SETUP: Setup = Setup::new(DIRECTIVES, None);

    #[test]
    fn only_http_2_has_a_state() {
        for (value, want) in [
            ("minimum", DebugState::Minimum),
            ("HPACK", DebugState::Hpack),
        ] {
            let host = format!("http2-debug-state: {value}");
            let site = SETUP.read(["", &host, ""]).unwrap();
            let mut exchange = request(site, "GET", "default", PATH);
            let handler = Http2DebugState { detail: want };
            assert!(matches!(
                handler.on_request(&mut exchange),
                Outcome::Declined
            ));
            exchange.request.version = Version::Http2;
            exchange.protocol = Protocol::Http2(Http2Stream::default());
            let Outcome::Done(response) = handler.on_request(&mut exchange) else {
                panic!("an HTTP/2 request is answered with the state of its connection")
            };
            assert_eq!(exchange.protocol.http2().unwrap().debug_state, Some(want));
            assert_eq!(
                (response.status, shown(&response.headers).as_str()),
                (
                    StatusCode::OK,
                    "content-type: application/json; charset=utf-8\ncache-control: no-cache, no-store"
                )
            );
        }
    }

    #[test]
    fn the_state_is_indented_json() {
        let mut state = Http2Report {
            settings: SettingsReport {
                enable_push: 0,
                max_concurrent_streams: 100,
                ..SettingsReport::default()
            },
            conn_flow_in: 1 << 24,
            conn_flow_out: -1,
            ..Http2Report::default()
        };
        let text = r#"{
  "version": "draft-01",
  "settings": {
    "SETTINGS_HEADER_TABLE_SIZE": 4096,
    "SETTINGS_ENABLE_PUSH": 0,
    "SETTINGS_MAX_CONCURRENT_STREAMS": 100,
    "SETTINGS_INITIAL_WINDOW_SIZE": 65535,
    "SETTINGS_MAX_FRAME_SIZE": 16384
  },
  "peerSettings": {
    "SETTINGS_HEADER_TABLE_SIZE": 4096,
    "SETTINGS_ENABLE_PUSH": 1,
    "SETTINGS_MAX_CONCURRENT_STREAMS": 4294967295,
    "SETTINGS_INITIAL_WINDOW_SIZE": 65535,
    "SETTINGS_MAX_FRAME_SIZE": 16384
  },
  "connFlowIn": 16777216,
  "connFlowOut": -1,
  "streams": {}
}
"#;
        assert_eq!(state.to_json(), text);
        let stream = StreamReport {
            id: 3,
            state: "HALF_CLOSED_REMOTE",
            flow_in: 65_535,
            flow_out: -2,
            data_in: 4,
            data_out: 5,
            created: 1_700_000_000,
        };
        state.streams = vec![stream.clone(), StreamReport { id: 5, ..stream }];
        state.hpack = Some(HpackReport {
            inbound: vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), Vec::new())],
            outbound: Vec::new(),
        });
        let stream = r#"{
      "state": "HALF_CLOSED_REMOTE",
      "flowIn": 65535,
      "flowOut": -2,
      "dataIn": 4,
      "dataOut": 5,
      "created": 1700000000
    }"#;
        let tail = format!(
            r#"  "streams": {{
    "3": {stream},
    "5": {stream}
  }},
  "hpack": {{
    "inboundTableSize": 2,
    "inboundDynamicHeaderTable": [
      [
        "a",
        "1"
      ],
      [
        "b",
        ""
      ]
    ],
    "outboundTableSize": 0,
    "outboundDynamicHeaderTable": []
  }}
}}
"#
        );
        let json = state.to_json();
        assert!(json.ends_with(&tail), "{json}");
    }

    #[test]
    fn any_bytes_make_a_json_string() {
        let cases: &[(&[u8], &str)] = &[
            (b"plain /?=&<>", r#""plain /?=&<>""#),
            (b"\"\\\n\x00\x7f", r#""\"\\\u000a\u0000\u007f""#),
            ("\u{e4}\u{1f600}".as_bytes(), "\"\u{e4}\u{1f600}\""),
            (b"a\xe4b\xff", r#""a\u00e4b\u00ff""#),
            (b"\xf0\x9f", r#""\u00f0\u009f""#),
            ("\u{9b}".as_bytes(), r#""\u009b""#),
            (b"{[", r#""{[""#),
        ];
        for (text, want) in cases {
            let mut json = Json::default();
            json.quoted(text);
            assert_eq!(json.out, *want);
        }
    }

    #[test]
    fn other_values_are_refused() {
        let error = SETUP.read(["", "http2-debug-state: maximum", ""]).err();
        assert!(error.unwrap().to_string().starts_with(
            "[f:1] in command http2-debug-state, argument must be one of: minimum,hpack"
        ));
    }
}
