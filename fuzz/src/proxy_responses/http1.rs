//! Checks a response to a client over HTTP/1 with a strict reader.

use h2o_exchange::{Exchange, Response};
use h2o_http::{Known, ResponseHead, StatusCode};
use h2o_http1::{BodyMode, Next};
use h2o_testkit::any_moment;

use super::handed::Handed;
use super::options::Asks;
use super::request::http1_server;
use crate::strict_http1::{self, Asked, Content};

impl Handed<'_> {
    pub(super) fn by_http1(&self, exchange: &Exchange, mut response: Response) {
        let now = any_moment();
        let asks = self.asked.options.asks();
        let (mut server, request) = http1_server(asks);
        let mut out = Vec::new();
        for (status, headers) in &exchange.informational {
            server.send_informational(*status, headers, &mut out);
        }
        if request.asks_for_tunnel() && !request.is_tunnel_opened_by(response.status) {
            server.shut_down();
        } else if response.status == StatusCode::SWITCHING_PROTOCOLS {
            response.headers.push(Known::Upgrade, request.upgrade());
        }
        if response.closes {
            server.shut_down();
        }
        let head = ResponseHead {
            status: response.status,
            reason: response.reason.as_deref(),
            headers: &response.headers,
            length: response.length,
            server: Some(b"h2o"),
        };
        let mode = server.respond(&head, &mut out, now);
        let is_bodyless = mode == BodyMode::None;
        if !is_bodyless {
            for piece in self.read.content.chunks(self.asked.options.piece()) {
                server.send_data(piece, &mut out);
            }
        }
        if is_bodyless || self.read.is_complete {
            server.finish(None, &mut out);
        } else {
            server.abort(&mut out);
        }
        let goes_on = server.next(now) == Next::Request;
        assert!(!goes_on || is_bodyless || self.read.is_complete);
        self.check_http1(&out, goes_on);
    }

    pub(super) fn check_http1(&self, mut out: &[u8], goes_on: bool) {
        const FRAMING: [&str; 5] = [
            "connection",
            "upgrade",
            "server",
            "content-length",
            "transfer-encoding",
        ];
        let asks = self.asked.options.asks();
        let asked = match asks {
            Asks::Head => Asked::Head,
            Asks::Connect => Asked::Connect,
            _ => Asked::Get,
        };
        let mut interims = Vec::new();
        let sent = loop {
            let sent = strict_http1::response(out, asked);
            match sent.line[1] {
                [b'1', rest @ ..] if rest != b"01" => {
                    interims.push((sent.line[1].to_vec(), sent.fields));
                    out = sent.rest;
                }
                _ => break sent,
            }
        };
        if asks != Asks::ByHttp10 {
            self.check_interims(&interims);
        }
        assert_eq!(sent.line[1], self.status());
        let is_tunnel = self.head.is_tunnel;
        let is_upgrade = is_tunnel && asks.is_upgrade();
        let connection: &[u8] = match goes_on {
            _ if is_upgrade => b"upgrade",
            true => b"keep-alive",
            false => b"close",
        };
        let is_cut_off = !goes_on && !self.read.is_complete;
        assert!(is_cut_off || sent.values("connection") == [connection]);
        if self.head.closes && self.asked.options.forwards_close() && !is_tunnel {
            assert!(!goes_on);
        }
        assert_eq!(sent.values("server"), [b"h2o"]);
        let token = self.asked.request.upgrade();
        let tokens: &[&[u8]] = if is_upgrade { &[token] } else { &[] };
        assert_eq!(sent.values("upgrade"), tokens);
        match &sent.content {
            _ if is_tunnel => assert_eq!(sent.rest, self.read.content),
            Content::Whole(content) => {
                assert!(sent.rest.is_empty());
                let is_bodyless = asked == Asked::Head || self.head.status.is_bodyless();
                if is_bodyless {
                    assert!(self.read.content.is_empty());
                } else {
                    self.check_content(content, true);
                }
            }
            Content::CutOff(content) => self.check_content(content, false),
            Content::UntilClose(content) => {
                // A client of HTTP/1.0 knows no chunks, and learns from the way in which the connection ends whether the content is
                // complete.
                assert!(asks == Asks::ByHttp10 && !goes_on);
                self.check_content(content, self.read.is_complete);
            }
        }
        assert!(sent.trailers.is_empty());
        self.check_fields(&sent.fields, &FRAMING);
    }
}
