//! The server of these tests, and tables of what a client sends and what it must get.

use std::time::Duration;

use h2o_tests::http2::{Frame, GoAway, Http2, encode, get, kind, post};
use h2o_tests::{Server, Setup};

/// Initial size of the window of a stream and of the connection (RFC 9113 §6.9.2).
pub(crate) const DEFAULT_WINDOW: usize = 65_535;

pub(crate) const LARGE: usize = 1_000_000;

/// Starts a server with these directives at the global level, besides those that all tests share.
pub(crate) fn start(settings: &str) -> Server {
    Setup::new(&format!(
        "
{settings}
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /:
        file.dir: @DIR@/www
      /long:
        file.dir: @DIR@/www
        header.add: 'x-long: {}'
      # Collects the content: what is at the other place, which there is not, may have a use for it.
      /upload: {{ redirect: {{ url: /none, status: 307, internal: YES }} }}
",
        "x".repeat(20_000)
    ))
    .file("www/a.txt", "hello")
    .file("www/empty.txt", "")
    .file("www/window", vec![b'w'; DEFAULT_WINDOW])
    .file("www/60k-a", vec![b'a'; 60_000])
    .file("www/60k-b", vec![b'b'; 60_000])
    .file("www/60k-c", vec![b'c'; 60_000])
    .file("www/large", vec![b'x'; LARGE])
    .start()
}

pub(crate) fn open(server: &Server) -> Http2 {
    Http2::open(server.port(), &[])
}

