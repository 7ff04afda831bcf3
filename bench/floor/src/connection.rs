//! A connection: reads requests from the socket, and sends the answers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::ServerConfig;

use crate::Fault;
use crate::http1;
use crate::http2::Http2;
use crate::sink::Sink;
use crate::site::Site;
use crate::tls::{self, ALERT, APPLICATION_DATA, CLOSE_NOTIFY, Handshake, Protection};

/// Bytes that are received with one system call at most.
const INPUT_LEN: usize = 64 * 1024;
/// Bytes of an incomplete request that are kept at most: a head, or a frame.
const MAX_KEPT_LEN: usize = 17 * 1024;

/// State that all connections share.
pub(crate) struct Shared {
    pub(crate) site: Site,
    pub(crate) tls: Arc<ServerConfig>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Shared {
    pub(crate) fn new(site: Site, tls: Arc<ServerConfig>) -> Self {
        Self {
            site,
            tls,
            input: vec![0; INPUT_LEN],
            out: Vec::new(),
        }
    }
}

/// What a connection waits for after its turn in the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// For bytes from the client.
    Read,
    /// For room in the socket's send buffer.
    Write,
    /// For nothing: the connection is to be closed.
    Close,
}

pub(crate) enum Protocol {
    Http1,
    Http2(Http2),
}

enum Tls {
    Handshake(Box<Handshake>),
    Established {
        opener: Protection,
        sealer: Protection,
    },
}

pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    tls: Option<Tls>,
    protocol: Protocol,
    /// Received bytes of an incomplete TLS record or, without TLS, of an incomplete request.
    received: Vec<u8>,
    /// Decrypted bytes of an incomplete request.
    plain: Vec<u8>,
    /// Bytes to be sent; those before `sent` have been sent.
    unsent: Vec<u8>,
    sent: usize,
    /// Whether the socket may have more bytes to read.
    is_unread: bool,
    /// Whether the client has ended its direction, so that the socket is read to its end.
    has_ended: bool,
    /// Whether all answers have been given, so that the connection is closed after the last byte.
    is_last: bool,
}

impl Connection {
    pub(crate) fn clear(socket: OwnedFd, protocol: Protocol) -> Self {
        Self {
            socket,
            tls: None,
            protocol,
            received: Vec::new(),
            plain: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            is_unread: false,
            has_ended: false,
            is_last: false,
        }
    }

    pub(crate) fn encrypted(socket: OwnedFd, config: &Arc<ServerConfig>) -> Result<Self, Fault> {
        let tls = Some(Tls::Handshake(Box::new(Handshake::new(config)?)));
        Ok(Self {
            tls,
            ..Self::clear(socket, Protocol::Http1)
        })
    }

