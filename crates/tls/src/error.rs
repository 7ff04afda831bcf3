//! Errors of a TLS peer, and the alerts that answer them.

use std::fmt;

use rustls::AlertDescription;

/// Why a TLS connection has failed. The alert, if there is one, was written before the error was returned.
#[derive(Clone, Debug, PartialEq)]
pub enum TlsError {
    /// The peer speaks HTTP in clear text.
    ClearText,
    /// The handshake failed; the text is for the log.
    Handshake(rustls::Error),
    /// The handshake messages exceed the limit.
    HandshakeTooLarge,
    /// A record is longer than the version allows.
    RecordOverflow,
    /// A record's authentication tag is wrong.
    BadRecordMac,
    /// The peer sent a message that is not allowed at this point of the connection.
    UnexpectedMessage,
    /// The peer sent a malformed message.
    Decode,
    /// The peer sent a KeyUpdate with an unknown value of `request_update`.
    IllegalParameter,
    /// The client offers no version from TLS 1.2 on.
    OldVersion,
    /// The client accepts only a raw public key in place of a certificate and the server has none, or the other way round
    /// (RFC 7250 §4.2).
    UnsupportedCertificate,
    /// A TLS 1.2 client asked to renegotiate.
    Renegotiation,
    /// The peer sent too many empty records, warning alerts or handshake messages in a row.
    Flood,
    /// The peer sent this fatal alert.
    PeerAlert(u8),
    /// The keys have protected as many records as they may, and TLS 1.2 has no KeyUpdate to replace them.
    KeysExhausted,
    /// The connection has failed or was closed before this call.
    Closed,
    /// Data cannot be sent yet: the handshake is not complete.
    NotReady,
    /// An unexpected failure of the cryptographic library.
    Crypto,
}

/// A TLS alert (RFC 8446 §6): its level and description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    pub(crate) level: u8,
    pub(crate) description: u8,
}

impl Alert {
    pub(crate) const WARNING: u8 = 1;
    pub(crate) const CLOSE_NOTIFY: Self = Self {
        level: Self::WARNING,
        description: 0,
    };
    pub(crate) const USER_CANCELED: u8 = 90;
    /// The alert `no_renegotiation`, which is always a warning (RFC 5246 §7.2.2).
    pub(crate) const NO_RENEGOTIATION: Self = Self {
        level: Self::WARNING,
        description: 100,
    };

    const fn fatal(description: u8) -> Self {
        Self {
            level: 2,
            description,
        }
    }

    pub(crate) const fn bytes(self) -> [u8; 2] {
        [self.level, self.description]
    }
}

impl TlsError {
    /// The alert to send to the peer for this error; `None` for none. In the handshake, rustls makes the alerts itself.
    pub(crate) fn alert(&self) -> Option<Alert> {
        match self {
            Self::HandshakeTooLarge | Self::Decode => Some(Alert::fatal(50)),
            Self::RecordOverflow => Some(Alert::fatal(22)),
            Self::BadRecordMac => Some(Alert::fatal(20)),
            Self::UnexpectedMessage | Self::Flood => Some(Alert::fatal(10)),
            Self::IllegalParameter => Some(Alert::fatal(47)),
            Self::OldVersion => Some(Alert::fatal(70)),
            Self::UnsupportedCertificate => Some(Alert::fatal(43)),
            // H2O compatibility: as in H2O, the connection ends although `no_renegotiation` is only a warning.
            Self::Renegotiation => Some(Alert::NO_RENEGOTIATION),
            Self::KeysExhausted => Some(Alert::CLOSE_NOTIFY),
            Self::Handshake(_)
            | Self::ClearText
            | Self::PeerAlert(_)
            | Self::Closed
            | Self::NotReady
            | Self::Crypto => None,
        }
    }

    /// Whether the peer gets an alert for this error.
    pub(crate) fn expects_alert(&self) -> bool {
        self.alert().is_some() || matches!(self, Self::Handshake(_))
    }

    /// The alert for this error as an unprotected record; `decode_error` for errors without an alert of their own.
    pub(crate) fn plain_alert(&self) -> [u8; 7] {
        let alert = self.alert().unwrap_or(Alert::fatal(50));
        [21, 3, 3, 0, 2, alert.level, alert.description]
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClearText => f.write_str("the client sent plain HTTP to a TLS port"),
            Self::Handshake(error) => error.fmt(f),
            Self::HandshakeTooLarge => f.write_str("TLS handshake is too large"),
            Self::RecordOverflow => f.write_str("TLS record is too long"),
            Self::BadRecordMac => f.write_str("TLS record has a wrong authentication tag"),
            Self::UnexpectedMessage => f.write_str("unexpected TLS message"),
            Self::Decode => f.write_str("malformed TLS message"),
            Self::IllegalParameter => f.write_str("illegal parameter in TLS message"),
            Self::OldVersion => f.write_str("the client offers TLS 1.1 at most"),
            Self::UnsupportedCertificate => {
                f.write_str(
                    "client and server have no type of certificate in common: one uses only certificates, the other only raw public \
                     keys",
                )
            }
            Self::Renegotiation => f.write_str("TLS renegotiation refused"),
            Self::Flood => f.write_str("too many TLS records without data"),
            Self::PeerAlert(description) => {
                let name = AlertDescription::from(*description);
                write!(f, "peer sent TLS alert {description} ({name:?})")
            }
            Self::KeysExhausted => f.write_str("the TLS keys have encrypted as many records as is safe"),
            Self::Closed => f.write_str("TLS connection is closed"),
            Self::NotReady => f.write_str("TLS handshake is not complete"),
            Self::Crypto => f.write_str("TLS cryptography failed"),
        }
    }
}

impl std::error::Error for TlsError {}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::AlertReceived(alert) => Self::PeerAlert(u8::from(alert)),
            other => Self::Handshake(other),
        }
    }
}
