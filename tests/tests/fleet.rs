//! The fleet of `examples/fleet`: three servers behind HAProxy, which share the keys of TLS tickets through Redis.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use h2o_tests::{Folder, binary, eventually, free_port, manual, run, run_with_input};
use rustix::process::{Pid, Signal, kill_process};

/// The running fleet. Its processes are stopped when this value is dropped.
struct Fleet {
    child: Child,
    folder: Folder,
    port: u16,
    /// The environment variables that tell the processes of the fleet their ports.
    ports: [(&'static str, String); 5],
}

impl Fleet {
    fn start() -> Self {
        let folder = Folder::new();
        folder.write("site/index.html", "hello");
        let log = File::create(folder.at("log")).expect("the folder is writable");
        let names = [
            "FLEET_PORT",
            "SERVER_PORT_1",
            "SERVER_PORT_2",
            "SERVER_PORT_3",
            "FLEET_REDIS_PORT",
        ];
        let ports = names.map(|name| (name, free_port()));
        let port = ports[0].1;
        let ports = ports.map(|(name, port)| (name, port.to_string()));
        let child = Command::new("sh")
            .arg(manual::root().join("examples/fleet/run.sh"))
            .arg(binary())
            .arg(folder.path())
            .env("FLEET_SITE", folder.at("site"))
            .envs(ports.clone())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the system has a shell");
        let fleet = Self {
            child,
            folder,
            port,
            ports,
        };
        fleet.wait();
        fleet
    }

    /// Waits until the balancer sends requests to all three servers.
    fn wait(&self) {
        eventually("three servers", || {
            let mut servers: Vec<_> = (0..3).filter_map(|_| self.asked()).collect();
            servers.sort();
            (servers == ["server-1", "server-2", "server-3"]).then_some(())
        });
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}/", self.port)
    }

    /// Sends a request over a new connection. Returns the name of the server that answered.
    fn asked(&self) -> Option<String> {
        let output = run("curl", &["-sk", "-D-", "-o", "/dev/null", &self.url()]);
        served_by(&output.text())
    }

    /// Number of successful requests that the servers have logged.
    fn requests(&self) -> usize {
        let logs = [1, 2, 3].map(|number| self.folder.read(&format!("server-{number}.log")));
        let lines = logs.iter().flat_map(|log| log.lines());
        lines
            .filter(|line| line.starts_with("127.0.0.1 200 "))
            .count()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = kill_process(pid.expect("process ids are small"), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// A load balancer that the test has started. Its process is killed when this value is dropped.
struct Balancer(Child);

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn served_by(text: &str) -> Option<String> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("x-served-by: ").map(str::to_owned))
}

#[test]
fn a_session_that_one_server_began_is_resumed_by_the_others() {
    let fleet = Fleet::start();
    for version in ["-tls1_2", "-tls1_3"] {
        let session = fleet.folder.name_of("session");
        let address = format!("127.0.0.1:{}", fleet.port);
        let ask = |option: &str| {
            let arguments = [
                "s_client", "-connect", &address, version, "-ign_eof", option, &session,
            ];
            let output = run_with_input("openssl", &arguments, "GET / HTTP/1.0\r\n\r\n").text();
            match served_by(&output.replace('\r', "")) {
                Some(server) => (server, output),
                None => {
                    let log = fleet.folder.read("log");
                    panic!("{version} {option}: no server has answered: {output}\n{log}")
                }
            }
        };
        // Servers that start at the same time may need a moment until they use the same ticket keys.
        eventually("sessions that all servers know", || {
            let (first, output) = ask("-sess_out");
            assert!(output.contains("\nNew, TLSv1."), "{version}: {output}");
            // A server that could not reach Redis when it started offers no session until it has the keys.
            if !std::path::Path::new(&session).exists() {
                return None;
            }
            let mut others = Vec::new();
            for _ in 0..2 {
                let (server, output) = ask("-sess_in");
                others.push(server);
                if !output.contains("\nReused, TLSv1.") {
                    return None;
                }
            }
            others.push(first);
            others.sort();
            assert_eq!(others, ["server-1", "server-2", "server-3"], "{version}");
            Some(())
        });
    }
}

/// Clients use connections over HTTP/1 and HTTP/2 that last longer than the worker process that serves them.
#[test]
fn no_request_is_lost_while_one_server_after_the_other_is_upgraded() {
    let fleet = Fleet::start();
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let url = fleet.url();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let text = run("h2load", &["--h1", "-c3", "-n", "300", &url]).text();
                let all = " 300 succeeded, 0 failed, 0 errored, 0 timeout";
                assert!(text.contains(all) && text.contains(" 300 2xx"), "{text}");
                count.fetch_add(300, Relaxed);
            }
        });
        // When a server announces the end of a connection, curl requests the next URL over a new connection.
        scope.spawn(|| {
            let urls = format!("{url}?[1-2000]");
            let report = "%{http_code} %{http_version}\\n";
            while !is_over.load(Relaxed) {
                let arguments = ["-sSk", "--http2", "-o", "/dev/null", "-w", report, &urls];
                let output = run("curl", &arguments);
                assert!(output.text() == "200 2\n".repeat(2000), "{output}");
                count.fetch_add(2000, Relaxed);
            }
        });
        let script = manual::root().join("examples/fleet/upgrade.sh");
        let directory = fleet.folder.path().display().to_string();
        let output = run("sh", &[&script.display().to_string(), &directory]);
        is_over.store(true, Relaxed);
        let want = "server-1 is upgraded\nserver-2 is upgraded\nserver-3 is upgraded\n";
        assert_eq!(output.text(), want, "{output}");
    });
    let count = count.into_inner();
    eventually("a log line for each answer", || {
        (fleet.requests() >= count).then_some(())
    });
}

/// The load balancer is killed while clients have connections through it, and another one is started: the servers keep running, and serve
/// requests through the new balancer.
#[test]
fn servers_outlive_the_balancer_and_serve_the_next_one() {
    let fleet = Fleet::start();
    let before: Vec<String> = [1, 2, 3]
        .map(|number| fleet.folder.read(&format!("server-{number}.pid")))
        .to_vec();
    let address = format!("127.0.0.1:{}", fleet.port);
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is installed");
    let parent = fleet.child.id().to_string();
    let found = run("pgrep", &["-P", &parent, "-x", "haproxy"]).text();
    let balancer = found.trim().parse().ok().and_then(Pid::from_raw);
    let balancer = balancer.expect("the fleet has one balancer");
    kill_process(balancer, Signal::KILL).expect("the process belongs to the test");
    eventually("the end of the balancer", || {
        fleet.asked().is_none().then_some(())
    });
    let _ = client.kill();
    let _ = client.wait();
    let config = manual::root().join("examples/fleet/haproxy.cfg");
    let _next = Balancer(
        Command::new("haproxy")
            .args(["-q", "-db", "-f"])
            .arg(config)
            .envs(fleet.ports.clone())
            .spawn()
            .expect("HAProxy is installed"),
    );
    fleet.wait();
    let after: Vec<String> = [1, 2, 3]
        .map(|number| fleet.folder.read(&format!("server-{number}.pid")))
        .to_vec();
    assert_eq!(before, after);
}