    /// Handles an event: the socket is readable, or the client has ended its direction.
    pub(crate) fn readable(&mut self, has_ended: bool, shared: &mut Shared) -> Result<Next, Fault> {
        self.has_ended |= has_ended;
        if !self.unsent.is_empty() {
            // While the client does not take the answers, nothing is read from it.
            self.is_unread = true;
            return Ok(Next::Write);
        }
        loop {
            let kept = self.received.len();
            let room = INPUT_LEN - kept;
            let len = match recv(&self.socket, &mut shared.input[kept..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(Next::Close),
                Ok((len, _)) => len,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(Next::Read),
                Err(_) => return Ok(Next::Close),
            };
            shared.input[..kept].copy_from_slice(&self.received);
            self.received.clear();
            shared.out.clear();
            let input = &mut shared.input[..kept + len];
            self.receive(input, &mut shared.site, &mut shared.out)?;
            if self.received.len().max(self.plain.len()) > MAX_KEPT_LEN {
                return Err(Fault("a request is too long"));
            }
            let next = self.send(&shared.out)?;
            // A short read means that the socket is empty; bytes that come later make another event.
            if next != Next::Read || len < room && !self.has_ended {
                self.is_unread = len == room || self.has_ended;
                return Ok(next);
            }
        }
    }

    /// Handles an event: the socket's send buffer has room.
    pub(crate) fn writable(&mut self, shared: &mut Shared) -> Result<Next, Fault> {
        if self.unsent.is_empty() {
            return Ok(Next::Read);
        }
        match send(&self.socket, &self.unsent[self.sent..], SendFlags::NOSIGNAL) {
            Ok(len) => self.sent += len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Next::Write),
            Err(_) => return Ok(Next::Close),
        }
        if self.sent < self.unsent.len() {
            return Ok(Next::Write);
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        if self.is_last {
            return Ok(Next::Close);
        }
        if self.is_unread {
            return self.readable(false, shared);
        }
        Ok(Next::Read)
    }

    /// Sends the answers of one turn of the event loop; bytes that the socket does not accept are kept.
    #[inline]
    fn send(&mut self, out: &[u8]) -> Result<Next, Fault> {
        if !out.is_empty() {
            let len = match send(&self.socket, out, SendFlags::NOSIGNAL) {
                Ok(len) => len,
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(_) => return Ok(Next::Close),
            };
            if len < out.len() {
                self.unsent.extend_from_slice(&out[len..]);
                return Ok(Next::Write);
            }
        }
        Ok(if self.is_last {
            Next::Close
        } else {
            Next::Read
        })
    }

    #[inline]
    fn receive(
        &mut self,
        input: &mut [u8],
        site: &mut Site,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let Some(tls) = self.tls.as_mut() else {
            let mut sink = Sink::new(out, None);
            let (taken, is_last) = self.protocol.serve(input, site, &mut sink)?;
            self.received.extend_from_slice(&input[taken..]);
            self.is_last |= is_last;
            return Ok(());
        };
        match tls {
            Tls::Established { opener, sealer } => {
                let mut requests = Requests {
                    protocol: &mut self.protocol,
                    plain: &mut self.plain,
                    is_last: &mut self.is_last,
                };
                let taken = requests.serve(input, opener, sealer, site, out)?;
                self.received.extend_from_slice(&input[taken..]);
                Ok(())
            }
            Tls::Handshake(handshake) => {
                if !handshake.receive(input, out)? {
                    return Ok(());
                }
                self.established(site, out)
            }
        }
    }

    /// Completes the handshake. The first request may have come in the same read.
    fn established(&mut self, site: &mut Site, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Some(Tls::Handshake(handshake)) = self.tls.take() else {
            return Ok(());
        };
        let tls::Established {
            opener,
            sealer,
            is_http2,
            mut rest,
        } = handshake.finish()?;
        if is_http2 {
            self.protocol = Protocol::Http2(Http2::new());
        }
        self.tls = Some(Tls::Established { opener, sealer });
        self.receive(&mut rest, site, out)
    }
}

impl Protocol {
    /// Answers the complete requests in `input`. Returns the number of bytes used, and whether the client wants no more answers.
    #[inline]
    fn serve(
        &mut self,
        input: &[u8],
        site: &mut Site,
        sink: &mut Sink<'_>,
    ) -> Result<(usize, bool), Fault> {
        match self {
            Self::Http1 => {
                let step = http1::serve(input, site, sink)?;
                Ok((step.taken, step.is_last))
            }
            Self::Http2(http2) => Ok((http2.serve(input, site, sink)?, false)),
        }
    }
}

/// What is needed to answer the requests inside TLS records.
struct Requests<'a> {
    protocol: &'a mut Protocol,
    plain: &'a mut Vec<u8>,
    is_last: &'a mut bool,
}

impl Requests<'_> {
    /// Decrypts the complete records in `input` and answers the requests in them. Returns the number of bytes used.
    #[inline]
    fn serve(
        &mut self,
        input: &mut [u8],
        opener: &mut Protection,
        sealer: &mut Protection,
        site: &mut Site,
        out: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        let mut taken = 0;
        let mut sink = Sink::new(out, Some(sealer));
        while !*self.is_last
            && let Some(len) = tls::record_len(&input[taken..])?
        {
            let (content_type, plain) = opener.open(&mut input[taken..taken + len])?;
            taken += len;
            match content_type {
                APPLICATION_DATA => self.answer(plain, site, &mut sink)?,
                ALERT => *self.is_last = true,
                _ => {
                    return Err(Fault(
                        "the floor program supports no such TLS message after the handshake",
                    ));
                }
            }
        }
        sink.finish()?;
        if *self.is_last {
            let start = sealer.begin(out);
            out.extend_from_slice(&CLOSE_NOTIFY);
            sealer.seal(ALERT, start, out)?;
        }
        Ok(taken)
    }

    #[inline]
    fn answer(&mut self, plain: &[u8], site: &mut Site, sink: &mut Sink<'_>) -> Result<(), Fault> {
        if self.plain.is_empty() {
            let (taken, is_last) = self.protocol.serve(plain, site, sink)?;
            self.plain.extend_from_slice(&plain[taken..]);
            *self.is_last = is_last;
        } else {
            self.plain.extend_from_slice(plain);
            let (taken, is_last) = self.protocol.serve(self.plain, site, sink)?;
            self.plain.drain(..taken);
            *self.is_last = is_last;
        }
        Ok(())
    }
}
