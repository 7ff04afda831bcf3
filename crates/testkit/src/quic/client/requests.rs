//! The part of HTTP/3 that tests over QUIC need: requests, and the responses to them.

use super::Quic;
use crate::http3::{self, Frame};

/// A response of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status of the response.
    pub status: u16,
    /// The header fields of the response.
    pub fields: Vec<(String, String)>,
    /// The body of the response.
    pub content: Vec<u8>,
}

impl Quic {
    /// The part of the response that has come on a stream; `None` before its head has come.
    ///
    /// # Panics
    /// If it is invalid.
    #[must_use]
    pub fn answer(&self, stream: u64) -> Option<Answer> {
        let mut answer: Option<Answer> = None;
        let mut rest = self.received(stream);
        while let Some((frame, len)) = Frame::parse(rest) {
            rest = &rest[len..];
            match frame.kind {
                http3::kind::HEADERS => {
                    let decoded = http3::Decoder::new(0).decode(stream, &frame.payload);
                    let (fields, _) =
                        decoded.expect("a field section cannot refer to a table of no size");
                    let text =
                        |bytes: Vec<u8>| String::from_utf8(bytes).expect("the bytes are UTF-8");
                    let fields: Vec<(String, String)> = (fields.into_iter())
                        .map(|(name, value)| (text(name), text(value)))
                        .collect();
                    let status = fields.iter().find(|(name, _)| name == ":status");
                    let Some(status) = status.and_then(|(_, value)| value.parse().ok()) else {
                        // The trailers are ignored.
                        continue;
                    };
                    answer = Some(Answer {
                        status,
                        fields,
                        content: Vec::new(),
                    });
                }
                http3::kind::DATA => {
                    if let Some(answer) = &mut answer {
                        answer.content.extend(frame.payload);
                    }
                }
                _ => {}
            }
        }
        answer
    }

    /// The stream of the last GOAWAY frame: requests on that stream and later ones are not processed (RFC 9114 §5.2).
    #[must_use]
    pub fn goaway(&self) -> Option<u64> {
        let control = self.streams.iter().find(|(id, stream)| {
            **id % 4 == 3 && stream.data.first().is_some_and(|kind| *kind == 0)
        });
        let mut rest = control?.1.data.get(1..)?;
        let mut last = None;
        while let Some((frame, len)) = Frame::parse(rest) {
            rest = &rest[len..];
            if frame.kind == http3::kind::GOAWAY {
                last = Some(frame.id());
            }
        }
        last
    }

    /// Sends a GET request for `path`, and waits for the whole response.
    ///
    /// # Panics
    /// If the response does not come.
    pub fn ask(&mut self, path: &str) -> Answer {
        let stream = self.send_request(&get(path));
        self.wait_for(path, |quic| quic.has_ended(stream));
        let answer = self.answer(stream).expect("the response has a head");
        self.streams.remove(&stream);
        answer
    }
}

/// The unidirectional streams with which a client begins, and the first bytes of each: control stream, QPACK encoder, QPACK
/// decoder.
#[must_use]
pub fn control_streams(settings: &[(u64, u64)]) -> [(u64, Vec<u8>); 3] {
    let control = [http3::varint(0), Frame::settings(settings).bytes()].concat();
    [(2, control), (6, http3::varint(2)), (10, http3::varint(3))]
}

/// Encodes the HEADERS frame of a request.
#[must_use]
pub fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut all = vec![
        (":method", method),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ];
    all.extend(fields);
    Frame::headers(http3::encode(&all)).bytes()
}

/// Encodes the HEADERS frame of a GET request.
#[must_use]
pub fn get(path: &str) -> Vec<u8> {
    request("GET", path, &[])
}
