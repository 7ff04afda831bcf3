//! The server's side of the key process: starting it, giving it keys, and starting it again when it has died.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use h2o_opener::{receive_message, send_message};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustls::sign::SigningKey;
use rustls::{SignatureAlgorithm, SignatureScheme};

use crate::message::{DONE, KeyFacts, LONGEST, order};
use crate::process::KEY_PROCESS_ARGUMENT;
use crate::remote::{PATIENCE, RemoteKey};

/// The program that is started as the key process; not set in processes that keep keys in their own memory.
static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// The key process that is running.
static HOLDER: Mutex<Option<Holder>> = Mutex::new(None);

/// Generation of the key process that answers: the number of times a key process was started; 0 if none answers.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The places in the key process of keys that this process no longer uses. Any thread may drop a key, but only the main
/// thread tells the key process about it.
static UNUSED: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// Whether the key process has failed to answer a request.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether the key process could not be started again. This is reported only once.
static IS_GONE: AtomicBool = AtomicBool::new(false);

struct Holder {
    child: Child,
    /// The socket for the orders of the main thread to the key process.
    socket: OwnedFd,
    generation: u64,
    keys: Vec<Weak<KeyRecord>>,
}

/// The place of a key in a key process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The generation of the key process that has the key.
    pub(crate) generation: u64,
    /// The number of the key in that process.
    pub(crate) number: u32,
}

/// The server's record of a key that is in the key process.
#[derive(Debug)]
pub(crate) struct KeyRecord {
    /// The file of the key, which the key process reads again after a new key process was started.
    path: Box<Path>,
    place: Mutex<Option<Place>>,
    pub(crate) algorithm: SignatureAlgorithm,
    pub(crate) schemes: Vec<SignatureScheme>,
    pub(crate) public_key: Vec<u8>,
}

/// The result of [`revive`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revival {
    /// The key process had ended or hung, and was started again. The value names the keys that could not be read again.
    Revived(Vec<String>),
    /// The key process could not be started again, for the reason given.
    Failed(String),
}

fn lock() -> MutexGuard<'static, Option<Holder>> {
    HOLDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allows this process to isolate keys. The key process is `program`, started with [`KEY_PROCESS_ARGUMENT`].
pub fn allow(program: &'static str) {
    let _ = PROGRAM.set(program);
}

/// Lets the key process read the private key at `path`, and starts that process if it is not running. `None` if this
/// process keeps keys in its own memory.
///
/// # Errors
/// The reason why the key cannot be used.
pub fn isolate(path: &Path) -> Option<Result<Arc<dyn SigningKey>, String>> {
    let program = PROGRAM.get()?;
    Some(load(program, path))
}

fn load(program: &str, path: &Path) -> Result<Arc<dyn SigningKey>, String> {
    let file = h2o_opener::open(path).map_err(|error| h2o_log::reason(&error))?;
    let mut holder = lock();
    let holder = match &mut *holder {
        Some(holder) => holder,
        empty @ None => {
            let started = Holder::start(program, 1).map_err(|error| {
                format!(
                    "failed to start the key process: {}",
                    h2o_log::reason(&error)
                )
            })?;
            GENERATION.store(started.generation, Relaxed);
            empty.insert(started)
        }
    };
    let facts = holder.load(file.as_fd())?;
    let record = Arc::new(KeyRecord {
        path: path.into(),
        place: Mutex::new(Some(Place {
            generation: holder.generation,
            number: facts.number,
        })),
        algorithm: facts.algorithm,
        schemes: facts.schemes,
        public_key: facts.public_key,
    });
    holder.keys.retain(|known| known.strong_count() > 0);
    holder.keys.push(Arc::downgrade(&record));
    Ok(Arc::new(RemoteKey(record)))
}

/// Makes the key process, if there is one, run as the user that this process will run as.
///
/// # Errors
/// The message about the failure, for the user.
pub fn switch_user(user: u32, group: u32) -> Result<(), String> {
    let Some(holder) = &*lock() else {
        return Ok(());
    };
    let text = [user.to_be_bytes(), group.to_be_bytes()].concat();
    holder.ask(order::SWITCH_USER, &text, None).map(drop)
}

/// Starts the key process again if it has ended or hangs, and makes it forget keys that this process no longer uses.
/// Called at regular intervals.
pub fn revive() -> Option<Revival> {
    let mut holder = lock();
    let dead = holder.as_mut()?;
    dead.forget_unused();
    let has_ended = !matches!(dead.child.try_wait(), Ok(None));
    if !has_ended && !HAS_FAILED.load(Relaxed) {
        return None;
    }
    GENERATION.store(0, Relaxed);
    // The process may hang rather than have ended, so it is killed.
    let _ = dead.child.kill();
    let _ = dead.child.wait();
    let program = PROGRAM.get()?;
    let started = Holder::start(program, dead.generation + 1);
    let mut alive = match started {
        Ok(alive) => alive,
        Err(error) => {
            let is_new = !IS_GONE.swap(true, Relaxed);
            return is_new.then(|| Revival::Failed(h2o_log::reason(&error)));
        }
    };
    alive.keys = std::mem::take(&mut dead.keys);
    let lost = alive.load_again();
    IS_GONE.store(false, Relaxed);
    HAS_FAILED.store(false, Relaxed);
    GENERATION.store(alive.generation, Relaxed);
    *holder = Some(alive);
    Some(Revival::Revived(lost))
}

