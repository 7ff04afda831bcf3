//! `neverbleed: ON`: private keys are only in the memory of a separate process.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, eventually, openssl, run};
use memchr::memmem;

const KINDS: [(&str, Key); 2] = [("ec", Key::EcSec1), ("rsa", Key::RsaPkcs1)];

/// A server with one listener for each kind of key, on `EC_PORT` and `RSA_PORT`.
fn start(neverbleed: &str) -> Server {
    setup(neverbleed).start()
}

fn setup(neverbleed: &str) -> Setup {
    let folder = Folder::new();
    let mut hosts = String::new();
    for (name, kind) in KINDS {
        self_signed(&folder, name, kind, "a.test");
        let port = name.to_uppercase();
        hosts += &format!(
            "    listen: {{ host: 127.0.0.1, port: @{port}_PORT@, ssl: {{ certificate-file: @DIR@/{name}.crt, key-file: @DIR@/{name}.key, neverbleed: {neverbleed} }} }}\n"
        );
    }
    let config = format!(
        "num-threads: 2\nhosts:\n  default:\n{hosts}    paths: {{ /: {{ file.dir: @DIR@ }} }}\n"
    );
    Setup::in_folder(folder, &config)
}

/// Makes a TLS handshake with these options of `openssl s_client`. Returns what openssl prints.
fn shake_hands(server: &Server, port: &str, options: &str) -> String {
    let port = server.port_of(port);
    let command = format!("openssl s_client -connect 127.0.0.1:{port} {options} </dev/null 2>&1");
    run("sh", &["-c", &command]).text()
}

/// The forms that a key may have in memory: its secret number in both byte orders, and a line of the text of its file.
fn secrets(server: &Server, name: &str) -> Vec<Vec<u8>> {
    let file = server.folder.name_of(&format!("{name}.key"));
    let number = if name == "ec" {
        // RFC 5915 §3: the structure has a version, then the private key as an octet string of 32 bytes.
        let der = openssl(&["ec", "-in", &file, "-outform", "DER"]).success();
        der[7..39].to_vec()
    } else {
        let text = openssl(&["pkey", "-in", &file, "-noout", "-text"]).text();
        let (_, prime) = text
            .split_once("prime1:")
            .expect("the text is of an RSA key");
        let (prime, _) = prime
            .split_once("prime2:")
            .expect("the RSA key has two primes");
        let digits: String = prime.chars().filter(char::is_ascii_hexdigit).collect();
        let byte =
            |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("the characters are digits");
        // The digits after the leading zero byte, which only marks the number as positive.
        (2..digits.len()).step_by(2).map(byte).collect()
    };
    assert!(number.len() >= 32);
    let reversed = number.iter().rev().copied().collect();
    let text = server.folder.read(&format!("{name}.key"));
    // A line with public parts would also be in the certificate: the secret is at the beginning of an EC file, at the end of an RSA file.
    let lines: Vec<&str> = text.lines().collect();
    let line = if name == "ec" {
        lines[1]
    } else {
        lines[lines.len() - 3]
    };
    vec![number, reversed, line.as_bytes().to_vec()]
}

/// Whether the memory of a process contains one of the byte strings.
fn has_in_memory(pid: u32, needles: &[Vec<u8>]) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process runs");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the test may read it");
    let mut read = 0;
    let mut is_found = false;
    for line in maps.lines() {
        let (range, rest) = line
            .split_once(' ')
            .expect("a line of maps begins with a range of addresses");
        let (from, to) = range.split_once('-').expect("the range has an end");
        let number = |text| u64::from_str_radix(text, 16).expect("the text is a number");
        let (from, to) = (number(from), number(to));
        if !rest.starts_with("rw") {
            continue;
        }
        let mut content =
            vec![0; usize::try_from(to - from).expect("the length fits into a usize")];
        // Some special regions of memory, such as those of the kernel, cannot be read.
        let Ok(len) = memory.read_at(&mut content, from) else {
            continue;
        };
        read += len;
        let has = |needle: &Vec<u8>| memmem::find(&content[..len], needle).is_some();
        is_found |= needles.iter().any(has);
    }
    assert!(read > 100_000, "little was read: {read}");
    is_found
}

/// The process id of the server's key process.
fn key_process(server: &Server) -> Option<u32> {
    key_process_of(server.pid())
}

fn key_process_of(parent: u32) -> Option<u32> {
    let parent = parent.to_string();
    let found = run("pgrep", &["-x", "-P", &parent, "neverbleed"]).text();
    found.trim().parse().ok()
}

/// The sockets that a process has open, as the kernel names them: `socket:[1234]`.
fn sockets(pid: u32) -> BTreeSet<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
    let names = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let names = names.filter_map(|name| name.into_os_string().into_string().ok());
    names.filter(|name| name.starts_with("socket:")).collect()
}

