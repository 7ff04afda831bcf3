//! Random plans of requests, and the simulated handler that answers each request as planned.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2o_config::{Directive, Kinds, Levels, Pass};
use h2o_exchange::{
    Body, BodyError, BodyPipe, BodySource, BodyUse, Exchange, FileRange, Handler, OpenFile,
    Outcome, RequestBody, Response, Scope,
};
use h2o_http::{Headers, StatusCode};
use h2o_testkit::Random;

/// The plan of one request and its response.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) id: usize,
    pub(super) is_head: bool,
    /// Length of the request's body in bytes; `None` for no body.
    pub(super) upload: Option<usize>,
    /// Whether the request announces the length of its body.
    pub(super) is_announced: bool,
    /// Whether the client waits for 100 (Continue) before it sends the body.
    pub(super) expects: bool,
    body_use: BodyUse,
    /// Number of events of the simulated backend for which the handler waits: first before it reads the body, then before it
    /// answers.
    waits: (usize, usize),
    reading: Reading,
    pub(super) body: BodyPlan,
}

/// What the simulated handler does with the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    All,
    /// The handler reads this many bytes of the body, then drops it.
    Some(usize),
    /// The handler drops the body at once.
    Nothing,
    /// The handler keeps the body and never reads it.
    Holding,
    /// The handler sends the body back in its response.
    Echo,
    /// The handler answers at once, and reads the body only afterwards.
    Late,
}

/// The plan of a response's body.
#[derive(Clone, Debug)]
pub(super) enum BodyPlan {
    Empty,
    Bytes(usize),
    File(usize),
    Pieces {
        sizes: Vec<usize>,
        /// Whether each piece waits for an event of the simulated backend.
        is_gated: bool,
        is_announced: bool,
        /// Whether the response body ends with an error after its last piece.
        fails: bool,
    },
    /// The response's body is the body of the request.
    Echo,
}

impl Plan {
    /// Makes a random plan. `uploads` says whether most requests have a long body that their handler pulls.
    pub(super) fn new(random: &mut Random, id: usize, uploads: bool) -> Self {
        let uploads = uploads && !random.once_in(4);
        let upload = (uploads || random.once_in(2)).then(|| {
            let most = random.pick(&[1, 200, 70_000, 400_000]);
            random.below(if uploads { 400_000 } else { most })
        });
        let body_use = if uploads {
            BodyUse::Stream
        } else {
            random.pick(&[BodyUse::None, BodyUse::Whole, BodyUse::Stream])
        };
        let is_streaming = upload.is_some() && body_use == BodyUse::Stream;
        let reading = match random.below(6) {
            0 => Reading::Some(random.below(100_000)),
            1 => Reading::Nothing,
            2 => Reading::Holding,
            3 if is_streaming => Reading::Echo,
            4 => Reading::Late,
            _ => Reading::All,
        };
        let body = if reading == Reading::Echo && is_streaming {
            BodyPlan::Echo
        } else {
            match random.below(5) {
                0 => BodyPlan::Empty,
                1 => BodyPlan::File(random.below(300_000)),
                2 => {
                    let most = random.pick(&[10, 10_000, 300_000]);
                    BodyPlan::Bytes(random.below(most))
                }
                _ => {
                    let most = random.pick(&[10, 1000, 100_000]);
                    BodyPlan::Pieces {
                        sizes: (0..random.below(6)).map(|_| random.below(most)).collect(),
                        is_gated: random.once_in(2),
                        is_announced: random.once_in(2),
                        fails: random.once_in(12),
                    }
                }
            }
        };
        Self {
            id,
            is_head: upload.is_none() && random.once_in(8),
            upload,
            is_announced: random.once_in(2),
            expects: upload.is_some() && random.once_in(5),
            body_use,
            waits: (random.pick(&[0, 0, 1]), random.pick(&[0, 0, 1, 2])),
            reading,
            body,
        }
    }

    /// The plan of a request whose handler gets the whole body, if there is one, and answers after `events` events of
    /// the backend.
    pub(super) const fn simple(
        id: usize,
        upload: Option<usize>,
        body_use: BodyUse,
        events: usize,
        body: BodyPlan,
    ) -> Self {
        Self {
            id,
            is_head: false,
            upload,
            is_announced: true,
            expects: false,
            body_use,
            waits: (0, events),
            reading: Reading::All,
            body,
        }
    }

    /// Has the handler answer at once, without reading the request body.
    pub(super) const fn answers_at_once(&mut self) {
        self.reading = Reading::Nothing;
    }

    /// Length of the response's body if it is complete, in bytes.
    pub(super) fn response_len(&self) -> usize {
        match &self.body {
            BodyPlan::Empty => 0,
            BodyPlan::Bytes(len) | BodyPlan::File(len) => *len,
            BodyPlan::Pieces { sizes, .. } => sizes.iter().sum(),
            BodyPlan::Echo => self.upload.unwrap_or(0),
        }
    }

    /// The byte at position `at` of the response's body.
    pub(super) fn response_byte(&self, at: usize) -> u8 {
        match &self.body {
            BodyPlan::Echo => self.request_byte(at),
            _ => byte(self.id + 77, at),
        }
    }

