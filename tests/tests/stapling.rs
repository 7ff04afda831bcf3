//! Tests of OCSP stapling. OpenSSL is the TLS client and the OCSP responder; in some tests the responder is one of the
//! test, which sends wrong answers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use h2o_tests::{Backend, Folder, OcspAuthority, Server, Setup, eventually, openssl, run};

/// The settings of a server with the authority's certificate; `attributes` are further attributes of `ssl`.
fn setup(folder: Folder, attributes: &str) -> Setup {
    let config = format!(
        "
num-ocsp-updaters: 1
listen:
  port: @PORT@
  host: 127.0.0.1
  ssl:
    certificate-file: @DIR@/chain
    key-file: @DIR@/a.key
    {attributes}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }} }} }} }}
"
    );
    Setup::in_folder(folder, &config)
}

/// What `openssl s_client` prints of a handshake in which it asks for the OCSP response of the certificate.
fn handshake(server: &Server, version: &str) -> String {
    let address = format!("127.0.0.1:{}", server.port());
    let ca = server.folder.name_of("ca.crt");
    let arguments = ["s_client", "-connect", &address, "-CAfile", &ca, "-status"];
    openssl(&[&arguments[..], &[version, "-servername", "a.test"]].concat()).text()
}

const GOOD: &str = "Cert Status: good";
const NONE: &str = "OCSP response: no response sent";

/// Waits until handshakes of both TLS versions print this text.
fn wait_for(server: &Server, text: &str) {
    for version in ["-tls1_2", "-tls1_3"] {
        eventually(text, || {
            handshake(server, version).contains(text).then_some(())
        });
    }
}

#[test]
fn the_response_of_the_responder_is_stapled_and_kept_while_it_is_gone() {
    let folder = Folder::new();
    let authority = OcspAuthority::new(&folder, "a.test");
    let server = setup(
        folder,
        "ocsp-update-interval: 1\n    ocsp-max-failures: 1000000",
    )
    // Without `PATH` the server finds no program to run: it has to ask the OCSP responder itself.
    .variable("PATH", "")
    .start();
    // The OCSP responder has not been started yet.
    server.wait_for_message(&format!(
        "[OCSP Stapling] reusing old response due to a temporary error occurred while fetching OCSP response for certificate file:{}",
        server.folder.name_of("chain")
    ));
    wait_for(&server, NONE);
    let responder = authority.respond(&server.folder);
    wait_for(&server, GOOD);
    server.wait_for_message(
        "[OCSP Stapling] successfully updated the response for certificate file:",
    );
    drop(responder);
    let failures = || server.messages().matches("reusing old response").count();
    let before = failures();
    eventually("another failed update of the OCSP response", || {
        (failures() > before).then_some(())
    });
    wait_for(&server, GOOD);
    // A client that does not ask for the OCSP response gets none.
    let address = format!("127.0.0.1:{}", server.port());
    let plain = openssl(&["s_client", "-connect", &address]).text();
    assert!(!plain.contains("OCSP"), "{plain}");
}

#[test]
fn too_many_failures_remove_the_response_until_it_can_be_fetched_again() {
    let folder = Folder::new();
    let authority = OcspAuthority::new(&folder, "a.test");
    let responder = authority.respond(&folder);
    let server = setup(folder, "ocsp-update-interval: 1\n    ocsp-max-failures: 1").start();
    wait_for(&server, GOOD);
    drop(responder);
    server.wait_for_message("OCSP stapling is temporary disabled due to repeated errors");
    wait_for(&server, NONE);
    let _responder = authority.respond(&server.folder);
    wait_for(&server, GOOD);
}

