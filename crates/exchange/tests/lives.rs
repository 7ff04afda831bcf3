//! The life of an exchange: every state with every call of its worker, and a worker with many requests that are
//! answered, truncated and cancelled in every order.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{
    Address, BodyPipe, ConnectionInfo, Counters, Exchange, ExchangeRef, LocalSite, NoTransport,
    Protocol, RequestBody, Shared, Timer, Worker,
};
use h2o_http::{Headers, StatusCode};
use h2o_testkit::on_virtual_clock;

fn worker() -> Rc<Worker> {
    let (counters, shared) = (Counters::default(), Shared::default());
    Worker::new(0, Arc::new(counters), Arc::new(shared))
}

fn connection(worker: &Worker, id: u64) -> Rc<ConnectionInfo> {
    Rc::new(ConnectionInfo {
        id,
        peer: Address::Unix,
        accepted: worker.clock.now(),
        tls: None,
        transport: Rc::new(NoTransport),
        listener: Rc::default(),
    })
}

struct Case {
    worker: Rc<Worker>,
    site: Rc<LocalSite>,
    connections: [Rc<ConnectionInfo>; 2],
    exchange: Option<ExchangeRef>,
    /// A reference to the exchange, held by a future that has not ended.
    held: Option<ExchangeRef>,
    address: *const RefCell<Exchange>,
    said: String,
}

impl Case {
    fn new() -> Self {
        let worker = worker();
        let connections = [1, 2].map(|id| connection(&worker, id));
        let exchange = worker.spare_exchange();
        Self {
            worker,
            site: Rc::default(),
            connections,
            address: Rc::as_ptr(&exchange),
            exchange: Some(exchange),
            held: None,
            said: String::new(),
        }
    }

    fn exchange(&self) -> &ExchangeRef {
        self.exchange
            .as_ref()
            .expect("the case still holds the exchange")
    }

    fn begin(&mut self, connection: usize) {
        let connection = Rc::clone(&self.connections[connection]);
        self.worker.begin(self.exchange(), &self.site, &connection);
    }

    /// Sets the fields of the exchange that a request and its response set.
    fn serve(&mut self) {
        let exchange = &mut *self.exchange().borrow_mut();
        let target = exchange.request.headers.store(b"/secret");
        exchange.request.set_target(target);
        exchange.body = RequestBody::Bytes(Bytes::from_static(b"secret"));
        exchange.sent.status = Some(StatusCode::OK);
        let interim = (StatusCode::CONTINUE, Headers::new());
        exchange.informational.push(interim);
    }

    fn release(&mut self) {
        let exchange = self
            .exchange
            .take()
            .expect("the case still holds the exchange");
        self.worker.release(exchange);
    }
}

type Act = fn(&mut Case);

const CALLS: [(&str, Act); 7] = [
    ("nothing", |_| {}),
    ("begin", |case| case.begin(1)),
    ("rewind", |case| case.exchange().borrow_mut().rewind()),
    ("put back", |case| {
        let exchange = case
            .exchange
            .take()
            .expect("the case still holds the exchange");
        case.worker.put_back(exchange);
    }),
    ("release", Case::release),
    ("release, while a future holds it", |case| {
        case.held = case.exchange.clone();
        case.release();
    }),
    ("is it begun", |case| {
        let exchange = case.exchange().borrow();
        let is_begun = Worker::is_begun(&exchange, &case.site, &case.connections[0]);
        let said = if is_begun { "yes: " } else { "no: " };
        drop(exchange);
        case.said = said.to_owned();
    }),
];

/// A row: name of the exchange's state, how to reach it, and the outcome of each call in it.
type State = (&'static str, Act, [&'static str; 7]);

