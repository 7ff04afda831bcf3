//! Handshakes with `openssl s_server`.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use h2o_tls::{TlsClient, TlsClientSettings};
use rcgen::{CertificateParams, KeyPair};
use rustls::{HandshakeKind, ProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const NAME: &str = "name.example";

/// Answers each line with its octets in reverse.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([NAME.to_string()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("certificate.pem"), certificate.pem()).unwrap();
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
        Self::start_with(directory, arguments)
    }

    /// With `certificate.pem` and `key.pem` of the directory.
    fn start_with(directory: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new("openssl")
            .args(["s_server", "-accept", "127.0.0.1:0", "-rev"])
            .args(["-cert", "certificate.pem", "-key", "key.pem"])
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let port = lines.find_map(|line| line.strip_prefix("ACCEPT 127.0.0.1:")?.parse().ok());
        // What it says about each connection is read and forgotten, so that it never waits for us.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            port: port.unwrap(),
        }
    }

    async fn meet(
        &self,
        client: &TlsClient,
        alpn: &[&[u8]],
    ) -> Result<TlsStream<TcpStream>, &'static str> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let key = format!("{NAME}:{}", self.port);
        let stream = client.handshake(NAME, &key, alpn, stream).await;
        let mut stream = stream?;
        stream.write_all(b"abc\n").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, *b"cba\n");
        Ok(stream)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(ca_file: &Path) -> Arc<TlsClient> {
    TlsClient::new(TlsClientSettings {
        verify_peer: true,
        ca_file: Some(ca_file.to_owned()),
        session_cache: Some((Duration::from_secs(60), 1)),
    })
    .unwrap()
}

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(20), future).await };
    runtime.block_on(limited).unwrap();
}

#[test]
fn both_versions_are_spoken_and_sessions_resumed() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, version) in [
        (&["-tls1_2"][..], ProtocolVersion::TLSv1_2),
        (&["-tls1_2", "-no_ticket"], ProtocolVersion::TLSv1_2),
        (&["-tls1_3"], ProtocolVersion::TLSv1_3),
        // Not the group that a client guesses first.
        (&["-tls1_3", "-groups", "P-384"], ProtocolVersion::TLSv1_3),
    ] {
        let server = Server::start(directory.path(), arguments);
        let client = client(&directory.path().join("certificate.pem"));
        run(async {
            for resumes in [false, true, true] {
                let mut stream = server.meet(&client, &[]).await.unwrap();
                let connection = stream.get_ref().1;
                assert_eq!(connection.protocol_version(), Some(version));
                let kind = connection.handshake_kind();
                assert_eq!(
                    kind == Some(HandshakeKind::Resumed),
                    resumes,
                    "{arguments:?}"
                );
                // OpenSSL forgets sessions that were cut off.
                stream.shutdown().await.unwrap();
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            }
        });
    }
}

#[test]
fn protocols_are_agreed_on_by_alpn() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &["-alpn", "h2,http/1.1"]);
    let client = client(&directory.path().join("certificate.pem"));
    run(async {
        for (alpn, chosen) in [
            (&[&b"http/1.1"[..], b"h2"][..], Some(&b"h2"[..])),
            (&[b"http/1.1"], Some(b"http/1.1")),
            (&[], None),
        ] {
            let stream = server.meet(&client, alpn).await.unwrap();
            assert_eq!(stream.get_ref().1.alpn_protocol(), chosen);
        }
    });
}

#[test]
fn older_versions_are_not_spoken() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let server = Server::start(directory.path(), &arguments);
    let client = client(&directory.path().join("certificate.pem"));
    run(async {
        let met = server.meet(&client, &[]).await;
        assert_eq!(met.err(), Some("ssl handshake failure"));
    });
}