/// Writes a script into the folder, and returns the directive that makes the server run it to fetch OCSP responses.
fn command(folder: &Folder, script: &str) -> String {
    let path = folder.write("fetch", format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the test owns the file");
    format!("ocsp-update-cmd: {}", path.display())
}

#[test]
fn a_command_gets_the_certificate_and_its_failures_count_as_it_says() {
    let folder = Folder::new();
    let authority = OcspAuthority::new(&folder, "a.test");
    let responder = authority.respond(&folder);
    let script = format!(
        "cat > {0}/input; openssl ocsp -no_nonce -url http://127.0.0.1:{1} -issuer {0}/ca.crt -cert {0}/a.crt -CAfile {0}/ca.crt -respout {0}/der >&2 && cat {0}/der",
        folder.path().display(),
        authority.port(),
    );
    let attribute = command(&folder, &script);
    let server = setup(folder, &attribute).start();
    wait_for(&server, GOOD);
    assert_eq!(server.folder.read("input"), server.folder.read("chain"));
    drop((responder, server.stop()));

    let cases = [
        ("exit 1", "[OCSP Stapling] disabled for certificate file:"),
        ("exit 75", "reusing old response"),
        (
            "echo no response",
            "the response from the command is not used: the answer is not an OCSP response",
        ),
        (
            "cat /dev/zero",
            "took more than 60 seconds, or wrote more than",
        ),
    ];
    for (script, message) in cases {
        let folder = Folder::new();
        let _ = OcspAuthority::new(&folder, "a.test");
        let attribute = command(&folder, script);
        let server = setup(folder, &attribute).start();
        server.wait_for_message(message);
        assert!(handshake(&server, "-tls1_3").contains(NONE), "{script}");
    }
    let folder = Folder::new();
    let _ = OcspAuthority::new(&folder, "a.test");
    let server = setup(folder, "ocsp-update-cmd: no-such-program-here").start();
    server.wait_for_message("[OCSP Stapling] failed to run no-such-program-here: ");
    server.wait_for_message("[OCSP Stapling] disabled for certificate file:");
}

/// An OCSP responder that answers every request with the octets that the test has set last, or closes the connection if
/// there are none.
struct BadResponder {
    answer: Arc<Mutex<Vec<u8>>>,
    backend: Backend,
}

impl BadResponder {
    fn new() -> Self {
        let answer = Arc::new(Mutex::new(Vec::new()));
        let current = Arc::clone(&answer);
        let backend = Backend::start(move |talk| {
            while talk.read_request().is_some() {
                let answer = current
                    .lock()
                    .expect("no thread panics while it holds the lock")
                    .clone();
                if answer.is_empty() {
                    return;
                }
                talk.send(answer);
            }
        });
        Self { answer, backend }
    }

    /// Lets the responder answer requests with status 200 and this content from now on.
    fn answer(&self, content: &[u8]) {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/ocsp-response\r\ncontent-length: {}\r\n\r\n",
            content.len()
        );
        *self
            .answer
            .lock()
            .expect("no thread panics while it holds the lock") =
            [head.as_bytes(), content].concat();
    }
}

#[test]
fn a_response_that_does_not_count_is_not_stapled_and_the_last_good_one_stays() {
    let folder = Folder::new();
    let responder = BadResponder::new();
    let authority = OcspAuthority::with_responder(&folder, "a.test", responder.backend.port());
    // Makes a second certificate authority, whose name is that of the first.
    let file = |name: &str| folder.name_of(name);
    let key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let names = [
        "-subj",
        "/CN=ca",
        "-keyout",
        &file("other.key"),
        "-out",
        &file("other.crt"),
    ];
    let _ = openssl(&[&["req", "-x509"][..], &key, &names].concat()).success();
    // Makes two certificates that the first authority issues: one for signing OCSP responses, and one with another
    // purpose.
    for (name, purpose) in [("delegate", "OCSPSigning"), ("server", "serverAuth")] {
        let purpose = format!("extendedKeyUsage={purpose}");
        let (out, out_key) = (file(&format!("{name}.crt")), file(&format!("{name}.key")));
        let by = [
            "-subj",
            "/CN=responder",
            "-keyout",
            &out_key,
            "-out",
            &out,
            "-CA",
            &file("ca.crt"),
            "-CAkey",
            &file("ca.key"),
            "-addext",
            &purpose,
        ];
        let _ = openssl(&[&["req", "-x509"][..], &key, &by].concat()).success();
    }
    let make = |serial, signer| authority.response(&folder, serial, signer);
    let good = make("1234", "ca");
    let cases: [(&str, Vec<u8>); 6] = [
        (
            "the answer is not an OCSP response",
            b"<html>not found</html>".to_vec(),
        ),
        (
            "the response is about another certificate",
            make("1235", "ca"),
        ),
        (
            "the response is signed neither by the issuer nor by",
            make("1234", "other"),
        ),
        (
            "the response is signed neither by the issuer nor by",
            make("1234", "server"),
        ),
        (
            "the responder answered with tryLater",
            vec![0x30, 3, 0x0a, 1, 3],
        ),
        (
            "the response is longer than 65536",
            [&good[..], &vec![0; 65_536]].concat(),
        ),
    ];
    let delegated = make("1234", "delegate");
    responder.answer(&cases[0].1);
    let server = setup(
        folder,
        "ocsp-update-interval: 1\n    ocsp-max-failures: 1000000",
    )
    .start();
    for (message, answer) in cases {
        responder.answer(&answer);
        server.wait_for_message(message);
        wait_for(&server, NONE);
    }
    responder.answer(&delegated);
    wait_for(&server, GOOD);
    // The good response stays stapled while the responder answers with an error, sends what is not HTTP, or closes
    // connections.
    let failures = || server.messages().matches("reusing old response").count();
    for answer in [
        &b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"[..],
        b"no status line\r\n\r\n",
        b"",
    ] {
        *responder
            .answer
            .lock()
            .expect("no thread panics while it holds the lock") = answer.to_vec();
        let before = failures();
        eventually("two failures", || (failures() > before + 1).then_some(()));
    }
    wait_for(&server, GOOD);
}

