//! Shares UDP sockets with the other generations of this server: under a supervisor, the processes before and after an upgrade of
//! the binary.
//!
//! All generations have the same sockets, so only the youngest reads them. A datagram for a connection of an older generation,
//! recognised by the connection id, is passed to that process over a Unix socket between the two. An older generation itself sends
//! on the shared UDP socket, and reads it again if all younger generations have ended.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use h2o_log::{reason, report};
use h2o_quic::{IdReader, Keys};
use h2o_tls::QuicSecret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use super::mail::{Mail, Mailbox};

/// Longest message between generations, in bytes: a UDP datagram of any size and the data that describes it.
const MAX_MESSAGE: usize = 65_535 + 64;
/// Interval at which the thread checks whether the keys of connection ids have changed. It is shorter than the minute between the
/// generation of a key and its first use.
const KEY_INTERVAL: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};
/// How long a generation waits for the older ones to stop reading the UDP sockets. After that, an older generation that has not
/// reported it counts as hung. If it is only late, both processes read datagrams for some time, and each passes on those of the
/// other's connections.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Largest number of messages that are read from one generation before those of the others are read.
const MESSAGES: usize = 64;

/// The kinds of messages between generations; the first byte of a message is its kind.
mod kind {
    /// To a younger generation: the sender's generation number, followed by the number and the secret of each key of its connection
    /// ids.
    pub(super) const KEYS: u8 = b'K';
    /// To an older generation: the sender serves clients now, and wants to read the UDP sockets alone.
    pub(super) const SERVES: u8 = b'R';
    /// To a younger generation: the sender has stopped reading the UDP sockets.
    pub(super) const STOPPED: u8 = b'S';
    /// To an older generation: a wrapped UDP datagram for one of the recipient's connections.
    pub(super) const DATAGRAM: u8 = b'D';
}

/// The Unix sockets to the other generations of this server, opened before the workers run.
pub(crate) struct Handover {
    listener: OwnedFd,
    predecessors: Vec<OwnedFd>,
    generation: u8,
}

/// State that the workers share with the thread that talks to the other generations.
#[derive(Default)]
pub(crate) struct OtherGenerations {
    /// The generation number of this process, modulo 256.
    pub(crate) generation: u8,
    /// Whether this process must not read the UDP sockets, because another generation does.
    is_silent: AtomicBool,
    /// Number of older generations; workers check this number for each datagram, without taking the lock.
    count: AtomicUsize,
    predecessors: RwLock<Vec<Arc<Predecessor>>>,
    /// The secrets by which other generations can read the connection ids of this process.
    secrets: Mutex<Vec<QuicSecret>>,
}

/// An older generation of this server that has not ended.
pub(crate) struct Predecessor {
    socket: OwnedFd,
    generation: u8,
    ids: IdReader,
}

