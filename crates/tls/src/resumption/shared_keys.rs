//! Ticket keys in memcached or Redis, which several servers share.

use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use h2o_log::report;

use crate::clock::unix_now;
use crate::resumption::key_format;
use crate::resumption::stores::{Conversation, SharedStore};
use crate::resumption::tickets::{KeyRing, TicketAlgorithms};

/// Where the ticket keys are: a store, and the key of an entry in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedEntry {
    pub(crate) store: SharedStore,
    pub(crate) key: Box<str>,
}

/// How long reading and writing the keys may take, without the time to resolve the name of the store's host.
const LIMIT: Duration = Duration::from_secs(5);
/// How often the store is read. New keys are used a minute after they were written, when all servers have read them.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait before reading again from a store that did not answer.
const RETRY: Duration = Duration::from_secs(2);
/// How long the start of the server waits for the first ticket keys: without keys, clients get no tickets.
const START: Duration = Duration::from_secs(1);
/// Number of attempts to write new keys to the store before the thread waits for its next read. An attempt fails if another server
/// has changed the entry since it was read.
const ATTEMPTS: usize = 3;

/// A thread that copies the ticket keys in the store to this server. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    _ends: Sender<()>,
}

impl SharedKeys {
    /// Starts the thread, which is the only one that talks to the store, and waits a moment for the first keys.
    pub(crate) fn start(
        entry: &SharedEntry,
        algorithms: TicketAlgorithms,
        lifetime_secs: u64,
        ring: Arc<RwLock<KeyRing>>,
    ) -> Self {
        let (ends, end) = mpsc::channel();
        let (looked, has_looked) = mpsc::channel();
        let mut keeper = Keeper {
            entry: entry.clone(),
            algorithms,
            lifetime_secs,
            ring,
            last: None,
        };
        let thread = std::thread::Builder::new().name("ticket-keys".to_owned());
        match thread.spawn(move || keeper.run(&end, &looked)) {
            Ok(_) => drop(has_looked.recv_timeout(START)),
            Err(error) => report!(
                error,
                "cannot load session ticket secrets from {}:{}",
                entry.store.address(),
                h2o_log::reason(&error)
            ),
        }
        Self { _ends: ends }
    }
}

struct Keeper {
    entry: SharedEntry,
    algorithms: TicketAlgorithms,
    lifetime_secs: u64,
    ring: Arc<RwLock<KeyRing>>,
    /// The result of the last read of the store: a failure that persists is logged once.
    last: Option<Result<(), String>>,
}

impl Keeper {
    fn run(&mut self, end: &Receiver<()>, looked: &Sender<()>) {
        loop {
            let pause = self.look();
            let _ = looked.send(());
            if end.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Reads the keys from the store, and returns how long to wait before the next read.
    fn look(&mut self) -> Duration {
        let before = self
            .ring
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let result = self.entry.store.connect(LIMIT).and_then(|mut store| {
            synchronize(
                &mut store,
                &self.entry.key,
                &before,
                self.algorithms,
                self.lifetime_secs,
                unix_now(),
            )
        });
        let store = self.entry.store.address();
        let (result, pause) = match result {
            Ok((ring, garbage)) => {
                *self.ring.write().unwrap_or_else(PoisonError::into_inner) = ring;
                if let Some(error) = garbage {
                    report!(
                        error,
                        "failed to load session ticket secrets from {store}:{error}, they are replaced"
                    );
                }
                (Ok(()), INTERVAL)
            }
            Err(error) => (Err(h2o_log::reason(&error)), RETRY),
        };
        if self.last.as_ref() != Some(&result) {
            match &result {
                Ok(()) => report!(notice, "session ticket secrets have been (re)loaded"),
                Err(reason) => report!(
                    error,
                    "cannot load session ticket secrets from {store}:{reason}"
                ),
            }
        }
        self.last = Some(result);
        pause
    }
}

/// Returns the ticket keys in the store, after a new key was written to it if one is due. If the store has no usable keys, as
/// after its restart, this server writes the keys that it has. The second value says what was wrong with the contents of the
/// entry.
pub(super) fn synchronize<S: Read + Write>(
    store: &mut Conversation<S>,
    key: &str,
    before: &KeyRing,
    algorithms: TicketAlgorithms,
    lifetime_secs: u64,
    now: u64,
) -> io::Result<(KeyRing, Option<String>)> {
    let (mut latest, mut garbage) = (None, None);
    for _ in 0..ATTEMPTS {
        let stored = store.get(key)?;
        let found = stored.as_ref().and_then(|stored| {
            let parsed = key_format::parse("session ticket secrets", &stored.value);
            parsed
                .map_err(|error| garbage = Some(error.to_string()))
                .ok()
        });
        latest.clone_from(&found);
        if let Some(ring) = &found
            && !ring.is_stale(now, lifetime_secs)
        {
            break;
        }
        let mut ring = found.unwrap_or_else(|| before.clone());
        ring.rotate(now, lifetime_secs, algorithms)
            .map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let text = key_format::to_text(&ring);
        store.replace(key, stored.as_ref(), text.as_bytes(), lifetime_secs, now)?;
    }
    let ring = latest.ok_or_else(|| {
        io::Error::other("the store does not return the keys that were written to it")
    })?;
    Ok((ring, garbage))
}
