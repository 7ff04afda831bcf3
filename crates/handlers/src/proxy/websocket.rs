//! WebSockets of HTTP/2 clients with backends that speak HTTP/1.
//!
//! A client of HTTP/2 sends no `sec-websocket-key` (RFC 8441 §5), and servers of HTTP/1 insist on one: whoever turns the one
//! into the other makes it.

use std::hash::{BuildHasher, RandomState};

use h2o_http::{Method, Name, RequestHead};

const NAME: Name<'static> = Name::Other("sec-websocket-key");

/// The field of a response that answers the key.
pub(super) const ANSWER: &str = "sec-websocket-accept";

/// Gives `head`, which asks an HTTP/1 backend for what `request` asked us for, the key it lacks.
pub(super) fn add_key(request: &RequestHead, head: &mut RequestHead) {
    let is_websocket = request.upgrade().eq_ignore_ascii_case(b"websocket");
    if is_websocket && request.method == Method::Connect && head.headers.get(NAME).is_none() {
        head.headers.push(NAME, &base64(nonce()));
    }
}

/// 16 random octets. They tell one handshake from another and are no secret (RFC 6455 §4.1).
fn nonce() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0));
    half() << 64 | half()
}

/// Base64 of 16 octets, with padding (RFC 4648 §4).
fn base64(octets: u128) -> [u8; 24] {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = [b'='; 24];
    // 128 bits are 21 digits and two bits more, to which four zeros are added.
    for (index, digit) in (0_u32..22).zip(&mut text) {
        let bits = match 122_u32.checked_sub(6 * index) {
            Some(shift) => octets >> shift,
            None => octets << 4,
        };
        let bits = (bits & 0x3f) as usize;
        *digit = ALPHABET[bits];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_written_in_base64() {
        // RFC 6455 §1.3: "the sample nonce".
        let sample = u128::from_be_bytes(*b"the sample nonce");
        assert_eq!(&base64(sample), b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(&base64(u128::MAX), b"/////////////////////w==");
        assert_eq!(&base64(0), b"AAAAAAAAAAAAAAAAAAAAAA==");
    }

    #[test]
    fn keys_are_made_where_there_is_none() {
        let key_of = |method: &str, token: &str, own: Option<&str>| {
            let mut request = RequestHead::default();
            request.method = Method::from_token(method.as_bytes()).unwrap();
            let token = request.headers.store(token.as_bytes());
            request.set_upgrade(token);
            let mut head = RequestHead::default();
            if let Some(own) = own {
                head.headers.push(NAME, own.as_bytes());
            }
            add_key(&request, &mut head);
            let keys: Vec<Vec<u8>> = head.headers.get_all(NAME).map(<[u8]>::to_vec).collect();
            assert!(keys.len() < 2, "{keys:?}");
            keys.into_iter().next()
        };
        let (one, other) = (
            key_of("CONNECT", "websocket", None).unwrap(),
            key_of("CONNECT", "WebSocket", None).unwrap(),
        );
        assert_eq!((one.len(), other.len()), (24, 24));
        assert_ne!(one, other);
        assert_eq!(key_of("CONNECT", "websocket", Some("a")).unwrap(), b"a");
        assert_eq!(key_of("CONNECT", "echo", None), None);
        assert_eq!(key_of("GET", "websocket", None), None);
    }
}
