//! An HTTP/2 server for tests, over a link in memory.

use std::rc::Rc;

use h2o_http::StatusCode;
use h2o_http2::{ErrorCode, StreamKey};

use super::kit::{Reset, Server, ServerEvent, fields_of};
use crate::http2::Http2;
use crate::http2::tests::kit::{self as http2, open};
use crate::multiplexed::{Connection, StreamIndex, StreamSettings};

pub(super) struct Http2Server(http2::Server);

fn index(key: StreamKey) -> StreamIndex {
    StreamIndex(key.index())
}

fn key(stream: StreamIndex) -> StreamKey {
    StreamKey::from_index(u32::try_from(stream.0).expect("the index fits into 32 bits"))
}

impl Server for Http2Server {
    type Engine = Http2;

    async fn start(settings: StreamSettings) -> (Rc<Connection<Http2>>, Self) {
        let (connection, server) = open(settings).await;
        (connection, Self(server))
    }

    async fn next(&mut self) -> ServerEvent {
        match self.0.next().await {
            http2::ServerEvent::Request(stream, head) => ServerEvent::Request(index(stream), head),
            http2::ServerEvent::Data(stream, data, end) => {
                // The server extends the flow-control window by the bytes received, so that the client can send more.
                (self.0.engine).release_content(stream, data.len(), &mut self.0.out);
                self.0.flush().await;
                ServerEvent::Data(index(stream), data, end)
            }
            http2::ServerEvent::Reset(stream, code) => {
                assert_eq!(code, ErrorCode::CANCEL);
                self.0.engine.release(stream, &mut self.0.out);
                ServerEvent::Cancelled(index(stream))
            }
            http2::ServerEvent::Closed => ServerEvent::Closed,
        }
    }

    async fn flush(&mut self) {
        self.0.flush().await;
    }

    fn respond(
        &mut self,
        stream: StreamIndex,
        status: u16,
        fields: &[(&str, &str)],
        length: Option<u64>,
        end: bool,
    ) {
        (self.0).respond_with(key(stream), status, fields, length, end);
    }

    fn inform(&mut self, stream: StreamIndex, status: u16, fields: &[(&str, &str)]) {
        let status = StatusCode::new(status).expect("the number is a valid status code");
        let (headers, out) = (fields_of(fields), &mut self.0.out);
        (self.0.engine).send_informational(key(stream), status, &headers, out);
    }

    fn send(&mut self, stream: StreamIndex, data: &[u8], end: bool) {
        let out = &mut self.0.out;
        self.0.engine.send_data(key(stream), data, end, out);
    }

    fn end(&mut self, stream: StreamIndex, trailers: &[(&str, &str)]) {
        let (trailers, out) = (fields_of(trailers), &mut self.0.out);
        self.0.engine.finish(key(stream), Some(&trailers), out);
    }

    fn reset(&mut self, stream: StreamIndex, reset: Reset) {
        let code = match reset {
            Reset::Refused => ErrorCode::REFUSED_STREAM,
            Reset::Failed => ErrorCode::INTERNAL_ERROR,
        };
        self.0.engine.reset(key(stream), code, &mut self.0.out);
    }

    fn release(&mut self, stream: StreamIndex) {
        self.0.engine.release(key(stream), &mut self.0.out);
    }

    fn leave(&mut self) {
        let now = tokio::time::Instant::now().into_std();
        self.0.engine.shut_down(now, &mut self.0.out);
    }
}
