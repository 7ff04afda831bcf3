//! Connection ids (RFC 9000 §5.1): where a connection lives, encrypted, so that packets find their server, process and worker.
//!
//! H2O compatibility: the number of a key, then 8 bytes encrypted in four passes as QUIC-LB does it
//! (draft-ietf-quic-load-balancers §5.4), or 16 bytes in one AES block if this server has a number among several.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::cipher::{
    AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::keys::Keys;

/// Where a connection lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The server, in a cluster that forwards packets; 0 for one that is alone.
    pub node: u64,
    /// The process: how often the server has replaced itself, modulo 256.
    pub generation: u8,
    /// The worker.
    pub worker: u16,
}

/// Length of ids without the number of the server.
const SHORT_LEN: usize = 9;
/// Length of ids with it.
const LONG_LEN: usize = 17;
const BLOCK_LEN: usize = 16;

/// Encrypts and decrypts ids with the keys of one secret.
#[derive(Debug)]
struct IdKey {
    number: u8,
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
}

impl IdKey {
    fn new(keys: &Keys) -> Result<Self, Unspecified> {
        let key = keys.expand::<16>(b"cid");
        Ok(Self {
            number: keys.number,
            encrypting: EncryptingKey::ecb(UnboundCipherKey::new(&AES_128, &key)?)?,
            decrypting: DecryptingKey::ecb(UnboundCipherKey::new(&AES_128, &key)?)?,
        })
    }

    /// Bytes of one pass over `half`.
    fn mask(&self, half: [u8; 4], pass: u8) -> Result<[u8; 4], Unspecified> {
        let mut block = [0; BLOCK_LEN];
        block[..4].copy_from_slice(&half);
        block[BLOCK_LEN - 2..].copy_from_slice(&[8, pass]);
        self.encrypting.encrypt(&mut block)?;
        let [a, b, c, d, ..] = block;
        Ok([a, b, c, d])
    }

    /// The four passes, in that order; the reverse order undoes them.
    fn passes(&self, bytes: [u8; 8], order: [u8; 4]) -> Result<[u8; 8], Unspecified> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let (mut left, mut right) = ([a, b, c, d], [e, f, g, h]);
        for pass in order {
            let (from, to) = if pass % 2 == 1 {
                (left, &mut right)
            } else {
                (right, &mut left)
            };
            for (byte, mask) in to.iter_mut().zip(self.mask(from, pass)?) {
                *byte ^= mask;
            }
        }
        let ([a, b, c, d], [e, f, g, h]) = (left, right);
        Ok([a, b, c, d, e, f, g, h])
    }
}

/// The keys that ids are read with; the first makes new ones. Replaced when ticket keys change.
#[derive(Debug)]
pub(crate) struct IdKeys(RwLock<Vec<IdKey>>);

impl IdKeys {
    pub(crate) fn new(keys: &[Keys]) -> Arc<Self> {
        let ids = Self(RwLock::new(Vec::new()));
        ids.replace(keys);
        Arc::new(ids)
    }

    /// Takes other keys, newest first.
    pub(crate) fn replace(&self, keys: &[Keys]) {
        let keys = keys.iter().filter_map(|keys| IdKey::new(keys).ok());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys.collect();
    }

    fn with<R>(&self, number: Option<u8>, read: impl FnOnce(&IdKey) -> R) -> Option<R> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys
            .iter()
            .find(|key| number.is_none_or(|number| key.number == number));
        key.map(read)
    }

    /// An id for a connection that lives there.
    fn encode(&self, placement: Placement, connection: u32, path: u8) -> Option<ConnectionId> {
        let [a, b, c, d] = connection.to_be_bytes();
        let [e, f] = placement.worker.to_be_bytes();
        let bytes = [a, b, c, d, placement.generation, e, f, path];
        self.with(None, |key| {
            if placement.node == 0 {
                let sealed = key.passes(bytes, [1, 2, 3, 4]).ok()?;
                let mut id = [key.number; SHORT_LEN];
                id[1..].copy_from_slice(&sealed);
                return Some(ConnectionId::new(&id));
            }
            let mut block = [0; BLOCK_LEN];
            block[..8].copy_from_slice(&placement.node.to_be_bytes());
            block[8..].copy_from_slice(&bytes);
            key.encrypting.encrypt(&mut block).ok()?;
            let mut id = [key.number; LONG_LEN];
            id[1..].copy_from_slice(&block);
            Some(ConnectionId::new(&id))
        })
        .flatten()
    }

    /// Where the connection of an id lives, if its key is known.
    pub(crate) fn decode(&self, id: &[u8]) -> Option<Placement> {
        let (number, sealed) = id.split_first()?;
        let (node, bytes) = self.with(Some(*number), |key| match sealed.len() {
            8 => {
                let bytes = key.passes(sealed.try_into().ok()?, [4, 3, 2, 1]).ok()?;
                Some((0, bytes))
            }
            BLOCK_LEN => {
                let mut block: [u8; BLOCK_LEN] = sealed.try_into().ok()?;
                key.decrypting
                    .decrypt(&mut block, DecryptionContext::None)
                    .ok()?;
                let (node, bytes) = block.split_first_chunk::<8>()?;
                Some((u64::from_be_bytes(*node), bytes.try_into().ok()?))
            }
            _ => None,
        })??;
        let [_, _, _, _, generation, e, f, _] = bytes;
        Some(Placement {
            node,
            generation,
            worker: u16::from_be_bytes([e, f]),
        })
    }
}

/// Makes the ids of one endpoint's connections.
pub(crate) struct IdGenerator {
    keys: Arc<IdKeys>,
    placement: Placement,
    next: u64,
}

impl IdGenerator {
    /// `first` differs between endpoints, so that their ids do.
    pub(crate) fn new(keys: Arc<IdKeys>, placement: Placement, first: u64) -> Self {
        Self {
            keys,
            placement,
            next: first,
        }
    }

    pub(crate) fn id_len(placement: Placement) -> usize {
        if placement.node == 0 {
            SHORT_LEN
        } else {
            LONG_LEN
        }
    }
}

impl ConnectionIdGenerator for IdGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let [_, _, _, a, b, c, d, path] = self.next.to_be_bytes();
        self.next = self.next.wrapping_add(1);
        let connection = u32::from_be_bytes([a, b, c, d]);
        self.keys
            .encode(self.placement, connection, path)
            // Without keys ids are numbers; connections work, but nobody else can route them.
            .unwrap_or_else(|| {
                let mut id = [0; LONG_LEN];
                id[1..9].copy_from_slice(&self.next.to_be_bytes());
                ConnectionId::new(&id[..Self::id_len(self.placement)])
            })
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match self.keys.decode(id) {
            Some(placement) if placement == self.placement => Ok(()),
            Some(_) | None => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        Self::id_len(self.placement)
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
