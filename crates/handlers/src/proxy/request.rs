//! Builds the request that is sent to a backend.

use h2o_exchange::{Address, ClientOrigin, Exchange, RequestBody};
use h2o_http::{
    BodyLength, Headers, Known, Method, Name, RequestHead, Span, StatusCode, Version, authority,
    escape,
};
use h2o_upstream::{BackendUrl, Protocol};

use super::connection_options::ConnectionOptions;
use super::response::Refusal;
use super::target::{self, PathMapping};
use super::tunnel_kind::TunnelKind;
use super::websocket;
use crate::header::Edit;
use crate::ip_text::IpText;

/// A request that has passed more proxies than this comes back to the server again and again, by its own address among the backends or by
/// those of other proxies.
const MAX_VIA: usize = 20;
/// The text for clients and the error log about such a request.
const REQUEST_LOOP: &str = "request loop: the request has passed more than 20 proxies";

/// The configured changes to requests for backends.
#[derive(Clone, Debug)]
pub(super) struct RequestRules {
    /// The setting of `proxy.preserve-host`.
    pub(super) preserve_host: bool,
    /// The setting of `proxy.emit-x-forwarded-headers`.
    pub(super) emit_x_forwarded: bool,
    /// The setting of `proxy.preserve-x-forwarded-proto`.
    pub(super) preserve_x_forwarded_proto: bool,
    /// The setting of `proxy.emit-via-header`.
    pub(super) emit_via: bool,
    /// Whether the setting is `proxy.expect: FORWARD`: the client's `expect: 100-continue` is forwarded.
    pub(super) forwards_expectations: bool,
    /// The changes that the directives `proxy.header.*` make.
    pub(super) edits: Vec<Edit>,
}

impl RequestRules {
    /// Checks whether the request may be forwarded, and returns the tunnel that it asks for. `tunnels` is the setting
    /// of `proxy.tunnel`.
    ///
    /// # Errors
    /// [`Refusal`] if the request must not be forwarded.
    pub(super) fn admit(
        &self,
        request: &RequestHead,
        tunnels: bool,
    ) -> Result<TunnelKind, Refusal> {
        const INVALID: Refusal = Refusal {
            status: StatusCode::BAD_REQUEST,
            reason: "Invalid Request",
            text: "Invalid Request",
        };
        let wanted = TunnelKind::of(request, tunnels)?;
        let has_host = match wanted {
            TunnelKind::Connect => {
                let port = authority::split(request.authority()).and_then(|(_, port)| port);
                port.is_some_and(|port| port != 0)
            }
            TunnelKind::Nothing | TunnelKind::Protocol => {
                !self.preserve_host || authority::is_valid(request.authority())
            }
        };
        // RFC 9110 §7.6.3: a proxy can recognise by `via` that requests come back to it.
        if via_entries(&request.headers) > MAX_VIA {
            return Err(Refusal {
                status: StatusCode::BAD_GATEWAY,
                reason: "Gateway Error",
                text: REQUEST_LOOP,
            });
        }
        if !has_host
            || target::has_disguised_dots(request)
            || ConnectionOptions::are_too_many(&request.headers)
        {
            return Err(INVALID);
        }
        Ok(wanted)
    }

