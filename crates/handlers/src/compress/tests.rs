//! Tests of the compression filter: which responses it compresses, and how their heads and bodies change.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource, CompressHint, Exchange, FilterResult, Response};
use h2o_http::{Known, StatusCode, Version};

use super::testing::expand;
use super::*;
use crate::testing::{Setup, headers, request, shown};

const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

const TYPE: &str = "content-type: text/plain";

/// A response whose body of 1,000 bytes has passed the filter.
struct Filtered {
    exchange: Exchange,
    response: Response,
}

struct Case<'a> {
    config: [&'a str; 3],
    method: &'a str,
    version: Version,
    accept: &'a str,
    status: u16,
    fields: &'a str,
    hint: CompressHint,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            config: ["compress: ON", "", ""],
            method: "GET",
            version: Version::Http11,
            accept: "gzip, br, zstd",
            status: 200,
            fields: TYPE,
            hint: CompressHint::Auto,
        }
    }
}

impl Case<'_> {
    fn run(&self, body: Body) -> Filtered {
        let site = SETUP
            .read(self.config)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut exchange = request(site, self.method, "default", "/");
        exchange.request.version = self.version;
        exchange
            .request
            .headers
            .push(Known::AcceptEncoding, self.accept.as_bytes());
        let status = StatusCode::new(self.status).unwrap();
        let mut response = Response::new(status, headers(self.fields), body);
        response.compress_hint = self.hint;
        let site = Rc::clone(&exchange.site);
        for filter in &site.path(exchange.route).filters {
            let result = filter.on_response(&mut exchange, &mut response);
            assert!(matches!(result, FilterResult::Continue));
        }
        Filtered { exchange, response }
    }

    fn run_on_1000_bytes(&self) -> Filtered {
        self.run(Body::Bytes(vec![b'a'; 1000].into()))
    }

    /// The coding of the response, or `-`; with `v` if `vary` was added.
    fn outcome(&self) -> String {
        let response = self.run_on_1000_bytes().response;
        let coding = response.headers.get(Known::ContentEncoding).unwrap_or(b"-");
        let vary = if response.headers.get(Known::Vary).is_some() {
            " v"
        } else {
            ""
        };
        format!("{}{vary}", coding.escape_ascii())
    }
}

#[test]
fn only_suitable_responses_are_compressed() {
    let case = Case::default;
    let cases = [
        (case(), "br v"),
        (
            Case {
                version: Version::Http10,
                ..case()
            },
            "-",
        ),
        (
            Case {
                version: Version::Http3,
                ..case()
            },
            "br v",
        ),
        (
            Case {
                method: "HEAD",
                ..case()
            },
            "-",
        ),
        (
            Case {
                status: 404,
                ..case()
            },
            "-",
        ),
        (
            Case {
                status: 206,
                ..case()
            },
            "-",
        ),
        (
            Case {
                accept: "",
                ..case()
            },
            "-",
        ),
        (
            Case {
                accept: "gzip;q=1, br;q=1",
                ..case()
            },
            "-",
        ),
        (
            Case {
                accept: "gzip",
                ..case()
            },
            "gzip v",
        ),
        (
            Case {
                accept: "gzip, ZSTD",
                ..case()
            },
            "zstd v",
        ),
        (
            Case {
                fields: "content-type: image/png",
                ..case()
            },
            "-",
        ),
        (
            Case {
                fields: "content-type: text/html; charset=utf-8",
                ..case()
            },
            "br v",
        ),
        (
            Case {
                fields: "",
                ..case()
            },
            "-",
        ),
        (
            Case {
                fields: "content-type: text/plain\ncontent-encoding: gzip",
                ..case()
            },
            "gzip",
        ),
        (
            Case {
                config: ["compress: [gzip]", "", ""],
                ..case()
            },
            "gzip v",
        ),
        (
            Case {
                config: ["compress: [gzip]", "", ""],
                accept: "br",
                ..case()
            },
            "- v",
        ),
        (
            Case {
                config: ["compress: {gzip: 9, zstd: OFF, br: ON}", "", ""],
                accept: "gzip,zstd",
                ..case()
            },
            "gzip v",
        ),
        (
            Case {
                config: ["compress: ON", "gzip: ON", ""],
                ..case()
            },
            "gzip v",
        ),
        (
            Case {
                config: ["compress: ON", "", "gzip: OFF"],
                ..case()
            },
            "-",
        ),
        (
            Case {
                hint: CompressHint::Never,
                ..case()
            },
            "-",
        ),
        (
            Case {
                hint: CompressHint::Always,
                fields: "",
                ..case()
            },
            "br v",
        ),
        (
            Case {
                hint: CompressHint::Gzip,
                fields: "",
                ..case()
            },
            "gzip v",
        ),
        (
            Case {
                hint: CompressHint::Zstd,
                accept: "gzip",
                ..case()
            },
            "-",
        ),
        (
            Case {
                hint: CompressHint::Zstd,
                config: ["compress: [gzip]", "", ""],
                ..case()
            },
            "- v",
        ),
    ];
    for (at, (case, want)) in cases.iter().enumerate() {
        assert_eq!(case.outcome(), *want, "case {at}");
    }
}

