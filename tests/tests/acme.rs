//! Certificates that the server obtains by ACME from the test CA Pebble (`tests/clients/acme-ca`).

use std::os::unix::fs::PermissionsExt;

use h2o_tests::certs::{Key, local_server, self_signed};
use h2o_tests::{Folder, Server, Service, Setup, binary, curl, eventually, free_port, run};

/// The configuration of a server with two hosts, and the ports of the server and of the certificate authority.
struct Site {
    folder: Folder,
    http: u16,
    tls: u16,
    authority: u16,
}

/// How to start the certificate authority, which a test may start several times.
struct Authority {
    options: Vec<String>,
    http: u16,
}

impl Authority {
    fn start(&self, options: &[&str]) -> Service {
        let own = self.options.iter().map(String::as_str);
        let options: Vec<&str> = own.chain(options.iter().copied()).collect();
        Service::acme_with(&options, self.http).0
    }
}

impl Site {
    fn new() -> Self {
        let folder = Folder::new();
        self_signed(
            &folder,
            "root",
            Key::EcPkcs8,
            "Root of the authority's server",
        );
        local_server(&folder, "authority", "root");
        folder.write("site/index.html", "hello\n");
        Self {
            folder,
            http: free_port(),
            tls: free_port(),
            authority: free_port(),
        }
    }

    fn authority(&self) -> Authority {
        let (port, tls) = (self.authority.to_string(), self.tls.to_string());
        let file = |name: &str| self.folder.name_of(name);
        let (certificate, key) = (file("authority.crt"), file("authority.key"));
        let own = [
            "-port",
            &port,
            "-tls-port",
            &tls,
            "-certificate",
            &certificate,
            "-key",
            &key,
        ];
        Authority {
            options: own.map(str::to_owned).to_vec(),
            http: self.http,
        }
    }

    /// The server's configuration; `attributes` are further attributes of `acme`. Without `has_http` no listener speaks cleartext.
    fn config(&self, attributes: &str, has_http: bool) -> String {
        let Self {
            http,
            tls,
            authority,
            ..
        } = self;
        let clear = format!("{{ host: 127.0.0.1, port: {http} }}, ");
        let clear = if has_http { clear.as_str() } else { "" };
        let listen = format!("[ {clear}{{ host: 127.0.0.1, port: {tls}, ssl: {{}} }} ]");
        let host = |name: &str| {
            format!(
                "  {name}:\n    listen: {listen}\n    paths: {{ /: {{ file.dir: @DIR@/site }} }}\n"
            )
        };
        format!(
            "acme:\n  email: \"admin\\x40example.com\"\n  accept-tos: YES\n  server: https://127.0.0.1:{authority}/dir\n  \
             ca-file: @DIR@/root.crt\n  state-directory: @DIR@/state/acme\n{attributes}\nhosts:\n{}{}",
            host("a.test"),
            host("b.test")
        )
    }

    fn start(self, attributes: &str, has_http: bool) -> (Server, u16) {
        let config = self.config(attributes, has_http);
        (Setup::in_folder(self.folder, &config).start(), self.tls)
    }
}

/// What `openssl` shows of the certificate that a client with this SNI name gets: issuer, names and serial number.
fn presented(port: u16, name: &str) -> String {
    let command = format!(
        "openssl s_client -connect 127.0.0.1:{port} -servername {name} </dev/null 2>/dev/null \
         | openssl x509 -noout -issuer -serial -ext subjectAltName"
    );
    run("sh", &["-c", &command]).text()
}

/// Waits until a client with this SNI name gets a certificate for it from the authority that differs from `before`.
fn obtained(port: u16, name: &str, before: &str) -> String {
    eventually(&format!("another certificate for {name}"), || {
        let found = presented(port, name);
        let is_new = found != before && found.contains("Pebble Intermediate");
        is_new.then(|| {
            assert!(found.contains(&format!("DNS:{name}")), "{found}");
            found
        })
    })
}

const NAMES: [&str; 2] = ["a.test", "b.test"];

