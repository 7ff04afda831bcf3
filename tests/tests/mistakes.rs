//! Mistakes that people make in configurations. For each, `configs/mistakes.txt` has the server's messages, which must name the line and
//! how to repair it.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use h2o_tests::certs::{self, Key};
use h2o_tests::{Folder, Setup, binary, eventually, free_port, run};

struct Mistake<'a> {
    name: &'a str,
    config: &'a str,
    /// Everything that the server writes to standard error.
    expected: &'a str,
}

fn mistakes(text: &str) -> Vec<Mistake<'_>> {
    let cases = text.split("\n=== ").skip(1).map(|case| {
        let (name, rest) = case
            .split_once('\n')
            .expect("the name of a case ends with a line end");
        let (config, expected) = rest
            .split_once("\n---")
            .unwrap_or_else(|| panic!("`{name}` has no line `---`"));
        Mistake {
            name,
            config,
            expected: expected.trim(),
        }
    });
    cases.collect()
}

/// A folder with the files and directories that the configurations refer to.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("www/index.html", "hello");
    for (name, mode) in [("locked", 0o000), ("unlisted", 0o111)] {
        let permissions = Permissions::from_mode(mode);
        std::fs::set_permissions(folder.make_dir(name), permissions)
            .expect("the test owns the directory");
    }
    folder.write("empty.pem", "");
    folder.write(
        "broken.yaml",
        "default:\n  paths:\n    /:\n      file.dri: /srv\n",
    );
    folder.write("empty.keys", "[]\n");
    folder.write("expired.keys", ticket_key(1000, 2000));
    certs::self_signed(&folder, "site", Key::EcPkcs8, "www.example.com");
    certs::expired(&folder, "expired", "www.example.com");
    certs::key(&folder, "other", Key::EcPkcs8);
    folder
}

/// A file with one key for session tickets that is valid between these times.
fn ticket_key(not_before: u64, not_after: u64) -> String {
    format!(
        "- name: {}\n  cipher: aes-256-cbc\n  hash: sha256\n  key: {}\n  not_before: {not_before}\n  not_after: {not_after}\n",
        "0a".repeat(16),
        "0b".repeat(96),
    )
}

/// Name of the user that the server runs as.
fn running_user() -> String {
    if rustix::process::geteuid().is_root() {
        return "nobody".to_owned();
    }
    run("id", &["-un"]).text().trim_end().to_owned()
}

#[test]
fn what_is_amiss_is_not_kept_back_at_start() {
    let config = "listen: @PORT@\nhosts:\n  default:\n    paths:\n      /:\n        file.dir: @DIR@/missing\n      /x: {}\n";
    let server = Setup::new(config).start();
    for text in [
        "h2o.conf:7] in command paths, the path `/x` has no handler",
        "/missing does not exist (column 19; requests get 404)",
    ] {
        assert!(server.messages().contains(text), "{}", server.messages());
    }
}

#[test]
fn a_server_does_not_call_useless_ticket_keys_loaded() {
    let config = "
listen: @PORT@
ssl-session-resumption: { mode: ticket, ticket-store: file, ticket-file: @DIR@/keys }
hosts: { default: { paths: { /: { file.dir: @DIR@ } } } }
";
    let loaded = "session ticket secrets have been (re)loaded";
    for (keys, is_useful) in [
        ("[]", false),
        (&ticket_key(1000, 2000), false),
        (&ticket_key(1000, u64::from(u32::MAX)), true),
    ] {
        let server = Setup::new(config).file("keys", keys).start();
        let messages = server.messages();
        let useless = messages.matches("/keys is valid now").count();
        assert_eq!(useless, usize::from(!is_useful), "{keys}: {messages}");
        assert_eq!(messages.contains(loaded), is_useful, "{keys}: {messages}");
    }
}

