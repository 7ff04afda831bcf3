//! The supervisor of h2o (`-m master`, `-m daemon`, or run as `start_server`), also with workers of other projects, and workers of h2o
//! under the supervisor of another project.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use h2o_tests::{Backend, Folder, Server, Setup, binary, eventually, free_port, run, tool};
use rustix::process::{Pid, Signal, kill_process};

const PATHS: &str = "hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }";
const LIMIT: Duration = Duration::from_secs(15);

/// The settings of a server under h2o's supervisor; `settings` are further directives.
fn master(settings: &str) -> Setup {
    let config =
        format!("num-threads: 1\nlisten: {{ host: 127.0.0.1, port: @PORT@ }}\n{settings}\n{PATHS}");
    Setup::new(&config)
        .file("www/small", "hello")
        .arguments(&["-m", "master"])
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("process ids are small"), signal)
        .expect("the process is a child of the test");
}

/// The process ids of a process's children.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let words = text.split_whitespace();
    words
        .map(|word| word.parse().expect("the text is a number"))
        .collect()
}

/// Waits until a supervisor has exactly one worker, and returns its process id.
fn worker(pid: u32) -> u32 {
    eventually("a single worker", || match children(pid)[..] {
        [worker] => Some(worker),
        _ => None,
    })
}

/// Waits until the worker `old` has ended, and returns the process id of its successor.
fn successor(server: &Server, old: u32) -> u32 {
    server.wait_for_message(&format!("old worker {old} died, status:0"));
    worker(server.pid())
}

#[test]
fn a_unix_socket_of_a_supervisor_gets_the_permissions_of_its_listener() {
    let socket = "listen: { type: unix, port: @DIR@/socket, permission: 640 }";
    let server = master(socket).start();
    server.ask("GET /small").must_be("200 OK\n\nhello");
    let path = server.folder.name_of("socket");
    let mode = || {
        fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(), 0o640);
    // The worker that follows sets them again.
    fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("it is the test's own");
    let first = worker(server.pid());
    send(server.pid(), Signal::HUP);
    successor(&server, first);
    assert_eq!(mode(), 0o640);
}

#[test]
fn a_master_keeps_workers_and_files_as_its_manual_says() {
    let mut server =
        master("pid-file: @DIR@/pid\nlisten: { type: unix, port: @DIR@/socket }").start();
    let pid = server.pid();
    assert_eq!(server.folder.read("pid"), format!("{pid}\n"));
    let first = worker(pid);
    server.ask("GET /small").must_be("200 OK\n\nhello");
    // The ports of the configuration are taken by this server, which is no reason for a warning.
    let config = server.folder.name_of("h2o.conf");
    let program = binary().display().to_string();
    let test = run(&program, &["--test", "--strict", "-c", &config]);
    assert_eq!(test.code, 0, "{test}");

    send(pid, Signal::HUP);
    let second = successor(&server, first);
    for message in [
        format!("start_server (pid:{pid}) starting now...\nstarting new worker {first}\n"),
        format!("received HUP, spawning a new worker\nstarting new worker {second}\n"),
        format!(
            "new worker is now running, sending TERM to old workers:{first}\nkilling old workers\n"
        ),
    ] {
        server.wait_for_message(&message);
    }
    server.ask("GET /small").must_be("200 OK\n\nhello");

    send(second, Signal::KILL);
    let message = format!("worker {second} died unexpectedly with status:9, restarting");
    server.wait_for_message(&message);
    // A connection that is made while no worker runs waits in the supervisor's listening socket.
    server.ask("GET /small").must_be("200 OK\n\nhello");
    let third = worker(pid);
    let socket = server.folder.at("socket");
    UnixStream::connect(&socket).expect("the worker listens");

    server.terminate();
    assert_eq!(server.wait(LIMIT).code(), Some(0));
    server.wait_for_message(&format!(
        "received TERM, sending TERM to all workers:{third}"
    ));
    server.wait_for_message(&format!("worker {third} died, status:0\nexiting\n"));
    assert!(!socket.exists() && !server.folder.at("pid").exists());
}

