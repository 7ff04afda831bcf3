//! Reasons why QUIC connections end, or cannot be opened.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use quinn_proto::ConnectionError;

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The two sides support no QUIC version in common.
    Version,
    /// The peer broke the protocol, and this side closed the connection with this error code (RFC 9000 §20.1). Codes of 0x100 and
    /// above are TLS alerts.
    PeerError {
        /// The error code sent to the peer.
        code: u64,
        /// A description of what the peer did wrong.
        reason: String,
    },
    /// The peer's QUIC implementation has closed the connection with this error code (RFC 9000 §20.1).
    ClosedByTransport {
        /// The error code in the peer's CONNECTION_CLOSE frame.
        code: u64,
        /// The reason phrase in the peer's CONNECTION_CLOSE frame; it may contain any bytes.
        reason: Bytes,
    },
    /// The peer's application (HTTP/3) has closed the connection with this error code.
    ClosedByApplication {
        /// The error code in the peer's CONNECTION_CLOSE frame.
        code: u64,
        /// The reason phrase in the peer's CONNECTION_CLOSE frame; it may contain any bytes.
        reason: Bytes,
    },
    /// A stateless reset was received (RFC 9000 §10.3): the peer has lost the connection.
    Reset,
    /// No packet of the peer arrived for as long as the idle timeout (RFC 9000 §10.1).
    IdleTimeout,
    /// This side gave up the handshake: it took too long, or made this side send too many packets.
    HandshakeTimeout,
    /// The application on this side has closed the connection.
    Local,
}

impl CloseReason {
    pub(crate) fn of(error: ConnectionError) -> Self {
        match error {
            ConnectionError::VersionMismatch => Self::Version,
            ConnectionError::TransportError(error) => Self::PeerError {
                code: error.code.into(),
                reason: error.reason,
            },
            ConnectionError::ConnectionClosed(close) => Self::ClosedByTransport {
                code: close.error_code.into(),
                reason: close.reason,
            },
            ConnectionError::ApplicationClosed(close) => Self::ClosedByApplication {
                code: close.error_code.into_inner(),
                reason: close.reason,
            },
            ConnectionError::Reset => Self::Reset,
            ConnectionError::TimedOut => Self::IdleTimeout,
            ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => Self::Local,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => {
                formatter.write_str("client and server have no QUIC version in common")
            }
            Self::PeerError { code, reason } if (0x100..0x200).contains(code) => {
                // RFC 9001 §4.8: the code is that of a TLS alert.
                let (alert, reason) = (code - 0x100, own_words(reason));
                write!(
                    formatter,
                    "the TLS handshake failed (alert {alert}): {reason}"
                )
            }
            Self::PeerError { code, reason } => {
                write!(
                    formatter,
                    "closed with error {code:#x} because the peer broke the protocol: {reason}"
                )
            }
            Self::ClosedByTransport { code, reason } => {
                let reason = String::from_utf8_lossy(reason);
                write!(
                    formatter,
                    "closed by the peer with error {code:#x}: {reason}"
                )
            }
            Self::ClosedByApplication { code, reason } => {
                let reason = String::from_utf8_lossy(reason);
                write!(
                    formatter,
                    "closed by the peer with code {code:#x}: {reason}"
                )
            }
            Self::Reset => formatter.write_str("stateless reset by the peer"),
            Self::IdleTimeout => formatter.write_str("idle timeout"),
            Self::HandshakeTimeout => {
                formatter.write_str("the handshake exceeded its limit of time or packets")
            }
            Self::Local => formatter.write_str("closed by this side"),
        }
    }
}

/// The text that a verifier of certificates has put into an error of the TLS library, which shows it within the names of its types; other
/// texts as they are.
fn own_words(reason: &str) -> &str {
    let inner = reason
        .split_once("Other(OtherError(")
        .map(|(_, inner)| inner);
    inner
        .and_then(|inner| inner.strip_suffix("))"))
        .unwrap_or(reason)
}

/// Why a connection cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// No datagram can be sent to the server's address.
    Address,
    /// TLS refuses the server name or the configuration of the connection that was to be opened.
    Tls(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => {
                formatter.write_str("no datagram can be sent to the address of the server")
            }
            Self::Tls(reason) => formatter.write_str(reason),
        }
    }
}

impl Error for ConnectError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_is_told_without_the_names_of_types() {
        let reason =
            "invalid peer certificate: Other(OtherError(self-signed certificate))".to_owned();
        let closed = CloseReason::PeerError {
            code: 0x12e,
            reason,
        };
        assert_eq!(
            closed.to_string(),
            "the TLS handshake failed (alert 46): self-signed certificate"
        );
    }
}
