//! Finds the streams that the frames of a QUIC packet name (RFC 9000 §19).

/// Removes a variable-length integer (RFC 9000 §16) from the front of the input, and returns it.
pub(crate) fn integer(input: &mut &[u8]) -> Option<u64> {
    let len = 1 << (input.first()? >> 6);
    let (bytes, rest) = input.split_at_checked(len)?;
    *input = rest;
    let first = u64::from(bytes[0] & 0x3f);
    Some((bytes[1..].iter()).fold(first, |value, byte| value << 8 | u64::from(*byte)))
}

/// Encodes a number as a variable-length integer (RFC 9000 §16). A number that is too great for this encoding becomes 2^62 - 1.
pub(crate) fn encoded(number: u64) -> Vec<u8> {
    const GREATEST: u64 = (1 << 62) - 1;
    let number = number.min(GREATEST);
    let (len, prefix) = match number {
        0..0x40 => (1, 0),
        0x40..0x4000 => (2, 1),
        0x4000..0x4000_0000 => (4, 2),
        _ => (8, 3_u64),
    };
    let bytes = (number | prefix << (8 * len - 2)).to_be_bytes();
    bytes[8 - len..].to_vec()
}

/// Returns the identifiers of the streams that the frames in a packet's decrypted `content` name, once for each frame. Nothing is
/// returned of the frames behind a frame that is unknown or cut off.
pub(crate) fn streams(mut content: &[u8]) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        while !content.is_empty() {
            if let Some(stream) = frame(&mut content)? {
                return Some(stream);
            }
        }
        None
    })
}

/// Removes a frame from the front of `rest`. Returns the identifier of the stream that the frame names, `Some(None)` if it names no
/// stream, and `None` if the frame is unknown or cut off.
fn frame(rest: &mut &[u8]) -> Option<Option<u64>> {
    let kind = integer(rest)?;
    match kind {
        // The frames PADDING, PING, HANDSHAKE_DONE and IMMEDIATE_ACK have no fields.
        0x00 | 0x01 | 0x1e | 0x1f => {}
        // The frame ACK has the largest packet number, the delay, the number of further ranges, and the first range; then two
        // numbers for each further range. With type 0x03, three counts of ECN marks follow.
        0x02 | 0x03 => {
            numbers(rest, 2)?;
            let pairs = integer(rest)?;
            integer(rest)?;
            for _ in 0..pairs {
                numbers(rest, 2)?;
            }
            if kind == 0x03 {
                numbers(rest, 3)?;
            }
        }
        // The frame RESET_STREAM has a stream's identifier, an error code and the final size.
        0x04 => {
            let stream = integer(rest)?;
            numbers(rest, 2)?;
            return Some(Some(stream));
        }
        // The frames STOP_SENDING, MAX_STREAM_DATA and STREAM_DATA_BLOCKED have a stream's identifier and one more number.
        0x05 | 0x11 | 0x15 => {
            let stream = integer(rest)?;
            integer(rest)?;
            return Some(Some(stream));
        }
        // The frame CRYPTO has an offset, and data preceded by their length.
        0x06 => {
            integer(rest)?;
            bytes(rest)?;
        }
        // The frame NEW_TOKEN has a token preceded by its length.
        0x07 => bytes(rest)?,
        // The frame STREAM has a stream's identifier; its type says whether an offset and a length follow. Data without a length
        // reach to the end of the packet.
        0x08..=0x0f => {
            let stream = integer(rest)?;
            if kind & 0x04 != 0 {
                integer(rest)?;
            }
            if kind & 0x02 == 0 {
                *rest = &[];
            } else {
                bytes(rest)?;
            }
            return Some(Some(stream));
        }
        // The frames MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED and RETIRE_CONNECTION_ID have one number.
        0x10 | 0x12 | 0x13 | 0x14 | 0x16 | 0x17 | 0x19 => {
            integer(rest)?;
        }
        // The frame NEW_CONNECTION_ID has two numbers, a connection id preceded by one byte with its length, and a token of 16
        // bytes.
        0x18 => {
            numbers(rest, 2)?;
            let (&len, behind) = rest.split_first()?;
            *rest = behind;
            skip(rest, usize::from(len) + 16)?;
        }
        // The frames PATH_CHALLENGE and PATH_RESPONSE have eight bytes.
        0x1a | 0x1b => skip(rest, 8)?,
        // The frame DATAGRAM (RFC 9221 §4) reaches to the end of the packet with type 0x30, and begins with its length with type
        // 0x31.
        0x30 => *rest = &[],
        0x31 => bytes(rest)?,
        // The frame ACK_FREQUENCY has four numbers.
        0xaf => numbers(rest, 4)?,
        // The search ends at a CONNECTION_CLOSE frame, behind which no frame matters, and at an unknown type, which is a protocol
        // error.
        _ => return None,
    }
    Some(None)
}