#[test]
fn each_host_gets_a_certificate_by_http_and_keeps_it() {
    let site = Site::new();
    let (http, authority) = (site.http, site.authority().start(&[]));
    let (server, tls) = site.start("", true);
    let found = NAMES.map(|name| obtained(tls, name, ""));
    assert_ne!(found[0], found[1]);
    for file in ["a.test.key", "b.test.key"] {
        let path = server.folder.at(&format!("state/acme/certificates/{file}"));
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // The server has removed the responses to the HTTP challenges, and does not list their directory.
    let answers = server
        .folder
        .at("state/acme/webroot/.well-known/acme-challenge");
    assert_eq!(std::fs::read_dir(answers).unwrap().count(), 0);
    for path in ["", "none"] {
        let url = format!("http://127.0.0.1:{http}/.well-known/acme-challenge/{path}");
        assert_ne!(curl(&[&url]).code(), 200);
    }
    // After a restart without an authority the server uses the certificates that are stored on disk.
    authority.kill();
    let config = server.folder.read("h2o.conf");
    let folder = server.stop();
    let _server = Setup::in_folder(folder, &config).start();
    assert_eq!(NAMES.map(|name| presented(tls, name)), found);
}

#[test]
fn certificates_are_obtained_by_tls_while_clients_get_one_of_our_own() {
    let site = Site::new();
    let authority = site.authority();
    let (server, tls) = site.start("", false);
    // The authority has not been started yet.
    server.wait_for_message("Connection refused; next attempt in 5 seconds");
    for name in NAMES {
        let own = presented(tls, name);
        assert!(
            own.contains("self signed") && own.contains(&format!("DNS:{name}")),
            "{own}"
        );
    }
    let _authority = authority.start(&[]);
    for name in NAMES {
        obtained(tls, name, "");
    }
    // A client that offers the ALPN protocol of the TLS challenge is refused unless a challenge for the name is in progress.
    let command = format!(
        "openssl s_client -connect 127.0.0.1:{tls} -servername a.test -alpn acme-tls/1 </dev/null 2>&1"
    );
    let refused = run("sh", &["-c", &command]).text();
    assert!(refused.contains("no application protocol"), "{refused}");
}

#[test]
fn an_account_can_belong_to_an_external_one() {
    const KEY: &str = "aGVsbG8gd29ybGQgaGVsbG8gd29ybGQgaGVsbG8gd28";
    let site = Site::new();
    let _authority = site
        .authority()
        .start(&["-external-account", &format!("kid-1:{KEY}")]);
    let attributes = "  eab-key-id: kid-1\n  eab-key-file: @DIR@/eab";
    site.folder.write("eab", "d3Jvbmc");
    let right = site.config(attributes, true);
    let (server, tls) = site.start(attributes, true);
    server.wait_for_message(
        "failed to obtain the certificate of a.test: the authority refused the request: ",
    );
    // The file of the external account has new contents under the same name: a reload of the configuration makes the server read it and
    // retry.
    server.folder.write("eab", format!("{KEY}\n"));
    server.replace_config(&right);
    server.reload();
    for name in NAMES {
        obtained(tls, name, "");
    }
}

#[test]
fn a_certificate_is_renewed_when_the_authority_says_and_by_its_age() {
    for option in [
        &["-lifetime", "12"][..],
        &["-lifetime", "12", "-without-renewal-info"],
    ] {
        let site = Site::new();
        let _authority = site.authority().start(option);
        let (server, tls) = site.start("", true);
        let first = obtained(tls, "a.test", "");
        server.wait_for_message("acme: renewed the certificate of a.test");
        obtained(tls, "a.test", &first);
    }
}

#[test]
fn an_authority_that_was_away_and_has_forgotten_everything_is_asked_again() {
    let site = Site::new();
    let authority = site.authority();
    let running = authority.start(&["-lifetime", "12"]);
    let (server, tls) = site.start("", true);
    let first = NAMES.map(|name| obtained(tls, name, ""));
    running.kill();
    server.wait_for_message("failed to obtain the certificate of a.test");
    // While renewals fail because the authority does not run, the server goes on presenting the certificates that it has.
    assert!(presented(tls, "a.test").contains("Pebble Intermediate"));
    let _authority = authority.start(&[]);
    for (name, first) in NAMES.iter().zip(first) {
        obtained(tls, name, &first);
    }
    server.wait_for_message("registering a new account");
}

#[test]
fn a_wrong_url_is_named_and_a_reload_mends_it() {
    let site = Site::new();
    let _authority = site.authority().start(&[]);
    let right = site.config("", true);
    let wrong = right.replace("/dir\n", "/wrong\n");
    let tls = site.tls;
    let server = Setup::in_folder(site.folder, &wrong).start();
    server.wait_for_message("failed to obtain the certificate of a.test: https://");
    assert!(presented(tls, "a.test").contains("self signed"));
    server.replace_config(&right);
    server.reload();
    for name in NAMES {
        obtained(tls, name, "");
    }
}

#[test]
fn broken_files_of_the_state_are_named_and_replaced() {
    let site = Site::new();
    let _authority = site.authority().start(&[]);
    let (server, tls) = site.start("", true);
    let first = NAMES.map(|name| obtained(tls, name, ""));
    let config = server.folder.read("h2o.conf");
    let folder = server.stop();
    let account = run(
        "sh",
        &[
            "-c",
            &format!("ls {}/state/acme/account-*.json", folder.path().display()),
        ],
    );
    std::fs::write(account.text().trim(), "{").unwrap();
    std::fs::write(folder.at("state/acme/certificates/a.test.key"), "").unwrap();
    std::fs::write(folder.at("state/acme/certificates/b.test.crt"), "").unwrap();
    let server = Setup::in_folder(folder, &config).start();
    server.wait_for_message(
        "a.test.key:no private key in PEM form; the server uses a certificate of its own",
    );
    server.wait_for_message(
        "b.test.crt: no certificate in PEM form; the server uses a certificate of its own",
    );
    server.wait_for_message("acme: the account file is broken and was moved to ");
    for (name, first) in NAMES.iter().zip(first) {
        obtained(tls, name, &first);
    }
}

#[test]
fn one_certificate_can_be_for_several_names() {
    for has_http in [true, false] {
        let site = Site::new();
        let _authority = site.authority().start(&[]);
        let config = site
            .config("", has_http)
            .replacen("ssl: {}", "ssl: { acme-names: [c.test, D.test] }", 1)
            .replace("  b.test:", "  \"*.b.test\":")
            .replace("ssl: {}", "ssl: { acme-names: [x.b.test, y.b.test] }");
        let tls = site.tls;
        let server = Setup::in_folder(site.folder, &config).start();
        for names in [
            &["a.test", "c.test", "d.test"][..],
            &["x.b.test", "y.b.test"],
        ] {
            let found = obtained(tls, names[0], "");
            for name in names {
                assert!(found.contains(&format!("DNS:{name}")), "{found}");
            }
        }
        // A further name in the configuration makes the server obtain a certificate with that name.
        let before = presented(tls, "a.test");
        server.replace_config(&config.replace("[c.test,", "[e.test, c.test,"));
        server.reload();
        let found = obtained(tls, "a.test", &before);
        assert!(found.contains("DNS:e.test"), "{found}");
    }
}

#[test]
fn names_that_no_certificate_can_be_obtained_for_are_refused() {
    const ACME: &str =
        "acme: { email: \"admin\x40example.com\", accept-tos: YES, state-directory: DIR/state }\n";
    let cases = [
        (ACME, "a.test", "{}", ""),
        (ACME, "\"*.a.test\"", "{ acme-names: b.a.test }", ""),
        (
            ACME,
            "\"*.a.test\"",
            "{}",
            ":4] in command listen, no certificate can be obtained for `*.a.test` by ACME (column 31; an authority checks names such as `www.example.com`; ",
        ),
        (
            ACME,
            "a.test",
            "{ acme-names: [b.test, ../c.test] }",
            ":4] in command listen, no certificate can be obtained for `../c.test` by ACME (column 54; ",
        ),
        (
            ACME,
            "a.test",
            "{ acme-names: { b.test: c.test } }",
            ":4] in command listen, attribute `acme-names` must be a scalar or a sequence (column 45)",
        ),
        (
            "",
            "a.test",
            "{ acme-names: b.test, certificate-file: x, key-file: y }",
            ":3] in command listen, `acme-names` is for certificates that are obtained by ACME (column 45; ",
        ),
    ];
    let folder = Folder::new();
    for (acme, host, ssl, want) in cases {
        let text = format!(
            "{acme}hosts:\n  {host}:\n    listen: {{ port: 443, ssl: {ssl} }}\n    paths: {{ /: {{ status: ON }} }}\n"
        );
        let text = text.replace("DIR", &folder.path().display().to_string());
        let config = folder.write("h2o.conf", text).display().to_string();
        let output = run(&binary().display().to_string(), &["-t", "-c", &config]);
        if want.is_empty() {
            assert_eq!(output.code, 0, "{output}");
        } else {
            assert!(
                output.code != 0 && output.stderr.contains(want),
                "{want}\n{output}"
            );
        }
    }
}

/// A shell script as the program that `loader` names. It records its arguments in a file, makes a certificate for each host with
/// OpenSSL, sends SIGHUP to the supervisor, and ends when its standard input is closed.
const LOADER: &str = r#"#!/bin/sh
echo "$H2O_ROOT: $*" >> @DIR@/calls
if [ "$1" = --check ]; then
  echo "what the loader says"
  exit $(cat @DIR@/check-status)
fi
[ "$1" = --pid ] && pid=$2 && shift 2
[ "$1" = --directory ] && directory=$2 && shift 2
[ "$1" = --email ] && shift 2
echo "answer of the loader" > "$directory/webroot/.well-known/acme-challenge/token"
for host in "$@"; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=loaded -addext subjectAltName=DNS:$host \
    -keyout "$directory/certificates/$host.key" -out "$directory/certificates/$host.crt" 2>> @DIR@/openssl
done
kill -HUP $pid
cat
echo ended >> @DIR@/calls
"#;

/// Returns a configuration whose `loader` is the script [`LOADER`], and the port of its TLS listener.
fn with_loader(folder: &Folder) -> (String, u16) {
    let directory = folder
        .path()
        .to_str()
        .expect("the path is UTF-8")
        .to_owned();
    let loader = folder.write("loader", LOADER.replace("@DIR@", &directory));
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&loader, executable).expect("the test owns the file");
    folder.write("check-status", "0");
    folder.write("site/index.html", "hello\n");
    let tls = free_port();
    let host = |name: &str| {
        format!(
            "  {name}:\n    listen: [ {{ host: 127.0.0.1, port: @PORT@ }}, {{ host: 127.0.0.1, port: {tls}, ssl: {{}} }} ]\n    paths: {{ /: {{ file.dir: @DIR@/site }} }}\n"
        )
    };
    let config = format!(
        "num-threads: 1\nacme:\n  email: \"admin\\x40example.com\"\n  accept-tos: YES\n  state-directory: @DIR@/state\n  \
         loader: {}\nhosts:\n{}{}",
        loader.display(),
        host("a.test"),
        host("b.test")
    );
    (config, tls)
}

