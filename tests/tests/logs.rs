//! What the server writes about itself: the error log, log commands, and logs whose reader does not read.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use h2o_tests::{ClosedPort, Deadline, Folder, Raw, Setup, binary, eventually, free_port};

/// A path that answers 502 and writes a line into the error log.
fn failing(closed: &ClosedPort) -> String {
    format!("/down: {{ proxy.reverse.url: '{}' }}", closed.url())
}

#[test]
fn no_line_of_the_error_log_lacks_its_time_its_level_and_its_process() {
    let closed = ClosedPort::new();
    let server = Setup::new(&format!(
        "listen: @PORT@\nerror-log: @DIR@/error-log\nhosts: {{ default: {{ paths: {{ {} }} }} }}",
        failing(&closed)
    ))
    .variable("TZ", "XST-3:30")
    .start();
    assert_eq!(server.ask("GET /down").code(), 502);
    let pid = server.pid();
    let folder = server.stop();
    let log = folder.read("error-log");
    for text in [
        format!("[notice] {pid}: h2o server (pid:{pid}) is ready to serve requests with "),
        format!("[error] {pid}: [lib/core/proxy.c] in request:"),
        format!("[notice] {pid}: received SIGTERM, gracefully shutting down\n"),
    ] {
        assert!(log.contains(&text), "{text}: {log}");
    }
    for line in log.lines() {
        // Shape of a line: `2026-11-22T10:11:12.345+03:30 [level] PID: text`.
        let mut words = line.splitn(3, ' ');
        let time = words.next().unwrap_or_default();
        let shape: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000+00:00", "{line}");
        assert!(time.ends_with("+03:30"), "{line}");
        let level = words.next().unwrap_or_default();
        assert!(
            ["[error]", "[warning]", "[notice]"].contains(&level),
            "{line}"
        );
        let rest = words.next().unwrap_or_default();
        assert!(rest.starts_with(&format!("{pid}: ")), "{line}");
    }
}

#[test]
fn times_are_those_of_the_zone_that_the_environment_names() {
    for (zone, offset) in [("Asia/Kolkata", "+0530"), (":Asia/Tokyo", "+0900")] {
        let server = Setup::new(
            "listen: @PORT@\naccess-log: { path: @DIR@/log, format: '%t' }\nhosts: { default: { paths: { /: { redirect: /a } } } }",
        )
        .variable("TZ", zone)
        .start();
        assert_eq!(server.ask("GET /").code(), 302);
        let line = server.read_until("log", "]");
        assert!(line.ends_with(&format!(" {offset}]\n")), "{zone}: {line}");
    }
}

#[test]
fn no_request_waits_for_a_reader_of_standard_error() {
    let closed = ClosedPort::new();
    let folder = Folder::new();
    let port = free_port();
    folder.write(
        "h2o.conf",
        format!(
            "num-threads: 1\nconnection-budget: 1000000\nlisten: {{ host: 127.0.0.1, port: {port} }}\nhosts: {{ default: {{ paths: {{ {} }} }} }}",
            failing(&closed)
        ),
    );
    let mut server = Command::new(binary())
        .args(["-c", &folder.name_of("h2o.conf")])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut errors = BufReader::new(
        server
            .stderr
            .take()
            .expect("the standard error of the server is a pipe"),
    );
    let mut text = String::new();
    while !text.contains("is ready to serve") {
        assert!(
            errors.read_line(&mut text).expect("the bytes are UTF-8") > 0,
            "{text}"
        );
    }
    // From here on the test does not read the server's standard error. The pipe holds 64 KiB, less than a thousand lines.
    let mut client = Raw::connect(port);
    for _ in 0..2000 {
        client.send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response("GET").code(), 502);
    }
    // The full pipe does not delay the end of the server either.
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .expect("the process is a child of the test");
    drop(client);
    let status = eventually("the end of the server", || {
        server
            .try_wait()
            .expect("the process is a child of the test")
    });
    assert!(status.success(), "{status}");
}

