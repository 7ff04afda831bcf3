//! Runs client programs that are not part of this project, such as curl, openssl and Chromium.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::{Folder, Response};

/// Result of running a program.
#[derive(Debug)]
pub struct Output {
    /// Exit status; 124 if the program took longer than 60 seconds.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output of a program that must have succeeded.
    ///
    /// # Panics
    /// If its exit status is not 0.
    #[must_use]
    pub fn success(self) -> Vec<u8> {
        assert_eq!(self.code, 0, "{self}");
        self.stdout
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "exit status {}\n{}\n{}",
            self.code,
            self.text(),
            self.stderr
        )
    }
}

/// Runs a program until it ends.
///
/// # Panics
/// If the program is not installed.
#[must_use]
pub fn run(program: &str, args: &[&str]) -> Output {
    run_with_input(program, args, "")
}

/// Runs a program until it ends, with `input` on its standard input.
///
/// # Panics
/// If the program is not installed.
#[must_use]
pub fn run_with_input(program: &str, args: &[&str], input: &str) -> Output {
    let mut child = Command::new("timeout")
        .args(["-k", "1", "60", program])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("coreutils are installed");
    if let Some(mut stdin) = child.stdin.take() {
        // The result is ignored: a program may end without having read its input.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .expect("no other code waits for the child");
    let code = output.status.code().unwrap_or(-1);
    assert!(code != 127, "{program} is not installed");
    Output {
        code,
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Sends a request over HTTP/1.1 with curl; `args` are options of curl and the URL.
///
/// # Panics
/// If curl gets no response.
#[must_use]
pub fn curl(args: &[&str]) -> Response {
    let fixed = [
        "--silent",
        "--show-error",
        "--include",
        "--http1.1",
        "--max-time",
        "30",
    ];
    let output = run("curl", &[&fixed[..], args].concat()).success();
    let end = b"\r\n\r\n";
    let mut rest = &output[..];
    loop {
        let at = rest
            .windows(end.len())
            .position(|window| window == end)
            .unwrap_or_else(|| {
                panic!("the response has no complete head: {}", rest.escape_ascii())
            });
        let mut response = Response::parse_head(&rest[..at]);
        rest = &rest[at + end.len()..];
        if response.code() >= 200 {
            response.body = rest.to_vec();
            return response;
        }
    }
}

/// Returns the HTML of the page at `url` after a browser has run its scripts. The browser stores its files in `folder`.
///
/// # Panics
/// If no browser is installed.
#[must_use]
pub fn browse(folder: &Folder, url: &str) -> Output {
    browse_with(folder, url, &[])
}

/// Like [`browse`], for a page whose scripts fetch data: the browser lets two seconds of virtual time pass first.
///
/// # Panics
/// If no browser is installed.
#[must_use]
pub fn browse_patiently(folder: &Folder, url: &str) -> Output {
    browse_with(folder, url, &["--virtual-time-budget=2000"])
}

fn browse_with(folder: &Folder, url: &str, options: &[&str]) -> Output {
    // A browser starts many processes, and two browsers at once would only slow each other down.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let profile = folder.make_dir(&format!("profile-{}", url.len()));
    let profile = format!("--user-data-dir={}", profile.display());
    let options = [
        options,
        &[
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--ignore-certificate-errors",
            // The browser writes JavaScript errors of the page to its standard error.
            "--enable-logging=stderr",
            &profile,
            "--dump-dom",
            url,
        ],
    ]
    .concat();
    run("chromium", &options)
}

/// Runs openssl with these arguments until it ends.
#[must_use]
pub fn openssl(args: &[&str]) -> Output {
    run("openssl", args)
}

/// Returns the path of a test program under `target/tools`; runs its rule in the Makefile if the file does not exist.
///
/// # Panics
/// If the program cannot be built.
#[must_use]
pub fn tool(name: &str) -> String {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let path = format!("target/tools/{name}");
    {
        let _guard = ONE_AT_A_TIME.lock();
        let made = Command::new("make")
            .args(["--silent", "--directory", root, &path])
            .env_remove("MAKEFLAGS")
            .status()
            .expect("make is installed");
        assert!(made.success(), "{path} cannot be built");
    }
    format!("{root}/{path}")
}
