//! WebSockets between HTTP/2 clients and HTTP/1 backends.
//!
//! HTTP/2 clients send no `sec-websocket-key` (RFC 8441 §5), but HTTP/1 servers require one, so the proxy adds it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use h2o_http::{Method, Name, RequestHead};

const NAME: Name<'static> = Name::Other("sec-websocket-key");

/// The response field with the answer to the request's `sec-websocket-key`.
pub(super) const ANSWER: &str = "sec-websocket-accept";

/// Adds the missing `sec-websocket-key` to `head`, the HTTP/1 request to the backend for the client's `request`.
pub(super) fn add_key(request: &RequestHead, head: &mut RequestHead) {
    let is_websocket = request.upgrade().eq_ignore_ascii_case(b"websocket");
    if is_websocket && request.method == Method::Connect && head.headers.get(NAME).is_none() {
        head.headers.push(NAME, nonce().as_bytes());
    }
}

/// Creates a key: 16 random bytes in base64 with padding. A key identifies a handshake and is not secret (RFC 6455
/// §4.1).
fn nonce() -> String {
    STANDARD.encode(fastrand::u128(..).to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for key in [&one, &other] {
            assert_eq!(STANDARD.decode(key).map(|nonce| nonce.len()), Ok(16));
        }
        assert_ne!(one, other);
        assert_eq!(key_of("CONNECT", "websocket", Some("a")).unwrap(), b"a");
        assert_eq!(key_of("CONNECT", "echo", None), None);
        assert_eq!(key_of("GET", "websocket", None), None);
    }
}