    /// The byte at position `at` of the request's body.
    pub(super) fn request_byte(&self, at: usize) -> u8 {
        byte(self.id, at)
    }

    /// Whether the handler echoes the request body, so that the response lasts as long as the request.
    pub(super) const fn is_talk(&self) -> bool {
        matches!(self.body, BodyPlan::Echo)
    }

    /// Whether the response's body ends with an error.
    pub(super) const fn fails(&self) -> bool {
        matches!(self.body, BodyPlan::Pieces { fails: true, .. })
    }
}

fn byte(id: usize, at: usize) -> u8 {
    (id * 31 + at * 7 + at / 256).to_le_bytes()[0]
}

fn bytes(id: usize, from: usize, len: usize) -> Bytes {
    (from..from + len).map(|at| byte(id, at)).collect()
}

/// State of the handlers and backends in one simulation.
#[derive(Default)]
pub(super) struct Stage {
    plans: Vec<Plan>,
    /// For each plan: how many backend events have happened so far, and the waker of the handler that waits for the
    /// next one.
    events: Vec<(usize, Option<Waker>)>,
    /// Number of steps that the handlers have taken.
    steps: u64,
}

thread_local! {
    static STAGE: RefCell<Stage> = RefCell::default();
}

/// Sets the state of the handlers and backends to the start of a run with these plans.
pub(super) fn stage(plans: Vec<Plan>) {
    let events = plans.iter().map(|_| (0, None)).collect();
    STAGE.replace(Stage {
        plans,
        events,
        steps: 0,
    });
}

/// Number of steps that the handlers have taken in this run.
pub(super) fn steps() -> u64 {
    STAGE.with_borrow(|stage| stage.steps)
}

fn note_step() {
    STAGE.with_borrow_mut(|stage| stage.steps += 1);
}

/// The numbers of the plans whose handlers wait for an event of the simulated backend.
pub(super) fn waiting() -> Vec<usize> {
    STAGE.with_borrow(|stage| {
        let waiting = stage.events.iter().enumerate();
        let waiting = waiting.filter(|(_, (_, waker))| waker.is_some());
        waiting.map(|(id, _)| id).collect()
    })
}

/// Makes an event happen at the backend of a plan, and wakes the handler that waits for it.
pub(super) fn happen(id: usize) {
    let waker = STAGE.with_borrow_mut(|stage| {
        let (happened, waker) = &mut stage.events[id];
        *happened += 1;
        waker.take()
    });
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn poll_event(id: usize, number: usize, context: &Context<'_>) -> Poll<()> {
    STAGE.with_borrow_mut(|stage| {
        let (happened, waker) = &mut stage.events[id];
        if *happened > number {
            stage.steps += 1;
            return Poll::Ready(());
        }
        *waker = Some(context.waker().clone());
        Poll::Pending
    })
}

/// Held while the handler of this plan may wait for events; its drop removes the waker of a handler that waits.
struct Waits(usize);

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = STAGE.try_with(|stage| {
            if let Ok(mut stage) = stage.try_borrow_mut()
                && let Some(event) = stage.events.get_mut(self.0)
            {
                event.1 = None;
            }
        });
    }
}

struct Acting;

fn plan_of(exchange: &Exchange) -> Option<Plan> {
    let path = std::str::from_utf8(exchange.request.path()).ok()?;
    let id: usize = path.trim_start_matches('/').parse().ok()?;
    STAGE.with_borrow(|stage| stage.plans.get(id).cloned())
}

impl Handler for Acting {
    fn body_use(&self, exchange: &Exchange) -> BodyUse {
        plan_of(exchange).map_or(BodyUse::None, |plan| plan.body_use)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let Some(plan) = plan_of(exchange) else {
            return Outcome::Declined;
        };
        note_step();
        let content = std::mem::take(&mut exchange.body);
        if let RequestBody::Bytes(content) = &content {
            assert_eq!(
                Some(content.len()),
                plan.upload,
                "the handler got all of the content"
            );
            let mut content = content.iter().enumerate();
            assert!(content.all(|(at, &byte)| byte == plan.request_byte(at)));
        }
        let waits = Waits(plan.id);
        if plan.waits == (0, 0) && (plan.reading != Reading::All || plan.upload.is_none()) {
            return Outcome::Done(respond(&plan, 0, content, waits));
        }
        Outcome::Later(Box::pin(async move {
            let (before, after) = plan.waits;
            for number in 0..before {
                poll_fn(|task| poll_event(plan.id, number, task)).await;
            }
            if let RequestBody::Stream(pipe) = &content {
                match plan.reading {
                    Reading::All => read(&plan, pipe, usize::MAX).await,
                    Reading::Some(len) => {
                        read(&plan, pipe, len).await;
                        pipe.abandon();
                    }
                    Reading::Nothing => pipe.abandon(),
                    Reading::Holding | Reading::Echo | Reading::Late => {}
                }
            }
            for number in before..before + after {
                poll_fn(|task| poll_event(plan.id, number, task)).await;
            }
            Outcome::Done(respond(&plan, before + after, content, waits))
        }))
    }
}

