//! The program h2o: its options, its start and end as a process, and where it writes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use h2o_tests::{Folder, Output, Setup, binary, eventually, free_port, run};

const SITE: &str = "
hosts:
  default:
    paths: { /: { file.dir: @DIR@/www } }
";

fn h2o(args: &[&str]) -> Output {
    run(&binary().display().to_string(), args)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_version_report_names_what_is_built_in() {
    for option in ["-v", "--version", "--vers"] {
        let text = String::from_utf8(h2o(&[option]).success()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("h2o version "), "{text}");
        assert!(lines[1].starts_with("OpenSSL: "), "{text}");
        // The lines about features, which other programs search for, in the order in which H2O prints them.
        let parts: Vec<_> = lines[2..lines.len() - 1].to_vec();
        let known =
            ["mruby", "brotli", "zstd", "capabilities", "ktls"].map(|it| format!("{it}: YES"));
        let in_order = known.iter().filter(|it| parts.contains(&it.as_str()));
        let in_order: Vec<_> = in_order.collect();
        assert_eq!(parts, in_order, "{text}");
        assert!(parts.len() >= 3, "{text}");
        let last = lines.last().unwrap().to_lowercase();
        assert!(last.starts_with("key-exchanges: "), "{text}");
        for group in ["x25519", "secp256r1", "x25519mlkem768"] {
            assert!(last.contains(group), "{text}");
        }
    }
}

#[test]
fn help_lists_the_options() {
    for option in ["-h", "--help"] {
        let text = String::from_utf8(h2o(&[option]).success()).unwrap();
        assert!(text.starts_with("h2o version "), "{text}");
        for part in [
            "-c, --conf",
            "-m, --mode",
            "-t, --test",
            "-v, --version",
            "h2o.conf",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn every_directive_is_listed_once() {
    let text = String::from_utf8(h2o(&["--list-directives"]).success()).unwrap();
    let mut names: Vec<_> = text.lines().collect();
    assert_eq!(names[..3], ["hosts", "paths", "strict-match"]);
    for name in [
        "listen",
        "file.dir",
        "header.unsetunless",
        "error-doc",
        "h2olog",
        "http1-strict",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// A folder with a valid configuration that listens on port 1. Tests do not start a server with it.
fn with_good_config() -> (Folder, String) {
    let folder = Folder::new();
    let config = format!("listen: 1\n{}", SITE.replace("@DIR@", "/srv"));
    folder.write("h2o.conf", config);
    let path = folder.name_of("h2o.conf");
    (folder, path)
}

#[test]
fn a_good_configuration_is_called_ok() {
    let (_folder, path) = with_good_config();
    for args in [
        &["-t", "-c", &path][..],
        &["-c", &path, "--test"],
        &["--conf", &path, "-m", "test"],
        &["--mode=test", &format!("--conf={path}")],
        &["-t", &format!("-c{path}")],
        &["-tc", &path],
        &["--te", "--con", &path],
        &["-c", "/no/such/file", "-t", "-c", &path],
    ] {
        let output = h2o(args);
        assert_eq!(output.code, 0, "{args:?}: {output}");
        assert_eq!(output.text(), "configuration OK\n", "{args:?}");
    }
}

#[test]
fn wrong_usage_ends_with_78() {
    let (_folder, path) = with_good_config();
    for (args, want) in [
        (&["--no-such-option"][..], "no-such-option"),
        (&["-x"], "x"),
        (&["-c"], "c"),
        (&["--conf"], "conf"),
        (&["-c", &path, "-m", "sleepy"], "unknown mode:sleepy"),
        (&["-c", &path, "-m", "Worker"], "unknown mode:Worker"),
        (
            &["-t", "-c", &path, "reload"],
            "the command comes first: `h2o reload [options]`",
        ),
        (
            &["-t", "-c", &path, "top"],
            "the command comes first: `h2o top [options]`",
        ),
        (
            &["-c", "/no/such/file.conf"],
            "could not open configuration file /no/such/file.conf: No such file or directory",
        ),
        (
            &["-t", "-c", "/no/such/file.conf"],
            "could not open configuration file /no/such/file.conf: No such file or directory",
        ),
    ] {
        let output = h2o(args);
        assert_eq!(output.code, 78, "{args:?}: {output}");
        assert!(output.stderr.contains(want), "{args:?}: {output}");
        let is_about_options = output.stderr.starts_with("h2o: ");
        assert_eq!(
            output.stderr.contains("see h2o --help"),
            is_about_options,
            "{output}"
        );
        assert_eq!(output.text(), "", "{args:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = Folder::new();
    let config = format!("listen: {{ port: {port}, host: 127.0.0.1 }}\n{SITE}");
    folder.write("h2o.conf", config.replace("@DIR@", "/srv"));
    let output = h2o(&["-c", &folder.name_of("h2o.conf")]);
    assert_eq!(output.code, 78, "{output}");
    let want = format!("failed to listen to TCP port 127.0.0.1:{port}: Address already in use");
    assert!(output.stderr.contains(&want), "{output}");
}

#[test]
fn a_log_that_cannot_be_opened_is_named() {
    let want = "failed to open log file:/no/such/log:No such file or directory";
    for (directive, place) in [
        ("access-log", "h2o.conf:2] in command access-log, "),
        ("error-log", ""),
    ] {
        let config = format!("listen: @PORT@\n{directive}: /no/such/log\n{SITE}");
        let refused = Setup::new(&config).try_start().unwrap_err();
        assert_eq!(refused.code, Some(78), "{}", refused.stderr);
        let want = format!("{place}{want}");
        assert!(refused.stderr.contains(&want), "{}", refused.stderr);
    }
}

#[test]
fn nothing_is_opened_by_a_configuration_test() {
    let folder = Folder::new();
    let config = format!(
        "listen: {{ port: @DIR@/socket, type: unix }}\naccess-log: @DIR@/access-log\nerror-log: @DIR@/error-log\npid-file: @DIR@/pid\n{SITE}"
    );
    folder.write("h2o.conf", config.replace("@DIR@", &folder.name_of("")));
    let output = h2o(&["-t", "-c", &folder.name_of("h2o.conf")]);
    assert_eq!(output.text(), "configuration OK\n", "{output}");
    let names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["h2o.conf"]);
}

#[test]
fn term_lets_transfers_end_and_takes_no_new_ones() {
    let mut server = Setup::new(&format!(
        "listen: {{ port: @PORT@, host: 127.0.0.1 }}\npid-file: @DIR@/pid\n{SITE}"
    ))
    .file("www/large", vec![b'x'; 50_000_000])
    .file("www/small", "small")
    .start();
    let mut slow = server.connect();
    slow.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = slow.read_head();
    let _ = slow.read_exactly(1000);
    let mut idle = server.connect();
    idle.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n");
    idle.read_response("GET")
        .must_be("200 OK\nconnection: keep-alive\n\nsmall");

    server.terminate();
    let port = server.port();
    eventually("new connections to be refused", || {
        TcpStream::connect(("127.0.0.1", port)).err()
    });
    // The idle connection has no request in flight. If the server still answers one on it, the response must close the connection.
    let _ = idle.try_send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n");
    let last = idle.read_to_end();
    let last = String::from_utf8_lossy(&last).to_lowercase();
    assert!(
        last.is_empty() || last.contains("connection: close"),
        "{last}"
    );
    assert_eq!(head.field("content-length"), Some("50000000"));
    let rest = slow.read_exactly(50_000_000 - 1000);
    assert!(rest.iter().all(|&byte| byte == b'x'));
    let status = server.wait(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "{}", server.messages());
    server.wait_for_message("received SIGTERM, gracefully shutting down");
    assert!(!server.folder.at("pid").exists());
}

#[test]
fn term_ends_an_idle_server_at_once() {
    let server = Setup::new(&format!("listen: @PORT@\n{SITE}")).start();
    let deadline = h2o_tests::Deadline::after_secs(2);
    let _ = server.stop();
    assert!(!deadline.has_passed());
}

#[test]
fn the_pid_file_is_there_while_the_server_is() {
    let server = Setup::new(&format!("listen: @PORT@\npid-file: @DIR@/h2o.pid\n{SITE}")).start();
    assert_eq!(server.folder.read("h2o.pid"), format!("{}\n", server.pid()));
    let folder = server.stop();
    assert!(!folder.at("h2o.pid").exists());
}

/// The real, effective, saved and file-system user id of a process.
fn users(pid: u32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let ids = line.unwrap_or_default().split_whitespace();
    ids.map(str::to_owned).collect()
}

#[test]
fn a_server_started_by_root_runs_as_the_user_it_is_told() {
    if !is_root() {
        eprintln!("only root can switch users");
        return;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let id_of = |name: &str| {
        let line = passwd
            .lines()
            .find(|line| line.split(':').next() == Some(name));
        line.map(|line| line.split(':').nth(2).unwrap_or_default().to_owned())
    };
    // Without the directive `user` the server runs as `nobody`.
    for (directive, name) in [
        ("", "nobody"),
        ("user: nobody", "nobody"),
        ("user: daemon", "daemon"),
    ] {
        let Some(id) = id_of(name) else {
            eprintln!("there is no user {name}");
            continue;
        };
        let config = format!(
            "{directive}\nlisten: @PORT@\naccess-log: @DIR@/log\nerror-log: @DIR@/error-log\n{SITE}"
        );
        let server = Setup::new(&config).file("www/a", "a").start();
        assert_eq!(users(server.pid()), vec![id; 4], "{name}");
        assert_eq!(server.ask("GET /a").code(), 200);
        // The log belongs to root, because it was opened before the server changed its user.
        assert_eq!(fs::metadata(server.folder.at("log")).unwrap().uid(), 0);
    }
}

/// The value of a field in /proc/PID/task/TID/status (proc(5)) of each thread of a process.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let statuses =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let values = statuses.map(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap_or_default().trim().to_owned()
    });
    values.collect()
}

#[test]
fn capabilities_outlive_the_change_of_the_user() {
    if !is_root() {
        eprintln!("only root has capabilities to keep");
        return;
    }
    // CAP_DAC_READ_SEARCH (2) lets the server read files of other users; CAP_NET_RAW (13) changes nothing that the test requests.
    let cases = [
        ("", 403, 0),
        ("capabilities: []", 403, 0),
        (
            "capabilities: [CAP_NET_RAW, cap_dac_read_search]",
            200,
            1 << 2 | 1 << 13,
        ),
    ];
    for (directive, code, mask) in cases {
        let config = format!("user: nobody\n{directive}\nlisten: @PORT@\n{SITE}");
        let server = Setup::new(&config).file("www/a", "a").start();
        let file = server.folder.at("www/a");
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(server.ask("GET /a").code(), code, "{directive}");
        let kept = format!("{mask:016x}");
        for (field, value) in [
            ("CapEff:", &kept),
            ("CapPrm:", &kept),
            ("CapInh:", &format!("{:016x}", 0)),
        ] {
            let threads = of_threads(server.pid(), field);
            assert!(
                threads.len() > 1 && threads.iter().all(|found| found == value),
                "{directive}: {field} {threads:?}"
            );
        }
    }
    // A server that stays root gives up all other capabilities too.
    let config = format!("user: root\ncapabilities: [CAP_NET_RAW]\nlisten: @PORT@\n{SITE}");
    let server = Setup::new(&config).file("www/a", "a").start();
    let threads = of_threads(server.pid(), "CapEff:");
    assert!(
        threads.iter().all(|found| found == "0000000000002000"),
        "{threads:?}"
    );

    let config = format!("capabilities: [CAP_CHOWN, CAP_NONSENSE]\nlisten: @PORT@\n{SITE}");
    let refused = Setup::new(&config).try_start().unwrap_err();
    let text = "unknown capability name `CAP_NONSENSE`";
    assert!(
        refused.code == Some(78) && refused.stderr.contains(text),
        "{}",
        refused.stderr
    );
}

#[test]
fn only_root_can_switch_users() {
    if is_root() {
        eprintln!("this is for other users than root");
        return;
    }
    let config = format!("user: nobody\nlisten: @PORT@\n{SITE}");
    let refused = Setup::new(&config).try_start().unwrap_err();
    assert_eq!(refused.code, Some(71), "{}", refused.stderr);
}

#[test]
fn access_logs_go_to_files_commands_and_sockets() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.at("socket")).unwrap();
    let config = "
listen: @PORT@
access-log: { path: @DIR@/file, format: 'file %r' }
access-log: { path: '| cat > @DIR@/piped', format: 'pipe %r' }
access-log: { path: @DIR@/socket, format: 'socket %r' }
hosts:
  default:
    access-log: { path: @DIR@/json, escape: json, format: '{\"r\":\"%r\",\"a\":\"%{x-a}i\"}' }
    paths: { /: { file.dir: @DIR@/www } }
";
    let server = Setup::in_folder(folder, config).start();
    let (socket, _) = listener.accept().unwrap();
    assert_eq!(server.ask("GET /\"a?b").code(), 404);
    let line = "GET /\\x22a?b HTTP/1.1\n";
    for (file, word) in [("file", "file"), ("piped", "pipe")] {
        let log = server.read_until(file, "\n");
        assert_eq!(log, format!("{word} {line}"));
    }
    let mut received = String::new();
    let mut socket = BufReader::new(socket);
    socket.read_line(&mut received).unwrap();
    assert_eq!(received, format!("socket {line}"));
    assert_eq!(
        server.read_until("json", "\n"),
        "{\"r\":\"GET /\\\"a?b HTTP/1.1\",\"a\":null}\n"
    );
    let _ = server.stop();
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn access_logs_are_appended_to() {
    let config = format!(
        "num-threads: 1\nlisten: @PORT@\naccess-log: {{ path: @DIR@/log, format: '%U' }}\n{SITE}"
    );
    let server = Setup::new(&config).file("log", "before\n").start();
    for path in ["/1", "/2", "/3"] {
        let _ = server.ask(&format!("GET {path}"));
    }
    let folder = server.stop();
    assert_eq!(folder.read("log"), "before\n/1\n/2\n/3\n");
}

#[test]
fn messages_go_to_the_error_log() {
    for path in ["@DIR@/error-log", "'| cat > @DIR@/error-log'"] {
        let server = Setup::new(&format!("listen: @PORT@\nerror-log: {path}\n{SITE}")).start();
        let log = server.read_until("error-log", "ready to serve");
        let want = format!(
            "h2o server (pid:{}) is ready to serve requests with",
            server.pid()
        );
        assert!(log.contains(&want), "{log}");
        server.terminate();
        let _ = server.read_until("error-log", "received SIGTERM, gracefully shutting down");
    }
}

#[test]
fn unix_sockets_are_listened_on() {
    let config = format!("listen: {{ port: @DIR@/h2o.sock, type: unix, permission: 666 }}\n{SITE}");
    let server = Setup::new(&config).file("www/a", "over a socket").start();
    let socket = server.folder.name_of("h2o.sock");
    let mode = fs::metadata(&socket).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o666);
    h2o_tests::curl(&["--unix-socket", &socket, "http://a.example/a"])
        .must_be("200 OK\n\nover a socket");
}

#[test]
fn the_addresses_and_the_configuration_are_not_left_unsaid_at_the_start() {
    let config = format!(
        "listen: {{ host: 127.0.0.1, port: @PORT@ }}\nlisten: {{ port: @DIR@/h2o.sock, type: unix }}\n{SITE}"
    );
    let server = Setup::new(&config).start();
    server.wait_for_message(&format!(
        "[notice] {}: listening on 127.0.0.1:{}, unix:{}; configuration: {}\n",
        server.pid(),
        server.port(),
        server.folder.name_of("h2o.sock"),
        server.folder.name_of("h2o.conf"),
    ));
}

#[test]
fn a_congestion_control_that_is_named_is_not_replaced() {
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let allowed = allowed.unwrap_or_default();
    for name in ["cubic", "reno"] {
        if !is_root() && !allowed.split_whitespace().any(|allowed| allowed == name) {
            eprintln!("{name} is not for everybody here");
            continue;
        }
        let config = format!(
            "listen: {{ port: @PORT@, cc: {name} }}\naccess-log: {{ path: @DIR@/log, format: '%{{cc.name}}x' }}\n{SITE}"
        );
        let server = Setup::new(&config).start();
        let _ = server.ask("GET /");
        assert_eq!(server.stop().read("log"), format!("{name}\n"));
    }
}

#[test]
fn a_low_port_without_the_right_to_it_is_not_refused_without_advice() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if first.is_ok_and(|first| first.trim().parse() != Ok(1024)) {
        eprintln!("this system has other ports for root");
        return;
    }
    // Root without the capability CAP_NET_BIND_SERVICE may not open low ports either, so it is taken from root here.
    let (_folder, path) = with_good_config();
    let program = binary().display().to_string();
    let output = if is_root() {
        let drop = ["--bounding-set=-net_bind_service", &program, "-c", &path];
        run("setpriv", &drop)
    } else {
        run(&program, &["-c", &path])
    };
    assert_eq!(output.code, 78, "{output}");
    let start = "failed to listen to TCP port ANY:1: Permission denied";
    for part in [
        start,
        "ports below 1024 are for root",
        "setcap",
        "AmbientCapabilities",
    ] {
        assert!(output.stderr.contains(part), "{part}: {output}");
    }
}

#[test]
fn an_old_socket_file_is_replaced_and_another_file_is_not() {
    let folder = Folder::new();
    drop(UnixListener::bind(folder.at("h2o.sock")).unwrap());
    let config = format!("listen: {{ port: @DIR@/h2o.sock, type: unix }}\n{SITE}");
    let server = Setup::in_folder(folder, &config).start();
    let folder = server.stop();
    let _ = fs::remove_file(folder.at("h2o.sock"));
    folder.write("h2o.sock", "precious");
    let path = folder.name_of("h2o.sock");
    let refused = Setup::in_folder(folder, &config).try_start().unwrap_err();
    let want = format!("path:{path} already exists and is not an unix socket.");
    assert!(refused.stderr.contains(&want), "{}", refused.stderr);
    assert_eq!(refused.code, Some(78));
}

#[test]
fn no_second_server_takes_the_unix_socket_of_the_first() {
    let config = format!("listen: {{ port: @DIR@/h2o.sock, type: unix }}\n{SITE}");
    let server = Setup::new(&config).start();
    let path = server.folder.name_of("h2o.sock");
    let want = format!("{path}: another program listens to it");
    let file = server.folder.name_of("h2o.conf");
    for mode in ["worker", "master"] {
        let output = h2o(&["-m", mode, "-c", &file]);
        assert_eq!(output.code, 78, "{output}");
        assert!(output.stderr.contains(&want), "{output}");
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }
}

#[test]
fn a_server_does_not_call_itself_the_holder_of_its_port() {
    let folder = Folder::new();
    let port = free_port();
    let config = format!("listen: {port}\nlisten: {{ host: 127.0.0.1, port: {port} }}\n{SITE}");
    folder.write("h2o.conf", config.replace("@DIR@", "/srv"));
    let file = folder.name_of("h2o.conf");
    let output = h2o(&["-c", &file]);
    assert_eq!(output.code, 78, "{output}");
    let want = format!(
        "(column 9; the `listen` at {file}:1 covers the address; leave out one of the two)"
    );
    assert!(output.stderr.contains(&want), "{output}");
}

#[test]
fn the_proxy_protocol_gives_the_client_its_address() {
    let config = format!(
        "num-threads: 1\nlisten: {{ port: @PORT@, proxy-protocol: ON }}\naccess-log: {{ path: @DIR@/log, format: '%h %{{remote}}p' }}\n{SITE}"
    );
    let server = Setup::new(&config).start();
    for head in [
        "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n",
        "PROXY TCP6 2001:db8::7 2001:db8::1 4712 80\r\n",
        "PROXY UNKNOWN\r\n",
        "",
    ] {
        let mut connection = server.connect();
        connection.send(format!(
            "{head}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!(connection.read_response("GET").code(), 404, "{head}");
    }
    let folder = server.stop();
    let log = folder.read("log");
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines[..2], ["192.0.2.7 4711", "2001:db8::7 4712"], "{log}");
    assert!(lines[2].starts_with("127.0.0.1 "), "{log}");
    assert!(lines[3].starts_with("127.0.0.1 "), "{log}");
}

#[test]
fn a_port_that_another_process_has_is_told_with_that_process() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("the socket is bound").port();
    let folder = Folder::new();
    let config = folder.write(
        "h2o.conf",
        format!("listen: {{ host: 127.0.0.1, port: {port} }}\nhosts: {{ default: {{ paths: {{ /: {{ status: ON }} }} }} }}\n"),
    );
    let config = config.display().to_string();
    // The process with the port is the parent of the server, as a test, a shell or systemd is.
    let want = format!("(process {}) listens there", std::process::id());
    for options in [&["-c", &*config][..], &["-t", "-c", &config]] {
        let output = run(&binary().display().to_string(), options);
        assert!(output.stderr.contains(&want), "{output}");
    }
}
