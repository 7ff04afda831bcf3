//! Writes the log line of an exchange, field by field, into a reused buffer.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use h2o_exchange::{Address, Exchange, Protocol, StreamPriority, TlsInfo};
use h2o_http::{Headers, Known, Method};

use super::field::{
    ConnectionEnd, Field, FieldName, Http2Field, Http3Field, Moment, ProxyBytes, Stage, TlsField,
    Unit,
};
use super::format::{Element, Format};
use super::local_time::{COMMON, LocalTime};

impl Format {
    /// Appends the log line of `exchange` to `out`, without line feed.
    pub(crate) fn render(&self, exchange: &Exchange, time: &LocalTime, out: &mut Vec<u8>) {
        let mut line = Line {
            exchange,
            time,
            format: self,
            out,
        };
        for element in &self.elements {
            match element {
                Element::Text(text) => line.out.extend_from_slice(text.as_bytes()),
                Element::Value(field) => {
                    if line.value(field).is_none() {
                        line.out.extend_from_slice(self.escape.null());
                    }
                }
                Element::Quoted(quote, field) => {
                    line.out.push(*quote);
                    if line.value(field).is_some() {
                        line.out.push(*quote);
                    } else {
                        line.out.pop();
                        line.out.extend_from_slice(self.escape.null());
                    }
                }
            }
        }
    }
}

