//! The key process: reads keys and signs until the server has ended.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use h2o_opener::{receive_message, send_message};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid};
use rustix::net::{RecvFlags, SendFlags};
use rustls::sign::SigningKey;

use crate::file;
use crate::message::{DONE, KeyFacts, LONGEST, REFUSED, SignRequest, order};

/// The only argument of a program that is to run as a key process.
pub const KEY_PROCESS_ARGUMENT: &str = "--key-process";

/// The name of the key process. H2O compatibility: it is the name of H2O's own process for keys.
const NAME: &std::ffi::CStr = c"neverbleed";

/// Largest size of a key file in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// The keys of the key process by number, each with the number of times that the server has loaded it.
#[derive(Default)]
struct Keys {
    next: u32,
    known: HashMap<u32, (Arc<dyn SigningKey>, usize)>,
}

/// Executes the orders that come over `socket` until the server has ended.
///
/// # Errors
/// The system's error, if the socket fails or the process cannot be protected.
pub fn serve(socket: impl AsFd) -> io::Result<()> {
    nix::sys::prctl::set_name(NAME)?;
    protect()?;
    let keys = Arc::new(Mutex::new(Keys::default()));
    let mut buffer = vec![0; LONGEST];
    while let Some(message) = receive_message(&socket, &mut buffer)? {
        let (byte, text, descriptor) = (message.byte, message.text, message.descriptor);
        match (byte, descriptor) {
            (order::LOAD, Some(descriptor)) => {
                let answer = match load(descriptor, &keys) {
                    Ok(facts) => facts.encode(),
                    Err(text) => refusal(&text),
                };
                send_message(&socket, answer[0], &answer[1..], None)?;
            }
            (order::SIGN_FOR, Some(channel)) => {
                let keys = Arc::clone(&keys);
                // If no thread can be started, the channel is closed, and the server asks for another one.
                let thread = std::thread::Builder::new().name("sign".to_owned());
                let _ = thread.spawn(move || sign_all(&channel, &keys));
            }
            (order::FORGET, None) => {
                if let Ok(number) = text.try_into() {
                    forget(u32::from_be_bytes(number), &keys);
                }
            }
            (order::SWITCH_USER, None) => {
                let switched = switch_user(text);
                let answer = switched.map_or_else(|text| refusal(&text), |()| vec![DONE]);
                send_message(&socket, answer[0], &answer[1..], None)?;
            }
            _ => {
                return Err(io::Error::other(
                    "the server has sent the key process an unknown order",
                ));
            }
        }
    }
    Ok(())
}

fn refusal(text: &str) -> Vec<u8> {
    let mut answer = vec![REFUSED];
    answer.extend(text.as_bytes());
    answer
}

/// Protects the memory of this process: no other process may read it, and the kernel writes no core dump of it.
fn protect() -> io::Result<()> {
    nix::sys::prctl::set_dumpable(false)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    Ok(())
}

fn switch_user(text: &[u8]) -> Result<(), String> {
    let refused = |error: nix::errno::Errno| {
        format!(
            "failed to change the user of the key process: {}",
            error.desc()
        )
    };
    let (user, group) = text
        .split_first_chunk()
        .ok_or("the order to switch the user names no user")?;
    let group = group
        .try_into()
        .map_err(|_| "the order to switch the user names no group")?;
    let (user, group) = (u32::from_be_bytes(*user), u32::from_be_bytes(group));
    nix::unistd::setgroups(&[]).map_err(refused)?;
    nix::unistd::setgid(Gid::from_raw(group)).map_err(refused)?;
    nix::unistd::setuid(Uid::from_raw(user)).map_err(refused)?;
    // The kernel allows others to read the memory again when the user changes, so the protection is set once more.
    protect().map_err(|error| error.to_string())
}

fn load(descriptor: OwnedFd, keys: &Mutex<Keys>) -> Result<KeyFacts, String> {
    let mut pem = Vec::new();
    let file = File::from(descriptor);
    let read = file.take(LONGEST_FILE).read_to_end(&mut pem);
    read.map_err(|error| h2o_log::reason(&error))?;
    let key = file::parse(&pem)?;
    let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
    let same =
        (keys.known.iter_mut()).find(|(_, (known, _))| known.public_key() == key.public_key());
    let number = match same {
        Some((number, (_, uses))) => {
            *uses += 1;
            *number
        }
        None => {
            keys.next = keys.next.wrapping_add(1);
            let number = keys.next;
            keys.known.insert(number, (Arc::clone(&key), 1));
            number
        }
    };
    KeyFacts::of(number, &*key)
        .ok_or_else(|| "the public key of this private key cannot be determined".to_owned())
}

fn forget(number: u32, keys: &Mutex<Keys>) {
    let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, uses)) = keys.known.get_mut(&number) {
        *uses -= 1;
        if *uses == 0 {
            keys.known.remove(&number);
        }
    }
}

/// Answers the requests of a thread of the server until it closes the channel.
fn sign_all(channel: &OwnedFd, keys: &Mutex<Keys>) {
    let mut buffer = vec![0; LONGEST];
    loop {
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(channel, &mut *buffer, RecvFlags::empty())
        });
        let len = match received {
            Ok((0, _)) | Err(_) => return,
            Ok((_, len)) => len,
        };
        let answer = match sign(buffer.get(..len), keys) {
            Ok(signature) => [&[DONE][..], &signature].concat(),
            Err(text) => refusal(&text),
        };
        let sent =
            rustix::io::retry_on_intr(|| rustix::net::send(channel, &answer, SendFlags::NOSIGNAL));
        if sent.is_err() {
            return;
        }
    }
}

fn sign(request: Option<&[u8]>, keys: &Mutex<Keys>) -> Result<Vec<u8>, String> {
    let request = request
        .and_then(SignRequest::parse)
        .ok_or("the request to sign cannot be read")?;
    let key = {
        let keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keys.known.get(&request.number);
        known
            .map(|(key, _)| Arc::clone(key))
            .ok_or("the key process does not have the key that the server asks for")?
    };
    let signer = key
        .choose_scheme(&[request.scheme])
        .ok_or("the key cannot sign with the scheme of the request")?;
    signer
        .sign(request.message)
        .map_err(|error| error.to_string())
}