#[test]
fn a_responder_that_never_answers_delays_nobody() {
    let folder = Folder::new();
    let silent = Backend::start(|talk| talk.read_to_end());
    let _ = OcspAuthority::with_responder(&folder, "a.test", silent.port());
    let mut server = setup(folder, "").start();
    silent.wait_for("POST / HTTP/1.1");
    wait_for(&server, NONE);
    server.reload();
    wait_for(&server, NONE);
    server.terminate();
    let status = server.wait(std::time::Duration::from_secs(30));
    assert!(status.success(), "{status}");
}

#[test]
fn a_certificate_without_its_issuer_is_not_asked_for() {
    let folder = Folder::new();
    let responder = BadResponder::new();
    let _ = OcspAuthority::with_responder(&folder, "a.test", responder.backend.port());
    folder.write("chain", folder.read("a.crt"));
    let server = setup(folder, "ocsp-update-interval: 1").start();
    server.wait_for_message("the file lacks the certificate of the issuer, without which");
    server.wait_for_message("[OCSP Stapling] disabled for certificate file:");
    wait_for(&server, NONE);
    assert_eq!(responder.backend.connections(), 0);
}

#[test]
fn a_reload_fetches_the_response_that_could_not_be_fetched_before() {
    let folder = Folder::new();
    let authority = OcspAuthority::new(&folder, "a.test");
    let server = setup(folder, "").start();
    server.wait_for_message("no response from");
    let responder = authority.respond(&server.folder);
    server.reload();
    wait_for(&server, GOOD);
    drop(responder);
    // A command that has failed for good is run again, too.
    let folder = Folder::new();
    let _ = OcspAuthority::new(&folder, "a.test");
    let attribute = command(&folder, "exit 1");
    let server = setup(folder, &attribute).start();
    server.wait_for_message("[OCSP Stapling] disabled for certificate file:");
    let _ = command(&server.folder, "echo repaired >&2; exit 75");
    server.reload();
    server.wait_for_message("repaired");
}

#[test]
fn a_reload_keeps_the_response_and_a_new_certificate_gets_its_own() {
    let folder = Folder::new();
    let authority = OcspAuthority::new(&folder, "a.test");
    let responder = authority.respond(&folder);
    let server = setup(folder, "ocsp-max-failures: 0").start();
    wait_for(&server, GOOD);
    drop(responder);
    // The next fetch is hours away, so after the reload the server still has the response from before.
    server.reload();
    wait_for(&server, GOOD);
    // A certificate that names no OCSP responder has no OCSP response.
    let (key, chain) = (
        server.folder.name_of("a.key"),
        server.folder.name_of("chain"),
    );
    let make = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=a.test",
    ];
    let _ = openssl(&[&make[..], &["-keyout", &key, "-out", &chain]].concat()).success();
    wait_for(&server, NONE);
}

#[test]
fn a_test_of_the_configuration_says_whether_stapling_works() {
    let folder = Folder::new();
    let authority = OcspAuthority::new(&folder, "a.test");
    let responder = authority.respond(&folder);
    let server = setup(folder, "").start();
    let test = || {
        let config = server.folder.name_of("h2o.conf");
        let binary = h2o_tests::binary().display().to_string();
        let output = run(&binary, &["-t", "-c", &config]);
        assert_eq!((output.code, &*output.text()), (0, "configuration OK\n"));
        output.stderr
    };
    let file = server.folder.name_of("chain");
    eventually("a configuration test in which stapling works", || {
        let said = test();
        assert!(
            said.contains(&format!(
                "[OCSP Stapling] testing for certificate file:{file}\n"
            )),
            "{said}"
        );
        said.contains(&format!("[OCSP Stapling] stapling works for file:{file}\n"))
            .then_some(())
    });
    drop(responder);
    let said = test();
    let failed = format!("[OCSP Stapling] temporary failed for file:{file}\n");
    assert!(said.contains(&failed), "{said}");
}
