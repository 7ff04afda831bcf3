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
        Self::with_responder(folder, name, free_port())
    }

    /// Does the same as [`Self::new`], with this port for the OCSP responder instead of a free one.
    #[must_use]
    pub fn with_responder(folder: &Folder, name: &str, port: u16) -> Self {
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

    /// Makes an OCSP response that is valid for a day, without running the responder. `serial`: the hexadecimal serial number of the
    /// certificate that the response is about; `signer`: the name, without `.crt` and `.key`, of the files with the certificate and
    /// key that sign the response.
    ///
    /// # Panics
    /// If `openssl` is not installed.
    #[must_use]
    pub fn response(&self, folder: &Folder, serial: &str, signer: &str) -> Vec<u8> {
        let file = |name: &str| folder.name_of(name);
        folder.write(
            "one",
            format!("V\t391231235959Z\t\t{serial}\tunknown\t/CN=a\n"),
        );
        let number = format!("0x{serial}");
        let ask = ["ocsp", "-no_nonce", "-issuer", &file("ca.crt")];
        let request = file("request");
        let _ = openssl(&[&ask[..], &["-serial", &number, "-reqout", &request]].concat()).success();
        let (certificate, key) = (
            file(&format!("{signer}.crt")),
            file(&format!("{signer}.key")),
        );
        let index = ["ocsp", "-index", &file("one"), "-CA", &file("ca.crt")];
        let by = ["-rsigner", &certificate, "-rkey", &key, "-ndays", "1"];
        let files = ["-reqin", &request, "-respout", &file("response")];
        let _ = openssl(&[&index[..], &by, &files].concat()).success();
        std::fs::read(file("response")).expect("openssl has written it")
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
