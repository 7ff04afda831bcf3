//! A connection of a script to Redis: sends commands, and passes each reply to the strand (fiber) that waits for it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use h2o_exchange::{Timer, Worker};
use h2o_mruby::Vm;
use h2o_upstream::{ConnectError, ConnectLimits, PlainStream};
use rustc_hash::FxHashMap;
use tokio::io::ReadBuf;

use super::reply::{Parser, Reply, encode};
use super::subscription::{End, Subscription};
use crate::mruby::arrival::Arrival;

/// Most bytes of commands that may wait to be sent to Redis.
const MAX_OUTGOING: usize = 64 << 20;
/// Most reads from one Redis connection per turn of the event loop, so that other connections get their turn.
const READS: usize = 16;
const READ_SIZE: usize = 64 * 1024;

/// The result of a command.
pub(super) enum Outcome {
    Reply(Reply),
    Failed(Failure),
}

/// The reason why a connection to Redis has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Connection,
    ConnectTimeout,
    CommandTimeout,
    Protocol,
}

/// The Redis server to connect to, and time limits.
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) connect_timeout: Duration,
    /// How long Redis may take to reply to a command; zero for no limit.
    pub(super) command_timeout: Duration,
}

/// The state that the connection's task and the Ruby objects share.
#[derive(Default)]
pub(super) struct RedisConnection {
    state: RefCell<State>,
    is_closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct State {
    outgoing: Vec<u8>,
    awaited: VecDeque<Awaited>,
    subscriptions: FxHashMap<Topic, Rc<Subscription>>,
}

/// The name of a channel, or a pattern for names of channels.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Topic {
    is_pattern: bool,
    name: Vec<u8>,
}

/// A command to which Redis has not replied yet.
struct Awaited {
    /// The time at which the command fails if Redis has not replied; `None` before the command is sent, and for
    /// commands without a time limit.
    deadline: Option<Instant>,
    what: What,
}

enum What {
    Reply(Arrival<Outcome>),
    /// A command that begins a subscription, which Redis confirms once per channel. `missing` is the number of missing
    /// confirmations.
    Subscribe {
        missing: usize,
        subscription: Rc<Subscription>,
    },
    /// A command that ends subscriptions to channels or to patterns, which Redis confirms once for each. `missing` is
    /// the number of missing confirmations; `None`: as many as there are subscriptions.
    Unsubscribe {
        is_pattern: bool,
        missing: Option<usize>,
    },
}

/// The error of a command that would make the commands that wait to be sent exceed [`MAX_OUTGOING`].
pub(super) struct Full;

impl RedisConnection {
    /// Whether the connection is open or being opened.
    pub(super) const fn is_open(&self) -> bool {
        !self.is_closed.get()
    }

    /// Closes the connection. Commands without a reply fail.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.wake();
    }

    /// Sends a command. Returns its result, which arrives later.
    pub(super) fn send(&self, words: &[Vec<u8>]) -> Result<Arrival<Outcome>, Full> {
        let arrival = Arrival::default();
        self.queue(words, What::Reply(arrival.clone()))?;
        Ok(arrival)
    }

    /// Sends a command that begins a subscription.
    pub(super) fn subscribe(self: &Rc<Self>, words: &[Vec<u8>]) -> Result<Rc<Subscription>, Full> {
        let subscription = Rc::new(Subscription::new(self));
        let what = What::Subscribe {
            missing: words.len().saturating_sub(1).max(1),
            subscription: Rc::clone(&subscription),
        };
        self.queue(words, what)?;
        Ok(subscription)
    }

    /// Sends a command that ends subscriptions.
    pub(super) fn unsubscribe(&self, words: &[Vec<u8>]) -> Result<(), Full> {
        let what = What::Unsubscribe {
            is_pattern: words.first().is_some_and(|word| word.starts_with(b"P")),
            missing: words.len().checked_sub(1).filter(|count| *count > 0),
        };
        self.queue(words, what)
    }

    fn queue(&self, words: &[Vec<u8>], what: What) -> Result<(), Full> {
        {
            let state = &mut *self.state.borrow_mut();
            if state.outgoing.len() > MAX_OUTGOING {
                return Err(Full);
            }
            encode(words, &mut state.outgoing);
            let deadline = None;
            state.awaited.push_back(Awaited { deadline, what });
        }
        self.wake();
        Ok(())
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Connects to Redis, and serves the connection until it ends.
    pub(super) async fn run(self: Rc<Self>, worker: Rc<Worker>, target: Target, vm: Weak<Vm>) {
        let failure = match connect(&worker, &target).await {
            Ok(stream) => {
                let mut driver = Driver {
                    timer: Timer::new(&worker.timers),
                    connection: Rc::clone(&self),
                    command_timeout: target.command_timeout,
                    input: Parser::default(),
                    buffer: vec![0; READ_SIZE].into(),
                    worker,
                    stream,
                    vm: vm.clone(),
                };
                poll_fn(|task| driver.poll(task)).await
            }
            Err(failure) => failure,
        };
        self.fail(&vm, failure);
    }

    /// Ends all commands and subscriptions with this failure.
    fn fail(&self, vm: &Weak<Vm>, failure: Failure) {
        self.is_closed.set(true);
        let State {
            awaited,
            subscriptions,
            ..
        } = self.state.take();
        for command in awaited {
            match command.what {
                What::Reply(arrival) => arrival.settle(vm, Outcome::Failed(failure)),
                What::Subscribe { subscription, .. } => {
                    subscription.confirmed.settle(vm, Outcome::Failed(failure));
                }
                What::Unsubscribe { .. } => {}
            }
        }
        for subscription in subscriptions.into_values() {
            subscription.end(vm, End::Failed(failure));
        }
    }
}

