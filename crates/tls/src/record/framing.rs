//! Framing of TLS records (RFC 8446 §5.1, RFC 5246 §6.2.1).

use crate::error::TlsError;

/// Length in bytes of the header of a record: type, version and length.
pub(crate) const HEADER_LEN: usize = 5;
/// Limit in bytes of the plaintext in a record.
pub(crate) const MAX_PLAINTEXT_LEN: usize = 1 << 14;
/// Limit in bytes of what protection adds to a record in TLS 1.2 (RFC 5246 §6.2.3); TLS 1.3 allows less.
const MAX_EXPANSION: usize = 2048;
/// Length in bytes of the longest record of either version, with its header.
pub(crate) const MAX_RECORD_LEN: usize = HEADER_LEN + MAX_PLAINTEXT_LEN + MAX_EXPANSION;

/// The content type of a record (RFC 8446 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    ChangeCipherSpec,
    Alert,
    Handshake,
    ApplicationData,
}

impl ContentType {
    pub(crate) fn parse(byte: u8) -> Option<Self> {
        match byte {
            20 => Some(Self::ChangeCipherSpec),
            21 => Some(Self::Alert),
            22 => Some(Self::Handshake),
            23 => Some(Self::ApplicationData),
            _ => None,
        }
    }

    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::ChangeCipherSpec => 20,
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::ApplicationData => 23,
        }
    }
}

/// The length, with header, of the record at the start of `input`, according to its header; `None` if the header is
/// incomplete.
///
/// # Errors
/// [`TlsError::RecordOverflow`]
pub(crate) fn record_len(input: &[u8]) -> Result<Option<usize>, TlsError> {
    let Some(&[_, _, _, high, low]) = input.first_chunk() else {
        return Ok(None);
    };
    let len = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
    if len > MAX_RECORD_LEN {
        return Err(TlsError::RecordOverflow);
    }
    Ok(Some(len))
}

/// The length of the complete record at the start of `input`; `None` if more bytes are needed.
///
/// # Errors
/// [`TlsError::RecordOverflow`]
pub(crate) fn complete_len(input: &[u8]) -> Result<Option<usize>, TlsError> {
    Ok(record_len(input)?.filter(|len| *len <= input.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_at_most_2_14_plus_2048() {
        // The longest record of TLS 1.2 (RFC 5246 §6.2.3).
        assert_eq!(record_len(&[23, 3, 3, 0x48, 0x00]), Ok(Some(5 + 0x4800)));
        assert_eq!(
            record_len(&[23, 3, 3, 0x48, 0x01]),
            Err(TlsError::RecordOverflow)
        );
        assert_eq!(record_len(&[23, 3, 3, 0x48]), Ok(None));
        assert_eq!(complete_len(&[23, 3, 3, 0, 2, 1]), Ok(None));
        assert_eq!(complete_len(&[23, 3, 3, 0, 1, 1, 9]), Ok(Some(6)));
    }
}
