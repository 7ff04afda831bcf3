//! What `make install` installs: the helper programs that configurations name, and the units of systemd; and the messages between systemd
//! and the server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use h2o_tests::{
    Folder, OcspAuthority, Setup, binary, curl, eventually, free_port, install, openssl, run,
};
use rustix::process::{Pid, Signal, kill_process};

fn helper(folder: &Folder, name: &str) -> String {
    folder.name_of(&format!("opt/h2o/share/h2o/{name}"))
}

#[test]
fn helpers_are_this_program_under_other_names() {
    let folder = Folder::new();
    let _ = install(&folder);
    let output = run(&helper(&folder, "start_server"), &["--version"]);
    assert_eq!(output.code, 0, "{output}");
    let output = run(&helper(&folder, "fetch-ocsp-response"), &["--help"]);
    assert!(output.success().starts_with(b"Usage: fetch-ocsp-response"));
    // To a helper program, a word such as `reload`, which is a subcommand of `h2o`, is the name of a file.
    let output = run(&helper(&folder, "fetch-ocsp-response"), &["reload"]);
    assert!(output.stderr.contains("failed to read reload"));
    let bundle =
        fs::read_link(helper(&folder, "ca-bundle.crt")).expect("ca-bundle.crt is a symbolic link");
    assert_eq!(bundle.to_str(), Some("/etc/ssl/certs/ca-certificates.crt"));

    let setuidgid = helper(&folder, "setuidgid");
    let output = run(&setuidgid, &["no-such-user", "id"]);
    assert!(
        output.stderr.contains("unknown user:no-such-user"),
        "{output}"
    );
    let output = run(&setuidgid, &["nobody", "sh", "-c", "id -un; id -Gn"]);
    if rustix::process::getuid().is_root() {
        assert_eq!(output.text(), "nobody\nnogroup\n", "{output}");
    } else {
        assert!(
            output.stderr.contains("failed to change the running user"),
            "{output}"
        );
    }

    let trace = format!(
        "received fatal signal 11\n{}(+0x1) [0x1]\n",
        binary().display()
    );
    let annotate = helper(&folder, "annotate-backtrace-symbols");
    let annotated = h2o_tests::run_with_input(&annotate, &[], &trace).text();
    assert!(
        annotated.starts_with("received fatal signal 11\n"),
        "{annotated}"
    );
    assert_eq!(annotated.lines().count(), 2, "{annotated}");
}

#[test]
fn kill_on_close_ends_the_command_with_the_server() {
    let command = "trap \"echo ended; exit\" TERM; echo begun; while :; do sleep 0.05; done";
    assert_eq!(kill_on_close(command), "begun\nended\n");
}

#[test]
fn kill_on_close_waits_for_the_server_if_the_command_has_ended() {
    assert_eq!(kill_on_close("echo begun"), "begun\n");
}

/// Runs this command of the shell under kill-on-close, and closes the pipe when it has written `begun`. Returns what it has written.
fn kill_on_close(command: &str) -> String {
    let folder = Folder::new();
    let _ = install(&folder);
    folder.write("remove/file", "");
    let line = format!(
        "exec {} --rm={} -- sh -c '{command}' 5<&0",
        helper(&folder, "kill-on-close"),
        folder.name_of("remove")
    );
    let out = fs::File::create(folder.at("out")).expect("the folder is writable");
    let mut command = Command::new("sh");
    command
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(out);
    let mut child = command.spawn().expect("the system has a shell");
    let pipe = child.stdin.take();
    eventually("the output of the command", || {
        folder.read("out").contains("begun").then_some(())
    });
    // The helper gets some time to do what it should not.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(folder.at("remove").exists());
    drop(pipe);
    let status = child.wait().expect("the process is a child of the test");
    assert!(status.success(), "{status}");
    assert!(!folder.at("remove").exists());
    folder.read("out")
}

