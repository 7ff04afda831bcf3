//! HTTPS requests to the certificate authority. Each has a connection of its own, as a renewal needs only a dozen of
//! them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::clock::now;

/// Time limit for a request to the authority with its response.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of a response from the authority. The longest is a chain of certificates, with some ten thousand bytes.
const LONGEST_BODY: usize = 1 << 20;

/// The HTTP client by which the library instant-acme talks to the authority.
#[derive(Clone)]
pub(crate) struct Https {
    connector: TlsConnector,
    /// Receives the time from which on the authority takes requests again, if it says so in a response that refuses one.
    retry_after: Arc<AtomicI64>,
}

/// Longest time for which the authority can ask the client to wait.
const LONGEST_WAIT: i64 = 7 * 24 * 3600;

type Body = BodyWrapper<hyper::body::Bytes>;

impl Https {
    pub(crate) fn new(config: &Arc<ClientConfig>, retry_after: &Arc<AtomicI64>) -> Self {
        Self {
            connector: TlsConnector::from(Arc::clone(config)),
            retry_after: Arc::clone(retry_after),
        }
    }

    async fn send(self, mut request: Request<Body>) -> Result<BytesResponse, Error> {
        let url = request.uri().clone();
        let is_get = request.method() == hyper::Method::GET;
        let fault = |text: &str| other(format!("{url}: {text}"));
        let host = url.host().filter(|_| url.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| fault("the URL does not begin with `https://`"))?;
        // The host of a URL has brackets around an IPv6 address (RFC 3986 §3.2.2), its name in TLS has none.
        let bare = host.trim_matches(['[', ']']);
        let name =
            ServerName::try_from(bare.to_owned()).map_err(|error| fault(&error.to_string()))?;
        let target = url.path_and_query().map_or("/", |target| target.as_str());
        *request.uri_mut() = target.parse()?;
        let authority = url.authority().map_or(host, |authority| authority.as_str());
        let authority = authority
            .parse()
            .map_err(|_| fault("the URL has no host"))?;
        request.headers_mut().insert(HOST, authority);

        let io = |error: std::io::Error| fault(&h2o_log::reason(&error));
        let socket = TcpStream::connect((bare, url.port_u16().unwrap_or(443)));
        let stream = self.connector.connect(name, socket.await.map_err(io)?);
        let tls = |error: std::io::Error| match h2o_tls::authority_failure(&error) {
            Some(text) => fault(&text),
            None => io(error),
        };
        let stream = TokioIo::new(stream.await.map_err(tls)?);
        let hyper = |error: hyper::Error| fault(&error.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream)
            .await
            .map_err(hyper)?;
        // The task that runs the connection ends with the response, since nothing else is sent over it.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(hyper)?;
        let (head, body) = response.into_parts();
        let is_problem = (head.headers.get(CONTENT_TYPE))
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem+json"));
        if !head.status.is_success()
            && let Some(wait) = head.headers.get(RETRY_AFTER)
        {
            let now = now();
            let until = retry_after(wait.as_bytes(), now);
            (self.retry_after).store(until.min(now.saturating_add(LONGEST_WAIT)), Relaxed);
        }
        // The library reads the answer to a GET as the document that it has asked for, whatever the status is, and other answers as
        // documents or problem documents (RFC 8555 §6.7).
        if !head.status.is_success() && (is_get || !is_problem) {
            return Err(fault(&format!(
                "the server answered with status {}",
                head.status
            )));
        }
        let body = Limited::new(body, LONGEST_BODY).collect().await;
        let body = body.map_err(|error| fault(&error.to_string()))?.to_bytes();
        Ok(BytesResponse {
            parts: head,
            body: Box::new(body),
        })
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<Body>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let url = request.uri().clone();
        let sent = tokio::time::timeout(PATIENCE, self.clone().send(request));
        Box::pin(async move {
            sent.await
                .unwrap_or_else(|_| Err(other(format!("{url}: the server did not answer in time"))))
        })
    }
}

/// The time, in seconds since the Unix epoch, that a value of `retry-after` names (RFC 9110 §10.2.3); `i64::MIN` if it is malformed.
fn retry_after(value: &[u8], now: i64) -> i64 {
    let seconds = std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse::<u32>().ok());
    match seconds {
        Some(seconds) => now.saturating_add(seconds.into()),
        None => h2o_http::date::parse(value).unwrap_or(i64::MIN),
    }
}

fn other(text: String) -> Error {
    Error::Other(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_names_seconds_or_a_date() {
        assert_eq!(retry_after(b"7", 1000), 1007);
        assert_eq!(
            retry_after(b"Sun, 06 Nov 1994 08:49:37 GMT", 0),
            784_111_777
        );
        for malformed in [&b""[..], b"-1", b"soon", b"\xff"] {
            assert_eq!(retry_after(malformed, 1000), i64::MIN);
        }
    }
}
