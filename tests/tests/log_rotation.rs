//! `log-rotation`: no line is lost, the error log is rotated too, and old logs are compressed and removed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use h2o_tests::{Folder, Server, Setup, eventually, run};

/// The rotated files of a log in the directory `logs`, oldest first.
fn rotated(folder: &Folder, log: &str) -> Vec<PathBuf> {
    rotated_in(&folder.at("logs"), log)
}

fn rotated_in(directory: &Path, log: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory of the logs can be read");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("the file can be read").path())
        .filter(|path| {
            let name = path
                .file_name()
                .expect("an entry of a directory has a name")
                .to_string_lossy();
            name.starts_with(&format!("{log}.2")) && !name.ends_with(".tmp")
        })
        .collect();
    paths.sort();
    paths
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gz")
}

/// The text of a log file, which may be compressed.
fn read(path: &Path) -> String {
    let program = if is_compressed(path) { "zcat" } else { "cat" };
    let unpacked = run(program, &[&path.display().to_string()]).success();
    String::from_utf8(unpacked).expect("the bytes are UTF-8")
}

/// A folder with a directory `logs` that only the user who starts the server may write to.
fn folder() -> Folder {
    let folder = Folder::new();
    let logs = folder.make_dir("logs");
    fs::set_permissions(logs, fs::Permissions::from_mode(0o755)).expect("the test owns the file");
    folder
}

