//! Tunnels between a client and a target, as connection and handler see them: the client's bytes come through the pipe
//! of the request body, the target's bytes are the response body. Either side ends normally, fails, is slow or
//! disconnects, in every order, and no task may wait for ever.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodyPipe, BodySource, Trailers, retained};
use h2o_testkit::on_virtual_clock;

/// The target's bytes, which wait to be sent to the client.
#[derive(Default)]
struct Back {
    queue: VecDeque<Bytes>,
    is_ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    is_dropped: bool,
}

/// The response body of the tunnel, which has the target's bytes.
struct FromOtherSide(Rc<RefCell<Back>>);

impl BodySource for FromOtherSide {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let back = &mut *self.0.borrow_mut();
        if let Some(piece) = back.queue.front_mut() {
            let bytes = piece.split_to(max.min(piece.len()));
            if piece.is_empty() {
                back.queue.pop_front();
            }
            if let Some(writer) = back.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(bytes)));
        }
        if back.is_ended {
            return Poll::Ready(None);
        }
        back.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn retained(&self) -> usize {
        self.0.borrow().queue.iter().map(retained).sum()
    }
}

impl Drop for FromOtherSide {
    fn drop(&mut self) {
        let mut back = self.0.borrow_mut();
        back.is_dropped = true;
        if let Some(writer) = back.writer.take() {
            writer.wake();
        }
    }
}

async fn pause(random: &mut fastrand::Rng) {
    match random.u8(..6) {
        0 => tokio::time::sleep(Duration::from_millis(random.u64(1..200))).await,
        1 | 2 => tokio::task::yield_now().await,
        _ => {}
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
        .collect()
}

/// What goes wrong in the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing goes wrong: all bytes arrive in both directions.
    None,
    /// The client disconnects after this many bytes.
    ClientGone(usize),
    /// The handler gives the tunnel up after this many bytes from the client.
    GivenUp(usize),
    /// The client stops reading after this many bytes from the target.
    ResponseDropped(usize),
}

