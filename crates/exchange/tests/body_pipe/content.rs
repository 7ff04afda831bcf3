//! Random calls compared with a simple model, and connections and handlers as tasks, none of which waits for ever.

use std::rc::Rc;
use std::task::Poll;

use h2o_exchange::BodyPipe;
use h2o_testkit::on_virtual_clock;

use super::poll;

/// A model of the pipe: one buffer with all bytes that were ever pushed.
#[derive(Default)]
struct Model {
    /// All bytes that handlers may see, from the start of the body.
    content: Vec<u8>,
    /// How many bytes of `content` the current handler has taken.
    at: usize,
    /// Whether the pipe keeps bytes that were taken, for another handler.
    is_keeping: bool,
    /// Whether the pipe has not kept bytes that another handler would need.
    is_lost: bool,
    is_abandoned: bool,
    is_ended: bool,
}

impl Model {
    fn push(&mut self, bytes: &[u8]) {
        if self.is_abandoned {
            self.is_lost |= !bytes.is_empty();
        } else {
            self.content.extend_from_slice(bytes);
        }
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let piece = &self.content[self.at..self.at + len];
        self.at += len;
        self.is_lost |= len > 0 && !self.is_keeping;
        piece
    }

    fn keep(&mut self) {
        self.is_keeping |= !self.is_lost;
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        if self.is_keeping {
            self.at = self.content.len();
        } else {
            self.content.truncate(self.at);
            self.is_lost = true;
        }
    }

    fn rewind(&mut self) -> bool {
        if self.is_lost {
            return false;
        }
        self.at = 0;
        self.is_abandoned = false;
        true
    }
}

#[test]
fn handlers_see_the_content_from_its_beginning_or_are_told_that_it_is_gone() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (pipe, mut model) = (BodyPipe::default(), Model::default());
        for _ in 0..60 {
            match random.u8(..12) {
                0..4 if !model.is_ended => {
                    let bytes: Vec<u8> =
                        (0..random.usize(..5_000)).map(|_| random.u8(..)).collect();
                    pipe.push(&bytes);
                    model.push(&bytes);
                }
                4..8 => match poll(|context| pipe.poll_next(context)) {
                    Poll::Ready(Some(Ok(piece))) => {
                        assert!(!piece.is_empty(), "seed {seed}");
                        assert!(piece == model.take(piece.len()), "seed {seed}");
                    }
                    Poll::Ready(None) => {
                        assert!(
                            model.is_ended && model.at == model.content.len(),
                            "seed {seed}"
                        );
                    }
                    Poll::Ready(Some(Err(error))) => panic!("seed {seed}: {error}"),
                    Poll::Pending => {
                        assert!(
                            !model.is_ended && model.at == model.content.len(),
                            "seed {seed}"
                        );
                    }
                },
                8 => {
                    pipe.keep();
                    model.keep();
                }
                9 if random.u8(..4) == 0 => {
                    pipe.abandon();
                    model.abandon();
                }
                10 => assert_eq!(pipe.rewind(), model.rewind(), "seed {seed}"),
                11 if random.u8(..8) == 0 => {
                    pipe.finish(Ok(()));
                    model.is_ended = true;
                }
                _ => {}
            }
            assert_eq!(pipe.is_complete(), model.is_ended, "seed {seed}");
            assert_eq!(pipe.is_abandoned(), model.is_abandoned, "seed {seed}");
            let is_all_taken = model.at == model.content.len();
            assert_eq!(
                pipe.is_drained(),
                model.is_ended && is_all_taken,
                "seed {seed}"
            );
            let waits = is_all_taken && !model.is_ended && !model.is_abandoned;
            assert_eq!(pipe.is_starved(), waits, "seed {seed}");
        }
        if model.is_ended {
            let rest = model.content[model.at..].to_vec();
            assert_eq!(pipe.take_whole(), Some(rest.into()), "seed {seed}");
        }
    }
}

/// Yields to the async runtime at random, so that connection and handler interleave in every order.
async fn pause(random: &mut fastrand::Rng) {
    for _ in 0..random.u8(..3) {
        tokio::task::yield_now().await;
    }
}

/// Runs the connection's and the handler's side of pipes as tasks of one thread. If a wake-up is lost, the tasks would
/// wait for ever, and the test fails.
fn in_tasks(test: impl Future<Output = ()>) {
    // Tokio's paused clock only advances while all tasks wait.
    let limit = std::time::Duration::from_secs(3600);
    let ended = on_virtual_clock(async { tokio::time::timeout(limit, test).await });
    ended.expect("every task that waits for the pipe is woken");
}

/// Runs the connection's and the handler's side of a pipe as separate tasks, so that the waker of one task does not
/// wake the other task by chance.
async fn both<A: 'static, B: 'static>(
    one: impl Future<Output = A> + 'static,
    other: impl Future<Output = B> + 'static,
) -> (A, B) {
    let (one, other) = (
        tokio::task::spawn_local(one),
        tokio::task::spawn_local(other),
    );
    (
        one.await.expect("the task does not panic"),
        other.await.expect("the task does not panic"),
    )
}