#[test]
fn quit_closes_all_connections_of_a_supervisor_at_once() {
    let mut server = master("pid-file: @DIR@/pid").start();
    let pid = server.pid();
    let worker = worker(pid);
    // A request that is never completed holds up TERM, but not QUIT.
    let mut open = TcpStream::connect(("127.0.0.1", server.port())).expect("the worker listens");
    open.write_all(b"GET /small HTTP/1.1\r\nHost: a.test\r\n")
        .expect("the worker reads");
    send(pid, Signal::USR2);
    server.wait_for_message("received USR2, which has no effect");
    server.ask("GET /small").must_be("200 OK\n\nhello");
    server.terminate();
    server.wait_for_message(&format!(
        "received TERM, sending TERM to all workers:{worker}"
    ));
    send(pid, Signal::QUIT);
    server.wait_for_message(&format!(
        "received QUIT, sending QUIT to all workers:{worker}"
    ));
    assert_eq!(server.wait(LIMIT).code(), Some(0));
    server.wait_for_message(&format!("worker {worker} died, status:0\nexiting\n"));
    assert!(!server.folder.at("pid").exists());
}

#[test]
fn no_upgrade_that_fails_ends_the_worker_that_serves() {
    let folder = Folder::new();
    let program = folder.at("h2o");
    let program = program.to_str().expect("the path is UTF-8");
    // A process of its own copies: a child that another test starts meanwhile would have the file open for writing, and it could not be run.
    let copied = run("cp", &[&binary().display().to_string(), program]);
    assert_eq!(copied.code, 0, "{copied}");
    let config = format!("listen: {{ host: 127.0.0.1, port: @PORT@ }}\n{PATHS}");
    // The shell runs a copy of the binary, which the test can replace, instead of the binary in its arguments.
    let line = format!("shift; exec {program} $*");
    let server = Setup::in_folder(folder, &config)
        .file("www/small", "hello")
        .launched_by(&["sh", "-c", &line, "sh"])
        .arguments(&["-m", "master"])
        .start();
    let (pid, first) = (server.pid(), worker(server.pid()));
    let good = server.folder.read("h2o.conf");

    // First the configuration has a mistake; then the configuration file does not exist.
    server.folder.write("h2o.conf", "listen: 80\nnonsense: 1\n");
    send(pid, Signal::HUP);
    server.wait_for_message("seems to have failed to start, exit status:19968");
    assert!(
        server.messages().contains("nonsense"),
        "{}",
        server.messages()
    );
    server.ask("GET /small").must_be("200 OK\n\nhello");
    // The supervisor tries to start the worker again until it succeeds.
    server.folder.write("h2o.conf", good);
    let second = successor(&server, first);

    let away = server.folder.at("away");
    fs::rename(program, &away).expect("the test owns the file");
    send(pid, Signal::HUP);
    server.wait_for_message(&format!(
        "failed to exec {program}: No such file or directory"
    ));
    server.wait_for_message("seems to have failed to start, exit status:65280");
    server.ask("GET /small").must_be("200 OK\n\nhello");
    fs::rename(&away, program).expect("the test owns the file");
    successor(&server, second);
    server.ask("GET /small").must_be("200 OK\n\nhello");
}

/// The next worker gets the sockets that the supervisor was started with.
#[test]
fn a_reload_warns_of_addresses_that_the_supervisor_was_not_started_with() {
    let server = master("pid-file: @DIR@/pid").start();
    let config = server.folder.name_of("h2o.conf");
    let old = server.folder.read("h2o.conf");
    let port = h2o_tests::free_port();
    server.folder.write(
        "h2o.conf",
        format!("listen: {{ host: 127.0.0.1, port: {port} }}\n{old}"),
    );
    let program = binary().display().to_string();
    let want = format!(
        "[warning] `listen` 127.0.0.1:{port}: the supervisor was started with other addresses"
    );
    let asked = run(&program, &["reload", "--diff", "-c", &config]);
    assert!(asked.text().contains(&want), "{asked}");
    let reloaded = run(&program, &["reload", "-c", &config]);
    assert_eq!(reloaded.code, 0, "{reloaded}");
    assert!(reloaded.stderr.contains(&want), "{reloaded}");
    assert_eq!(
        h2o_tests::curl(&[&format!("http://127.0.0.1:{port}/small")]).code(),
        200
    );
}

