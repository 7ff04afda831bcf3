//! Reloads of the configuration during requests, WebSockets and downloads.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{
    Backend, Folder, Raw, Server, Setup, Talk, binary, curl, eventually, free_port, run,
};

/// A configuration with the paths `paths`, a status page, and the global directives `global`.
fn site(global: &str, paths: &str) -> String {
    format!(
        "{global}\nlisten: {{ host: 127.0.0.1, port: @PORT@ }}\nhosts:\n  default:\n    paths:\n      /status: {{ status: ON }}\n{paths}"
    )
}

/// A path that redirects to `/NAME`, as lines of a configuration.
fn redirect(path: &str, name: &str) -> String {
    format!("      {path}: {{ redirect: {{ status: 302, url: /{name} }} }}\n")
}

/// Sends a request on a connection that stays open. Returns the status, the target of the redirect and, if the server closes the
/// connection, `close`.
fn ask(connection: &mut Raw, path: &str) -> String {
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
    let response = connection.read_response("GET");
    let target = response.field("location").unwrap_or_default();
    let end = response.field("connection");
    let end = end.filter(|end| *end == "close").unwrap_or_default();
    format!("{} {target} {end}", response.code())
        .trim()
        .to_owned()
}

/// The value of a number on the status page.
fn status_number(server: &Server, name: &str) -> u64 {
    let text = server.ask("GET /status/json?show=main,reloads").text();
    let key = format!("\"{name}\": ");
    let found = text.split_once(&key).map(|(_, rest)| rest);
    let digits = found.and_then(|rest| rest.split([',', '\n', '}']).next());
    digits
        .and_then(|digits| digits.trim().parse().ok())
        .unwrap_or_else(|| panic!("no number {name} in the report {text}"))
}

/// Waits until this many earlier configurations are still in use by connections.
fn wait_for_retiring(server: &Server, count: u64) {
    eventually(&format!("{count} configurations to be left"), || {
        (status_number(server, "reloads.retiring") == count).then_some(())
    });
}

#[test]
fn the_next_request_of_a_connection_gets_what_a_reload_brings() {
    let mut server = Setup::new(&site("", &redirect("/a", "one"))).start();
    let mut connection = server.connect();
    assert_eq!(ask(&mut connection, "/a"), "302 /one");
    assert_eq!(ask(&mut connection, "/b"), "404");
    server.write_config(&site("", &(redirect("/a", "two") + &redirect("/b", "new"))));
    server.reload();
    assert_eq!(ask(&mut connection, "/a"), "302 /two");
    assert_eq!(ask(&mut connection, "/b"), "302 /new");
    server.write_config(&site("", &redirect("/b", "three")));
    server.reload();
    assert_eq!(ask(&mut connection, "/a"), "404");
    assert_eq!(ask(&mut connection, "/b"), "302 /three");
    assert_eq!(status_number(&server, "reloads.succeeded"), 2);
}

#[test]
fn a_broken_configuration_changes_nothing_and_says_so() {
    let mut server = Setup::new(&site("", &redirect("/a", "one"))).start();
    let broken = [
        ("hosts: [", "failed to parse configuration file"),
        (
            &site("", "      /a: { redirectt: /b }\n"),
            "unknown command: redirectt",
        ),
        (
            &site("access-log: @DIR@/missing/log", &redirect("/a", "two")),
            "h2o.conf:1] in command access-log, failed to open log file:",
        ),
        (
            &site("max-connections: 4000000000", &redirect("/a", "two")),
            "should not exceed the hard limit",
        ),
    ];
    let mut connection = server.connect();
    for (config, want) in broken {
        server.write_config(config);
        server.hup("the configuration was not reloaded, the one in use stays");
        assert!(server.messages().contains(want), "{}", server.messages());
        assert_eq!(ask(&mut connection, "/a"), "302 /one", "{want}");
    }
    assert_eq!(status_number(&server, "reloads.failed"), 4);
    assert_eq!(status_number(&server, "reloads.succeeded"), 0);
    assert_eq!(status_number(&server, "reloads.retiring"), 0);
}

