//! A client's HTTP/2 connection, and what the server has sent on it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::{Decoder, Frame, flag, kind};
use crate::Deadline;

/// The client's connection preface (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Initial flow-control window of streams and of the connection, in bytes (RFC 9113 §6.9.2).
const FIRST_WINDOW: usize = 65_535;

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client's HTTP/2 connection. It records every frame that it reads.
#[derive(Debug)]
pub struct Http2 {
    socket: TcpStream,
    unread: Vec<u8>,
    decoder: Decoder,
    /// The incomplete field section: its stream, its bytes so far, and whether it ends the stream.
    section: Option<(u32, Vec<u8>, bool)>,
    /// Every frame received, in order.
    pub frames: Vec<Frame>,
    /// The response received so far, by stream.
    pub answers: BTreeMap<u32, Answer>,
    /// The last GOAWAY frame received.
    pub goaway: Option<GoAway>,
    /// Whether the server has closed the connection.
    pub is_closed: bool,
}

/// The response received on a stream so far.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The field sections of the interim (1xx) responses.
    pub interim: Vec<Vec<(String, String)>>,
    /// The fields of the final response.
    pub fields: Vec<(String, String)>,
    /// The response body received so far.
    pub body: Vec<u8>,
    /// The trailers of the response.
    pub trailers: Vec<(String, String)>,
    /// Whether the server has ended the stream by END_STREAM.
    pub is_ended: bool,
    /// The error code of RST_STREAM, if the server has sent it.
    pub reset: Option<u32>,
}

/// A GOAWAY frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoAway {
    /// The last stream that the server processes.
    pub last: u32,
    /// The error code of the GOAWAY frame.
    pub code: u32,
    /// The debug data of the GOAWAY frame, as text.
    pub text: String,
}

/// Result of waiting for a frame of the server.
#[derive(Debug)]
pub enum Received {
    /// A frame of the server has arrived.
    Frame(Frame),
    /// The server has closed the connection.
    Closed,
    /// No frame arrived in time.
    Nothing,
}

impl Answer {
    /// The status code of the final response; 0 if none was received.
    #[must_use]
    pub fn status(&self) -> u16 {
        let status = self.field(":status");
        status.and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// The first value of the response field `name`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// The response body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the response is over: it has ended, or its stream was reset.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_ended || self.reset.is_some()
    }

    fn on_section(&mut self, fields: Vec<(String, String)>) {
        let is_interim = fields
            .first()
            .is_some_and(|(name, value)| name == ":status" && value.starts_with('1'));
        if is_interim {
            self.interim.push(fields);
        } else if self.fields.is_empty() {
            self.fields = fields;
        } else {
            self.trailers = fields;
        }
    }
}

