//! Reading and writing the bytes of one connection, in clear text or over TLS.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use h2o_exchange::Counter;

use crate::context::{Context, READ_SIZE};
use crate::event::reactor::Readiness;
use crate::event::socket::Socket;
use h2o_tls::{KernelAction, OutputBuffer, TlsConnection, TlsError};

/// Bytes of payload in each full TLS record that the kernel makes (kTLS).
const FULL_RECORD: usize = 16 * 1024;

/// Smallest free space in the buffer for a read of the socket, in bytes.
const MIN_READ: usize = 4096;

/// A non-blocking socket with its TLS state and unsent output. It holds no buffer while the connection is idle.
pub(crate) struct Io {
    pub(crate) socket: Rc<Socket>,
    pub(crate) tls: Option<Box<TlsConnection>>,
    /// How many TLS records the kernel may still encrypt before its keys are worn out; `None` if the kernel does not encrypt (no kTLS).
    kernel_records_left: Option<u64>,
    /// Output that the socket has not taken yet.
    backlog: Option<Box<Backlog>>,
    /// TLS bytes that were received together with the PROXY header.
    unread: Option<Box<[u8]>>,
    /// Bytes that the socket has taken since the last [`Io::take_written`].
    written: usize,
    /// Bytes received and sent that are not yet added to the worker's counters.
    traffic: Traffic,
    /// Whether a response was truncated: then no close_notify is sent, so that the client notices.
    pub(crate) is_truncated: bool,
    stage: TlsStage,
    can_read: bool,
    can_write: bool,
    /// Whether the peer has ended its direction of the connection: after a short read, the end of input is still to be read.
    peer_closed: bool,
    broken: bool,
    /// Whether all input was read, up to the peer's close_notify or the end of the stream.
    ended: bool,
}

/// Stage of the TLS handshake; unused in clear text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsStage {
    /// The TLS handshake has not come far enough to carry data.
    Handshake,
    /// Early data has arrived and may be answered; the handshake is not complete.
    Early,
    Established,
}

/// Output that waits until the socket has space for it.
#[derive(Default)]
struct Backlog {
    /// Bytes for the socket; over TLS they are already encrypted.
    bytes: Vec<u8>,
    /// How many bytes at the start of `bytes` the socket has taken.
    sent: usize,
    /// Bytes that are sent after `bytes` without a copy; clear text only.
    tail: Bytes,
}

/// Numbers of bytes that were received from the socket and sent to it.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    received: u32,
    sent: u32,
}