/// A log line that is being written. The methods return `None` and write nothing if the value does not exist.
struct Line<'a> {
    exchange: &'a Exchange,
    time: &'a LocalTime,
    format: &'a Format,
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn value(&mut self, field: &Field) -> Option<()> {
        let exchange = self.exchange;
        match field {
            Field::Null => None,
            Field::Proxied(counted) => self.number(bytes(exchange, *counted)),
            Field::ProxyTls(field) => self.proxy_tls(*field),
            Field::Address(end) => self.address(*end),
            Field::Port(end) => self.port(*end),
            Field::BodyBytes => self.number(exchange.sent.body_bytes),
            Field::Protocol => {
                parsed(exchange)?;
                self.raw(exchange.request.version.as_str())
            }
            Field::Method => {
                parsed(exchange)?;
                self.text(exchange.original_method().as_str().as_bytes())
            }
            Field::Path => self.text(path_and_query(parsed(exchange)?).0),
            Field::Query => self.text(path_and_query(parsed(exchange)?).1),
            Field::RequestLine => self.request_line(),
            Field::Status(stage) => self.status(*stage),
            Field::CommonTime => {
                self.out.push(b'[');
                self.time.write(COMMON, wall_time(exchange), self.out);
                self.raw("]")
            }
            Field::Time(format) => {
                self.time.write(format, wall_time(exchange), self.out);
                Some(())
            }
            Field::Epoch(unit) => self.number(whole(wall_time(exchange), *unit)),
            Field::EpochFraction(unit) => self.fraction(*unit),
            Field::User => self.text(exchange.env("REMOTE_USER")?),
            Field::Authority => self.text(match exchange.original_authority() {
                b"" => host_name(exchange),
                authority => authority,
            }),
            Field::HostName => self.text(host_name(exchange)),
            // Clients choose what the groups of regular-expression paths contain. H2O compatibility: other variables are written as they are.
            Field::Env(name) if name.starts_with("PATH_") => self.text(exchange.env(name)?),
            Field::Env(name) => self.bytes(exchange.env(name)?),
            Field::RequestHeader(name) => self.text(request_headers(exchange).get(name.as_name())?),
            Field::Upgrade => self.unless_empty(exchange.request.upgrade()),
            Field::Expect => self.unless_empty(exchange.request.expect()),
            Field::ResponseHeader(stage, name) => self.response_header(*stage, name),
            Field::Duration(from, to) => self.duration(*from, *to),
            Field::Errors => self.text(exchange.errors.as_bytes()),
            Field::ConnectionId => self.number(exchange.connection.id),
            Field::RequestId => self.number(exchange.protocol.request_id()),
            Field::Http1RequestIndex => match exchange.protocol {
                Protocol::Http1 { index: 0 } | Protocol::Http2(_) | Protocol::Http3(_) => None,
                Protocol::Http1 { index } => self.number(index),
            },
            Field::Http2(field) => self.http2(*field),
            Field::Http3(field) => self.http3(*field),
            Field::RequestBodyBytes => self.number(exchange.request_body_bytes),
            Field::ResponseHeaderBytes => self.number(exchange.sent.header_bytes),
            Field::Tls(field) => self.tls(*field),
            Field::CongestionController => {
                self.raw(&exchange.connection.transport.congestion_controller()?)
            }
            Field::DeliveryRate => self.number(exchange.connection.transport.delivery_rate()?),
        }
    }

    /// Writes text that a peer or a script may have chosen, so it is escaped.
    fn text(&mut self, text: &[u8]) -> Option<()> {
        self.format.escape.write(text, self.out);
        Some(())
    }

    fn unless_empty(&mut self, text: &[u8]) -> Option<()> {
        if text.is_empty() {
            return None;
        }
        self.text(text)
    }

    fn raw(&mut self, text: &str) -> Option<()> {
        self.bytes(text.as_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.extend_from_slice(bytes);
        Some(())
    }

    fn number(&mut self, number: impl itoa::Integer) -> Option<()> {
        self.raw(itoa::Buffer::new().format(number))
    }

    fn address(&mut self, end: ConnectionEnd) -> Option<()> {
        match self.socket(end)? {
            Address::Unix => self.raw("localhost"),
            Address::Ip(SocketAddr::V4(address)) => {
                // An IPv4 address is written without Rust's formatting machinery, which is slower: most log lines have
                // such an address.
                for (at, part) in address.ip().octets().into_iter().enumerate() {
                    if at > 0 {
                        self.out.push(b'.');
                    }
                    self.number(part)?;
                }
                Some(())
            }
            Address::Ip(SocketAddr::V6(address)) => write!(self.out, "{}", address.ip()).ok(),
        }
    }

    fn port(&mut self, end: ConnectionEnd) -> Option<()> {
        match self.socket(end)? {
            Address::Unix => None,
            Address::Ip(address) => self.number(address.port()),
        }
    }

    fn socket(&self, end: ConnectionEnd) -> Option<Address> {
        match end {
            ConnectionEnd::Local => self.exchange.connection.transport.local_address(),
            ConnectionEnd::Remote => Some(self.exchange.client_address()),
        }
    }

    fn request_line(&mut self) -> Option<()> {
        let target = parsed(self.exchange)?;
        self.text(self.exchange.original_method().as_str().as_bytes());
        self.out.push(b' ');
        self.text(target);
        self.out.push(b' ');
        self.raw(self.exchange.request.version.as_str())
    }

    fn status(&mut self, stage: Stage) -> Option<()> {
        let sent = &self.exchange.sent;
        let status = match stage {
            Stage::First => sent.first_status.or(sent.status),
            Stage::Final => sent.status,
        };
        self.out.extend_from_slice(&status?.digits());
        Some(())
    }

    fn fraction(&mut self, unit: Unit) -> Option<()> {
        let at = wall_time(self.exchange);
        match unit {
            Unit::Seconds => None,
            Unit::Milliseconds => self.padded(at.subsec_millis(), 3),
            Unit::Microseconds => self.padded(at.subsec_micros(), 6),
        }
    }

    fn padded(&mut self, number: u32, width: usize) -> Option<()> {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number);
        let missing = width.saturating_sub(digits.len());
        self.out.resize(self.out.len() + missing, b'0');
        self.raw(digits)
    }

    fn response_header(&mut self, stage: Stage, name: &FieldName) -> Option<()> {
        let sent = &self.exchange.sent;
        let headers = match stage {
            // If a response passes no filters, its fields before and after the filters are one list.
            Stage::First => sent.unfiltered.as_ref().unwrap_or(&sent.headers),
            Stage::Final => &sent.headers,
        };
        let mut values = headers.get_all(name.as_name());
        self.text(values.next()?);
        if *name == FieldName::Known(Known::SetCookie) {
            for value in values {
                self.raw(", ");
                self.text(value);
            }
        }
        Some(())
    }

    /// Writes a duration in seconds: as an integer if it is exact, otherwise with six decimals.
    fn duration(&mut self, from: Moment, to: Moment) -> Option<()> {
        let from = moment(self.exchange, from)?;
        let duration = moment(self.exchange, to)?.saturating_duration_since(from);
        self.number(duration.as_secs());
        match duration.subsec_micros() {
            0 => Some(()),
            micros => {
                self.out.push(b'.');
                self.padded(micros, 6)
            }
        }
    }

    fn http2(&mut self, field: Http2Field) -> Option<()> {
        let stream = self.exchange.protocol.http2()?;
        let (received, actual) = (&stream.received, &stream.actual);
        match field {
            Http2Field::StreamId => self.number(stream.id),
            Http2Field::Received => {
                self.number(u8::from(received.exclusive));
                self.out.push(b':');
                self.parent_and_weight(received)
            }
            Http2Field::ReceivedExclusive => self.number(u8::from(received.exclusive)),
            Http2Field::ReceivedParent => self.number(received.parent),
            Http2Field::ReceivedWeight => self.number(received.weight),
            Http2Field::Actual => self.parent_and_weight(actual),
            Http2Field::ActualParent => self.number(actual.parent),
            Http2Field::ActualWeight => self.number(actual.weight),
        }
    }

    fn http3(&mut self, field: Http3Field) -> Option<()> {
        let stream = self.exchange.protocol.http3()?;
        let transport = &self.exchange.connection.transport;
        match field {
            Http3Field::StreamId => self.number(stream.id),
            Http3Field::QuicVersion => self.number(transport.quic_version()?),
            Http3Field::WasBlocked => self.number(u8::from(stream.was_blocked)),
            Http3Field::Received => self.number(stream.received),
            Http3Field::Sent => self.number(stream.sent),
            Http3Field::RequestHeaderBytes => self.number(stream.header_bytes),
            Http3Field::RequestHeaderTextBytes => {
                self.number(FieldTexts::of_request(self.exchange).bytes)
            }
            Http3Field::RequestHeaderCount => {
                self.number(FieldTexts::of_request(self.exchange).count)
            }
            Http3Field::ResponseHeaderTextBytes => {
                self.number(FieldTexts::of_response(self.exchange)?.bytes)
            }
            Http3Field::ResponseHeaderCount => {
                self.number(FieldTexts::of_response(self.exchange)?.count)
            }
            Http3Field::QuicStats => self.raw(&transport.quic_stats()?),
            Http3Field::Priority => {
                let incremental = if stream.priority.incremental {
                    ",i=?1"
                } else {
                    ""
                };
                self.raw(&format!("u={}{incremental}", stream.priority.urgency))
            }
        }
    }

    fn parent_and_weight(&mut self, priority: &StreamPriority) -> Option<()> {
        self.number(priority.parent);
        self.out.push(b':');
        self.number(priority.weight)
    }

    fn proxy_tls(&mut self, field: TlsField) -> Option<()> {
        let trace = self.exchange.forwarded.trace.as_ref();
        let is_connected = trace.is_some_and(|trace| trace.request_begun.get().is_some());
        let tls = trace.map(|trace| trace.tls.borrow());
        match (tls.as_ref().and_then(|tls| tls.as_ref()), field) {
            (Some(tls), field) => self.tls_parameter(tls, field),
            // H2O compatibility: H2O logs `1` for a connection without TLS.
            (None, TlsField::Resumed) => self.raw(if is_connected { "1" } else { "0" }),
            (None, _) => None,
        }
    }

    fn tls(&mut self, field: TlsField) -> Option<()> {
        let exchange = self.exchange;
        let tls = exchange.connection.tls.as_ref()?;
        self.tls_parameter(tls, field)
    }

    fn tls_parameter(&mut self, tls: &TlsInfo, field: TlsField) -> Option<()> {
        match field {
            TlsField::Protocol => self.raw(tls.protocol),
            TlsField::Resumed => self.raw(if tls.resumed { "1" } else { "0" }),
            TlsField::SessionId => self.raw(tls.session_id.as_ref()?),
            TlsField::Cipher => self.raw(tls.cipher),
            TlsField::CipherBits => self.number(tls.cipher_bits),
            TlsField::ServerName => self.text(tls.server_name.as_ref()?.as_bytes()),
            TlsField::Alpn => self.raw(tls.alpn?),
            TlsField::Backend => self.raw("rustls"),
        }
    }
}

