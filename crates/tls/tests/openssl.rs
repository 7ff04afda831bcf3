//! Handshakes with `openssl s_server`.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use h2o_tls::{ClientConnection, OutputBuffer, TlsClient, TlsClientSettings, handshake_text};
use rcgen::{CertificateParams, KeyPair};

const NAME: &str = "name.example";

/// A process of `openssl s_server` that answers each line with its bytes reversed.
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

    /// Starts the server with the files `certificate.pem` and `key.pem` in the directory.
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
        // The output of the program is read and dropped, so that the program never has to wait.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            port: port.unwrap(),
        }
    }

    fn meet(&self, client: &TlsClient, alpn: &[&[u8]]) -> Result<Talk, &'static str> {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let patience = Some(Duration::from_secs(20));
        socket.set_read_timeout(patience).unwrap();
        let key = format!("{NAME}:{}", self.port);
        let mut out = OutputBuffer::default();
        let tls = client.connect(NAME, &key, alpn, &mut out)?;
        let mut talk = Talk {
            socket,
            tls,
            plain: Vec::new(),
            is_closed: false,
        };
        talk.socket.write_all(&out).unwrap();
        while !talk.read()? {}
        talk.write(b"abc\n");
        while talk.plain.len() < 4 {
            talk.read()?;
        }
        assert_eq!(talk.plain, *b"cba\n");
        Ok(talk)
    }
}

/// Our client's TLS connection to the server, with its socket.
struct Talk {
    socket: TcpStream,
    tls: ClientConnection,
    /// The plaintext that the client has received.
    plain: Vec<u8>,
    /// Whether the client has received close_notify.
    is_closed: bool,
}

impl Talk {
    fn write(&mut self, plain: &[u8]) {
        let mut out = OutputBuffer::default();
        self.tls.encrypt(plain, &mut out).unwrap();
        self.socket.write_all(&out).unwrap();
    }

    /// Reads from the socket once. Returns whether that completed the handshake.
    fn read(&mut self) -> Result<bool, &'static str> {
        let mut input = [0; 4096];
        let len = self.socket.read(&mut input).unwrap();
        assert!(len > 0, "the server has closed the connection");
        let mut out = OutputBuffer::default();
        let received = self
            .tls
            .receive(&mut input[..len], &mut self.plain, &mut out);
        self.socket.write_all(&out).unwrap();
        let progress = received.map_err(|error| handshake_text(&error))?;
        self.is_closed |= progress.closed_by_peer;
        Ok(progress.handshake_done_now)
    }

    /// Closes the connection with close_notify: OpenSSL drops the session otherwise.
    fn close(mut self) {
        let mut out = OutputBuffer::default();
        self.tls.close_notify(&mut out);
        self.socket.write_all(&out).unwrap();
        while !self.is_closed {
            self.read().unwrap();
        }
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

#[test]
fn both_versions_are_spoken_and_sessions_resumed() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, version) in [
        (&["-tls1_2"][..], "TLSv1.2"),
        (&["-tls1_2", "-no_ticket"], "TLSv1.2"),
        (&["-tls1_3"], "TLSv1.3"),
        // The server wants another key-exchange group than that of the client's first key share.
        (&["-tls1_3", "-groups", "P-384"], "TLSv1.3"),
    ] {
        let server = Server::start(directory.path(), arguments);
        let client = client(&directory.path().join("certificate.pem"));
        for resumes in [false, true, true] {
            let talk = server.meet(&client, &[]).unwrap();
            let info = talk.tls.info();
            assert_eq!(info.protocol, version);
            assert_eq!(info.resumed, resumes, "{arguments:?}");
            talk.close();
        }
    }
}

#[test]
fn protocols_are_agreed_on_by_alpn() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &["-alpn", "h2,http/1.1"]);
    let client = client(&directory.path().join("certificate.pem"));
    for (alpn, chosen) in [
        (&[&b"http/1.1"[..], b"h2"][..], Some(&b"h2"[..])),
        (&[b"http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let talk = server.meet(&client, alpn).unwrap();
        assert_eq!(talk.tls.alpn(), chosen);
    }
}

#[test]
fn older_versions_are_not_spoken() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let server = Server::start(directory.path(), &arguments);
    let client = client(&directory.path().join("certificate.pem"));
    let met = server.meet(&client, &[]);
    assert_eq!(met.err(), Some("ssl handshake failure"));
}

/// Authorities and leaves made by `openssl`. Each case has `NAME.ca`, `NAME.pem` and possibly `NAME.chain`; all leaves
/// have the same key.
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
        let met = server.meet(&client, &[]);
        assert_eq!(met.is_ok(), is_good, "{case}: {:?}", met.err());
    }
}
