//! Computes, by code of its own, the request that the backend must read when the proxy has forwarded one.

use h2o_http::path::DotSegments;
use h2o_http::{BodyLength, Method, Name, Version, path};
use h2o_upstream::Protocol;

use super::Outgoing;
use crate::proxied::Proxied;
use crate::server::{Fields, fields};

impl Outgoing<'_> {
    pub(super) fn asks_for_tunnel(&self) -> bool {
        self.head.body == BodyLength::Tunnel
    }

    pub(super) fn is_connect(&self) -> bool {
        self.asks_for_tunnel() && self.request.upgrade().is_empty()
    }

    pub(super) fn method(&self) -> &str {
        match self.protocol {
            Protocol::Http1
                if self.request.method == Method::Connect
                    && self.asks_for_tunnel()
                    && !self.is_connect() =>
            {
                "GET"
            }
            Protocol::Http2 | Protocol::Http3 if self.asks_for_tunnel() => "CONNECT",
            Protocol::Http1 | Protocol::Http2 | Protocol::Http3 | Protocol::Fastcgi => {
                self.request.method.as_str()
            }
        }
    }

    pub(super) fn authority(&self) -> &[u8] {
        if self.options.edits_host() {
            b"edited.example:81"
        } else if self.options.preserves_host() {
            self.request.authority()
        } else {
            self.proxied.backend.authority.as_bytes()
        }
    }

    /// Path and query are those of the client, below the path of the backend; if the client's path has dot segments, it is normalised.
    pub(super) fn check_target(&self, sent: &[u8]) {
        let Proxied { mount, backend, .. } = self.proxied;
        let base = backend.path.strip_suffix(b"/").unwrap_or(&backend.path);
        let target = self.request.target();
        let has_dots = |path| path::dot_segments(path) != DotSegments::None;
        if *mount == "/" && !has_dots(self.request.raw_path()) {
            let rest = match target {
                [] | [_] => b"",
                [b'/', rest @ ..] => rest,
                rest => rest,
            };
            assert_eq!(sent.escape_ascii().to_string(), {
                let want = [base, b"/", rest].concat();
                want.escape_ascii().to_string()
            });
            return;
        }
        let (path, query) = sent.split_at(path::query_at(sent).unwrap_or(sent.len()));
        assert_eq!(query, self.request.query());
        assert!(!has_dots(path));
        let mount = mount.strip_suffix('/').unwrap_or(mount);
        let rest = &self.request.path()[mount.len()..];
        if rest.is_empty() {
            assert_eq!(path, &*backend.path);
            return;
        }
        let mut normal = Vec::new();
        path::normalize(path, &mut normal);
        assert_eq!(normal.escape_ascii().to_string(), {
            let want = [base, rest].concat();
            want.escape_ascii().to_string()
        });
    }

    /// The fields that the backend must get, in order, without those that frame the message.
    pub(super) fn meant(&self) -> Fields {
        const OF_HOP: [&str; 14] = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "transfer-encoding",
            "upgrade",
            "http2-settings",
            "proxy-authenticate",
            "proxy-authorization",
            "datagram-flow-id",
            "host",
            "content-length",
            "expect",
            "cookie",
        ];
        let options = self.options;
        let received = fields(&self.request.headers);
        let values = |name: &str| -> Vec<&[u8]> {
            let named = received.iter().filter(|(known, _)| known == name);
            named.map(|(_, value)| &**value).collect()
        };
        let connection = values("connection")
            .join(&b","[..])
            .to_ascii_lowercase()
            .split(|&byte| byte == b',')
            .map(|option| option.trim_ascii().to_vec())
            .collect::<Vec<_>>();
        let is_named = |name: &str| {
            connection.iter().any(|option| option == name.as_bytes())
                && matches!(Name::from_lower(name), Name::Other(_))
        };
        let is_look_alike = |name: &str| {
            let meant = name.replace('_', "-");
            let is_edited = options.edits() && ["x-secret", "x-set", "x-add"].contains(&&*meant);
            meant != name
                && (is_edited
                    || matches!(Name::from_lower(&meant), Name::Known(_))
                    || !values(&meant).is_empty())
        };
        let keeps = |name: &str| match name {
            "x-forwarded-for" => !options.emits_forwarded(),
            "x-forwarded-proto" => options.preserves_proto(),
            "via" => !options.emits_via(),
            name => !OF_HOP.contains(&name) && !is_named(name) && !is_look_alike(name),
        };
        let mut meant: Vec<_> = received
            .iter()
            .filter(|(name, _)| keeps(name))
            .cloned()
            .collect();
        let mut push = |name: &str, value: Vec<u8>| meant.push((name.to_owned(), value));
        if options.is_early() && values("early-data").is_empty() {
            push("early-data", b"1".to_vec());
        }
        let mut cookies = values("cookie");
        cookies.retain(|cookies| !cookies.is_empty());
        if !cookies.is_empty() {
            push("cookie", cookies.join(&b"; "[..]));
        }
        let chain = |name: &str, own: &[u8]| {
            let mut chain = values(name);
            chain.retain(|value| !value.is_empty());
            chain.push(own);
            chain.join(&b", "[..])
        };
        if options.emits_forwarded() {
            if !options.preserves_proto() {
                let scheme = self.request.scheme.as_str();
                push("x-forwarded-proto", scheme.into());
            }
            push("x-forwarded-for", chain("x-forwarded-for", b"localhost"));
        }
        let is_from_http2 = self.request.version == Version::Http2;
        if options.emits_via() {
            let version: &[u8] = match self.request.version {
                Version::Http10 => b"1.0 ",
                Version::Http11 => b"1.1 ",
                Version::Http2 | Version::Http3 => b"2 ",
            };
            let own = [version, self.request.authority()].concat();
            push("via", chain("via", &own));
        }
        // Over HTTP/2, `te` may have no value but `trailers`.
        if self.protocol == Protocol::Http2 && is_from_http2 && !values("te").is_empty() {
            push("te", b"trailers".to_vec());
        }
        if options.edits() {
            meant.retain(|(name, _)| name != "x-secret" && name != "x-set");
            meant.push(("x-set".to_owned(), b"new".to_vec()));
            meant.push(("x-add".to_owned(), b"more".to_vec()));
        }
        meant
    }

    pub(super) fn check_fields(&self, sent: Fields, framing: &[&str]) {
        let token = self.request.upgrade();
        let is_made = |name: &str| {
            // The proxy makes `sec-websocket-key` itself, because extended CONNECT has none, and HTTP/1 needs one.
            name == "sec-websocket-key"
                && self.protocol == Protocol::Http1
                && self.request.method == Method::Connect
                && token.eq_ignore_ascii_case(b"websocket")
                && self
                    .request
                    .headers
                    .get(Name::from_lower("sec-websocket-key"))
                    .is_none()
        };
        // `close` is an option of `connection`; a field of this name is ignored here.
        let is_end_to_end =
            |name: &str| !framing.contains(&name) && name != "close" && !is_made(name);
        let only = |fields: Fields| -> Vec<(String, String)> {
            let fields = fields.into_iter().filter(|(name, _)| is_end_to_end(name));
            fields
                .map(|(name, value)| (name, value.escape_ascii().to_string()))
                .collect()
        };
        assert_eq!(only(sent), only(self.meant()));
    }

    pub(super) fn check_expect(&self, sent: &[&[u8]]) {
        let is_asked =
            self.forwards_expectation || (self.holds_content && self.protocol == Protocol::Http1);
        let want: &[&[u8]] = if is_asked { &[b"100-continue"] } else { &[] };
        assert_eq!(sent, want);
    }

    pub(super) fn check_content(&self, content: &[u8], is_whole: bool) {
        let came = &*self.incoming.content;
        if self.incoming.is_whole || is_whole {
            // The proxy may end its request before the client has ended its own, once all announced content has arrived.
            let is_all = self.head.body == BodyLength::Known(came.len() as u64);
            assert!(is_whole && (self.incoming.is_whole || is_all));
            assert_eq!(content, came);
        } else {
            assert!(came.starts_with(content));
        }
    }

    /// Checks the token of the protocol that is asked for. It is never one of HTTP/2, because such an upgrade would bypass the proxy.
    pub(super) fn check_token(&self, token: &[u8]) {
        assert_eq!(token, self.request.upgrade());
        let is_http2 = |option: &[u8]| {
            let name = option.trim_ascii().to_ascii_lowercase();
            matches!(&*name, b"h2c" | b"h2c-14" | b"h2c-16")
        };
        let mut options = token.split(|&byte| byte == b',');
        assert!(!options.any(is_http2), "{}", token.escape_ascii());
    }
}
