//! Computes, by code of its own, the response that the client must read when the proxy has forwarded one.

use h2o_http::{Headers, Method, Name, StatusCode};
use h2o_upstream::Protocol;

use super::backend::{Head, Interim, Read};
use super::request::Request;

/// A response of the backend that is sent to the client.
pub(super) struct Handed<'a> {
    pub(super) asked: &'a Request<'a>,
    pub(super) read: &'a Read,
    pub(super) head: &'a Head,
}

impl Handed<'_> {
    /// The fields that the client must get, without those that frame the message.
    pub(super) fn meant(&self) -> Vec<(String, String)> {
        let is_extended =
            self.asked.options.asks().is_upgrade() && self.asked.request.method == Method::Connect;
        let options = connection_options(&self.head.fields);
        let keeps = |name: &str| {
            is_end_to_end(name, &options)
                && !matches!(name, "x-compress-hint" | "server")
                && !(is_extended && name == "sec-websocket-accept")
        };
        let fields = self.head.fields.iter().filter(|(name, _)| keeps(name));
        fields
            .map(|(name, value)| match name.as_str() {
                "location" => (name.clone(), self.location(value)),
                _ => (name.clone(), value.escape_ascii().to_string()),
            })
            .collect()
    }

    /// The value of `location` that the client must get: a URL of the backend becomes one of the proxy, others are kept.
    pub(super) fn location(&self, value: &[u8]) -> String {
        const BACKEND: &str = "http://b.example:81/base";
        let text = value.escape_ascii().to_string();
        let ours = text
            .get(..BACKEND.len())
            .filter(|start| {
                let (host, path) = start.split_at(BACKEND.len() - 5);
                host.eq_ignore_ascii_case(&BACKEND[..BACKEND.len() - 5]) && path == "/base"
            })
            .map(|start| &text[start.len()..]);
        let authority = self.asked.request.authority().escape_ascii();
        match ours {
            Some(rest) => format!("http://{authority}/{rest}"),
            None => text,
        }
    }

    pub(super) fn check_fields(&self, sent: &[(String, Vec<u8>)], framing: &[&str]) {
        // The server adds a missing `date` later.
        let sent: Vec<_> = sent
            .iter()
            .filter(|(name, _)| !framing.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.escape_ascii().to_string()))
            .collect();
        let mut meant = self.meant();
        meant.retain(|(name, _)| !framing.contains(&name.as_str()));
        assert_eq!(sent, meant);
    }

    pub(super) fn check_interims(&self, sent: &[Interim]) {
        let is_due = |(status, fields): &&Interim| {
            // The proxy does not forward a 103 (Early Hints) without fields.
            let options = connection_options(fields);
            let is_hint = fields.iter().any(|(name, _)| is_end_to_end(name, &options));
            *status != b"100" && (*status != b"103" || is_hint)
        };
        let came: Vec<_> = self.read.interims.iter().filter(is_due).collect();
        assert_eq!(sent.len(), came.len());
        for ((status, fields), (came, meant)) in sent.iter().zip(came) {
            assert_eq!(status, came);
            let options = connection_options(meant);
            let meant = meant
                .iter()
                .filter(|(name, _)| is_end_to_end(name, &options));
            assert!(fields.iter().eq(meant));
        }
    }

    /// If the client's response is complete, it has all content of the backend's. It may be complete although the backend's response is
    /// not, but only if all of the announced length has come.
    pub(super) fn check_content(&self, content: &[u8], is_whole: bool) {
        let came = &*self.read.content;
        assert!(came.starts_with(content));
        let is_all = self.head.length == Some(came.len() as u64);
        assert!(is_whole == self.read.is_complete || (is_whole && is_all));
        assert!(!is_whole || content == came);
    }

    pub(super) fn status(&self) -> Vec<u8> {
        let opens_protocol = self.head.is_tunnel && self.asked.options.asks().is_upgrade();
        let status = match self.asked.client {
            _ if !opens_protocol => self.head.status,
            Protocol::Http1 => StatusCode::SWITCHING_PROTOCOLS,
            Protocol::Http2 | Protocol::Http3 => StatusCode::OK,
            Protocol::Fastcgi => unreachable!("no client speaks FastCGI"),
        };
        status.digits().to_vec()
    }
}

pub(super) fn headers(fields: &[(String, Vec<u8>)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in fields {
        headers.push(Name::from_lower(name), value);
    }
    headers
}

/// The options in the values of `connection`, in lower case.
pub(super) fn connection_options(fields: &[(String, Vec<u8>)]) -> Vec<String> {
    let values = fields.iter().filter(|(name, _)| name == "connection");
    values
        .flat_map(|(_, value)| value.split(|&byte| byte == b','))
        .map(|option| String::from_utf8_lossy(option.trim_ascii()).to_ascii_lowercase())
        .collect()
}

/// Whether a field is for the client, not for the proxy. Fields that are known to be end-to-end are kept even if `connection` names them.
pub(super) fn is_end_to_end(name: &str, options: &[String]) -> bool {
    const OF_HOP: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "datagram-flow-id",
        "content-length",
    ];
    let is_known = matches!(Name::from_lower(name), Name::Known(_));
    let is_named = !is_known && options.iter().any(|option| option == name);
    !is_named && !OF_HOP.contains(&name)
}
