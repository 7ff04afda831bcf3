//! Tests of certificate files that change while the server runs.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod embedded;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use embedded::Embedded;
use h2o_server::CertificateReload;
use h2o_testkit::patient;
use h2o_testkit::tls::client_config;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Creates a certificate for `name`. Returns the certificate in PEM and in DER form, and its key in PEM form.
fn pair(name: &str) -> (String, CertificateDer<'static>, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.not_after = date_time_ymd(2999, 12, 31);
    let certificate = params.self_signed(&key).unwrap();
    let der = certificate.der().clone();
    (certificate.pem(), der, key.serialize_pem())
}

/// Writes a new certificate for `name` and its key to the files `file`.crt and `file`.key. Returns the certificate.
fn write_pair(folder: &Path, file: &str, name: &str) -> CertificateDer<'static> {
    let (certificate, der, key) = pair(name);
    std::fs::write(folder.join(format!("{file}.crt")), certificate).unwrap();
    std::fs::write(folder.join(format!("{file}.key")), key).unwrap();
    der
}

/// Starts a server with certificates for a.test and b.test.
fn start(folder: &Path) -> Embedded {
    let at = folder.display().to_string();
    Embedded::start(&[], |port| {
        let host = |name: &str| {
            format!(
                "  {name}.test:\n    listen:\n      host: 127.0.0.1\n      port: {port}\n      ssl: {{ certificate-file: {at}/{name}.crt, key-file: {at}/{name}.key }}\n    paths:\n      /: {{ file.dir: {at} }}\n"
            )
        };
        format!("num-threads: 2\nhosts:\n{}{}", host("a"), host("b"))
    })
}

type Client = StreamOwned<ClientConnection, TcpStream>;

/// Opens a TLS connection. Returns the connection and the certificate that the server presented.
fn meet(server: &Embedded, name: &'static str) -> (Client, CertificateDer<'static>) {
    let client = connect(server, &client_config(b"http/1.1"), name);
    let shown = client.conn.peer_certificates().unwrap()[0].clone();
    (client, shown.into_owned())
}

/// Opens a TLS connection, and completes the handshake as far as the client is concerned.
fn connect(server: &Embedded, config: &Arc<ClientConfig>, name: &'static str) -> Client {
    let mut socket = patient(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    let mut client = ClientConnection::new(Arc::clone(config), name.try_into().unwrap()).unwrap();
    while client.is_handshaking() {
        client.complete_io(&mut socket).unwrap();
    }
    StreamOwned::new(client, socket)
}

fn is_answered(client: &mut Client) -> bool {
    client
        .write_all(b"GET /answer HTTP/1.1\r\nhost: a.test\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.ends_with(b"indeed") {
        let len = client.read(&mut piece).unwrap();
        if len == 0 {
            return false;
        }
        answer.extend_from_slice(&piece[..len]);
    }
    true
}

#[test]
fn new_connections_are_not_shown_certificates_that_were_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("answer"), "indeed").unwrap();
    let old_a = write_pair(folder, "a", "a.test");
    let old_b = write_pair(folder, "b", "b.test");
    let server = start(folder);
    let running = server.server();
    let (mut early, shown) = meet(&server, "a.test");
    assert_eq!(shown, old_a);

    // No file has changed, so the reload does nothing.
    assert_eq!(running.reload_certificates(), CertificateReload::default());

    let new_a = write_pair(folder, "a", "www.a.test");
    assert_eq!(
        meet(&server, "a.test").1,
        old_a,
        "the old certificate is served until certificates are reloaded"
    );
    let done = running.reload_certificates();
    assert_eq!((done.renewed, done.failures), (1, Vec::new()));
    // Several connections are opened, so that every worker gets one.
    for _ in 0..8 {
        assert_eq!(meet(&server, "a.test").1, new_a);
    }
    assert_eq!(meet(&server, "b.test").1, old_b);
    assert!(
        is_answered(&mut early),
        "connections stay open when certificates are reloaded"
    );

    let list = server.loaded.certificates();
    let names: Vec<_> = list.iter().map(|info| &*info.names[0]).collect();
    assert_eq!(names, ["www.a.test", "b.test"]);
    assert_eq!(&*list[0].place, "test.conf:7");
    assert_eq!(&*list[0].hosts[0].name, "a.test");
    assert_eq!(&*list[0].listeners[0], format!("127.0.0.1:{}", server.port));
    // The certificate ends on 2999-12-31; `not_after` is that day as a Unix time.
    assert_eq!(list[0].not_after, 32_503_593_600);
    assert!(list[0].is_for("www.a.test") && !list[0].is_for("a.test"));
}

