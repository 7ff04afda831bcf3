//! Bytes in and out of one connection, in clear text or over TLS.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use h2o_exchange::Counter;

use crate::context::{Context, READ_SIZE};
use crate::event::reactor::Ready;
use crate::event::socket::Socket;
use h2o_tls::{Control, OutputBuffer, TlsConnection, TlsError};

/// Bytes of content in the records that the kernel makes.
const FULL_RECORD: usize = 16 * 1024;

/// Least room a read is given.
const MIN_READ: usize = 4096;

/// A socket with what it needs to be read and written without waiting. An idle one holds no buffer.
pub(crate) struct Io {
    pub(crate) socket: Rc<Socket>,
    pub(crate) tls: Option<Box<TlsConnection>>,
    /// The kernel encrypts what is sent: for so many records more.
    in_kernel: Option<u64>,
    /// What the socket has not taken yet.
    backlog: Option<Box<Backlog>>,
    /// Received ahead of TLS, together with a PROXY header.
    unread: Option<Box<[u8]>>,
    /// Bytes of ours that have left since [`Io::take_written`].
    written: usize,
    /// What is not in the counters yet.
    traffic: Traffic,
    /// A response was cut off: the end of the connection must not look like that of a complete one.
    pub(crate) is_cut_off: bool,
    stage: Stage,
    can_read: bool,
    can_write: bool,
    /// The peer has ended its direction: a short read is not the end of what can be read.
    peer_closed: bool,
    broken: bool,
    /// Everything the peer had to say was read, up to its close_notify or the end of the stream.
    ended: bool,
}

/// How far TLS has come, where there is TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing can be carried yet.
    Handshake,
    /// As before, but early data has come and can be answered.
    Early,
    Established,
}

/// Bytes that wait for room in the socket.
#[derive(Default)]
struct Backlog {
    /// To be sent as it is: ciphertext under TLS.
    bytes: Vec<u8>,
    /// How much of `bytes` has been sent.
    sent: usize,
    /// To be sent after `bytes`; on clear text only.
    tail: Bytes,
}

/// Bytes that passed the socket, in either direction.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    received: u32,
    sent: u32,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Data,
    Blocked,
    Eof,
}

impl Io {
    pub(crate) const fn new(socket: Rc<Socket>) -> Self {
        Self {
            socket,
            tls: None,
            in_kernel: None,
            backlog: None,
            unread: None,
            written: 0,
            traffic: Traffic {
                received: 0,
                sent: 0,
            },
            is_cut_off: false,
            stage: Stage::Handshake,
            can_read: true,
            can_write: true,
            peer_closed: false,
            broken: false,
            ended: false,
        }
    }

    /// Notes what the kernel says the socket is ready for.
    pub(crate) fn on_ready(&mut self, ready: &Ready) {
        self.can_read |= ready.readable || ready.closed;
        self.can_write |= ready.writable;
        self.peer_closed |= ready.closed;
        self.broken |= ready.broken;
    }

    /// True once the connection is gone in both directions. A peer that has only ended its own still reads.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// True if the socket may hold bytes that were not read. Closing it then is a reset, which takes what
    /// the peer has not received yet along.
    pub(crate) const fn may_have_input(&self) -> bool {
        self.can_read && !self.ended
    }

    /// True once a read has come to the end of what the peer sends.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Appends what has arrived to `buffer`, in clear text.
    pub(crate) fn read(&mut self, context: &Context, buffer: &mut Vec<u8>) -> io::Result<Read> {
        if self.ended {
            return Ok(Read::Eof);
        }
        if !self.can_read {
            return Ok(Read::Blocked);
        }
        if self.tls.is_some() {
            // Whoever looks after the handshake reads ahead.
            if self.stage == Stage::Early {
                return Ok(Read::Blocked);
            }
            return self.read_tls(context, buffer);
        }
        buffer.reserve(if buffer.capacity() == 0 {
            READ_SIZE
        } else {
            MIN_READ
        });
        self.recv(buffer)
    }

