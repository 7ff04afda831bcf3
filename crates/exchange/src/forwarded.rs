//! Requests that are handed on to upstream servers: what the others of the server need to know of them, or they of those.

/// `send-server-name: preserve`: the `server` field of an upstream server is handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepsServerField(pub bool);

/// The request as an upstream server got it. Memory is kept from one request to the next.
#[derive(Default)]
pub struct Forwarded {
    authority: Vec<u8>,
    target: Vec<u8>,
}

impl Forwarded {
    /// What errors of upstream servers are labelled with in the error log (H2O compatibility: scripts look for it).
    pub const LABEL: &str = "lib/core/proxy.c";

    /// Forgets everything, keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.authority.clear();
        self.target.clear();
    }

    /// The request was handed on with this authority and this target, the latter put together from pieces.
    pub fn set<'p>(&mut self, authority: &[u8], target: impl IntoIterator<Item = &'p [u8]>) {
        self.clear();
        self.authority.extend_from_slice(authority);
        for piece in target {
            self.target.extend_from_slice(piece);
        }
    }

    /// The authority and the target it was handed on with; `None` if it was not.
    #[must_use]
    pub fn place(&self) -> Option<(&[u8], &[u8])> {
        let is_set = !self.authority.is_empty() || !self.target.is_empty();
        is_set.then_some((&self.authority, &self.target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_known_until_the_next_request() {
        let mut forwarded = Forwarded::default();
        assert_eq!(forwarded.place(), None);
        forwarded.set(b"h:1", [&b"/a"[..], b"/b"]);
        assert_eq!(forwarded.place(), Some((&b"h:1"[..], &b"/a/b"[..])));
        forwarded.set(b"i", [&b"/"[..]]);
        assert_eq!(forwarded.place(), Some((&b"i"[..], &b"/"[..])));
        forwarded.clear();
        assert_eq!(forwarded.place(), None);
    }
}
