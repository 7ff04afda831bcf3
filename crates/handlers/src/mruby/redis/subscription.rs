//! Messages of the channels that a script has subscribed to.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use h2o_mruby::{Leave, Ticket, Value, Vm};

use super::connection::{Failure, Outcome, RedisConnection};
use crate::mruby::arrival::Arrival;

/// With this many messages queued, nothing more is read from Redis until the script takes some.
const FULL: usize = 1000;
/// With this many bytes of messages queued, nothing more is read from Redis until the script takes some.
const FULL_BYTES: usize = 4 << 20;

/// A subscription of a script to channels of Redis.
pub(super) struct Subscription {
    /// The result of the subscription, which arrives when Redis has confirmed it.
    pub(super) confirmed: Arrival<Outcome>,
    /// Number of channels and patterns that the script is still subscribed to.
    pub(super) topics: Cell<usize>,
    messages: RefCell<VecDeque<Message>>,
    bytes: Cell<usize>,
    end: Cell<Option<End>>,
    /// The strand (fiber) of the script that waits for a message.
    waiting: RefCell<Option<Ticket>>,
    connection: Weak<RedisConnection>,
}

/// The channel and the text of a message.
type Message = (Vec<u8>, Vec<u8>);

/// The reason why a subscription has ended.
#[derive(Clone, Copy)]
pub(super) enum End {
    Unsubscribed,
    Failed(Failure),
}

impl Subscription {
    pub(super) fn new(connection: &Rc<RedisConnection>) -> Self {
        Self {
            confirmed: Arrival::default(),
            topics: Cell::new(0),
            messages: RefCell::default(),
            bytes: Cell::new(0),
            end: Cell::new(None),
            waiting: RefCell::default(),
            connection: Rc::downgrade(connection),
        }
    }

    /// Whether so many messages are queued that nothing more should be read from the connection.
    pub(super) fn is_full(&self) -> bool {
        self.messages.borrow().len() >= FULL || self.bytes.get() >= FULL_BYTES
    }

    pub(super) fn push(&self, vm: &Weak<Vm>, channel: Vec<u8>, text: Vec<u8>) {
        let len = channel.len() + text.len();
        self.bytes.set(self.bytes.get() + len);
        self.messages.borrow_mut().push_back((channel, text));
        self.resume(vm);
    }

    /// Called when the subscription to one of the channels or patterns has ended.
    pub(super) fn lose_topic(&self, vm: &Weak<Vm>) {
        let left = self.topics.get().saturating_sub(1);
        self.topics.set(left);
        if left == 0 {
            self.end(vm, End::Unsubscribed);
        }
    }

    pub(super) fn end(&self, vm: &Weak<Vm>, end: End) {
        self.end.set(Some(end));
        self.resume(vm);
    }

    fn resume(&self, vm: &Weak<Vm>) {
        let ticket = self.waiting.borrow_mut().take();
        if let (Some(ticket), Some(vm)) = (ticket, vm.upgrade()) {
            vm.resume(ticket, |vm| {
                self.next(vm).unwrap_or_else(|exception| exception)
            });
        }
    }

    /// The next message as an Array; `nil` after the end of the subscription; an exception if the connection has
    /// failed.
    fn next(&self, vm: &Vm) -> Result<Value, Value> {
        let message = self.messages.borrow_mut().pop_front();
        if let Some((channel, text)) = message {
            self.bytes
                .set(self.bytes.get() - channel.len() - text.len());
            if let Some(connection) = self.connection.upgrade() {
                connection.wake();
            }
            return vm.array(&[vm.string(channel)?, vm.string(text)?]);
        }
        match self.end.get() {
            Some(End::Failed(failure)) => Ok(super::exception(vm, failure)),
            Some(End::Unsubscribed) | None => Ok(Value::nil()),
        }
    }

    /// Returns the next message to Ruby. The strand (fiber) waits until there is one.
    pub(super) fn shift(&self, vm: &Vm) -> Result<Value, Leave> {
        if self.end.get().is_some() || !self.messages.borrow().is_empty() {
            return self.next(vm).map_err(Leave::Raise);
        }
        if self.waiting.borrow().is_some() {
            return Err(Leave::runtime("another fiber waits for this channel"));
        }
        let ticket = vm.suspend()?;
        *self.waiting.borrow_mut() = Some(ticket);
        Err(Leave::Wait)
    }
}
