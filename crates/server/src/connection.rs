//! One connection: what comes before HTTP (PROXY header, TLS), HTTP, and how it ends.

use std::rc::Rc;
use std::time::{Duration, Instant};

use h2o_exchange::{Address, ConnectionInfo, Counter};
use h2o_http::Scheme;

use crate::budget::{Budget, Cost, Overdrawn};
use crate::context::{Context, LocalListener};
use crate::http1::{Http1, Went};
use crate::io::{Io, Read};
use crate::proxy_protocol::{self, Parsed};
use crate::reactor::Ready;
use crate::socket::Socket;

/// How long a connection is read on after our last octet, so that the client gets to see it.
const LINGER: Duration = Duration::from_secs(2);
/// And how much of what the client still sends is put up with.
const LINGER_OCTETS: usize = 256 * 1024;

/// With more connections than this, idle ones let go of what can be made again.
const MANY: usize = 1000;

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Fate {
    Keep,
    Close,
}

/// One connection of a worker.
pub(crate) struct Connection {
    pub(crate) token: u64,
    pub(crate) accepted: Instant,
    pub(crate) listener: usize,
    pub(crate) io: Io,
    /// Received, in clear text, and not taken by the engine yet.
    pub(crate) input: Vec<u8>,
    id: u64,
    peer: Address,
    info: Option<Rc<ConnectionInfo>>,
    budget: Budget,
    /// What the worker's account of memory has this connection down for.
    charged: usize,
    phase: Phase,
}

enum Phase {
    /// The PROXY header, then the TLS handshake, then the engine.
    Opening {
        until: Instant,
        expects_proxy_header: bool,
    },
    Http1(Http1),
    /// Everything is written; what the client still sends is dropped for a while.
    Lingering {
        until: Instant,
        left: usize,
    },
}

impl Connection {
    pub(crate) fn new(
        context: &Context,
        token: u64,
        id: u64,
        listener: usize,
        socket: Socket,
        peer: Address,
        now: Instant,
    ) -> Self {
        let local = &context.listeners[listener];
        let mut io = Io::new(Rc::new(socket));
        let phase = if local.proxy_protocol || local.tls.is_some() {
            if !local.proxy_protocol {
                io.tls = local
                    .tls
                    .as_ref()
                    .map(|acceptor| Box::new(acceptor.accept()));
            }
            Phase::Opening {
                until: now + context.handshake_timeout,
                expects_proxy_header: local.proxy_protocol,
            }
        } else {
            Phase::Http1(Http1::new(context, Scheme::Http, now))
        };
        Self {
            token,
            accepted: now,
            listener,
            io,
            input: Vec::new(),
            id,
            peer,
            info: None,
            budget: Budget::new(context.budget, now),
            charged: 0,
            phase,
        }
    }

    /// What handlers and logs may know of this connection.
    pub(crate) fn info(&mut self) -> Rc<ConnectionInfo> {
        let info = self.info.get_or_insert_with(|| {
            Rc::new(ConnectionInfo {
                id: self.id,
                peer: self.peer,
                accepted: self.accepted,
                tls: self.io.tls.as_ref().map(|tls| Box::new(tls.info())),
                transport: Rc::clone(&self.io.socket) as Rc<_>,
                listener: self.listener,
            })
        });
        Rc::clone(info)
    }

    /// The socket is ready for something.
    pub(crate) fn on_ready(&mut self, context: &Context, ready: &Ready) -> Fate {
        self.io
            .on_ready(ready.readable, ready.writable, ready.closed);
        self.run(context)
    }

    /// Goes on as far as possible.
    pub(crate) fn run(&mut self, context: &Context) -> Fate {
        let fate = loop {
            let now = context.worker.clock.now();
            match &mut self.phase {
                Phase::Opening { .. } => match self.open(context, now) {
                    None => return Fate::Keep,
                    Some(Fate::Close) => break Fate::Close,
                    Some(Fate::Keep) => {}
                },
                Phase::Http1(_) => match self.run_http1(context) {
                    Fate::Keep => break Fate::Keep,
                    Fate::Close => match self.end(now) {
                        Fate::Keep => {}
                        Fate::Close => break Fate::Close,
                    },
                },
                Phase::Lingering { .. } => break self.linger(context),
            }
        };
        // Where there are many, an idle clear-text connection holds as little as possible.
        if self.io.tls.is_none()
            && self.info.is_some()
            && self.is_idle()
            && context.worker.shared.connections() > MANY
        {
            self.info = None;
        }
        fate
    }