#[test]
fn the_error_log_counts_the_tasks_of_scripts_that_a_reload_ends() {
    let script = "      /task:\n        mruby.handler: |\n          lambda { |env| 3.times { task { sleep 1000 } }; task { }; [200, {}, [\"begun\"]] }\n";
    let mut server = Setup::new(&site("num-threads: 1", script)).start();
    server.ask("GET /task").must_be("200 OK\n\nbegun");
    server.write_config(&site("num-threads: 1", &redirect("/task", "two")));
    server.reload();
    server.wait_for_message("tasks of its scripts that were ended on this worker: 3\n");
}

/// Runs `h2o reload` with these options. Returns its exit status, standard output and standard error.
fn h2o_reload(server: &Server, options: &[&str]) -> (i32, String, String) {
    let config = server.folder.name_of("h2o.conf");
    let program = binary().display().to_string();
    let output = run(&program, &[&["reload", "-c", &config], options].concat());
    (output.code, output.text(), output.stderr)
}

#[test]
fn h2o_reload_ends_with_the_answer_of_the_server() {
    let config = |name: &str| site("pid-file: @DIR@/pid", &redirect("/a", name));
    let mut server = Setup::new(&config("one")).start();
    let mut connection = server.connect();
    assert_eq!(ask(&mut connection, "/a"), "302 /one");
    server.write_config(&config("two"));
    let path = server.folder.name_of("h2o.conf");
    let (code, lines, errors) = h2o_reload(&server, &["--diff"]);
    let difference = "- hosts.default.paths.\"/a\".redirect.url: /one\n+ hosts.default.paths.\"/a\".redirect.url: /two\n";
    assert_eq!((code, &*lines, &*errors), (0, difference, ""));
    assert_eq!(ask(&mut connection, "/a"), "302 /one");
    let done = format!("reloaded the configuration: {path}\n");
    assert_eq!(h2o_reload(&server, &[]), (0, done, String::new()));
    assert_eq!(ask(&mut connection, "/a"), "302 /two");
    // `h2o reload` reports an error in the configuration with the same text as `h2o -t`, also with `--diff`.
    server.write_config(&config("three").replace("redirect:", "redirectt:"));
    let test = run(&binary().display().to_string(), &["-t", "-c", &path]);
    let text = test.stderr;
    assert!(text.contains("h2o.conf:7"), "{text}");
    for options in [&[][..], &["--diff"]] {
        assert_eq!(
            h2o_reload(&server, options),
            (78, String::new(), text.clone())
        );
    }
    // `h2o reload` also says in which line the log is that cannot be opened.
    server.write_config(&site(
        "pid-file: @DIR@/pid\naccess-log: { path: @DIR@/missing/log }",
        &redirect("/a", "three"),
    ));
    let log = server.folder.name_of("missing/log");
    assert_eq!(
        h2o_reload(&server, &[]),
        (
            78,
            String::new(),
            format!(
                "[{path}:2] in command access-log, failed to open log file:{log}:No such file or directory (column 21)\n"
            )
        )
    );
    // `h2o reload` names the changes that need a restart of the server.
    server.write_config(&site(
        "pid-file: @DIR@/pid\nnum-threads: 7\nerror-log: @DIR@/other\nssl-session-resumption: { mode: ticket, lifetime: 100 }",
        &redirect("/a", "four"),
    ));
    let (code, lines, errors) = h2o_reload(&server, &["--diff"]);
    let want = "+ num-threads: 7\n";
    assert!(code == 0 && lines.contains(want), "{code} {lines} {errors}");
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!(code, 0, "{errors}");
    for name in ["num-threads", "error-log", "ssl-session-resumption"] {
        let want = format!("[warning] `{name}` cannot change while the server runs");
        assert!(errors.contains(&want), "{errors}");
        assert!(lines.contains(&want), "{lines}");
    }
    assert_eq!(ask(&mut connection, "/a"), "302 /four");
    // The changes still wait for a restart: each reload says so, until the configuration is as it was at the start.
    let (code, _, errors) = h2o_reload(&server, &[]);
    let want = "[warning] `num-threads` cannot change while the server runs";
    assert!(code == 0 && errors.contains(want), "{errors}");
    server.write_config(&config("five"));
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!((code, &*errors), (0, ""));
    assert_eq!(ask(&mut connection, "/a"), "302 /five");
    assert!(server.folder.at("pid.sock").exists());
    let folder = server.stop();
    assert!(!folder.at("pid.sock").exists());
}

