//! `log-rotation`: no line is lost, the error log is rotated too, and old logs are compressed and removed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use h2o_tests::{Folder, Setup, eventually, run};

/// The rotated files of a log, the oldest first.
fn rotated(folder: &Folder, log: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.at("logs")).expect("the logs are there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with(&format!("{log}.2")) && !name.ends_with(".tmp")
        })
        .collect();
    paths.sort();
    paths
}

/// A folder with a directory for logs that only the starting user may write to.
fn folder() -> Folder {
    let folder = Folder::new();
    let logs = folder.make_dir("logs");
    fs::set_permissions(logs, fs::Permissions::from_mode(0o755)).expect("it is ours");
    folder
}

/// With `user`, if the test may become another user.
fn as_nobody(config: &str) -> String {
    if rustix::process::geteuid().is_root() {
        format!("user: nobody\n{config}")
    } else {
        config.to_owned()
    }
}

#[test]
fn no_line_is_lost_while_logs_are_rotated_and_compressed() {
    let config = "
num-threads: 2
listen: @PORT@
log-rotation: { size: 2000, keep: 1000 }
access-log: { path: @DIR@/logs/log, format: '%q' }
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let server = Setup::in_folder(folder(), &as_nobody(config))
        .file("www/page", "0123456789")
        .start();
    let mut sent = 0;
    let is_compressed = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "gz");
    eventually("two compressed logs", || {
        let mut client = server.connect();
        for _ in 0..100 {
            client.send(format!("GET /page?{sent} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(client.read_response("GET").code(), 200);
            sent += 1;
        }
        let compressed = rotated(&server.folder, "log");
        (compressed.iter().filter(|path| is_compressed(path)).count() >= 2).then_some(())
    });
    let folder = server.stop();
    let paths = rotated(&folder, "log");
    let (youngest, others) = paths.split_last().expect("there are some");
    assert!(!is_compressed(youngest), "{paths:?}");
    let mut text = folder.read("logs/log");
    text += &fs::read_to_string(youngest).expect("it is text");
    for path in others {
        let program = if is_compressed(path) { "zcat" } else { "cat" };
        let unpacked = run(program, &[&path.display().to_string()]).success();
        text += &String::from_utf8(unpacked).expect("it is text");
    }
    let lines: HashSet<_> = text.lines().collect();
    assert_eq!(text.lines().count(), sent);
    for number in 0..sent {
        assert!(lines.contains(&*format!("?{number}")), "{number}");
    }
}

#[test]
fn the_error_log_is_rotated_and_the_oldest_are_removed() {
    let config = "
listen: @PORT@
error-log: @DIR@/logs/errors
log-rotation: { size: 1, keep: 2, compress: OFF }
hosts:
  default:
    paths:
      /:
        mruby.handler: |
          Proc.new {|env| $stderr.puts \"said \" + env[\"QUERY_STRING\"]; [200, {}, []] }
";
    let server = Setup::in_folder(folder(), &as_nobody(config)).start();
    let mut first = None;
    let mut number = 0;
    eventually("the end of the first rotated file", || {
        number += 1;
        assert_eq!(server.ask(&format!("GET /?{number}")).code(), 200);
        let found = rotated(&server.folder, "errors");
        if first.is_none() {
            first = found.first().cloned();
        }
        let is_gone = (first.as_ref()).is_some_and(|first| !found.contains(first));
        is_gone.then_some(())
    });
    let folder = server.stop();
    let found = rotated(&folder, "errors");
    assert_eq!(found.len(), 2, "{found:?}");
    // What scripts write follows, and so do the server's own messages.
    let kept = found.iter().map(fs::read_to_string);
    let kept: String = kept.map(|text| text.expect("it is text")).collect();
    let all = kept + &folder.read("logs/errors");
    for text in [&*format!("said {number}\n"), "gracefully shutting down"] {
        assert!(all.contains(text), "{text}: {all}");
    }
}

#[test]
fn a_log_that_cannot_be_rotated_is_written_on_and_named_once() {
    let config = "
listen: @PORT@
log-rotation: { size: 10 }
access-log: { path: @DIR@/logs/link, format: '%q' }
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
";
    let folder = folder();
    std::os::unix::fs::symlink(folder.at("logs/file"), folder.at("logs/link")).expect("it is new");
    let server = Setup::in_folder(folder, config)
        .file("www/page", "0123456789")
        .start();
    let failed = "failed to rotate the log file:";
    for number in 10..20 {
        assert_eq!(server.ask(&format!("GET /page?{number}")).code(), 200);
    }
    server.wait_for_message(failed);
    assert_eq!(server.ask("GET /page?20").code(), 200);
    // There is time for another failure.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(server.messages().matches(failed).count(), 1);
    let folder = server.stop();
    let text = folder.read("logs/file");
    assert_eq!(text.lines().count(), 11, "{text}");
}

#[test]
fn a_rotation_needs_a_reason() {
    for (value, message) in [
        ("ON", "argument must be `OFF` or a mapping"),
        ("{ keep: 3 }", "`size` or `age` is missing"),
        ("{ age: 0 }", "argument must be >= 1"),
        ("{ size: 1M }", "argument must match the format"),
        ("{ size: 1, every: day }", "every"),
    ] {
        let config = format!(
            "listen: @PORT@\nlog-rotation: {value}\nhosts: {{ default: {{ paths: {{ /: {{ file.dir: /tmp }} }} }} }}\n"
        );
        let refused = Setup::new(&config).try_start().expect_err(value);
        assert!(
            refused.code == Some(78) && refused.stderr.contains(message),
            "{value}: {}",
            refused.stderr
        );
    }
}
