//! A connection to Redis: sends commands, and hands their replies to who waits for them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use h2o_exchange::{Timer, Worker};
use h2o_mruby::Vm;
use h2o_upstream::{ConnectError, ConnectLimits};
use rustc_hash::FxHashMap;
use tokio::net::TcpStream;

use super::reply::{Parser, Reply, encode};
use super::subscription::{End, Subscription};
use crate::mruby::arrival::Arrival;

/// Most bytes of commands that wait to be sent.
const MAX_OUTGOING: usize = 64 << 20;
/// Most reads from one Redis connection per turn of the event loop, so that other connections get their turn.
const READS: usize = 16;
const READ_SIZE: usize = 64 * 1024;

/// What becomes of a command.
pub(super) enum Outcome {
    Reply(Reply),
    Failed(Failure),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Connection,
    ConnectTimeout,
    CommandTimeout,
    Protocol,
}

/// Where a connection leads, and how long it may take.
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) connect_timeout: Duration,
    /// Zero: none.
    pub(super) command_timeout: Duration,
}

/// What the connection's task and the objects of Ruby share.
#[derive(Default)]
pub(super) struct Link {
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

/// A channel, or a pattern of channels.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Topic {
    is_pattern: bool,
    name: Vec<u8>,
}

/// A command whose reply has not come.
struct Awaited {
    /// When the command fails for want of a reply; `None` before the command is sent, and for commands without a time
    /// limit.
    deadline: Option<Instant>,
    what: What,
}

enum What {
    Reply(Arrival<Outcome>),
    /// Confirmations of a subscription.
    Subscribe {
        missing: usize,
        subscription: Rc<Subscription>,
    },
    /// Confirmations that subscriptions to channels or to patterns have ended; `None`: as many as there are.
    Unsubscribe {
        is_pattern: bool,
        missing: Option<usize>,
    },
}

/// More is to be sent than is kept.
pub(super) struct Full;

impl Link {
    /// Whether it is connecting or connected.
    pub(super) const fn is_open(&self) -> bool {
        !self.is_closed.get()
    }

    /// Closes it: what is awaited fails.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.wake();
    }

    /// Sends a command.
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

    /// Connects, and serves the connection until it ends.
    pub(super) async fn run(self: Rc<Self>, worker: Rc<Worker>, target: Target, vm: Weak<Vm>) {
        let failure = match connect(&worker, &target).await {
            Ok(stream) => {
                let mut driver = Driver {
                    timer: Timer::new(&worker.timers),
                    link: Rc::clone(&self),
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

    /// Tells all who wait.
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

async fn connect(worker: &Worker, target: &Target) -> Result<TcpStream, Failure> {
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

/// Moves octets between the socket and a link.
struct Driver {
    link: Rc<Link>,
    stream: TcpStream,
    worker: Rc<Worker>,
    vm: Weak<Vm>,
    timer: Timer,
    command_timeout: Duration,
    input: Parser,
    buffer: Box<[u8]>,
}

impl Driver {
    /// Serves the connection. Ready when it has ended.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Failure> {
        *self.link.waker.borrow_mut() = Some(task.waker().clone());
        for _ in 0..READS {
            if self.link.is_closed.get() {
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

    /// Sends what the socket takes.
    fn write(&self, task: &mut Context<'_>) -> Result<(), Failure> {
        let state = &mut *self.link.state.borrow_mut();
        if !self.command_timeout.is_zero() {
            let deadline = self.worker.clock.now() + self.command_timeout;
            let unsent = state.awaited.iter_mut().rev();
            for command in unsent.take_while(|command| command.deadline.is_none()) {
                command.deadline = Some(deadline);
            }
        }
        while !state.outgoing.is_empty() {
            if self.stream.poll_write_ready(task).is_pending() {
                return Ok(());
            }
            match self.stream.try_write(&state.outgoing) {
                Ok(sent) => drop(state.outgoing.drain(..sent)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Failure::Connection),
            }
        }
        Ok(())
    }

    /// Reads once, and hands out the replies. Returns false if there is nothing to read, or nobody to take it.
    fn read(&mut self, task: &mut Context<'_>) -> Result<bool, Failure> {
        let is_full = {
            let state = self.link.state.borrow();
            state.subscriptions.values().any(|one| one.is_full())
        };
        if is_full || self.stream.poll_read_ready(task).is_pending() {
            return Ok(false);
        }
        match self.stream.try_read(&mut self.buffer) {
            Ok(0) => return Err(Failure::Connection),
            Ok(len) => self.input.feed(&self.buffer[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
            Err(_) => return Err(Failure::Connection),
        }
        loop {
            match self.input.next_reply() {
                Ok(Some(reply)) => self.take(reply)?,
                Ok(None) => return Ok(true),
                Err(_) => return Err(Failure::Protocol),
            }
        }
    }

    /// Hands a reply to who waits for it. The state is not borrowed meanwhile: a script may send its next command.
    fn take(&self, reply: Reply) -> Result<(), Failure> {
        let Some(reply) = self.take_push(reply)? else {
            return Ok(());
        };
        let front = self.link.state.borrow_mut().awaited.pop_front();
        match front.map(|command| command.what) {
            Some(What::Reply(arrival)) => arrival.settle(&self.vm, Outcome::Reply(reply)),
            // An error in place of the confirmation.
            Some(What::Subscribe { subscription, .. }) => {
                let outcome = Outcome::Reply(reply);
                subscription.confirmed.settle(&self.vm, outcome);
            }
            Some(What::Unsubscribe { .. }) => {}
            None => return Err(Failure::Protocol),
        }
        Ok(())
    }

    /// Takes a message of a subscription or a confirmation; returns other replies.
    fn take_push(&self, reply: Reply) -> Result<Option<Reply>, Failure> {
        let is_expected = {
            let state = self.link.state.borrow();
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
                let found = self.link.state.borrow().subscriptions.get(&topic).cloned();
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
            let state = &mut *self.link.state.borrow_mut();
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
            let state = &mut *self.link.state.borrow_mut();
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

    /// Ready when the command that waits longest has waited too long.
    fn poll_deadline(&self, task: &mut Context<'_>) -> Poll<()> {
        let deadline = {
            let state = self.link.state.borrow();
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

/// What Redis sends without being asked.
enum Push {
    Message {
        topic: Topic,
        from: Vec<u8>,
        text: Vec<u8>,
    },
    Subscribed(Topic),
    /// `None`: there was no subscription.
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