#[test]
fn a_server_that_fails_to_start_leaves_the_control_socket_of_the_running_one() {
    let mut server = Setup::new(&site("pid-file: @DIR@/pid", &redirect("/a", "one"))).start();
    let text = server.folder.read("h2o.conf").replace(
        &format!("port: {}", server.port()),
        &format!("port: {}", free_port()),
    );
    let other = server
        .folder
        .write("other.conf", format!("temp-buffer-path: /proc\n{text}"));
    let program = binary().display().to_string();
    let output = run(&program, &["-c", &other.display().to_string()]);
    assert_eq!(output.code, 78, "{output}");
    let want = "temp-buffer-path: failed to create temporary file";
    assert!(output.stderr.contains(want), "{output}");

    server.write_config(&site("pid-file: @DIR@/pid", &redirect("/a", "two")));
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(ask(&mut server.connect(), "/a"), "302 /two");
    let files = std::fs::read_dir(server.folder.path()).expect("the folder is readable");
    let names = files.flatten().map(|file| file.file_name());
    let sockets = names.filter(|name| name.to_string_lossy().starts_with("pid."));
    assert_eq!(sockets.collect::<Vec<_>>(), ["pid.sock"]);
}

#[test]
fn changed_options_of_sockets_that_stay_open_are_named() {
    let config = |tcp: &str, unix: &str| {
        format!(
            "pid-file: @DIR@/pid
listen: {{ host: 127.0.0.1, port: @PORT@, {tcp} }}
listen: {{ type: unix, port: @DIR@/socket, {unix} }}
hosts: {{ default: {{ paths: {{ /: {{ status: ON }} }} }} }}
"
        )
    };
    let mut server = Setup::new(&config("sndbuf: 100000", "permission: 600")).start();
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!((code, &*errors), (0, ""));
    server.write_config(&config(
        "sndbuf: 200000, rcvbuf: 100000, cc: reno",
        "permission: 660",
    ));
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!(code, 0, "{errors}");
    let port = format!("127.0.0.1:{}", server.port());
    let socket = server.folder.name_of("socket");
    let wants = [
        ("sndbuf", &port),
        ("rcvbuf", &port),
        ("cc", &port),
        ("permission", &socket),
    ];
    for (name, address) in wants {
        let want = format!(
            "[warning] `{name}` of `listen` {address} cannot change while the server runs: the old value counts until a restart\n"
        );
        assert!(errors.contains(&want), "{want}{errors}");
    }
    assert_eq!(errors.lines().count(), wants.len(), "{errors}");
}

#[test]
fn a_certificate_that_clients_refuse_is_told_at_a_reload_too() {
    let folder = Folder::new();
    self_signed(&folder, "site", Key::EcPkcs8, "a.test");
    let config = |host: &str| {
        format!(
            "pid-file: @DIR@/pid
listen:
  host: 127.0.0.1
  port: @PORT@
  ssl: {{ certificate-file: '@DIR@/site.crt', key-file: '@DIR@/site.key' }}
hosts: {{ {host}: {{ paths: {{ /: {{ status: ON }} }} }} }}
"
        )
    };
    let mut server = Setup::in_folder(folder, &config("a.test")).start();
    assert_eq!(h2o_reload(&server, &[]).2, "");
    server.write_config(&config("b.test"));
    let (code, _, errors) = h2o_reload(&server, &[]);
    let want = "is not for `b.test`: clients refuse it (its names: a.test, 127.0.0.1)\n";
    assert!(code == 0 && errors.ends_with(want), "{code} {errors}");
}