impl Http2 {
    /// Connects without sending anything.
    ///
    /// # Panics
    /// If nothing listens on the port.
    #[must_use]
    pub fn connect(port: u16) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", port))
            .unwrap_or_else(|error| panic!("cannot connect to port {port}: {error}"));
        Self::over(socket)
    }

    /// Makes a client's connection over a connected socket.
    ///
    /// # Panics
    /// If the socket is not connected.
    #[must_use]
    pub fn over(socket: TcpStream) -> Self {
        socket
            .set_nodelay(true)
            .expect("the socket is a TCP socket");
        socket
            .set_write_timeout(Some(PATIENCE))
            .expect("the time is not zero");
        Self {
            socket,
            unread: Vec::new(),
            decoder: Decoder::default(),
            section: None,
            frames: Vec::new(),
            answers: BTreeMap::new(),
            goaway: None,
            is_closed: false,
        }
    }

    /// Connects, sends the preface with these settings, and waits for the settings of the server.
    #[must_use]
    pub fn open(port: u16, settings: &[(u16, u32)]) -> Self {
        let mut connection = Self::connect(port);
        connection.send(PREFACE);
        connection.send_frame(&Frame::settings(settings));
        connection.read_until("the server's acknowledgement", |connection| {
            let mut frames = connection.frames.iter();
            frames.any(|frame| frame.kind == kind::SETTINGS && frame.has(flag::ACK))
        });
        connection
    }

    /// The client's socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The HPACK decoder for the server's field sections.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Sends these bytes to the server.
    ///
    /// # Panics
    /// If the server has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket
            .write_all(bytes.as_ref())
            .expect("the server reads what the client sends");
    }

    /// Sends as much as the server takes. Returns whether the server took all bytes.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.socket.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a frame.
    pub fn send_frame(&mut self, frame: &Frame) {
        self.send(frame.bytes());
    }

    /// Sends frames in one write; the server may have closed the connection.
    pub fn send_frames<'a>(&mut self, frames: impl IntoIterator<Item = &'a Frame>) {
        let bytes: Vec<u8> = frames.into_iter().flat_map(Frame::bytes).collect();
        let _ = self.try_send(bytes);
    }

    /// Ends the client's direction of the connection.
    pub fn finish(&mut self) {
        // The result is ignored: the server may have closed the connection already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// The response received on a stream so far.
    #[must_use]
    pub fn answer(&self, stream: u32) -> Answer {
        self.answers.get(&stream).cloned().unwrap_or_default()
    }

    /// Waits for the next frame and records it.
    ///
    /// # Panics
    /// If the received bytes are not HTTP/2.
    pub fn read(&mut self, limit: Duration) -> Received {
        let deadline = Deadline::after(limit);
        loop {
            if let Some((frame, length)) = Frame::parse(&self.unread) {
                self.unread.drain(..length);
                self.note(&frame);
                return Received::Frame(frame);
            }
            if self.is_closed {
                return Received::Closed;
            }
            if !self.receive(deadline.left()) {
                return Received::Nothing;
            }
        }
    }

    /// Reads once from the socket. Returns `false` if nothing arrived in time; the end of the connection counts as an arrival.
    fn receive(&mut self, limit: Duration) -> bool {
        let mut buffer = [0; 64 * 1024];
        let count = if limit.is_zero() {
            self.socket
                .set_nonblocking(true)
                .expect("the descriptor is a socket");
            let count = self.socket.read(&mut buffer);
            self.socket
                .set_nonblocking(false)
                .expect("the descriptor is a socket");
            count
        } else {
            self.socket
                .set_read_timeout(Some(limit))
                .expect("the time is not zero");
            self.socket.read(&mut buffer)
        };
        match count {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return false,
                ErrorKind::ConnectionReset => self.is_closed = true,
                _ => panic!("cannot receive: {error}"),
            },
        }
        true
    }

    fn note(&mut self, frame: &Frame) {
        match frame.kind {
            kind::DATA => {
                let answer = self.answers.entry(frame.stream).or_default();
                assert!(!frame.has(flag::PADDED), "the server sends no padding");
                assert!(
                    !answer.is_ended,
                    "a frame after the end of its stream: {frame:?}"
                );
                answer.body.extend(&frame.payload);
                answer.is_ended |= frame.has(flag::END_STREAM);
            }
            kind::HEADERS => {
                assert!(!frame.has(flag::PADDED), "the server sends no padding");
                assert!(!frame.has(flag::PRIORITY), "only clients give priorities");
                let is_end = frame.has(flag::END_STREAM);
                self.section = Some((frame.stream, frame.payload.clone(), is_end));
                self.note_section(frame);
            }
            kind::CONTINUATION => {
                let section = self.section.as_mut();
                let (stream, bytes, _) =
                    section.expect("CONTINUATION follows HEADERS without END_HEADERS");
                assert_eq!(*stream, frame.stream, "{frame:?}");
                bytes.extend(&frame.payload);
                self.note_section(frame);
            }
            kind::RST_STREAM => {
                let answer = self.answers.entry(frame.stream).or_default();
                answer.reset = Some(frame.number_at(0));
            }
            kind::GOAWAY => {
                self.goaway = Some(GoAway {
                    last: frame.number_at(0),
                    code: frame.number_at(4),
                    text: String::from_utf8_lossy(&frame.payload[8..]).into_owned(),
                });
            }
            _ => {
                let is_alone = self.section.is_none();
                assert!(is_alone, "a frame within a field section: {frame:?}");
            }
        }
        self.frames.push(frame.clone());
    }

    fn note_section(&mut self, frame: &Frame) {
        if !frame.has(flag::END_HEADERS) {
            return;
        }
        let (stream, bytes, is_end) = self.section.take().expect("a field section was begun");
        let fields = self.decoder.decode_text(&bytes);
        let answer = self.answers.entry(stream).or_default();
        assert!(
            !answer.is_ended,
            "a frame after the end of its stream: {frame:?}"
        );
        answer.on_section(fields);
        answer.is_ended |= is_end;
    }

    /// Reads frames until `is_enough` returns true. Returns `false` if the connection ends or `limit` passes first.
    pub fn read_while_waiting(
        &mut self,
        limit: Duration,
        is_enough: impl Fn(&Self) -> bool,
    ) -> bool {
        let deadline = Deadline::after(limit);
        loop {
            if is_enough(self) {
                return true;
            }
            match self.read(deadline.left()) {
                Received::Frame(_) => {}
                Received::Closed => return is_enough(self),
                Received::Nothing => return false,
            }
        }
    }

    /// Reads frames until `is_enough` returns true.
    ///
    /// # Panics
    /// If that does not happen in time; `what` describes what was awaited.
    pub fn read_until(&mut self, what: &str, is_enough: impl Fn(&Self) -> bool) {
        let got = self.read_while_waiting(PATIENCE, is_enough);
        assert!(got, "waited in vain for {what}:\n{}", self.story());
    }

    /// Reads until the response on a stream is complete, and returns it.
    pub fn read_answer(&mut self, stream: u32) -> Answer {
        self.read_until(&format!("the answer on stream {stream}"), |connection| {
            let answer = connection.answers.get(&stream);
            answer.is_some_and(Answer::is_over)
        });
        self.answer(stream)
    }

    /// Sends a request with the field section `section`, and returns its response.
    pub fn ask(&mut self, stream: u32, section: &[u8]) -> Answer {
        self.send_frame(&Frame::request(stream, section));
        self.read_answer(stream)
    }

    /// Sends PING and reads until its acknowledgement: the server has then sent its immediate reactions to earlier
    /// frames.
    pub fn ping(&mut self) {
        let so_far = u64::try_from(self.frames.len()).unwrap_or_default();
        let content = so_far.to_be_bytes();
        self.send_frame(&Frame::ping(content));
        self.read_until("the answer to PING", |connection| {
            let mut frames = connection.frames.iter();
            frames.any(|frame| {
                frame.kind == kind::PING && frame.has(flag::ACK) && frame.payload == content
            })
        });
    }

    /// Number of bytes of DATA that the server has allowed so far on a stream; for stream 0, on the connection.
    #[must_use]
    pub fn allowed(&self, stream: u32) -> usize {
        let frames = self.frames.iter();
        let updates = frames.filter(|f| f.kind == kind::WINDOW_UPDATE && f.stream == stream);
        updates.fold(FIRST_WINDOW, |sum, update| {
            sum + usize::try_from(update.number_at(0)).unwrap_or_default()
        })
    }

    /// Reads frames until the server closes the connection.
    pub fn read_to_end(&mut self) {
        self.read_until("the end of the connection", |connection| {
            connection.is_closed
        });
    }

    /// The last dozen received frames, as text.
    #[must_use]
    pub fn story(&self) -> String {
        let skipped = self.frames.len().saturating_sub(12);
        let mut lines = vec![format!("({skipped} frames before)")];
        lines.extend(self.frames[skipped..].iter().map(|f| format!("{f:?}")));
        if self.is_closed {
            lines.push("closed".to_owned());
        }
        lines.join("\n")
    }
}
