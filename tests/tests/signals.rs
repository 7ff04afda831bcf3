//! What signals do and what they do not do, and how the server ends.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{
    Backend, Deadline, Folder, Server, Setup, binary, eventually, free_port, openssl, run,
};
use rustix::process::{Pid, Signal, kill_process};

const SITE: &str = "hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }";
/// A time limit that is longer than any shutdown in these tests takes.
const LIMIT: Duration = Duration::from_secs(15);

fn send(server: &Server, signal: Signal) {
    let pid = i32::try_from(server.pid()).expect("process ids are small");
    let pid = Pid::from_raw(pid).expect("the process has an id");
    kill_process(pid, signal).expect("the process is a child of the test");
}

/// Runs `meanwhile` again and again while h2load sends requests, all of which must be answered with 200.
fn under_load(server: &Server, options: &[&str], meanwhile: impl Fn()) {
    let url = server.url("/small");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let output = run(
                "h2load",
                &[options, &["-n", "6000", "-c", "10", &url]].concat(),
            );
            is_over.store(true, Relaxed);
            output
        });
        while !is_over.load(Relaxed) {
            meanwhile();
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = load.join().expect("the thread does not panic").text();
        assert!(
            text.contains(" 6000 succeeded, 0 failed, 0 errored, 0 timeout")
                && text.contains("status codes: 6000 2xx"),
            "{text}"
        );
    });
}

#[test]
fn no_request_is_lost_to_signals_that_do_not_end_the_server() {
    let server = Setup::new(&format!(
        "listen: @PORT@\naccess-log: {{ path: @DIR@/log, format: '%s' }}\n{SITE}"
    ))
    .file("www/small", "hello")
    .start();
    for options in [&["--h1"][..], &["-m", "10"]] {
        under_load(&server, options, || {
            for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
                send(&server, signal);
            }
        });
    }
    for text in [
        "received SIGHUP, reopening logs",
        "received SIGUSR1, reopening logs",
        "received SIGUSR2, which has no effect",
        "reopened logs; certificates reloaded: 0",
    ] {
        server.wait_for_message(text);
    }
    let folder = server.stop();
    assert_eq!(folder.read("log"), "200\n".repeat(12_000));
}

#[test]
fn no_signal_kills_a_server_that_is_starting() {
    let folder = Folder::new();
    let path = folder.at("h2o.conf");
    // The configuration is a named pipe: the server waits in its start until the test writes to it.
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("the file system has pipes");
    let mut server = Command::new(binary())
        .arg("-c")
        .arg(&path)
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let pid = Pid::from_child(&server);
    let signals = [Signal::HUP, Signal::USR1, Signal::USR2, Signal::TERM];
    let wanted: u64 = signals
        .iter()
        .map(|signal| 1 << (signal.as_raw() - 1))
        .sum();
    eventually("signals to be caught", || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.id())).ok()?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught & wanted == wanted).then_some(())
    });
    for signal in signals {
        kill_process(pid, signal).expect("the process is a child of the test");
    }
    let config = format!(
        "listen: {{ host: 127.0.0.1, port: {} }}\n{SITE}",
        free_port()
    );
    fs::write(&path, config.replace("@DIR@", "/srv")).expect("the server reads the pipe");
    // SIGTERM came during the start, and ends the server as soon as it has started.
    let status = eventually("the end of the server", || {
        server
            .try_wait()
            .expect("the process is a child of the test")
    });
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn no_line_goes_to_logs_that_were_moved_away_before_the_signal() {
    for signal in [Signal::USR1, Signal::HUP] {
        // The logs are in a directory of the starting user: if root has started the server, its workers may not create files there.
        let server = Setup::new(&format!(
            "listen: @PORT@\nerror-log: @DIR@/error-log\naccess-log: {{ path: @DIR@/log, format: '%U' }}\n{SITE}"
        ))
        .start();
        let closed = fs::Permissions::from_mode(0o755);
        fs::set_permissions(server.folder.path(), closed).expect("the test owns the file");
        let _ = server.ask("GET /1");
        let _ = server.read_until("log", "/1\n");
        for name in ["log", "error-log"] {
            let moved = server.folder.at(&format!("{name}.1"));
            fs::rename(server.folder.at(name), moved).expect("the file exists");
        }
        send(&server, signal);
        let new = server.read_until("error-log", "reopened logs; certificates reloaded: 0");
        assert!(!new.contains("failed"), "{new}");
        let _ = server.ask("GET /2");
        let folder = server.stop();
        assert_eq!(folder.read("log.1"), "/1\n", "{signal:?}");
        assert_eq!(folder.read("log"), "/2\n", "{signal:?}");
        let end = "gracefully shutting down";
        assert!(folder.read("error-log").contains(end));
        assert!(!folder.read("error-log.1").contains(end));
    }
}