#[test]
fn sizes_of_buffers_that_the_kernel_reduces_are_told_once_for_a_listener() {
    let folder = Folder::new();
    self_signed(&folder, "site", Key::EcPkcs8, "localhost");
    let config = "num-threads: 2
listen: { host: 127.0.0.1, port: @PORT@, sndbuf: 2000000000 }
listen:
  host: 127.0.0.1
  port: @QUICPORT@
  type: quic
  quic: { rcvbuf: 2000000000, sndbuf: 4096 }
  ssl: { certificate-file: '@DIR@/site.crt', key-file: '@DIR@/site.key' }
hosts: { default: { paths: { /: { status: ON } } } }
";
    let server = Setup::in_folder(folder, config).start();
    let told = |name: &str, port: u16| {
        let messages = server.messages();
        let want = format!("`{name}` of 127.0.0.1:{port} is ");
        let lines = messages.lines().filter(|line| line.contains(&want));
        lines
            .filter(|line| line.contains(" bytes instead of 2000000000: "))
            .count()
    };
    let (tcp, quic) = (server.port(), server.port_of("QUICPORT"));
    assert_eq!(
        [
            told("sndbuf", tcp),
            told("rcvbuf", quic),
            told("sndbuf", quic)
        ],
        [1, 1, 0],
        "{}",
        server.messages()
    );
}

#[test]
fn h2o_reload_says_why_it_cannot_ask() {
    let mut server = Setup::new(&site("", &redirect("/a", "one"))).start();
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!(code, 78);
    assert!(errors.contains("has no `pid-file`"), "{errors}");
    server.write_config(&site("pid-file: @DIR@/pid", &redirect("/a", "one")));
    let (code, _, errors) = h2o_reload(&server, &[]);
    assert_eq!(code, 71);
    assert!(errors.contains("no server answers at"), "{errors}");
    let (code, _, errors) = h2o_reload(&server, &["--now"]);
    assert_eq!(code, 78);
    assert!(errors.contains("unrecognized option '--now'"), "{errors}");
    let (code, _, errors) = h2o_reload(&server, &["--diff=no"]);
    assert_eq!(code, 78);
    let want = "option '--diff' doesn't allow an argument";
    assert!(errors.contains(want), "{errors}");
    let (code, _, errors) = h2o_reload(&server, &["now"]);
    assert_eq!(code, 78);
    assert!(errors.contains("unexpected argument: now"), "{errors}");
    let (code, text, _) = h2o_reload(&server, &["--help"]);
    assert!(code == 0 && text.contains("--diff"), "{text}");
}

/// If the test runs as root, a port that only root may open; otherwise any free port.
fn port_for_root() -> u16 {
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (600..1024).find(is_free).unwrap_or_else(free_port)
}

#[test]
fn what_is_new_is_opened_with_the_rights_of_the_starting_user() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let private = folder.at("private");
    std::fs::create_dir(&private).expect("the folder is writable");
    let is_private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&private, is_private.clone()).expect("the test owns the file");
    self_signed(&folder, "private/new", Key::EcPkcs8, "localhost");
    let mut server = Setup::in_folder(folder, &site("", &redirect("/a", "one"))).start();
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(server.folder.at("h2o.conf"), mode.clone())
        .expect("the test owns the file");
    let port = port_for_root();
    let global = format!(
        "listen: {{ host: 127.0.0.1, port: {port}, ssl: {{ certificate-file: @DIR@/private/new.crt, key-file: @DIR@/private/new.key }} }}\naccess-log: {{ path: @DIR@/private/log, format: '%U' }}"
    );
    server.write_config(&site(&global, &redirect("/a", "two")));
    std::fs::set_permissions(server.folder.at("h2o.conf"), mode).expect("the test owns the file");
    server.reload();
    let answer = curl(&["--insecure", &format!("https://127.0.0.1:{port}/a")]);
    assert_eq!(answer.field("location"), Some("/two"), "{answer}");
    assert_eq!(server.read_until("private/log", "/a"), "/a\n");
}

