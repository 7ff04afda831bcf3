//! A test server whose handlers wait, stream in either direction, fail or panic.
//!
//! The test controls the handlers by requests on other connections: a request for `/go/NAME` releases the handler `NAME`; a request
//! for `/await/EVENT` is answered once the event has happened.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::echo::Echo;
use crate::embedded::Embedded;
use crate::http2_client::Client;
use crate::trick::{Tricks, paths_of_tricks, tricks};
use bytes::Bytes;
use h2o_config::Directive;
use h2o_exchange::{
    Body, BodyError, BodyPipe, BodySource, BodyUse, Exchange, Handler, Outcome, RequestBody,
    Response, Scope, Trailers,
};
use h2o_http::{Headers, Name, StatusCode};

/// State that the handlers of a test server share: the server has one worker, and the state belongs to its thread.
#[derive(Default)]
struct Stage {
    permits: HashMap<String, usize>,
    events: Vec<String>,
    /// Wakers of all waiting handlers.
    waiting: Vec<Waker>,
}

thread_local! {
    static STAGE: RefCell<Stage> = RefCell::default();
}

fn on_stage<T>(act: impl FnOnce(&mut Stage) -> T) -> T {
    STAGE.with_borrow_mut(act)
}

fn note(event: String) {
    let waiting = on_stage(|stage| {
        stage.events.push(event);
        std::mem::take(&mut stage.waiting)
    });
    waiting.into_iter().for_each(Waker::wake);
}

fn poll_permit(name: &str, context: &mut Context<'_>) -> Poll<()> {
    on_stage(|stage| match stage.permits.get_mut(name) {
        Some(permits) if *permits > 0 => {
            *permits -= 1;
            Poll::Ready(())
        }
        _ => {
            stage.waiting.push(context.waker().clone());
            Poll::Pending
        }
    })
}

async fn permit(name: &str) {
    poll_fn(|context| poll_permit(name, context)).await;
}

/// Records the event `dropped-NAME` when the handler that owns this guard is dropped.
struct Guard(String);

impl Drop for Guard {
    fn drop(&mut self) {
        note(format!("dropped-{}", self.0));
    }
}

#[derive(Clone, Copy)]
enum Trick {
    Go,
    Await,
    Events,
    Now,
    Big,
    /// Answers when the test releases the handler.
    Wait,
    /// Pulls the request body, and answers with its length and checksum.
    Pull,
    /// Pulls one piece of the body each time that the test releases the handler.
    Paced,
    /// Sends the request body back in its response.
    Echo,
    /// Reads the whole request body as fast as it comes, and answers with a body of unknown length.
    Swallow,
    /// Sends the request body back like [`Trick::Echo`], but ends the tunnel with a text when the test releases the handler.
    Tunnel,
    Panic,
    LaterPanic,
    /// Responds with a body that ends in a failure of this server.
    Local,
    Failed,
    Short,
    Long,
    Panics,
    /// Responds with a body whose source returns more bytes at once than the server asked for.
    Lump,
    /// Reports that the request was not processed, so that the client may retry it.
    Refuse,
    /// Responds with a body and trailers. The values are the announced length, if any, and when the body source knows the trailers.
    Trailed(Option<u64>, Says),
}

/// When the source of a response's body knows its trailers.
#[derive(Clone, Copy)]
enum Says {
    AtOnce,
    AtTheEnd,
    /// At the end of the body the source says that there are no trailers.
    Nothing,
}

fn text(text: impl Into<Bytes>) -> Response {
    Response::new(StatusCode::OK, Headers::new(), Body::Bytes(text.into()))
}

fn stream(length: Option<u64>, source: impl BodySource + 'static) -> Outcome {
    let body = Body::Stream(Box::new(source));
    let mut response = Response::new(StatusCode::OK, Headers::new(), body);
    response.length = length;
    Outcome::Done(response)
}

/// A checksum: the sum of the bytes, each weighted by its position.
pub(crate) fn checksum(content: &[u8]) -> u64 {
    (1..)
        .zip(content)
        .fold(0, |sum: u64, (at, byte)| sum + at * u64::from(*byte))
}

fn pipe_of(exchange: &mut Exchange) -> Rc<BodyPipe> {
    match std::mem::take(&mut exchange.body) {
        RequestBody::Stream(pipe) => pipe,
        _ => panic!("the content was there before the handler ran"),
    }
}