/// Adds the directive `user` to a configuration if the test runs as root.
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
    eventually("two compressed log files", || {
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
    let (youngest, others) = paths
        .split_last()
        .expect("the log was rotated at least once");
    assert!(!is_compressed(youngest), "{paths:?}");
    let mut text = folder.read("logs/log") + &read(youngest);
    for path in others {
        text += &read(path);
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
    // Output of scripts and the server's own messages go to the new file after each rotation.
    let kept = found.iter().map(fs::read_to_string);
    let kept: String = kept
        .map(|text| text.expect("the bytes are UTF-8"))
        .collect();
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
    std::os::unix::fs::symlink(folder.at("logs/file"), folder.at("logs/link"))
        .expect("the link does not exist yet");
    let server = Setup::in_folder(folder, config)
        .file("www/page", "0123456789")
        .start();
    let failed = "failed to rotate the log file:";
    for number in 10..20 {
        assert_eq!(server.ask(&format!("GET /page?{number}")).code(), 200);
    }
    server.wait_for_message(failed);
    assert_eq!(server.ask("GET /page?20").code(), 200);
    // Within these 2.5 s the server would try the rotation again, and fail a second time.
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

/// A long query that compression hardly shortens; each number has its own.
fn long_query(number: usize) -> String {
    let mut state = number as u64;
    let words = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        format!("{:08x}", state >> 32)
    });
    format!("?{number}-{}", words.take(24).collect::<String>())
}

/// A server whose access log is on a file system of 16 MB.
struct SmallDisk {
    server: Server,
    /// The directory of the log under /proc: only the server's mount namespace has the small file system mounted.
    logs: PathBuf,
    /// Number of requests sent so far; each has its own [`long_query`].
    sent: usize,
}

impl SmallDisk {
    fn start(rotation: &str) -> Self {
        let config = format!(
            "
listen: @PORT@
error-log: @DIR@/errors
access-log: {{ path: @DIR@/logs/log, format: '%q' }}
{rotation}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }} }} }} }}
"
        );
        let namespaces = if rustix::process::geteuid().is_root() {
            "--mount"
        } else {
            "--map-root-user"
        };
        let mount = "mount -t tmpfs -o size=16m none \"$1\" && shift && exec \"$@\"\n";
        let script = ["sh", "@DIR@/mount.sh", "@DIR@/logs"];
        let launcher = [&["unshare", "--mount", namespaces], &script[..]].concat();
        let server = Setup::in_folder(folder(), &as_nobody(&config))
            .file("www/page", "0123456789")
            .file("mount.sh", mount)
            .launched_by(&launcher)
            .start();
        let logs = server.folder.at("logs").display().to_string();
        Self {
            logs: PathBuf::from(format!("/proc/{}/root{logs}", server.pid())),
            server,
            sent: 0,
        }
    }

    /// Sends requests; the server must answer them even if it cannot write their log lines.
    fn ask(&mut self, count: usize) {
        let mut client = self.server.connect();
        for _ in 0..count {
            let query = long_query(self.sent);
            client.send(format!("GET /page{query} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(client.read_response("GET").code(), 200);
            self.sent += 1;
        }
    }

    /// Fills the file system except for `left` bytes, and sends requests until the error log contains all of `texts`.
    fn fill(&mut self, left: u64, texts: &[&str]) {
        let mut filler = File::create(self.filler()).expect("the file system is writable");
        while filler.write_all(&[0; 4096]).is_ok() {}
        let len = filler.metadata().expect("the file is open").len();
        filler.set_len(len - left).expect("the file is open");
        eventually("the disk to be full", || {
            self.ask(20);
            let said = self.server.folder.read("errors");
            texts.iter().all(|text| said.contains(text)).then_some(())
        });
    }

    fn free(&self) {
        fs::remove_file(self.filler()).expect("the file exists");
    }

    fn filler(&self) -> PathBuf {
        self.logs.join("filler")
    }

    /// Checks that the logs contain the lines of all requests from `first` up to `end`, and otherwise only lines of other requests,
    /// complete or cut off at their end.
    fn check(&self, paths: &[PathBuf], first: usize, end: usize) {
        let text: String = paths.iter().map(|path| read(path)).collect();
        let found: HashSet<_> = text.lines().collect();
        for number in first..end {
            assert!(found.contains(&*long_query(number)), "{number}");
        }
        let sent: HashSet<_> = (0..self.sent).map(long_query).collect();
        for line in found.iter().filter(|line| !sent.contains(**line)) {
            let is_start = sent.iter().any(|sent| sent.starts_with(line));
            assert!(is_start, "{line}");
        }
    }
}

const NO_SPACE: &str = "failed to write to log file:";

#[test]
fn a_full_disk_loses_lines_only_while_it_is_full() {
    let mut disk = SmallDisk::start("");
    // The length of the lines has no common divisor with a page's: the last line that fits on the disk is cut off.
    disk.ask(10);
    disk.fill(32 * 1024, &[NO_SPACE]);
    disk.free();
    let first = disk.sent;
    disk.ask(200);
    let log = disk.logs.join("log");
    assert!(read(&log).lines().count() < disk.sent);
    disk.check(&[log], first, disk.sent);
    let said = disk.server.folder.read("errors");
    assert_eq!(said.matches(NO_SPACE).count(), 1, "{said}");
}

#[test]
fn rotation_goes_on_when_a_full_disk_has_room_again() {
    let mut disk = SmallDisk::start("log-rotation: { size: 30000, keep: 1000 }");
    let first = eventually("a rotated log", || {
        disk.ask(20);
        rotated_in(&disk.logs, "log").first().cloned()
    });
    let failure = "failed to compress the rotated log ";
    disk.fill(32 * 1024, &[NO_SPACE, failure]);
    assert!(first.exists(), "{:?}", rotated_in(&disk.logs, "log"));
    disk.free();
    let (start, end) = (disk.sent, disk.sent + 200);
    disk.ask(200);
    eventually("the first log to be compressed", || {
        disk.ask(20);
        let compressed = PathBuf::from(format!("{}.gz", first.display()));
        (!first.exists() && compressed.exists()).then_some(())
    });
    let log = disk.logs.join("log");
    let mut paths = eventually("the end of renaming and compressing logs", || {
        let is_small = fs::metadata(&log).ok()?.len() < 30_000;
        let paths = rotated_in(&disk.logs, "log");
        let (_, older) = paths.split_last()?;
        let is_done = is_small && older.iter().all(|path| is_compressed(path));
        is_done.then_some(paths)
    });
    paths.push(log);
    disk.check(&paths, start, end);
}
