//! Active health checks of FastCGI applications.

use bytes::BytesMut;
use h2o_http::{Headers, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::record::{Parameters, Received, RecordReader, RequestRecords, encode_parameter};
use super::{FastcgiError, FastcgiTarget, head, head_end};
use crate::Failure;
use crate::stream::UpstreamStream;

/// Sends a GET request for `path` to a FastCGI application, and returns the status of the response.
pub(crate) async fn ask(
    mut stream: UpstreamStream,
    target: &FastcgiTarget,
    host: &str,
    path: &str,
    user_agent: &[u8],
) -> Result<StatusCode, Failure> {
    let records = RequestRecords::new(parameters(target, host, path, user_agent), false);
    let lost = |_| FastcgiError::Closed.to_failure(true, false);
    stream
        .write_all(records.without_content())
        .await
        .map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let failed = |error: FastcgiError| error.to_failure(true, true);
    let (mut reader, mut input, mut block) =
        (RecordReader::default(), BytesMut::new(), BytesMut::new());
    loop {
        match reader.next(&mut input, usize::MAX) {
            Received::Stdout(piece) => {
                block.extend_from_slice(&piece);
                if let Some(end) = head_end(&block, 0) {
                    let head = head::parse(&block[..end], Headers::new());
                    let head = head.map_err(|error| head_failure(&error))?;
                    return Ok(head.status);
                }
                if block.len() > h2o_http::MAX_HEAD {
                    return Err(failed(FastcgiError::HeadTooLong));
                }
            }
            Received::Stderr(_) => {}
            Received::End { is_overloaded } => {
                return Err(failed(FastcgiError::EndBeforeHead { is_overloaded }));
            }
            Received::Unexpected(kind) => {
                return Err(failed(FastcgiError::UnexpectedRecord(kind)));
            }
            Received::NeedMore => {
                if stream.read_buf(&mut input).await.map_err(lost)? == 0 {
                    return Err(failed(FastcgiError::Closed));
                }
            }
        }
    }
}

/// The failure of a request whose response has an invalid header block.
pub(super) fn head_failure(error: &head::HeadError) -> Failure {
    Failure::sent("").with_text(error.to_string())
}

fn parameters(target: &FastcgiTarget, host: &str, path: &str, user_agent: &[u8]) -> Parameters {
    let (script, query) = path.split_once('?').unwrap_or((path, ""));
    let mut out = Parameters::with_capacity(512);
    let mut add = |name: &str, value: &[&[u8]]| {
        encode_parameter(name.as_bytes(), value, &mut out.encoded);
    };
    match target {
        FastcgiTarget::Path => {
            add("SCRIPT_NAME", &[b""]);
            add("PATH_INFO", &[script.as_bytes()]);
        }
        FastcgiTarget::Script(root) => {
            add("SCRIPT_FILENAME", &[root.as_bytes(), script.as_bytes()]);
            add("SCRIPT_NAME", &[script.as_bytes()]);
        }
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let rest: [(&str, &[u8]); 9] = [
        ("QUERY_STRING", query.as_bytes()),
        ("REMOTE_ADDR", b"127.0.0.1"),
        ("REQUEST_METHOD", b"GET"),
        ("HTTP_HOST", host.as_bytes()),
        ("REQUEST_URI", path.as_bytes()),
        ("SERVER_NAME", name.as_bytes()),
        ("SERVER_PORT", b"80"),
        ("SERVER_PROTOCOL", b"HTTP/1.1"),
        ("HTTP_USER_AGENT", user_agent),
    ];
    for (name, value) in rest {
        add(name, &[value]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::record::decode_parameters;
    use super::*;

    #[test]
    fn an_application_is_addressed_like_by_its_requests() {
        let shown = |target: &FastcgiTarget| {
            let written = parameters(target, "php.internal:9000", "/ping?full", b"h2o");
            let list = decode_parameters(written.as_bytes())
                .expect("the encoded parameters are well-formed");
            let list = list
                .iter()
                .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()));
            list.collect::<Vec<_>>().join(" ")
        };
        let rest = "QUERY_STRING=full REMOTE_ADDR=127.0.0.1 REQUEST_METHOD=GET HTTP_HOST=php.internal:9000 \
                    REQUEST_URI=/ping?full SERVER_NAME=php.internal SERVER_PORT=80 SERVER_PROTOCOL=HTTP/1.1 \
                    HTTP_USER_AGENT=h2o";
        assert_eq!(
            shown(&FastcgiTarget::Path),
            format!("SCRIPT_NAME= PATH_INFO=/ping {rest}")
        );
        assert_eq!(
            shown(&FastcgiTarget::Script("/srv".into())),
            format!("SCRIPT_FILENAME=/srv/ping SCRIPT_NAME=/ping {rest}")
        );
    }
}