#[test]
fn no_worker_ends_with_a_supervisor_that_was_killed() {
    let mut server = master("pid-file: @DIR@/pid").start();
    let orphan = worker(server.pid());
    send(server.pid(), Signal::KILL);
    server.wait(LIMIT);
    server.ask("GET /small").must_be("200 OK\n\nhello");

    // The next supervisor takes over the pid file at once, but gets the port only when the worker has ended.
    let path = server.folder.name_of("h2o.conf");
    let again = |mode: &str| {
        let mut command = Command::new(binary());
        command.args(["-m", mode, "-c", &path]);
        command
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started")
    };
    let refused = again("master")
        .wait_with_output()
        .expect("the process is a child of the test");
    assert_eq!(refused.status.code(), Some(78));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("Address already in use"), "{text}");
    send(orphan, Signal::TERM);
    eventually("the end of the worker", || {
        TcpStream::connect(("127.0.0.1", server.port())).err()
    });
    let supervisor = Guard(again("master"));
    let written = format!("{}\n", supervisor.0.id());
    eventually("the pid file", || {
        (server.folder.read("pid") == written).then_some(())
    });
    server.ask("GET /small").must_be("200 OK\n\nhello");
}

/// A supervisor. When this value is dropped, the supervisor is told to end, with its workers.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        send(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_full_disk_costs_lines_and_nothing_else() {
    let mut server = master("error-log: @DIR@/error-log")
        .file("error-log", "x".repeat(1100))
        .launched_by(&["sh", "-c", "ulimit -f 3; exec $0 $*"])
        .start();
    let (pid, first) = (server.pid(), worker(server.pid()));
    // The file size is limited to 3 blocks of 512 bytes, which the error log soon exceeds.
    let fill = || server.folder.read("error-log").len();
    let mut last = first;
    for _ in 0..3 {
        send(pid, Signal::HUP);
        last = eventually("the worker that replaces the last one", || {
            match children(pid)[..] {
                [next] if next != last => Some(next),
                _ => None,
            }
        });
        server.ask("GET /small").must_be("200 OK\n\nhello");
    }
    assert_eq!(fill(), 1536);
    send(pid, Signal::TERM);
    assert_eq!(server.wait(LIMIT).code(), Some(0));
}

#[test]
fn a_daemon_leaves_its_terminal_and_writes_to_its_log() {
    let folder = Folder::new();
    folder.write("www/small", "hello");
    let config = format!(
        "num-threads: 1\nlisten: {{ host: 127.0.0.1, port: {} }}\npid-file: @DIR@/pid\n{PATHS}\n",
        free_port()
    );
    let config = config.replace("@DIR@", folder.path().to_str().expect("the path is UTF-8"));
    folder.write("h2o.conf", &config);
    let path = folder.name_of("h2o.conf");
    let program = binary().to_str().expect("the path is UTF-8");
    let output = run(program, &["-m", "daemon", "-c", &path]);
    assert_eq!(output.code, 78, "{output}");
    let want = "to run in `daemon` mode, `error-log` must be specified in the configuration file";
    assert!(output.stderr.contains(want), "{output}");

    let log = folder.name_of("error-log");
    folder.write("h2o.conf", format!("error-log: {log}\n{config}"));
    let output = run(program, &["-m", "daemon", "-c", &path]);
    assert_eq!((output.code, &*output.stderr), (0, ""), "{output}");
    let pid = eventually("the pid file", || {
        folder.read("pid").trim().parse::<u32>().ok()
    });
    eventually("the message that a worker is ready to serve", || {
        folder
            .read("error-log")
            .contains("is ready to serve")
            .then_some(())
    });
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    assert_ne!(
        fields[4],
        pid.to_string(),
        "the server leads its session: {stat}"
    );
    assert_eq!(fields[5], "0", "the server has a terminal: {stat}");

    // After SIGUSR1 supervisor and worker write to a new log file.
    fs::rename(&log, folder.at("old-log")).expect("the test owns the file");
    send(pid, Signal::USR1);
    eventually("the worker's line in the new log", || {
        folder
            .read("error-log")
            .contains("reopened logs")
            .then_some(())
    });
    send(pid, Signal::TERM);
    eventually("the end", || (!folder.at("pid").exists()).then_some(()));
    let log = folder.read("error-log");
    assert!(
        log.contains("received TERM") && log.contains("exiting"),
        "{log}"
    );
}

