//! Makes a self-signed certificate, and configuration lines of listeners that present it.

#![allow(dead_code, reason = "each test file uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::path::Path;

/// Creates a temporary folder with a certificate `crt` for `a.test`, and its key `key`.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    std::fs::write(folder.path().join("crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.path().join("key"), made.signing_key.serialize_pem()).unwrap();
    folder
}

/// Returns the lines of the configuration for a TLS listener with the certificate in `folder`.
pub(crate) fn tls_listener(folder: &Path, port: u16) -> String {
    let at = folder.display();
    format!(
        "listen:\n  host: 127.0.0.1\n  port: {port}\n  ssl: {{ certificate-file: {at}/crt, key-file: {at}/key }}\n"
    )
}

/// Returns the lines of the configuration for a QUIC listener with the certificate in `folder`.
pub(crate) fn quic_listener(folder: &Path, port: u16) -> String {
    format!("{}  type: quic\n", tls_listener(folder, port))
}