/// The connection's side: pushes the body as the pipe has room, until the body is complete or the handler abandons it.
async fn send(pipe: Rc<BodyPipe>, content: Rc<Vec<u8>>, seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sent = 0;
    while sent < content.len() {
        let room = std::future::poll_fn(|context| pipe.poll_room(context)).await;
        if pipe.is_abandoned() {
            return sent;
        }
        assert!(
            (1..=BodyPipe::CAPACITY).contains(&room),
            "seed {seed}: {room}"
        );
        let len = random.usize(1..=room.min(content.len() - sent));
        pipe.push(&content[sent..sent + len]);
        sent += len;
        assert!(pipe.queued() <= BodyPipe::CAPACITY, "seed {seed}");
        pause(&mut random).await;
    }
    pipe.finish(Ok(()));
    sent
}

/// The handler's side: takes pieces until the end of the body, or until it has taken `enough` bytes.
async fn receive(pipe: Rc<BodyPipe>, enough: usize, seed: u64) -> Result<Vec<u8>, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    while all.len() < enough {
        if random.bool() {
            std::future::poll_fn(|context| pipe.poll_begun(context)).await;
        }
        match std::future::poll_fn(|context| pipe.poll_next(context)).await {
            Some(Ok(piece)) => all.extend_from_slice(&piece),
            Some(Err(error)) => return Err(error.to_string()),
            None => break,
        }
        pause(&mut random).await;
    }
    Ok(all)
}

fn content(len: usize) -> Rc<Vec<u8>> {
    let bytes = (0..len)
        .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
        .collect();
    Rc::new(bytes)
}

#[test]
fn content_gets_through_whoever_is_faster() {
    for seed in 0..60 {
        let content = content(fastrand::Rng::with_seed(seed).usize(..400_000));
        in_tasks(async move {
            let pipe = Rc::new(BodyPipe::default());
            let connection = send(Rc::clone(&pipe), Rc::clone(&content), seed);
            let handler = receive(Rc::clone(&pipe), usize::MAX, seed + 1_000);
            let (sent, received) = both(connection, handler).await;
            assert_eq!(sent, content.len(), "seed {seed}");
            assert!(
                received.expect("the body is read without an error") == *content,
                "seed {seed}"
            );
            assert!(pipe.is_drained() && !pipe.is_starved(), "seed {seed}");
        });
    }
}

#[test]
fn a_connection_is_not_left_waiting_for_a_handler_that_has_gone() {
    for seed in 0..60 {
        let content = content(300_000);
        let enough = fastrand::Rng::with_seed(seed).usize(..250_000);
        in_tasks(async move {
            let pipe = Rc::new(BodyPipe::default());
            let connection = send(Rc::clone(&pipe), Rc::clone(&content), seed);
            let its = Rc::clone(&pipe);
            let handler = async move {
                let taken = receive(Rc::clone(&its), enough, seed + 1_000).await;
                its.abandon();
                taken.expect("the body is read without an error")
            };
            let (sent, taken) = both(connection, handler).await;
            assert!(content.starts_with(&taken), "seed {seed}");
            assert!(sent >= taken.len(), "seed {seed}");
            assert!(
                sent <= taken.len() + 2 * BodyPipe::CAPACITY,
                "seed {seed}: {sent}"
            );
            assert_eq!(
                pipe.queued(),
                0,
                "seed {seed}: an abandoned pipe holds no bytes"
            );
        });
    }
}

#[test]
fn a_handler_is_not_left_waiting_for_a_connection_that_has_failed() {
    for seed in 0..60 {
        let content = content(200_000);
        let most = fastrand::Rng::with_seed(seed).usize(..content.len());
        in_tasks(async move {
            let pipe = Rc::new(BodyPipe::default());
            let its = Rc::clone(&pipe);
            let connection = async move {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut sent = 0;
                while sent < most {
                    let room = std::future::poll_fn(|context| its.poll_room(context)).await;
                    let len = room.min(most - sent);
                    its.push(&content[sent..sent + len]);
                    sent += len;
                    pause(&mut random).await;
                }
                its.finish(Err("the client is gone".into()));
            };
            let handler = receive(Rc::clone(&pipe), usize::MAX, seed + 1_000);
            let ((), received) = both(connection, handler).await;
            assert_eq!(
                received,
                Err("the client is gone".to_owned()),
                "seed {seed}"
            );
            assert!(
                pipe.take_whole().is_none(),
                "seed {seed}: a body that is not complete cannot be taken as a whole"
            );
            assert!(!pipe.is_complete() && !pipe.is_drained(), "seed {seed}");
        });
    }
}

#[test]
fn a_second_handler_gets_all_of_it_while_the_client_goes_on() {
    for seed in 0..60 {
        let content = content(300_000);
        let enough = fastrand::Rng::with_seed(seed).usize(..200_000);
        in_tasks(async move {
            let pipe = Rc::new(BodyPipe::default());
            pipe.keep();
            let connection = send(Rc::clone(&pipe), Rc::clone(&content), seed);
            let all = Rc::clone(&content);
            let handlers = async move {
                let first = receive(Rc::clone(&pipe), enough, seed + 1_000).await;
                assert!(
                    all.starts_with(&first.expect("the body is read without an error")),
                    "seed {seed}"
                );
                assert!(
                    pipe.rewind(),
                    "seed {seed}: the pipe has kept all bytes, so it can be rewound"
                );
                receive(pipe, usize::MAX, seed + 2_000).await
            };
            let (sent, second) = both(connection, handlers).await;
            assert_eq!(sent, content.len(), "seed {seed}");
            assert!(
                second.expect("the body is read without an error") == *content,
                "seed {seed}"
            );
        });
    }
}