    /// Writes the request to `backend` into an empty head, from the client's request in `exchange`.
    pub(super) fn build(
        &self,
        exchange: &mut Exchange,
        wanted: TunnelKind,
        mapping: PathMapping,
        backend: &BackendUrl,
        protocol: Protocol,
        head: &mut RequestHead,
    ) {
        let request = &exchange.request;
        self.write_fields(exchange, &mut head.headers);
        if protocol != Protocol::Http1 && takes_trailers(request) {
            head.headers.push(Known::Te, b"trailers");
        }
        head.scheme = backend.scheme;
        head.version = Version::Http11;
        head.method = match (wanted, protocol) {
            // Over HTTP/1, an extended CONNECT becomes a GET with the field `upgrade` (RFC 8441 §5).
            (TunnelKind::Protocol, Protocol::Http1 | Protocol::Fastcgi)
                if request.method == Method::Connect =>
            {
                Method::Get
            }
            (TunnelKind::Protocol, Protocol::Http2 | Protocol::Http3) => Method::Connect,
            (_, _) => request.method.clone(),
        };
        head.body = body_length(exchange, wanted);
        if self.forwards_expectation(exchange) {
            // A request head holds the value of `expect` apart from the other fields.
            let value = head.headers.store(CONTINUE);
            head.set_expect(value);
        }
        if wanted == TunnelKind::Protocol {
            let token = head.headers.store(request.upgrade());
            head.set_upgrade(token);
            if protocol == Protocol::Http1 {
                websocket::add_key(request, head);
            }
        }
        let authority = if self.preserve_host {
            request.authority()
        } else {
            backend.authority.as_bytes()
        };
        let authority = if self.edits.is_empty() {
            head.headers.store(authority)
        } else {
            self.edit_with_host(authority, &mut head.headers)
        };
        head.set_authority(authority);
        let target = match wanted {
            TunnelKind::Connect => authority,
            TunnelKind::Nothing | TunnelKind::Protocol => {
                let mount = &*exchange.site.path(exchange.route).path;
                let rest = mapping.rest(mount, request);
                let pieces = mapping.target(mount, &backend.path, &rest);
                head.headers.store_pieces(pieces)
            }
        };
        // The normal form of the target that the backend gets is not needed, so it is not computed.
        let scanned = h2o_http::path::TargetScan {
            len: target.len(),
            query_at: None,
            is_normal: true,
        };
        head.set_scanned_target(target, &scanned);
        // CONNECT has no path: its target is an authority.
        let path = match wanted {
            TunnelKind::Connect => &[][..],
            TunnelKind::Nothing | TunnelKind::Protocol => head.target(),
        };
        exchange.forwarded.set(head.authority(), [path]);
    }

    /// Whether the backend decides if the client may send its body. If the body was collected first, this server has
    /// decided.
    pub(super) fn forwards_expectation(&self, exchange: &Exchange) -> bool {
        self.forwards_expectations
            && !exchange.request.expect().is_empty()
            // An expectation of an HTTP/1.0 client is ignored (RFC 9110 §10.1.1).
            && exchange.request.version != Version::Http10
            && !exchange.request.asks_for_tunnel()
            && matches!(exchange.body, RequestBody::Stream(_))
    }

    /// Writes the client's fields in their order, without those that are only for the connection with this server,
    /// followed by the fields that the proxy sets.
    fn write_fields(&self, exchange: &Exchange, headers: &mut Headers) {
        let request = &exchange.request;
        let received = &request.headers;
        headers.copy_from(received);
        // The number of options was checked when the request was admitted.
        let options = ConnectionOptions::read(received.get_all(Known::Connection));
        let options = options.unwrap_or_default();
        let keeps_proto = self.keeps_x_forwarded_proto(exchange);
        headers.retain(|field| match field.name {
            Name::Known(Known::XForwardedProto) => keeps_proto,
            Name::Known(known) => self.keeps(known),
            Name::Other(name) => !options.have(name) && !self.is_look_alike(received, name),
        });
        if self.forwards_expectation(exchange) {
            headers.push(Known::Expect, CONTINUE);
        }
        if exchange.is_early && received.get(Known::EarlyData).is_none() {
            headers.push(Known::EarlyData, b"1");
        }
        // Empty `cookie` values are left out: they would leave a blank at an end of the joined value, which HTTP/2 does
        // not allow (RFC 9113 §8.2.1).
        let cookies = received.get_all(Known::Cookie);
        let mut cookies = cookies.filter(|cookies| !cookies.is_empty());
        if let Some(first) = cookies.next() {
            let others = cookies.flat_map(|cookies| [&b"; "[..], cookies]);
            headers.push_pieces(Known::Cookie, std::iter::once(first).chain(others));
        }
        if self.emit_x_forwarded {
            if !keeps_proto {
                let scheme = exchange.original_scheme().as_str().as_bytes();
                headers.push(Known::XForwardedProto, scheme);
            }
            let mut text = IpText::default();
            let address = match &exchange.connection.peer {
                Address::Ip(address) => text.write(address.ip()),
                Address::Unix => b"localhost",
            };
            let earlier = listed(received, Known::XForwardedFor);
            headers.push_pieces(Known::XForwardedFor, earlier.chain([address]));
        }
        if self.emit_via {
            let version: &[u8] = match request.version {
                Version::Http10 => b"1.0 ",
                Version::Http11 => b"1.1 ",
                Version::Http2 => b"2 ",
                Version::Http3 => b"3 ",
            };
            let own = [version, exchange.original_authority()];
            headers.push_pieces(Known::Via, listed(received, Known::Via).chain(own));
        }
    }

