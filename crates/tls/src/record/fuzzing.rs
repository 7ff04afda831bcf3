//! Entry points for fuzzing.

use rustls::ConnectionTrafficSecrets;

use crate::record::framing::ContentType;
use crate::record::output::OutputBuffer;
use crate::record::protection::Protection;
use crate::versions::Version;

/// Protects records as the peer of a connection does, whatever is in them.
pub struct RecordWriter(Protection);

impl RecordWriter {
    /// Takes over from rustls after a handshake. `None` for an unsupported suite.
    #[must_use]
    pub fn new(is_tls13: bool, sequence: u64, secrets: &ConnectionTrafficSecrets) -> Option<Self> {
        let version = if is_tls13 {
            Version::Tls13
        } else {
            Version::Tls12
        };
        Protection::new(version, sequence, secrets).ok().map(Self)
    }

    /// Appends a record of change_cipher_spec (0), alert (1), handshake (2) or application data (3).
    pub fn write(&mut self, kind: u8, payload: &[u8], out: &mut OutputBuffer) {
        let content_type = match kind % 4 {
            0 => ContentType::ChangeCipherSpec,
            1 => ContentType::Alert,
            2 => ContentType::Handshake,
            _ => ContentType::ApplicationData,
        };
        let sealed = self.0.seal(content_type, &[payload], out);
        debug_assert!(sealed.is_ok(), "the payload fits a record");
    }
}
