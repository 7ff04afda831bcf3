//! Cost of what a request meets between its head and its response: the handler, the filters, the log line.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::fs::File;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use h2o_config::Memory;
use h2o_exchange::{
    Address, ConnectionInfo, Exchange, ExchangeRef, Filtered, LocalSite, Outcome, TlsInfo,
    Transport, Worker,
};
use h2o_http::{Known, StatusCode};

/// `%t` and times of all sorts, both ends of the connection, fields of the request and the response, TLS.
const LONG_FORMAT: &str = r#"%h %{remote}p %A %p %u %t %{%Y-%m-%dT%H:%M:%S}t.%{msec_frac}t %m %U %q %H %V %v \"%r\" %s %b \"%{Referer}i\" \"%{User-agent}i\" \"%{Accept-Language}i\" \"%{Content-Type}o\" %{connection-id}x %{request-id}x %{connect-time}x %{request-total-time}x %{response-time}x %{duration}x %{response-header-bytes}x %{ssl.protocol-version}x %{ssl.cipher}x %{ssl.server-name}x %{error}x"#;
const JSON_FORMAT: &str = r#"{\"at\":\"%{sec}t.%{msec_frac}t\",\"client\":\"%h\",\"request\":\"%r\",\"status\":%s,\"octets\":%b,\"agent\":\"%{User-agent}i\",\"referer\":\"%{Referer}i\",\"time\":%{duration}x}"#;

fn main() {
    let bench = kit::Bench::from_arguments();
    let files = "file.dir: @root@";
    for (name, title, path, fields, status) in [
        (
            "file",
            "File of 1 KB, held in memory",
            "/1k.txt",
            &[][..],
            StatusCode::OK,
        ),
        (
            "not-modified",
            "File that has not changed (304)",
            "/1k.txt",
            &[(Known::IfModifiedSince, "Sun, 06 Nov 1994 08:49:37 GMT")][..],
            StatusCode::NOT_MODIFIED,
        ),
        (
            "range",
            "Range of a file (206)",
            "/1k.txt",
            &[(Known::Range, "bytes=100-199")][..],
            StatusCode::PARTIAL_CONTENT,
        ),
    ] {
        bench.case(name, title, || answer(files, path, fields, status));
    }
    bench.case("redirect", "Redirect (302)", || {
        answer(
            "redirect: https://www.example.com/new",
            "/page",
            &[],
            StatusCode::FOUND,
        )
    });
    bench.case(
        "file-two-filters",
        "File of 1 KB, two fields set by filters",
        || {
            let config = "file.dir: @root@, header.set: \"x-frame-options: DENY\", expires: 1 day";
            answer(config, "/1k.txt", &[], StatusCode::OK)
        },
    );
    bench.case(
        "exchange",
        "Exchange begun and given back",
        begin_and_release,
    );

    for (name, title, config) in [
        (
            "log-default",
            "Access log: line in the default format",
            "/log".to_owned(),
        ),
        (
            "log-long",
            "Access log: line of 32 specifiers",
            format!("{{path: /log, format: \"{LONG_FORMAT}\"}}"),
        ),
        (
            "log-json",
            "Access log: line in JSON",
            format!("{{path: /log, escape: json, format: \"{JSON_FORMAT}\"}}"),
        ),
    ] {
        bench.case(name, title, || log(&config));
    }
}

/// One worker with a site of one host and one path.
struct Setup {
    worker: Rc<Worker>,
    site: Rc<LocalSite>,
    connection: Rc<ConnectionInfo>,
    /// Holds `1k.txt`, last changed long ago.
    root: tempfile::TempDir,
}

struct Socket;

impl Transport for Socket {
    fn local_address(&self) -> Option<Address> {
        Some(address("192.0.2.80:443"))
    }
    fn congestion_controller(&self) -> Option<String> {
        None
    }
    fn delivery_rate(&self) -> Option<u64> {
        None
    }
}

fn address(text: &str) -> Address {
    Address::Ip(text.parse().expect("an address"))
}

impl Setup {
    /// `global` is a directive of the global level, `path` the settings of `/`.
    fn new(global: &str, path: &str) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let file = root.path().join("1k.txt");
        std::fs::write(&file, [b'a'; 1024]).expect("a file");
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        File::options()
            .write(true)
            .open(&file)
            .and_then(|file| file.set_modified(modified))
            .expect("a file that is ours");