#[test]
fn lines_stay_in_the_old_log_when_the_new_one_cannot_be_opened() {
    let server = Setup::new(&format!(
        "listen: @PORT@\naccess-log: {{ path: @DIR@/logs/log, format: '%U' }}\n{SITE}"
    ))
    .file("logs/log", "")
    .start();
    let (from, to) = (server.folder.at("logs"), server.folder.at("moved"));
    fs::rename(from, to).expect("the file exists");
    send(&server, Signal::USR1);
    server.wait_for_message("reopened logs, except those that failed");
    server.wait_for_message(
        "/logs/log:No such file or directory; the lines of this log still go to the file",
    );
    let _ = server.ask("GET /1");
    let folder = server.stop();
    assert_eq!(folder.read("moved/log"), "/1\n");
}

/// The serial number of the certificate that the server presents.
fn serial(server: &Server) -> String {
    let address = format!("127.0.0.1:{}", server.port());
    let output = openssl(&[
        "s_client",
        "-connect",
        &address,
        "-servername",
        "www.example.com",
    ]);
    let text = output.text();
    let start = text
        .find("-----BEGIN")
        .expect("s_client prints the certificate of the server");
    server.folder.write("seen.crt", &text[start..]);
    let seen = server.folder.name_of("seen.crt");
    openssl(&["x509", "-noout", "-serial", "-in", &seen]).text()
}

/// Starts a server with the certificate `server.crt` in the folder.
fn with_certificate(folder: Folder) -> Server {
    let tls = "{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }";
    Setup::in_folder(
        folder,
        &format!("listen: {{ port: @PORT@, ssl: {tls} }}\n{SITE}"),
    )
    .start()
}

#[test]
fn a_renewed_certificate_is_not_left_unserved_after_the_signal() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    // The key can be read by the starting user only, as certbot leaves it.
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(folder.at("server.key"), private.clone()).expect("the test owns the file");
    let server = with_certificate(folder);
    let old = serial(&server);
    self_signed(&server.folder, "server", Key::EcPkcs8, "www.example.com");
    fs::set_permissions(server.folder.at("server.key"), private).expect("the test owns the file");
    send(&server, Signal::HUP);
    // The server also watches the certificate's files, so it may have loaded them before the signal: the number of certificates in the
    // message may be 0.
    server.wait_for_message("reopened logs; certificates reloaded: ");
    assert_ne!(serial(&server), old);
}

#[test]
fn a_renewed_certificate_is_served_without_a_signal_once_it_matches_its_key() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    self_signed(&folder, "next", Key::EcPkcs8, "www.example.com");
    let private = fs::Permissions::from_mode(0o600);
    for key in ["server.key", "next.key"] {
        fs::set_permissions(folder.at(key), private.clone()).expect("the test owns the file");
    }
    let server = with_certificate(folder);
    let old = serial(&server);
    let rename = |kind: &str| {
        let [from, to] = ["next", "server"].map(|name| server.folder.at(&format!("{name}.{kind}")));
        fs::rename(from, to).expect("the folder is writable");
    };
    rename("crt");
    server.wait_for_message("the certificates loaded before stay in use");
    assert_eq!(serial(&server), old);
    rename("key");
    server.wait_for_message("certificates changed on disk; certificates reloaded: 1");
    assert_ne!(serial(&server), old);
}

/// Starts a server with an idle connection and a download whose client has stopped reading.
fn busy(settings: &str) -> (Server, h2o_tests::Raw) {
    let server = Setup::new(&format!(
        "{settings}\nlisten: @PORT@\npid-file: @DIR@/pid\naccess-log: {{ path: '| cat > @DIR@/log', format: '%U %s' }}\n{SITE}"
    ))
    .file("www/large", vec![b'x'; 50_000_000])
    .start();
    let mut slow = server.connect();
    slow.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    let _ = slow.read_head();
    (server, slow)
}

fn must_have_ended_well(mut server: Server) {
    let status = server.wait(LIMIT);
    assert_eq!(status.code(), Some(0), "{}", server.messages());
    assert!(!server.folder.at("pid").exists());
    // The log has the line of the request that was in progress when the server was told to end.
    assert_eq!(server.folder.read("log"), "/large 200\n");
}

#[test]
fn a_reload_that_comes_too_late_is_not_left_unanswered() {
    let (server, _slow) = busy("");
    send(&server, Signal::TERM);
    server.wait_for_message("received SIGTERM, gracefully shutting down");
    server.hup(
        "the server is shutting down; the configuration was not reloaded, the one in use stays",
    );
    send(&server, Signal::QUIT);
    must_have_ended_well(server);
}

#[test]
fn a_second_term_does_not_wait_for_connections() {
    let (server, _slow) = busy("");
    send(&server, Signal::TERM);
    server.wait_for_message("received SIGTERM, gracefully shutting down");
    send(&server, Signal::TERM);
    must_have_ended_well(server);
}