#[test]
fn requests_end_with_the_configuration_that_they_began_with() {
    let (release, is_released) = channel();
    let is_released = Mutex::new(is_released);
    let backend = Backend::start(move |talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            if request.target() == "/slow" {
                let _ = is_released.lock().map(|wait| wait.recv());
            }
            talk.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\nx-from: backend\r\n\r\nfine");
        }
    });
    let proxy = |header: &str| {
        site(
            header,
            &format!("      /: {{ proxy.reverse.url: '{}' }}\n", backend.url("/")),
        )
    };
    let mut server = Setup::new(&proxy("header.set: 'X-A: one'\nserver-name: one")).start();
    let mut slow = server.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.wait_for("/slow");
    let next = "header.set: 'X-A: two'\nserver-name: two";
    server.write_config(&site(next, &redirect("/", "gone")));
    server.reload();
    assert_eq!(status_number(&server, "reloads.retiring"), 1);
    release
        .send(())
        .expect("the backend still waits for the signal of the test");
    let response = slow.read_response("GET");
    assert_eq!((response.code(), response.field("x-a")), (200, Some("one")));
    assert_eq!(response.field("server"), Some("one"));
    assert_eq!(ask(&mut slow, "/"), "302 /gone/");
    wait_for_retiring(&server, 0);
    // Paths of the current configuration do not use this backend, so the server closes its connections to it.
    backend.wait_for_ended(1);
}

#[test]
fn tunnels_and_downloads_go_on_through_reloads() {
    let backend = Backend::start(|talk: &mut Talk| {
        let Some(request) = talk.read_head() else {
            return;
        };
        if request.target() == "/large" {
            talk.send("HTTP/1.1 200 OK\r\ncontent-length: 30000000\r\n\r\n");
            for _ in 0..300 {
                talk.send([b'x'; 100_000]);
            }
            return;
        }
        talk.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
        );
        while let Some(bytes) = talk.read_some() {
            talk.send(bytes);
        }
    });
    let proxy = |name: &str| {
        let url = backend.url("/");
        site(
            "",
            &format!("      /: {{ proxy.reverse.url: '{url}', proxy.tunnel: ON }}\n").to_owned(),
        ) + &redirect("/name", name)
    };
    let mut server = Setup::new(&proxy("one")).start();
    let mut tunnel = server.connect();
    tunnel.send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(tunnel.read_head().code(), 101);
    let mut download = server.connect();
    download.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(download.read_head().code(), 200);
    let mut received = 0;
    for turn in 0..5 {
        server.write_config(&proxy(&format!("turn-{turn}")));
        server.reload();
        tunnel.send(format!("hello {turn}"));
        assert_eq!(tunnel.read_exactly(7), format!("hello {turn}").as_bytes());
        received += download.read_exactly(1_000_000).len();
    }
    // Tunnel and download continue even if their path no longer exists.
    server.write_config(&site("", &redirect("/name", "gone")));
    server.reload();
    tunnel.send("still here");
    assert_eq!(tunnel.read_exactly(10), b"still here");
    received += download.read_exactly(25_000_000).len();
    assert_eq!(received, 30_000_000);
    assert_eq!(ask(&mut download, "/name"), "302 /gone");
    wait_for_retiring(&server, 1);
    drop(tunnel);
    wait_for_retiring(&server, 0);
}

/// Runs `meanwhile` again and again while h2load sends requests to `port`, which must all be answered.
fn under_load(port: u16, options: &[&str], mut meanwhile: impl FnMut()) {
    let url = format!("http://127.0.0.1:{port}/a");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let output = run(
                "h2load",
                &[options, &["-n", "8000", "-c", "8", &url]].concat(),
            );
            is_over.store(true, Relaxed);
            output
        });
        while !is_over.load(Relaxed) {
            meanwhile();
        }
        let text = load.join().expect("the thread does not panic").text();
        assert!(
            text.contains(" 8000 succeeded, 0 failed, 0 errored, 0 timeout"),
            "{text}"
        );
    });
}

#[test]
fn no_request_is_lost_to_reloads() {
    let backend = Backend::by_request(|_| h2o_tests::FINE.to_owned());
    let url = backend.url("/");
    let configs = [
        site("", &redirect("/", "one")),
        site("server-name: other", &redirect("/a", "two")),
        site("", &format!("      /: {{ proxy.reverse.url: '{url}' }}\n")),
    ];
    let mut server = Setup::new(&configs[0]).start();
    let port = server.port();
    let mut turn = 0;
    for options in [&["--h1"][..], &["-m", "10"]] {
        under_load(port, options, || {
            turn += 1;
            server.write_config(&configs[turn % 3]);
            server.reload();
        });
    }
    assert!(turn >= 4, "{turn} reloads");
}