#[test]
fn the_ports_of_a_running_server_are_not_called_taken() {
    let config = "listen: @PORT@\nhosts: { default: { paths: { /: { file.dir: @DIR@ } } } }\n";
    let server = Setup::new(config).start();
    let file = server.folder.name_of("h2o.conf");
    let output = run(
        &binary().display().to_string(),
        &["-t", "--strict", "-c", &file],
    );
    assert_eq!((output.code, &*output.stderr), (0, ""));
}

/// A supervisor that passes its sockets to the server has them open, too.
#[test]
fn the_ports_that_a_supervisor_has_passed_to_a_server_are_not_called_taken() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket is bound").port();
    let config = folder.write(
        "h2o.conf",
        format!("listen: {{ host: 127.0.0.1, port: {port} }}\nhosts: {{ default: {{ paths: {{ /: {{ file.dir: /srv }} }} }} }}\n"),
    );
    let config = config.display().to_string();
    let inherited = rustix::io::fcntl_dupfd_cloexec(&listener, 50).expect("a descriptor is free");
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())
        .expect("the descriptor is open");
    let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);
    let mut server = std::process::Command::new(binary())
        .args(["-c", &config])
        .env("SERVER_STARTER_PORT", format!("127.0.0.1:{port}={number}"))
        .spawn()
        .expect("the server can be run");
    drop(inherited);
    eventually("the server", || {
        let url = format!("http://127.0.0.1:{port}/");
        (run("curl", &["-s", "-m", "5", &url]).code == 0).then_some(())
    });
    let output = run(&binary().display().to_string(), &["-t", "-c", &config]);
    let _ = server.kill();
    let _ = server.wait();
    assert!(
        !output.stderr.contains("Address already in use"),
        "{output}"
    );
}

#[test]
fn strict_is_not_for_a_server_that_is_to_run() {
    let output = run(
        &binary().display().to_string(),
        &["--strict", "-c", "h2o.conf"],
    );
    assert_eq!(output.code, 78, "{output}");
    assert!(
        output.stderr.contains("'--strict' needs '--test'"),
        "{output}"
    );
}

#[test]
fn a_mistake_is_not_refused_without_its_line_and_the_remedy() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mistakes.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let folder = folder();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let names = [
        ("@DIR@", folder.name_of("").trim_end_matches('/').to_owned()),
        ("@PORT@", free_port().to_string()),
        ("@OTHER@", free_port().to_string()),
        ("@TAKEN@", taken.local_addr().unwrap().port().to_string()),
        (
            "(process @PID@)",
            format!("(process {})", std::process::id()),
        ),
        ("`@PROGRAM@`", format!("`{}`", program.trim_end())),
        ("`@USER@`", format!("`{}`", running_user())),
    ];
    let cases = mistakes(&text);
    assert!(cases.len() >= 78, "{} mistakes", cases.len());
    let mut faults = Vec::new();
    for Mistake {
        name,
        config,
        expected,
    } in cases
    {
        let mut config = config.to_owned();
        for (place_holder, value) in &names {
            config = config.replace(place_holder, value);
        }
        folder.write("h2o.conf", config);
        let file = folder.name_of("h2o.conf");
        let test = |args: &[&str]| {
            let args = [&["-t", "-c", &file], args].concat();
            run(&binary().display().to_string(), &args)
        };
        let output = test(&[]);
        let mut said = output.stderr.replace(&file, "h2o.conf");
        for (place_holder, value) in &names {
            said = said.replace(value, place_holder);
        }
        let is_refused = expected.lines().any(|line| !line.starts_with("[warning] "));
        let (code, text) = match is_refused {
            true => (78, ""),
            false => (0, "configuration OK\n"),
        };
        if said.trim_end() != expected || output.code != code || output.text() != text {
            faults.push(format!(
                "=== {name}\n{}\n(exit status {})\n",
                said.trim_end(),
                output.code
            ));
            continue;
        }
        let strict = test(&["--strict"]).code;
        assert_eq!(strict == 0, expected.is_empty(), "{name}");
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
