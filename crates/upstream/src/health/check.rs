//! Active health checks: at an interval, a request is sent to every backend that is to be checked.

use std::any::Any;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use h2o_exchange::{BackgroundService, RequestBody, TimedOut, Worker};
use h2o_http::{BodyLength, ClientResponse, Headers, Method, RequestHead, StatusCode};
use h2o_http1::{ClientConnection, ClientReceived, ClientRequest};
use h2o_log::report;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;

use crate::connect::{BOTH, ConnectDetails, connect_to, is_http2, secure};
use crate::stream::UpstreamStream;
use crate::{
    BackendHost, BackendUrl, Failure, HealthCheck, Upstream, UpstreamSettings, fastcgi, http2,
};

const USER_AGENT: &[u8] = b"h2o health check";

/// Limit in bytes of what is read of the response to a check: enough for most backends to finish sending.
const MAX_READ: usize = 64 * 1024;
/// How long the rest of a response to a check is read after its head.
const LINGER: Duration = Duration::from_secs(1);

/// The upstreams with active health checks, of one configuration.
#[derive(Default)]
pub struct HealthChecks(Mutex<Vec<Arc<Upstream>>>);

impl HealthChecks {
    /// Adds the backends of `upstream` that have active health checks.
    pub fn add(&self, upstream: &Arc<Upstream>) {
        self.upstreams().push(Arc::clone(upstream));
    }