/// A process that is killed when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn responses_are_fetched_from_the_responder_that_the_certificate_names() {
    let folder = Folder::new();
    let _ = install(&folder);
    let authority = OcspAuthority::new(&folder, "a");
    let file = |name: &str| folder.name_of(name);
    let fetch = || run(&helper(&folder, "fetch-ocsp-response"), &[&file("chain")]);
    let output = fetch();
    assert_eq!(output.code, 75, "{output}");
    assert!(
        output
            .stderr
            .contains("no valid response from http://127.0.0.1:"),
        "{output}"
    );

    let _responder = authority.respond(&folder);
    let response = eventually("an OCSP response", || {
        let output = fetch();
        (output.code == 0).then_some(output.stdout)
    });
    folder.write("response", response);
    let shown = openssl(&[
        "ocsp",
        "-noverify",
        "-resp_text",
        "-respin",
        &file("response"),
    ])
    .text();
    assert!(shown.contains("Cert Status: good"), "{shown}");

    let output = run(&helper(&folder, "fetch-ocsp-response"), &[&file("ca.crt")]);
    assert_eq!(output.code, 78, "{output}");
}

#[test]
fn units_are_those_of_systemd() {
    let folder = Folder::new();
    let _ = install(&folder);
    let units = folder.at("opt/h2o/lib/systemd/system");
    for unit in ["h2o.service", "h2o.socket"] {
        let path = units.join(unit);
        let text = fs::read_to_string(&path).expect("the file is installed");
        assert!(!text.contains("/usr/local/"), "{text}");
        // The test does not install the program at the unit's path, so the path of the tested binary replaces it.
        let program = binary().to_str().expect("the path is UTF-8");
        fs::write(&path, text.replace("/opt/h2o/bin/h2o", program))
            .expect("the test owns the file");
    }
    let names = ["h2o.service", "h2o.socket"].map(|unit| units.join(unit).display().to_string());
    let output = run(
        "systemd-analyze",
        &["verify", "--recursive-errors=no", &names[0], &names[1]],
    );
    assert_eq!((output.code, &*output.stderr), (0, ""), "{output}");
}

const SITE: &str = "num-threads: 2\nlisten: { host: 127.0.0.1, port: @PORT@ }\nhosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }";

/// Makes a socket for messages to the service manager, like that of systemd: everyone may send to it.
fn service_manager(name: &str) -> UnixDatagram {
    let socket = UnixDatagram::bind(name).expect("the folder is writable");
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(name, all).expect("the test owns the file");
    let limit = Some(Duration::from_secs(20));
    socket
        .set_read_timeout(limit)
        .expect("the time is not zero");
    socket
}

/// The next message that the service manager receives.
fn told(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 1024];
    let len = manager
        .recv(&mut bytes)
        .expect("the server sends a message");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[test]
fn systemd_is_told_what_the_service_does() {
    for mode in ["worker", "master"] {
        let folder = Folder::new();
        let name = folder.name_of("notify");
        let manager = service_manager(&name);
        let mut server = Setup::in_folder(folder, SITE)
            .variable("NOTIFY_SOCKET", &name)
            .arguments(&["-m", mode])
            .start();
        let pid = server.pid();
        let ready = format!("READY=1\nMAINPID={pid}\nSTATUS=serving");
        assert_eq!(told(&manager), ready);
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        kill_process(id.expect("process ids are small"), Signal::HUP)
            .expect("the process is a child of the test");
        let reloading = told(&manager);
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        let micros = micros.and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
        assert!(micros.is_some_and(|micros| micros > 0), "{reloading}");
        assert_eq!(told(&manager), ready);
        server.terminate();
        assert!(told(&manager).starts_with("STOPPING=1"));
        assert!(server.wait(Duration::from_secs(15)).success());
    }
}

#[test]
fn a_service_manager_that_was_away_is_told_again_and_one_that_reads_nothing_delays_nobody() {
    let folder = Folder::new();
    let name = folder.name_of("notify");
    let manager = service_manager(&name);
    let server = Setup::in_folder(folder, SITE)
        .variable("NOTIFY_SOCKET", &name)
        .start();
    assert!(told(&manager).starts_with("READY=1"));
    drop(manager);
    fs::remove_file(&name).expect("the test owns the file");
    server.reload();
    server.wait_for_message("failed to tell systemd the state of the service: ");
    server.ask("GET /").must_be("404 File Not Found");
    let manager = service_manager(&name);
    server.reload();
    assert!(told(&manager).starts_with("RELOADING=1"));
    assert!(told(&manager).starts_with("READY=1"));
    // The test reads no more messages of the server: the queue of the socket is full after a few of them.
    for _ in 0..8 {
        server.reload();
    }
    server.ask("GET /").must_be("404 File Not Found");
}