#[test]
fn listeners_appear_and_vanish() {
    let with = |extra: &str| site(extra, &redirect("/a", "here"));
    let second = "listen: { host: 127.0.0.1, port: @SECONDPORT@ }";
    let unix = "listen: { type: unix, port: @DIR@/socket }";
    let mut server = Setup::new(&with("")).start();
    assert_eq!(status_number(&server, "listeners"), 1);
    let mut kept = server.connect();
    server.write_config(&with(&format!("{second}\n{unix}")));
    server.reload();
    assert_eq!(status_number(&server, "listeners"), 3);
    let port = server.port_of("SECONDPORT");
    let mut other = Raw::connect(port);
    assert_eq!(ask(&mut other, "/a"), "302 /here");
    let socket = server.folder.at("socket");
    let mut unix_client =
        std::os::unix::net::UnixStream::connect(&socket).expect("the server listens on the socket");
    unix_client
        .write_all(b"GET /a HTTP/1.0\r\n\r\n")
        .expect("the socket is connected");
    server.write_config(&with(""));
    server.reload();
    assert_eq!(status_number(&server, "listeners"), 1);
    // A connection that the removed listener accepted may send one more request; the response closes it.
    assert_eq!(ask(&mut other, "/a"), "302 /here close");
    let refused = std::net::TcpStream::connect(("127.0.0.1", port));
    assert!(refused.is_err(), "a socket still listens on {port}");
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_err());
    // Another reload adds the listener again.
    server.write_config(&with(second));
    server.reload();
    assert_eq!(ask(&mut Raw::connect(port), "/a"), "302 /here");
    assert_eq!(ask(&mut kept, "/a"), "302 /here");
    // If another process uses the new port, the reload fails with the line of the configuration, and the running one stays.
    let taken = Backend::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let config = with(&format!(
        "listen: {{ host: 127.0.0.1, port: {} }}",
        taken.port()
    ));
    server.write_config(&config);
    server.hup("the configuration was not reloaded");
    let text = server.messages();
    assert!(
        text.contains("h2o.conf:1] in command listen, failed to listen to"),
        "{text}"
    );
    assert_eq!(ask(&mut Raw::connect(port), "/a"), "302 /here");
    assert_eq!(status_number(&server, "listeners"), 2);
}

/// The running user may not write to the directory of the socket, but root, who started the server, may.
#[test]
fn unix_sockets_appear_and_vanish_in_a_directory_of_root() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let with = |extra: &str| format!("user: nobody\n{}", site(extra, &redirect("/a", "here")));
    let unix = |more: &str| {
        with(&format!(
            "listen: {{ type: unix, port: @DIR@/socket{more} }}"
        ))
    };
    let mut server = Setup::new(&with("")).start();
    let socket = server.folder.at("socket");
    let target = || {
        let socket = socket.to_str().expect("the path is text");
        curl(&["--unix-socket", socket, "http://a.test/a"])
    };
    let access = || {
        let found = std::fs::metadata(&socket).expect("the socket has a file");
        (found.uid(), found.mode() & 0o777)
    };
    for (more, owner, mode) in [
        (", permission: 660", 0, 0o660),
        (", permission: 606, owner: daemon", 1, 0o606),
    ] {
        server.write_config(&unix(more));
        server.reload();
        assert_eq!(target().code(), 302);
        assert_eq!(access(), (owner, mode));
        server.write_config(&with(""));
        server.reload();
        assert!(std::os::unix::net::UnixStream::connect(&socket).is_err());
    }
    // Root takes no socket from whoever listens there.
    let other = UnixListener::bind(server.folder.at("other")).expect("a new socket");
    std::fs::rename(server.folder.at("other"), &socket).expect("the test owns the file");
    server.write_config(&unix(""));
    server.hup("another program listens to it");
    drop(other);
    server.reload();
    assert_eq!(target().code(), 302);
}