impl Handover {
    /// Listens for younger generations, and connects to the older ones that have the same UDP sockets. Must be called
    /// with the rights of the starting user, by which the generations recognise each other.
    pub(crate) fn open(sockets: &[&OwnedFd], generation: u64) -> io::Result<Option<Self>> {
        let mut numbers = Vec::new();
        for socket in sockets {
            numbers.push(rustix::fs::fstat(socket)?.st_ino);
        }
        let Some(number) = numbers.into_iter().min() else {
            return Ok(None);
        };
        let common = format!("h2o-quic-{number}-");
        let own = format!("{common}{generation}");
        let listener = new_socket(SocketFlags::NONBLOCK)?;
        rustix::net::bind(
            &listener,
            &SocketAddrUnix::new_abstract_name(own.as_bytes())?,
        )?;
        rustix::net::listen(&listener, 16)?;
        let mut predecessors = Vec::new();
        let user = rustix::process::geteuid();
        for name in abstract_names(&common).filter(|name| *name != own) {
            // The socket is non-blocking: an older generation that hangs accepts no connection, and its accept queue may be full.
            let socket = new_socket(SocketFlags::NONBLOCK)?;
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            // The call of `connect` fails if the older generation has ended since its name was listed.
            let is_connected = rustix::net::connect(&socket, &address).is_ok();
            if is_connected && sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == user)
            {
                predecessors.push(socket);
            }
        }
        Ok(Some(Self {
            listener,
            predecessors,
            generation: u8::try_from(generation % 256).unwrap_or(0),
        }))
    }

    /// The state of the older generations for the workers.
    pub(crate) fn other_generations(&self) -> OtherGenerations {
        OtherGenerations {
            generation: self.generation,
            is_silent: AtomicBool::new(!self.predecessors.is_empty()),
            ..OtherGenerations::default()
        }
    }

    /// Starts the thread that talks to other generations, now that the workers serve.
    pub(crate) fn begin(self, other_generations: Arc<OtherGenerations>, mailboxes: Arc<[Mailbox]>) {
        let user = rustix::process::geteuid();
        let starting_user = sockopt::socket_peercred(&self.listener).map_or(user, |own| own.uid);
        let mut handover = HandoverThread {
            listener: self.listener,
            starting_user,
            older: self.predecessors.into_iter().map(Older::new).collect(),
            younger: Vec::new(),
            stop_by: now() + STOP_LIMIT,
            other_generations: Arc::clone(&other_generations),
            mailboxes: Arc::clone(&mailboxes),
            buffer: vec![0; MAX_MESSAGE],
        };
        let thread = std::thread::Builder::new().name("quic-handover".to_owned());
        if let Err(error) = thread.spawn(move || handover.run()) {
            let text = reason(&error);
            report!(
                error,
                "QUIC packets for connections of older processes of this server are lost, its thread failed to start: {text}"
            );
            other_generations.end_silence(&mailboxes);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the thread that talks to other processes of the server has no worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}

fn new_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Lists the names of the machine's abstract Unix sockets that begin with `start`.
fn abstract_names(start: &str) -> impl Iterator<Item = String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mark = format!("@{start}");
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7))
        .filter(|name| name.starts_with(&mark))
        .map(|name| name[1..].to_owned())
        .collect();
    // The kernel lists accepted connections under the same name, so that names can occur several times.
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

impl OtherGenerations {
    /// Whether this process must not read the UDP sockets, because another generation does.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Relaxed)
    }

    /// Has the workers of this process read the UDP sockets. Wakes them, since no event tells them of the datagrams that arrived while they
    /// did not.
    fn end_silence(&self, mailboxes: &[Mailbox]) {
        if self.is_silent.swap(false, Relaxed) {
            for mailbox in mailboxes {
                mailbox.wake();
            }
        }
    }

    /// Finds the older generation to whose connection a datagram belongs. `node` is the number of this server in its fleet.
    pub(crate) fn owner(&self, node: u64, data: &[u8]) -> Option<Arc<Predecessor>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let predecessors = self
            .predecessors
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let mut predecessors = predecessors.iter();
        let owner = predecessors
            .find(|predecessor| predecessor.ids.is_of(data, node, predecessor.generation));
        owner.cloned()
    }

    /// Publishes the secrets that other generations need to read the connection ids of this process.
    pub(crate) fn publish(&self, secrets: Vec<QuicSecret>) {
        *self.secrets.lock().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    fn keys_message(&self) -> Vec<u8> {
        let mut message = vec![kind::KEYS, self.generation];
        for secret in &*self.secrets.lock().unwrap_or_else(PoisonError::into_inner) {
            message.push(secret.number);
            message.extend_from_slice(&secret.secret);
        }
        message
    }

    fn set_predecessors(&self, predecessors: Vec<Arc<Predecessor>>) {
        let count = predecessors.len();
        *self
            .predecessors
            .write()
            .unwrap_or_else(PoisonError::into_inner) = predecessors;
        self.count.store(count, Relaxed);
    }
}

