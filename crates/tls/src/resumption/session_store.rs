//! Sessions of TLS 1.2 in memcached or Redis, which several servers share.
//!
//! Separate threads talk to the store. A handshake waits for a session for a limited time, without blocking its worker. While the
//! store is gone, handshakes do not wait, and are full handshakes.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use h2o_log::{LineLimit, report};

use crate::clock::unix_now;
use crate::resumption::binding::Binding;
use crate::resumption::session_cache::SessionCache;
use crate::resumption::session_format::{self, Wanted};
use crate::resumption::stores::{Connection, Conversation, SharedStore, StoreKind, now};

/// Limit of the time that a handshake waits for the store. If all threads are busy waiting for the store, a handshake may wait
/// twice as long.
const LIMIT: Duration = Duration::from_millis(500);
/// How long a thread waits before it connects again, after the store has failed.
const RETRY: Duration = Duration::from_secs(1);
/// Limit of the number of commands that wait for a thread. Beyond it, sessions are neither looked up nor written.
const MAX_WAITING: usize = 1024;

/// Limits the lines about failures of the store in the error log: the store may fail as often as it is asked.
static FAILURES: LineLimit = LineLimit::per_minute(6);

/// The settings of the store in which sessions are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionStoreSettings {
    pub(crate) store: SharedStore,
    /// The beginning of the keys of all entries.
    pub(crate) prefix: Box<str>,
    /// Number of threads, each of which has a connection to the store.
    pub(crate) threads: u16,
}

/// The connections to a store that servers share. Their threads end when this is dropped.
#[derive(Debug)]
pub(crate) struct SessionStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: SessionStoreSettings,
    lifetime_secs: u64,
    /// The cache in memory that receives the sessions found in the store.
    found: Arc<SessionCache>,
    queue: Mutex<Queue>,
    /// Notified when the queue gets a command, and when the threads have to end.
    is_changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The commands that wait for a thread; empty while no thread is connected.
    commands: VecDeque<Command>,
    connected: u16,
    has_ended: bool,
    /// The failure of the store that was logged last: a failure that persists is logged once.
    failure: Option<String>,
}

#[derive(Debug)]
enum Command {
    Get {
        wanted: Box<Wanted>,
        answer: Answer,
        deadline: Instant,
    },
    Put {
        key: String,
        value: String,
    },
}

/// The lookup of a session, which a handshake waits for.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// The session identifier as the store has it: in base64url.
    id: Box<str>,
    state: Arc<Mutex<LookupState>>,
}

#[derive(Debug)]
enum LookupState {
    Waiting(Option<Waker>),
    /// The lookup is over: the session is in [`Shared::found`], or was not found.
    Done,
}

/// The part of a [`Lookup`] that a thread of the store has. When this is dropped, for whatever reason, the lookup is done.
#[derive(Debug)]
struct Answer(Arc<Mutex<LookupState>>);

impl Lookup {
    /// Whether the handshake can go on.
    pub(crate) fn is_done(&self) -> bool {
        matches!(*lock(&self.state), LookupState::Done)
    }

    /// The identifier of the session in base64url.
    pub(crate) fn into_id(self) -> Box<str> {
        self.id
    }

    /// Calls the waker when the lookup is done; at once if it is done already.
    pub(crate) fn wake_when_done(&self, waker: Waker) {
        let mut state = lock(&self.state);
        match &mut *state {
            LookupState::Waiting(waiting) => *waiting = Some(waker),
            LookupState::Done => {
                drop(state);
                waker.wake();
            }
        }
    }
}

impl Answer {
    /// Whether the handshake that waits for the lookup has ended.
    fn is_moot(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *lock(&self.0), LookupState::Done);
        if let LookupState::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl SessionStore {
    /// Starts the threads that talk to the store. They put the sessions that they find into `found`.
    pub(crate) fn start(
        settings: &SessionStoreSettings,
        lifetime_secs: u64,
        found: &Arc<SessionCache>,
    ) -> Self {
        let shared = Arc::new(Shared {
            settings: settings.clone(),
            lifetime_secs,
            found: Arc::clone(found),
            queue: Mutex::default(),
            is_changed: Condvar::new(),
        });
        for _ in 0..settings.threads {
            let thread = std::thread::Builder::new().name("session-store".to_owned());
            let shared_by_thread = Arc::clone(&shared);
            if let Err(error) = thread.spawn(move || shared_by_thread.run()) {
                shared.on_failure(&error);
                break;
            }
        }
        Self(shared)
    }

    /// Begins the lookup of a session. `None` if the store cannot be asked.
    pub(crate) fn look_up(&self, wanted: Wanted) -> Option<Lookup> {
        let state = Arc::new(Mutex::new(LookupState::Waiting(None)));
        let id = URL_SAFE_NO_PAD.encode(wanted.id).into();
        let command = Command::Get {
            wanted: Box::new(wanted),
            answer: Answer(Arc::clone(&state)),
            deadline: now() + LIMIT,
        };
        self.0.submit(command).then_some(Lookup { id, state })
    }

    /// Writes a session, which has the form of rustls, to the store. Does nothing while the store cannot be asked.
    pub(crate) fn put(&self, id: &[u8], binding: &Binding, value: &[u8]) {
        let shared = &self.0;
        if let Some(value) = session_format::encode(value, id, binding, shared.lifetime_secs) {
            shared.submit(Command::Put {
                key: shared.key(id),
                value: URL_SAFE_NO_PAD.encode(value),
            });
        }
    }
}

impl Drop for SessionStore {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.has_ended = true;
        let commands = std::mem::take(&mut queue.commands);
        drop(queue);
        // Dropping the commands ends the lookups that wait, and calls their wakers; the queue must not be locked meanwhile.
        drop(commands);
        self.0.is_changed.notify_all();
    }
}