#[test]
fn the_minimum_counts_wherever_it_stands_in_its_level() {
    let cases = [
        (["compress-minimum-size: 1001\ncompress: [br]", "", ""], "-"),
        (["compress: [br]\ncompress-minimum-size: 1001", "", ""], "-"),
        (
            ["compress: [br]\ncompress-minimum-size: 1000", "", ""],
            "br v",
        ),
        (
            [
                "compress: ON\ncompress-minimum-size: 1001",
                "",
                "compress: ON",
            ],
            "br v",
        ),
        (["compress: ON", "", "compress-minimum-size: 1001"], "-"),
    ];
    for (config, want) in cases {
        let case = Case {
            config,
            ..Case::default()
        };
        assert_eq!(case.outcome(), want, "{config:?}");
    }
    let short = |config| {
        let response = Case {
            config,
            ..Case::default()
        }
        .run(Body::Bytes(Bytes::from_static(b"a")))
        .response;
        response.headers.get(Known::ContentEncoding).is_some()
    };
    assert!(!short(["compress: ON", "", ""]));
    assert!(short(["compress: [br, zstd, gzip]", "", ""]));
}

#[test]
fn the_head_tells_of_the_coding() {
    let cases = [
        (
            "",
            "vary: accept-encoding\ncontent-encoding: br\naccept-ranges: none",
        ),
        (
            "\netag: \"a\"\naccept-ranges: bytes\nvary: cookie",
            "etag: W/\"a\"\naccept-ranges: none\nvary: cookie, accept-encoding\ncontent-encoding: br",
        ),
        (
            "\netag: W/\"a\"\nvary: Accept-Encoding",
            "etag: W/\"a\"\nvary: Accept-Encoding\ncontent-encoding: br\naccept-ranges: none",
        ),
        (
            "\nvary: cookie\nvary: Accept-Encoding",
            "vary: cookie\nvary: Accept-Encoding\ncontent-encoding: br\naccept-ranges: none",
        ),
    ];
    for (fields, want) in cases {
        let fields = format!("{TYPE}{fields}");
        let response = Case {
            fields: &fields,
            ..Case::default()
        }
        .run_on_1000_bytes()
        .response;
        assert_eq!(
            shown(&response.headers).replace('\\', ""),
            format!("{TYPE}\n{want}")
        );
        assert_eq!(response.length, None);
    }
}

#[test]
fn wrong_values_are_refused() {
    let cases = [
        (
            "compress: maybe",
            "scalar argument must be either of: `OFF`, `ON`",
        ),
        (
            "compress: [deflate]",
            "element of the sequence must be either of: `gzip`, `br`, `zstd`",
        ),
        (
            "compress: {gzip: 0}",
            "value of gzip attribute must be either of `OFF`, `ON` or an integer value between 1 and 9",
        ),
        ("compress: {gzip: 10}", "value of gzip attribute must be"),
        (
            "compress: {br: 12}",
            "value of br attribute must be either of `OFF`, `ON` or an integer between 0 and 11",
        ),
        (
            "compress: {zstd: 23}",
            "value of zstd attribute must be either of `OFF`, `ON` or an integer between 1 and 22",
        ),
        ("compress: {deflate: ON}", "unexpected key:deflate"),
        (
            "compress-minimum-size: x",
            "argument must match the format: %zu",
        ),
        ("gzip: 1", "argument must be one of: OFF,ON"),
    ];
    for (config, want) in cases {
        let refusal = SETUP.refusal(config);
        assert!(refusal.contains(want), "{config}: {refusal}");
    }
}

/// A body that consists of these pieces; `None` is a pause that ends at the next poll.
struct Pieces(std::collections::VecDeque<Option<Bytes>>);

impl Pieces {
    fn body(pieces: &[Option<&'static [u8]>]) -> Body {
        let pieces = pieces.iter().map(|piece| piece.map(Bytes::from_static));
        Body::Stream(Box::new(Self(pieces.collect())))
    }
}

impl BodySource for Pieces {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        match self.0.pop_front() {
            None => Poll::Ready(None),
            Some(None) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Some(mut piece)) => {
                let rest = piece.split_off(max.min(piece.len()));
                if !rest.is_empty() {
                    self.0.push_front(Some(rest));
                }
                Poll::Ready(Some(Ok(piece)))
            }
        }
    }

    fn retained(&self) -> usize {
        0
    }
}

