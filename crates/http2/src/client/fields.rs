//! The field sections of responses: what they must have, and what they become (RFC 9113 §8.2 and §8.3.2).

use h2o_http::{Known, Name, StatusCode};

use super::ClientResponse;
use crate::error::{PeerError, StreamError};
use crate::fields::{MAX_DECODED_FIELDS, MAX_FIELDS, MAX_TABLE_TEXT, parse_length};
use crate::hpack::{DecodedField, FieldName, Pseudo};

/// Which section of a response it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Head,
    Trailers,
    /// Of a stream that is over: nothing is kept.
    Discarded,
}

/// Takes the fields of one section as they are decoded.
pub(super) struct ResponseFields<'h> {
    head: &'h mut ClientResponse,
    kind: Kind,
    has_status: bool,
    count: u32,
    /// Octets of text that may still come.
    room: usize,
    is_malformed: bool,
}

impl<'h> ResponseFields<'h> {
    /// For a section of `len` octets.
    pub(super) fn new(kind: Kind, head: &'h mut ClientResponse, len: usize) -> Self {
        head.clear();
        Self {
            head,
            kind,
            has_status: false,
            count: 0,
            room: MAX_TABLE_TEXT + 2 * len,
            is_malformed: false,
        }
    }

    /// Takes one field. Errors end the connection; what ends the stream only is told by [`ResponseFields::finish`].
    pub(super) fn field(&mut self, field: &DecodedField<'_>) -> Result<(), PeerError> {
        if let FieldName::Pseudo(pseudo) = field.name {
            return self.pseudo(pseudo, field.value);
        }
        self.count += 1;
        let len = field.name.as_bytes().len() + field.value.len();
        let room = self.room.checked_sub(len);
        self.room = room.unwrap_or(0);
        if self.count > MAX_DECODED_FIELDS {
            return Err(PeerError::FieldFlood);
        }
        let is_too_much = self.count > MAX_FIELDS || room.is_none();
        if is_too_much || !field.flaws.is_none() {
            self.is_malformed = true;
            return Ok(());
        }
        match field.name {
            FieldName::Known(known) => self.known(known, field.value),
            FieldName::Other(name) => {
                self.keep(Name::Other(name), field.value);
                Ok(())
            }
            // Its flaws were seen above.
            FieldName::Pseudo(_) | FieldName::Invalid(_) => Ok(()),
        }
    }

    fn known(&mut self, known: Known, value: &[u8]) -> Result<(), PeerError> {
        match known {
            Known::Connection
            | Known::Http2Settings
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::Te => return Err(PeerError::ConnectionField),
            // Tolerated, as in requests (H2O compatibility), and not handed on.
            Known::KeepAlive | Known::ProxyConnection => {}
            // What frames a message has no meaning behind it (RFC 9110 §6.5.1).
            Known::ContentLength if self.kind == Kind::Trailers => {}
            Known::ContentLength => {
                let length = parse_length(value);
                self.is_malformed |= length.is_none() || self.head.length.is_some();
                self.head.length = length;
            }
            known => self.keep(Name::Known(known), value),
        }
        Ok(())
    }

    fn keep(&mut self, name: Name<'_>, value: &[u8]) {
        if self.kind != Kind::Discarded {
            self.head.headers.push(name, value);
        }
    }

    fn pseudo(&mut self, pseudo: Pseudo, value: &[u8]) -> Result<(), PeerError> {
        let error = PeerError::BadResponse;
        if self.kind == Kind::Discarded {
            return Ok(());
        }
        if pseudo != Pseudo::Status
            || self.kind == Kind::Trailers
            || self.count > 0
            || std::mem::replace(&mut self.has_status, true)
        {
            return Err(error);
        }
        self.head.status = parse_status(value).ok_or(error)?;
        Ok(())
    }

    /// The section is complete.
    pub(super) const fn finish(self) -> Result<Option<StreamError>, PeerError> {
        if matches!(self.kind, Kind::Head) && !self.has_status {
            return Err(PeerError::BadResponse);
        }
        Ok(if self.is_malformed {
            Some(StreamError::Malformed)
        } else {
            None
        })
    }
}

/// Three digits (RFC 9110 §15).
fn parse_status(value: &[u8]) -> Option<StatusCode> {
    let digits = value.first_chunk::<3>().filter(|_| value.len() == 3)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    StatusCode::new(
        digits
            .iter()
            .fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')),
    )
}
