//! The conformance test h2spec, in strict mode, in clear text and over TLS.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run, tool};

/// How many cases the pinned version has in strict mode.
const CASES: usize = 146;

/// How often all of them are run in a row.
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
    // Some cases let the server send a few bytes at a time, or want it to wait with most of the content.
    .file("www/index.html", "conformance ".repeat(2000))
    .start()
}

/// Runs all cases, several times in a row.
fn conforms(port: u16, options: &[&str]) {
    let port = port.to_string();
    let fixed = ["-S", "-o", "4", "-h", "127.0.0.1", "-p", &port];
    for _ in 0..RUNS {
        let output = run(&tool("h2spec"), &[&fixed[..], options].concat());
        let report = output.text();
        let summary = format!("{CASES} tests, {CASES} passed, 0 skipped, 0 failed");
        assert!(
            report.contains(&summary),
            "not {summary}:\n{}\n{}",
            tail(&report),
            output.stderr
        );
    }
}

/// The failing cases with their requirements, else the end of what the program wrote.
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
