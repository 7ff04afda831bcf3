//! Tests of how workers end and how the program learns of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::panic_any;
use std::sync::mpsc::channel;
use std::time::Duration;

use h2o_config::Memory;
use h2o_exchange::Order;
use h2o_server::{Server, WorkerEnd};

/// A panic payload that panics again when it is dropped.
struct Relentless;

impl Drop for Relentless {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic_any(0);
        }
    }
}

#[test]
fn no_worker_dies_unnoticed() {
    let config = "num-threads: 2\nlisten: { type: unix, port: @ }\nhosts: { default: { paths: { /: { status: ON } } } }";
    let directory = std::env::temp_dir().join(format!("h2o-workers-{}", std::process::id()));
    let config = config.replace('@', &directory.display().to_string());
    let source = Memory::new().file("test.conf", config);
    let loaded = h2o_server::load("test.conf", &source).unwrap();
    let bound = h2o_server::bind(&loaded, 2).unwrap();
    let (sender, ends) = channel();
    let server = Server::start(&loaded, bound, move |end| sender.send(end).unwrap()).unwrap();
    std::fs::remove_file(&directory).unwrap();
    let workers = server.shared().workers.get().unwrap();
    let panic = Order::Run(Box::new(|_| panic_any(Relentless)));
    assert!(workers[0].order(panic));
    assert_eq!(ends.recv(), Ok(WorkerEnd::Died));
    // One of the two workers has died; the other one goes on serving until the server is shut down.
    server.shut_down();
    assert_eq!(ends.recv(), Ok(WorkerEnd::Drained));
    server.join();
}

/// Requests the status page, and returns the open connection.
fn ask(path: &std::path::Path) -> UnixStream {
    let attempt = || -> std::io::Result<UnixStream> {
        let mut client = UnixStream::connect(path)?;
        client.set_read_timeout(Some(Duration::from_secs(60)))?;
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")?;
        Ok(client)
    };
    attempt().expect("the listener's queue has room")
}

fn is_answered(client: &mut UnixStream) -> bool {
    let mut start = [0; 9];
    client.read_exact(&mut start).is_ok() && start == *b"HTTP/1.1 "
}

#[test]
fn clients_that_wait_are_served_once_more_may_be_connected() {
    let config = "num-threads: 1\nmax-connections: 1\nlisten: { type: unix, port: @ }\nhosts: { default: { paths: { /: { status: ON } } } }";
    let path = std::env::temp_dir().join(format!("h2o-limits-{}", std::process::id()));
    let config = config.replace('@', &path.display().to_string());
    let source = Memory::new().file("test.conf", config);
    let loaded = h2o_server::load("test.conf", &source).unwrap();
    let bound = h2o_server::bind(&loaded, 1).unwrap();
    let server = Server::start(&loaded, bound, |_| {}).unwrap();
    let mut first = ask(&path);
    assert!(is_answered(&mut first));
    let mut second = ask(&path);
    let limits = &server.shared().limits;
    assert_eq!(limits.max(), 1);
    limits.set(2, limits.soft(), limits.soft_min_age());
    assert!(is_answered(&mut second));
    std::fs::remove_file(&path).unwrap();
    drop((first, second));
    server.shut_down();
    server.join();
}

/// A worker that is busy when it is told to end has clients in its accept queue by then. They are answered, and not reset.
#[test]
fn clients_that_wait_at_the_end_are_served() {
    let config = "num-threads: 1\nlisten: { type: unix, port: @ }\nhosts: { default: { paths: { /: { status: ON } } } }";
    let path = std::env::temp_dir().join(format!("h2o-ends-{}", std::process::id()));
    let config = config.replace('@', &path.display().to_string());
    let source = Memory::new().file("test.conf", config);
    let loaded = h2o_server::load("test.conf", &source).unwrap();
    let bound = h2o_server::bind(&loaded, 1).unwrap();
    let server = Server::start(&loaded, bound, |_| {}).unwrap();
    let (go_on, may_go_on) = channel::<()>();
    let (busy, is_busy) = channel();
    let order = Order::Run(Box::new(move |_| {
        busy.send(()).unwrap();
        let _ = may_go_on.recv();
    }));
    assert!(server.shared().workers.get().unwrap()[0].order(order));
    is_busy.recv().unwrap();
    let mut clients = [(); 100].map(|()| ask(&path));
    server.shut_down();
    drop(go_on);
    for client in &mut clients {
        assert!(is_answered(client));
    }
    std::fs::remove_file(&path).unwrap();
    drop(clients);
    server.join();
}