const STATES: [State; 5] = [
    (
        "spare",
        |_| {},
        [
            "0 live, of connection 0; the next is another",
            "1 live, of connection 2; the next is another",
            "0 live, of connection 0; the next is another",
            "0 live, given back; the next is the same",
            "0 live, given back; the next is the same",
            "0 live, of connection 0; the next is another",
            "no: 0 live, of connection 0; the next is another",
        ],
    ),
    (
        "begun",
        |case| case.begin(0),
        [
            "1 live, of connection 1; the next is another",
            "2 live, of connection 2; the next is another",
            "1 live, of connection 1; the next is another",
            "",
            "0 live, given back; the next is the same",
            "0 live, of connection 0; the next is another",
            "yes: 1 live, of connection 1; the next is another",
        ],
    ),
    (
        "served",
        |case| {
            case.begin(0);
            case.serve();
        },
        [
            "1 live, of connection 1, target, body, status, interim; the next is another",
            "2 live, of connection 2, target; the next is another",
            "1 live, of connection 1, target; the next is another",
            "",
            "0 live, given back; the next is the same",
            "0 live, of connection 0, status, interim; the next is another",
            "yes: 1 live, of connection 1, target, body, status, interim; the next is another",
        ],
    ),
    (
        "rewound for the next request of its connection",
        |case| {
            case.begin(0);
            case.serve();
            let mut exchange = case.exchange().borrow_mut();
            exchange.rewind();
            exchange.request.clear();
        },
        [
            "1 live, of connection 1; the next is another",
            "2 live, of connection 2; the next is another",
            "1 live, of connection 1; the next is another",
            "",
            "0 live, given back; the next is the same",
            "0 live, of connection 0; the next is another",
            "yes: 1 live, of connection 1; the next is another",
        ],
    ),
    (
        "used a second time",
        |case| {
            case.begin(0);
            case.serve();
            case.release();
            case.exchange = Some(case.worker.spare_exchange());
            case.begin(0);
        },
        [
            "1 live, of connection 1; the next is another",
            "2 live, of connection 2; the next is another",
            "1 live, of connection 1; the next is another",
            "",
            "0 live, given back; the next is the same",
            "0 live, of connection 0; the next is another",
            "yes: 1 live, of connection 1; the next is another",
        ],
    ),
];

fn outcome(enter: Act, call: Act) -> String {
    let mut case = Case::new();
    enter(&mut case);
    call(&mut case);
    let mut live = 0;
    case.worker.each_live(|_| live += 1);
    let mut words = format!("{}{live} live", case.said);
    match case.exchange.as_ref().or(case.held.as_ref()) {
        None => words += ", given back",
        Some(exchange) => {
            let exchange = exchange.borrow();
            words += &format!(", of connection {}", exchange.connection.id);
            for (is_left, name) in [
                (!exchange.request.target().is_empty(), ", target"),
                (!matches!(exchange.body, RequestBody::None), ", body"),
                (exchange.sent.status.is_some(), ", status"),
                (!exchange.informational.is_empty(), ", interim"),
            ] {
                words += if is_left { name } else { "" };
            }
        }
    }
    let next = case.worker.spare_exchange();
    let is_same = std::ptr::eq(Rc::as_ptr(&next), case.address);
    words += if is_same {
        "; the next is the same"
    } else {
        "; the next is another"
    };
    assert!(next.borrow().request.target().is_empty());
    words
}

#[test]
fn every_state_meets_every_call() {
    for (state, enter, wants) in STATES {
        for ((name, call), want) in CALLS.into_iter().zip(wants) {
            // `put_back` is only called for an exchange without a request.
            if !want.is_empty() {
                let got = outcome(enter, call);
                assert_eq!(got, want, "{name} of an exchange that is {state}");
            }
        }
    }
}

#[test]
fn an_exchange_that_something_still_holds_is_not_used_for_another_request() {
    let worker = worker();
    let (site, connection) = (Rc::default(), connection(&worker, 1));
    let first = worker.exchange(&site, &connection);
    // A task that a handler has started, and which outlives the request.
    let held = first
        .borrow()
        .reference()
        .expect("the exchange belongs to a worker");
    worker.release(first);
    let second = worker.exchange(&site, &connection);
    assert!(!Rc::ptr_eq(&held, &second));
    let authority = second.borrow_mut().request.headers.store(b"secret");
    second.borrow_mut().request.set_authority(authority);
    assert_eq!(held.borrow().request.authority(), b"");
    let weak = Rc::downgrade(&held);
    drop(held);
    assert!(
        weak.upgrade().is_none(),
        "the worker has dropped the exchange"
    );
}