impl Predecessor {
    /// Sends a wrapped datagram to the older generation; `message` was begun by [`start_message`]. Returns whether the
    /// socket had room.
    pub(crate) fn send(&self, message: &[u8]) -> bool {
        send(&self.socket, message).is_ok()
    }
}

/// Begins the message that carries a datagram to an older generation; the caller appends the wrapped datagram.
pub(crate) fn start_message(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.push(kind::DATAGRAM);
}

fn send(socket: &OwnedFd, message: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// The state of the thread that talks to the other generations.
struct HandoverThread {
    listener: OwnedFd,
    starting_user: rustix::process::Uid,
    older: Vec<Older>,
    younger: Vec<Younger>,
    /// The time from which on older generations count as hung if they have not reported that they stopped reading.
    stop_by: Instant,
    other_generations: Arc<OtherGenerations>,
    mailboxes: Arc<[Mailbox]>,
    buffer: Vec<u8>,
}

struct Older {
    socket: OwnedFd,
    /// The older generation as the workers see it; present once its keys have come.
    shared: Option<Arc<Predecessor>>,
    /// Whether the older generation has stopped reading the UDP sockets, or this process no longer waits for that.
    has_stopped: bool,
    is_gone: bool,
}

struct Younger {
    socket: OwnedFd,
    /// The message with the keys that was last sent to the younger generation.
    sent_keys: Vec<u8>,
    /// Whether the younger generation reads the UDP sockets.
    reads: bool,
    is_gone: bool,
}

impl Older {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            shared: None,
            has_stopped: false,
            is_gone: false,
        }
    }

    fn take(&mut self, message: &[u8]) {
        match message {
            [kind::STOPPED] => self.has_stopped = true,
            [kind::KEYS, generation, secrets @ ..] => {
                let secrets = secrets.chunks_exact(1 + 32);
                let keys: Vec<Keys> = secrets
                    .map(|secret| Keys::derive(secret[0], &secret[1..]))
                    .collect();
                let socket = self.socket.try_clone();
                self.shared = IdReader::new(&keys).zip(socket.ok()).map(|(ids, socket)| {
                    Arc::new(Predecessor {
                        socket,
                        generation: *generation,
                        ids,
                    })
                });
            }
            _ => {}
        }
    }
}