#[test]
fn the_key_process_does_not_have_the_listening_sockets_of_a_supervisor() {
    let server = setup("ON").arguments(&["-m", "master"]).start();
    let supervisor = server.pid().to_string();
    let (worker, keys) = eventually("the key process of the worker", || {
        let found = run("pgrep", &["-P", &supervisor]).text();
        let workers = found.lines().filter_map(|line| line.parse::<u32>().ok());
        workers
            .filter_map(|worker| Some((worker, key_process_of(worker)?)))
            .next()
    });
    let listening = &sockets(server.pid()) & &sockets(worker);
    assert!(!listening.is_empty(), "the supervisor passes its sockets");
    assert_eq!(&listening & &sockets(keys), BTreeSet::new());
}

#[test]
fn keys_are_not_in_the_memory_of_the_server() {
    for (neverbleed, is_there) in [("ON", false), ("OFF", true)] {
        let server = start(neverbleed);
        for (name, _) in KINDS {
            let port = format!("{}_PORT", name.to_uppercase());
            for version in ["-tls1_2", "-tls1_3"] {
                let answer = shake_hands(&server, &port, version);
                assert!(answer.contains("Peer signature type: "), "{answer}");
            }
            let found = has_in_memory(server.pid(), &secrets(&server, name));
            assert_eq!(found, is_there, "{name}, neverbleed: {neverbleed}");
        }
        assert_eq!(key_process(&server).is_some(), !is_there);
    }
}

#[test]
fn rsa_keys_sign_by_all_schemes() {
    let server = start("ON");
    let schemes = [
        ("rsa_pss_rsae_sha256", "RSA-PSS"),
        ("rsa_pss_rsae_sha512", "RSA-PSS"),
        ("rsa_pkcs1_sha256", "RSA"),
        ("rsa_pkcs1_sha384", "RSA"),
    ];
    for (scheme, name) in schemes {
        let answer = shake_hands(&server, "RSA_PORT", &format!("-tls1_2 -sigalgs {scheme}"));
        assert!(
            answer.contains(&format!("Peer signature type: {name}\n")),
            "{scheme}: {answer}"
        );
    }
}

#[test]
fn the_key_process_runs_with_few_rights_and_is_started_again() {
    let server = start("ON");
    let first = key_process(&server).expect("the server has a key process");
    let status =
        |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let user_of = |pid: u32| {
        let status = status(pid);
        status
            .lines()
            .find(|line| line.starts_with("Uid:"))
            .map(str::to_owned)
    };
    assert_eq!(user_of(first), user_of(server.pid()));
    // The key process is not dumpable, so its files in /proc belong to root, and not even its own user may read its memory.
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(format!("/proc/{first}/mem"))
        .unwrap()
        .uid();
    assert_eq!(owner, 0);

    let _ = run("kill", &["-9", &first.to_string()]);
    server.wait_for_message("the key process had ended or did not answer; it was started again");
    assert!(key_process(&server).is_some_and(|pid| pid != first));
    for port in ["EC_PORT", "RSA_PORT"] {
        let answer = shake_hands(&server, port, "");
        assert!(answer.contains("Peer signature type: "), "{answer}");
    }
    // A key process that hangs is replaced as well.
    let second = key_process(&server).expect("the server has a key process");
    let _ = run("kill", &["-STOP", &second.to_string()]);
    let answer = shake_hands(&server, "EC_PORT", "");
    assert!(!answer.contains("Peer signature type: "), "{answer}");
    server.wait_for_message("the TLS handshake got no signature: the key process does not answer");
    eventually("a key process with another process id", || {
        key_process(&server).filter(|pid| *pid != second)
    });
    eventually("a handshake with the new key process", || {
        shake_hands(&server, "EC_PORT", "")
            .contains("Peer signature type: ")
            .then_some(())
    });
    let last = key_process(&server).expect("the server has a key process");
    let _folder = server.stop();
    eventually("the end of the key process", || {
        (!status(last).contains("neverbleed")).then_some(())
    });
}

#[test]
fn a_new_certificate_is_taken_up_with_its_key() {
    let server = start("ON");
    let serial = || {
        let port = server.port_of("EC_PORT");
        let command = format!(
            "openssl s_client -connect 127.0.0.1:{port} </dev/null 2>/dev/null | openssl x509 -noout -serial"
        );
        run("sh", &["-c", &command]).text()
    };
    let before = serial();
    self_signed(&server.folder, "ec", Key::EcPkcs8, "a.test");
    server.wait_for_message("certificates reloaded: 1");
    let after = serial();
    assert!(!after.is_empty());
    assert_ne!(before, after);
    server.reload();
    assert_eq!(serial(), after);
    assert!(!has_in_memory(server.pid(), &secrets(&server, "rsa")));
}
