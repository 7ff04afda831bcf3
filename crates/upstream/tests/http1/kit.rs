//! HTTP/1 backends that are scripted byte for byte, and a worker that sends requests to them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{
    Address, Body, BodyError, BodySource, ConnectionInfo, RequestBody, Trace, Transport, Worker,
};
use h2o_http::{BodyLength, Headers, Method, RequestHead, StatusCode};
pub(crate) use h2o_testkit::{pass, settle, until};
use h2o_tls::{TlsClient, TlsClientSettings};
use h2o_upstream::{
    BackendUrl, Balancing, Call, Failure, NameOrigin, Protocol, Reply, Upstream, UpstreamSettings,
};

/// A time that is longer than anything in these tests should take.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// The backend's end of a connection, for use in a script.
pub(crate) struct Peer(pub(crate) TcpStream);

impl Peer {
    /// Reads the head of a request; empty at the end of the connection.
    pub(crate) fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => break,
            }
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads this number of bytes.
    pub(crate) fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads all bytes up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset of the connection counts as its end.
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }

    pub(crate) fn send(&mut self, text: impl AsRef<[u8]>) {
        // The result is ignored: if the worker has closed the connection, the result of the test's request shows that.
        let _ = self.0.write_all(text.as_ref());
    }
}

/// Starts a backend that runs `script` on a thread for each connection. The script gets the number of the connection, counted from
/// 0.
pub(crate) fn backend(script: impl Fn(usize, Peer) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let script = Arc::new(script);
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let script = Arc::clone(&script);
            std::thread::spawn(move || script(index, Peer(stream)));
        }
    });
    address
}

/// Starts a backend that gives the same response to every request without body, and records the heads of requests.
pub(crate) fn answering(
    answer: impl Into<Vec<u8>>,
) -> (SocketAddr, mpsc::Receiver<(usize, String)>) {
    let answer = answer.into();
    let (sender, heads) = mpsc::channel();
    let address = backend(move |index, mut peer| {
        loop {
            let head = peer.head();
            if head.is_empty() {
                return;
            }
            sender.send((index, head)).unwrap();
            peer.send(&answer);
        }
    });
    (address, heads)
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(crate) fn settings() -> UpstreamSettings {
    let tls = TlsClientSettings {
        verify_peer: false,
        ca_file: None,
        session_cache: None,
    };
    UpstreamSettings {
        connect_timeout: LONG,
        first_byte_timeout: LONG,
        io_timeout: LONG,
        keepalive: Duration::from_secs(2),
        max_buffer_size: None,
        max_temp_file_size: 1 << 30,
        zerocopy: true,
        proxy_protocol: false,
        http2_ratio: Some(0),
        http3_ratio: 0,
        fastcgi: None,
        http3_ecn: true,
        http2_force_cleartext: false,
        http2_max_streams: 100,
        name_origin: NameOrigin::Configured,
        tls: TlsClient::new(tls).unwrap(),
    }
}

pub(crate) fn upstream(addresses: &[SocketAddr], settings: UpstreamSettings) -> Arc<Upstream> {
    let urls: Vec<_> = addresses.iter().map(|at| format!("http://{at}/")).collect();
    balanced(
        &urls.iter().map(|url| (&**url, 1)).collect::<Vec<_>>(),
        Balancing::RoundRobin,
        settings,
    )
}

pub(crate) fn balanced(
    urls: &[(&str, u32)],
    balancing: Balancing,
    settings: UpstreamSettings,
) -> Arc<Upstream> {
    let urls = urls
        .iter()
        .map(|(url, weight)| (BackendUrl::parse(url).unwrap(), *weight));
    Upstream::new(urls.collect(), balancing, settings)
}

struct Loopback;

impl Transport for Loopback {
    fn local_address(&self) -> Option<Address> {
        Some(Address::Ip(([192, 0, 2, 1], 80).into()))
    }
    fn congestion_controller(&self) -> Option<String> {
        None
    }
    fn delivery_rate(&self) -> Option<u64> {
        None
    }
}

fn worker() -> Rc<Worker> {
    Worker::new(0, Arc::default(), Arc::default())
}

/// Runs a test on a worker.
pub(crate) fn on_worker<F: Future>(test: impl FnOnce(Rc<Worker>) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let worker = worker();
        let test = tokio::time::timeout(LONG, test(Rc::clone(&worker)));
        worker
            .run(test)
            .await
            .expect("the test ends within its time limit")
    })
}

/// Runs a test on a worker with a clock that only the test advances.
pub(crate) fn on_standing_clock<F: Future>(test: impl FnOnce(Rc<Worker>) -> F) -> F::Output {
    h2o_testkit::on_standing_clock(async {
        let worker = worker();
        worker.run(test(Rc::clone(&worker))).await
    })
}

/// A request that a test sends.
pub(crate) struct TestRequest {
    pub(crate) method: Method,
    pub(crate) fields: &'static [(&'static str, &'static str)],
    pub(crate) length: BodyLength,
    pub(crate) body: RequestBody,
    pub(crate) upgrade: &'static str,
    pub(crate) waits_for_content: bool,
    pub(crate) expects_continue: bool,
    pub(crate) trace: Option<Rc<Trace>>,
}

