//! Sends a POST request that the server itself makes, outside of the workers (to an OCSP responder for example). It uses a
//! connection of its own and blocks the calling thread.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::{TimedOut, Worker};
use h2o_http::{BodyLength, ClientResponse, Headers, Known, Method, Scheme};
use h2o_http1::{ClientConnection, ClientReceived, ClientRequest, EndedPart};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, LocalOptions};

use crate::failure::text_of;
use crate::plain_stream::PlainStream;
use crate::{BackendUrl, ConnectLimits, connect};

/// How long an attempt to connect to one address may take while another address of the name is left.
const ADDRESS_TIME: Duration = Duration::from_secs(5);

/// A POST request with content.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    /// The URL to send the request to; its scheme must be `http`.
    pub url: &'a str,
    /// The media type of the request's content.
    pub content_type: &'a str,
    /// The request's content.
    pub content: &'a [u8],
    /// Time limit for name resolution, connecting, request and response together.
    pub time: Duration,
    /// The greatest length in bytes of the response's content that is accepted.
    pub longest: usize,
}

impl Post<'_> {
    /// Sends the request, and returns the content of a response with status 200.
    ///
    /// # Errors
    /// A message that says what has failed; it does not name the URL.
    pub fn send(&self) -> Result<Vec<u8>, String> {
        let url = BackendUrl::parse(self.url).filter(|url| url.scheme == Scheme::Http);
        let url = url.ok_or("the URL does not have the scheme http")?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build_local(LocalOptions::default())
            .map_err(|error| h2o_log::reason(&error).to_string())?;
        let worker = Worker::new(0, Arc::default(), Arc::default());
        let exchange = async {
            let exchange = worker.timeout(self.time, self.exchange(&worker, &url));
            exchange.await.unwrap_or_else(|TimedOut| {
                Err(format!("no answer within {} seconds", self.time.as_secs()))
            })
        };
        runtime.block_on(worker.run(exchange))
    }

    async fn exchange(&self, worker: &Rc<Worker>, url: &BackendUrl) -> Result<Vec<u8>, String> {
        let limits = ConnectLimits {
            name_resolution_delay: Duration::from_millis(50),
            connection_attempt_delay: ADDRESS_TIME,
            connect_timeout: self.time,
        };
        let connected = connect(worker, url.tls_name(), url.port, limits, |_| true).await;
        let (mut socket, _) = connected.map_err(|error| error.to_string())?;
        let mut engine = ClientConnection::new(Arc::default());
        let request = self.encode(url, &mut engine);
        let sent = socket.write_all(&request).await;
        sent.map_err(|error| h2o_log::reason(&error).to_string())?;
        self.response(&mut socket, &mut engine).await
    }

    fn encode(&self, url: &BackendUrl, engine: &mut ClientConnection) -> Vec<u8> {
        let mut headers = Headers::default();
        headers.push(Known::ContentType, self.content_type.as_bytes());
        let request = ClientRequest {
            method: &Method::Post,
            target: &url.path,
            host: url.authority.as_bytes(),
            headers: &headers,
            body: BodyLength::Known(self.content.len() as u64),
            keep_alive: false,
            upgrade: None,
            expects_continue: false,
        };
        let mut out = Vec::new();
        engine.send_request(&request, &mut out);
        engine.send_data(self.content, &mut out);
        engine.finish(None, &mut out);
        out
    }

    async fn response(
        &self,
        socket: &mut PlainStream,
        engine: &mut ClientConnection,
    ) -> Result<Vec<u8>, String> {
        let mut head = ClientResponse::new();
        let (mut input, mut content) = (Vec::new(), Vec::new());
        loop {
            let received = engine.receive(&input, &mut head);
            let received = received.map_err(|error| text_of(error).to_owned())?;
            let taken = match received {
                ClientReceived::NeedMore { taken } => {
                    input.drain(..taken);
                    let read = socket.read_buf(&mut input).await;
                    if read.map_err(|error| h2o_log::reason(&error).to_string())? > 0 {
                        continue;
                    }
                    return match engine.on_closed() {
                        Ok(EndedPart::Body) => Ok(content),
                        Ok(EndedPart::Nothing | EndedPart::Tunnel) | Err(_) => {
                            Err("the connection was closed before the end of the response".into())
                        }
                    };
                }
                ClientReceived::Interim { taken } => taken,
                ClientReceived::Response { taken } => {
                    let status = head.status.as_u16();
                    if status != 200 {
                        return Err(format!("the response has status {status}"));
                    }
                    taken
                }
                ClientReceived::Data { taken, data } => {
                    content.extend_from_slice(&input[data]);
                    if content.len() > self.longest {
                        return Err(format!("the response is longer than {}", self.longest));
                    }
                    taken
                }
                ClientReceived::BodyEnd { .. } => return Ok(content),
            };
            input.drain(..taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Sends a request to a test server that writes these pieces of a response; without pieces it sends nothing. Returns
    /// the request as the server has received it, and the result of the client.
    fn send(
        pieces: &'static [&'static [u8]],
        time: Duration,
    ) -> (Vec<u8>, Result<Vec<u8>, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a?b", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\nquestion") {
                let mut byte = [0];
                socket.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            for piece in pieces {
                // The result is ignored: the client may have closed the connection already.
                let _ = socket.write_all(piece);
            }
            if pieces.is_empty() {
                // The server sends nothing until the client closes the connection.
                let _ = socket.read(&mut [0]);
            }
            request
        });
        let post = Post {
            url: &url,
            content_type: "application/test",
            content: b"question",
            time,
            longest: 8,
        };
        let result = post.send();
        (server.join().unwrap(), result)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_content_of_a_response_is_returned_however_it_is_delimited() {
        let cases: [&[&[u8]]; 4] = [
            &[b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nanswer"],
            &[b"HTTP/1.1 200 OK\r\n\r\nans", b"wer"],
            &[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nanswer\r\n0\r\n\r\n"],
            &[
                b"HTTP/1.1 100 Continue\r\n\r\n",
                b"HTTP/1.0 200 OK\r\n\r\nanswer",
            ],
        ];
        for pieces in cases {
            let (request, result) = send(pieces, LONG);
            assert_eq!(result.as_deref(), Ok(&b"answer"[..]));
            let request = String::from_utf8(request).unwrap();
            assert!(request.starts_with("POST /a?b HTTP/1.1\r\n"), "{request}");
            assert!(request.contains("\r\ncontent-type: application/test\r\n"));
            assert!(request.contains("\r\ncontent-length: 8\r\n"));
            assert!(request.contains("\r\nhost: 127.0.0.1:"));
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let cases: [(&[&[u8]], &str); 6] = [
            (
                &[b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"],
                "the response has status 404",
            ),
            (
                &[b"HTTP/1.1 200 OK\r\n\r\n123456789"],
                "the response is longer than 8",
            ),
            (
                &[b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nanswer"],
                "the connection was closed before the end of the response",
            ),
            (
                &[b"HTTP/1.1 200 OK\r\n"],
                "the connection was closed before the end of the response",
            ),
            (
                &[b"\0\x01\x02\x03 what\r\n\r\n"],
                "failed to parse the response",
            ),
            (&[], "no answer within 0 seconds"),
        ];
        for (pieces, want) in cases {
            let time = if pieces.is_empty() {
                Duration::from_millis(50)
            } else {
                LONG
            };
            let (_, result) = send(pieces, time);
            let text = result.unwrap_err();
            assert_eq!(text, want);
        }
    }

    #[test]
    fn only_http_urls_are_asked() {
        for url in ["https://127.0.0.1/", "ldap://a", "", "http://"] {
            let post = Post {
                url,
                content_type: "a/b",
                content: b"",
                time: LONG,
                longest: 1,
            };
            assert_eq!(
                post.send(),
                Err("the URL does not have the scheme http".to_owned())
            );
        }
    }
}