#[test]
fn a_loader_obtains_the_certificates_under_the_supervisor() {
    for mode in ["master", "daemon"] {
        let folder = Folder::new();
        let (config, tls) = with_loader(&folder);
        let config = config
            .replace("@DIR@", folder.path().to_str().expect("the path is UTF-8"))
            .replace("@PORT@", &free_port().to_string());
        let (pid, log) = (folder.name_of("pid"), folder.name_of("error-log"));
        let config = format!("pid-file: {pid}\nerror-log: {log}\n{config}");
        folder.write("h2o.conf", &config);
        let mut master = std::process::Command::new(binary())
            .args(["-m", mode, "-c", &folder.name_of("h2o.conf")])
            .spawn()
            .expect("the h2o binary exists");
        for name in NAMES {
            eventually("a certificate of the loader", || {
                let found = presented(tls, name);
                let is_loaded =
                    found.contains("issuer=CN = loaded") || found.contains("issuer=CN=loaded");
                (is_loaded && found.contains(&format!("DNS:{name}"))).then_some(())
            });
        }
        let pid = folder.read("pid").trim().to_owned();
        let calls = folder.read("calls");
        let calls: Vec<&str> = calls
            .lines()
            .filter_map(|line| line.split_once(": ").map(|(_, arguments)| arguments))
            .collect();
        let state = folder.name_of("state");
        let want =
            format!("--pid {pid} --directory {state} --email admin@example.com a.test b.test");
        assert_eq!(calls, ["--check", &want], "{mode}");
        let url = format!("https://a.test:{tls}/.well-known/acme-challenge/token");
        let to = format!("a.test:{tls}:127.0.0.1");
        let answer = curl(&["-sk", "--resolve", &to, &url]);
        assert_eq!(
            String::from_utf8_lossy(&answer.body),
            "answer of the loader\n"
        );
        let end = run("kill", &["-TERM", &pid]);
        assert_eq!(end.code, 0, "{end}");
        eventually("the end of the loader", || {
            folder.read("calls").ends_with("ended\n").then_some(())
        });
        let _ = master.wait();
        eventually("the end of the supervisor", || {
            (!folder.at("pid").exists()).then_some(())
        });
    }
}

