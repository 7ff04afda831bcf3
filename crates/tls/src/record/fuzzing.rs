//! Entry points for fuzzing records.

use rustls::ConnectionTrafficSecrets;

use crate::record::framing::ContentType;
use crate::record::output::OutputBuffer;
use crate::record::protection::Protection;
use crate::versions::Version;

/// Protects records with the keys of a connection's peer, whatever the records contain.
pub struct RecordWriter(Protection);

impl RecordWriter {
    /// Takes over the keys of rustls after a handshake. Returns `None` for a cipher suite that is not supported.
    #[must_use]
    pub fn new(is_tls13: bool, sequence: u64, secrets: &ConnectionTrafficSecrets) -> Option<Self> {
        let version = if is_tls13 {
            Version::Tls13
        } else {
            Version::Tls12
        };
        Protection::new(version, sequence, secrets).ok().map(Self)
    }

    /// Appends a protected record; `kind` is 0 for change_cipher_spec, 1 for alert, 2 for handshake and 3 for application data.
    pub fn write(&mut self, kind: u8, payload: &[u8], out: &mut OutputBuffer) {
        let content_type = match kind % 4 {
            0 => ContentType::ChangeCipherSpec,
            1 => ContentType::Alert,
            2 => ContentType::Handshake,
            _ => ContentType::ApplicationData,
        };
        let sealed = self.0.seal(content_type, &[payload], out);
        debug_assert!(sealed.is_ok(), "the payload fits into a record");
    }
}