/// Result of a read of the connection.
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
            kernel_records_left: None,
            backlog: None,
            unread: None,
            written: 0,
            traffic: Traffic {
                received: 0,
                sent: 0,
            },
            is_truncated: false,
            stage: TlsStage::Handshake,
            can_read: true,
            can_write: true,
            peer_closed: false,
            broken: false,
            ended: false,
        }
    }

    /// Takes note of a readiness event of the socket.
    pub(crate) fn on_ready(&mut self, ready: &Readiness) {
        self.can_read |= ready.readable || ready.closed;
        self.can_write |= ready.writable;
        self.peer_closed |= ready.closed;
        self.broken |= ready.broken;
    }

    /// Whether the connection is lost in both directions. A peer that has only ended its own direction may still be reading.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the socket may hold unread input. Closing it would then send a reset, by which the peer loses data that
    /// it has not received yet.
    pub(crate) const fn may_have_input(&self) -> bool {
        self.can_read && !self.ended
    }

    /// Whether all input of the connection has been read.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads from the socket, decrypts the data and appends it to `buffer`.
    pub(crate) fn read(&mut self, context: &Context, buffer: &mut Vec<u8>) -> io::Result<Read> {
        if self.ended {
            return Ok(Read::Eof);
        }
        if !self.can_read && !self.session_is_looked_up() {
            return Ok(Read::Blocked);
        }
        if self.tls.is_some() {
            // While TLS early data may come, the connection reads the socket by [`Io::read_early`], not by this function.
            if self.stage == TlsStage::Early {
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

    /// Whether TLS early data was received and the handshake is not complete: requests may be replays.
    #[inline]
    pub(crate) const fn is_early(&self) -> bool {
        matches!(self.stage, TlsStage::Early)
    }

    /// Whether the TLS handshake is complete.
    pub(crate) const fn is_established(&self) -> bool {
        matches!(self.stage, TlsStage::Established)
    }

    /// Reads from the socket like [`Io::read`], but while [`Io::is_early`] holds: the TLS early data goes to `buffer`.
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

    /// Gives up a TLS handshake that will not be completed; further input is not decrypted.
    pub(crate) const fn forget_early(&mut self) {
        self.stage = TlsStage::Established;
    }

    /// Has the next read return `bytes`, which were read too early, before any new bytes.
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
            if !self.session_is_looked_up() {
                match self.recv(&mut cipher) {
                    Ok(Read::Data) => {}
                    other => break other,
                }
            }
            let Some(tls) = self.tls.as_deref_mut() else {
                break Ok(Read::Eof);
            };
            match tls.receive(&mut cipher, buffer, &mut reply) {
                Ok(progress) => {
                    if progress.handshake_done_now {
                        self.stage = TlsStage::Established;
                    } else if progress.early {
                        self.stage = TlsStage::Early;
                    }
                    self.ended = progress.closed_by_peer;
                    if buffer.len() > had {
                        break Ok(Read::Data);
                    }
                    if progress.closed_by_peer {
                        break Ok(Read::Eof);
                    }
                    // No data came out: the TLS record may be incomplete, or carry no data.
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
        self.run_kernel_actions()?;
        if !reply.is_empty() {
            self.queue(&reply);
            self.flush()?;
        }
        result
    }

    /// Whether the TLS handshake, which waited for the lookup of the client's session, can go on without further bytes from the client.
    fn session_is_looked_up(&self) -> bool {
        self.stage == TlsStage::Handshake
            && self
                .tls
                .as_ref()
                .is_some_and(|tls| tls.session_is_looked_up())
    }

    /// Whether the kernel can send a file without its bytes passing through this process: in clear text, or if the kernel encrypts (kTLS).
    pub(crate) const fn takes_files(&self) -> bool {
        self.tls.is_none() || self.kernel_records_left.is_some()
    }

    /// Hands the encryption of TLS records over to the kernel (kTLS), if this is configured and possible.
    pub(crate) fn offload(&mut self) {
        if self.kernel_records_left.is_some() || self.has_output() {
            return;
        }
        let Some(tls) = self.tls.as_deref_mut() else {
            return;
        };
        let Some((keys, records)) = tls.kernel_keys() else {
            return;
        };
        // If the kernel refuses the keys, this process keeps encrypting.
        let handed_over = keys.hand_over(&*self.socket);
        self.kernel_records_left = Some(records).filter(|_| handed_over.is_ok());
        tls.on_handed_over(self.kernel_records_left.is_some());
    }

    /// Sends TLS alerts and key updates through the kernel (kTLS). They are not queued: they are a few bytes, sent when the connection ends
    /// or when the socket has just been read.
    fn run_kernel_actions(&mut self) -> io::Result<()> {
        if self.kernel_records_left.is_none() {
            return Ok(());
        }
        let actions = self
            .tls
            .as_deref_mut()
            .map(TlsConnection::take_kernel_actions);
        for action in actions.into_iter().flatten() {
            match action {
                KernelAction::Record(content_type, payload) => {
                    self.socket.send_record(content_type, &payload)?;
                }
                KernelAction::Keys(keys) => keys.set(&*self.socket).inspect_err(|_| {
                    // The kernel has not taken the new keys, but the peer already expects them: no record can follow, not even
                    // close_notify.
                    self.is_truncated = true;
                })?,
            }
        }
        Ok(())
    }

    /// Checks whether the kernel may encrypt another TLS record.
    ///
    /// # Errors
    /// If the kernel's keys are worn out: not every kernel can replace them.
    fn check_keys(&self) -> io::Result<()> {
        match self.kernel_records_left {
            Some(0) => Err(tls_error(TlsError::KeysExhausted)),
            Some(_) | None => Ok(()),
        }
    }

    /// Sends `data`, over TLS encrypted; the part that the socket does not take is queued.
    pub(crate) fn send(&mut self, context: &Context, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let in_kernel = self.kernel_records_left.is_some();
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

    /// Sends `head` and then `body`, without copying them into one buffer.
    pub(crate) fn send_with(
        &mut self,
        context: &Context,
        head: &[u8],
        body: Bytes,
    ) -> io::Result<()> {
        let in_kernel = self.kernel_records_left.is_some();
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

    /// Sends bytes that are already encrypted, or clear text.
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

    /// Makes one system call to send `len` bytes. Returns how many of them the socket took.
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
                // A socket that takes only part of the bytes is full; the kernel reports when it is writable again.
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

    /// Sends queued output as far as the socket takes it.
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

    /// Has the kernel send bytes of a file (see [`Io::takes_files`]); no output may be queued. Returns `None` if the socket is full.
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

    /// Has the kernel send bytes from a pipe (see [`Io::takes_files`]); no output may be queued. Returns `None` if the socket is full.
    pub(crate) fn send_piped(
        &mut self,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> io::Result<Option<usize>> {
        if !self.can_write || self.has_output() {
            return Ok(None);
        }
        let sent = self.attempt(len, |socket| socket.send_piped(pipe, len))?;
        // A short write may mean that the pipe holds fewer bytes, and not that the socket is full.
        self.can_write |= sent > 0;
        Ok(Some(sent).filter(|&sent| sent > 0))
    }

    /// Whether output waits for space in the socket.
    pub(crate) const fn has_output(&self) -> bool {
        self.backlog.is_some()
    }

    /// Bytes of output that wait for space in the socket.
    pub(crate) fn queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| {
            backlog.bytes.len() - backlog.sent + backlog.tail.len()
        })
    }

    /// Bytes of memory held for queued output and for incomplete TLS records.
    pub(crate) fn retained(&self) -> usize {
        let backlog = self.backlog.as_ref();
        let unread = self.unread.as_ref();
        let tls = self.tls.as_ref();
        backlog.map_or(0, |backlog| backlog.bytes.capacity() + backlog.tail.len())
            + unread.map_or(0, |unread| unread.len())
            + tls.map_or(0, |tls| tls.retained())
    }

    fn count_sent(&mut self, sent: usize) {
        if let Some(records) = &mut self.kernel_records_left {
            // The kernel has made full TLS records of the bytes, and one more that is partly filled.
            *records = records.saturating_sub((sent / FULL_RECORD + 1) as u64);
        }
        self.written += sent;
        add(&mut self.traffic.sent, sent);
    }

    /// Adds the bytes sent and received since the last call to the worker's counters.
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

    /// Returns the number of bytes that the socket has taken since the last call.
    pub(crate) fn take_written(&mut self) -> usize {
        std::mem::take(&mut self.written)
    }

    /// Sends the TLS alert close_notify; in clear text nothing.
    pub(crate) fn close_notify(&mut self) {
        if self.is_truncated {
            return;
        }
        if let Some(tls) = self.tls.as_deref_mut() {
            let mut alert = OutputBuffer::default();
            tls.close_notify(&mut alert);
            self.queue(&alert);
            // A failure is ignored: the connection ends with this alert, and the peer may have closed it already.
            let _ = self.flush();
            if !self.has_output() {
                let _ = self.run_kernel_actions();
            }
        }
    }
}

fn tls_error(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Adds `len` to `sum`, which stops at its largest value. No bytes go uncounted: one turn of a connection moves far less than 4 GiB.
fn add(sum: &mut u32, len: usize) {
    *sum = sum.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
}

impl Backlog {
    /// The queued bytes that must be sent next.
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