    fn start(&self) -> io::Result<RunningChecks> {
        let upstreams = self.upstreams().clone();
        let (stop, is_stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("health".to_owned());
        let thread = thread.spawn(move || run(&upstreams, is_stopped))?;
        Ok(RunningChecks {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    fn upstreams(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Upstream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackgroundService for HealthChecks {
    /// Starts the checks of all backends, on one thread.
    fn begin(&self) -> Result<Box<dyn Any + Send>, String> {
        match self.start() {
            Ok(running) => Ok(Box::new(running)),
            Err(error) => Err(format!(
                "failed to start health checks of backends: {error}"
            )),
        }
    }

    /// Whether this configuration and the running one check the same upstreams.
    fn is_same_as(&self, running: &dyn BackgroundService) -> bool {
        let Some(running) = running.as_any().downcast_ref::<Self>() else {
            return false;
        };
        if std::ptr::eq(self, running) {
            return true;
        }
        let (ours, theirs) = (self.upstreams(), running.upstreams());
        ours.len() == theirs.len()
            && (ours.iter()).all(|ours| theirs.iter().any(|theirs| Arc::ptr_eq(ours, theirs)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The thread that runs the checks; dropping this stops it.
struct RunningChecks {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningChecks {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, the panic hook has reported it.
            let _ = thread.join();
        }
    }
}

fn run(upstreams: &[Arc<Upstream>], is_stopped: oneshot::Receiver<()>) {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            report!(
                error,
                "health checks of backends are off, failed to start them: {error}"
            );
            return;
        }
    };
    runtime.block_on(async {
        let worker = Worker::new(0, Arc::default(), Arc::default());
        for upstream in upstreams {
            for (backend, check) in upstream.checks() {
                let upstream = Arc::clone(upstream);
                let task = watch(upstream, backend, check.clone(), Rc::clone(&worker));
                worker.spawn(task);
            }
        }
        // No value is ever sent over this channel: the call waits until the sender is dropped.
        let _ = worker.run(is_stopped).await;
    });
}

/// Checks one backend until the task is dropped.
async fn watch(upstream: Arc<Upstream>, backend: usize, check: HealthCheck, worker: Rc<Worker>) {
    let Some(health) = &upstream.health else {
        return;
    };
    // The first check is at a random time, so that backends are not checked all at once, nor in step with other servers.
    worker.sleep(check.interval.mul_f64(fastrand::f64())).await;
    loop {
        let asked = ask(&upstream, backend, &check, &worker);
        let asked = worker.timeout(check.timeout, asked).await;
        let result = match &asked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(text)) => Err(&**text),
            Err(TimedOut) => Err("health check timed out"),
        };
        health.on_check(backend, result, worker.clock.now());
        let pause = check.interval.mul_f64(0.9 + 0.2 * fastrand::f64());
        worker.sleep(pause).await;
    }
}

/// Sends one check to a backend.
///
/// # Errors
/// Why the backend is unhealthy.
async fn ask(
    upstream: &Upstream,
    backend: usize,
    check: &HealthCheck,
    worker: &Rc<Worker>,
) -> Result<(), String> {
    let url = &upstream.backends[backend].url;
    let alpn = if upstream.may_use_http2() { BOTH } else { &[] };
    let socket = connect_to(worker, upstream, url, &mut ConnectDetails::default()).await?;
    let secured = secure(upstream, url, alpn, socket, &Rc::default()).await;
    let stream = secured.map_err(text_of)?;
    let status = if let Some(target) = &upstream.settings.fastcgi {
        fastcgi::ask(stream, target, host(url, check), &check.path, USER_AGENT).await
    } else if is_http2(upstream, &stream).map_err(text_of)? {
        ask_http2(upstream, url, check, stream, worker).await
    } else {
        ask_http1(upstream, url, check, stream, worker).await
    };
    let status = status.map_err(text_of)?.as_u16();
    if (200..400).contains(&status) {
        Ok(())
    } else {
        Err(format!("health check got status {status}"))
    }
}

fn text_of(failure: Failure) -> String {
    failure.text.into_owned()
}

/// The value of the `host` field of a check. The path of a Unix socket, which proxied requests use as host, means nothing to most
/// servers.
fn host<'a>(url: &'a BackendUrl, check: &'a HealthCheck) -> &'a str {
    match (&check.host, &url.host) {
        (Some(host), _) => host,
        (None, BackendHost::Unix(_)) => "localhost",
        (None, _) => &url.authority,
    }
}

async fn ask_http1(
    upstream: &Upstream,
    url: &BackendUrl,
    check: &HealthCheck,
    mut stream: UpstreamStream,
    worker: &Rc<Worker>,
) -> Result<StatusCode, Failure> {
    let mut out = Vec::new();
    if upstream.settings.proxy_protocol {
        // A check is not made for a client, so the PROXY header has no addresses.
        out.extend_from_slice(b"PROXY UNKNOWN\r\n");
    }
    let mut engine = ClientConnection::new(Arc::default());
    let mut headers = Headers::default();
    headers.push(h2o_http::Known::UserAgent, USER_AGENT);
    let request = ClientRequest {
        method: &Method::Get,
        target: check.path.as_bytes(),
        host: host(url, check).as_bytes(),
        headers: &headers,
        body: BodyLength::None,
        keep_alive: false,
        upgrade: None,
        expects_continue: false,
    };
    engine.send_request(&request, &mut out);
    engine.finish(None, &mut out);
    let lost = |_| Failure::sent(Failure::IO);
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut response = ClientResponse::new();
    let mut input = Vec::new();
    loop {
        let received = engine.receive(&input, &mut response);
        match received.map_err(Failure::from_http1)? {
            ClientReceived::Interim { taken } => {
                input.drain(..taken);
            }
            ClientReceived::NeedMore { taken } => {
                input.drain(..taken);
                if stream.read_buf(&mut input).await.map_err(lost)? == 0 {
                    return Err(Failure::sent(Failure::IO));
                }
            }
            ClientReceived::Response { .. }
            | ClientReceived::Data { .. }
            | ClientReceived::BodyEnd { .. } => break,
        }
    }
    // The rest of the response is read in the background: a backend whose response is cut off would log an error.
    let rest = Rc::clone(worker);
    worker.spawn(async move { rest.timeout(LINGER, read_rest(stream)).await });
    Ok(response.status)
}

async fn read_rest(stream: UpstreamStream) {
    let mut rest = stream.take(MAX_READ as u64);
    let mut scratch = vec![0; 4096];
    while let Ok(1..) = rest.read(&mut scratch).await {}
}

async fn ask_http2(
    upstream: &Upstream,
    url: &BackendUrl,
    check: &HealthCheck,
    stream: UpstreamStream,
    worker: &Worker,
) -> Result<StatusCode, Failure> {
    let settings = UpstreamSettings {
        // Connections for checks are closed after the check.
        keepalive: Duration::ZERO,
        io_timeout: check.timeout,
        ..upstream.settings.clone()
    };
    let scratch = http2::Scratch::default();
    let connection = http2::open(worker, &settings, 0, stream, &scratch);
    let mut head = RequestHead::default();
    head.method = Method::Get;
    head.scheme = url.scheme;
    let target = head.headers.store(check.path.as_bytes());
    head.set_target(target);
    let authority = head.headers.store(host(url, check).as_bytes());
    head.set_authority(authority);
    (head.headers).push(h2o_http::Known::UserAgent, USER_AGENT);
    let request = connection.request(&head, RequestBody::None, false, Headers::default())?;
    Ok(request.response(&mut None, None).await?.status)
}