async fn connect(worker: &Worker, target: &Target) -> Result<PlainStream, Failure> {
    let limits = ConnectLimits {
        name_resolution_delay: Duration::from_millis(50),
        connection_attempt_delay: Duration::from_millis(250),
        connect_timeout: target.connect_timeout,
    };
    let connected = h2o_upstream::connect(worker, &target.host, target.port, limits, |_| true);
    match connected.await {
        Ok((stream, _)) => Ok(stream),
        Err(ConnectError::TimedOut { .. }) => Err(Failure::ConnectTimeout),
        Err(
            ConnectError::Prohibited | ConnectError::Unresolved(_) | ConnectError::Failed { .. },
        ) => Err(Failure::Connection),
    }
}

/// Moves bytes between the socket of a connection and its [`RedisConnection`].
struct Driver {
    connection: Rc<RedisConnection>,
    stream: PlainStream,
    worker: Rc<Worker>,
    vm: Weak<Vm>,
    timer: Timer,
    command_timeout: Duration,
    input: Parser,
    buffer: Box<[u8]>,
}

impl Driver {
    /// Serves the connection. Ready with the reason when it has ended.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Failure> {
        *self.connection.waker.borrow_mut() = Some(task.waker().clone());
        for _ in 0..READS {
            if self.connection.is_closed.get() {
                return Poll::Ready(Failure::Connection);
            }
            let progress = self.write(task).and_then(|()| self.read(task));
            match progress {
                Ok(true) => {}
                Ok(false) => return self.poll_deadline(task).map(|()| Failure::CommandTimeout),
                Err(failure) => return Poll::Ready(failure),
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends as many bytes of commands as the socket takes.
    fn write(&self, task: &mut Context<'_>) -> Result<(), Failure> {
        let state = &mut *self.connection.state.borrow_mut();
        if !self.command_timeout.is_zero() {
            let deadline = self.worker.clock.now() + self.command_timeout;
            let unsent = state.awaited.iter_mut().rev();
            for command in unsent.take_while(|command| command.deadline.is_none()) {
                command.deadline = Some(deadline);
            }
        }
        while !state.outgoing.is_empty() {
            match self.stream.poll_send(task, &state.outgoing) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(sent)) => drop(state.outgoing.drain(..sent)),
                Poll::Ready(Err(_)) => return Err(Failure::Connection),
            }
        }
        Ok(())
    }

    /// Reads once from the socket, and passes complete replies on. Returns false if there is nothing to read, or if the
    /// messages of a subscription are not taken.
    fn read(&mut self, task: &mut Context<'_>) -> Result<bool, Failure> {
        let is_full = {
            let state = self.connection.state.borrow();
            state.subscriptions.values().any(|one| one.is_full())
        };
        if is_full {
            return Ok(false);
        }
        let mut buffer = ReadBuf::new(&mut self.buffer);
        match self.stream.poll_receive(task, &mut buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Err(Failure::Connection),
            Poll::Ready(Ok(())) => self.input.feed(buffer.filled()),
            Poll::Ready(Err(_)) => return Err(Failure::Connection),
        }
        loop {
            match self.input.next_reply() {
                Ok(Some(reply)) => self.take(reply)?,
                Ok(None) => return Ok(true),
                Err(_) => return Err(Failure::Protocol),
            }
        }
    }

    /// Passes a reply to the command that waits for it. The connection's state is not borrowed meanwhile, because a
    /// script may send its next command.
    fn take(&self, reply: Reply) -> Result<(), Failure> {
        let Some(reply) = self.take_push(reply)? else {
            return Ok(());
        };
        let front = self.connection.state.borrow_mut().awaited.pop_front();
        match front.map(|command| command.what) {
            Some(What::Reply(arrival)) => arrival.settle(&self.vm, Outcome::Reply(reply)),
            // Redis has replied with an error instead of confirming the subscription.
            Some(What::Subscribe { subscription, .. }) if matches!(reply, Reply::Error(_)) => {
                let outcome = Outcome::Reply(reply);
                subscription.confirmed.settle(&self.vm, outcome);
            }
            Some(What::Subscribe { subscription, .. }) => {
                let outcome = Outcome::Failed(Failure::Protocol);
                subscription.confirmed.settle(&self.vm, outcome);
                return Err(Failure::Protocol);
            }
            Some(What::Unsubscribe { .. }) => {}
            None => return Err(Failure::Protocol),
        }
        Ok(())
    }

