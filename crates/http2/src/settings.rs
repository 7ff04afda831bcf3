//! Settings of both sides (RFC 9113 §6.5).

use std::time::Duration;

use crate::error::PeerError;
use crate::frame::MAX_FRAME_SIZE;

/// SETTINGS_HEADER_TABLE_SIZE.
pub const HEADER_TABLE_SIZE: u16 = 1;
/// SETTINGS_ENABLE_PUSH.
pub const ENABLE_PUSH: u16 = 2;
/// SETTINGS_MAX_CONCURRENT_STREAMS.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// SETTINGS_INITIAL_WINDOW_SIZE.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// SETTINGS_MAX_FRAME_SIZE.
pub const MAX_FRAME_SIZE_ID: u16 = 5;
/// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441).
pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// SETTINGS_NO_RFC7540_PRIORITIES (RFC 9218).
pub const NO_RFC7540_PRIORITIES: u16 = 9;

/// Size of a flow control window in bytes before any WINDOW_UPDATE or SETTINGS frame (RFC 9113 §6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;
/// Size of the header tables of both directions, in bytes (RFC 7541 §4.2; we never announce another size).
pub const HEADER_TABLE: u32 = 4096;

/// Limits of the server role.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Streams a client may have open (`http2-max-streams`).
    pub max_streams: u32,
    /// Receive window of a stream whose content is being accepted, bytes (`http2-input-window-size`).
    pub input_window: u32,
    /// Largest request content, bytes (`limit-request-body`).
    pub limit_request_body: u64,
    /// Time without bytes after which a connection is closed (`http2-idle-timeout`).
    pub idle_timeout: Duration,
    /// Time after the last GOAWAY of a graceful shutdown until the connection is closed; `None`: no limit
    /// (`http2-graceful-shutdown-timeout`).
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

/// Limits of the client role.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Most requests open at a time, if the server allows as many (`proxy.http2.max-concurrent-streams`).
    pub max_streams: u32,
    /// Receive window of a stream, bytes (`proxy.max-buffer-size`); at least 1, at most 2^31-1.
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
    /// The window as it is announced.
    pub(crate) fn stream_window(&self) -> u32 {
        self.window.clamp(1, i32::MAX.unsigned_abs())
    }
}

/// The settings a peer has announced, or their initial values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Size of its decoder's table, in bytes.
    pub header_table_size: u32,
    /// Whether it accepts pushes.
    pub enable_push: bool,
    /// Streams we may open.
    pub max_concurrent_streams: u32,
    /// Window of new streams.
    pub initial_window_size: u32,
    /// Largest payload that it accepts.
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
    /// Applies the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// [`PeerError::SettingsSize`], [`PeerError::SettingsValue`], [`PeerError::SettingsWindow`]
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
                _ => {} // RFC 9113 §6.5.2: unknown settings are ignored.
            }
        }
        Ok(())
    }

    /// Largest payload of the frames that we send. Larger frames than the default size, even if the peer allows them, would
    /// only make streams wait longer for each other.
    #[must_use]
    pub fn frame_size(&self) -> usize {
        MAX_FRAME_SIZE.min(self.max_frame_size as usize)
    }
}

/// The values of SETTINGS_HEADER_TABLE_SIZE in a payload, in order.
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