impl HandoverThread {
    fn run(&mut self) {
        for older in &mut self.older {
            older.is_gone = send(&older.socket, &[kind::SERVES]).is_err();
        }
        loop {
            self.settle();
            let ready = {
                let sockets = self.older.iter().map(|older| &older.socket);
                let sockets = sockets.chain(self.younger.iter().map(|younger| &younger.socket));
                let sockets = std::iter::once(&self.listener).chain(sockets);
                let mut waiting: Vec<PollFd<'_>> = sockets
                    .map(|socket| PollFd::new(socket, PollFlags::IN))
                    .collect();
                match poll(&mut waiting, Some(&self.poll_timeout())) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => {
                        let text = reason(&error.into());
                        report!(
                            error,
                            "QUIC packets for connections of older and newer processes of this server are lost: {text}"
                        );
                        // A younger process that reads the sockets gets all packets; its own thread passes those for this one on.
                        let is_read = |younger: &Younger| younger.reads && !younger.is_gone;
                        if !self.younger.iter().any(is_read) {
                            self.other_generations.end_silence(&self.mailboxes);
                        }
                        return;
                    }
                }
                let waiting = waiting.iter();
                waiting
                    .map(|waiting| !waiting.revents().is_empty())
                    .collect::<Vec<bool>>()
            };
            let (older, younger) = ready[1..].split_at(self.older.len());
            for (at, _) in older.iter().enumerate().filter(|(_, ready)| **ready) {
                self.receive_from_older(at);
            }
            for (at, _) in younger.iter().enumerate().filter(|(_, ready)| **ready) {
                self.receive_from_younger(at);
            }
            if ready[0] {
                self.accept();
            }
        }
    }

    /// How long the thread may wait before [`Self::settle`] has something to do.
    fn poll_timeout(&self) -> Timespec {
        if self.older.iter().all(|older| older.has_stopped) {
            return KEY_INTERVAL;
        }
        let left = self.stop_by.saturating_duration_since(now());
        Timespec::try_from(left).unwrap_or(KEY_INTERVAL)
    }

    /// Forgets generations that have ended, sends changed keys to younger generations, and tells the workers whether they may read
    /// the UDP sockets.
    fn settle(&mut self) {
        self.older.retain(|older| !older.is_gone);
        self.younger.retain(|younger| !younger.is_gone);
        if self.older.iter().any(|older| !older.has_stopped) && self.stop_by <= now() {
            report!(
                warning,
                "an older process of this server hangs: this process reads the QUIC packets without waiting for the older one any longer"
            );
            for older in &mut self.older {
                older.has_stopped = true;
            }
        }
        let shared = self.older.iter().filter_map(|older| older.shared.clone());
        self.other_generations.set_predecessors(shared.collect());
        let keys = self.other_generations.keys_message();
        for younger in self
            .younger
            .iter_mut()
            .filter(|younger| younger.sent_keys != keys)
        {
            if send(&younger.socket, &keys).is_ok() {
                younger.sent_keys.clone_from(&keys);
            }
        }
        let is_silent = self.younger.iter().any(|younger| younger.reads)
            || self.older.iter().any(|older| !older.has_stopped);
        if is_silent {
            self.other_generations.is_silent.store(true, Relaxed);
        } else {
            self.other_generations.end_silence(&self.mailboxes);
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) =
            rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            let peer = sockopt::socket_peercred(&socket);
            if peer.is_ok_and(|peer| peer.uid == self.starting_user) {
                self.younger.push(Younger {
                    socket,
                    sent_keys: Vec::new(),
                    reads: false,
                    is_gone: false,
                });
            }
        }
    }

    fn receive_from_older(&mut self, at: usize) {
        let older = &mut self.older[at];
        for _ in 0..MESSAGES {
            match receive(&older.socket, &mut self.buffer) {
                ReceivedMessage::Message(len) => older.take(&self.buffer[..len]),
                ReceivedMessage::Nothing => return,
                ReceivedMessage::End => {
                    older.is_gone = true;
                    return;
                }
            }
        }
    }

    fn receive_from_younger(&mut self, at: usize) {
        for _ in 0..MESSAGES {
            let younger = &mut self.younger[at];
            match receive(&younger.socket, &mut self.buffer) {
                ReceivedMessage::Message(len) => match &self.buffer[..len] {
                    [kind::SERVES] => {
                        younger.reads = true;
                        self.other_generations.is_silent.store(true, Relaxed);
                        younger.is_gone = send(&younger.socket, &[kind::STOPPED]).is_err();
                    }
                    [kind::DATAGRAM, wrapped @ ..] => deliver(&self.mailboxes, wrapped),
                    _ => {}
                },
                ReceivedMessage::Nothing => return,
                ReceivedMessage::End => {
                    younger.is_gone = true;
                    return;
                }
            }
        }
    }
}

/// Passes a wrapped datagram from another generation to the first worker, which always has UDP sockets.
fn deliver(mailboxes: &[Mailbox], wrapped: &[u8]) {
    if let Some(mailbox) = mailboxes.first() {
        // If the mailbox is full, the datagram counts as lost in the network.
        mailbox.put(Mail::Wrapped(BytesMut::from(wrapped)));
    }
}

enum ReceivedMessage {
    Message(usize),
    Nothing,
    End,
}

fn receive(socket: impl AsFd, buffer: &mut [u8]) -> ReceivedMessage {
    match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
        Ok((_, len)) if len > 0 => ReceivedMessage::Message(len),
        Err(Errno::AGAIN | Errno::INTR) => ReceivedMessage::Nothing,
        Ok(_) | Err(_) => ReceivedMessage::End,
    }
}
