//! Every kind of response body with every call of the trait `BodySource`: announced length, memory, and what a wrapping
//! filter sees.

use std::io::Write as _;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_exchange::{
    Body, BodyError, BodySource, FileRange, OpenFile, SpliceSource, Trailers, retained,
};
use h2o_http::{Headers, Known};

/// A body as from a backend: it has trailers, reads ahead from the backend, and ends with an error if it is truncated.
struct Relayed {
    left: Vec<Bytes>,
    error: Option<&'static str>,
    trailers: Option<Headers>,
    ahead: usize,
}

impl BodySource for Relayed {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let Some(first) = self.left.first_mut() else {
            let error = self.error.take();
            return Poll::Ready(error.map(|text| Err(BodyError::Failed(text.to_owned()))));
        };
        let piece = first.split_to(max.min(first.len()));
        if first.is_empty() {
            self.left.remove(0);
        }
        Poll::Ready(Some(Ok(piece)))
    }

    fn trailers(&mut self) -> Trailers {
        if !self.left.is_empty() {
            return Trailers::Unknown;
        }
        self.trailers
            .take()
            .map_or(Trailers::None, Trailers::Fields)
    }

    fn poll_ahead(&mut self, _: &mut Context<'_>) {
        self.ahead += 10;
    }

    fn retained(&self) -> usize {
        self.ahead + self.left.iter().map(retained).sum::<usize>()
    }
}

/// A body source of a filter, which forwards every call to the source that it wraps.
struct Wrapper(Box<dyn BodySource>);

impl BodySource for Wrapper {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.0.poll_next(context, max)
    }

    fn trailers(&mut self) -> Trailers {
        self.0.trailers()
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.0.poll_ahead(context);
    }

    fn retained(&self) -> usize {
        self.0.retained()
    }

    fn splice(&mut self) -> Option<&mut dyn SpliceSource> {
        self.0.splice()
    }
}

fn file(len: u64) -> Body {
    let fd = rustix::fs::memfd_create("body", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(fd.expect("the system can make a file in memory"));
    file.write_all(b"0123456789")
        .expect("the file in memory can be written");
    let file = OpenFile::new(file.into());
    Body::File(FileRange {
        file,
        offset: 2,
        len,
    })
}

fn relayed(pieces: &[&str], error: Option<&'static str>, has_trailers: bool) -> Body {
    let mut trailers = Headers::new();
    trailers.push(Known::Date, b"today");
    let piece = |piece: &&str| Bytes::copy_from_slice(piece.as_bytes());
    Body::Stream(Box::new(Relayed {
        left: pieces.iter().map(piece).collect(),
        error,
        trailers: has_trailers.then_some(trailers),
        ahead: 0,
    }))
}

/// Bytes that a body shares with other users of the memory, like those of the content cache.
static CACHED: &[u8] = b"cached";

struct Kind {
    name: &'static str,
    make: fn() -> Body,
    /// The body's announced length, and whether it is known to be empty.
    announced: (Option<u64>, bool),
    /// Bytes of memory that the body holds before the first pull, and after two bytes were pulled.
    retained: [usize; 2],
    /// The body, as pulled in pieces of at most four bytes.
    content: &'static [&'static str],
    end: &'static str,
    /// The body's trailers before its first piece and at its end.
    trailers: [&'static str; 2],
}

const KINDS: [Kind; 10] = [
    Kind {
        name: "nothing",
        make: || Body::Empty,
        announced: (Some(0), true),
        retained: [0, 0],
        content: &[],
        end: "end",
        trailers: ["none", "none"],
    },
    Kind {
        name: "memory",
        make: || Body::Bytes(b"0123456789".to_vec().into()),
        announced: (Some(10), false),
        // Bytes that were pulled share the body's memory until they are dropped.
        retained: [10, 8],
        content: &["0123", "4567", "89"],
        end: "end",
        trailers: ["none", "none"],
    },
    Kind {
        name: "no bytes in memory",
        make: || Body::Bytes(Bytes::new()),
        announced: (Some(0), true),
        retained: [0, 0],
        content: &[],
        end: "end",
        trailers: ["none", "none"],
    },
    Kind {
        name: "memory of the content cache",
        make: || Body::Bytes(Bytes::from_static(CACHED)),
        announced: (Some(6), false),
        retained: [0, 0],
        content: &["cach", "ed"],
        end: "end",
        trailers: ["none", "none"],
    },
    Kind {
        name: "part of a file",
        make: || file(5),
        announced: (Some(5), false),
        retained: [0, 0],
        content: &["2345", "6"],
        end: "end",
        trailers: ["none", "none"],
    },
    Kind {
        name: "no part of a file",
        make: || file(0),
        announced: (Some(0), true),
        retained: [0, 0],
        content: &[],
        end: "end",
        trailers: ["none", "none"],
    },
    Kind {
        name: "more than a file has",
        make: || file(100),
        announced: (Some(100), false),
        retained: [0, 0],
        content: &["2345", "6789"],
        end: "error: the file became shorter while it was being sent",
        trailers: ["none", "none"],
    },
    Kind {
        name: "relayed",
        make: || relayed(&["01234", "5"], None, false),
        announced: (None, false),
        retained: [6, 4],
        content: &["0123", "4", "5"],
        end: "end",
        trailers: ["unknown", "none"],
    },
    Kind {
        name: "relayed with trailers",
        make: || relayed(&["01234"], None, true),
        announced: (None, false),
        retained: [5, 3],
        content: &["0123", "4"],
        end: "end",
        trailers: ["unknown", "date: today"],
    },
    Kind {
        name: "relayed and cut off",
        make: || relayed(&["01"], Some("upstream closed the connection"), true),
        announced: (None, false),
        retained: [2, 0],
        content: &["01"],
        end: "error: upstream closed the connection",
        // Trailers are only asked for after a body without error, as engines do.
        trailers: ["unknown", "date: today"],
    },
];

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime starts").block_on(test)
}

