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

/// The program that becomes the key process; unset in processes that keep keys to themselves.
static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// The running key process.
static HOLDER: Mutex<Option<Holder>> = Mutex::new(None);

/// Number of the key process that answers; 0 if there is none.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The places (in the key process) of keys that nothing uses any more. The main thread tells the key process, as any thread may
/// drop a key.
static UNUSED: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// Whether the key process has failed to answer a request.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether the key process could not be started again, which is reported once.
static IS_GONE: AtomicBool = AtomicBool::new(false);

struct Holder {
    child: Child,
    /// For orders.
    socket: OwnedFd,
    generation: u64,
    keys: Vec<Weak<KeyRecord>>,
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The key process.
    pub(crate) generation: u64,
    /// The key's number there.
    pub(crate) number: u32,
}

/// A key of the key process.
#[derive(Debug)]
pub(crate) struct KeyRecord {
    /// The file from which the key process reads the key when it was started again.
    path: Box<Path>,
    place: Mutex<Option<Place>>,
    pub(crate) algorithm: SignatureAlgorithm,
    pub(crate) schemes: Vec<SignatureScheme>,
    pub(crate) public_key: Vec<u8>,
}

/// What [`revive`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revival {
    /// The key process had ended or hung, and was started again. The value names the keys that could not be read again.
    Revived(Vec<String>),
    /// It could not be started again.
    Failed(String),
}

fn lock() -> MutexGuard<'static, Option<Holder>> {
    HOLDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this process isolate keys, by `program` with [`KEY_PROCESS_ARGUMENT`] as the key process.
pub fn allow(program: &'static str) {
    let _ = PROGRAM.set(program);
}

/// Has the key process read a key, and starts that process if need be. `None` if this process keeps its keys to itself.
///
/// # Errors
/// Why the key cannot be used.
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

/// Has the key process, if there is one, become the user that this process becomes next.
///
/// # Errors
/// The message to show.
pub fn switch_user(user: u32, group: u32) -> Result<(), String> {
    let Some(holder) = &*lock() else {
        return Ok(());
    };
    let text = [user.to_be_bytes(), group.to_be_bytes()].concat();
    holder.ask(order::SWITCH_USER, &text, None).map(drop)
}

/// Starts the key process again if it has ended or hangs, and has it forget keys that nothing uses. Called every now and then.
pub fn revive() -> Option<Revival> {
    let mut holder = lock();
    let dead = holder.as_mut()?;
    dead.forget_unused();
    let has_ended = !matches!(dead.child.try_wait(), Ok(None));
    if !has_ended && !HAS_FAILED.load(Relaxed) {
        return None;
    }
    GENERATION.store(0, Relaxed);
    // It may hang.
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

/// Where a key is now.
pub(crate) fn place_of(key: &KeyRecord) -> Result<Place, String> {
    let generation = GENERATION.load(Relaxed);
    if generation == 0 || HAS_FAILED.load(Relaxed) {
        return Err("it has ended, and is being started again".to_owned());
    }
    let place = *key.place.lock().unwrap_or_else(PoisonError::into_inner);
    let place = place.filter(|place| place.generation == generation);
    place.ok_or_else(|| format!("it could not read {} again", key.path.display()))
}

/// A new channel to the key process of this generation.
pub(crate) fn channel(generation: u64) -> Result<OwnedFd, String> {
    let holder = lock();
    let holder = holder
        .as_ref()
        .filter(|holder| holder.generation == generation);
    let holder = holder.ok_or("it has ended")?;
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

/// The key process of this generation has failed to answer: nobody waits for it until it is started again.
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
        // The key process answers orders at once; the main thread must not wait for one that hangs.
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

    /// Sends an order, and returns the answer to it.
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

    /// Gives a new process the keys of the one before. Returns why some could not be read.
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
                // Another key is in the file now; it comes with its certificate.
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
        // If the key process has ended, it has forgotten all keys.
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