/// The end of a tunnel, as its connection sees it.
#[derive(Debug, PartialEq, Eq)]
enum TunnelEnd {
    /// The response has ended.
    End(Vec<u8>),
    /// The handler has given the tunnel up.
    GivenUp(&'static str, Vec<u8>),
    /// The connection has dropped the response.
    Dropped,
}

/// Sends the client's bytes into the pipe, until all are sent or the handler has abandoned the pipe.
async fn forth(pipe: Rc<BodyPipe>, len: usize, fault: Fault, seed: u64, sent: &Cell<usize>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let all = bytes(len);
    loop {
        let at = sent.get();
        if let Fault::ClientGone(after) = fault
            && at >= after
        {
            return pipe.finish(Err("the client is gone".into()));
        }
        if at == len {
            return pipe.finish(Ok(()));
        }
        let room = poll_fn(|context| pipe.poll_room(context)).await;
        if pipe.is_abandoned() {
            return;
        }
        let piece = random.usize(1..=room.min(len - at));
        pipe.push(&all[at..at + piece]);
        sent.set(at + piece);
        pause(&mut random).await;
    }
}

/// The client's connection, which ends with the response. Returns what the client received, and how many of its bytes
/// entered the pipe.
async fn connection(
    pipe: Rc<BodyPipe>,
    body: Box<dyn BodySource>,
    len: usize,
    fault: Fault,
    seed: u64,
) -> (TunnelEnd, usize) {
    let sent = Cell::new(0);
    let mut forth = Some(Box::pin(forth(Rc::clone(&pipe), len, fault, seed, &sent)));
    let mut back = pin!(back(body, pipe, fault, seed + 1));
    let both = poll_fn(|context| {
        if let Some(sending) = &mut forth
            && sending.as_mut().poll(context).is_ready()
        {
            forth = None;
        }
        back.as_mut().poll(context)
    });
    let seen = both.await;
    drop(forth);
    (seen, sent.get())
}

/// Pulls the response, and watches whether the tunnel is given up, as connections do.
async fn back(
    mut body: Box<dyn BodySource>,
    pipe: Rc<BodyPipe>,
    fault: Fault,
    seed: u64,
) -> TunnelEnd {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut got = Vec::new();
    loop {
        if let Fault::ResponseDropped(after) = fault
            && got.len() >= after
        {
            // The connection drops the response body, and with it the target's bytes that still arrive.
            drop(body);
            pipe.finish(Err("the client is gone".into()));
            return TunnelEnd::Dropped;
        }
        let max = random.usize(1..40_000);
        let next = poll_fn(|context| {
            pipe.set_owner(context.waker().clone());
            if let Some(reason) = pipe.given_up() {
                return Poll::Ready(Err(reason));
            }
            body.poll_next(context, max).map(Ok)
        });
        match next.await {
            Err(reason) => return TunnelEnd::GivenUp(reason, got),
            Ok(None) => {
                assert!(matches!(body.trailers(), Trailers::None));
                return TunnelEnd::End(got);
            }
            Ok(Some(piece)) => {
                got.extend_from_slice(&piece.expect("the tunnel gives bytes without an error"))
            }
        }
        pause(&mut random).await;
    }
}

/// The handler of a tunnel, which sends back to the client what it takes from the pipe.
async fn echo(pipe: Rc<BodyPipe>, back: Rc<RefCell<Back>>, fault: Fault, seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken = 0;
    loop {
        if let Fault::GivenUp(after) = fault
            && taken >= after
        {
            pipe.give_up("the other side is too slow");
            return taken;
        }
        let room = poll_fn(|context| {
            let mut back = back.borrow_mut();
            if back.is_dropped || back.queue.len() < 4 {
                return Poll::Ready(!back.is_dropped);
            }
            back.writer = Some(context.waker().clone());
            Poll::Pending
        });
        if !room.await {
            pipe.abandon();
            return taken;
        }
        let next = poll_fn(|context| pipe.poll_next(context)).await;
        let is_ended = !matches!(next, Some(Ok(_)));
        {
            let mut back = back.borrow_mut();
            if let Some(Ok(piece)) = next {
                taken += piece.len();
                back.queue.push_back(piece);
            }
            back.is_ended = is_ended;
            if let Some(reader) = back.reader.take() {
                reader.wake();
            }
        }
        if is_ended {
            return taken;
        }
        pause(&mut random).await;
    }
}

/// Runs a whole tunnel. Returns what the client received, and how many bytes were sent and taken.
fn play(seed: u64, len: usize, fault: Fault) -> (TunnelEnd, usize, usize) {
    // Tokio's paused clock only advances while all tasks wait.
    let limit = Duration::from_secs(3600);
    let ended = on_virtual_clock(async {
        let pipe = Rc::new(BodyPipe::default());
        let between = Rc::new(RefCell::new(Back::default()));
        let body = Body::Stream(Box::new(FromOtherSide(Rc::clone(&between))));
        assert_eq!((body.len(), body.is_empty()), (None, false));
        let connection = connection(Rc::clone(&pipe), body.into_source(), len, fault, seed);
        let echo = echo(Rc::clone(&pipe), Rc::clone(&between), fault, seed + 2);
        // Connection and handler are separate tasks, so that the waker of one task does not wake the other task by
        // chance.
        let connection = tokio::task::spawn_local(connection);
        let echo = tokio::task::spawn_local(echo);
        let all = async {
            let (seen, sent) = connection.await.expect("the task does not panic");
            (seen, sent, echo.await.expect("the task does not panic"))
        };
        let ended = tokio::time::timeout(limit, all).await;
        assert!(
            between.borrow().is_dropped,
            "{fault:?}: the response body is not dropped"
        );
        ended
    });
    ended.unwrap_or_else(|_| panic!("seed {seed}, {fault:?}: a side of the tunnel waits for ever"))
}

#[test]
fn a_tunnel_echoes_all_of_it() {
    for seed in 0..60 {
        let len = fastrand::Rng::with_seed(seed).usize(..600_000);
        let (seen, sent, taken) = play(seed, len, Fault::None);
        assert!(seen == TunnelEnd::End(bytes(len)), "seed {seed}");
        assert_eq!((sent, taken), (len, len), "seed {seed}");
    }
}

#[test]
fn the_other_side_gets_what_a_client_sent_before_it_was_cut_off() {
    for seed in 0..60 {
        let after = fastrand::Rng::with_seed(seed).usize(..300_000);
        let (seen, sent, taken) = play(seed, 300_001, Fault::ClientGone(after));
        assert!(sent >= after && taken == sent, "seed {seed}");
        assert!(seen == TunnelEnd::End(bytes(sent)), "seed {seed}");
    }
}

#[test]
fn a_tunnel_that_is_given_up_ends_with_its_reason_while_bytes_are_under_way() {
    let mut with_bytes_under_way = 0;
    for seed in 0..60 {
        let after = fastrand::Rng::with_seed(seed).usize(..300_000);
        let (seen, sent, taken) = play(seed, 600_000, Fault::GivenUp(after));
        let TunnelEnd::GivenUp(reason, got) = seen else {
            panic!(
                "seed {seed}: {after} bytes were sent, and the tunnel has not ended with an error"
            );
        };
        assert_eq!(reason, "the other side is too slow");
        assert!(bytes(taken).starts_with(&got), "seed {seed}");
        assert!(sent <= taken + 2 * BodyPipe::CAPACITY, "seed {seed}");
        with_bytes_under_way += usize::from(got.len() < taken || taken < sent);
    }
    assert!(with_bytes_under_way > 10, "{with_bytes_under_way}");
}

#[test]
fn a_client_that_goes_away_while_it_is_sent_to_holds_up_nobody() {
    for seed in 0..60 {
        let after = fastrand::Rng::with_seed(seed).usize(..200_000);
        let (seen, sent, taken) = play(seed, 600_000, Fault::ResponseDropped(after));
        assert_eq!(seen, TunnelEnd::Dropped, "seed {seed}");
        assert!(after <= taken && taken <= sent, "seed {seed}");
    }
}
