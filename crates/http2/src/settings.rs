//! Settings of both sides of an HTTP/2 connection (RFC 9113 §6.5), and limits of the engine.

use std::time::Duration;

use crate::error::PeerError;
use crate::frame::MAX_FRAME_SIZE;

/// Identifier of SETTINGS_HEADER_TABLE_SIZE.
pub const HEADER_TABLE_SIZE: u16 = 1;
/// Identifier of SETTINGS_ENABLE_PUSH.
pub const ENABLE_PUSH: u16 = 2;
/// Identifier of SETTINGS_MAX_CONCURRENT_STREAMS.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// Identifier of SETTINGS_INITIAL_WINDOW_SIZE.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// Identifier of SETTINGS_MAX_FRAME_SIZE.
pub const MAX_FRAME_SIZE_ID: u16 = 5;
/// Identifier of SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441).
pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// Identifier of SETTINGS_NO_RFC7540_PRIORITIES (RFC 9218).
pub const NO_RFC7540_PRIORITIES: u16 = 9;

/// Size of a flow control window in bytes before any WINDOW_UPDATE or SETTINGS frame (RFC 9113 §6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;
/// Initial size of the HPACK dynamic tables of both directions, in bytes (RFC 7541 §4.2). The engine never announces
/// another size.
pub const HEADER_TABLE: u32 = 4096;

/// Settings of the server role.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `http2-max-streams`: how many streams a client may have open.
    pub max_streams: u32,
    /// `http2-input-window-size`: receive window in bytes of a stream whose content a handler reads.
    pub input_window: u32,
    /// `limit-request-body`: maximum length of a request's content in bytes.
    pub limit_request_body: u64,
    /// `http2-idle-timeout`: a connection on which no byte was sent or received for this time is closed.
    pub idle_timeout: Duration,
    /// `http2-graceful-shutdown-timeout`: time after the final GOAWAY of a graceful shutdown until the connection is
    /// closed; `None` for no limit.
    pub graceful_shutdown_timeout: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_streams: 100,
            input_window: 16_777_216,
            limit_request_body: 1 << 30,
            idle_timeout: Duration::from_secs(10),
            graceful_shutdown_timeout: None,
        }
    }
}

/// Settings of the client role.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// `proxy.http2.max-concurrent-streams`: maximum number of open requests, if the server allows as many.
    pub max_streams: u32,
    /// `proxy.max-buffer-size`: receive window of a stream in bytes; at least 1, at most 2^31-1.
    pub window: u32,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            max_streams: 100,
            window: DEFAULT_WINDOW,
        }
    }
}

impl ClientSettings {
    /// The receive window of streams as it is announced to the server, within the allowed range.
    pub(crate) fn stream_window(&self) -> u32 {
        self.window.clamp(1, i32::MAX.unsigned_abs())
    }
}

/// The settings that the peer has announced, or their initial values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Maximum size in bytes of the HPACK table of the peer's decoder.
    pub header_table_size: u32,
    /// Whether the peer accepts pushes.
    pub enable_push: bool,
    /// How many streams this side may have open.
    pub max_concurrent_streams: u32,
    /// Initial send window of new streams in bytes.
    pub initial_window_size: u32,
    /// Largest payload in bytes that the peer accepts.
    pub max_frame_size: u32,
    /// Whether the peer allows extended CONNECT (RFC 8441).
    pub enable_connect_protocol: bool,
    /// Whether the peer ignores the dependency tree of RFC 7540 (RFC 9218 §2.1).
    pub no_rfc7540_priorities: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            header_table_size: HEADER_TABLE,
            enable_push: true,
            max_concurrent_streams: u32::MAX,
            initial_window_size: DEFAULT_WINDOW,
            max_frame_size: 16_384,
            enable_connect_protocol: false,
            no_rfc7540_priorities: false,
        }
    }
}

