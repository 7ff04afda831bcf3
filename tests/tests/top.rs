//! `h2o top`, which shows numbers of the running server that it gets through the control socket.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use h2o_tests::{Backend, ClosedPort, FINE, Server, Setup, binary, eventually, run};

/// Runs `h2o top` with these options. Returns its exit status, standard output and standard error.
fn h2o_top(server: &Server, options: &[&str]) -> (i32, String, String) {
    let config = server.folder.name_of("h2o.conf");
    let program = binary().display().to_string();
    let output = run(&program, &[&["top", "-c", &config], options].concat());
    (output.code, output.text(), output.stderr)
}

/// Returns what `work` returns, while a client sends requests for `path` without pause.
fn under_load<T>(server: &Server, path: &str, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect();
            for number in 0.. {
                if is_over.load(Relaxed) {
                    break;
                }
                // The server closes a connection after a number of requests, so the client opens a new one before.
                if number % 100 == 99 {
                    connection = server.connect();
                }
                connection.send(format!("GET {path} HTTP/1.1\r\nHost: default\r\n\r\n"));
                let _ = connection.read_response("GET");
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The number in the column `index` of the line that ends with `path`.
fn column(text: &str, path: &str, index: usize) -> f64 {
    let line = text.lines().find(|line| line.ends_with(path));
    let line = line.unwrap_or_else(|| panic!("the output has no line for {path}: {text}"));
    let value = line.split_ascii_whitespace().nth(index);
    value.and_then(|value| value.parse().ok()).unwrap_or(-1.0)
}

#[test]
fn it_shows_requests_paths_backends_and_connections() {
    let (fine, closed) = (Backend::answering(FINE), ClosedPort::new());
    let config = format!(
        "
pid-file: @DIR@/pid
metrics: ON
num-threads: 2
listen: @PORT@
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /app:
        proxy.health-check: {{ interval: 50, fall: 1, rise: 1 }}
        proxy.reverse.url: ['{}', '{}']
",
        fine.url("/"),
        closed.url()
    );
    let server = Setup::new(&config).file("www/small", "hello").start();
    assert_eq!(server.ask("GET /app").code(), 200);
    let (code, text, errors) = under_load(&server, "/small", || h2o_top(&server, &[]));
    assert_eq!((code, &*errors), (0, ""));
    let count = column(&text, "  default/", 0);
    assert!(count > 0.0, "{text}");
    assert!(column(&text, "  default/", 3) >= count, "{text}");
    assert_eq!(column(&text, "  default/app", 0), 0.0, "{text}");
    assert_eq!(column(&text, "  default/app", 3), 1.0, "{text}");
    for part in [
        "   threads 2\n".to_owned(),
        "requests/s ".to_owned(),
        format!("  down  {}  for default/app\n", closed.url()),
        format!("  up    {}  for default/app\n", fine.url("/")),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    assert!(!text.contains("requests/s 0.0 "), "{text}");
    // The request of `h2o top` itself is counted neither as a request nor as a connection.
    let shows = |connections: usize| {
        let (_, text, _) = h2o_top(&server, &["--once", "--sort", "time"]);
        text.contains("requests/s 0.0 ") && text.contains(&format!("connections {connections} of "))
    };
    eventually("no requests and connections", || shows(0).then_some(()));
    // The server has accepted the connection at the latest when the response is there.
    let mut client = server.connect();
    client.send("GET /small HTTP/1.1\r\nHost: default\r\n\r\n");
    assert_eq!(client.read_response("GET").code(), 200);
    eventually("no requests, and one connection", || shows(1).then_some(()));
}

#[test]
fn on_a_terminal_it_goes_on() {
    let config = "pid-file: @DIR@/pid\nlisten: @PORT@\nhosts: { default: { paths: { /: { redirect: /x } } } }\n";
    let server = Setup::new(config).start();
    let command = format!(
        "{} top -c {}",
        binary().display(),
        server.folder.name_of("h2o.conf")
    );
    let mut terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1) is a part of every system");
    let mut shown = terminal
        .stdout
        .take()
        .expect("the output of the terminal is a pipe");
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while text.matches("\x1b[H").count() < 3 {
        let count = shown.read(&mut bytes).expect("the terminal can be read");
        assert!(count > 0, "h2o top ended: {text}");
        text += &String::from_utf8_lossy(&bytes[..count]);
    }
    let _ = terminal.kill();
    let _ = terminal.wait();
    assert!(
        text.contains("paths are not counted: set `metrics: ON`\x1b[K\x1b[J"),
        "{text:?}"
    );
    assert!(text.contains("requests/s 0.0"), "{text:?}");
}

#[test]
fn it_says_why_it_cannot_ask() {
    let config = |global: &str| {
        format!(
            "{global}\nlisten: @PORT@\nhosts: {{ default: {{ paths: {{ /: {{ redirect: /x }} }} }} }}\n"
        )
    };
    let mut server = Setup::new(&config("")).start();
    let (code, _, errors) = h2o_top(&server, &[]);
    assert_eq!(code, 78);
    assert!(errors.contains("has no `pid-file`"), "{errors}");
    server.write_config(&config("pid-file: @DIR@/pid"));
    let (code, _, errors) = h2o_top(&server, &[]);
    assert_eq!(code, 71);
    assert!(errors.contains("no server answers at"), "{errors}");
    for (option, want) in [
        ("--sort=size", "--sort takes requests or time"),
        ("now", "unexpected argument: now"),
        ("--two", "unrecognized option '--two'"),
    ] {
        let (code, _, errors) = h2o_top(&server, &[option]);
        assert_eq!(code, 78, "{option}");
        assert!(errors.contains(want), "{option}: {errors}");
    }
    let (code, text, _) = h2o_top(&server, &["--help"]);
    assert!(code == 0 && text.contains("--once"), "{text}");
}

#[test]
fn it_asks_the_newest_generation_under_a_supervisor() {
    let config = |number: usize| {
        format!(
            "pid-file: @DIR@/pid\nmetrics: ON\nnum-threads: 1\nlisten: @PORT@\nhosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }}, /of-{number}: {{ file.dir: @DIR@/www }} }} }} }}\n"
        )
    };
    let mut server = Setup::new(&config(1))
        .file("www/small", "hello")
        .arguments(&["-m", "master"])
        .start();
    assert_eq!(server.ask("GET /of-1/small").code(), 200);
    let (code, first, errors) = h2o_top(&server, &[]);
    assert_eq!((code, &*errors), (0, ""));
    assert!(first.contains("default/of-1"), "{first}");
    // This open connection keeps the old generation of the server running after the reload.
    let mut connection = server.connect();
    connection.send("GET /small HTTP/1.1\r\nHost: default\r\n\r\n");
    assert_eq!(connection.read_response("GET").code(), 200);
    server.write_config(&config(2));
    server.signal(rustix::process::Signal::HUP);
    server.wait_for_message("killing old workers");
    // The old generation may accept connections until the signal has reached it.
    eventually("the new generation", || {
        (server.ask("GET /of-2/small").code() == 200).then_some(())
    });
    let (code, second, errors) = h2o_top(&server, &[]);
    assert_eq!((code, &*errors), (0, ""));
    assert!(second.contains("default/of-2"), "{second}");
    assert!(!second.contains("default/of-1"), "{second}");
}