#[test]
fn no_reload_takes_a_unix_socket_from_whoever_listens_there() {
    let answers =
        |socket: &std::path::Path| std::os::unix::net::UnixStream::connect(socket).is_ok();
    let folder = Folder::new();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let busy = holder
        .local_addr()
        .expect("the socket has an address")
        .port();
    let config = |listeners: &str| site(listeners, &redirect("/a", "here"));
    let own = "listen: { type: unix, port: @DIR@/own }";
    let mut server = Setup::in_folder(folder, &config(own)).start();
    let path = server.folder.at("own");
    assert!(answers(&path));
    // Another name of the server's own socket is the same listener, whether or not the reload succeeds.
    let renamed = "listen: { type: unix, port: @DIR@/../@NAME/own }";
    let name = server
        .folder
        .path()
        .file_name()
        .expect("the folder has a name");
    let renamed = renamed.replace("@NAME", &name.to_string_lossy());
    let taken = format!("{renamed}\nlisten: {{ host: 127.0.0.1, port: {busy} }}");
    server.write_config(&config(&taken));
    server.hup("the configuration was not reloaded");
    assert!(answers(&path));
    server.write_config(&config(&renamed));
    server.reload();
    assert!(answers(&path));
    // The socket of another program is left to it.
    let other = server.folder.at("other");
    let listener = std::os::unix::net::UnixListener::bind(&other).expect("the folder is writable");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&other, everybody).expect("the test owns the file");
    server.write_config(&config(&format!(
        "{renamed}\nlisten: {{ type: unix, port: @DIR@/other }}"
    )));
    server.hup(&format!(
        "failed to listen to socket:{}: another program listens to it",
        other.display()
    ));
    assert!(answers(&other));
    drop(listener);
    server.reload();
    assert!(answers(&other) && answers(&path));
}

#[test]
fn a_reload_that_needs_a_restart_for_an_address_says_so() {
    let specific = site("", &redirect("/a", "here"));
    let any = specific.replace(
        "listen: { host: 127.0.0.1, port: @PORT@ }",
        "listen: @PORT@",
    );
    assert_ne!(specific, any);
    let server = Setup::new(&any).start();
    server.replace_config(&specific);
    server.hup("covers the address; this change needs a restart");
    server.replace_config(&format!(
        "{any}listen: {{ host: 127.0.0.1, port: @PORT@ }}\n"
    ));
    server.hup("covers the address; leave out one of the two");
}

#[test]
fn a_reload_reads_what_only_the_starting_user_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let private = std::fs::Permissions::from_mode(0o700);
    for (name, host) in [("one", "one.test"), ("two", "two.test")] {
        std::fs::create_dir(folder.at(name)).expect("the folder is writable");
        let text = format!("{host}: {{ paths: {{ /: {{ redirect: /{name} }} }} }}\n");
        folder.write(&format!("{name}/site.yaml"), &text);
    }
    let script = folder.at("two/script.rb").display().to_string();
    let authority = folder.at("two/site.crt").display().to_string();
    let paths = format!(
        "three.test:
  paths:
    /script: {{ mruby.handler-file: {script} }}
    /proxy: {{ proxy.reverse.url: 'https://127.0.0.1:1', proxy.ssl.cafile: {authority} }}
"
    );
    std::fs::create_dir(folder.at("three")).expect("the folder is writable");
    folder.write("three/site.yaml", &paths);
    folder.write("two/script.rb", "lambda { |env| [200, {}, [\"script\"]] }");
    self_signed(&folder, "two/site", Key::EcPkcs8, "localhost");
    std::fs::set_permissions(folder.at("two"), private).expect("the test owns the folder");
    let config = "listen: { host: 127.0.0.1, port: @PORT@ }
pid-file: @DIR@/pid
hosts: !file @DIR@/*/site.yaml
";
    let server = Setup::in_folder(folder, config).start();
    for _ in 0..2 {
        for name in ["one", "two"] {
            let host = format!("Host: {name}.test");
            let answer = curl(&["-H", &host, &server.url("/")]);
            let want = format!("/{name}/");
            assert_eq!(answer.field("location"), Some(&*want), "{answer}");
        }
        let answer = curl(&["-H", "Host: three.test", &server.url("/script")]);
        assert!(answer.to_string().ends_with("script"), "{answer}");
        server.reload();
    }
}