    /// Handles a reply that is a message or a confirmation of a subscription. Returns any other reply.
    fn take_push(&self, reply: Reply) -> Result<Option<Reply>, Failure> {
        let is_expected = {
            let state = self.connection.state.borrow();
            let front = state.awaited.front().map(|command| &command.what);
            !state.subscriptions.is_empty()
                || matches!(
                    front,
                    Some(What::Subscribe { .. } | What::Unsubscribe { .. })
                )
        };
        let push = match &reply {
            Reply::Array(parts) if is_expected => Push::read(parts),
            _ => None,
        };
        let Some(push) = push else {
            return Ok(Some(reply));
        };
        match push {
            Push::Message { topic, from, text } => {
                let found = self
                    .connection
                    .state
                    .borrow()
                    .subscriptions
                    .get(&topic)
                    .cloned();
                if let Some(subscription) = found {
                    subscription.push(&self.vm, from, text);
                }
            }
            Push::Subscribed(topic) => self.on_subscribed(topic)?,
            Push::Unsubscribed(topic) => self.on_unsubscribed(topic.as_ref()),
        }
        Ok(None)
    }

    fn on_subscribed(&self, topic: Topic) -> Result<(), Failure> {
        let confirmed = {
            let state = &mut *self.connection.state.borrow_mut();
            let Some(What::Subscribe {
                missing,
                subscription,
            }) = state.awaited.front_mut().map(|command| &mut command.what)
            else {
                return Err(Failure::Protocol);
            };
            subscription.topics.set(subscription.topics.get() + 1);
            let subscription = Rc::clone(subscription);
            *missing -= 1;
            let is_last = *missing == 0;
            if is_last {
                state.awaited.pop_front();
            }
            let before = state.subscriptions.insert(topic, Rc::clone(&subscription));
            (before, is_last.then_some(subscription))
        };
        if let Some(before) = confirmed.0 {
            before.lose_topic(&self.vm);
        }
        if let Some(subscription) = confirmed.1 {
            let outcome = Outcome::Reply(Reply::Nil);
            subscription.confirmed.settle(&self.vm, outcome);
        }
        Ok(())
    }

    fn on_unsubscribed(&self, topic: Option<&Topic>) {
        let ended = {
            let state = &mut *self.connection.state.borrow_mut();
            if let Some(What::Unsubscribe {
                is_pattern,
                missing,
            }) = state.awaited.front_mut().map(|command| &mut command.what)
            {
                let topics = state.subscriptions.keys();
                let same = topics.filter(|topic| topic.is_pattern == *is_pattern);
                let left = missing.unwrap_or_else(|| same.count().max(1)) - 1;
                *missing = Some(left);
                if left == 0 {
                    state.awaited.pop_front();
                }
            }
            topic.and_then(|topic| state.subscriptions.remove(topic))
        };
        if let Some(subscription) = ended {
            subscription.lose_topic(&self.vm);
        }
    }

    /// Ready when the command that has waited longest for its reply has exceeded its time limit.
    fn poll_deadline(&self, task: &mut Context<'_>) -> Poll<()> {
        let deadline = {
            let state = self.connection.state.borrow();
            let front = state.awaited.front();
            let limited = front.filter(|command| match command.what {
                What::Reply(_) => true,
                What::Subscribe { .. } | What::Unsubscribe { .. } => false,
            });
            limited.and_then(|command| command.deadline)
        };
        let Some(deadline) = deadline else {
            self.timer.clear();
            return Poll::Pending;
        };
        let left = deadline.saturating_duration_since(self.worker.clock.now());
        if left.is_zero() {
            return Poll::Ready(());
        }
        self.timer.set_after(left);
        self.timer.poll_fired(task)
    }
}

/// A message of a subscription, or the confirmation that a subscription has begun or ended.
enum Push {
    Message {
        topic: Topic,
        from: Vec<u8>,
        text: Vec<u8>,
    },
    Subscribed(Topic),
    /// A subscription has ended; `None` if there was no subscription to end.
    Unsubscribed(Option<Topic>),
}

impl Push {
    fn read(parts: &[Reply]) -> Option<Self> {
        let kind = parts.first()?.text()?;
        let (is_pattern, kind) = match kind.strip_prefix(b"p") {
            Some(kind) => (true, kind),
            None => (false, kind),
        };
        let text = |index: usize| parts.get(index).and_then(Reply::text).map(<[u8]>::to_vec);
        let topic = text(1).map(|name| Topic { is_pattern, name });
        match (kind, is_pattern, parts.len()) {
            (b"message", false, 3) | (b"message", true, 4) => Some(Self::Message {
                topic: topic?,
                from: text(parts.len() - 2)?,
                text: text(parts.len() - 1)?,
            }),
            (b"subscribe", _, 3) => Some(Self::Subscribed(topic?)),
            (b"unsubscribe", _, 3) => Some(Self::Unsubscribed(topic)),
            _ => None,
        }
    }
}
