//! HTTP/2 backends in a program written in Go, and requests as a worker sends them.

use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use h2o_exchange::{Address, Body, BodySource, ConnectionInfo, NoTransport, RequestBody, Worker};
use h2o_http::{BodyLength, Headers, Known, Method, RequestHead, StatusCode};
use h2o_tls::{TlsClient, TlsClientSettings};
use h2o_upstream::{
    BackendUrl, Balancing, Call, Failure, NameOrigin, Protocol, Reply, Upstream, UpstreamSettings,
};

/// A time that is longer than anything in these tests should take.
const LONG: Duration = Duration::from_secs(60);

/// The path of the backend program, which is built once per run of the tests.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("http2-backend");
        let status = Command::new("go")
            .args(["build", "-o"])
            .arg(&path)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/http2/backend.go"
            ))
            .status()
            .expect("Go is installed");
        assert!(status.success());
        path
    })
}

/// The running backends.
pub(crate) struct Backends {
    program: Child,
    ports: Vec<u16>,
}

impl Backends {
    pub(crate) fn start() -> Self {
        let mut program = Command::new(program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let ports = lines
            .take(4)
            .map(|line| line.unwrap().parse().unwrap())
            .collect();
        Self { program, ports }
    }

    /// The URL of the backend that speaks HTTP/2 over clear text.
    pub(crate) fn clear(&self) -> String {
        format!("http://127.0.0.1:{}/", self.ports[0])
    }

    /// The URL of the backend that speaks HTTP/2 and HTTP/1 over TLS.
    pub(crate) fn both(&self) -> String {
        format!("https://127.0.0.1:{}/", self.ports[1])
    }

    /// The URL of the backend that speaks HTTP/2 over clear text and allows five streams per connection.
    pub(crate) fn narrow(&self) -> String {
        format!("http://127.0.0.1:{}/", self.ports[3])
    }

    /// The URL of the backend that speaks HTTP/1 over TLS.
    pub(crate) fn http1(&self) -> String {
        format!("https://127.0.0.1:{}/", self.ports[2])
    }
}

impl Drop for Backends {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Settings of an upstream without any for HTTP/2.
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
        keepalive: LONG,
        max_buffer_size: None,
        max_temp_file_size: 1 << 30,
        zerocopy: true,
        proxy_protocol: false,
        http2_ratio: None,
        http3_ratio: 0,
        fastcgi: None,
        http3_ecn: true,
        http2_force_cleartext: false,
        http2_max_streams: 100,
        name_origin: NameOrigin::Configured,
        tls: TlsClient::new(tls).unwrap(),
    }
}

/// Settings of an upstream for HTTP/2 over clear text, with prior knowledge.
pub(crate) fn cleartext() -> UpstreamSettings {
    UpstreamSettings {
        http2_ratio: Some(100),
        http2_force_cleartext: true,
        ..settings()
    }
}

pub(crate) fn upstream(url: &str, settings: UpstreamSettings) -> Arc<Upstream> {
    let backend = (BackendUrl::parse(url).unwrap(), 1);
    Upstream::new(vec![backend], Balancing::RoundRobin, settings)
}

/// Runs a test on a worker.
pub(crate) fn on_worker<F: Future>(test: impl FnOnce(Rc<Worker>) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let worker = Worker::new(0, Arc::default(), Arc::default());
        let test = tokio::time::timeout(LONG, test(Rc::clone(&worker)));
        worker
            .run(test)
            .await
            .expect("the test ends within its time limit")
    })
}

/// A request that a test sends.
pub(crate) struct TestRequest {
    pub(crate) method: Method,
    pub(crate) target: &'static str,
    pub(crate) length: BodyLength,
    pub(crate) body: RequestBody,
    pub(crate) needs_http1: bool,
    pub(crate) ends_with_upload: bool,
}

pub(crate) fn get(target: &'static str) -> TestRequest {
    TestRequest {
        method: Method::Get,
        target,
        length: BodyLength::None,
        body: RequestBody::None,
        needs_http1: false,
        ends_with_upload: false,
    }
}

/// A POST request with this body.
pub(crate) fn post(target: &'static str, content: Bytes) -> TestRequest {
    TestRequest {
        method: Method::Post,
        length: BodyLength::Known(content.len() as u64),
        body: RequestBody::Bytes(content),
        ..get(target)
    }
}

pub(crate) async fn send(
    worker: &Rc<Worker>,
    upstream: &Arc<Upstream>,
    ask: TestRequest,
) -> Result<Reply, Failure> {
    send_and_tell(worker, upstream, ask).await.1
}

/// Sends a request. Returns the reply, and the statuses of the interim responses.
pub(crate) async fn send_and_tell(
    worker: &Rc<Worker>,
    upstream: &Arc<Upstream>,
    ask: TestRequest,
) -> (Vec<u16>, Result<Reply, Failure>) {
    let client = ConnectionInfo {
        id: 1,
        peer: Address::Unix,
        accepted: worker.clock.now(),
        tls: None,
        transport: Rc::new(NoTransport),
        listener: Rc::default(),
    };
    let mut told = Vec::new();
    let mut build = |url: &BackendUrl, protocol: Protocol, head: &mut RequestHead| {
        head.method = ask.method.clone();
        head.body = ask.length;
        head.scheme = url.scheme;
        if protocol == Protocol::Http2 {
            head.headers.push(Known::Te, b"trailers");
        }
        let target = head.headers.store(ask.target.as_bytes());
        head.set_target(target);
        let authority = head.headers.store(url.authority.as_bytes());
        head.set_authority(authority);
    };
    let mut on_informational = |status: StatusCode, _: &Headers| told.push(status.as_u16());
    let call = Call {
        worker,
        client_address: None,
        client: Rc::new(client),
        build: &mut build,
        fastcgi: None,
        body: ask.body,
        waits_for_content: true,
        ends_with_upload: ask.ends_with_upload,
        closes_connection: false,
        needs_http1: ask.needs_http1,
        expects_continue: false,
        on_informational: Some(&mut on_informational),
        headers: Headers::new(),
        trace: None,
    };
    let result = upstream.send(call).await;
    (told, result)
}

/// Reads a stream to its end.
pub(crate) async fn drain(source: &mut Box<dyn BodySource>) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(piece) = poll_fn(|task| source.poll_next(task, 16_384)).await {
        all.extend_from_slice(&piece.map_err(|error| error.to_string())?);
    }
    Ok(all)
}

/// Reads a body to its end.
pub(crate) async fn content(body: Body) -> Result<Vec<u8>, String> {
    drain(&mut body.into_source()).await
}

pub(crate) async fn text(body: Body) -> String {
    String::from_utf8(content(body).await.unwrap()).unwrap()
}