#[test]
fn a_worker_keeps_so_many_exchanges_and_so_much_of_their_memory() {
    let worker = worker();
    let (site, connection) = (Rc::default(), connection(&worker, 1));
    let all: Vec<ExchangeRef> = (0..300)
        .map(|_| worker.exchange(&site, &connection))
        .collect();
    for exchange in &all {
        let mut exchange = exchange.borrow_mut();
        let _ = exchange.request.headers.store(&[b'x'; 100_000]);
        let _ = exchange.sent.headers.store(&[b'x'; 100_000]);
        exchange.body = RequestBody::Bytes(Bytes::from_static(&[b'x'; 1_000]));
        assert!(exchange.retained() >= 201_000);
    }
    let weak: Vec<_> = all.iter().map(Rc::downgrade).collect();
    for exchange in all {
        worker.release(exchange);
    }
    let kept: Vec<_> = weak.iter().filter_map(std::rc::Weak::upgrade).collect();
    assert_eq!(kept.len(), 128);
    for exchange in kept {
        let retained = exchange.borrow().retained();
        assert!(
            retained <= 2 * 16 * 1024,
            "an unused exchange holds {retained} bytes"
        );
    }
}

#[test]
fn an_exchange_that_is_released_while_it_is_in_use_is_not_used_again() {
    let worker = worker();
    let (site, connection) = (Rc::default(), connection(&worker, 1));
    let exchange = worker.exchange(&site, &connection);
    let other = Rc::clone(&exchange);
    let mut borrowed = other.borrow_mut();
    let target = borrowed.request.headers.store(b"/secret");
    borrowed.request.set_target(target);
    worker.release(exchange);
    let mut live = 0;
    worker.each_live(|_| live += 1);
    assert_eq!(live, 0);
    drop(borrowed);
    drop(other);
    let next = worker.spare_exchange();
    assert_eq!(next.borrow().request.target(), b"");
}

/// Runs tasks of a worker. The clock only advances while all tasks wait.
fn on_worker<F: Future<Output = ()>>(test: impl FnOnce(Rc<Worker>) -> F) {
    let ended = on_virtual_clock(async {
        let worker = worker();
        let test = test(Rc::clone(&worker));
        let limit = Duration::from_secs(24 * 3600);
        tokio::time::timeout(limit, worker.run(test)).await
    });
    ended.expect("every task that waits is woken");
}

const SECOND: Duration = Duration::from_secs(1);

/// How requests of the simulation ended.
#[derive(Default)]
struct Ends {
    answered: Cell<usize>,
    cut_off: Cell<usize>,
    timed_out: Cell<usize>,
    cancelled: Cell<usize>,
}

impl Ends {
    fn sum(&self) -> usize {
        let ends = [
            &self.answered,
            &self.cut_off,
            &self.timed_out,
            &self.cancelled,
        ];
        ends.map(Cell::get).iter().sum()
    }
}

fn count(cell: &Cell<usize>) {
    cell.set(cell.get() + 1);
}

/// The client of a request: sends its body with pauses, and may disconnect before the end.
async fn send(worker: Rc<Worker>, pipe: Rc<BodyPipe>, len: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sent = 0;
    while sent < len {
        let room = poll_fn(|context| pipe.poll_room(context)).await;
        if pipe.is_abandoned() {
            return;
        }
        let piece = random.usize(1..=room.min(len - sent));
        pipe.push(vec![b'x'; piece]);
        sent += piece;
        if random.u8(..4) == 0 {
            worker.sleep(random.u32(..3_000) * SECOND / 1_000).await;
        }
        if random.u8(..40) == 0 {
            pipe.finish(Err("the client is gone".into()));
            return;
        }
    }
    pipe.finish(Ok(()));
}

