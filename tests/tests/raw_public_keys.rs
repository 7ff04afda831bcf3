//! Raw public keys instead of certificates (RFC 7250), with GnuTLS as the client.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, curl, run, run_with_input};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";

/// Starts a server with these identities: each is a file, `raw.pub` or `server.crt`, with the key that belongs to it.
fn server(certificates: &[&str]) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "www.example.com");
    let (key, public) = (folder.name_of("server.key"), folder.name_of("raw.pub"));
    let args = ["pkey", "-in", &key, "-pubout", "-out", &public];
    let _ = run("openssl", &args).success();
    let identity: String = certificates
        .iter()
        .map(|file| format!("{{ certificate-file: @DIR@/{file}, key-file: @DIR@/server.key }}, "))
        .collect();
    let config = format!(
        "
listen:
  port: @PORT@
  ssl: {{ identity: [ {identity} ] }}
hosts:
  default:
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
"
    );
    Setup::in_folder(folder, &config)
        .file("www/index.html", "hello, raw world")
        .start()
}

/// The output of a GnuTLS client that offers these types of certificates and sends a request.
fn gnutls(server: &Server, types: &str) -> String {
    let priority = format!("NORMAL:-VERS-ALL:+VERS-TLS1.3:-CTYPE-ALL:+CTYPE-CLI-X509:{types}");
    let (key, public) = (
        server.folder.name_of("server.key"),
        server.folder.name_of("raw.pub"),
    );
    let port = server.port().to_string();
    let args = [
        "--no-ca-verification",
        "--priority",
        &priority,
        // GnuTLS offers raw public keys only if the client has one itself.
        "--rawpkfile",
        &public,
        "--rawpkkeyfile",
        &key,
        "--port",
        &port,
        "127.0.0.1",
    ];
    run_with_input("gnutls-cli", &args, REQUEST).text()
}

const RAW: &str = "+CTYPE-SRV-RAWPK";
const EITHER: &str = "+CTYPE-SRV-RAWPK:+CTYPE-SRV-X509";
const CERTIFICATE: &str = "+CTYPE-SRV-X509";

#[test]
fn a_client_of_raw_public_keys_is_served() {
    for certificates in [
        &["raw.pub"][..],
        &["raw.pub", "server.crt"],
        &["server.crt", "raw.pub"],
    ] {
        let server = server(certificates);
        for types in [RAW, EITHER] {
            let text = gnutls(&server, types);
            for part in ["- Certificate type: Raw Public Key", "hello, raw world"] {
                assert!(text.contains(part), "{certificates:?} {types}: {text}");
            }
        }
    }
}

#[test]
fn a_client_of_certificates_gets_one_if_there_is_one() {
    let both = server(&["raw.pub", "server.crt"]);
    let text = gnutls(&both, CERTIFICATE);
    for part in ["- Certificate type: X.509", "hello, raw world"] {
        assert!(text.contains(part), "{text}");
    }
    for version in ["1.2", "1.3"] {
        let url = format!("https://127.0.0.1:{}/", both.port());
        let answer = curl(&["--insecure", "--tls-max", version, &url]);
        assert_eq!(answer.text(), "hello, raw world");
    }
    let raw = server(&["raw.pub"]);
    let text = gnutls(&raw, CERTIFICATE);
    assert!(!text.contains("Handshake was completed"), "{text}");
    let only_certificates = server(&["server.crt"]);
    let text = gnutls(&only_certificates, RAW);
    assert!(!text.contains("Handshake was completed"), "{text}");
    assert!(gnutls(&only_certificates, EITHER).contains("hello, raw world"));
}