/// Pulls the body of the response in pieces of at most `max` bytes.
async fn pull(filtered: &mut Filtered, max: usize) -> Vec<Result<Bytes, BodyError>> {
    let Body::Stream(source) = &mut filtered.response.body else {
        panic!("the response is compressed, so its body is a stream");
    };
    let mut pieces = Vec::new();
    while let Some(piece) = poll_fn(|context| source.poll_next(context, max)).await {
        assert!(piece.as_ref().is_ok_and(|piece| piece.len() <= max) || piece.is_err());
        let is_error = piece.is_err();
        pieces.push(piece);
        if is_error {
            break;
        }
    }
    pieces
}

fn run<T>(worker: &Rc<h2o_exchange::Worker>, work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(worker.run(work))
}

#[test]
fn each_pause_of_the_source_sends_what_there_is() {
    // At the highest level of each coding another thread compresses, because the level is slow.
    for (config, coding) in [
        ("compress: {gzip: 1}", Coding::Gzip),
        ("compress: {gzip: 9}", Coding::Gzip),
        ("compress: {br: 1}", Coding::Brotli),
        ("compress: {br: 11}", Coding::Brotli),
        ("compress: {zstd: 3}", Coding::Zstd),
        ("compress: {zstd: 19}", Coding::Zstd),
    ] {
        let case = Case {
            config: [config, "", ""],
            ..Case::default()
        };
        let body = Pieces::body(&[
            Some(b"one\n"),
            None,
            Some(b"two\n"),
            Some(b"three\n"),
            None,
            None,
            Some(b"four\n"),
        ]);
        let mut filtered = case.run(body);
        let worker = Rc::clone(&filtered.exchange.worker);
        let pieces = run(&worker, pull(&mut filtered, 100));
        let mut packed = Vec::new();
        let mut seen = Vec::new();
        for piece in pieces {
            packed.extend_from_slice(&piece.unwrap());
            seen.push(String::from_utf8(expand(coding, &packed)).unwrap());
        }
        let want = ["one\n", "one\ntwo\nthree\n", "one\ntwo\nthree\nfour\n"];
        assert_eq!(seen, want, "{config}");
    }
}

#[test]
fn long_bodies_arrive_whole_in_pieces_of_any_size() {
    let content: Vec<u8> = (0..200_000_u32)
        .flat_map(|number| number.to_le_bytes())
        .collect();
    for config in [
        "compress: [gzip]",
        "compress: [br]",
        "compress: [zstd]",
        "compress: {br: 6}",
    ] {
        for max in [7, 100_000] {
            let case = Case {
                config: [config, "", ""],
                ..Case::default()
            };
            let mut filtered = case.run(Body::Bytes(content.clone().into()));
            let coding = filtered
                .response
                .headers
                .get(Known::ContentEncoding)
                .unwrap();
            let coding = Coding::from_token(coding).unwrap();
            let worker = Rc::clone(&filtered.exchange.worker);
            let pieces = run(&worker, pull(&mut filtered, max));
            let packed: Vec<u8> = pieces.into_iter().flat_map(Result::unwrap).collect();
            assert!(expand(coding, &packed) == content, "{config} {max}");
        }
    }
}

#[test]
fn a_body_of_another_length_than_announced_is_an_error() {
    for length in [3, 5] {
        let mut filtered = {
            let case = Case {
                config: ["compress: [gzip]", "", ""],
                ..Case::default()
            };
            let site = SETUP.read(case.config).unwrap();
            let mut exchange = request(site, "GET", "default", "/");
            exchange.request.version = Version::Http11;
            exchange
                .request
                .headers
                .push(Known::AcceptEncoding, b"gzip");
            let mut response = Response::new(
                StatusCode::OK,
                headers(TYPE),
                Pieces::body(&[Some(b"1234")]),
            );
            response.length = Some(length);
            let site = Rc::clone(&exchange.site);
            let _ = site.path(exchange.route).filters[0].on_response(&mut exchange, &mut response);
            Filtered { exchange, response }
        };
        let worker = Rc::clone(&filtered.exchange.worker);
        let pieces = run(&worker, pull(&mut filtered, 100));
        assert!(pieces.last().is_some_and(Result::is_err), "{length}");
    }
}

#[test]
fn a_long_piece_of_work_leaves_the_turn_to_other_connections() {
    let case = Case {
        config: ["compress: [gzip]", "", ""],
        ..Case::default()
    };
    let mut filtered = case.run(Body::Bytes(vec![0; 1_000_000].into()));
    let Body::Stream(source) = &mut filtered.response.body else {
        panic!("the response is compressed, so its body is a stream");
    };
    let worker = &filtered.exchange.worker;
    let mut task = Context::from_waker(std::task::Waker::noop());
    let mut turns = 0;
    loop {
        worker.clock.begin_turn();
        turns += 1;
        // In each turn of the event loop, the source is polled until it has no more output for now.
        let end = loop {
            match source.poll_next(&mut task, 100_000) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
        };
        if end {
            break;
        }
    }
    assert!(turns > 15, "{turns}");
}
