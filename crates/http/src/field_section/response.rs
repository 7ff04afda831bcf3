//! The field sections of responses: required fields, and conversion to a response head (RFC 9113 §8.3.2, RFC 9114 §4.3.2).

use super::{
    DecodedField, FieldError, FieldName, MAX_DECODED_FIELDS, MAX_FIELDS, MAX_TABLE_TEXT, Pseudo,
    SectionError,
};
use crate::{ClientResponse, Known, Name, StatusCode, parse_content_length};

/// The role of a section in its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// The section is the head of a final or informational response.
    Head,
    /// The section is the trailers of the response.
    Trailers,
    /// A section of a stream that has ended already: it is decoded, since decoding changes the dynamic table, and its
    /// fields are dropped.
    Discarded,
}

/// Collects the fields of one section as they are decoded.
pub struct ResponseFields<'h> {
    head: &'h mut ClientResponse,
    kind: SectionKind,
    has_status: bool,
    count: u32,
    /// How many more bytes of decoded names and values the section may have.
    room: usize,
    is_malformed: bool,
}

impl<'h> ResponseFields<'h> {
    /// Begins to collect a section that has `len` bytes on the wire. Clears `head`.
    pub fn new(kind: SectionKind, head: &'h mut ClientResponse, len: usize) -> Self {
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

    /// Adds one decoded field.
    ///
    /// # Errors
    /// Returns a [`FieldError`] if the field makes the message malformed at once. Other flaws are returned by
    /// [`ResponseFields::finish`], so that the decoder reads the rest of the section.
    pub fn field(&mut self, field: &DecodedField<'_>) -> Result<(), FieldError> {
        if let FieldName::Pseudo(pseudo) = field.name {
            return self.pseudo(pseudo, field.value);
        }
        self.count += 1;
        let len = field.name.as_bytes().len() + field.value.len();
        let room = self.room.checked_sub(len);
        self.room = room.unwrap_or(0);
        if self.count > MAX_DECODED_FIELDS {
            return Err(FieldError::Flood);
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
            // `field` has handled pseudo-header fields and fields with invalid names before this `match`.
            FieldName::Pseudo(_) | FieldName::Invalid(_) => Ok(()),
        }
    }

    fn known(&mut self, known: Known, value: &[u8]) -> Result<(), FieldError> {
        match known {
            Known::Connection
            | Known::Http2Settings
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::Te => return Err(FieldError::ConnectionSpecific),
            // `keep-alive` and `proxy-connection`, which only HTTP/1 has, are dropped; H2O tolerates them, too.
            Known::KeepAlive | Known::ProxyConnection => {}
            // Fields that describe the framing of a message have no meaning in trailers (RFC 9110 §6.5.1).
            Known::ContentLength if self.kind == SectionKind::Trailers => {}
            Known::ContentLength => {
                let length = parse_content_length(value);
                self.is_malformed |= length.is_none() || self.head.length.is_some();
                self.head.length = length;
            }
            known => self.keep(Name::Known(known), value),
        }
        Ok(())
    }

    fn keep(&mut self, name: Name<'_>, value: &[u8]) {
        if self.kind != SectionKind::Discarded {
            self.head.headers.push(name, value);
        }
    }

    fn pseudo(&mut self, pseudo: Pseudo, value: &[u8]) -> Result<(), FieldError> {
        let error = FieldError::ResponsePseudoField;
        if self.kind == SectionKind::Discarded {
            return Ok(());
        }
        if pseudo != Pseudo::Status
            || self.kind == SectionKind::Trailers
            || self.count > 0
            || std::mem::replace(&mut self.has_status, true)
        {
            return Err(error);
        }
        self.head.status = parse_status(value).ok_or(error)?;
        Ok(())
    }

    /// Ends the section and checks it as a whole.
    ///
    /// # Errors
    /// Returns a [`SectionError`] if the section makes the message malformed.
    pub const fn finish(self) -> Result<(), SectionError> {
        if matches!(self.kind, SectionKind::Head) && !self.has_status {
            return Err(SectionError::StatusMissing);
        }
        if self.is_malformed {
            return Err(SectionError::Fields);
        }
        Ok(())
    }
}

/// The status code in the value of `:status`, which has three digits (RFC 9110 §15).
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