impl Handler for Trick {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let path = String::from_utf8_lossy(exchange.request.path()).into_owned();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        match self {
            Self::Go => {
                let waiting = on_stage(|stage| {
                    *stage.permits.entry(name).or_default() += 1;
                    std::mem::take(&mut stage.waiting)
                });
                waiting.into_iter().for_each(Waker::wake);
                Outcome::Done(text("gone"))
            }
            Self::Await => Outcome::Later(Box::pin(async move {
                poll_fn(|context| {
                    on_stage(|stage| {
                        if stage.events.contains(&name) {
                            return Poll::Ready(());
                        }
                        stage.waiting.push(context.waker().clone());
                        Poll::Pending
                    })
                })
                .await;
                Outcome::Done(text("happened"))
            })),
            Self::Events => Outcome::Done(text(on_stage(|stage| stage.events.join(" ")))),
            Self::Now => Outcome::Done(text("now")),
            Self::Big => Outcome::Done(text(vec![b'b'; 100_000])),
            Self::Wait => {
                note(format!("began-{name}"));
                Outcome::Later(Box::pin(async move {
                    let _guard = Guard(name.clone());
                    permit(&name).await;
                    Outcome::Done(text("waited"))
                }))
            }
            Self::Pull | Self::Paced => {
                note(format!("began-{name}"));
                let pipe = pipe_of(exchange);
                let is_paced = matches!(self, Self::Paced);
                Outcome::Later(Box::pin(async move {
                    let _guard = Guard(name.clone());
                    let mut content = Vec::new();
                    for number in 1.. {
                        if is_paced {
                            permit(&name).await;
                        }
                        match poll_fn(|context| pipe.poll_next(context)).await {
                            Some(Ok(piece)) => content.extend_from_slice(&piece),
                            Some(Err(_)) => return Outcome::Done(text("broken")),
                            None => break,
                        }
                        note(format!("bytes-{name}-{}", content.len()));
                        note(format!("took-{name}-{number}"));
                    }
                    let sum = checksum(&content);
                    Outcome::Done(text(format!("{} {sum}", content.len())))
                }))
            }
            Self::Echo => {
                note(format!("began-{name}"));
                stream(None, Echo::new(pipe_of(exchange)))
            }
            Self::Swallow => {
                let content = pipe_of(exchange).take_whole();
                assert!(content.is_some(), "the content has arrived completely");
                stream(None, Pieces(2, None))
            }
            Self::Tunnel => stream(
                None,
                Tunnel {
                    input: Some(pipe_of(exchange)),
                    is_over: false,
                },
            ),
            Self::Panic => panic!("this panic is part of the test"),
            Self::LaterPanic => Outcome::Later(Box::pin(async {
                tokio::task::yield_now().await;
                panic!("this later panic is part of the test")
            })),
            Self::Local => stream(None, Pieces(2, Some(Failure::Local))),
            Self::Failed => stream(None, Pieces(2, Some(Failure::Failed))),
            Self::Short => stream(Some(25), Pieces(2, None)),
            Self::Long => stream(Some(15), Pieces(3, None)),
            Self::Panics => stream(None, Pieces(2, Some(Failure::Panic))),
            Self::Lump => stream(None, Lump(Some(lump()))),
            Self::Refuse => {
                let mut response = text("refused");
                response.is_refusal = true;
                Outcome::Later(Box::pin(async {
                    tokio::task::yield_now().await;
                    Outcome::Done(response)
                }))
            }
            Self::Trailed(length, says) => stream(
                *length,
                Trailed {
                    pieces: Pieces(2, None),
                    says: *says,
                    is_over: false,
                },
            ),
        }
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        let streams = matches!(
            self,
            Self::Pull | Self::Paced | Self::Echo | Self::Swallow | Self::Tunnel | Self::Panic
        );
        if streams {
            BodyUse::Stream
        } else {
            BodyUse::Whole
        }
    }
}

struct Tunnel {
    input: Option<Rc<BodyPipe>>,
    is_over: bool,
}

impl BodySource for Tunnel {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(input) = &self.input {
            match input.poll_next(context) {
                Poll::Ready(None) => {}
                other => return other,
            }
            self.input = None;
            note("input-ended".to_owned());
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        poll_permit("bye", context).map(|()| {
            self.is_over = true;
            Some(Ok("goodbye".into()))
        })
    }

    fn retained(&self) -> usize {
        0
    }
}

#[derive(Clone, Copy)]
enum Failure {
    Local,
    Failed,
    Panic,
}

/// The source of a response's body that returns all of its bytes at once.
struct Lump(Option<Bytes>);

impl BodySource for Lump {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn retained(&self) -> usize {
        0
    }
}

pub(crate) fn lump() -> Bytes {
    (0..100_000u32)
        .flat_map(|at| at.to_be_bytes())
        .collect::<Vec<u8>>()
        .into()
}

/// A response body in pieces of ten bytes, and how it ends.
struct Pieces(u32, Option<Failure>);

