//! Connection ids (RFC 9000 §5.1). An id contains, encrypted, the server, process and worker that own the connection, so that
//! packets find them.
//!
//! H2O compatibility: an id is the number of a key, followed by 8 bytes encrypted in four passes as QUIC-LB does it
//! (draft-ietf-quic-load-balancers §5.4), or by 16 bytes in one AES block if this server has a number among several.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::cipher::{
    AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::endpoint::routing_id;
use crate::keys::{KeyRing, Keys};

/// The server, process and worker that own a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The number of the server in a cluster whose servers forward packets to each other; 0 for a server alone.
    pub node: u64,
    /// The number of the process: how often the server has replaced itself, modulo 256.
    pub generation: u8,
    /// The index of the worker in its process.
    pub worker: u16,
}

/// Length in bytes of connection ids that do not contain a server number.
const SHORT_LEN: usize = 9;
/// Length in bytes of connection ids that contain a server number.
const LONG_LEN: usize = 17;
const BLOCK_LEN: usize = 16;

/// Encrypts and decrypts connection ids with the keys of one secret.
#[derive(Debug)]
pub(crate) struct IdKey {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
}

impl IdKey {
    pub(crate) fn new(key: &[u8; 16]) -> Result<Self, Unspecified> {
        Ok(Self {
            encrypting: EncryptingKey::ecb(UnboundCipherKey::new(&AES_128, key)?)?,
            decrypting: DecryptingKey::ecb(UnboundCipherKey::new(&AES_128, key)?)?,
        })
    }

    /// The bytes that pass number `pass` of the encryption derives from one half of the text, to be XORed into the other half.
    fn mask(&self, half: [u8; 4], pass: u8) -> Result<[u8; 4], Unspecified> {
        let mut block = [0; BLOCK_LEN];
        block[..4].copy_from_slice(&half);
        block[BLOCK_LEN - 2..].copy_from_slice(&[8, pass]);
        self.encrypting.encrypt(&mut block)?;
        let [a, b, c, d, ..] = block;
        Ok([a, b, c, d])
    }

    /// Runs the four passes in this order: ascending to encrypt, descending to decrypt.
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

impl KeyRing {
    /// Makes an id for a connection that `placement` owns.
    pub(crate) fn encode_id(
        &self,
        placement: Placement,
        connection: u32,
        path: u8,
    ) -> Option<ConnectionId> {
        let [a, b, c, d] = connection.to_be_bytes();
        let [e, f] = placement.worker.to_be_bytes();
        let bytes = [a, b, c, d, placement.generation, e, f, path];
        self.newest(|key| {
            if placement.node == 0 {
                let sealed = key.ids.passes(bytes, [1, 2, 3, 4]).ok()?;
                let mut id = [key.number; SHORT_LEN];
                id[1..].copy_from_slice(&sealed);
                return Some(ConnectionId::new(&id));
            }
            let mut block = [0; BLOCK_LEN];
            block[..8].copy_from_slice(&placement.node.to_be_bytes());
            block[8..].copy_from_slice(&bytes);
            key.ids.encrypting.encrypt(&mut block).ok()?;
            let mut id = [key.number; LONG_LEN];
            id[1..].copy_from_slice(&block);
            Some(ConnectionId::new(&id))
        })
        .flatten()
    }

