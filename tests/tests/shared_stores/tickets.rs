//! TLS ticket keys that servers share through a store.

use std::net::TcpListener;

use h2o_tests::{eventually, free_port};

use super::{STORES, certificate, resumes, talk};

const ENTRY: &str = "h2o:ssl-session-key";
const VERSIONS: [&str; 2] = ["-tls1_2", "-tls1_3"];

#[test]
fn sessions_of_one_server_go_on_at_another() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let service = store.start(&certificate, port);
        let [one, two] = [(); 2].map(|()| store.server("ticket", &certificate, port));
        for version in VERSIONS {
            assert!(resumes(version, &one, &two), "{store:?} {version}");
            assert!(resumes(version, &two, &one), "{store:?} {version}");
        }
        let before = store.read(port, ENTRY);
        assert_eq!(before.matches("- name: ").count(), 1, "{before}");
        // While the store is down, the servers keep using their ticket keys; a store that starts empty gets the keys from them.
        service.kill();
        for version in VERSIONS {
            assert!(resumes(version, &one, &two), "{store:?} {version}");
        }
        eventually("the message that the store does not answer", || {
            one.folder
                .read("error.log")
                .contains("cannot load session ticket secrets from ")
                .then_some(())
        });
        let _service = store.start(&certificate, port);
        let key = |text: &str| {
            text.lines()
                .find(|line| line.contains("  key: "))
                .map(str::to_owned)
        };
        eventually("the keys to be in the store again", || {
            (key(&store.read(port, ENTRY)) == key(&before)).then_some(())
        });
        let third = store.server("ticket", &certificate, port);
        for version in VERSIONS {
            assert!(resumes(version, &one, &third), "{store:?} {version}");
        }
    }
}

#[test]
fn keys_that_another_server_has_made_are_used() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let _service = store.start(&certificate, port);
        let (name, material) = ("07".repeat(16), "0a".repeat(96));
        let text = format!(
            "---\n- name: {name}\n  cipher: AES-256-CBC\n  hash: SHA256\n  key: {material}\n  not_before: 1000000000\n  not_after: 9000000000\n"
        );
        store.write(port, ENTRY, &text);
        let server = store.server("ticket", &certificate, port);
        let text = talk(&server, &["-tls1_2"]);
        let ticket = "    0000 - 07 07 07 07 07 07 07 07-07 07 07 07 07 07 07 07";
        assert!(text.contains(ticket), "{store:?}: {text}");
        // The key in the store is older than a quarter of the lifetime, so the server adds a new one for later use.
        let text = store.read(port, ENTRY);
        assert!(text.contains(&format!("- name: {name}\n")), "{text}");
        assert_eq!(text.matches("- name: ").count(), 2, "{text}");
    }
}

#[test]
fn nonsense_in_the_store_is_replaced() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let _service = store.start(&certificate, port);
        store.write(port, ENTRY, "- [ {nonsense");
        let [one, two] = [(); 2].map(|()| store.server("ticket", &certificate, port));
        for version in VERSIONS {
            assert!(resumes(version, &one, &two), "{store:?} {version}");
        }
        let log = one.folder.read("error.log");
        assert!(
            log.contains("failed to load session ticket secrets from "),
            "{log}"
        );
    }
}

#[test]
fn a_store_that_is_not_there_costs_a_full_handshake() {
    let certificate = certificate();
    for store in STORES {
        let port = free_port();
        let server = store.server("ticket", &certificate, port);
        for version in VERSIONS {
            assert!(!resumes(version, &server, &server), "{store:?} {version}");
        }
        let _service = store.start(&certificate, port);
        eventually("the message that the store answers again", || {
            resumes("-tls1_3", &server, &server).then_some(())
        });
    }
}

#[test]
fn a_store_that_does_not_answer_holds_nobody_up() {
    let certificate = certificate();
    for store in STORES {
        // The kernel accepts connections to this store, but no process reads from them.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("the socket is bound").port();
        let server = store.server("ticket", &certificate, port);
        for version in VERSIONS {
            assert!(!resumes(version, &server, &server), "{store:?} {version}");
        }
        drop(listener);
    }
}