async fn next(source: &mut dyn BodySource, max: usize) -> Option<Result<Bytes, BodyError>> {
    std::future::poll_fn(|context| source.poll_next(context, max)).await
}

fn trailers(source: &mut dyn BodySource) -> String {
    match source.trailers() {
        Trailers::None => "none".to_owned(),
        Trailers::Unknown => "unknown".to_owned(),
        Trailers::Fields(fields) => fields
            .iter()
            .map(|field| format!("{}: {}", field.name.as_str(), field.value.escape_ascii()))
            .collect(),
    }
}

#[test]
fn every_kind_of_body_announces_what_it_gives_plain_and_wrapped() {
    for kind in KINDS {
        let name = kind.name;
        let body = (kind.make)();
        assert_eq!((body.len(), body.is_empty()), kind.announced, "{name}");
        assert_eq!(body.retained(), kind.retained[0], "{name}");
        for is_wrapped in [false, true] {
            let mut source = (kind.make)().into_source();
            if is_wrapped {
                let wrapped = Body::Stream(Box::new(Wrapper(source)));
                assert_eq!(wrapped.retained(), kind.retained[0], "{name}, wrapped");
                assert_eq!(wrapped.len(), None, "a filter may change the length");
                source = wrapped.into_source();
            }
            assert!(source.splice().is_none(), "{name}");
            assert_eq!(trailers(&mut *source), kind.trailers[0], "{name}");
            let mut content = Vec::new();
            let end = loop {
                match run(next(&mut *source, 4)) {
                    None => break "end".to_owned(),
                    Some(Err(error)) => break format!("error: {error}"),
                    Some(Ok(piece)) => content.push(piece),
                }
            };
            assert_eq!(content, kind.content, "{name}");
            assert_eq!(end, kind.end, "{name}");
            assert_eq!(trailers(&mut *source), kind.trailers[1], "{name}");
            assert_eq!(
                trailers(&mut *source),
                "none",
                "{name}: trailers are handed out once"
            );
        }
    }
}

#[test]
fn memory_counts_for_a_body_as_long_as_the_body_alone_holds_it() {
    for kind in KINDS {
        if kind.content.is_empty() || kind.name.contains("file") {
            continue;
        }
        let mut source = (kind.make)().into_source();
        let piece = run(next(&mut *source, 2))
            .expect("the body has another piece")
            .expect("the body is read without an error");
        assert_eq!(piece.len(), 2);
        drop(piece);
        assert_eq!(source.retained(), kind.retained[1], "{}", kind.name);
    }
    let bytes = Bytes::from(vec![b'x'; 100]);
    let body = Body::Bytes(bytes.clone());
    assert_eq!(
        body.retained(),
        0,
        "the content cache holds the same bytes, so they do not count"
    );
    drop(bytes);
    assert_eq!(body.retained(), 100);
}

#[test]
fn content_is_taken_ahead_where_a_source_can() {
    let mut context = Context::from_waker(Waker::noop());
    for (kind, want) in KINDS.iter().map(|kind| {
        let is_relayed = kind.name.starts_with("relayed");
        (kind, if is_relayed { 20 } else { 0 })
    }) {
        let mut source: Box<dyn BodySource> = Box::new(Wrapper((kind.make)().into_source()));
        let before = source.retained();
        source.poll_ahead(&mut context);
        source.poll_ahead(&mut context);
        assert_eq!(source.retained() - before, want, "{}", kind.name);
    }
}
