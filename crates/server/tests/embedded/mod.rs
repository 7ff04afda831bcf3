//! Runs the server in the test's own process, with additional directives that the test defines.

use std::io::{Read, Write};
use std::net::TcpStream;

use h2o_config::{Directive, Memory};
use h2o_exchange::Scope;
use h2o_server::{LoadedConfig, Server};
use h2o_testkit::patient;

/// Largest number of connections that the server accepts per event of a listening socket.
const ACCEPT_BATCH: usize = 10;

/// A server that runs in the test's process. Its drop stops it.
pub(crate) struct Embedded {
    server: Option<Server>,
    #[allow(dead_code, reason = "not all test files use this field")]
    pub(crate) loaded: LoadedConfig,
    pub(crate) port: u16,
}

impl Embedded {
    /// Starts a server. The function `config` returns the configuration for the port that it is given.
    pub(crate) fn start(
        directives: &'static [Directive<Scope>],
        config: impl Fn(u16) -> String,
    ) -> Self {
        // If another process has taken the port in the meantime, another port is tried.
        (0..20)
            .find_map(|_| Self::attempt(directives, &config))
            .expect("one of twenty ports can be bound")
    }

    fn attempt(
        directives: &'static [Directive<Scope>],
        config: impl Fn(u16) -> String,
    ) -> Option<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let source = Memory::new().file("test.conf", config(port));
        let features = h2o_server::features_with(&[directives]);
        let loaded = h2o_server::load_with(features, "test.conf", &source).unwrap();
        let bound = h2o_server::bind(&loaded, 1).ok()?;
        loaded.open_resources().unwrap();
        Some(Self {
            server: Some(Server::start(&loaded, bound, |_| {}).unwrap()),
            loaded,
            port,
        })
    }

    /// The running server. Panics if it was stopped.
    #[allow(dead_code, reason = "not all test files call this function")]
    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("the server runs")
    }

    /// Waits until the only worker has finished a turn of its event loop that began after this call.
    #[allow(dead_code, reason = "not all test files call this function")]
    pub(crate) fn turn(&self) {
        // A turn accepts and answers up to ten connections at a listening socket, also those that come meanwhile. So ten may be answered in a
        // turn that began before this call, ten more in the next turn, before that has run the other connections, and the last one shows
        // that it has run them.
        for _ in 0..2 * ACCEPT_BATCH + 1 {
            let mut stream = patient(TcpStream::connect(("127.0.0.1", self.port)).unwrap());
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 "));
        }
    }

    /// Begins the graceful shutdown of the server.
    #[allow(dead_code, reason = "not all test files call this function")]
    pub(crate) fn shut_down(&self) {
        if let Some(server) = &self.server {
            server.shut_down();
        }
    }

    /// Stops the server after its connections have closed. Its logs are complete then.
    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shut_down();
            server.join();
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop();
    }
}
