//! QPACK (RFC 9204): decoding any bytes, and decoding what the encoder writes.

use h2o_http::{Known, Name, StatusCode, is_token};
use h2o_http3::StreamId;
use h2o_http3::qpack::{Decoded, Decoder, Encoder, FieldName, Flaws, Pseudo, QpackError};
use h2o_testkit::http3 as other;
use h2o_testkit::http3::instruction;

/// Cuts the input into parts; the byte before each part is its length.
fn parts(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first()?;
        let (part, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        input = rest;
        Some(part)
    })
}

/// The parts of the input are encoder instructions or field sections for one decoder; the first byte of each says which. The decoder's
/// memory is bounded, errors are found, and it makes no difference how instructions are cut.
///
/// # Panics
/// If an invariant does not hold.
pub fn qpack_decode(input: &[u8]) {
    let Some((size, rest)) = input.split_first() else {
        return;
    };
    let capacity = u32::from(*size) * 16;
    let (mut decoder, mut again) = (Decoder::new(capacity), Decoder::new(capacity));
    for (number, part) in parts(rest).enumerate() {
        let Some((&what, bytes)) = part.split_first() else {
            continue;
        };
        if what % 2 == 0 {
            let (mut out, mut counted) = (Vec::new(), Vec::new());
            let whole = decoder.receive(bytes, &mut out);
            let mut pieces = bytes.iter();
            let cut = pieces.try_for_each(|byte| again.receive(&[*byte], &mut counted));
            assert_eq!(whole, cut, "instructions in pieces have another result");
            if whole.is_err() {
                return;
            }
            assert_eq!(decoder.inserted(), again.inserted());
        } else {
            let stream = StreamId::new(4 * number as u64);
            let (first, second) = (
                read(&mut decoder, stream, bytes),
                read(&mut again, stream, bytes),
            );
            assert_eq!(
                first, second,
                "two decoders read the same section differently"
            );
            if first.is_err() {
                return;
            }
        }
        assert!(
            decoder.retained() < 64 << 10,
            "the tables hold a bounded amount of memory"
        );
        assert!(decoder.len() <= capacity as usize / 32);
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>, Flaws)>;

fn read(
    decoder: &mut Decoder,
    stream: StreamId,
    section: &[u8],
) -> Result<(Fields, Decoded, Vec<u8>), QpackError> {
    let (mut fields, mut out) = (Vec::new(), Vec::new());
    let decoded = decoder.decode(stream, section, &mut out, |field| {
        let (name, value) = (field.name.as_bytes(), field.value);
        let is_lower = || !name.iter().any(u8::is_ascii_uppercase);
        match field.name {
            FieldName::Pseudo(_) => assert!(name.starts_with(b":")),
            FieldName::Known(_) | FieldName::Other(_) => assert!(is_token(name) && is_lower()),
            FieldName::Invalid(_) => assert!(!(is_token(name) && is_lower())),
        }
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        let is_plain = value.iter().all(is_text) && value.trim_ascii() == value;
        let is_name = !matches!(field.name, FieldName::Invalid(_));
        assert_eq!(field.flaws.is_none(), is_plain && is_name);
        fields.push((name.to_vec(), value.to_vec(), field.flaws));
        Ok::<(), QpackError>(())
    })?;
    if let Decoded::Blocked(required) = decoded {
        assert!(required > decoder.inserted() && fields.is_empty() && out.is_empty());
    }
    Ok((fields, decoded, out))
}

/// The engine's encoder, and a separately written decoder, which panics at everything that the RFC forbids.
struct Pair {
    encoder: Encoder,
    peer: other::Decoder,
    stream: u64,
    acknowledgements: Vec<(u64, Vec<u8>)>,
}

/// A decoder reads the fields that the encoder has written, whenever it acknowledges them. Each part of the input is a field: a byte that
/// says which kind, then its text.
///
/// # Panics
/// If an invariant does not hold.
pub fn qpack_round_trip(input: &[u8]) {
    let Some((&size, rest)) = input.split_first() else {
        return;
    };
    let capacity = u32::from(size) * 16;
    let mut encoder = Encoder::new(capacity);
    encoder.set_peer_capacity(u64::from(capacity));
    let mut pair = Pair {
        encoder,
        peer: other::Decoder::new(capacity as usize),
        stream: 0,
        acknowledgements: Vec::new(),
    };
    let mut section = Vec::new();
    for part in parts(rest) {
        match part.split_first() {
            Some((0xff, _)) => pair.acknowledge(),
            Some((&what, text)) => section.push((what, text)),
            None => pair.section(&std::mem::take(&mut section)),
        }
    }
    pair.section(&section);
    assert!(
        pair.encoder.retained() < 64 << 10,
        "the tables hold a bounded amount of memory"
    );
}

impl Pair {
    fn section(&mut self, fields: &[(u8, &[u8])]) {
        let (mut out, mut instructions, mut want) = (Vec::new(), Vec::new(), Vec::new());
        let mut section = self.encoder.section(&mut out, Some(&mut instructions));
        for &(what, text) in fields {
            let at = text.iter().position(|byte| *byte == b':');
            let (name, value) = text.split_at(at.unwrap_or(text.len()));
            let name = if is_token(name) {
                String::from_utf8_lossy(name).to_ascii_lowercase()
            } else {
                "x".to_owned()
            };
            match what % 4 {
                0 => {
                    let known = Known::ALL[usize::from(what / 4) % Known::ALL.len()];
                    section.field(Name::Known(known), value);
                    want.push((known.as_str().to_owned(), value.to_vec()));
                }
                1 => {
                    let status = StatusCode::new(100 + u16::from(what))
                        .expect("the number is a valid status");
                    section.status(status);
                    want.push((
                        ":status".to_owned(),
                        status.as_u16().to_string().into_bytes(),
                    ));
                }
                2 => {
                    section.pseudo(Pseudo::Authority, value);
                    want.push((":authority".to_owned(), value.to_vec()));
                }
                _ => {
                    section.field(Name::from_lower(&name), value);
                    want.push((name, value.to_vec()));
                }
            }
        }
        section.finish(StreamId::new(self.stream));
        let decoded = self.peer.decode(self.stream, &out);
        let (got, is_acknowledged) =
            decoded.expect("the decoder has every entry that the section refers to");
        let got: Vec<_> = got
            .into_iter()
            .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), value))
            .collect();
        assert_eq!(got, want);
        let new = self.peer.follow(&instructions);
        if is_acknowledged {
            let number = usize::try_from(self.stream).expect("the stream id fits into a usize");
            let told = instruction::acknowledge(number);
            self.acknowledgements.push((self.stream, told));
        }
        if new > 0 {
            self.acknowledgements
                .push((self.stream, instruction::increment(new)));
        }
        self.stream += 4;
    }

    fn acknowledge(&mut self) {
        if self.acknowledgements.is_empty() {
            return;
        }
        let (stream, told) = self.acknowledgements.remove(0);
        if told[0] >= 0x80 {
            self.peer.acknowledged(stream);
        }
        assert_eq!(self.encoder.receive(&told), Ok(()));
    }
}