    /// The server, process and worker that a connection id names; `None` if the key that made the id is not known.
    pub(crate) fn decode_id(&self, id: &[u8]) -> Option<Placement> {
        let (number, sealed) = id.split_first()?;
        let (node, bytes) = self.numbered(*number, |key| match sealed.len() {
            8 => {
                let bytes = key.ids.passes(sealed.try_into().ok()?, [4, 3, 2, 1]).ok()?;
                Some((0, bytes))
            }
            BLOCK_LEN => {
                let mut block: [u8; BLOCK_LEN] = sealed.try_into().ok()?;
                key.ids
                    .decrypting
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

/// Reads the connection ids that another process has made.
pub struct IdReader(Arc<KeyRing>);

impl IdReader {
    /// A reader of connection ids made with one of these keys; `None` if there are no keys.
    #[must_use]
    pub fn new(keys: &[Keys]) -> Option<Self> {
        (!keys.is_empty()).then(|| Self(KeyRing::new(keys)))
    }

    /// Whether a datagram belongs to a connection of that server and process. A client's first packets, whose id no server
    /// has made, are taken for such a datagram once in billions.
    #[must_use]
    pub fn is_of(&self, datagram: &[u8], node: u64, generation: u8) -> bool {
        let len = if node == 0 { SHORT_LEN } else { LONG_LEN };
        let id = routing_id(datagram, len);
        let place = id.and_then(|(id, _)| self.0.decode_id(id));
        place.is_some_and(|place| place.node == node && place.generation == generation)
    }
}

/// A cache of connection ids that were found to belong to this endpoint, indexed by their first bytes, so that not every
/// packet's id has to be decrypted.
#[derive(Debug)]
pub(crate) struct RecentIds(Vec<[u8; SHORT_LEN]>);

const RECENT_IDS: usize = 1024;

impl Default for RecentIds {
    fn default() -> Self {
        Self(vec![[0; SHORT_LEN]; RECENT_IDS])
    }
}

impl RecentIds {
    /// The position of an id in the cache. Its encrypted bytes serve as a hash.
    fn place(id: [u8; SHORT_LEN]) -> usize {
        usize::from(u16::from_be_bytes([id[1], id[2]])) % RECENT_IDS
    }

    pub(crate) fn contains(&self, id: &[u8]) -> bool {
        let id = id.first_chunk::<SHORT_LEN>();
        id.is_some_and(|id| self.0[Self::place(*id)] == *id)
    }

    pub(crate) fn insert(&mut self, id: &[u8]) {
        if let Some(id) = id.first_chunk() {
            self.0[Self::place(*id)] = *id;
        }
    }
}

/// Makes the connection ids of one endpoint.
pub(crate) struct IdGenerator {
    keys: Arc<KeyRing>,
    placement: Placement,
    next: u64,
}

impl IdGenerator {
    /// Makes a generator. `first` must differ between endpoints, so that they make different ids.
    pub(crate) fn new(keys: Arc<KeyRing>, placement: Placement, first: u64) -> Self {
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
            .encode_id(self.placement, connection, path)
            // Without keys, ids are plain numbers. Connections work, but no other endpoint can route their packets.
            .unwrap_or_else(|| {
                let mut id = [0; LONG_LEN];
                id[1..9].copy_from_slice(&self.next.to_be_bytes());
                ConnectionId::new(&id[..Self::id_len(self.placement)])
            })
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match self.keys.decode_id(id) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;

    const HERE: Placement = Placement {
        node: 0,
        generation: 3,
        worker: 513,
    };

    #[test]
    fn ids_tell_their_server_where_a_connection_lives_and_others_nothing() {
        let ring = KeyRing::new(&[Keys::derive(7, b"secret")]);
        for node in [0, 1, u64::MAX] {
            let place = Placement { node, ..HERE };
            let mut generator = IdGenerator::new(Arc::clone(&ring), place, 255);
            let ids = [generator.generate_cid(), generator.generate_cid()];
            for id in ids {
                assert_eq!(id.len(), generator.cid_len());
                assert_eq!(id[0], 7);
                assert_eq!(ring.decode_id(&id), Some(place));
                assert!(generator.validate(&id).is_ok());
            }
            // The ids of successive connections differ in most of their bytes.
            let same = ids[0].iter().zip(ids[1].iter()).filter(|(a, b)| a == b);
            assert!(same.count() < 5, "{ids:?}");
            let other = KeyRing::new(&[Keys::derive(7, b"other")]);
            assert_ne!(other.decode_id(&ids[0]), Some(place));
        }
    }

    #[test]
    fn ids_made_with_an_older_key_are_read_until_it_is_gone() {
        let (old, new) = (Keys::derive(1, b"old"), Keys::derive(2, b"new"));
        let ring = KeyRing::new(std::slice::from_ref(&old));
        let mut generator = IdGenerator::new(Arc::clone(&ring), HERE, 0);
        let id = generator.generate_cid();
        ring.replace(&[new.clone(), old]);
        assert_eq!(ring.decode_id(&id), Some(HERE));
        assert_eq!(generator.generate_cid()[0], 2);
        ring.replace(&[new]);
        assert_eq!(ring.decode_id(&id), None);
    }

    #[test]
    fn any_bytes_can_be_read_as_an_id() {
        let ring = KeyRing::new(&[Keys::derive(7, b"secret")]);
        for len in 0..40 {
            let place = ring.decode_id(&vec![7; len]);
            assert_eq!(
                place.is_some(),
                [SHORT_LEN, LONG_LEN].contains(&len),
                "{len}"
            );
            assert_eq!(ring.decode_id(&vec![8; len]), None);
        }
    }
}