    fn run_http1(&mut self, context: &Context) -> Fate {
        // The driver needs the rest of the connection beside it.
        let placeholder = Phase::Lingering {
            until: self.accepted,
            left: 0,
        };
        let Phase::Http1(mut http1) = std::mem::replace(&mut self.phase, placeholder) else {
            unreachable!("called in this phase only")
        };
        let fate = http1.run(context, self);
        self.phase = Phase::Http1(http1);
        fate
    }

    /// One step of what comes before HTTP. `None`: octets of the client are needed.
    fn open(&mut self, context: &Context, now: Instant) -> Option<Fate> {
        let Phase::Opening {
            expects_proxy_header,
            ..
        } = &mut self.phase
        else {
            return Some(Fate::Keep);
        };
        let local = &context.listeners[self.listener];
        if *expects_proxy_header {
            match self.io.read(context, &mut self.input) {
                Ok(Read::Data) => {}
                Ok(Read::Blocked) => return None,
                Ok(Read::Eof) | Err(_) => return Some(Fate::Close),
            }
            let taken = match proxy_protocol::parse(&self.input) {
                Parsed::Incomplete => return Some(Fate::Keep),
                Parsed::Absent => 0,
                Parsed::Header { len, source } => {
                    self.peer = source.map_or(self.peer, Address::Ip);
                    len
                }
            };
            *expects_proxy_header = false;
            self.input.drain(..taken);
            if let Some(acceptor) = &local.tls {
                self.io.push_back(&std::mem::take(&mut self.input));
                self.io.tls = Some(Box::new(acceptor.accept()));
            }
        }
        if local.tls.is_some() {
            return self.shake_hands(context, now);
        }
        self.phase = Phase::Http1(Http1::new(context, Scheme::Http, now));
        Some(Fate::Keep)
    }

    fn shake_hands(&mut self, context: &Context, now: Instant) -> Option<Fate> {
        let mut input = context.scratch.input.take();
        input.append(&mut self.input);
        let read = self.io.read(context, &mut input);
        self.input.extend_from_slice(&input);
        context.scratch.input.give_back(input);
        if self.io.flush().is_err() {
            return Some(Fate::Close);
        }
        match read {
            Ok(Read::Eof) => return Some(Fate::Close),
            Err(_) => {
                context.worker.counters.count(Counter::SslErrors);
                return Some(Fate::Close);
            }
            Ok(Read::Data | Read::Blocked) => {}
        }
        if self.io.is_handshaking {
            return matches!(read, Ok(Read::Data)).then_some(Fate::Keep);
        }
        self.count_handshake(context, now);
        self.phase = Phase::Http1(Http1::new(context, Scheme::Https, now));
        Some(Fate::Keep)
    }

    fn count_handshake(&mut self, context: &Context, now: Instant) {
        let info = self.info();
        let counters = &context.worker.counters;
        let took = u64::try_from((now - self.accepted).as_micros()).unwrap_or(u64::MAX);
        let (handshake, time) = match &info.tls {
            Some(tls) if tls.resumed => {
                (Counter::SslHandshakeResume, Counter::SslHandshakeTimeResume)
            }
            _ => (Counter::SslHandshakeFull, Counter::SslHandshakeTimeFull),
        };
        counters.count(handshake);
        counters.add(time, took);
        if info
            .tls
            .as_ref()
            .is_some_and(|tls| tls.alpn == Some("http/1.1"))
        {
            counters.count(Counter::SslAlpnH1);
        }
    }

    /// Everything is written. Lets the client see it before the socket goes.
    fn end(&mut self, now: Instant) -> Fate {
        let must_linger = match &self.phase {
            Phase::Http1(http1) => {
                http1.lingers() || !self.input.is_empty() || self.io.may_have_input()
            }
            Phase::Opening { .. } | Phase::Lingering { .. } => false,
        };
        self.io.close_notify();
        if !must_linger {
            return Fate::Close;
        }
        self.io.socket.shut_down_write();
        self.input = Vec::new();
        self.info = None;
        self.phase = Phase::Lingering {
            until: now + LINGER,
            left: LINGER_OCTETS,
        };
        Fate::Keep
    }