    /// Whether a backend that treats `_` in names like `-` would confuse this field with one that the proxy sets or removes, or
    /// that the request also has.
    fn is_look_alike(&self, received: &Headers, name: &str) -> bool {
        let is_edited = || {
            let meant = name.replace('_', "-");
            self.edits.iter().any(|edit| edit.names(&meant))
        };
        received.is_look_alike(name) || name.contains('_') && is_edited()
    }

    /// Whether the backend gets the scheme in the request's `x-forwarded-proto`. It does by configuration, and always
    /// if the field comes from a trusted proxy.
    fn keeps_x_forwarded_proto(&self, exchange: &Exchange) -> bool {
        let is_told = || {
            let told = exchange.request.headers.get(Known::XForwardedProto);
            told.is_some() && matches!(exchange.client, ClientOrigin::Proxy { .. })
        };
        self.preserve_x_forwarded_proto || is_told()
    }

    /// Whether the field of this name is forwarded in its place among the others. Not called for `x-forwarded-proto`.
    const fn keeps(&self, name: Known) -> bool {
        match name {
            // Fields that belong to the connection (RFC 9110 §7.6.1) or that the protocol engine writes are not
            // forwarded.
            Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::Te
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::Http2Settings
            | Known::ProxyAuthenticate
            | Known::ProxyAuthorization
            | Known::DatagramFlowId
            | Known::Host
            | Known::ContentLength
            | Known::Expect
            // The proxy itself writes `cookie`.
            | Known::Cookie => false,
            Known::XForwardedFor => !self.emit_x_forwarded,
            Known::Via => !self.emit_via,
            _ => true,
        }
    }

    #[cold]
    /// Applies the `proxy.header` rules. They see the authority of the request as its field `host`, which may also be
    /// changed, but not removed. Returns the authority that the rules leave.
    fn edit_with_host(&self, authority: &[u8], headers: &mut Headers) -> Span {
        if !authority.is_empty() {
            headers.push(Known::Host, authority);
        }
        self.edit(headers);
        let last = headers.get_all(Known::Host).last();
        let changed = last.filter(|host| !host.is_empty() && *host != authority);
        let changed = changed.map(<[u8]>::to_vec);
        headers.remove(Known::Host);
        headers.store(changed.as_deref().unwrap_or(authority))
    }

    fn edit(&self, headers: &mut Headers) {
        for edit in &self.edits {
            edit.apply(headers);
        }
    }
}

/// The only expectation that is defined (RFC 9110 §10.1.1).
const CONTINUE: &[u8] = b"100-continue";

/// Whether the trailers of the response can reach the client, and the client accepts them. gRPC servers require `te:
/// trailers` (RFC 9113 §8.2.2).
fn takes_trailers(request: &RequestHead) -> bool {
    request.version >= Version::Http2
        && request
            .headers
            .get_all(Known::Te)
            .any(|value| escape::list_contains(value, b"trailers"))
}

/// All values of a field, each followed by a comma. Empty values are left out.
fn listed(received: &Headers, name: Known) -> impl Iterator<Item = &[u8]> {
    received
        .get_all(name)
        .filter(|value| !value.is_empty())
        .flat_map(|value| [value, b", "])
}

/// Number of entries of the `via` fields: of the proxies that the request has passed.
fn via_entries(received: &Headers) -> usize {
    let commas = |value| memchr::memchr_iter(b',', value).count();
    let values = received.get_all(Known::Via);
    values.map(|value| 1 + commas(value)).sum()
}

fn body_length(exchange: &Exchange, wanted: TunnelKind) -> BodyLength {
    if wanted != TunnelKind::Nothing {
        return BodyLength::Tunnel;
    }
    let length = match &exchange.body {
        RequestBody::None => 0,
        RequestBody::Bytes(content) => content.len() as u64,
        RequestBody::File(range) => range.len,
        RequestBody::Stream(_) => return exchange.request.body,
    };
    match (length, &exchange.request.method) {
        // Methods that anticipate content send a length of 0 if they have none (RFC 9110 §8.6).
        (0, Method::Post | Method::Put) => BodyLength::Known(0),
        (0, _) => BodyLength::None,
        (length, _) => BodyLength::Known(length),
    }
}