#[test]
fn a_loader_that_ends_is_started_again_and_ends_with_a_supervisor_that_was_killed() {
    let folder = Folder::new();
    let (config, _) = with_loader(&folder);
    let server = Setup::in_folder(folder, &config)
        .arguments(&["-m", "master"])
        .start();
    let mut previous = 0;
    for pause in ["1 s", "2 s"] {
        let loader = eventually("another loader", || {
            let found = run("pgrep", &["-P", &server.pid().to_string(), "-f", "loader"]);
            let pid = found.text().trim().parse::<u32>().ok();
            pid.filter(|pid| *pid != previous)
        });
        let killed = run("kill", &["-KILL", &loader.to_string()]);
        assert_eq!(killed.code, 0, "{killed}");
        server.wait_for_message(&format!(
            "the loader of certificates {loader} died, status:9; it is started again in {pause}"
        ));
        previous = loader;
    }
    assert_eq!(server.ask("GET /").code(), 200);
    let _ = server.stop();

    let folder = Folder::new();
    let (config, _) = with_loader(&folder);
    let server = Setup::in_folder(folder, &config)
        .arguments(&["-m", "master"])
        .start();
    let _ = server.read_until("calls", "--pid");
    let worker = run(
        "pgrep",
        &["-P", &server.pid().to_string(), "-f", "h2o.conf"],
    )
    .text();
    let killed = run("kill", &["-KILL", &server.pid().to_string()]);
    assert_eq!(killed.code, 0, "{killed}");
    let _ = server.read_until("calls", "ended\n");
    for worker in worker.split_whitespace() {
        let _ = run("kill", &["-TERM", worker]);
    }
}