#[test]
fn no_supervisor_runs_under_another() {
    let folder = Folder::new();
    let config = format!("listen: 80\n{PATHS}").replace("@DIR@", "/srv");
    let path = folder.write("h2o.conf", config);
    for mode in ["master", "daemon"] {
        let output = Command::new(binary())
            .args(["-m", mode, "-c"])
            .arg(&path)
            .env("SERVER_STARTER_PORT", "80=3")
            .output()
            .expect("the program can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(70), "{text}");
        let want = format!(
            "refusing to start in `{mode}` mode, environment variable SERVER_STARTER_PORT is already set"
        );
        assert!(text.contains(&want), "{text}");
    }
}

/// A server under the supervisor of Debian's package libserver-starter-perl, with these options.
fn foreign(options: &[&str], config: &str) -> Setup {
    let command = [&["/usr/bin/start_server"], options, &["--"]].concat();
    Setup::new(config)
        .file("www/small", "hello")
        .launched_by(&command)
}

#[test]
fn our_worker_serves_under_a_foreign_supervisor() {
    let options = [
        "--port=127.0.0.1:@PORT@",
        "--path=@DIR@/socket",
        "--status-file=@DIR@/status",
    ];
    let config = format!(
        "num-threads: 1\nlisten: {{ host: 127.0.0.1, port: @PORT@ }}\nlisten: {{ type: unix, port: @DIR@/socket }}\n{PATHS}"
    );
    let server = foreign(&options, &config).start();
    let (pid, first) = (server.pid(), worker(server.pid()));
    // The first worker keeps running for an incomplete request when the second one replaces it; at the next replacement the supervisor
    // sends SIGTERM to both.
    let mut busy = server.connect();
    busy.send("GET /small HTTP/1.1\r\nHost: a\r\n");
    send(pid, Signal::HUP);
    server.wait_for_message(&format!("sending TERM to old workers:{first}"));
    let second = eventually("the second generation", || {
        let status = server.folder.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("2:"))?;
        line.parse::<u32>().ok()
    });
    send(pid, Signal::HUP);
    server.wait_for_message(&format!("old worker {second} died, status:0"));
    busy.send("\r\n");
    busy.read_response("GET").must_be("200 OK\n\nhello");
    server.wait_for_message(&format!("old worker {first} died, status:0"));
    server.ask("GET /small").must_be("200 OK\n\nhello");
    UnixStream::connect(server.folder.at("socket")).expect("the worker listens");
    let folder = server.stop();
    assert!(!folder.at("socket").exists());
}