/// The target of the request as received, unless the request head was too malformed to have one. Only CONNECT has no
/// path: its target is an authority (RFC 9110 §7.1).
fn parsed(exchange: &Exchange) -> Option<&[u8]> {
    match exchange.original_target() {
        b"" if *exchange.original_method() == Method::Connect => {
            Some(exchange.original_authority())
        }
        b"" => None,
        target => Some(target),
    }
}

fn path_and_query(target: &[u8]) -> (&[u8], &[u8]) {
    let at = h2o_http::path::query_at(target).unwrap_or(target.len());
    target.split_at(at)
}

fn host_name(exchange: &Exchange) -> &[u8] {
    exchange.site.host(exchange.route).authority.as_bytes()
}

/// The header fields of the client's request, even if an internal redirect has run the request again without them or
/// without the credentials among them.
fn request_headers(exchange: &Exchange) -> &Headers {
    exchange
        .saved_headers
        .as_ref()
        .unwrap_or(&exchange.request.headers)
}

/// The fields of a message with its pseudo-header fields, as text.
#[derive(Clone, Copy, Default)]
struct FieldTexts {
    count: u64,
    /// Sum of the lengths of the names and values.
    bytes: u64,
}

impl FieldTexts {
    fn of<'a>(pseudo: impl IntoIterator<Item = (&'a str, usize)>, headers: &'a Headers) -> Self {
        let fields = headers.iter();
        let fields = fields.map(|field| (field.name.as_str(), field.value.len()));
        let mut sum = Self::default();
        for (name, value_len) in pseudo.into_iter().chain(fields) {
            sum.count += 1;
            sum.bytes += (name.len() + value_len) as u64;
        }
        sum
    }

    /// The fields of the client's request. CONNECT has no scheme and no path (RFC 9114 §4.4).
    fn of_request(exchange: &Exchange) -> Self {
        let scheme = exchange.original_scheme().as_str();
        let method = exchange.original_method();
        let has_path = *method != Method::Connect;
        let pseudo = [
            (":method", method.as_str().len()),
            (":authority", exchange.original_authority().len()),
            (":scheme", scheme.len()),
            (":path", exchange.original_target().len()),
        ];
        let sent = pseudo.into_iter().filter(|(name, len)| match *name {
            ":scheme" | ":path" => has_path,
            _ => *len > 0,
        });
        Self::of(sent, request_headers(exchange))
    }

    /// The fields of the response as sent; `None` if there was no response.
    fn of_response(exchange: &Exchange) -> Option<Self> {
        let status = exchange.sent.status?;
        let pseudo = [(":status", status.digits().len())];
        Some(Self::of(pseudo, &exchange.sent.headers))
    }
}

