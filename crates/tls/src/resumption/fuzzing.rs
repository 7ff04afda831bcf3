//! Entry points for fuzzing session resumption.

use std::io::{self, Read, Write};

use crate::resumption::DEFAULT_ALGORITHMS;
use crate::resumption::key_format;
use crate::resumption::session_format::{self, ID_LEN, Wanted};
use crate::resumption::shared_keys::synchronize;
use crate::resumption::stores::{MemcachedProtocol, SharedStore, StoreKind};
use crate::resumption::tickets::KeyRing;

/// A store of ticket keys or sessions that answers every command with these bytes.
struct Answers<'a>(&'a [u8]);

impl Read for Answers<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Answers<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads ticket keys from a store; the first byte is its kind (memcached or Redis), the others are its answers. Keys that are
/// accepted must be the same after they were written and read again.
///
/// # Panics
/// If an invariant is violated.
pub fn ticket_store(input: &[u8]) {
    let Some((kind, answers)) = input.split_first() else {
        return;
    };
    let kind = match kind % 3 {
        0 => StoreKind::Memcached(MemcachedProtocol::Ascii),
        1 => StoreKind::Memcached(MemcachedProtocol::Binary),
        _ => StoreKind::Redis,
    };
    let store = SharedStore {
        kind,
        host: "store".into(),
        port: 1,
    };
    let before = KeyRing::default();
    let mut store = store.converse(Answers(answers));
    let algorithms = DEFAULT_ALGORITHMS;
    if let Ok((ring, _)) = synchronize(&mut store, "k", &before, algorithms, 3600, 1_700_000_000) {
        let text = key_format::to_text(&ring);
        if !ring.keys().is_empty() {
            let again = key_format::parse("keys", text.as_bytes());
            let again = again.map(|ring| key_format::to_text(&ring));
            assert_eq!(again.map_err(|error| error.to_string()), Ok(text));
        }
    }
}

/// Converts a session in the format of OpenSSL, which any server that shares a store may have written. A session that is accepted
/// must be the same after it was written and read again.
///
/// # Panics
/// If an invariant is violated.
pub fn stored_session(input: &[u8]) {
    const NOW: u64 = 1_700_000_000;
    const LIFETIME: u64 = 1 << 40;
    let mut wanted = Wanted {
        id: [b'i'; ID_LEN],
        binding: [b'b'; 32],
        takes_unbound: true,
        server_name: Some("a.test".into()),
    };
    if let Some(session) = session_format::decode(input, &wanted, LIFETIME, NOW) {
        wanted.takes_unbound = false;
        let (id, binding) = (&wanted.id, &wanted.binding);
        let written = session_format::encode(&session.value, id, binding, LIFETIME);
        let again = written.and_then(|text| session_format::decode(&text, &wanted, LIFETIME, NOW));
        assert_eq!(again, Some(session));
    }
}