        let path = path.replace("@root@", root.path().to_str().expect("a plain name"));
        let text = format!(
            "{global}\nlisten: 80\nhosts: {{www.example.com: {{paths: {{/: {{{path}}}}}}}}}\n"
        );
        let loaded = h2o_server::load("bench.conf", &Memory::new().file("bench.conf", text));
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));

        let worker = Worker::new(0, Arc::default(), Arc::default());
        let connection = ConnectionInfo {
            id: 17,
            peer: address("192.0.2.1:54321"),
            accepted: worker.clock.now(),
            tls: Some(Box::new(TlsInfo {
                protocol: "TLSv1.3",
                cipher: "TLS_AES_128_GCM_SHA256",
                cipher_bits: 128,
                server_name: Some("www.example.com".into()),
                alpn: Some("http/1.1"),
                resumed: false,
                client_authority: None,
            })),
            transport: Rc::new(Socket),
            listener: 0,
        };
        Self {
            worker,
            site: Rc::new(LocalSite(loaded.site)),
            connection: Rc::new(connection),
            root,
        }
    }

    /// A request that has found its path.
    fn request(&self, target: &str, fields: &[(Known, &str)]) -> ExchangeRef {
        let reference = self.worker.exchange(&self.site, &self.connection);
        let exchange = &mut *reference.borrow_mut();
        let request = &mut exchange.request;
        let authority = request.headers.store(b"www.example.com");
        request.set_authority(authority);
        let target = request.headers.store(target.as_bytes());
        request.set_target(target);
        for &(name, value) in fields {
            request.headers.push(name, value.as_bytes());
        }
        exchange.route = self.site.select_path(0, exchange.request.path());
        Rc::clone(&reference)
    }
}

/// The handlers and filters of a path, within one turn of the event loop: the file system is not looked at for what
/// is held in memory.
fn answer(
    config: &str,
    target: &str,
    fields: &[(Known, &str)],
    status: StatusCode,
) -> impl FnMut() {
    let setup = Setup::new("", config);
    let reference = setup.request(target, fields);
    move || {
        black_box(&setup.root);
        let exchange = &mut *reference.borrow_mut();
        let route = exchange.route;
        exchange.rewind();
        exchange.route = route;
        respond(exchange, status);
    }
}

fn respond(exchange: &mut Exchange, status: StatusCode) {
    let site = Rc::clone(&exchange.site);
    let path = site.path(exchange.route);
    match path.handlers[0].on_request(exchange) {
        Outcome::Done(mut response) => {
            for filter in &path.filters {
                let filtered = filter.on_response(exchange, &mut response);
                assert!(matches!(filtered, Filtered::Continue));
            }
            assert_eq!(response.status, status);
            black_box(&response);
            exchange.sent.headers = response.headers;
        }
        Outcome::Declined | Outcome::Later(_) | Outcome::Reroute(_) => {
            panic!("not answered at once")
        }
    }
}

fn begin_and_release() -> impl FnMut() {
    let setup = Setup::new("", "file.dir: @root@");
    move || {
        let reference = setup.worker.exchange(&setup.site, &setup.connection);
        setup.worker.release(black_box(reference));
    }
}

/// The log is not opened: lines are made, and not written.
fn log(config: &str) -> impl FnMut() {
    let setup = Setup::new(&format!("access-log: {config}"), "file.dir: @root@");
    let reference = setup.request(
        "/1k.txt?page=2",
        &[
            (Known::Referer, "https://www.example.com/"),
            (
                Known::UserAgent,
                "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",
            ),
            (Known::AcceptLanguage, "en-GB,en;q=0.9"),
        ],
    );
    {
        let exchange = &mut *reference.borrow_mut();
        let after = |micros| Some(setup.connection.accepted + Duration::from_micros(micros));
        let timings = &mut exchange.timings;
        timings.begun = setup.connection.accepted;
        timings.head = after(69);
        timings.processed = after(69);
        timings.processed_at = Duration::from_micros(1_136_239_445_007_089);
        timings.response_start = after(1_500);
        timings.response_end = after(2_500);
        exchange.http1_index = 4;
        exchange.sent.status = Some(StatusCode::OK);
        exchange.sent.first_status = Some(StatusCode::OK);
        exchange.sent.header_bytes = 228;
        exchange.sent.body_bytes = 1024;
        exchange
            .sent
            .headers
            .push(Known::ContentType, b"text/plain");
    }
    move || {
        let exchange = reference.borrow();
        for logger in &exchange.site.path(exchange.route).loggers {
            logger.log(black_box(&exchange));
        }
    }
}
