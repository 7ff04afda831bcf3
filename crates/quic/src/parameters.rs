//! Reads and changes the encoded transport parameters of QUIC (RFC 9000 §18).

use crate::frames::{encoded, integer};

/// The identifier of the transport parameter `active_connection_id_limit`.
pub(crate) const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;

/// Returns the value of the transport parameter with the identifier `wanted`, whose value is an integer; `None` if the parameter is
/// missing or malformed.
pub(crate) fn find(mut parameters: &[u8], wanted: u64) -> Option<u64> {
    loop {
        let (id, mut value) = next(&mut parameters)?;
        if id == wanted {
            return integer(&mut value);
        }
    }
}

/// Returns a copy of encoded transport parameters with other integer values. `value_of` is called with the identifier and the value
/// of each parameter whose value is an integer, and returns the new value, or `None` to keep the old one. Parameters with other
/// values, and those that cannot be parsed, are copied as they are.
pub(crate) fn replace(parameters: &[u8], value_of: impl Fn(u64, u64) -> Option<u64>) -> Vec<u8> {
    let mut out = Vec::with_capacity(parameters.len() + 4);
    let mut rest = parameters;
    while !rest.is_empty() {
        let whole = rest;
        let Some((id, mut value)) = next(&mut rest) else {
            out.extend_from_slice(whole);
            return out;
        };
        let number = integer(&mut value).filter(|_| value.is_empty());
        match number.and_then(|number| value_of(id, number)) {
            Some(other) => {
                let other = encoded(other);
                out.extend_from_slice(&encoded(id));
                out.extend_from_slice(&encoded(other.len() as u64));
                out.extend_from_slice(&other);
            }
            None => out.extend_from_slice(&whole[..whole.len() - rest.len()]),
        }
    }
    out
}

/// Removes a transport parameter from the front of `rest`. Returns its identifier and its encoded value.
fn next<'p>(rest: &mut &'p [u8]) -> Option<(u64, &'p [u8])> {
    let id = integer(rest)?;
    let len = usize::try_from(integer(rest)?).ok()?;
    let (value, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some((id, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoded transport parameters: `max_idle_timeout`, `active_connection_id_limit`, `disable_active_migration`, and an unknown
    /// one with a value of three bytes.
    const PARAMETERS: &[u8] = &[
        0x01, 2, 0x47, 0xd0, 0x0e, 1, 8, 0x0c, 0, 0x40, 0xff, 3, 1, 2, 3,
    ];

    #[test]
    fn a_parameter_is_found_or_missing() {
        assert_eq!(find(PARAMETERS, 0x01), Some(2000));
        assert_eq!(find(PARAMETERS, ACTIVE_CONNECTION_ID_LIMIT), Some(8));
        assert_eq!(find(PARAMETERS, 0x0c), None);
        assert_eq!(find(PARAMETERS, 0x05), None);
        assert_eq!(find(&PARAMETERS[..6], ACTIVE_CONNECTION_ID_LIMIT), None);
    }

    #[test]
    fn other_parameters_stay_as_they_are() {
        let limited = |parameters: &[u8]| {
            replace(parameters, |id, value| {
                (id == ACTIVE_CONNECTION_ID_LIMIT && value > 3).then_some(300)
            })
        };
        let expected = [
            0x01, 2, 0x47, 0xd0, 0x0e, 2, 0x41, 0x2c, 0x0c, 0, 0x40, 0xff, 3, 1, 2, 3,
        ];
        assert_eq!(limited(PARAMETERS), expected);
        assert_eq!(limited(&[0x0e, 1, 3]), [0x0e, 1, 3]);
        // The value of the last parameter is cut off.
        assert_eq!(limited(&[0x0c, 0, 0x0e, 9, 8]), [0x0c, 0, 0x0e, 9, 8]);
    }
}
