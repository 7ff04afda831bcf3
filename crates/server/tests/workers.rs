//! Workers that end: how, and who is told.

use std::panic::panic_any;
use std::sync::mpsc::channel;

use h2o_config::Memory;
use h2o_exchange::Order;
use h2o_server::{Server, WorkerEnd};

/// A panic that is thrown once more when somebody has caught it.
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
    let panic = Order::Ask(Box::new(|_| panic_any(Relentless)));
    assert!(workers[0].order(panic));
    assert_eq!(ends.recv(), Ok(WorkerEnd::Died));
    // The other one goes on until it is told to end.
    server.shut_down();
    assert_eq!(ends.recv(), Ok(WorkerEnd::Drained));
    server.join();
}