/// Authorities and leaves as `openssl` makes them. Each case has `NAME.ca`, `NAME.pem` and maybe `NAME.chain`; all leaves have
/// one key.
const CASES: &str = r#"
set -e
new_key() { openssl ecparam -name prime256v1 -genkey -noout -out $1; }
for key in root middle key; do new_key $key.pem; done
printf '[req]\ndistinguished_name=dn\nprompt=no\nstring_mask=nombstr\n[dn]\nCN=Our Authority\n' > printable.conf
printf '[req]\ndistinguished_name=dn\nprompt=no\nstring_mask=utf8only\n[dn]\nCN=our  authority\n' > utf8.conf
printf 'basicConstraints=critical,CA:TRUE\n' > ca.ext
printf 'basicConstraints=critical,CA:TRUE\nnameConstraints=critical,permitted;DNS:example.com\n' > bound.ext
printf 'subjectAltName=DNS:name.example\n' > leaf.ext
printf 'subjectAltName=DNS:one.internal\n' > one.ext
own() { openssl req -new -key $1.pem -config $2.conf | openssl x509 -req -days 9 -signkey $1.pem -extfile $3.ext -out $4; }
leaf() { openssl req -new -key key.pem -subj "$1" | openssl x509 -req -days 9 -CA $2 -CAkey $3.pem -CAcreateserial -out $4 $5 $6; }

own root printable ca root.crt
own root utf8 ca other-name.crt
# Its issuer has the same name in another string type.
cp root.crt string-type.ca
leaf /CN=x other-name.crt root string-type.pem -extfile leaf.ext
# Version 1: no extensions.
cp root.crt version1.ca
leaf /CN=name.example root.crt root version1.pem
# Both.
cp root.crt both.ca
leaf /CN=name.example other-name.crt root both.pem
# The name and key of a certificate in the CA file, and another host.
openssl req -new -key key.pem -subj /CN=own > own.csr
openssl x509 -req -days 9 -in own.csr -signkey key.pem -extfile one.ext -out pinned.ca
openssl x509 -req -days 9 -in own.csr -signkey key.pem -extfile leaf.ext -out pinned.pem
# Issued with the key of a certificate in the CA file that is no authority.
cp pinned.ca issued.ca
leaf /CN=x pinned.ca key issued.pem -extfile leaf.ext
# A common name outside of what its authority may confirm.
cp root.crt constraint.ca
openssl req -new -key middle.pem -subj /CN=middle |
    openssl x509 -req -days 9 -CA root.crt -CAkey root.pem -CAcreateserial -extfile bound.ext -out constraint.chain
leaf /CN=name.example constraint.chain middle constraint.pem
"#;

#[test]
fn chains_that_openssl_refuses_are_not_taken_and_those_it_takes_are_not_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut shell = Command::new("sh");
    shell.args(["-c", CASES]).current_dir(directory);
    let made = shell.stderr(Stdio::null()).status().unwrap();
    assert!(made.success());
    let at = |name: &str| directory.join(name);
    for (case, is_good) in [
        ("string-type", true),
        ("version1", true),
        ("both", true),
        ("pinned", false),
        ("issued", false),
        ("constraint", false),
    ] {
        let [ca, leaf, chain] = ["ca", "pem", "chain"].map(|kind| format!("{case}.{kind}"));
        let mut verify = Command::new("openssl");
        verify.args(["verify", "-verify_hostname", NAME, "-CAfile", &ca]);
        let mut arguments = Vec::new();
        if at(&chain).exists() {
            verify.args(["-untrusted", &chain]);
            arguments.extend(["-cert_chain", &chain]);
        }
        let verified = verify.arg(&leaf).current_dir(directory).output().unwrap();
        assert_eq!(verified.status.success(), is_good, "{case}: {verified:?}");

        std::fs::copy(at(&leaf), at("certificate.pem")).unwrap();
        let server = Server::start_with(directory, &arguments);
        let client = client(&at(&ca));
        run(async {
            let met = server.meet(&client, &[]).await;
            assert_eq!(met.is_ok(), is_good, "{case}: {:?}", met.err());
        });
    }
}
