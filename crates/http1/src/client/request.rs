//! The requests that the client role sends.

use h2o_http::{BodyLength, Headers, Known, Method, Name};

use crate::encode::{self, BodyMode};
use crate::field_lines::text_len;

/// A request to send to a backend.
#[derive(Clone, Copy, Debug)]
pub struct ClientRequest<'a> {
    /// The method of the request.
    pub method: &'a Method,
    /// The request target: path and query, an absolute URI for a proxy, or `host:port` for CONNECT.
    pub target: &'a [u8],
    /// Value of the field `host`.
    pub host: &'a [u8],
    /// The other fields. Fields that frame the message are written by the engine and ignored here.
    pub headers: &'a Headers,
    /// The length of the content; for [`BodyLength::Unknown`] the engine uses chunked coding.
    pub body: BodyLength,
    /// Whether to ask the server to keep the connection for another request.
    pub keep_alive: bool,
    /// The protocol that the request offers to upgrade to (RFC 9110 §7.8), if any. Only a request without content can offer
    /// one.
    pub upgrade: Option<&'a [u8]>,
    /// Whether to add `expect: 100-continue`. The caller then sends the content only after an interim response.
    pub expects_continue: bool,
}

/// Writes the head of a request. H2O compatibility: H2O's proxy writes names in lower case and in this order, which
/// backends may rely on.
pub(super) fn encode(request: &ClientRequest<'_>, mode: BodyMode, out: &mut Vec<u8>) {
    out.reserve(encode::HEAD_ROOM + request.target.len() + request.host.len());
    out.extend_from_slice(request.method.as_str().as_bytes());
    out.push(b' ');
    write_target(request.target, out);
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    encode::text(out, request.host);
    out.extend_from_slice(b"\r\nconnection: ");
    match request.upgrade {
        Some(token) => {
            out.extend_from_slice(b"upgrade\r\nupgrade: ");
            encode::text(out, token);
        }
        None if request.keep_alive => out.extend_from_slice(b"keep-alive"),
        None => out.extend_from_slice(b"close"),
    }
    out.extend_from_slice(b"\r\n");
    if request.expects_continue {
        out.extend_from_slice(b"expect: 100-continue\r\n");
    }
    match mode {
        BodyMode::None | BodyMode::UntilClose => {}
        BodyMode::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        BodyMode::Identity(length) => {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    for field in request.headers.iter() {
        match field.name {
            Name::Known(
                Known::Host
                | Known::Connection
                | Known::ContentLength
                | Known::TransferEncoding
                | Known::KeepAlive
                | Known::Upgrade,
            ) => {}
            Name::Known(_) | Name::Other(_) => encode::field(out, &field),
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a request target with blanks and control characters percent-encoded, since a server could take them for the end
/// of the request line. Targets that clients sent have none, but a script may set such a target.
fn write_target(target: &[u8], out: &mut Vec<u8>) {
    let mut rest = target;
    loop {
        let (fit, other) = rest.split_at(text_len::<0x21>(rest));
        out.extend_from_slice(fit);
        let Some((first, tail)) = other.split_first() else {
            return;
        };
        h2o_http::escape::uri(&[*first], b"", out);
        rest = tail;
    }
}
