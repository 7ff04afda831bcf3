//! The conformance test h2spec, in strict mode, in clear text and over TLS.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run, tool};

/// How many cases the pinned version has in strict mode.
const CASES: usize = 146;

/// How often all of them are run in a row.
const RUNS: usize = 3;

/// A case that was not passed.
#[derive(Debug)]
struct Failure {
    /// `2: Sends invalid connection preface`
    title: String,
    /// What came instead of what was expected.
    actual: String,
}

/// Cases that cannot be passed in clear text, with what comes instead.
///
/// Where HTTP/1 is spoken on the same port, `INVALID CONNECTION PREFACE` is a malformed request line. It is answered with
/// 400 before the connection is closed. To the program the answer is a frame that is cut off, not an end.
const KNOWN_IN_CLEAR_TEXT: &[(&str, &str)] = &[(
    "2: Sends invalid connection preface",
    "Error: unexpected EOF",
)];

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
    // Some cases let the server send a few octets at a time, or want it to wait with most of the content.
    .file("www/index.html", "conformance ".repeat(2000))
    .start()
}

/// Reads what stands under `Failures:`.
fn failures(report: &str) -> Vec<Failure> {
    let Some((_, text)) = report.split_once("Failures:") else {
        return Vec::new();
    };
    let cases = text.split('\u{d7}').skip(1);
    let failures = cases.map(|case| Failure {
        title: case.lines().next().unwrap_or_default().trim().to_owned(),
        actual: case
            .split_once("Actual: ")
            .and_then(|(_, rest)| rest.lines().next())
            .unwrap_or_default()
            .to_owned(),
    });
    failures.collect()
}

/// Runs all cases; `known` may fail as they say.
fn conforms(port: u16, options: &[&str], known: &[(&str, &str)]) {
    let port = port.to_string();
    let fixed = ["-S", "-o", "4", "-h", "127.0.0.1", "-p", &port];
    for _ in 0..RUNS {
        let output = run(&tool("h2spec"), &[&fixed[..], options].concat());
        let report = output.text();
        let (accepted, failed): (Vec<_>, Vec<_>) =
            failures(&report).into_iter().partition(|failure| {
                known.contains(&(failure.title.as_str(), failure.actual.as_str()))
            });
        assert!(failed.is_empty(), "{failed:#?}\n{}", tail(&report));
        let summary = format!(
            "{CASES} tests, {} passed, 0 skipped, {} failed",
            CASES - accepted.len(),
            accepted.len()
        );
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
    conforms(server.port(), &[], KNOWN_IN_CLEAR_TEXT);
    assert!(!server.messages().contains("panicked"));
}

#[test]
fn all_cases_pass_over_tls() {
    let server = start();
    conforms(server.port_of("TLS_PORT"), &["-t", "-k"], &[]);
    assert!(!server.messages().contains("panicked"));
}