#[test]
fn addresses_of_supervisor_and_configuration_must_agree() {
    let one = format!("listen: {{ host: 127.0.0.1, port: @PORT@ }}\n{PATHS}");
    let more = |line: &str| format!("{line}\n{one}");
    let quic = "listen: { type: quic, host: 127.0.0.1, port: @PORT@, ssl: { certificate-file: @DIR@/a.crt, key-file: @DIR@/a.key } }";
    let tcp = "--port=127.0.0.1:@PORT@";
    let cases = [
        (
            vec![tcp],
            more("listen: { host: 127.0.0.1, port: @BPORT@ }"),
            "tcp socket:127.0.0.1:",
        ),
        (vec![tcp], more(quic), "udp socket:127.0.0.1:"),
        (
            vec![tcp],
            more("listen: { type: unix, port: @DIR@/s }"),
            "unix socket:",
        ),
        (
            vec![tcp, "--port=127.0.0.1:@BPORT@"],
            one.clone(),
            "no configuration found for fd:5 passed in by $SERVER_STARTER_PORT\nnote: $SERVER_STARTER_PORT was \"127.0.0.1:",
        ),
    ];
    for (options, config, want) in cases {
        let folder = Folder::new();
        h2o_tests::certs::self_signed(&folder, "a", h2o_tests::certs::Key::EcPkcs8, "localhost");
        let text = eventually_failed(folder, &options, &config);
        assert!(text.contains(want), "{text}");
        assert!(
            want.starts_with("no ") || text.contains(" is not being bound to the server"),
            "{text}"
        );
        assert!(text.contains("status:19968"), "{text}");
    }
}

/// The variable may be left over from another process: the descriptors that it names are then the server's own files, or none.
#[test]
fn descriptors_that_no_supervisor_has_passed_are_refused() {
    let folder = Folder::new();
    let text = format!("listen: {}\n{PATHS}", h2o_tests::free_port());
    let config = folder.write("h2o.conf", text.replace("@DIR@", "/srv"));
    for numbers in 0..12 {
        let output = Command::new(binary())
            .arg("-c")
            .arg(&config)
            .env("SERVER_STARTER_PORT", format!("a={numbers}"))
            .output()
            .expect("the server can be run");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{text}");
        let want = format!("the supervisor passed fd:{numbers}, which");
        assert!(text.contains(&want), "{text}");
    }
}

/// What the other project's supervisor writes if its first worker fails.
fn eventually_failed(folder: Folder, options: &[&str], config: &str) -> String {
    let command = [
        &[
            "/usr/bin/timeout",
            "--signal=TERM",
            "3",
            "/usr/bin/start_server",
            "--interval=1",
        ],
        options,
        &["--"],
    ];
    let refused = Setup::in_folder(folder, config)
        .launched_by(&command.concat())
        .try_start();
    refused.expect_err("the worker cannot serve").stderr
}

/// The command that runs the binary under the name `start_server`.
fn start_server(folder: &Folder) -> Command {
    let program = folder.at("start_server");
    if !program.exists() {
        symlink(binary(), &program).expect("the folder is writable");
    }
    Command::new(program)
}