    fn linger(&mut self, context: &Context) -> Fate {
        let Phase::Lingering { left, .. } = &mut self.phase else {
            return Fate::Close;
        };
        // Nothing is decrypted any more.
        self.io.tls = None;
        let mut dropped = context.scratch.input.take();
        let fate = loop {
            dropped.clear();
            match self.io.read(context, &mut dropped) {
                Ok(Read::Data) if *left > dropped.len() => *left -= dropped.len(),
                Ok(Read::Blocked) => break Fate::Keep,
                Ok(Read::Data | Read::Eof) | Err(_) => break Fate::Close,
            }
        };
        context.scratch.input.give_back(dropped);
        fate
    }

    /// The peer made us do something that got nobody anywhere.
    pub(crate) fn pay(&mut self, context: &Context, cost: Cost) -> Went {
        match self
            .budget
            .spend(cost, context.budget, context.worker.clock.now())
        {
            Ok(()) => Went::On,
            Err(Overdrawn) => {
                context.worker.counters.count(Counter::Overdrawn);
                Went::Over
            }
        }
    }

    /// The peer was served.
    pub(crate) fn earn(&mut self, context: &Context) {
        self.budget.earn(context.budget);
    }

    /// Octets of memory this connection holds in buffers.
    fn retained(&self) -> usize {
        let http1 = match &self.phase {
            Phase::Http1(http1) => http1.retained(),
            Phase::Opening { .. } | Phase::Lingering { .. } => 0,
        };
        self.input.capacity() + self.io.retained() + http1
    }

    /// Brings the worker's account of memory up to date.
    pub(crate) fn settle_account(&mut self, context: &Context) {
        let retained = self.retained();
        if retained != self.charged {
            context
                .memory
                .used
                .set(context.memory.used.get() + retained - self.charged);
            self.charged = retained;
        }
    }

    /// What the account has this connection down for.
    pub(crate) const fn charged(&self) -> usize {
        self.charged
    }

    /// When [`Connection::on_timeout`] is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Opening { until, .. } | Phase::Lingering { until, .. } => Some(*until),
            Phase::Http1(http1) => http1.deadline(),
        }
    }

    /// The time has come.
    pub(crate) fn on_timeout(&mut self, context: &Context, now: Instant) -> Fate {
        match &mut self.phase {
            Phase::Opening { until, .. } | Phase::Lingering { until, .. } if *until <= now => {
                Fate::Close
            }
            Phase::Opening { .. } | Phase::Lingering { .. } => Fate::Keep,
            Phase::Http1(_) => {
                let placeholder = Phase::Lingering {
                    until: self.accepted,
                    left: 0,
                };
                let Phase::Http1(mut http1) = std::mem::replace(&mut self.phase, placeholder)
                else {
                    unreachable!("matched above")
                };
                let is_idle = http1.is_idle();
                let fate = http1.on_timeout(context, self, now);
                self.phase = Phase::Http1(http1);
                // A response that is cut off must not look complete.
                if fate == Fate::Close && is_idle {
                    self.io.close_notify();
                }
                fate
            }
        }
    }

    /// The process is to end: the next response is the last one.
    pub(crate) const fn shut_down(&mut self) {
        if let Phase::Http1(http1) = &mut self.phase {
            http1.shut_down();
        }
    }

    /// True between requests.
    pub(crate) const fn is_idle(&self) -> bool {
        match &self.phase {
            Phase::Http1(http1) => http1.is_idle() && self.input.is_empty(),
            Phase::Opening { .. } | Phase::Lingering { .. } => false,
        }
    }

    /// The connection goes, whatever it was doing: what it began is logged.
    pub(crate) fn abandon(&mut self) {
        if let Phase::Http1(http1) = &mut self.phase {
            http1.abandon();
        }
    }
}

impl LocalListener {
    /// The scheme of requests that come through it.
    pub(crate) const fn scheme(&self) -> Scheme {
        if self.tls.is_some() {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }
}
