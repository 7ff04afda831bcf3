//! A site of one host and one path for benchmarks, and requests that are routed to it.

use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use h2o_config::Memory;
use h2o_exchange::{Address, ConnectionInfo, ExchangeRef, LocalSite, TlsInfo, Transport, Worker};
use h2o_http::Known;

/// One worker and its site for a benchmark: one host with one path.
pub(crate) struct Setup {
    pub(crate) worker: Rc<Worker>,
    pub(crate) site: Rc<LocalSite>,
    pub(crate) connection: Rc<ConnectionInfo>,
    /// Directory of the site's files: holds `1k.txt`, with an old mtime.
    pub(crate) root: tempfile::TempDir,
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
    Address::Ip(text.parse().expect("the text is an address"))
}

impl Setup {
    /// Loads the site. `global` is a directive at the global level of the configuration, `path` the directives of the path `/`.
    pub(crate) fn new(global: &str, path: &str) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let file = root.path().join("1k.txt");
        std::fs::write(&file, [b'a'; 1024]).expect("the file can be written");
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        File::options()
            .write(true)
            .open(&file)
            .and_then(|file| file.set_modified(modified))
            .expect("the benchmark has written the file");

        let path = path.replace("@root@", root.path().to_str().expect("the path is UTF-8"));
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
                session_id: None,
            })),
            transport: Rc::new(Socket),
            listener: Rc::default(),
        };
        Self {
            worker,
            site: Rc::new(LocalSite(loaded.site)),
            connection: Rc::new(connection),
            root,
        }
    }

    /// Makes a request for `target` that is routed to its path.
    pub(crate) fn request(&self, target: &str, fields: &[(Known, &str)]) -> ExchangeRef {
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