#[test]
fn no_line_is_lost_when_a_log_command_is_killed() {
    let config = "
num-threads: 1
listen: @PORT@
access-log: { path: '| echo $$ >> @DIR@/pids; exec cat >> @DIR@/log', format: '%U' }
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let server = Setup::new(config).start();
    // Log commands that are started again run as the starting user too, not as the user of the workers.
    let closed = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(server.folder.path(), closed).expect("the test owns the file");
    let kill = |count: usize| {
        let pids = eventually("the start of another log command", || {
            let pids = server.folder.read("pids");
            (pids.lines().count() == count).then_some(pids)
        });
        let pid = pids
            .lines()
            .last()
            .unwrap_or_default()
            .parse()
            .expect("the text is a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("the process id is not 0");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
            .expect("the process is a child of the test");
    };
    let mut want = String::new();
    for round in 1..=3 {
        let _ = server.ask(&format!("GET /{round}/before"));
        // A line that the command has read is no longer the server's to keep, so the test waits until the command has written it.
        want += &format!("/{round}/before\n");
        let _ = server.read_until("log", &want);
        kill(round);
        // If a command dies while it reads, the lines it reads are lost, so the test waits until it has ended.
        eventually("the end of the command", || {
            let ends = server
                .messages()
                .matches("log command ended (signal: 9")
                .count();
            (ends == round).then_some(())
        });
        for number in 0..100 {
            let _ = server.ask(&format!("GET /{round}/{number}"));
            want += &format!("/{round}/{number}\n");
        }
    }
    server.wait_for_message("log command ended (signal: 9 (SIGKILL)), restarting it: echo $$");
    let folder = server.stop();
    assert_eq!(folder.read("log"), want);
}

#[test]
fn the_end_does_not_wait_for_a_log_command_that_reads_nothing() {
    let config = "
num-threads: 1
listen: @PORT@
access-log: { path: '| exec sleep 1000', format: '%U' }
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let server = Setup::new(config).start();
    let _ = server.ask("GET /");
    let deadline = Deadline::after_secs(10);
    let _ = server.stop();
    assert!(!deadline.has_passed());
}

#[test]
fn files_that_may_not_be_read_and_document_roots_that_are_missing_are_not_kept_quiet() {
    let config = "
listen: @PORT@
access-log: { path: @DIR@/log, format: '%{error}x' }
hosts:
  default:
    paths:
      /files: { file.dir: @DIR@/www }
      /typo: { file.dir: @DIR@/wwww }
      /none: { file.dir: @DIR@/www, file.index: [] }
";
    let server = Setup::new(config).file("www/secret", "x").start();
    let secret = server.folder.name_of("www/secret");
    let nobody = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(&secret, nobody).expect("the test owns the file");
    for _ in 0..20 {
        assert_eq!(server.ask("GET /files/secret").code(), 403);
        assert_eq!(server.ask("GET /typo/a").code(), 404);
    }
    // A missing file and a directory that may not be listed are not logged as errors: the status tells the client everything.
    assert_eq!(server.ask("GET /files/missing").code(), 404);
    assert_eq!(server.ask("GET /none/").code(), 404);
    let denied = format!(
        "[lib/handler/file.c] in request:www.example.com/files/secret:{secret}:Permission denied (the server runs as user "
    );
    let root = server.folder.name_of("wwww/");
    let missing = format!(
        "[lib/handler/file.c] in request:www.example.com/typo/a:{root}:No such file or directory"
    );
    for text in [&denied, &missing] {
        server.wait_for_message(text);
    }
    let messages = server.messages();
    let folder = server.stop();
    for text in [&denied, &missing] {
        // The server writes five messages of each kind a minute; a minute may have ended meanwhile.
        let lines = messages.matches(text).count();
        assert!(lines == 5 || lines == 10, "{lines}: {messages}");
        assert_eq!(folder.read("log").matches(text).count(), 20);
    }
    assert!(
        !messages.contains("/files/missing:") && !messages.contains("/none/:"),
        "{messages}"
    );
}

#[test]
fn an_error_log_whose_command_is_gone_is_not_told_to_that_log_alone() {
    let config = "
listen: @PORT@
error-log: '| echo $$ >> @DIR@/pids; exec cat >> @DIR@/error-log'
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let server = Setup::new(config).start();
    let pid = server.read_until("pids", "\n");
    let pid = pid.trim().parse().expect("the text is a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("the process id is not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        .expect("the process is a child of the test");
    server.wait_for_message("log command ended (signal: 9 (SIGKILL)), restarting it: echo");
    // The message goes to standard error and, by the command that was started again, into the error log.
    let _ = server.read_until("error-log", "log command ended (signal: 9");
}

#[test]
fn python_reads_json_lines_whatever_clients_send() {
    const READ: &str = "
import datetime, json, sys
for line in sys.stdin:
    it = json.loads(line)
    datetime.datetime.strptime(it.pop('time'), '%Y-%m-%dT%H:%M:%S.%f%z')
    assert it.pop('duration') >= 0
    assert type(it.pop('client-port')) is int
    print(ascii(it))
";
    let config = "
listen: @PORT@
access-log:
  path: @DIR@/log
  format: json
  fields:
    [time, client, client-port, method, path, query, status, bytes, duration, request-header.x-id, ssl.cipher]
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let server = Setup::new(config).file("www/page", "0123456789").start();
    let _ = server.ask("GET /page?q='%22%5C'\nX-Id: \"\\\" \\u0041 \u{e9}\t}");
    // Another worker may serve the next connection, so the test waits for each line to keep their order.
    let _ = server.read_until("log", "\n");
    let mut broken = server.connect();
    broken.send("GET /\r\n\r\n bad : 1\r\n\r\n");
    let _ = server.read_until("log", "\"status\":400");
    let folder = server.stop();
    let text = folder.read("log");
    let read = h2o_tests::run_with_input("python3", &["-c", READ], &text).success();
    let read = String::from_utf8(read).expect("the output of the script is ASCII");
    let mut lines = read.lines();
    assert_eq!(
        lines.next(),
        Some(
            r#"{'client': '127.0.0.1', 'method': 'GET', 'path': '/page', 'query': "?q='%22%5C'", 'status': 200, 'bytes': 10, 'request-header.x-id': '"\\" \\u0041 \xc3\xa9\t}', 'ssl.cipher': None}"#
        ),
        "{text}"
    );
    let broken = lines.next().unwrap_or_default();
    assert!(broken.contains("'path': None"), "{text}");
    assert!(broken.contains("'status': 400"), "{text}");
}

#[test]
fn lines_for_standard_output_do_not_move_to_the_error_log() {
    let site = "hosts: { default: { paths: { /: { redirect: /a } } } }";
    let log = |path: &str, tag: &str| format!("access-log: {{ path: {path}, format: '{tag} %U' }}");
    for stream in ["/dev/stdout", "/dev/stderr", "/proc/self/fd/1"] {
        let config = format!(
            "pid-file: @DIR@/pid\nlisten: @PORT@\nerror-log: @DIR@/error-log\n{}\n{site}",
            log(stream, "first")
        );
        let mut server = Setup::new(&config).start();
        let answers = |path: &str| assert_eq!(server.ask(&format!("GET {path}")).code(), 302);
        answers("/start");
        server.wait_for_message("first /start\n");
        server.signal(rustix::process::Signal::USR1);
        let _ = server.read_until("error-log", "reopened logs; certificates");
        answers("/usr1");
        server.wait_for_message("first /usr1\n");
        // A log that a reload adds goes there, too, although the descriptor is the error log by now.
        server.write_config(&format!("{config}\n{}", log(stream, "second")));
        server.signal(rustix::process::Signal::HUP);
        let _ = server.read_until("error-log", "reloaded the configuration");
        let answers = |path: &str| assert_eq!(server.ask(&format!("GET {path}")).code(), 302);
        answers("/hup");
        server.wait_for_message("first /hup\n");
        server.wait_for_message("second /hup\n");
        let folder = server.stop();
        let errors = folder.read("error-log");
        assert!(
            !errors.contains("failed") && !errors.contains(" /hup"),
            "{stream}: {errors}"
        );
    }
}

#[test]
fn no_line_that_a_slow_reader_costs_is_left_out_of_the_reports() {
    let wide = "x".repeat(8000);
    let config = format!(
        "
num-threads: 1
listen: @PORT@
error-log: @DIR@/error-log
access-log: {{ path: '| exec sleep 1000', format: '%U {wide}' }}
hosts: {{ default: {{ paths: {{ /: {{ redirect: /a }} }} }} }}
"
    );
    let server = Setup::new(&config).start();
    let mut client = server.connect();
    for _ in 0..500 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response("GET").code(), 302);
    }
    drop(client);
    let folder = server.stop();
    let log = folder.read("error-log");
    let log = log.replace(" 1 log line ", " 1 log lines ");
    let counts = |what: &str| -> usize {
        let lines = log.lines().filter_map(|line| line.split_once(what));
        let numbers = lines.map(|(start, _)| start.rsplit(' ').next().unwrap_or_default());
        numbers.map(|number| number.parse::<usize>().unwrap()).sum()
    };
    let (dropped, waiting) = (
        counts(" log lines dropped"),
        counts(" log lines may be lost"),
    );
    // A megabyte of lines waits. The pipe holds 64 KiB, and the line that did not fit as a whole counts among those that wait.
    assert!(dropped > 300 && waiting > 100, "{dropped} {waiting}");
    let in_pipe = 500 - dropped - waiting;
    assert!(in_pipe <= 8, "{dropped} {waiting}");
}
