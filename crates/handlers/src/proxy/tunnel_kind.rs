//! The kind of tunnel that a request to be proxied asks for, if any.

use h2o_http::{Method, RequestHead, StatusCode, escape};

use super::response::Refusal;

/// The kind of tunnel that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelKind {
    /// The request asks for no tunnel, only for a response.
    Nothing,
    /// The request asks to continue the connection or stream with another protocol: by `upgrade`, or by extended
    /// CONNECT (RFC 8441).
    Protocol,
    /// The request asks for a tunnel to its authority (RFC 9110 §9.3.6).
    Connect,
}

impl TunnelKind {
    /// The tunnel that `request` asks for. `tunnels` is the setting of `proxy.tunnel`.
    ///
    /// # Errors
    /// [`Refusal`] if tunnels are not allowed and the request cannot be served as an ordinary one.
    pub(super) fn of(request: &RequestHead, tunnels: bool) -> Result<Self, Refusal> {
        const NO_CONNECT: Refusal = Refusal {
            status: StatusCode::METHOD_NOT_ALLOWED,
            reason: "Method Not Allowed",
            text: "refusing CONNECT",
        };
        const NO_GATEWAY: Refusal = Refusal {
            status: StatusCode::FORBIDDEN,
            reason: "Forbidden",
            text: "The proxy act as a gateway.",
        };
        let token = request.upgrade();
        match &request.method {
            // CONNECT-UDP, the method of a draft of RFC 9298, is never forwarded.
            Method::ConnectUdp => Err(NO_CONNECT),
            Method::Connect if token.is_empty() && tunnels => Ok(Self::Connect),
            Method::Connect if token.is_empty() => Err(NO_CONNECT),
            Method::Connect if tunnels && !offers_h2c(token) => Ok(Self::Protocol),
            Method::Connect => Err(NO_GATEWAY),
            _ if token.is_empty() || offers_h2c(token) => Ok(Self::Nothing),
            _ if tunnels => Ok(Self::Protocol),
            _ if token.eq_ignore_ascii_case(b"websocket") => Ok(Self::Nothing),
            _ => Err(NO_GATEWAY),
        }
    }
}

/// Whether the protocols that the client offers include HTTP/2 over clear text, which is only for its connection with
/// this server (RFC 7540 §3.2). A backend that switched to it would get requests that this server has not checked.
fn offers_h2c(tokens: &[u8]) -> bool {
    [&b"h2c"[..], b"h2c-14", b"h2c-16"]
        .iter()
        .any(|known| escape::list_contains(tokens, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_are_had_by_those_who_may() {
        use TunnelKind::{Connect, Nothing, Protocol};
        let cases = [
            // Each row: method, protocols in `upgrade`, the result without tunnels, the result with tunnels.
            ("GET", "", Ok(Nothing), Ok(Nothing)),
            ("GET", "h2c", Ok(Nothing), Ok(Nothing)),
            ("GET", "foo, H2C-14", Ok(Nothing), Ok(Nothing)),
            ("CONNECT", "h2c", Err(403), Err(403)),
            ("GET", "WebSocket", Ok(Nothing), Ok(Protocol)),
            ("GET", "foo", Err(403), Ok(Protocol)),
            ("POST", "foo", Err(403), Ok(Protocol)),
            ("CONNECT", "", Err(405), Ok(Connect)),
            ("CONNECT", "websocket", Err(403), Ok(Protocol)),
            ("CONNECT-UDP", "", Err(405), Err(405)),
        ];
        for (method, token, off, on) in cases {
            let mut request = RequestHead::default();
            request.method = Method::from_token(method.as_bytes()).unwrap();
            let token = request.headers.store(token.as_bytes());
            request.set_upgrade(token);
            for (tunnels, want) in [(false, off), (true, on)] {
                let got = TunnelKind::of(&request, tunnels);
                let got = got.map_err(|refusal| refusal.status.as_u16());
                assert_eq!(got, want, "{method} {tunnels}");
            }
        }
    }
}
