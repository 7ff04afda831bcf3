//! The length of the content of requests and responses (RFC 9112 §6).

use h2o_http::{BodyLength, parse_content_length};

use crate::FramingError;

/// The fields of one head that determine the length of its content, collected while its lines are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FramingFields<'a> {
    content_length: Option<&'a [u8]>,
    lengths_differ: bool,
    length_repeated: bool,
    transfer_encoding: Option<&'a [u8]>,
    coding_repeated: bool,
}

impl<'a> FramingFields<'a> {
    pub(crate) fn on_content_length(&mut self, value: &'a [u8]) {
        self.length_repeated |= self.content_length.is_some();
        let first = *self.content_length.get_or_insert(value);
        self.lengths_differ |= first != value;
    }

    pub(crate) fn on_transfer_encoding(&mut self, value: &'a [u8]) {
        self.coding_repeated |= self.transfer_encoding.is_some();
        self.transfer_encoding = Some(value);
    }

    /// Whether the head has `Content-Length` or `Transfer-Encoding`.
    pub(crate) const fn is_any(&self) -> bool {
        self.content_length.is_some() || self.transfer_encoding.is_some()
    }

    /// The content length according to all these fields. Fields that another recipient could read differently are refused:
    /// request smuggling needs two recipients that disagree (RFC 9112 §11.2).
    pub(crate) fn body_length(&self, is_http10: bool) -> Result<BodyLength, FramingError> {
        match (self.content_length, self.transfer_encoding) {
            (None, None) => Ok(BodyLength::None),
            (Some(_), Some(_)) => Err(FramingError::LengthAndCoding),
            (None, Some(_)) if self.coding_repeated => Err(FramingError::TransferEncodingRepeated),
            (None, Some(_)) if is_http10 => Err(FramingError::TransferEncodingInHttp10),
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(BodyLength::Unknown)
            }
            (None, Some(_)) => Err(FramingError::TransferEncodingUnknown),
            (Some(_), None) if self.lengths_differ => Err(FramingError::ContentLengthsDiffer),
            (Some(digits), None) => parse_content_length(digits)
                .map(BodyLength::Known)
                .ok_or(FramingError::ContentLengthInvalid),
        }
    }
}

impl FramingFields<'_> {
    /// Like [`FramingFields::body_length`], but for a response, where [`BodyLength::None`] means that the content lasts
    /// until the connection closes.
    ///
    /// H2O compatibility: like H2O, this refuses a repeated `Content-Length` even if both values are the same, and ignores
    /// the transfer coding `identity`. Chunked coding is read in responses of HTTP/1.0, too; their connection must not be used
    /// again (RFC 9112 §6.1).
    pub(crate) fn body_length_of_response(&self) -> Result<BodyLength, FramingError> {
        match (self.content_length, self.transfer_encoding) {
            (Some(_), None) if self.length_repeated => Err(FramingError::ContentLengthsDiffer),
            (None, Some(b"identity")) if !self.coding_repeated => Ok(BodyLength::None),
            (_, _) => self.body_length(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_one_reading() {
        type Want = Result<BodyLength, FramingError>;
        let cases: &[(&[&str], &[&str], Want)] = &[
            (&[], &[], Ok(BodyLength::None)),
            (&["0"], &[], Ok(BodyLength::Known(0))),
            (&["007"], &[], Ok(BodyLength::Known(7))),
            (
                &["9999999999999999999"],
                &[],
                Ok(BodyLength::Known(9_999_999_999_999_999_999)),
            ),
            (&["5", "5"], &[], Ok(BodyLength::Known(5))),
            (&[], &["chunked"], Ok(BodyLength::Unknown)),
            (&[], &["CHUNKED"], Ok(BodyLength::Unknown)),
            (&["5", "05"], &[], Err(FramingError::ContentLengthsDiffer)),
            (
                &["5", "6", "5"],
                &[],
                Err(FramingError::ContentLengthsDiffer),
            ),
            (&[""], &[], Err(FramingError::ContentLengthInvalid)),
            (
                &["10000000000000000000"],
                &[],
                Err(FramingError::ContentLengthInvalid),
            ),
            (&["5, 5"], &[], Err(FramingError::ContentLengthInvalid)),
            (&["+5"], &[], Err(FramingError::ContentLengthInvalid)),
            (&["-5"], &[], Err(FramingError::ContentLengthInvalid)),
            (&["5 "], &[], Err(FramingError::ContentLengthInvalid)),
            (&["0x5"], &[], Err(FramingError::ContentLengthInvalid)),
            (&["5"], &["chunked"], Err(FramingError::LengthAndCoding)),
            (
                &[],
                &["chunked", "chunked"],
                Err(FramingError::TransferEncodingRepeated),
            ),
            (
                &[],
                &["gzip, chunked"],
                Err(FramingError::TransferEncodingUnknown),
            ),
            (
                &[],
                &["chunked, chunked"],
                Err(FramingError::TransferEncodingUnknown),
            ),
            (
                &[],
                &["chunked;q=1"],
                Err(FramingError::TransferEncodingUnknown),
            ),
            (
                &[],
                &["identity"],
                Err(FramingError::TransferEncodingUnknown),
            ),
            (
                &[],
                &["xchunked"],
                Err(FramingError::TransferEncodingUnknown),
            ),
            (&[], &[""], Err(FramingError::TransferEncodingUnknown)),
        ];
        for (lengths, codings, want) in cases {
            let mut fields = FramingFields::default();
            for value in *lengths {
                fields.on_content_length(value.as_bytes());
            }
            for value in *codings {
                fields.on_transfer_encoding(value.as_bytes());
            }
            assert_eq!(fields.body_length(false), *want, "{lengths:?} {codings:?}");
        }
        let mut fields = FramingFields::default();
        fields.on_transfer_encoding(b"chunked");
        assert_eq!(
            fields.body_length(true),
            Err(FramingError::TransferEncodingInHttp10)
        );
    }

    #[test]
    fn responses_say_their_length_once_and_may_be_identical() {
        type Want = Result<BodyLength, FramingError>;
        let cases: &[(&[&str], &[&str], Want)] = &[
            (&["5"], &[], Ok(BodyLength::Known(5))),
            (&["5", "5"], &[], Err(FramingError::ContentLengthsDiffer)),
            (&["5", "6"], &[], Err(FramingError::ContentLengthsDiffer)),
            (&[], &["identity"], Ok(BodyLength::None)),
            (&[], &["chunked"], Ok(BodyLength::Unknown)),
            (&["5"], &["identity"], Err(FramingError::LengthAndCoding)),
            (
                &[],
                &["identity", "chunked"],
                Err(FramingError::TransferEncodingRepeated),
            ),
        ];
        for (lengths, codings, want) in cases {
            let mut fields = FramingFields::default();
            for value in *lengths {
                fields.on_content_length(value.as_bytes());
            }
            for value in *codings {
                fields.on_transfer_encoding(value.as_bytes());
            }
            let got = fields.body_length_of_response();
            assert_eq!(got, *want, "{lengths:?} {codings:?}");
        }
    }
}