    /// True while a handshake goes on that has brought early data: what was received may be a replay.
    #[inline]
    pub(crate) const fn is_early(&self) -> bool {
        matches!(self.stage, Stage::Early)
    }

    /// True once TLS carries data both ways.
    pub(crate) const fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established)
    }

    /// As [`Io::read`], while [`Io::is_early`].
    pub(crate) fn read_early(
        &mut self,
        context: &Context,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Read> {
        if self.ended {
            Ok(Read::Eof)
        } else if self.can_read {
            self.read_tls(context, buffer)
        } else {
            Ok(Read::Blocked)
        }
    }

    /// Nothing more is decrypted: the handshake will not be completed.
    pub(crate) const fn forget_early(&mut self) {
        self.stage = Stage::Established;
    }

    /// Bytes to be read again, ahead of what the socket has.
    pub(crate) fn push_back(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.unread = Some(bytes.into());
            self.can_read = true;
        }
    }

    fn recv(&mut self, buffer: &mut Vec<u8>) -> io::Result<Read> {
        if let Some(unread) = self.unread.take() {
            buffer.extend_from_slice(&unread);
            return Ok(Read::Data);
        }
        match self.socket.recv(buffer) {
            Ok((0, _)) => {
                self.ended = true;
                Ok(Read::Eof)
            }
            Ok((len, more)) => {
                add(&mut self.traffic.received, len);
                self.can_read = more || self.peer_closed;
                Ok(Read::Data)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_read = false;
                Ok(Read::Blocked)
            }
            Err(error) => Err(error),
        }
    }

    fn read_tls(&mut self, context: &Context, buffer: &mut Vec<u8>) -> io::Result<Read> {
        let mut cipher = context.scratch.cipher_in.take();
        let mut reply = OutputBuffer::default();
        let had = buffer.len();
        let result = loop {
            cipher.clear();
            cipher.reserve(READ_SIZE);
            match self.recv(&mut cipher) {
                Ok(Read::Data) => {}
                other => break other,
            }
            let Some(tls) = self.tls.as_deref_mut() else {
                break Ok(Read::Eof);
            };
            match tls.receive(&mut cipher, buffer, &mut reply) {
                Ok(progress) => {
                    if progress.handshake_done_now {
                        self.stage = Stage::Established;
                    } else if progress.early {
                        self.stage = Stage::Early;
                    }
                    self.ended = progress.closed_by_peer;
                    if buffer.len() > had {
                        break Ok(Read::Data);
                    }
                    if progress.closed_by_peer {
                        break Ok(Read::Eof);
                    }
                    // A record may be incomplete, or hold nothing for us.
                    if progress.handshake_done_now || !self.can_read {
                        break Ok(Read::Blocked);
                    }
                }
                Err(error) => {
                    break Err(tls_error(error));
                }
            }
        };
        context.scratch.cipher_in.give_back(cipher);
        self.send_controls()?;
        if !reply.is_empty() {
            self.queue(&reply);
            self.flush()?;
        }
        result
    }

    /// True if what is handed over leaves as it is, or the kernel encrypts it: files need not pass through this process.
    pub(crate) const fn takes_files(&self) -> bool {
        self.tls.is_none() || self.in_kernel.is_some()
    }

    /// Has the kernel encrypt what is sent from now on, where that is wanted and possible.
    pub(crate) fn offload(&mut self) {
        if self.in_kernel.is_some() || self.has_output() {
            return;
        }
        let Some(tls) = self.tls.as_deref_mut() else {
            return;
        };
        let Some((keys, records)) = tls.kernel_keys() else {
            return;
        };
        // A failure changes nothing: then records are made here.
        let handed_over = keys.hand_over(&*self.socket);
        self.in_kernel = Some(records).filter(|_| handed_over.is_ok());
        tls.on_handed_over(self.in_kernel.is_some());
    }

    /// Has the kernel send what TLS wants to say besides data. Nothing of it is queued: it is a few bytes, on a connection that
    /// ends or that takes bytes again.
    fn send_controls(&mut self) -> io::Result<()> {
        if self.in_kernel.is_none() {
            return Ok(());
        }
        let controls = self.tls.as_deref_mut().map(TlsConnection::take_controls);
        for control in controls.into_iter().flatten() {
            match control {
                Control::Record(content_type, payload) => {
                    self.socket.send_record(content_type, &payload)?;
                }
                Control::Keys(keys) => keys.set(&*self.socket).inspect_err(|_| {
                    // The peer expects other keys: no record can follow, close_notify included.
                    self.is_cut_off = true;
                })?,
            }
        }
        Ok(())
    }

    /// # Errors
    /// If the kernel's keys may not protect any more: not all kernels can replace them.
    fn check_keys(&self) -> io::Result<()> {
        match self.in_kernel {
            Some(0) => Err(tls_error(TlsError::KeysExhausted)),
            Some(_) | None => Ok(()),
        }
    }

    /// Sends `data`, or keeps what the socket does not take.
    pub(crate) fn send(&mut self, context: &Context, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let in_kernel = self.in_kernel.is_some();
        let Some(tls) = self.tls.as_deref_mut().filter(|_| !in_kernel) else {
            return self.send_raw(data);
        };
        let mut cipher = context.scratch.cipher_out.take();
        let sealed = tls.encrypt(data, &mut cipher);
        let result = sealed
            .map_err(tls_error)
            .and_then(|()| self.send_raw(&cipher));
        context.scratch.cipher_out.give_back(cipher);
        result
    }

    /// Sends `head` and then `body`, which is not copied first.
    pub(crate) fn send_with(
        &mut self,
        context: &Context,
        head: &[u8],
        body: Bytes,
    ) -> io::Result<()> {
        let in_kernel = self.in_kernel.is_some();
        if let Some(tls) = self.tls.as_deref_mut().filter(|_| !in_kernel) {
            let mut cipher = context.scratch.cipher_out.take();
            let sealed = tls.encrypt_gather(&[head, &body], &mut cipher);
            let result = sealed
                .map_err(tls_error)
                .and_then(|()| self.send_raw(&cipher));
            context.scratch.cipher_out.give_back(cipher);
            return result;
        }
        if self.has_output() {
            self.queue(head);
            self.queue(&body);
            return Ok(());
        }
        let len = head.len() + body.len();
        let sent = self.attempt(len, |socket| socket.send_two(head, &body))?;
        if sent < head.len() + body.len() {
            let backlog = self.backlog.get_or_insert_default();
            backlog
                .bytes
                .extend_from_slice(head.get(sent..).unwrap_or_default());
            backlog.tail = body.slice(sent.saturating_sub(head.len())..);
        }
        Ok(())
    }

    /// Sends bytes that need no encryption any more.
    fn send_raw(&mut self, data: &[u8]) -> io::Result<()> {
        let sent = if self.has_output() {
            0
        } else {
            self.attempt(data.len(), |socket| socket.send(data))?
        };
        self.queue(&data[sent..]);
        Ok(())
    }

    fn queue(&mut self, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let backlog = self.backlog.get_or_insert_default();
        let tail = std::mem::take(&mut backlog.tail);
        backlog.bytes.extend_from_slice(&tail);
        backlog.bytes.extend_from_slice(data);
    }

    /// Makes one system call that sends up to `len` bytes, all of which there are.
    fn attempt(
        &mut self,
        len: usize,
        send: impl FnOnce(&Socket) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !self.can_write {
            return Ok(0);
        }
        self.check_keys()?;
        match send(&self.socket) {
            Ok(sent) => {
                // A socket that takes some is full: the kernel rings when there is room again.
                self.can_write = sent == len;
                self.count_sent(sent);
                Ok(sent)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_write = false;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends what is kept, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(mut backlog) = self.backlog.take() else {
            return Ok(());
        };
        while self.can_write && !backlog.is_empty() {
            let first = backlog.first();
            let sent = self.attempt(first.len(), |socket| socket.send(first))?;
            backlog.advance(sent);
        }
        if !backlog.is_empty() {
            self.backlog = Some(backlog);
        }
        Ok(())
    }

    /// Sends from a file; on clear text with nothing kept. `None`: the socket takes no more for now.
    pub(crate) fn send_file(
        &mut self,
        range: &h2o_exchange::FileRange,
        len: usize,
    ) -> io::Result<Option<usize>> {
        if !self.can_write || self.has_output() {
            return Ok(None);
        }
        self.check_keys()?;
        match self.socket.send_file(range, len) {
            Ok(sent) => {
                self.count_sent(sent);
                Ok(Some(sent))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_write = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends what is in a pipe; on clear text with nothing kept. `None`: the socket takes no more for now.
    pub(crate) fn send_piped(
        &mut self,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> io::Result<Option<usize>> {
        if !self.can_write || self.has_output() {
            return Ok(None);
        }
        let sent = self.attempt(len, |socket| socket.send_piped(pipe, len))?;
        // A pipe may give less than it holds.
        self.can_write |= sent > 0;
        Ok(Some(sent).filter(|&sent| sent > 0))
    }

    /// True while something waits to be sent.
    pub(crate) const fn has_output(&self) -> bool {
        self.backlog.is_some()
    }

    /// Bytes that wait for room in the socket.
    pub(crate) fn queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| {
            backlog.bytes.len() - backlog.sent + backlog.tail.len()
        })
    }

    /// Bytes of memory held for what the socket does not take, and for what TLS cannot hand over yet.
    pub(crate) fn retained(&self) -> usize {
        let backlog = self.backlog.as_ref();
        let unread = self.unread.as_ref();
        let tls = self.tls.as_ref();
        backlog.map_or(0, |backlog| backlog.bytes.capacity() + backlog.tail.len())
            + unread.map_or(0, |unread| unread.len())
            + tls.map_or(0, |tls| tls.retained())
    }

    fn count_sent(&mut self, sent: usize) {
        if let Some(records) = &mut self.in_kernel {
            // Full ones, and one that is not.
            *records = records.saturating_sub((sent / FULL_RECORD + 1) as u64);
        }
        self.written += sent;
        add(&mut self.traffic.sent, sent);
    }

    /// Adds what passed the socket since the last call to the counters.
    pub(crate) fn settle_traffic(&mut self, context: &Context) {
        let Traffic { received, sent } = std::mem::take(&mut self.traffic);
        let counters = &context.worker.counters;
        if received > 0 {
            counters.add(Counter::BytesReceived, received.into());
        }
        if sent > 0 {
            counters.add(Counter::BytesSent, sent.into());
        }
    }

    /// Bytes that have left since the last call.
    pub(crate) fn take_written(&mut self) -> usize {
        std::mem::take(&mut self.written)
    }

    /// Tells the peer, over TLS, that nothing more will come.
    pub(crate) fn close_notify(&mut self) {
        if self.is_cut_off {
            return;
        }
        if let Some(tls) = self.tls.as_deref_mut() {
            let mut alert = OutputBuffer::default();
            tls.close_notify(&mut alert);
            self.queue(&alert);
            // The connection is at its end; a peer that has gone needs no alert.
            let _ = self.flush();
            if !self.has_output() {
                let _ = self.send_controls();
            }
        }
    }
}

fn tls_error(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// One turn of a connection moves far less than 4 GiB.
fn add(sum: &mut u32, len: usize) {
    *sum = sum.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
}

impl Backlog {
    /// What goes first.
    fn first(&self) -> &[u8] {
        match self.bytes.get(self.sent..) {
            Some([]) | None => &self.tail,
            Some(bytes) => bytes,
        }
    }

    fn advance(&mut self, sent: usize) {
        if self.sent < self.bytes.len() {
            self.sent += sent;
        } else {
            self.tail.advance(sent);
        }
    }

    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.tail.is_empty()
    }
}