#[test]
fn a_test_only_checks_the_loader_and_a_plain_worker_warns() {
    let folder = Folder::new();
    let (config, _) = with_loader(&folder);
    let refused = config.replace("  loader:", "  server: https://a.test/dir\n  loader:");
    let server = Setup::in_folder(folder, &config).start();
    let warning = "`loader` of `acme` is run with `-m master` and `-m daemon` only: certificates will not be obtained automatically";
    server.wait_for_message(warning);
    assert!(!server.folder.at("calls").exists());

    let program = binary().to_str().expect("the path is UTF-8");
    let path = server.folder.name_of("h2o.conf");
    let output = run(program, &["-t", "-c", &path]);
    assert_eq!((output.code, &*output.text()), (0, "configuration OK\n"));
    assert!(output.stderr.contains("what the loader says\n"), "{output}");
    assert!(server.folder.read("calls").ends_with(": --check\n"));
    server.folder.write("check-status", "3");
    let output = run(program, &["-t", "-c", &path]);
    assert_eq!((output.code, &*output.text()), (0, "configuration OK\n"));
    assert!(
        output.stderr.contains("--check ended with exit status: 3"),
        "{output}"
    );

    let mut server = server;
    server.write_config(&refused);
    let output = run(program, &["-t", "-c", &path]);
    assert_eq!(output.code, 78, "{output}");
    assert!(
        output
            .stderr
            .contains("`server` has no effect with `loader`"),
        "{output}"
    );
}
