//! A certificate authority with an OCSP responder, made with the program `openssl`.

use std::process::{Child, Command, Stdio};

use crate::{Folder, free_port, openssl};

/// A certificate authority whose OCSP responder is not running yet. It has issued a certificate that names the responder. Files in the
/// folder: `ca.crt`, `a.crt` with `a.key`, and `chain` with both certificates.
pub struct OcspAuthority {
    port: u16,
}

/// A running OCSP responder. The process ends when this value is dropped.
pub struct OcspResponder(Child);

impl OcspAuthority {
    /// Makes the keys and certificates of the authority and of a server; `name` is the DNS name of the server.
    #[must_use]
    pub fn new(folder: &Folder, name: &str) -> Self {
        let port = free_port();
        let file = |name: &str| folder.name_of(name);
        let (ca, ca_key) = (file("ca.crt"), file("ca.key"));
        let curve = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-x509",
        ];
        let make = |rest: &[&str]| openssl(&[&["req"][..], &curve, rest].concat()).success();
        make(&["-subj", "/CN=ca", "-keyout", &ca_key, "-out", &ca]);
        let responder = format!("authorityInfoAccess=OCSP;URI:http://127.0.0.1:{port}");
        let names = format!("subjectAltName=DNS:{name}");
        make(&[
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &file("a.key"),
            "-out",
            &file("a.crt"),
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-addext",
            &responder,
            "-addext",
            &names,
            "-set_serial",
            "0x1234",
        ]);
        let line = format!("V\t391231235959Z\t\t1234\tunknown\t/CN={name}\n");
        folder.write("index", line);
        let chain = format!("{}{}", folder.read("a.crt"), folder.read("ca.crt"));
        folder.write("chain", chain);
        Self { port }
    }

    /// The port that the OCSP responder listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Starts the OCSP responder. Its responses are valid for a day.
    ///
    /// # Panics
    /// If `openssl` is not installed.
    #[must_use]
    pub fn respond(&self, folder: &Folder) -> OcspResponder {
        let file = |name: &str| folder.name_of(name);
        let mut command = Command::new("openssl");
        command.args(["ocsp", "-index", &file("index")]);
        command.args(["-port", &self.port.to_string(), "-CA", &file("ca.crt")]);
        command.args(["-rsigner", &file("ca.crt"), "-rkey", &file("ca.key")]);
        command.args(["-ndays", "1"]);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        OcspResponder(command.spawn().expect("openssl is installed"))
    }
}

impl Drop for OcspResponder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