#[test]
fn a_watchdog_hears_of_a_server_whose_workers_turn_and_of_no_other() {
    let folder = Folder::new();
    let name = folder.name_of("notify");
    let manager = service_manager(&name);
    let server = Setup::in_folder(folder, SITE)
        .variable("NOTIFY_SOCKET", &name)
        .variable("WATCHDOG_USEC", "100000")
        .start();
    let mut heard = 0;
    while heard < 5 {
        heard += usize::from(told(&manager) == "WATCHDOG=1");
    }
    drop((server, manager));
    // The watchdog variables are for another process, so the server sends no watchdog messages.
    let folder = Folder::new();
    let name = folder.name_of("notify");
    let manager = service_manager(&name);
    let server = Setup::in_folder(folder, SITE)
        .variable("NOTIFY_SOCKET", &name)
        .variable("WATCHDOG_USEC", "1000")
        .variable("WATCHDOG_PID", "1")
        .start();
    assert!(told(&manager).starts_with("READY=1"));
    server.ask("GET /").must_be("404 File Not Found");
    server.terminate();
    assert!(told(&manager).starts_with("STOPPING=1"));
}

#[test]
fn sockets_of_systemd_are_served() {
    let folder = Folder::new();
    folder.write("www/small", "hello");
    let (port, own) = (free_port(), free_port());
    let config = SITE
        .replace(
            "{ host: 127.0.0.1, port: @PORT@ }",
            &format!("{port}\nlisten: {own}"),
        )
        .replace("@DIR@", folder.path().to_str().expect("the path is UTF-8"));
    let path = folder.write("h2o.conf", config);
    // systemd passes one socket for both address families, as `ListenStream=PORT` makes it; the server opens the other port itself.
    let mut command = Command::new("systemd-socket-activate");
    command.args(["-l", &port.to_string()]);
    command.arg(binary()).arg("-c").arg(&path);
    let log = fs::File::create(folder.at("log")).expect("the folder is writable");
    let activated = Killed(command.stderr(log).spawn().expect("systemd is installed"));
    eventually("the message that systemd listens on the socket", || {
        folder.read("log").contains("Listening on").then_some(())
    });
    for host in ["127.0.0.1", "[::1]"] {
        for port in [port, own] {
            let response = curl(&[&format!("http://{host}:{port}/small")]);
            assert_eq!(response.text().lines().last(), Some("hello"));
        }
    }

    // After a reload the socket of systemd still serves both address families.
    let process = rustix::process::Pid::from_child(&activated.0);
    rustix::process::kill_process(process, rustix::process::Signal::HUP)
        .expect("the process is a child of the test");
    let log = eventually("the result of the reload", || {
        let log = folder.read("log");
        (log.contains("reloaded the configuration") || log.contains("not reloaded")).then_some(log)
    });
    assert!(!log.contains("was not reloaded"), "{log}");
    for host in ["127.0.0.1", "[::1]"] {
        let response = curl(&[&format!("http://{host}:{port}/small")]);
        assert_eq!(response.text().lines().last(), Some("hello"));
    }

    drop(activated);

    // systemd passes a socket that no `listen` of the configuration names.
    let config = folder
        .read("h2o.conf")
        .replace(&format!("listen: {port}\n"), "");
    folder.write("h2o.conf", config);
    let unknown = free_port();
    let mut command = Command::new("systemd-socket-activate");
    command.args(["-l", &unknown.to_string()]);
    command.arg(binary()).arg("-c").arg(&path);
    let log = fs::File::create(folder.at("log")).expect("the folder is writable");
    let mut refused = Killed(command.stderr(log).spawn().expect("systemd is installed"));
    eventually("a connection to the socket of systemd", || {
        std::net::TcpStream::connect(("127.0.0.1", unknown)).ok()
    });
    let status = refused
        .0
        .wait()
        .expect("the process is a child of the test");
    assert_eq!(status.code(), Some(78));
    let log = folder.read("log");
    assert!(
        log.contains("no configuration found for fd:3 passed in by $LISTEN_FDS"),
        "{log}"
    );
}
