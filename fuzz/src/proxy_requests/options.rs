//! The options of an input: settings of the server, and how the connections behave.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::http2_messages::Framing;
use crate::proxied::Proxied;

/// Three bytes of the input, which select settings of the server and the behaviour of the connections.
#[derive(Clone, Copy)]
pub(super) struct Options(pub(super) [u8; 3]);

impl Options {
    pub(super) const fn has(self, byte: usize, bit: u8) -> bool {
        self.0[byte] & 1 << bit != 0
    }
    /// Whether the client speaks HTTP/2.
    pub(super) const fn is_http2(self) -> bool {
        self.has(0, 0)
    }
    pub(super) const fn preserves_host(self) -> bool {
        self.has(0, 1)
    }
    pub(super) const fn tunnels(self) -> bool {
        self.has(0, 2)
    }
    pub(super) const fn emits_forwarded(self) -> bool {
        !self.has(0, 3)
    }
    pub(super) const fn preserves_proto(self) -> bool {
        self.has(0, 4)
    }
    pub(super) const fn emits_via(self) -> bool {
        !self.has(0, 5)
    }
    pub(super) const fn edits(self) -> bool {
        self.has(0, 6)
    }
    pub(super) const fn forwards_expectations(self) -> bool {
        self.has(0, 7)
    }
    /// Which of four paths of the configuration is used.
    pub(super) const fn mount(self) -> u8 {
        self.0[1] & 3
    }
    /// Which of four backends is used.
    pub(super) const fn backend(self) -> u8 {
        self.0[1] >> 2 & 3
    }
    /// Whether another handler comes before the proxy, so that content is collected first.
    pub(super) const fn collects(self) -> bool {
        self.has(1, 4)
    }
    /// Whether the configuration has `proxy.expect: ON`.
    pub(super) const fn expects_continue(self) -> bool {
        self.has(1, 5) && !self.forwards_expectations()
    }
    pub(super) const fn is_early(self) -> bool {
        self.has(1, 6)
    }
    pub(super) const fn keeps_connection(self) -> bool {
        !self.has(1, 7)
    }
    /// Whether all of the content has arrived when the request is sent.
    pub(super) const fn is_at_once(self) -> bool {
        self.has(2, 0)
    }
    /// Bytes of content that are sent at once.
    pub(super) const fn piece(self) -> usize {
        1 + 16 * (self.0[2] >> 2) as usize
    }
    pub(super) const fn framing(self) -> Framing {
        Framing {
            ends_apart: self.has(2, 0),
            has_no_end: self.has(2, 1),
            piece: self.piece(),
        }
    }
    /// Whether a header rule of the path replaces the host.
    pub(super) const fn edits_host(self) -> bool {
        self.edits() && self.mount() == 3
    }

    pub(super) fn proxied(self) -> Rc<Proxied> {
        type Made = RefCell<BTreeMap<[u8; 2], Rc<Proxied>>>;
        thread_local! {
            static MADE: Made = const { RefCell::new(BTreeMap::new()) };
        }
        let key = [self.0[0] & 0xfe, self.0[1] & 0x0f];
        MADE.with_borrow_mut(|made| Rc::clone(made.entry(key).or_insert_with(|| self.make())))
    }

    pub(super) fn make(self) -> Rc<Proxied> {
        let switch = |is_on: bool| if is_on { "ON" } else { "OFF" };
        let mut directives = format!(
            "proxy.preserve-host: {}\nproxy.tunnel: {}\nproxy.emit-x-forwarded-headers: {}\n\
             proxy.preserve-x-forwarded-proto: {}\nproxy.emit-via-header: {}\nproxy.expect: {}\n",
            switch(self.preserves_host()),
            switch(self.tunnels()),
            switch(self.emits_forwarded()),
            switch(self.preserves_proto()),
            switch(self.emits_via()),
            if self.forwards_expectations() {
                "FORWARD"
            } else {
                "OFF"
            },
        );
        if self.edits() {
            directives += "proxy.header.unset: x-secret\nproxy.header.set: 'X-Set: new'\n\
                           proxy.header.add: 'X-Add: more'\n";
        }
        if self.edits_host() {
            directives += "proxy.header.set: 'Host: edited.example:81'\n";
        }
        let mount = ["/", "/a", "/b/", "/"][usize::from(self.mount())];
        let backend = [
            "http://127.0.0.1:9000",
            "http://b.example/base",
            "https://b.example:8443/base/",
            "http://[unix:/run/b.sock]/",
        ][usize::from(self.backend())];
        Rc::new(Proxied::new(&directives, mount, backend))
    }
}