/// Pulls the request body until `most` bytes have come, or it ends.
async fn read(plan: &Plan, pipe: &BodyPipe, most: usize) {
    let mut len = 0;
    while len < most {
        match poll_fn(|task| pipe.poll_next(task)).await {
            Some(Ok(piece)) => {
                note_step();
                check(plan, len, &piece);
                len += piece.len();
            }
            Some(Err(_)) => return,
            None => {
                assert_eq!(
                    Some(len),
                    plan.upload,
                    "the handler got all of the content of request {}",
                    plan.id
                );
                return;
            }
        }
    }
}

fn check(plan: &Plan, from: usize, piece: &[u8]) {
    let mut piece = piece.iter().enumerate();
    assert!(piece.all(|(at, &byte)| byte == plan.request_byte(from + at)));
}

fn respond(plan: &Plan, events: usize, content: RequestBody, waits: Waits) -> Response {
    let id = plan.id + 77;
    let mut source = Source {
        plan: plan.clone(),
        number: 0,
        sent: 0,
        events,
        left: Bytes::new(),
        content: None,
        read: 0,
        _waits: waits,
    };
    if let RequestBody::Stream(pipe) = content
        && matches!(
            plan.reading,
            Reading::Holding | Reading::Echo | Reading::Late
        )
    {
        source.content = Some(pipe);
    }
    let body = match &plan.body {
        BodyPlan::Empty => Body::Empty,
        BodyPlan::Bytes(len) => Body::Bytes(bytes(id, 0, *len)),
        BodyPlan::File(len) => Body::File(file(&bytes(id, 0, *len))),
        BodyPlan::Pieces { .. } | BodyPlan::Echo => Body::Stream(Box::new(source)),
    };
    let mut response = Response::new(StatusCode::OK, Headers::new(), body);
    if let BodyPlan::Pieces {
        is_announced: true, ..
    } = plan.body
    {
        response.length = Some(plan.response_len() as u64);
    }
    response
}

fn file(content: &[u8]) -> FileRange {
    let fd = h2o_exchange::temp_file::create(&std::env::temp_dir()).unwrap();
    rustix::io::pwrite(&fd, content, 0).unwrap();
    FileRange {
        file: OpenFile::new(fd),
        offset: 0,
        len: content.len() as u64,
    }
}

/// The source of a response's body that is generated as it is pulled.
struct Source {
    plan: Plan,
    number: usize,
    sent: usize,
    events: usize,
    left: Bytes,
    content: Option<Rc<BodyPipe>>,
    read: usize,
    _waits: Waits,
}

impl Source {
    fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let (size, is_gated) = match &self.plan.body {
            BodyPlan::Pieces {
                sizes,
                is_gated,
                fails,
                ..
            } => match sizes.get(self.number) {
                Some(size) => (*size, *is_gated),
                None if *fails => {
                    let error = BodyError::Failed(
                        "the response body fails as the test has planned".to_owned(),
                    );
                    return Poll::Ready(Some(Err(error)));
                }
                None => return Poll::Ready(None),
            },
            _ => return Poll::Ready(None),
        };
        if is_gated {
            if poll_event(self.plan.id, self.events, task).is_pending() {
                return Poll::Pending;
            }
            self.events += 1;
        }
        self.number += 1;
        self.sent += size;
        let id = self.plan.id + 77;
        Poll::Ready(Some(Ok(bytes(id, self.sent - size, size))))
    }
}

impl BodySource for Source {
    fn poll_next(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = self.poll(task, max);
        if polled.is_ready() {
            note_step();
        }
        polled
    }

    fn retained(&self) -> usize {
        0
    }
}

impl Source {
    fn poll(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(pipe) = &self.content
            && self.plan.reading != Reading::Holding
        {
            while self.left.is_empty() {
                match pipe.poll_next(task) {
                    Poll::Ready(Some(Ok(piece))) => {
                        check(&self.plan, self.read, &piece);
                        self.read += piece.len();
                        if self.plan.reading == Reading::Echo {
                            self.left = piece;
                        }
                    }
                    Poll::Ready(Some(Err(error))) if self.plan.reading == Reading::Echo => {
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(Some(Err(_)) | None) => {
                        self.content = None;
                        break;
                    }
                    Poll::Pending if self.plan.reading == Reading::Echo => return Poll::Pending,
                    Poll::Pending => break,
                }
            }
        }
        if self.left.is_empty() {
            match self.poll_piece(task) {
                Poll::Ready(Some(Ok(piece))) => self.left = piece,
                other => return other,
            }
        }
        let len = self.left.len().min(max);
        Poll::Ready(Some(Ok(self.left.split_to(len))))
    }
}

pub(super) static DIRECTIVES: [Directive<Scope>; 1] = [Directive {
    name: "test.act",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "",
    default: "none",
    help: "For tests.",
    apply: |scope, _| {
        scope.handlers.push(Box::new(Acting));
        Ok(())
    },
}];
