//! Reads what a backend sends, with the client roles of the engines.

use std::sync::Arc;

use h2o_http::{BodyLength, Known, Method, StatusCode};
use h2o_http1::{AwaitedPart, ClientReceived, ClientRequest, EndedPart};
use h2o_http2::ClientSettings;
use h2o_testkit::any_moment;
use h2o_upstream::Protocol;

use super::request::Request;
use crate::server::{Fields, fields};

/// Status and fields of an informational response.
pub(super) type Interim = (Vec<u8>, Fields);

/// A response of a backend, in a form that does not depend on how its bytes were cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Read {
    pub(super) interims: Vec<Interim>,
    pub(super) head: Option<Head>,
    pub(super) content: Vec<u8>,
    pub(super) trailers: Fields,
    /// Whether the response is complete; the end of the connection may have completed it.
    pub(super) is_complete: bool,
    pub(super) ends_with_connection: bool,
    /// Whether the connection can carry another request.
    pub(super) is_reusable: bool,
    /// Number of bytes of the response, over HTTP/1.
    pub(super) taken: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) reason: Option<String>,
    pub(super) fields: Fields,
    pub(super) length: Option<u64>,
    pub(super) closes: bool,
    pub(super) is_tunnel: bool,
}

impl Request<'_> {
    pub(super) fn read<'p>(&self, pieces: impl Iterator<Item = &'p [u8]>) -> Read {
        match self.options.backend() {
            Protocol::Http1 => self.read_http1(pieces),
            Protocol::Http2 | Protocol::Http3 => self.read_http2(pieces),
            Protocol::Fastcgi => unreachable!("no fuzz target sends requests by FastCGI"),
        }
    }

    pub(super) fn read_http1<'p>(&self, pieces: impl Iterator<Item = &'p [u8]>) -> Read {
        let mut client = h2o_http1::ClientConnection::new(Arc::default());
        let request = ClientRequest {
            method: &self.head.method,
            target: self.head.target(),
            host: self.head.authority(),
            headers: &self.head.headers,
            body: self.head.body,
            keep_alive: true,
            upgrade: Some(self.head.upgrade()).filter(|token| !token.is_empty()),
            expects_continue: false,
        };
        client.send_request(&request, &mut Vec::new());
        if self.head.body != BodyLength::Tunnel {
            client.finish(None, &mut Vec::new());
        }
        let mut read = Read::default();
        let mut left = Vec::new();
        let mut is_broken = false;
        for piece in pieces {
            left.extend_from_slice(piece);
            while !is_broken && !client.is_response_done() {
                let mut response = h2o_http::ClientResponse::new();
                let received = client.receive(&left, &mut response);
                let mut has_more = true;
                let taken = match received {
                    Ok(ClientReceived::NeedMore { taken }) => {
                        has_more = taken > 0;
                        taken
                    }
                    Ok(ClientReceived::Interim { taken }) => {
                        let fields = fields(&response.headers);
                        let status = response.status.digits().to_vec();
                        read.interims.push((status, fields));
                        taken
                    }
                    Ok(ClientReceived::Response { taken }) => {
                        assert!(
                            read.head.is_none(),
                            "a second final response to one request"
                        );
                        let is_tunnel = client.awaited() == AwaitedPart::Tunnel;
                        read.head = Some(http1_head(&response, is_tunnel));
                        taken
                    }
                    Ok(ClientReceived::Data { taken, data }) => {
                        read.content.extend_from_slice(&left[data]);
                        taken
                    }
                    Ok(ClientReceived::BodyEnd { taken }) => taken,
                    Err(_) => {
                        is_broken = true;
                        0
                    }
                };
                read.taken += taken;
                left.drain(..taken);
                if !has_more {
                    break;
                }
            }
        }
        read.is_reusable = client.is_reusable(&left);
        read.is_complete = !is_broken && client.is_response_done();
        if !is_broken && !read.is_complete {
            let ended = client.on_closed();
            read.ends_with_connection = matches!(ended, Ok(EndedPart::Body | EndedPart::Tunnel));
            read.is_complete = read.ends_with_connection;
        }
        if !read.is_complete {
            // The byte at which an error is found depends on how the bytes are cut, so it is not compared.
            read.taken = 0;
        }
        assert!(!read.is_complete || read.head.is_some());
        assert!(!read.is_reusable || (read.is_complete && left.is_empty()));
        read
    }

    pub(super) fn read_http2<'p>(&self, pieces: impl Iterator<Item = &'p [u8]>) -> Read {
        let now = any_moment();
        let mut out = Vec::new();
        let settings = Arc::new(ClientSettings::default());
        let mut client = h2o_http2::ClientConnection::new(settings, now, &mut out);
        // SETTINGS of the backend that allow extended CONNECT; the proxy must know them before it sends the request.
        let hello = b"\0\0\x06\x04\0\0\0\0\0\0\x08\0\0\0\x01";
        client
            .receive(hello, &mut h2o_http::ClientResponse::new(), now, &mut out)
            .expect("SETTINGS");
        let is_tunnel = self.head.body == BodyLength::Tunnel;
        let key = client
            .request(&self.head, !is_tunnel, &mut out)
            .expect("the server allows another request");
        let mut read = Read::default();
        let mut left = Vec::new();
        let mut is_over = false;
        for piece in pieces {
            left.extend_from_slice(piece);
            while !is_over {
                let mut response = h2o_http::ClientResponse::new();
                let Ok(step) = client.receive(&left, &mut response, now, &mut out) else {
                    is_over = true;
                    break;
                };
                match step.received {
                    h2o_http2::ClientReceived::NeedMore => {
                        left.drain(..step.taken);
                        break;
                    }
                    h2o_http2::ClientReceived::Charged => {
                        client.take_costs();
                    }
                    h2o_http2::ClientReceived::Informational { .. } => {
                        let fields = fields(&response.headers);
                        let status = response.status.digits().to_vec();
                        read.interims.push((status, fields));
                    }
                    h2o_http2::ClientReceived::Response { end_stream, .. } => {
                        assert!(
                            read.head.is_none(),
                            "a second final response to one request"
                        );
                        read.head = Some(http2_head(&response));
                        read.is_complete = end_stream;
                    }
                    h2o_http2::ClientReceived::Data {
                        data, end_stream, ..
                    } => {
                        client.release_content(key, data.len(), &mut out);
                        read.content.extend_from_slice(&left[data]);
                        read.is_complete = end_stream;
                    }
                    h2o_http2::ClientReceived::Trailers { .. } => {
                        read.trailers = fields(&response.headers);
                        read.is_complete = true;
                    }
                    h2o_http2::ClientReceived::Reset { .. }
                    | h2o_http2::ClientReceived::Refused { .. }
                    | h2o_http2::ClientReceived::GoAway { .. } => is_over = true,
                    h2o_http2::ClientReceived::Pong { .. } => {
                        panic!("a PING was acknowledged that the client has not sent")
                    }
                }
                left.drain(..step.taken);
            }
        }
        client.release(key, &mut out);
        let is_late = |head: &Head| self.options.is_at_once() && !head.is_tunnel;
        if let Some(head) = &mut read.head
            && read.is_complete
            && read.trailers.is_empty()
            && is_late(head)
            && self.head.method != Method::Head
            && !head.status.is_bodyless()
        {
            head.length = Some(read.content.len() as u64);
        }
        read
    }

    /// A response that is cut off is not complete, and bytes after a response make the connection unusable.
    pub(super) fn check_ends(&self, bytes: &[u8], whole: &Read) {
        if self.options.backend() == Protocol::Http2
            || !whole.is_complete
            || whole.ends_with_connection
        {
            return;
        }
        for len in [0, whole.taken / 2, whole.taken - 1] {
            let part = self.read([&bytes[..len]].into_iter());
            assert!(
                !part.is_complete,
                "the response is complete after {len} of {} bytes",
                whole.taken
            );
        }
        let exact = self.read([&bytes[..whole.taken]].into_iter());
        let longer = [&bytes[..whole.taken], b"H"].concat();
        let longer = self.read([&*longer].into_iter());
        assert!(!longer.is_reusable && longer.is_complete);
        assert_eq!(
            exact,
            Read {
                is_reusable: exact.is_reusable,
                ..longer
            }
        );
    }
}

pub(super) fn http1_head(response: &h2o_http::ClientResponse, is_tunnel: bool) -> Head {
    let reason = response.reason();
    let reason = (reason != response.status.reason().as_bytes())
        .then(|| String::from_utf8_lossy(reason).into_owned());
    let connection = response.headers.get(Known::Connection);
    Head {
        status: response.status,
        reason,
        fields: fields(&response.headers),
        length: response.length,
        closes: connection.is_some_and(|value| value.eq_ignore_ascii_case(b"close")),
        is_tunnel,
    }
}

pub(super) fn http2_head(response: &h2o_http::ClientResponse) -> Head {
    Head {
        status: response.status,
        reason: Some(String::new()),
        fields: fields(&response.headers),
        length: response.length,
        closes: false,
        is_tunnel: response.body == BodyLength::Tunnel,
    }
}