fn numbers(rest: &mut &[u8], count: usize) -> Option<()> {
    for _ in 0..count {
        integer(rest)?;
    }
    Some(())
}

fn bytes(rest: &mut &[u8]) -> Option<()> {
    let len = usize::try_from(integer(rest)?).ok()?;
    skip(rest, len)
}

fn skip(rest: &mut &[u8], len: usize) -> Option<()> {
    *rest = rest.get(len..)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_they_were_written() {
        for number in [
            0,
            63,
            64,
            16_383,
            16_384,
            (1 << 30) - 1,
            1 << 30,
            (1 << 62) - 1,
        ] {
            let bytes = [encoded(number), vec![7]].concat();
            let mut rest = &bytes[..];
            assert_eq!(integer(&mut rest), Some(number));
            assert_eq!(rest, [7]);
        }
        assert_eq!(encoded(u64::MAX), [0xff; 8]);
    }

    fn of(content: &[&[u8]]) -> Vec<u64> {
        streams(&content.concat()).collect()
    }

    #[test]
    fn streams_are_found_behind_frames_of_every_kind() {
        let others: [&[u8]; 21] = [
            &[0],
            &[1],
            &[2, 9, 0, 0, 0],
            &[3, 0x40, 90, 0, 2, 0, 1, 2, 3, 4, 5, 6, 7],
            &[6, 0, 3, 8, 8, 8],
            &[7, 2, 8, 8],
            &[0x10, 0x80, 0, 0, 9],
            &[0x12, 8],
            &[0x13, 8],
            &[0x14, 8],
            &[0x16, 8],
            &[0x17, 8],
            &[0x19, 8],
            &[
                0x18, 1, 0, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
            ],
            &[0x1a, 8, 8, 8, 8, 8, 8, 8, 8],
            &[0x1b, 8, 8, 8, 8, 8, 8, 8, 8],
            &[0x1e],
            &[0x1f],
            &[0x31, 2, 8, 8],
            &[0x40, 0xaf, 1, 2, 3, 4],
            &[0, 0, 0],
        ];
        for other in others {
            assert_eq!(of(&[other, &[8, 13, 1, 2, 3]]), [13], "{other:?}");
        }
        assert_eq!(of(&[&others.concat(), &[8, 5]]), [5]);
    }

    #[test]
    fn each_kind_of_frame_tells_its_stream() {
        let frames: [&[u8]; 8] = [
            &[0x04, 1, 0, 0],
            &[0x05, 2, 0],
            &[0x11, 3, 0],
            &[0x15, 4, 0],
            &[0x0a, 5, 2, 8, 8],
            &[0x0e, 6, 0, 1, 8],
            &[0x0b, 7, 0],
            &[0x0d, 8, 0, 8, 8],
        ];
        assert_eq!(of(&frames), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn nothing_is_read_behind_what_is_cut_off_or_unknown() {
        for end in [&[0x1c, 0, 0, 0][..], &[0x21], &[7, 9], &[0xff]] {
            assert_eq!(of(&[&[8 | 2, 1, 0], end, &[8, 5]]), [1], "{end:?}");
        }
    }
}