#[test]
fn files_that_do_not_belong_together_do_not_replace_what_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("answer"), "indeed").unwrap();
    let old_a = write_pair(folder, "a", "a.test");
    write_pair(folder, "b", "b.test");
    let server = start(folder);
    let running = server.server();

    // So far only the new certificate of a.test is written, not its key; for b.test both are written.
    let (certificate, new_a, key) = pair("a.test");
    std::fs::write(folder.join("a.crt"), certificate).unwrap();
    let new_b = write_pair(folder, "b", "b.test");
    let done = running.reload_certificates();
    assert_eq!(done.renewed, 1);
    let at = folder.display();
    assert_eq!(
        done.failures,
        [format!(
            "private key file:{at}/a.key does not belong to certificate file:{at}/a.crt"
        )]
    );
    assert_eq!(meet(&server, "a.test").1, old_a);
    assert_eq!(meet(&server, "b.test").1, new_b);

    std::fs::remove_file(folder.join("a.crt")).unwrap();
    let done = running.reload_certificates();
    assert_eq!(done.renewed, 0);
    assert_eq!(
        done.failures,
        [format!(
            "failed to load certificate file:{at}/a.crt: No such file or directory"
        )]
    );
    let (mut client, shown) = meet(&server, "a.test");
    assert_eq!(shown, old_a);
    assert!(is_answered(&mut client));

    // Now the certificate and the key of both hosts are written.
    write_pair(folder, "a", "a.test");
    std::fs::write(folder.join("a.key"), key).unwrap();
    assert_eq!(running.reload_certificates().renewed, 0);
    let newest_a = write_pair(folder, "a", "a.test");
    let done = running.reload_certificates();
    assert_eq!((done.renewed, done.failures), (1, Vec::new()));
    let shown = meet(&server, "a.test").1;
    assert!(shown == newest_a && shown != new_a);
}

/// Creates a certificate authority for clients. Returns its certificate in PEM form, and the configuration of a TLS client that has
/// a certificate of this authority.
fn authority(name: &str) -> (String, Arc<ClientConfig>) {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let authority = CertifiedIssuer::self_signed(params, key).unwrap();
    let mut params = CertificateParams::new(["client.test".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let mut config = ClientConfig::clone(&client_config(b"http/1.1"));
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let identity = SingleCertAndKey::from(
        CertifiedKey::from_der(
            vec![certificate.der().clone()],
            key,
            config.crypto_provider(),
        )
        .unwrap(),
    );
    config.client_auth_cert_resolver = Arc::new(identity);
    (authority.pem(), Arc::new(config))
}

#[test]
fn clients_of_an_authority_that_was_replaced_are_not_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("answer"), "indeed").unwrap();
    write_pair(folder, "a", "a.test");
    let (first, of_first) = authority("first");
    let (second, of_second) = authority("second");
    let write = |content: &str| std::fs::write(folder.join("ca.crt"), content).unwrap();
    write(&first);
    let at = folder.display().to_string();
    let server = Embedded::start(&[], |port| {
        format!(
            "num-threads: 1\nlisten:\n  host: 127.0.0.1\n  port: {port}\n  ssl: {{ certificate-file: {at}/a.crt, key-file: {at}/a.key, client-ca-file: {at}/ca.crt }}\nhosts:\n  default:\n    paths:\n      /: {{ file.dir: {at} }}\n"
        )
    });
    let running = server.server();
    let is_let_in = |config: &Arc<ClientConfig>| {
        let mut client = connect(&server, config, "a.test");
        let sent = client.write_all(b"GET /answer HTTP/1.1\r\nhost: a.test\r\n\r\n");
        // In TLS 1.3 the client notices only at its first read that the server has refused its certificate.
        sent.is_ok() && client.read(&mut [0; 4096]).is_ok_and(|len| len > 0)
    };
    assert!(is_let_in(&of_first) && !is_let_in(&of_second));
    assert_eq!(running.reload_certificates(), CertificateReload::default());

    write(&second);
    let done = running.reload_certificates();
    assert_eq!((done.renewed, done.failures), (1, Vec::new()));
    assert!(!is_let_in(&of_first) && is_let_in(&of_second));

    write("");
    let done = running.reload_certificates();
    assert_eq!(
        done.failures,
        [format!(
            "failed to load client CA file:{at}/ca.crt: no certificate in PEM form"
        )]
    );
    assert!(!is_let_in(&of_first) && is_let_in(&of_second));
}