fn answer(stream: std::io::Result<impl Read>) -> Option<String> {
    let mut text = String::new();
    stream.ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn a_foreign_worker_serves_under_our_supervisor() {
    let folder = Folder::new();
    folder.write("env/WORD", "one\nmore");
    let port = free_port();
    let log = fs::File::create(folder.at("log")).expect("the folder is writable");
    let mut command = start_server(&folder);
    let socket = folder.name_of("socket");
    command.args([
        &format!("--port=127.0.0.1:{port}"),
        &format!("--port=127.0.0.1:u{port}"),
        &format!("--path={socket}"),
        &format!("--pid-file={}", folder.name_of("pid")),
        &format!("--status-file={}", folder.name_of("status")),
        &format!("--dir={}", folder.name_of("env")),
        &format!("--envdir={}", folder.name_of("env")),
        "--interval=0.3",
        "--signal-on-hup=QUIT",
        "--",
        "python3",
        concat!(env!("CARGO_MANIFEST_DIR"), "/clients/starter_worker.py"),
        &socket,
    ]);
    let log = Stdio::from(log);
    let supervisor = Guard(
        command
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started"),
    );
    let ask = || eventually("an answer", || answer(UnixStream::connect(&socket)));
    let directory = folder.name_of("env");
    assert_eq!(ask(), format!("generation 1 word one in {directory}\n"));
    let sockets = format!(
        "worker has 127.0.0.1:{port}:SOCK_STREAM;127.0.0.1:{port}:SOCK_DGRAM;{socket}:SOCK_STREAM"
    );
    eventually("the log line about the worker's sockets", || {
        folder.read("log").contains(&sockets).then_some(())
    });

    folder.write("env/WORD", "two");
    send(supervisor.0.id(), Signal::USR1);
    // The test waits until the worker has handled the signal, so that the signal does not reach the next worker.
    eventually("the log line about the signal", || {
        folder
            .read("log")
            .contains("worker got SIGUSR1")
            .then_some(())
    });
    let ask_to = |option: &str| {
        let mut command = start_server(&folder);
        command.arg(option);
        command.arg(format!("--pid-file={}", folder.name_of("pid")));
        command.arg(format!("--status-file={}", folder.name_of("status")));
        let status = command
            .stderr(Stdio::null())
            .status()
            .expect("the program can be started");
        assert!(status.success(), "{option}: {status}");
    };
    ask_to("--restart");
    assert_eq!(ask(), format!("generation 2 word two in {directory}\n"));
    let status = folder.read("status");
    assert_eq!(status, format!("2:{}\n", worker(supervisor.0.id())));
    let mut supervisor = supervisor;
    // The supervisor is a child of the test, so it remains a zombie until the test waits for it; that it has ended is visible by its pid
    // file.
    ask_to("--stop");
    assert!(
        supervisor
            .0
            .wait()
            .expect("the process is a child of the test")
            .success()
    );
    let log = folder.read("log");
    for signal in ["SIGUSR1", "SIGQUIT", "SIGTERM"] {
        assert!(log.contains(&format!("worker got {signal}")), "{log}");
    }
    for name in ["socket", "pid", "status"] {
        assert!(!Path::new(&folder.name_of(name)).exists(), "{name}");
    }
    std::mem::forget(supervisor);
}

/// Number of requests in a run of h2load that were answered with 200. When a server announces the end of a connection, h2load drops the
/// connection's other requests, and counts them as failed even if it has not sent them.
fn answered(output: &str) -> usize {
    let before = output.split(" 2xx").next().unwrap_or_default();
    let number = before.rsplit(' ').next().unwrap_or_default();
    assert!(output.contains(" 0 timeout\n"), "{output}");
    assert!(output.contains(" 2xx, 0 3xx, 0 4xx, 0 5xx"), "{output}");
    number.parse().expect("the text is a number")
}

#[test]
fn no_request_is_lost_in_ten_upgrades() {
    let server = master("access-log: { path: @DIR@/log, format: '%s' }").start();
    let url = server.url("/small");
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for options in [["--h1", "-c4"], ["-m10", "-c4"]] {
            let (url, is_over, count) = (&url, &is_over, &count);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let output = run("h2load", &[&options[..], &["-n", "400", url]].concat());
                    count.fetch_add(answered(&output.text()), Relaxed);
                }
            });
        }
        let mut old = worker(server.pid());
        for _ in 0..10 {
            send(server.pid(), Signal::HUP);
            old = successor(&server, old);
        }
        is_over.store(true, Relaxed);
    });
    // Every request that a server of any generation has received was answered.
    let count = count.into_inner();
    assert!(count > 1000, "{count}");
    let folder = server.stop();
    assert_eq!(folder.read("log"), "200\n".repeat(count));
}