pub(crate) const GET: TestRequest = TestRequest {
    method: Method::Get,
    fields: &[],
    length: BodyLength::None,
    body: RequestBody::None,
    upgrade: "",
    waits_for_content: false,
    expects_continue: false,
    trace: None,
};

/// A POST request with this body.
pub(crate) fn post(content: impl Into<Bytes>) -> TestRequest {
    let content = content.into();
    TestRequest {
        method: Method::Post,
        length: BodyLength::Known(content.len() as u64),
        body: RequestBody::Bytes(content),
        ..GET
    }
}

/// The interim responses received: status and fields of each.
pub(crate) type InterimResponses = RefCell<Vec<(u16, String)>>;

pub(crate) async fn send(
    worker: &Rc<Worker>,
    upstream: &Arc<Upstream>,
    ask: TestRequest,
) -> Result<Reply, Failure> {
    send_and_tell(worker, upstream, ask, &InterimResponses::default()).await
}

pub(crate) async fn send_and_tell(
    worker: &Rc<Worker>,
    upstream: &Arc<Upstream>,
    ask: TestRequest,
    told: &InterimResponses,
) -> Result<Reply, Failure> {
    let client = ConnectionInfo {
        id: 1,
        peer: Address::Ip(([192, 0, 2, 7], 4000).into()),
        accepted: worker.clock.now(),
        tls: None,
        transport: Rc::new(Loopback),
        listener: Rc::default(),
    };
    let mut build = |url: &BackendUrl, protocol: Protocol, head: &mut RequestHead| {
        assert_eq!(protocol, Protocol::Http1);
        head.method = ask.method.clone();
        head.body = ask.length;
        for (name, value) in ask.fields {
            head.headers
                .push(h2o_http::Name::from_lower(name), value.as_bytes());
        }
        let target = head.headers.store(b"/path?query");
        head.set_target(target);
        let authority = head.headers.store(url.authority.as_bytes());
        head.set_authority(authority);
        let upgrade = head.headers.store(ask.upgrade.as_bytes());
        head.set_upgrade(upgrade);
    };
    let mut on_informational = |status: StatusCode, headers: &Headers| {
        told.borrow_mut().push((status.as_u16(), text(headers)));
    };
    let call = Call {
        worker,
        client_address: None,
        client: Rc::new(client),
        build: &mut build,
        fastcgi: None,
        body: ask.body,
        waits_for_content: ask.waits_for_content,
        ends_with_upload: false,
        closes_connection: false,
        needs_http1: false,
        expects_continue: ask.expects_continue,
        on_informational: Some(&mut on_informational),
        trace: ask.trace,
        headers: Headers::new(),
    };
    let sending = upstream.send(call);
    // The future that sends a request is moved for every request, so it must be small.
    assert!(size_of_val(&sending) <= 1312, "{}", size_of_val(&sending));
    sending.await
}

/// Writes fields as text, one line each.
pub(crate) fn text(headers: &Headers) -> String {
    let lines = headers.iter().map(|field| {
        let value = String::from_utf8_lossy(field.value);
        format!("{}: {value}\n", field.name.as_str())
    });
    lines.collect()
}

/// Waits for the next piece of a body.
pub(crate) async fn next(source: &mut Box<dyn BodySource>) -> Option<Result<Bytes, String>> {
    let piece = poll_fn(|context| source.poll_next(context, 48 * 1024)).await;
    piece.map(|piece| {
        piece.map_err(|error| match error {
            BodyError::Failed(text) | BodyError::Reported(text) => text,
            BodyError::Local(error) => panic!("{error}"),
        })
    })
}

/// Reads a body. Returns it, and how it ended.
pub(crate) async fn content(body: Body) -> (Vec<u8>, Result<(), String>) {
    let mut source = match body {
        Body::Empty => return (Vec::new(), Ok(())),
        Body::Bytes(bytes) => return (bytes.to_vec(), Ok(())),
        Body::File(_) => panic!("a backend's response is no file"),
        Body::Stream(source) => source,
    };
    let mut all = Vec::new();
    while let Some(piece) = next(&mut source).await {
        match piece {
            Ok(piece) => all.extend_from_slice(&piece),
            Err(text) => return (all, Err(text)),
        }
    }
    (all, Ok(()))
}

/// Sends a request and reads the body: `STATUS BODY`, followed by `!` and the error, if any.
pub(crate) async fn ask(worker: &Rc<Worker>, upstream: &Arc<Upstream>, ask: TestRequest) -> String {
    match send(worker, upstream, ask).await {
        Err(failure) => failure.text.into_owned(),
        Ok(reply) => {
            let status = reply.status.as_u16();
            let (content, end) = content(reply.body).await;
            let content = String::from_utf8_lossy(&content).into_owned();
            match end {
                Ok(()) => format!("{status} {content}"),
                Err(text) => format!("{status} {content}!{text}"),
            }
        }
    }
}