/// The wall-clock time at which the request was passed to the handlers or, if that did not happen, at which it began.
fn wall_time(exchange: &Exchange) -> Duration {
    let timings = &exchange.timings;
    if timings.processed.is_some() {
        return timings.processed_at;
    }
    let clock = &exchange.worker.clock;
    let age = clock.now().saturating_duration_since(timings.begun);
    clock.unix().saturating_sub(age)
}

fn whole(time: Duration, unit: Unit) -> u128 {
    match unit {
        Unit::Seconds => time.as_secs().into(),
        Unit::Milliseconds => time.as_millis(),
        Unit::Microseconds => time.as_micros(),
    }
}

fn moment(exchange: &Exchange, moment: Moment) -> Option<Instant> {
    let timings = &exchange.timings;
    let trace = exchange.forwarded.trace.as_ref();
    match moment {
        Moment::Accepted => Some(exchange.connection.accepted),
        Moment::Begun => Some(timings.begun),
        Moment::Head => timings.head,
        Moment::Processed => timings.processed,
        Moment::ResponseStart => timings.response_start,
        Moment::ResponseEnd => timings.response_end,
        Moment::ProxyStarted => trace?.started.get(),
        Moment::ProxyRequestBegun => trace?.request_begun.get(),
        Moment::ProxyRequestEnded => trace?.request_ended.get(),
        Moment::ProxyResponseBegun => trace?.response_begun.get(),
        Moment::ProxyResponseEnded => trace?.response_ended.get(),
    }
}

fn bytes(exchange: &Exchange, counted: ProxyBytes) -> u64 {
    let Some(trace) = &exchange.forwarded.trace else {
        return 0;
    };
    let (sent, sent_head) = (trace.sent.get(), trace.sent_head.get());
    let (received, received_head) = (trace.received.get(), trace.received_head.get());
    match counted {
        ProxyBytes::Request => sent,
        ProxyBytes::RequestHeader => sent_head.min(sent),
        ProxyBytes::RequestBody => sent.saturating_sub(sent_head),
        ProxyBytes::Response => received,
        ProxyBytes::ResponseHeader => received_head,
        ProxyBytes::ResponseBody => received.saturating_sub(received_head),
    }
}