/// The handler of a request: reads the body, and ends with an error if that takes too long.
async fn receive(exchange: ExchangeRef, patience: Duration) -> Result<usize, &'static str> {
    let (worker, body) = {
        let exchange = exchange.borrow();
        (Rc::clone(&exchange.worker), exchange.body.clone())
    };
    let RequestBody::Stream(pipe) = body else {
        return Ok(0);
    };
    let limit = Timer::new(&worker.timers);
    let mut taken = 0;
    loop {
        limit.set_after(patience);
        let next = poll_fn(|context| {
            if limit.poll_fired(context).is_ready() {
                return std::task::Poll::Ready(Err("too slow"));
            }
            pipe.poll_next(context).map(Ok)
        });
        match next.await? {
            None => return Ok(taken),
            Some(Ok(piece)) => taken += piece.len(),
            Some(Err(_)) => return Err("cut off"),
        }
        exchange.borrow_mut().request_body_bytes = taken as u64;
    }
}

/// A request, as its connection sees it.
async fn request(worker: Rc<Worker>, site: Rc<LocalSite>, ends: Rc<Ends>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let connection = connection(&worker, seed);
    let exchange = worker.exchange(&site, &connection);
    let pipe = Rc::new(BodyPipe::default());
    {
        let mut exchange = exchange.borrow_mut();
        assert_eq!(
            exchange.request_body_bytes, 0,
            "the count of the request before was not reset"
        );
        exchange.protocol = Protocol::Http1 { index: seed };
        exchange.body = RequestBody::Stream(Rc::clone(&pipe));
    }
    let len = random.usize(..300_000);
    let client = worker.spawn(send(Rc::clone(&worker), Rc::clone(&pipe), len, seed));
    let patience = random.u32(500..4_000) * SECOND / 1_000;
    let handler = receive(Rc::clone(&exchange), patience);
    // Some connections end before the handlers of their requests do.
    let limit = random.u32(1..60_000) * SECOND / 1_000;
    match worker.timeout(limit, handler).await {
        Ok(Ok(taken)) => {
            assert_eq!((taken, pipe.is_drained()), (len, true));
            count(&ends.answered);
        }
        Ok(Err("cut off")) => count(&ends.cut_off),
        Ok(Err(_)) => count(&ends.timed_out),
        Err(_) => count(&ends.cancelled),
    }
    pipe.abandon();
    assert_eq!(exchange.borrow().protocol.request_id(), seed);
    worker.release(exchange);
    // The client's task ends, whatever it waits for: abandoning the pipe or the passing of time wakes it.
    client.await.expect("the task does not panic");
    assert_eq!(pipe.queued(), 0);
}

#[test]
fn requests_end_in_every_way_and_leave_nothing_behind() {
    let all = Rc::new(Ends::default());
    for seed in 0..20 {
        let ends = Rc::clone(&all);
        on_worker(|worker| async move {
            let site: Rc<LocalSite> = Rc::default();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut requests = Vec::new();
            for number in 0..40 {
                let (its, site) = (Rc::clone(&worker), Rc::clone(&site));
                let request = request(its, site, Rc::clone(&ends), seed * 1_000 + number);
                requests.push(worker.spawn(request));
                if random.u8(..3) == 0 {
                    worker.sleep(random.u32(..5_000) * SECOND / 1_000).await;
                }
            }
            for request in requests {
                request.await.expect("the task does not panic");
            }
            let mut live = 0;
            worker.each_live(|_| live += 1);
            assert_eq!(live, 0, "seed {seed}");
            assert_eq!(
                Rc::strong_count(&site),
                1,
                "seed {seed}: an exchange that has ended still holds the site"
            );
        });
    }
    assert_eq!(all.sum(), 800);
    for (way, ends) in [
        ("answered", &all.answered),
        ("cut off", &all.cut_off),
        ("timed out", &all.timed_out),
        ("cancelled", &all.cancelled),
    ] {
        assert!(ends.get() > 20, "{way}: {}", ends.get());
    }
}
