//! The options of an input: the client's request, settings of the server, and how the connections behave.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use h2o_upstream::Protocol;

use crate::http2_messages::Framing;
use crate::proxied::Proxied;

/// Three bytes of the input, which select the client's request, settings of the server and the behaviour of the connections.
#[derive(Clone, Copy)]
pub(super) struct Options(pub(super) [u8; 3]);

impl Options {
    pub(super) const fn backend(self) -> Protocol {
        if self.0[0] & 1 == 0 {
            Protocol::Http1
        } else {
            Protocol::Http2
        }
    }

    pub(super) const fn asks(self) -> Asks {
        match self.0[0] >> 2 & 7 {
            0 => Asks::Get,
            1 => Asks::Head,
            2 => Asks::ByHttp10,
            3 => Asks::Last,
            4 => Asks::Connect,
            5 => Asks::WebSocket,
            6 => Asks::ConnectUdp,
            _ => Asks::Post,
        }
    }

    pub(super) const fn emits_date(self) -> bool {
        self.0[0] & 0x20 == 0
    }

    pub(super) const fn forwards_close(self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// Whether the response has arrived completely when its head is forwarded.
    pub(super) const fn is_at_once(self) -> bool {
        self.0[1] & 1 != 0
    }

    pub(super) const fn framing(self) -> Framing {
        Framing {
            ends_apart: self.0[2] & 1 != 0,
            has_no_end: self.0[2] & 2 != 0,
            piece: self.piece(),
        }
    }

    /// Bytes of content that are sent at once.
    pub(super) const fn piece(self) -> usize {
        1 + 16 * (self.0[2] >> 2) as usize
    }

    pub(super) fn proxied(self) -> Rc<Proxied> {
        type Made = RefCell<BTreeMap<u8, Rc<Proxied>>>;
        thread_local! {
            static MADE: Made = const { RefCell::new(BTreeMap::new()) };
        }
        let switch = |is_on: bool| if is_on { "ON" } else { "OFF" };
        let make = || {
            let directives = format!(
                "proxy.tunnel: ON\nproxy.emit-missing-date-header: {}\n\
                 proxy.forward.close-connection: {}\n",
                switch(self.emits_date()),
                switch(self.forwards_close()),
            );
            Rc::new(Proxied::new(&directives, "/", "http://b.example:81/base"))
        };
        MADE.with_borrow_mut(|made| Rc::clone(made.entry(self.0[0] & 0x60).or_insert_with(make)))
    }
}

/// The kind of request that the client sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asks {
    Get,
    Head,
    /// GET over HTTP/1.0, which has no chunked coding.
    ByHttp10,
    /// GET with `connection: close`.
    Last,
    Connect,
    WebSocket,
    ConnectUdp,
    Post,
}

impl Asks {
    pub(super) const fn http1(self) -> &'static str {
        match self {
            Self::Get => "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
            Self::Head => "HEAD /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
            Self::ByHttp10 => "GET /x HTTP/1.0\r\nHost: a.example\r\n\r\n",
            Self::Last => "GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n",
            Self::Connect => "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n",
            Self::WebSocket => {
                "GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
            }
            Self::ConnectUdp => {
                "GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: connect-udp\r\n\r\n"
            }
            Self::Post => "POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n",
        }
    }

    /// The head of the request over HTTP/2, and whether it is the end of the request.
    pub(super) const fn http2(self) -> (&'static str, bool) {
        match self {
            Self::Get | Self::ByHttp10 | Self::Last => (
                ":method: GET\n:scheme: http\n:authority: a.example\n:path: /x\n\n",
                true,
            ),
            Self::Head => (
                ":method: HEAD\n:scheme: http\n:authority: a.example\n:path: /x\n\n",
                true,
            ),
            Self::Connect => (":method: CONNECT\n:authority: b:443\n\n", false),
            Self::WebSocket => (
                ":method: CONNECT\n:protocol: websocket\n:scheme: http\n:authority: a.example\n\
                 :path: /x\n\n",
                false,
            ),
            Self::ConnectUdp => (
                ":method: CONNECT\n:protocol: connect-udp\n:scheme: http\n:authority: a.example\n\
                 :path: /x\n\n",
                false,
            ),
            Self::Post => (
                ":method: POST\n:scheme: http\n:authority: a.example\n:path: /x\n\n",
                true,
            ),
        }
    }

    pub(super) const fn is_upgrade(self) -> bool {
        matches!(self, Self::WebSocket | Self::ConnectUdp)
    }
}
