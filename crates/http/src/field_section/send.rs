//! The fields of messages as HTTP/2 and HTTP/3 write them. The engine encodes the output of these functions (HPACK, QPACK).

use std::borrow::Cow;

use crate::{Field, Headers, Known, Method, Name, RequestHead, escape, has_break};

use super::Pseudo;

/// Passes the fields of a response or of trailers to `encode`, except those that frame messages in HTTP/1 (RFC 9113 §8.2.2, RFC
/// 9114 §4.2) and `content-length`, which the engine writes. CR, LF and NUL in a value are replaced by blanks: a backend or
/// proxy that translates the message to HTTP/1 would read them as the end of the field. Blanks at the ends of a value, which
/// scripts may set, are left out: clients may close the connection because of them (RFC 9113 §8.2.1).
#[inline]
pub fn encode_fields(headers: &Headers, encode: impl FnMut(Name<'_>, &[u8])) {
    encode_unless(
        |field| field.name == Name::Known(Known::Te),
        headers,
        encode,
    );
}

/// Like [`encode_fields`], for the fields of a request: `te: trailers` is allowed there.
#[inline]
pub fn encode_request_fields(headers: &Headers, encode: impl FnMut(Name<'_>, &[u8])) {
    let is_dropped =
        |field: &Field<'_>| field.name == Name::Known(Known::Te) && field.value != b"trailers";
    encode_unless(is_dropped, headers, encode);
}

#[inline]
fn encode_unless(
    is_dropped: impl Fn(&Field<'_>) -> bool,
    headers: &Headers,
    mut encode: impl FnMut(Name<'_>, &[u8]),
) {
    // If the headers are available in HTTP/1 form, no value has a line end or NUL.
    let may_break = headers.wire().is_none();
    for field in headers.iter() {
        if is_connection_specific(field.name) || is_dropped(&field) {
            continue;
        }
        if may_break && has_break(field.value) {
            encode(field.name, without_breaks(field.value).trim_ascii());
        } else {
            encode(field.name, without_blanks(field.value));
        }
    }
}

/// The value without blanks at its ends.
#[inline]
const fn without_blanks(value: &[u8]) -> &[u8] {
    match value {
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => value.trim_ascii(),
        _ => value,
    }
}

#[cold]
fn without_breaks(value: &[u8]) -> Vec<u8> {
    let blank = |byte: &u8| match byte {
        b'\r' | b'\n' | 0 => b' ',
        byte => *byte,
    };
    value.iter().map(blank).collect()
}

/// Whether HTTP/2 and HTTP/3 forbid this field. Also true for `content-length`, which the engine writes itself.
#[inline]
const fn is_connection_specific(name: Name<'_>) -> bool {
    matches!(
        name,
        Name::Known(
            Known::Connection
                | Known::ContentLength
                | Known::Http2Settings
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::TransferEncoding
                | Known::Upgrade
        )
    )
}

/// The protocol that a request asks for by extended CONNECT (RFC 8441 §4, RFC 9220 §3).
#[must_use]
pub fn connect_protocol(head: &RequestHead) -> Option<&[u8]> {
    let token = head.upgrade();
    (head.method == Method::Connect && !token.is_empty()).then_some(token)
}

/// Passes the pseudo-header fields of a request (RFC 9113 §8.3.1, RFC 9114 §4.3.1), which precede all others, to `encode`.
/// Bytes that are not allowed in their values are percent-encoded.
pub fn encode_request_pseudo(head: &RequestHead, mut encode: impl FnMut(Pseudo, &[u8])) {
    let protocol = connect_protocol(head);
    let is_plain_connect = head.method == Method::Connect && protocol.is_none();
    encode(Pseudo::Method, head.method.as_str().as_bytes());
    if let Some(protocol) = protocol {
        encode(Pseudo::Protocol, &visible(protocol));
    }
    if !is_plain_connect {
        encode(Pseudo::Scheme, head.scheme.as_str().as_bytes());
    }
    let mut authority = authority(head);
    if is_plain_connect && authority.is_empty() {
        // The target of a CONNECT is an authority (RFC 9110 §7.1).
        authority = head.target();
    }
    // A request without an authority has no `:authority`: an empty one is not allowed (RFC 9113 §8.3.1).
    if !authority.is_empty() {
        encode(Pseudo::Authority, &visible(authority));
    }
    if !is_plain_connect {
        let target = match head.target() {
            b"" => b"/",
            target => target,
        };
        encode(Pseudo::Path, &visible(target));
    }
}

/// The value of `:authority` for a request: its authority or, without one, the value of `host` (RFC 9113 §8.3.1).
fn authority(head: &RequestHead) -> &[u8] {
    match head.authority() {
        b"" => head.headers.get(Known::Host).unwrap_or_default(),
        authority => authority,
    }
}

/// The value of a pseudo-header field with blanks and control characters percent-encoded: a backend that translates the
/// request to HTTP/1 could take them for the end of the request line (RFC 9113 §10.3). Values from clients have no such
/// characters, but a script may set one.
fn visible(text: &[u8]) -> Cow<'_, [u8]> {
    let is_visible = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    if text.iter().all(is_visible) {
        return text.into();
    }
    let mut out = Vec::new();
    for byte in text {
        if is_visible(byte) {
            out.push(*byte);
        } else {
            escape::uri(&[*byte], b"", &mut out);
        }
    }
    out.into()
}

/// The fields of a request that may be forwarded to a backend. Left out are those listed in `connection` (RFC 9110 §7.6.1),
/// `te` other than `trailers` (RFC 9113 §8.2.2), and `host` and `expect`, which the head stores apart from its fields.
/// [`encode_request_fields`] leaves out the other fields of HTTP/1.
#[must_use]
pub fn forwardable(headers: &Headers) -> Cow<'_, Headers> {
    let options: Vec<&[u8]> = headers.get_all(Known::Connection).collect();
    let is_of_hop = |name: Name<'_>, value: &[u8]| match name {
        Name::Known(Known::Host | Known::Expect) => true,
        Name::Known(Known::Te) => value != b"trailers",
        name => options
            .iter()
            .any(|options| escape::list_contains(options, name.as_str().as_bytes())),
    };
    if !headers
        .iter()
        .any(|field| is_of_hop(field.name, field.value))
    {
        return Cow::Borrowed(headers);
    }
    let mut kept = headers.clone();
    kept.retain(|field| !is_of_hop(field.name, field.value));
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(headers: &Headers) -> Vec<(String, Vec<u8>)> {
        let mut fields = Vec::new();
        encode_request_fields(headers, |name, value| {
            fields.push((name.as_str().to_owned(), value.to_vec()));
        });
        fields
    }

    fn headers(fields: &[(Name<'_>, &[u8])]) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in fields {
            headers.push(*name, value);
        }
        headers
    }

    #[test]
    fn fields_that_frame_http1_messages_are_not_sent() {
        for known in [
            Known::Connection,
            Known::ContentLength,
            Known::Http2Settings,
            Known::KeepAlive,
            Known::ProxyConnection,
            Known::Te,
            Known::TransferEncoding,
            Known::Upgrade,
        ] {
            let fields = headers(&[
                (Name::Known(known), b"1"),
                (Name::Known(Known::Date), b"today"),
            ]);
            let want = [("date".to_owned(), b"today".to_vec())];
            assert_eq!(sent(&fields), want, "{}", known.as_str());
        }
    }

    #[test]
    fn no_value_is_sent_with_an_byte_that_ends_a_line() {
        let cases: &[(&[u8], &[u8])] = &[
            (b"plain", b"plain"),
            (b" left out ", b"left out"),
            (b"a\r\nset-cookie: b", b"a  set-cookie: b"),
            (b"a\0b", b"a b"),
            (b"\r\na\n", b"a"),
            (b"\n", b""),
        ];
        for (value, want) in cases {
            let fields = headers(&[(Name::Other("x-a"), value)]);
            let want = [("x-a".to_owned(), want.to_vec())];
            assert_eq!(sent(&fields), want, "{}", value.escape_ascii());
        }
    }

    fn pseudo(head: &RequestHead) -> String {
        let mut text = Vec::new();
        encode_request_pseudo(head, |name, value| {
            text.extend_from_slice(name.as_str().as_bytes());
            text.push(b' ');
            text.extend_from_slice(value);
            text.push(b'\n');
        });
        String::from_utf8(text).unwrap()
    }

    fn head(method: Method, authority: &[u8], target: &[u8]) -> RequestHead {
        let mut head = RequestHead::default();
        head.method = method;
        let authority = head.headers.store(authority);
        head.set_authority(authority);
        let target = head.headers.store(target);
        head.set_target(target);
        head
    }

    #[test]
    fn pseudo_fields_are_those_of_the_method() {
        let mut websocket = head(Method::Connect, b"a", b"/chat");
        let token = websocket.headers.store(b"websocket");
        websocket.set_upgrade(token);
        let mut by_host = head(Method::Get, b"", b"/");
        by_host.headers.push(Known::Host, b"b");
        let cases = [
            (
                head(Method::Get, b"a", b"/x"),
                ":method GET\n:scheme http\n:authority a\n:path /x\n",
            ),
            (
                head(Method::Get, b"", b""),
                ":method GET\n:scheme http\n:path /\n",
            ),
            (
                by_host,
                ":method GET\n:scheme http\n:authority b\n:path /\n",
            ),
            (
                head(Method::Connect, b"a:443", b""),
                ":method CONNECT\n:authority a:443\n",
            ),
            (
                head(Method::Connect, b"", b"a:443"),
                ":method CONNECT\n:authority a:443\n",
            ),
            (
                websocket,
                ":method CONNECT\n:protocol websocket\n:scheme http\n:authority a\n:path /chat\n",
            ),
            (
                head(Method::Get, b"a\r\nb", b"/x y\0"),
                ":method GET\n:scheme http\n:authority a%0D%0Ab\n:path /x%20y%00\n",
            ),
        ];
        for (head, want) in cases {
            assert_eq!(pseudo(&head), want);
        }
    }

    #[test]
    fn what_connection_lists_stays_on_its_hop() {
        let all = headers(&[
            (Name::Known(Known::Connection), b"close, X-Hop"),
            (Name::Known(Known::Te), b"gzip"),
            (Name::Known(Known::Te), b"trailers"),
            (Name::Known(Known::Host), b"a"),
            (Name::Known(Known::Expect), b"100-continue"),
            (Name::Other("x-hop"), b"1"),
            (Name::Other("x-end"), b"2"),
        ]);
        let want = [
            ("te".to_owned(), b"trailers".to_vec()),
            ("x-end".to_owned(), b"2".to_vec()),
        ];
        assert_eq!(sent(&forwardable(&all)), want);
        let plain = headers(&[(Name::Other("x-end"), b"2")]);
        assert!(matches!(forwardable(&plain), Cow::Borrowed(_)));
    }

    #[test]
    fn responses_have_no_te_and_values_no_blanks_at_their_ends() {
        let all = headers(&[
            (Name::Known(Known::Te), b"trailers"),
            (Name::Known(Known::Te), b"gzip"),
            (Name::Other("x-a"), b" \tboth ends "),
            (Name::Other("x-b"), b"  "),
            (Name::Other("x-c"), b"in side"),
        ]);
        let of_response = [("x-a", "both ends"), ("x-b", ""), ("x-c", "in side")]
            .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        let mut seen = Vec::new();
        encode_fields(&all, |name, value| {
            seen.push((name.as_str().to_owned(), value.to_vec()));
        });
        assert_eq!(seen, of_response);
        let seen = sent(&all);
        assert_eq!(seen[0], ("te".to_owned(), b"trailers".to_vec()));
        assert_eq!(seen[1..], of_response);
    }
}