/// How the conversation that a row of a test's table describes must end.
#[derive(Debug)]
pub(crate) enum Want {
    /// The server sends GOAWAY with this last stream, error code and text, then closes the connection.
    GoAway(u32, u32, &'static str),
    /// The server sends GOAWAY with this last stream, this error code and any text, then closes the connection.
    End(u32, u32),
    /// The server sends RST_STREAM for this stream with this error code; the connection remains usable.
    Reset(u32, u32),
    /// The server answers on this stream with this status and, unless the text is empty, this content.
    Answer(u32, u16, &'static str),
    /// The server sends no error; the connection remains usable.
    Nothing,
    /// The server closes the connection without GOAWAY.
    Close,
}

/// What the client does next in the conversation that a row of a test's table describes.
pub(crate) enum Step {
    /// Sends a frame; frames of successive steps are sent in one piece.
    Send(Frame),
    /// Waits until the response on this stream has ended.
    Await(u32),
}

impl From<Frame> for Step {
    fn from(frame: Frame) -> Self {
        Self::Send(frame)
    }
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
    pub(crate) want: Want,
}

pub(crate) fn row(name: &'static str, frames: impl IntoIterator<Item = Frame>, want: Want) -> Row {
    let steps = frames.into_iter().map(Step::Send).collect();
    Row { name, steps, want }
}

/// Like [`row`], with steps that may also wait.
pub(crate) fn steps(name: &'static str, steps: Vec<Step>, want: Want) -> Row {
    Row { name, steps, want }
}

/// Runs each row on a connection of its own: sent in one piece and, if the row is short, once more byte by byte. Fails with a list of all
/// rows that end otherwise than wanted.
pub(crate) fn play(server: &Server, rows: &[Row]) {
    let pieces = |row: &Row| {
        let is_short = row.bytes() <= 2000;
        [Some(usize::MAX), is_short.then_some(1)]
    };
    let failures: Vec<String> = rows
        .iter()
        .flat_map(|row| {
            pieces(row)
                .into_iter()
                .flatten()
                .map(move |piece| (row, piece))
        })
        .filter_map(|(row, piece)| play_row(server, row, piece).err())
        .collect();
    assert!(
        failures.is_empty(),
        "{} failures of {} rows:\n{}",
        failures.len(),
        rows.len(),
        failures.join("\n")
    );
    assert!(
        !server.messages().contains("panicked"),
        "the server panicked"
    );
}

impl Row {
    fn bytes(&self) -> usize {
        let bytes = self.steps.iter().map(|step| match step {
            Step::Send(frame) => frame.bytes().len(),
            Step::Await(_) => 0,
        });
        bytes.sum()
    }
}

pub(crate) fn play_row(server: &Server, row: &Row, piece: usize) -> Result<(), String> {
    let mut connection = open(server);
    let mut pending = Vec::new();
    for step in &row.steps {
        match step {
            Step::Send(frame) => pending.extend(frame.bytes()),
            Step::Await(stream) => {
                send_in_pieces(&mut connection, &std::mem::take(&mut pending), piece);
                let _ = connection.read_while_waiting(PATIENCE, |connection| {
                    connection.answer(*stream).is_over()
                });
            }
        }
    }
    send_in_pieces(&mut connection, &pending, piece);
    compare(&mut connection, &row.want).map_err(|error| {
        let how = if piece == 1 { " (byte by byte)" } else { "" };
        format!("* {}{how}: {error}\n{}", row.name, connection.story())
    })
}

/// Sends `bytes` in pieces of this size; stops if the server closes the connection.
pub(crate) fn send_in_pieces(connection: &mut Http2, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
        if !connection.try_send(piece) {
            return;
        }
    }
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) fn compare(connection: &mut Http2, want: &Want) -> Result<(), String> {
    match *want {
        Want::GoAway(last, code, text) => {
            if !connection.read_while_waiting(PATIENCE, |connection| connection.is_closed) {
                return Err("the connection stays open".to_owned());
            }
            let text = text.to_owned();
            let want = Some(GoAway { last, code, text });
            if connection.goaway != want {
                return Err(format!("wanted {want:?}, got {:?}", connection.goaway));
            }
        }
        Want::End(last, code) => {
            let is_closed =
                connection.read_while_waiting(PATIENCE, |connection| connection.is_closed);
            let got = connection.goaway.as_ref();
            let got = got.map(|goaway| (goaway.last, goaway.code));
            if !is_closed || got != Some((last, code)) {
                return Err(format!("wanted GOAWAY {:?}, got {got:?}", (last, code)));
            }
        }
        Want::Reset(stream, code) => {
            // The reset may come after a complete response, so the end of the response is not awaited.
            let _ = connection.read_while_waiting(PATIENCE, |connection| {
                connection.answer(stream).reset.is_some() || connection.goaway.is_some()
            });
            let reset = connection.answer(stream).reset;
            if reset != Some(code) {
                return Err(format!("wanted reset {code}, got {reset:?}"));
            }
            return stays_open(connection);
        }
        Want::Answer(stream, status, text) => {
            let _ = connection.read_while_waiting(PATIENCE, |connection| {
                connection.answer(stream).is_over() || connection.goaway.is_some()
            });
            let answer = connection.answer(stream);
            if answer.status() != status || !(text.is_empty() || answer.text() == text) {
                return Err(format!("wanted {status} `{text}`, got {answer:?}"));
            }
            return stays_open(connection);
        }
        Want::Nothing => return stays_open(connection),
        Want::Close => {
            let is_closed =
                connection.read_while_waiting(PATIENCE, |connection| connection.is_closed);
            if !is_closed || connection.goaway.is_some() {
                return Err("wanted the end of the connection and no GOAWAY".to_owned());
            }
        }
    }
    Ok(())
}

pub(crate) fn stays_open(connection: &mut Http2) -> Result<(), String> {
    let content = *b"are you?";
    connection.send_frames(&[Frame::ping(content)]);
    let answered = connection.read_while_waiting(PATIENCE, |connection| {
        let is_answer = |frame: &Frame| frame.kind == kind::PING && frame.payload == content;
        connection.frames.iter().any(is_answer)
    });
    if answered && connection.goaway.is_none() {
        Ok(())
    } else {
        Err("the connection does not go on".to_owned())
    }
}

/// The head of a POST request whose content is to follow.
pub(crate) fn upload(stream: u32) -> Frame {
    Frame::request_with_content(stream, post("/upload"))
}

pub(crate) fn small(stream: u32) -> Frame {
    Frame::request(stream, get("/a.txt"))
}

/// A request on stream 1 that has only these fields.
pub(crate) fn asking(fields: &[(&str, &str)]) -> Frame {
    Frame::request(1, encode(fields))
}

/// A GET request on stream 1 with these fields in addition.
pub(crate) fn with(fields: &[(&str, &str)]) -> Frame {
    Frame::request(1, [get("/a.txt"), encode(fields)].concat())
}

/// Waits until `length` bytes of the response on the stream have come; fails if more come.
pub(crate) fn exactly(connection: &mut Http2, stream: u32, length: usize, why: &str) {
    let limit = Duration::from_secs(5);
    connection.read_while_waiting(limit, |c| {
        c.answers
            .get(&stream)
            .is_some_and(|a| a.body.len() >= length)
    });
    connection.ping();
    connection.read_while_waiting(Duration::from_millis(20), |_| false);
    assert_eq!(connection.answer(stream).body.len(), length, "{why}");
}
