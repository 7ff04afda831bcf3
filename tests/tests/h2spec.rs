//! The HTTP/2 conformance test h2spec in strict mode, in cleartext and over TLS.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run, tool};

/// Number of cases in strict mode of the h2spec version that is pinned.
const CASES: usize = 146;

/// How many times in a row all cases are run.
const RUNS: usize = 3;

fn start() -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    Setup::in_folder(
        folder,
        "
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
",
    )
    // A file of 24 KB: some cases open the window by a few bytes only, or expect the server to hold back most of the content.
    .file("www/index.html", "conformance ".repeat(2000))
    .start()
}

/// Runs all cases of h2spec against the port, [`RUNS`] times in a row.
fn conforms(port: u16, options: &[&str]) {
    let port = port.to_string();
    let fixed = ["-S", "-o", "4", "-h", "127.0.0.1", "-p", &port];
    for _ in 0..RUNS {
        let output = run(&tool("h2spec"), &[&fixed[..], options].concat());
        let report = output.text();
        let summary = format!("{CASES} tests, {CASES} passed, 0 skipped, 0 failed");
        assert!(
            report.contains(&summary),
            "h2spec did not report {summary}:\n{}\n{}",
            tail(&report),
            output.stderr
        );
    }
}

/// The part of h2spec's report that lists the failing cases; without failures, its last part.
fn tail(report: &str) -> &str {
    let from = report
        .find("Failures:")
        .or_else(|| report.rfind("Finished"));
    &report[from.unwrap_or(0)..]
}

#[test]
fn all_cases_pass_in_clear_text() {
    let server = start();
    conforms(server.port(), &[]);
    assert!(!server.messages().contains("panicked"));
}

#[test]
fn all_cases_pass_over_tls() {
    let server = start();
    conforms(server.port_of("TLS_PORT"), &["-t", "-k"]);
    assert!(!server.messages().contains("panicked"));
}