#[test]
fn tunnels_outlive_upgrades() {
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    let backend = Backend::start(|talk| {
        if talk.read_head().is_some() {
            talk.send(format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}"));
        }
        while let Some(bytes) = talk.read_some() {
            talk.send(bytes);
        }
    });
    let config = format!(
        "listen: {{ host: 127.0.0.1, port: @PORT@ }}\nhosts: {{ default: {{ paths: {{ /: {{ proxy.reverse.url: '{}', proxy.tunnel: ON }} }} }} }}\n",
        backend.url("/")
    );
    let server = Setup::new(&config).arguments(&["-m", "master"]).start();
    let mut tunnels = Vec::new();
    let mut workers = vec![worker(server.pid())];
    for generation in 0..3 {
        let mut tunnel = server.connect();
        tunnel.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{UPGRADE}"));
        assert_eq!(tunnel.read_head().code(), 101);
        tunnels.push(tunnel);
        send(server.pid(), Signal::HUP);
        let old = workers[generation];
        eventually("the next generation", || {
            let messages = server.messages();
            let is_told =
                |line: &str| line.contains("sending TERM") && line.contains(&old.to_string());
            messages.lines().any(is_told).then_some(())
        });
        let is_new = |pid: &u32| !workers.contains(pid);
        workers.push(
            children(server.pid())
                .into_iter()
                .find(is_new)
                .expect("the new worker is a child of the supervisor"),
        );
        for (number, tunnel) in tunnels.iter_mut().enumerate() {
            let message = format!("{number} after {generation}");
            tunnel.send(&message);
            assert_eq!(tunnel.read_exactly(message.len()), message.as_bytes());
        }
    }
    // A worker ends when its tunnels are closed. A worker may have several, because it accepts connections until it gets TERM.
    let old = workers.len() - 1;
    drop(tunnels);
    for worker in &workers[..old] {
        server.wait_for_message(&format!("old worker {worker} died, status:0"));
    }
}

/// Runs one conversation of the client `http3.py`, which fails if the server does not answer as expected.
fn talk(server: &Server, conversation: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3.py");
    let port = server.port().to_string();
    let output = run(&tool("aioquic/bin/python3"), &[script, conversation, &port]);
    let messages = server.messages();
    assert_eq!(
        output.text(),
        "ok\n",
        "{conversation}: {output}\n{messages}"
    );
}

/// Two downloads over HTTP/3, on servers of different generations, survive two upgrades, and new connections are served meanwhile.
/// `supervised` runs the server under a supervisor.
fn downloads_outlive_upgrades(supervised: impl FnOnce(Setup) -> Setup) {
    let large: String = (0..50_000).map(|n| format!("{n:07x} ")).collect();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (opened, rest) = (Arc::clone(&gate), large.clone());
    let backend = Backend::start(move |talk| {
        if talk.read_request().is_none() {
            return;
        }
        talk.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nbegin",
            5 + rest.len()
        ));
        let is_open = opened
            .0
            .lock()
            .expect("no thread panics while it holds the lock");
        drop(
            opened
                .1
                .wait_while(is_open, |is_open| !*is_open)
                .expect("no thread panics while it holds the lock"),
        );
        talk.send(&rest);
    });
    let paths = format!(
        "      /slow: {{ proxy.reverse.url: '{}' }}",
        backend.url("/")
    );
    let setup = Setup::http3("num-threads: 2", "", &paths)
        .file("www/hello.txt", "hello, world")
        .file("www/large", &large);
    let server = supervised(setup).start();
    let (pid, first) = (server.pid(), worker(server.pid()));
    std::thread::scope(|scope| {
        let old = scope.spawn(|| talk(&server, "slow"));
        eventually("the first download", || {
            (backend.connections() == 1).then_some(())
        });
        send(pid, Signal::HUP);
        server.wait_for_message(&format!("sending TERM to old workers:{first}"));
        server.wait_for_message("received SIGTERM, gracefully shutting down");
        talk(&server, "files");
        let second = children(pid)
            .into_iter()
            .find(|child| *child != first)
            .expect("the new worker is a child of the supervisor");
        let young = scope.spawn(|| talk(&server, "slow"));
        eventually("the second download", || {
            (backend.connections() == 2).then_some(())
        });
        send(pid, Signal::HUP);
        eventually("the third generation", || {
            let messages = server.messages();
            let line = messages
                .lines()
                .rfind(|line| line.contains("sending TERM to old workers:"))?;
            line.contains(&second.to_string()).then_some(())
        });
        talk(&server, "files");
        let before = server.messages();
        assert!(
            !before.contains(&format!("worker {first} died")),
            "{before}"
        );
        *gate
            .0
            .lock()
            .expect("no thread panics while it holds the lock") = true;
        gate.1.notify_all();
        for client in [old, young] {
            client.join().expect("the download is whole");
        }
        for worker in [first, second] {
            server.wait_for_message(&format!("old worker {worker} died, status:0"));
        }
    });
    talk(&server, "files");
}