#[test]
fn quit_does_not_wait_for_connections() {
    let (server, _slow) = busy("");
    send(&server, Signal::QUIT);
    must_have_ended_well(server);
}

#[test]
fn no_download_outlives_the_shutdown_timeout() {
    let (server, slow) = busy("shutdown-timeout: 1");
    send(&server, Signal::TERM);
    server.wait_for_message("shutdown-timeout has passed, closing the remaining connections");
    must_have_ended_well(server);
    let mut rest = Vec::new();
    let _ = slow.stream().read_to_end(&mut rest);
    assert!(rest.len() < 50_000_000);
}

#[test]
fn no_tunnel_outlives_the_shutdown_timeout() {
    let backend = Backend::start(|talk| {
        let _ = talk.read_head();
        talk.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\nhello");
        talk.read_to_end();
    });
    let mut server = Setup::new(&format!(
        "shutdown-timeout: 1\nlisten: @PORT@\nhosts: {{ default: {{ paths: {{ /: {{ proxy.reverse.url: '{}', proxy.tunnel: ON }} }} }} }}",
        backend.url("/")
    ))
    .start();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n");
    assert_eq!(client.read_head().code(), 101);
    assert_eq!(client.read_exactly(5), b"hello");
    send(&server, Signal::TERM);
    let status = server.wait(LIMIT);
    assert_eq!(status.code(), Some(0), "{}", server.messages());
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn a_pid_file_in_a_directory_of_the_starting_user_does_not_stop_the_start() {
    // With the second mode, only the starting user may search the directory.
    for mode in [0o755, 0o700] {
        let folder = Folder::new();
        let directory = folder.make_dir("run");
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode))
            .expect("the test owns the file");
        let server = Setup::in_folder(
            folder,
            &format!("listen: @PORT@\npid-file: @DIR@/run/h2o.pid\n{SITE}"),
        )
        .start();
        assert_eq!(
            server.folder.read("run/h2o.pid"),
            format!("{}\n", server.pid())
        );
        let folder = server.stop();
        assert!(!folder.at("run/h2o.pid").exists());
    }
}

#[test]
fn the_pid_file_of_a_successor_is_not_removed() {
    let server = Setup::new(&format!("listen: @PORT@\npid-file: @DIR@/pid\n{SITE}")).start();
    server.folder.write("pid", "1\n");
    let folder = server.stop();
    assert_eq!(folder.read("pid"), "1\n");
}

#[test]
fn a_pid_file_of_a_running_server_is_not_taken_over_silently() {
    let server = Setup::new(&format!("listen: @PORT@\npid-file: @DIR@/pid\n{SITE}")).start();
    assert!(!server.messages().contains("pid file"));
    let pid_file = server.folder.name_of("pid");
    let second = Setup::new(&format!("listen: @PORT@\npid-file: {pid_file}\n{SITE}")).start();
    second.wait_for_message(&format!(
        "[warning] {}: the pid file {pid_file} is that of a server that runs",
        second.pid()
    ));
}

#[test]
fn a_directory_for_temporary_files_that_the_running_user_cannot_use_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root becomes another user");
        return;
    }
    let folder = Folder::new();
    let directory = folder.make_dir("private");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))
        .expect("the test owns the file");
    assert_eq!(fs::metadata(&directory).expect("the file exists").uid(), 0);
    let config = format!("listen: @PORT@\ntemp-buffer-path: @DIR@/private\n{SITE}");
    let refused = Setup::in_folder(folder, &config)
        .try_start()
        .expect_err("the server must refuse a directory that it cannot write to");
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("temp-buffer-path: failed to create temporary file"),
        "{}",
        refused.stderr
    );
}

#[test]
fn an_idle_server_does_not_wait_before_it_ends() {
    let server = Setup::new(&format!("shutdown-timeout: 60\nlisten: @PORT@\n{SITE}")).start();
    let deadline = Deadline::after_secs(10);
    let _ = server.stop();
    assert!(!deadline.has_passed());
}

#[test]
fn a_fatal_signal_is_reported_and_ends_the_server() {
    for (signal, number) in [(Signal::SEGV, 11), (Signal::BUS, 7), (Signal::ABORT, 6)] {
        // The limits of scripts have a handler of their own for SIGSEGV.
        let path = "/: { mruby.handler: 'lambda { |env| [200, {}, []] }' }";
        let site = SITE.replace("/: { file.dir: @DIR@/www }", path);
        let mut server = Setup::new(&format!("listen: @PORT@\n{site}")).start();
        send(&server, signal);
        server.wait_for_message(&format!("received fatal signal {number}\n"));
        let status = server.wait(LIMIT);
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(number)
        );
    }
}
