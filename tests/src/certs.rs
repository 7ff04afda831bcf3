//! Certificates and keys for tests, created by the program openssl.

use crate::{Folder, openssl};

/// Algorithm and file format of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// An RSA key in a file that begins with `BEGIN RSA PRIVATE KEY` (PKCS #1).
    RsaPkcs1,
    /// An RSA key in a file that begins with `BEGIN PRIVATE KEY` (PKCS #8).
    RsaPkcs8,
    /// A P-256 key in a file that begins with `BEGIN EC PRIVATE KEY` (SEC 1).
    EcSec1,
    /// A P-256 key in a file that begins with `BEGIN PRIVATE KEY` (PKCS #8).
    EcPkcs8,
}

impl Key {
    /// All kinds of keys.
    pub const ALL: [Self; 4] = [Self::RsaPkcs1, Self::RsaPkcs8, Self::EcSec1, Self::EcPkcs8];

    /// The first line of a key file of this kind.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::RsaPkcs1 => "-----BEGIN RSA PRIVATE KEY-----",
            Self::EcSec1 => "-----BEGIN EC PRIVATE KEY-----",
            Self::RsaPkcs8 | Self::EcPkcs8 => "-----BEGIN PRIVATE KEY-----",
        }
    }
}

/// Writes a private key to the file `NAME.key` in the folder.
///
/// # Panics
/// If openssl fails.
pub fn key(folder: &Folder, name: &str, kind: Key) {
    let file = folder.name_of(&format!("{name}.key"));
    let out = match kind {
        Key::RsaPkcs1 => openssl(&["genrsa", "-traditional", "-out", &file, "2048"]),
        Key::RsaPkcs8 => openssl(&[
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
            "-out",
            &file,
        ]),
        Key::EcSec1 => openssl(&[
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            &file,
        ]),
        Key::EcPkcs8 => openssl(&[
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-out",
            &file,
        ]),
    };
    let _ = out.success();
    let written = folder.read(&format!("{name}.key"));
    assert!(written.starts_with(kind.label()), "{kind:?}: {written}");
}

/// Writes a key to `NAME.key` and a self-signed certificate for `host` and 127.0.0.1 to `NAME.crt`.
pub fn self_signed(folder: &Folder, name: &str, kind: Key, host: &str) {
    key(folder, name, kind);
    let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
    let _ = openssl(&[
        "req",
        "-x509",
        "-new",
        "-sha256",
        "-days",
        "30",
        "-key",
        &folder.name_of(&key),
        "-out",
        &folder.name_of(&certificate),
        "-subj",
        &format!("/CN={host}"),
        "-addext",
        &format!("subjectAltName=DNS:{host},IP:127.0.0.1"),
    ])
    .success();
}

/// Writes a key to `NAME.key` and a certificate for `host` that was valid in the year 2020 to `NAME.crt`.
///
/// # Panics
/// If openssl fails.
pub fn expired(folder: &Folder, name: &str, host: &str) {
    key(folder, name, Key::EcPkcs8);
    let file = |suffix: &str| folder.name_of(&format!("{name}.{suffix}"));
    let key = file("key");
    let _ = openssl(&[
        "req",
        "-new",
        "-key",
        &key,
        "-out",
        &file("csr"),
        "-subj",
        &format!("/CN={host}"),
    ])
    .success();
    folder.write(&format!("{name}.index"), "");
    let config = format!(
        "[ca]\ndatabase = {}\nserial = {}\nnew_certs_dir = {}\ndefault_md = sha256\npolicy = any\n\
         [any]\ncommonName = supplied\n[names]\nsubjectAltName = DNS:{host}\n",
        file("index"),
        file("serial"),
        folder.path().display(),
    );
    folder.write(&format!("{name}.conf"), config);
    // `openssl ca` is the only command of openssl that accepts the dates of a certificate.
    let _ = openssl(&[
        "ca",
        "-batch",
        "-notext",
        "-selfsign",
        "-rand_serial",
        "-config",
        &file("conf"),
        "-name",
        "ca",
        "-extensions",
        "names",
        "-keyfile",
        &key,
        "-in",
        &file("csr"),
        "-out",
        &file("crt"),
        "-startdate",
        "20200101000000Z",
        "-enddate",
        "20201231000000Z",
    ])
    .success();
}

/// Writes a key to `NAME.key` and a client certificate, signed by `ISSUER.key`, to `NAME.crt`.
pub fn client(folder: &Folder, name: &str, issuer: &str) {
    let extensions = "extendedKeyUsage=clientAuth\nsubjectAltName=DNS:client.example\n";
    issued(folder, name, issuer, extensions);
}

/// Writes a key to `NAME.key` and a certificate for 127.0.0.1, signed by `ISSUER.key`, to `NAME.crt`.
pub fn local_server(folder: &Folder, name: &str, issuer: &str) {
    let extensions = "extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1\n";
    issued(folder, name, issuer, extensions);
}

fn issued(folder: &Folder, name: &str, issuer: &str, extensions: &str) {
    key(folder, name, Key::EcPkcs8);
    let file = |suffix: &str| folder.name_of(&format!("{name}.{suffix}"));
    let _ = openssl(&[
        "req",
        "-new",
        "-key",
        &file("key"),
        "-out",
        &file("csr"),
        "-subj",
        "/CN=client",
    ])
    .success();
    let extensions = format!("basicConstraints=CA:FALSE\n{extensions}");
    folder.write(&format!("{name}.ext"), extensions);
    let _ = openssl(&[
        "x509",
        "-req",
        "-days",
        "30",
        "-CAcreateserial",
        "-in",
        &file("csr"),
        "-out",
        &file("crt"),
        "-CA",
        &folder.name_of(&format!("{issuer}.crt")),
        "-CAkey",
        &folder.name_of(&format!("{issuer}.key")),
        "-extfile",
        &file("ext"),
    ])
    .success();
}
