//! Capsules (RFC 9297) that contain UDP datagrams.

use h2o_handlers::fuzzing;

use crate::{cuts, pieces};

/// Bytes of the longest UDP payload (RFC 9298 §5).
const MAX_PAYLOAD: usize = 65_527;

/// The reader finds the same datagrams however the bytes are cut, and each can be written as a capsule again. The first byte of the input
/// says whether datagrams have context ids; then come capsules.
///
/// # Panics
/// If an invariant does not hold.
pub fn capsules(input: &[u8]) {
    let Some((&options, capsules)) = input.split_first() else {
        return;
    };
    let has_context_ids = options & 1 == 0;
    let want = read(has_context_ids, capsules);
    let whole = fuzzing::datagrams(has_context_ids, [capsules].into_iter());
    assert_eq!(whole, want);
    for cuts in cuts(capsules) {
        let parts = fuzzing::datagrams(has_context_ids, pieces(capsules, &cuts));
        assert_eq!(parts, want, "input cut at {cuts:?}");
    }
    let (payloads, _) = want;
    let sent: Vec<u8> = payloads
        .iter()
        .flat_map(|payload| fuzzing::capsule(has_context_ids, payload))
        .collect();
    let again = fuzzing::datagrams(has_context_ids, [&*sent].into_iter());
    assert_eq!(again, (payloads, false));
}

/// A second reader, which gets all bytes at once. Returns the payloads, and whether a capsule was too long.
fn read(has_context_ids: bool, mut rest: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut payloads = Vec::new();
    loop {
        let Some(((kind, len), after)) = take_varint(rest)
            .and_then(|(kind, rest)| take_varint(rest).map(|(len, rest)| ((kind, len), rest)))
        else {
            return (payloads, false);
        };
        let len = usize::try_from(len).expect("the number fits into 62 bits");
        // A context id takes up to eight bytes in front of the payload.
        if kind == 0 && len > MAX_PAYLOAD + 8 {
            return (payloads, true);
        }
        let Some((content, after)) = after.split_at_checked(len) else {
            return (payloads, false);
        };
        rest = after;
        let payload = match (kind, has_context_ids) {
            (0, true) => take_varint(content)
                .filter(|(context, _)| *context == 0)
                .map(|(_, payload)| payload),
            (0, false) => Some(content),
            _ => None,
        };
        match payload {
            Some(payload) if payload.len() > MAX_PAYLOAD => return (payloads, true),
            Some(payload) => payloads.push(payload.to_vec()),
            None => {}
        }
    }
}

/// Takes a variable-length integer (RFC 9000 §16) off the front.
fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (first, _) = bytes.split_first()?;
    let (bytes, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let mut number = [0; 8];
    number[8 - bytes.len()..].copy_from_slice(bytes);
    number[8 - bytes.len()] &= 0x3f;
    Some((u64::from_be_bytes(number), rest))
}