impl PeerSettings {
    /// Applies the payload of a SETTINGS frame of the peer.
    ///
    /// # Errors
    /// Returns [`PeerError::SettingsSize`], [`PeerError::SettingsValue`] or [`PeerError::SettingsWindow`] if the payload is
    /// invalid.
    pub fn apply(&mut self, payload: &[u8]) -> Result<(), PeerError> {
        let (values, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(PeerError::SettingsSize);
        }
        for &[a, b, c, d, e, f] in values {
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                HEADER_TABLE_SIZE => self.header_table_size = value,
                ENABLE_PUSH => self.enable_push = flag(value)?,
                MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = value,
                INITIAL_WINDOW_SIZE if value > i32::MAX.unsigned_abs() => {
                    return Err(PeerError::SettingsWindow);
                }
                INITIAL_WINDOW_SIZE => self.initial_window_size = value,
                MAX_FRAME_SIZE_ID if (1 << 14..1 << 24).contains(&value) => {
                    self.max_frame_size = value;
                }
                MAX_FRAME_SIZE_ID => return Err(PeerError::SettingsValue),
                ENABLE_CONNECT_PROTOCOL => self.enable_connect_protocol = flag(value)?,
                NO_RFC7540_PRIORITIES => self.no_rfc7540_priorities = flag(value)?,
                _ => {} // Unknown settings are ignored (RFC 9113 §6.5.2).
            }
        }
        Ok(())
    }

    /// Largest payload in bytes of the frames that this side sends. Frames larger than the default size, even if the peer
    /// allows them, would only make the streams wait longer for each other.
    #[must_use]
    pub fn frame_size(&self) -> usize {
        MAX_FRAME_SIZE.min(self.max_frame_size as usize)
    }
}

/// The values of SETTINGS_HEADER_TABLE_SIZE in the payload of a SETTINGS frame, in order.
pub(crate) fn table_sizes(payload: &[u8]) -> impl Iterator<Item = u32> {
    let (values, _) = payload.as_chunks::<6>();
    values
        .iter()
        .filter(|value| value[..2] == HEADER_TABLE_SIZE.to_be_bytes())
        .map(|&[_, _, a, b, c, d]| u32::from_be_bytes([a, b, c, d]))
}

const fn flag(value: u32) -> Result<bool, PeerError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(PeerError::SettingsValue),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_as_rfc_9113_says() {
        let max = i32::MAX.unsigned_abs();
        let cases: &[(u16, u32, Result<(), PeerError>)] = &[
            (HEADER_TABLE_SIZE, u32::MAX, Ok(())),
            (ENABLE_PUSH, 0, Ok(())),
            (ENABLE_PUSH, 1, Ok(())),
            (ENABLE_PUSH, 2, Err(PeerError::SettingsValue)),
            (MAX_CONCURRENT_STREAMS, 0, Ok(())),
            (INITIAL_WINDOW_SIZE, max, Ok(())),
            (INITIAL_WINDOW_SIZE, max + 1, Err(PeerError::SettingsWindow)),
            (MAX_FRAME_SIZE_ID, 16_383, Err(PeerError::SettingsValue)),
            (MAX_FRAME_SIZE_ID, 16_384, Ok(())),
            (MAX_FRAME_SIZE_ID, 16_777_215, Ok(())),
            (MAX_FRAME_SIZE_ID, 16_777_216, Err(PeerError::SettingsValue)),
            (ENABLE_CONNECT_PROTOCOL, 2, Err(PeerError::SettingsValue)),
            (NO_RFC7540_PRIORITIES, 2, Err(PeerError::SettingsValue)),
            (0x0a0a, 7, Ok(())),
        ];
        for &(id, value, want) in cases {
            let payload = [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
            let mut settings = PeerSettings::default();
            assert_eq!(settings.apply(&payload), want, "{id}={value}");
            assert_eq!(settings.apply(&payload[..5]), Err(PeerError::SettingsSize));
        }
    }
}