impl BodySource for Pieces {
    fn poll_next(
        &mut self,
        _: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.0 > 0 {
            self.0 -= 1;
            return Poll::Ready(Some(Ok("0123456789".into())));
        }
        Poll::Ready(match self.1 {
            None => None,
            Some(Failure::Local) => Some(Err(BodyError::file_shrunk())),
            Some(Failure::Failed) => Some(Err(BodyError::Failed("the well ran dry".into()))),
            Some(Failure::Panic) => panic!("this panic in the content is part of the test"),
        })
    }

    fn retained(&self) -> usize {
        0
    }
}

/// A response body with trailers, in pieces of ten bytes.
struct Trailed {
    pieces: Pieces,
    says: Says,
    is_over: bool,
}

impl BodySource for Trailed {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let piece = self.pieces.poll_next(context, max);
        self.is_over = matches!(piece, Poll::Ready(None));
        piece
    }

    fn trailers(&mut self) -> Trailers {
        match self.says {
            Says::AtTheEnd | Says::Nothing if !self.is_over => Trailers::Unknown,
            Says::Nothing => Trailers::None,
            Says::AtOnce | Says::AtTheEnd => {
                let mut fields = Headers::new();
                fields.push(Name::from_lower("grpc-status"), b"0");
                Trailers::Fields(fields)
            }
        }
    }

    fn retained(&self) -> usize {
        0
    }
}

impl Tricks for Trick {
    const ALL: &[(&str, Self)] = &[
        ("go", Self::Go),
        ("await", Self::Await),
        ("events", Self::Events),
        ("now", Self::Now),
        ("big", Self::Big),
        ("wait", Self::Wait),
        ("pull", Self::Pull),
        ("paced", Self::Paced),
        ("echo", Self::Echo),
        ("swallow", Self::Swallow),
        ("tunnel", Self::Tunnel),
        ("panic", Self::Panic),
        ("later-panic", Self::LaterPanic),
        ("local", Self::Local),
        ("failed", Self::Failed),
        ("short", Self::Short),
        ("long", Self::Long),
        ("panics", Self::Panics),
        ("lump", Self::Lump),
        ("refuse", Self::Refuse),
        ("trailers", Self::Trailed(None, Says::AtTheEnd)),
        ("trailers-known", Self::Trailed(Some(20), Says::AtOnce)),
        ("trailers-later", Self::Trailed(Some(20), Says::AtTheEnd)),
        ("trailers-none", Self::Trailed(Some(20), Says::Nothing)),
        ("trailers-long", Self::Trailed(Some(15), Says::AtTheEnd)),
    ];
}

static DIRECTIVES: [Directive<Scope>; 1] = [tricks::<Trick>()];

/// A running server, with a path for each test behaviour, that has the behaviour's name.
pub(crate) struct Running {
    pub(crate) server: Embedded,
    folder: tempfile::TempDir,
}

impl Running {
    /// Starts a server with an additional global setting.
    pub(crate) fn start(setting: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let paths = paths_of_tricks::<Trick>();
        let server = Embedded::start(&DIRECTIVES, |port| {
            format!(
                "num-threads: 1\n{setting}\nlisten: {{ host: 127.0.0.1, port: {port} }}\naccess-log:\n  path: {}\n  format: '%U %s %{{http2.stream-id}}x'\nhosts:\n  default:\n    paths:\n{paths}",
                log.display()
            )
        });
        Self { server, folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.server.port)
    }

    /// Sends an HTTP/1 request on a new connection, and returns the response.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.server.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .unwrap_or_else(|error| panic!("{path}: {error}; {}", self.log_so_far()));
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub(crate) fn log_so_far(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn go(&self, name: &str) {
        assert_eq!(self.get(&format!("/go/{name}")), "gone");
    }

    pub(crate) fn wait_for(&self, event: &str) {
        assert_eq!(self.get(&format!("/await/{event}")), "happened");
    }

    /// Returns how many bytes of its request body the handler `name` has taken.
    pub(crate) fn bytes_taken(&self, name: &str) -> usize {
        let events = self.events();
        let (_, last) = events.rsplit_once(&format!("bytes-{name}-")).unwrap();
        let end = last.find(|c: char| !c.is_ascii_digit());
        last[..end.unwrap_or(last.len())].parse().unwrap()
    }

    pub(crate) fn events(&self) -> String {
        self.get("/events")
    }

    /// Stops the server, and returns the log lines of HTTP/2 requests.
    pub(crate) fn log(mut self) -> Vec<String> {
        self.server.stop();
        let text = self.log_so_far();
        let lines = text.lines().filter(|line| !line.ends_with(" -"));
        lines.map(str::to_owned).collect()
    }
}