/// The place at which the key is in the current key process.
pub(crate) fn place_of(key: &KeyRecord) -> Result<Place, String> {
    let generation = GENERATION.load(Relaxed);
    if generation == 0 || HAS_FAILED.load(Relaxed) {
        return Err("the key process has ended, and is being started again".to_owned());
    }
    let place = *key.place.lock().unwrap_or_else(PoisonError::into_inner);
    let place = place.filter(|place| place.generation == generation);
    place.ok_or_else(|| {
        format!(
            "the key process could not read {} again",
            key.path.display()
        )
    })
}

/// Opens a new channel for signing to the key process of this generation.
pub(crate) fn channel(generation: u64) -> Result<OwnedFd, String> {
    let holder = lock();
    let holder = holder
        .as_ref()
        .filter(|holder| holder.generation == generation);
    let holder = holder.ok_or("the key process has ended")?;
    let opened = (|| {
        let (ours, theirs) = pair()?;
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&ours, timeout, Some(PATIENCE))?;
        }
        send_message(&holder.socket, order::SIGN_FOR, b"", Some(theirs.as_fd()))?;
        Ok(ours)
    })();
    opened.map_err(|error: io::Error| h2o_log::reason(&error))
}

/// Records that the key process of this generation has failed to answer. No thread waits for it until it is started
/// again.
pub(crate) fn on_failure(generation: u64) {
    if GENERATION.load(Relaxed) == generation {
        HAS_FAILED.store(true, Relaxed);
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(socketpair(
        AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

impl Holder {
    fn start(program: &str, generation: u64) -> io::Result<Self> {
        let (socket, theirs) = pair()?;
        // The key process answers orders at once; the timeouts keep a key process that hangs from blocking the main
        // thread.
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
        }
        let mut command = Command::new(program);
        command
            .arg0("neverbleed")
            .arg(KEY_PROCESS_ARGUMENT)
            .stdin(theirs);
        // The key process ends when the socket is closed, which is when this process ends.
        let child = command.spawn()?;
        Ok(Self {
            child,
            socket,
            generation,
            keys: Vec::new(),
        })
    }

    /// Sends an order to the key process, and returns its answer.
    fn ask(
        &self,
        order: u8,
        text: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<u8>, String> {
        let failed = |error: io::Error| {
            let reason = h2o_log::reason(&error);
            format!("the key process does not answer: {reason}")
        };
        send_message(&self.socket, order, text, descriptor).map_err(failed)?;
        let mut buffer = vec![0; LONGEST];
        let answer = receive_message(&self.socket, &mut buffer).map_err(failed)?;
        let answer = answer.ok_or("the key process has ended")?;
        match answer.byte {
            DONE => Ok(answer.text.to_vec()),
            _ => Err(String::from_utf8_lossy(answer.text).into_owned()),
        }
    }

    fn load(&self, file: BorrowedFd<'_>) -> Result<KeyFacts, String> {
        let answer = self.ask(order::LOAD, b"", Some(file))?;
        KeyFacts::parse(&answer)
            .ok_or_else(|| "the answer of the key process cannot be read".to_owned())
    }

    /// Lets a new key process read the keys that the last one had. Returns the reasons why some could not be read.
    fn load_again(&mut self) -> Vec<String> {
        let mut lost = Vec::new();
        self.keys.retain(|known| known.strong_count() > 0);
        for key in self.keys.iter().filter_map(Weak::upgrade) {
            let loaded = h2o_opener::open(&key.path)
                .map_err(|error| h2o_log::reason(&error))
                .and_then(|file| self.load(file.as_fd()));
            let place = match loaded {
                Ok(facts) if facts.public_key == key.public_key => Some(Place {
                    generation: self.generation,
                    number: facts.number,
                }),
                // The file now has another key. The server will load that key again together with its certificate,
                // so the key process is told to forget it.
                Ok(facts) => {
                    self.forget(facts.number);
                    None
                }
                Err(reason) => {
                    lost.push(format!(
                        "failed to load private key file:{}:{reason}",
                        key.path.display()
                    ));
                    None
                }
            };
            *key.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
        }
        lost
    }

    fn forget_unused(&self) {
        let unused = std::mem::take(&mut *UNUSED.lock().unwrap_or_else(PoisonError::into_inner));
        for place in unused {
            if place.generation == self.generation {
                self.forget(place.number);
            }
        }
    }

    fn forget(&self, number: u32) {
        // A failure needs no handling: if the key process has ended, it has forgotten all keys.
        let _ = send_message(&self.socket, order::FORGET, &number.to_be_bytes(), None);
    }
}

impl Drop for KeyRecord {
    fn drop(&mut self) {
        let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = place.take() {
            UNUSED
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(place);
        }
    }
}
