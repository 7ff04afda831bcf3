//! The FastCGI parameters of a request, in the order in which H2O sends them.

use h2o_exchange::{Address, Exchange, RequestBody, ScriptPath, ServerSoftware};
use h2o_http::{BodyLength, Headers, Known, Name, Scheme};
use h2o_upstream::fastcgi_record::{self, encode_field, encode_pair, encode_parameter};

use super::FastcgiSettings;
use crate::ip_text::IpText;

/// Encodes the FastCGI parameters of a request.
pub(super) fn build(
    exchange: &Exchange,
    script: Option<&ScriptPath>,
    settings: &FastcgiSettings,
) -> fastcgi_record::Parameters {
    let mut out = Parameters(fastcgi_record::Parameters::with_capacity(1024));
    let request = &exchange.request;
    if let Some(len) = content_length(exchange) {
        out.add("CONTENT_LENGTH", itoa::Buffer::new().format(len));
    }
    out.add_script(exchange, script, settings);
    let query = request.query();
    out.add("QUERY_STRING", query.strip_prefix(b"?").unwrap_or(query));
    if let Address::Ip(peer) = exchange.client_address() {
        out.add("REMOTE_ADDR", IpText::default().write(peer.ip()));
        out.add("REMOTE_PORT", itoa::Buffer::new().format(peer.port()));
    }
    for (name, value) in &exchange.env {
        out.add(name, &**value);
    }
    out.add("REQUEST_METHOD", request.method.as_str());
    let (authority, target) = if settings.sends_delegated_uri {
        (request.authority(), request.target())
    } else {
        (exchange.original_authority(), exchange.original_target())
    };
    out.add("HTTP_HOST", authority);
    out.add("REQUEST_URI", target);
    if let Some(Address::Ip(address)) = exchange.connection.transport.local_address() {
        out.add("SERVER_ADDR", IpText::default().write(address.ip()));
        out.add("SERVER_PORT", itoa::Buffer::new().format(address.port()));
    }
    let host = exchange.site.host(exchange.route);
    out.add("SERVER_NAME", &*host.name.name);
    out.add("SERVER_PROTOCOL", request.version.as_str());
    let software = exchange.site.settings.peek::<ServerSoftware>();
    let own = concat!("h2o/", env!("CARGO_PKG_VERSION"));
    let name = software
        .as_ref()
        .map_or(own, |software| match &software.name {
            _ if software.is_hidden => "",
            Some(name) => name,
            None => own,
        });
    out.add("SERVER_SOFTWARE", name);
    if request.scheme == Scheme::Https {
        out.add("HTTPS", "on");
    }
    out.add_fields(exchange, &request.headers);
    if exchange.is_early && request.headers.get(Known::EarlyData).is_none() {
        out.add("HTTP_EARLY_DATA", "1");
    }
    out.0
}

/// The length of the request body; `None` if there is no body.
fn content_length(exchange: &Exchange) -> Option<u64> {
    match (&exchange.body, exchange.request.body) {
        (RequestBody::Bytes(bytes), _) => Some(bytes.len() as u64),
        (RequestBody::File(range), _) => Some(range.len),
        (RequestBody::Stream(_) | RequestBody::None, BodyLength::Known(len)) => Some(len),
        (
            RequestBody::Stream(_) | RequestBody::None,
            BodyLength::None | BodyLength::Unknown | BodyLength::Tunnel,
        ) => None,
    }
}

struct Parameters(fastcgi_record::Parameters);

impl Parameters {
    #[expect(
        clippy::inline_always,
        reason = "most names are constants, so that their length and bytes are, too"
    )]
    #[inline(always)]
    fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        encode_pair(name.as_bytes(), value.as_ref(), &mut self.0.encoded);
    }

    fn add_script(
        &mut self,
        exchange: &Exchange,
        script: Option<&ScriptPath>,
        settings: &FastcgiSettings,
    ) {
        // H2O compatibility: without a script file, H2O sends the whole path of the request, including the part that
        // the configuration's path matches.
        let path_info = match script {
            Some(script) => {
                self.add("SCRIPT_FILENAME", &script.file);
                self.add("SCRIPT_NAME", &script.name);
                script.path_info.as_deref()
            }
            None => {
                self.add("SCRIPT_NAME", "");
                Some(exchange.request.path())
            }
        };
        if let Some(path_info) = path_info {
            self.add("PATH_INFO", path_info);
        }
        if let Some(root) = &settings.document_root {
            self.add("DOCUMENT_ROOT", &**root);
            if let Some(path_info) = path_info {
                let value = &[root.as_bytes(), path_info];
                encode_parameter(b"PATH_TRANSLATED", value, &mut self.0.encoded);
            }
        }
    }

    /// Adds the header fields of the request as parameters. A request variable with the name of such a parameter takes
    /// the field's place (in H2O only if the field's name has no hyphen).
    fn add_fields(&mut self, exchange: &Exchange, headers: &Headers) {
        let mut cookies: Vec<&[u8]> = Vec::new();
        for field in headers.iter() {
            match field.name {
                Name::Known(Known::Cookie) => {
                    if !cookies.is_empty() {
                        cookies.push(b";");
                    }
                    cookies.push(field.value);
                }
                Name::Known(Known::ContentType) => self.add("CONTENT_TYPE", field.value),
                name => {
                    // A client must not be able to set `HTTP_PROXY`, which many libraries read as the address of a
                    // proxy.
                    if name.as_str() != "proxy"
                        && !headers.is_look_alike(name.as_str())
                        && !has_variable(exchange, name.as_str())
                    {
                        encode_field(name.as_str().as_bytes(), field.value, &mut self.0.encoded);
                    }
                }
            }
        }
        if !cookies.is_empty() && exchange.env("HTTP_COOKIE").is_none() {
            encode_parameter(b"HTTP_COOKIE", &cookies, &mut self.0.encoded);
        }
    }
}

/// Whether a request variable has the name of the parameter for the header field `name`.
fn has_variable(exchange: &Exchange, name: &str) -> bool {
    !exchange.env.is_empty() && {
        let parameter = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
        exchange.env(&parameter).is_some()
    }
}
