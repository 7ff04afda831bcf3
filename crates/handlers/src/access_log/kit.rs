//! Exchanges for the tests of access logs.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::{
    Address, ConnectionInfo, ConnectionLimits, Counters, Descriptors, Exchange, Host, LocalSite,
    PathRoute, Protocol, Shared, Site, TlsInfo, Transport, Worker,
};
use h2o_http::{Known, Method, Name, StatusCode};

/// The wall-clock time of the test's requests: 2006-01-02 22:04:05.007089 UTC.
pub(crate) const WALL: Duration = Duration::from_micros(1_136_239_445_007_089);

/// The state shared by workers in tests.
pub(crate) fn shared() -> Shared {
    let descriptors = Descriptors::default();
    (0..3).for_each(|_| descriptors.begin_client());
    Shared {
        started: WALL,
        generation: None,
        descriptors: Arc::new(descriptors),
        limits: ConnectionLimits::new(1024, 2_147_483_647, Duration::from_secs(30)),
        listeners: 2.into(),
        ..Shared::default()
    }
}

pub(crate) fn worker(index: usize, shared: &Arc<Shared>) -> Rc<Worker> {
    Worker::new(index, Arc::new(Counters::default()), Arc::clone(shared))
}

struct Socket(Address);

impl Transport for Socket {
    fn local_address(&self) -> Option<Address> {
        Some(self.0)
    }
    fn congestion_controller(&self) -> Option<String> {
        matches!(self.0, Address::Ip(_)).then(|| "cubic".to_owned())
    }
    fn delivery_rate(&self) -> Option<u64> {
        matches!(self.0, Address::Ip(_)).then_some(123_456)
    }
}

fn ip(text: &str) -> Address {
    Address::Ip(
        text.parse::<SocketAddr>()
            .expect("the test gives a socket address"),
    )
}

/// A client's connection over TLS.
pub(crate) fn tls_connection(worker: &Worker) -> ConnectionInfo {
    ConnectionInfo {
        id: 17,
        peer: ip("192.0.2.1:54321"),
        accepted: worker.clock.now(),
        tls: Some(Box::new(TlsInfo {
            protocol: "TLSv1.3",
            cipher: "TLS_AES_256_GCM_SHA384",
            cipher_bits: 256,
            server_name: Some("sni.example".into()),
            alpn: Some("http/1.1"),
            resumed: true,
            client_authority: None,
            session_id: Some("c2Vzc2lvbg".into()),
        })),
        transport: Rc::new(Socket(ip("[2001:db8::1]:443"))),
        listener: Rc::default(),
    }
}

/// A client's connection over a Unix socket.
pub(crate) fn unix_connection(worker: &Worker) -> ConnectionInfo {
    ConnectionInfo {
        id: 18,
        peer: Address::Unix,
        accepted: worker.clock.now(),
        tls: None,
        transport: Rc::new(Socket(Address::Unix)),
        listener: Rc::default(),
    }
}

/// A site configuration with one host.
pub(crate) fn site() -> Rc<LocalSite> {
    let host = Host {
        authority: "www.example:8443".into(),
        paths: vec![PathRoute::default()],
        ..Host::default()
    };
    let site = Site {
        hosts: vec![host],
        ..Site::default()
    };
    Rc::new(LocalSite(Arc::new(site)))
}

/// An exchange on a Unix socket that has begun, but of whose request nothing was received.
pub(crate) fn begun(worker: &Rc<Worker>) -> Exchange {
    let connection = Rc::new(unix_connection(worker));
    let mut exchange = Exchange::new(Rc::clone(worker), site(), connection);
    exchange.route = exchange.site.select_path(0, b"/");
    exchange
}

/// Fills the request line of an exchange in.
pub(crate) fn ask(exchange: &mut Exchange, method: &str, authority: &str, target: &str) {
    let request = &mut exchange.request;
    request.method =
        Method::from_token(method.as_bytes()).expect("the method in the test is a token");
    let span = request.headers.store(authority.as_bytes());
    request.set_authority(span);
    let span = request.headers.store(target.as_bytes());
    request.set_target(span);
}

/// An exchange over TLS whose response was sent, with values for most of the specifiers of access-log formats.
pub(crate) fn complete(worker: &Rc<Worker>) -> Exchange {
    let mut exchange = begun(worker);
    let connection = tls_connection(worker);
    let at = |micros| Some(connection.accepted + Duration::from_micros(micros));
    let timings = &mut exchange.timings;
    timings.begun = connection.accepted + Duration::from_secs(2);
    timings.head = at(2_000_069);
    timings.processed = at(2_000_069);
    timings.processed_at = WALL;
    timings.response_start = at(2_500_000);
    timings.response_end = at(5_000_000);
    exchange.connection = Rc::new(connection);
    ask(
        &mut exchange,
        "POST",
        "WWW.example:8443",
        "/a%20b/../c?q=1&r=?",
    );
    let headers = &mut exchange.request.headers;
    headers.push(Known::Referer, b"https://example.org/");
    headers.push(Known::UserAgent, b"curl/8.0 (x; y)");
    headers.push(Name::Other("x-a"), b"first");
    headers.push(Name::Other("x-a"), b"second");
    let upgrade = headers.store(b"websocket");
    exchange.request.set_upgrade(upgrade);
    exchange
        .env
        .push(("Color".into(), Arc::from(&b"\"raw\""[..])));
    exchange
        .env
        .push(("REMOTE_USER".into(), Arc::from(&b"alice"[..])));
    exchange.errors.push_str("first;second");
    exchange.protocol = Protocol::Http1 { index: 4 };
    exchange.request_body_bytes = 11;
    let sent = &mut exchange.sent;
    sent.status = Some(StatusCode::NOT_FOUND);
    sent.first_status = Some(StatusCode::OK);
    sent.header_bytes = 321;
    sent.body_bytes = 1234;
    sent.headers.push(Known::ContentType, b"text/html");
    sent.headers.push(Known::SetCookie, b"a=1");
    sent.headers.push(Known::SetCookie, b"b=2");
    let mut unfiltered = h2o_http::Headers::new();
    unfiltered.push(Known::ContentType, b"text/plain");
    sent.unfiltered = Some(unfiltered);
    exchange
}