/// Whether an error says that the other side has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

impl Shared {
    /// Adds a command to the queue. Returns false if no thread is connected, or too many commands wait.
    fn submit(&self, command: Command) -> bool {
        let mut queue = self.lock();
        if queue.connected == 0 || queue.commands.len() >= MAX_WAITING {
            return false;
        }
        queue.commands.push_back(command);
        drop(queue);
        self.is_changed.notify_one();
        true
    }

    /// Runs a thread of the store until the [`SessionStore`] is dropped.
    fn run(&self) {
        while !self.lock().has_ended {
            let served = self.connect().and_then(|mut conversation| {
                self.on_connected();
                let served = self.serve(&mut conversation);
                self.on_disconnected();
                served
            });
            if let Err(error) = served {
                self.on_failure(&error);
                let is_early = |queue: &mut Queue| !queue.has_ended;
                let queue = self.lock();
                // This thread counts as disconnected while it waits, so that no handshake waits for a store that answers only some
                // commands.
                drop(self.is_changed.wait_timeout_while(queue, RETRY, is_early));
            }
        }
    }

    /// Connects to the store, and makes sure that it answers.
    fn connect(&self) -> io::Result<Conversation<Connection>> {
        let mut conversation = self.settings.store.connect(LIMIT)?;
        conversation.get(&self.settings.prefix)?;
        Ok(conversation)
    }

    /// Runs commands until the store fails, or the [`SessionStore`] is dropped.
    fn serve(&self, conversation: &mut Conversation<Connection>) -> io::Result<()> {
        while let Some(command) = self.next() {
            match self.execute(conversation, &command) {
                // Stores and firewalls close connections over which no command came for a while.
                Err(error) if is_closed(&error) => {
                    conversation.reconnect()?;
                    self.execute(conversation, &command)?;
                }
                executed => executed?,
            }
        }
        Ok(())
    }

    fn execute(
        &self,
        conversation: &mut Conversation<Connection>,
        command: &Command,
    ) -> io::Result<()> {
        match command {
            Command::Get {
                wanted,
                answer,
                deadline,
            } => {
                if answer.is_moot() || *deadline <= now() {
                    return Ok(());
                }
                conversation.set_deadline(*deadline);
                if let Some(stored) = conversation.get(&self.key(&wanted.id))? {
                    self.on_found(&stored.value, wanted);
                }
                Ok(())
            }
            Command::Put { key, value } => {
                conversation.set_deadline(now() + LIMIT);
                let lifetime_secs = match self.settings.store.kind {
                    StoreKind::Memcached(_) => self.lifetime_secs,
                    // H2O compatibility: H2O has Redis keep sessions for ten times their lifetime.
                    StoreKind::Redis => self.lifetime_secs.saturating_mul(10),
                };
                let value = value.as_bytes();
                let replaced = conversation.replace(key, None, value, lifetime_secs, unix_now());
                replaced.map(|_| ())
            }
        }
    }

    /// Puts a session that the store has returned into the cache, if it is the one that is wanted.
    fn on_found(&self, text: &[u8], wanted: &Wanted) {
        let decoded = URL_SAFE_NO_PAD.decode(text).ok();
        let session = decoded.and_then(|session| {
            session_format::decode(&session, wanted, self.lifetime_secs, unix_now())
        });
        if let Some(session) = session {
            let (id, binding) = (&wanted.id, &wanted.binding);
            self.found.put(id, binding, &session.value, session.created);
        }
    }

    /// Waits for a command; `None` when the [`SessionStore`] was dropped.
    fn next(&self) -> Option<Command> {
        let is_idle = |queue: &mut Queue| queue.commands.is_empty() && !queue.has_ended;
        let waiting = self.is_changed.wait_while(self.lock(), is_idle);
        let mut queue = waiting.unwrap_or_else(PoisonError::into_inner);
        queue.commands.pop_front()
    }

    fn on_connected(&self) {
        let mut queue = self.lock();
        queue.connected += 1;
        if queue.failure.take().is_some() {
            let store = self.settings.store.address();
            report!(notice, "TLS sessions are kept in {store} again");
        }
    }

    fn on_disconnected(&self) {
        let mut queue = self.lock();
        queue.connected -= 1;
        let unanswered = match queue.connected {
            0 => std::mem::take(&mut queue.commands),
            _ => VecDeque::new(),
        };
        drop(queue);
        // Dropping the commands ends the lookups that wait, and calls their wakers; the queue must not be locked meanwhile.
        drop(unanswered);
    }

    fn on_failure(&self, error: &io::Error) {
        let reason = h2o_log::reason(error);
        let mut queue = self.lock();
        if queue.failure.as_ref() != Some(&reason)
            && let Some(held_back) = FAILURES.admit()
        {
            let store = self.settings.store.address();
            report!(
                error,
                "cannot use the TLS sessions in {store}:{reason}{held_back}"
            );
            queue.failure = Some(reason);
        }
    }

    fn key(&self, id: &[u8]) -> String {
        let id = URL_SAFE_NO_PAD.encode(id);
        format!("{}{id}", self.settings.prefix)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

/// Locks a mutex even if a thread has panicked with it: the data is consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