#[test]
fn no_download_over_http3_is_lost_in_upgrades() {
    downloads_outlive_upgrades(|setup| setup.arguments(&["-m", "master"]));
}

#[test]
fn no_download_over_http3_is_lost_in_upgrades_by_a_foreign_supervisor() {
    let command = [
        "/usr/bin/start_server",
        "--port=127.0.0.1:@PORT@",
        "--port=127.0.0.1:u@PORT@",
        "--",
    ];
    downloads_outlive_upgrades(|setup| setup.launched_by(&command));
}

#[test]
fn no_new_connection_over_http3_waits_for_a_generation_that_hangs() {
    let server = Setup::http3("num-threads: 2", "", "")
        .file("www/hello.txt", "hello, world")
        .file(
            "www/large",
            (0..50_000).map(|n| format!("{n:07x} ")).collect::<String>(),
        )
        .arguments(&["-m", "master"])
        .start();
    let (pid, first) = (server.pid(), worker(server.pid()));
    send(first, Signal::STOP);
    send(pid, Signal::HUP);
    server.wait_for_message("an older process of this server hangs");
    talk(&server, "files");
    // When the stopped process continues, it ends as it was told to.
    send(first, Signal::CONT);
    server.wait_for_message(&format!("old worker {first} died, status:0"));
    talk(&server, "files");
}

#[test]
fn no_new_connection_over_http3_waits_for_a_generation_that_was_killed() {
    let server = Setup::http3("num-threads: 2", "", "")
        .file("www/hello.txt", "hello, world")
        .file(
            "www/large",
            (0..50_000).map(|n| format!("{n:07x} ")).collect::<String>(),
        )
        .arguments(&["-m", "master"])
        .start();
    let (pid, first) = (server.pid(), worker(server.pid()));
    // The first generation keeps running for an open connection. The second one is killed before it counts as started.
    let mut busy = server.connect();
    busy.send("\x16");
    send(pid, Signal::HUP);
    let second = eventually("the second generation", || {
        let young = children(pid).into_iter().find(|child| *child != first)?;
        let ready = format!("h2o server (pid:{young}) is ready");
        server.messages().contains(&ready).then_some(young)
    });
    send(second, Signal::KILL);
    server.wait_for_message(&format!("worker {second} "));
    talk(&server, "files");
}

/// The workers report the same, but with `-m daemon` nobody sees their standard error.
#[test]
fn a_supervisor_warns_of_what_its_workers_will_lack() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root becomes another user");
        return;
    }
    let folder = Folder::new();
    let directory = folder.make_dir("private");
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("the test owns the file");
    let config = format!(
        "listen: {{ host: 127.0.0.1, port: {} }}\ntemp-buffer-path: @DIR@/private\naccess-log: @DIR@/none/log\n{PATHS}",
        free_port()
    );
    let directory = folder.name_of("");
    let config = folder.write(
        "h2o.conf",
        config.replace("@DIR@", directory.trim_end_matches('/')),
    );
    let mut supervisor = Command::new(binary())
        .args(["-m", "master", "-c"])
        .arg(&config)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server can be run");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        supervisor.stderr.take().expect("standard error is a pipe"),
    ));
    let first: Vec<String> = lines.by_ref().take(2).flatten().collect();
    send(supervisor.id(), Signal::KILL);
    let _ = supervisor.wait();
    let text = first.join("\n");
    for want in [
        "[warning] temp-buffer-path: user nobody may not write into ",
        "/none (column 13; create it, or correct the path)",
    ] {
        assert!(text.contains(want), "{text}");
    }
}
