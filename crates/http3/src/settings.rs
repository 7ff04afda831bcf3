//! Settings of both sides of an HTTP/3 connection (RFC 9114 §7.2.4), and limits of the engine.

use std::time::Duration;

use crate::error::PeerError;
use crate::frame::{self, FrameType};
use crate::varint;

/// Identifier of SETTINGS_QPACK_MAX_TABLE_CAPACITY (RFC 9204 §5).
pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
/// Identifier of SETTINGS_MAX_FIELD_SECTION_SIZE.
pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
/// Identifier of SETTINGS_QPACK_BLOCKED_STREAMS (RFC 9204 §5).
pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
/// Identifier of SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 9220).
pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
/// Identifier of SETTINGS_H3_DATAGRAM (RFC 9297).
pub const H3_DATAGRAM: u64 = 0x33;
/// Identifier of SETTINGS_H3_DATAGRAM in the drafts of RFC 9297.
pub const H3_DATAGRAM_DRAFT: u64 = 0x276;

/// The settings of the server role.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `max-streams-bidi`: how many requests a client may have open. The field sections of all of them may wait for the
    /// server's QPACK table.
    pub max_streams: u32,
    /// `qpack-decoder-table-capacity`: size in bytes of the server's QPACK table, which the client may fill. With 0 there
    /// is no table, and no section waits for it.
    pub qpack_decoder_capacity: u32,
    /// `qpack-encoder-table-capacity`: how many bytes of the client's QPACK table the server uses at most.
    pub qpack_encoder_capacity: u32,
    /// `limit-request-body`: maximum length of a request's content in bytes.
    pub limit_request_body: u64,
    /// `http3-graceful-shutdown-timeout`: time after the final GOAWAY of a graceful shutdown until the connection is
    /// closed; `None` for no limit.
    pub graceful_shutdown_timeout: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_streams: 100,
            qpack_decoder_capacity: 16_384,
            qpack_encoder_capacity: 16_384,
            limit_request_body: 1 << 30,
            graceful_shutdown_timeout: None,
        }
    }
}

impl Settings {
    /// Appends the SETTINGS frame of the server role.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut values = vec![(H3_DATAGRAM, 1), (H3_DATAGRAM_DRAFT, 1)];
        if self.qpack_decoder_capacity > 0 {
            values.push((
                QPACK_MAX_TABLE_CAPACITY,
                u64::from(self.qpack_decoder_capacity),
            ));
            values.push((QPACK_BLOCKED_STREAMS, u64::from(self.max_streams)));
        }
        values.push((ENABLE_CONNECT_PROTOCOL, 1));
        write_values(&values, out);
    }
}

/// The settings of the client role.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Maximum number of open requests, if the transport allows as many. The field sections of all responses may wait for
    /// the QPACK table of this side.
    pub max_streams: u32,
    /// Size in bytes of this side's QPACK table, which the server may fill.
    pub qpack_decoder_capacity: u32,
    /// How many bytes of the server's QPACK table this side uses at most.
    pub qpack_encoder_capacity: u32,
    /// Whether the server may send the payloads of tunnels in QUIC datagrams (RFC 9297 §2.1.1), if the transport has them.
    pub takes_datagrams: bool,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            max_streams: 100,
            qpack_decoder_capacity: 16_384,
            qpack_encoder_capacity: 16_384,
            takes_datagrams: true,
        }
    }
}

impl ClientSettings {
    /// Appends the SETTINGS frame of the client role. `has_datagrams` tells whether both sides support QUIC datagrams.
    pub(crate) fn write(&self, has_datagrams: bool, out: &mut Vec<u8>) {
        let mut values = Vec::new();
        if has_datagrams && self.takes_datagrams {
            values.push((H3_DATAGRAM, 1));
        }
        if self.qpack_decoder_capacity > 0 {
            let capacity = u64::from(self.qpack_decoder_capacity);
            values.push((QPACK_MAX_TABLE_CAPACITY, capacity));
            values.push((QPACK_BLOCKED_STREAMS, u64::from(self.max_streams)));
        }
        write_values(&values, out);
    }
}

/// Appends a SETTINGS frame with these values.
pub(crate) fn write_values(values: &[(u64, u64)], out: &mut Vec<u8>) {
    let mut payload = Vec::new();
    for &(id, value) in values {
        varint::encode(id, &mut payload);
        varint::encode(value, &mut payload);
    }
    frame::write(FrameType::SETTINGS, &payload, out);
}

/// The settings that the peer has announced, or their initial values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerSettings {
    /// Maximum size in bytes of the QPACK table of the peer's decoder.
    pub qpack_max_table_capacity: u64,
    /// Maximum number of streams whose field sections may wait for the peer's QPACK table.
    pub qpack_blocked_streams: u64,
    /// Size in bytes of the largest field section that the peer accepts, computed as in RFC 9114 §4.2.2; `None` for no
    /// limit.
    pub max_field_section_size: Option<u64>,
    /// Whether the peer allows extended CONNECT (RFC 9220).
    pub enable_connect_protocol: bool,
    /// Whether the peer accepts HTTP datagrams (RFC 9297).
    pub datagrams: bool,
}

impl PeerSettings {
    /// Parses the payload of a SETTINGS frame. `has_datagrams` tells whether both sides support QUIC datagrams.
    ///
    /// # Errors
    /// Returns [`PeerError::SettingsMalformed`] or [`PeerError::SettingsInvalid`] if the payload is invalid.
    pub fn parse(mut payload: &[u8], has_datagrams: bool) -> Result<Self, PeerError> {
        const KNOWN: [u64; 6] = [
            QPACK_MAX_TABLE_CAPACITY,
            MAX_FIELD_SECTION_SIZE,
            QPACK_BLOCKED_STREAMS,
            ENABLE_CONNECT_PROTOCOL,
            H3_DATAGRAM,
            H3_DATAGRAM_DRAFT,
        ];
        let mut settings = Self::default();
        let mut seen = [false; KNOWN.len()];
        while !payload.is_empty() {
            let value =
                varint::decode(payload).and_then(|(id, rest)| Some((id, varint::decode(rest)?)));
            let Some((id, (value, rest))) = value else {
                return Err(PeerError::SettingsMalformed);
            };
            payload = rest;
            if let Some(at) = KNOWN.iter().position(|&known| known == id)
                && std::mem::replace(&mut seen[at], true)
            {
                return Err(PeerError::SettingsInvalid);
            }
            match id {
                QPACK_MAX_TABLE_CAPACITY => settings.qpack_max_table_capacity = value,
                MAX_FIELD_SECTION_SIZE => settings.max_field_section_size = Some(value),
                QPACK_BLOCKED_STREAMS => settings.qpack_blocked_streams = value,
                ENABLE_CONNECT_PROTOCOL => settings.enable_connect_protocol = flag(value)?,
                H3_DATAGRAM | H3_DATAGRAM_DRAFT => {
                    let takes = flag(value)?;
                    if takes && !has_datagrams {
                        return Err(PeerError::SettingsMalformed);
                    }
                    settings.datagrams |= takes;
                }
                // Settings that only HTTP/2 has (RFC 9114 §7.2.4.1).
                0x02..=0x05 => return Err(PeerError::SettingsInvalid),
                _ => {} // Unknown settings are ignored (RFC 9114 §7.2.4).
            }
        }
        Ok(settings)
    }
}

const fn flag(value: u64) -> Result<bool, PeerError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(PeerError::SettingsMalformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let ok = PeerSettings::default();
        type Case<'a> = (&'a [(u64, u64)], Result<PeerSettings, PeerError>);
        let cases: &[Case<'_>] = &[
            (&[], Ok(ok)),
            (
                &[(QPACK_MAX_TABLE_CAPACITY, varint::MAX)],
                Ok(PeerSettings {
                    qpack_max_table_capacity: varint::MAX,
                    ..ok
                }),
            ),
            (
                &[(MAX_FIELD_SECTION_SIZE, 0), (QPACK_BLOCKED_STREAMS, 7)],
                Ok(PeerSettings {
                    max_field_section_size: Some(0),
                    qpack_blocked_streams: 7,
                    ..ok
                }),
            ),
            (
                &[
                    (ENABLE_CONNECT_PROTOCOL, 1),
                    (H3_DATAGRAM, 1),
                    (H3_DATAGRAM_DRAFT, 1),
                ],
                Ok(PeerSettings {
                    enable_connect_protocol: true,
                    datagrams: true,
                    ..ok
                }),
            ),
            (&[(H3_DATAGRAM, 0), (0x21, 5), (0x21, 6)], Ok(ok)),
            (
                &[(ENABLE_CONNECT_PROTOCOL, 2)],
                Err(PeerError::SettingsMalformed),
            ),
            (&[(H3_DATAGRAM, 2)], Err(PeerError::SettingsMalformed)),
            (&[(0x02, 0)], Err(PeerError::SettingsInvalid)),
            (&[(0x05, 0)], Err(PeerError::SettingsInvalid)),
            (
                &[(H3_DATAGRAM, 1), (H3_DATAGRAM, 1)],
                Err(PeerError::SettingsInvalid),
            ),
        ];
        for (values, want) in cases {
            let mut frame = Vec::new();
            write_values(values, &mut frame);
            let payload = &frame[2..];
            assert_eq!(PeerSettings::parse(payload, true), *want, "{values:?}");
            if let Some((_, cut)) = payload.split_last() {
                let got = PeerSettings::parse(cut, true);
                assert_ne!(got, Ok(ok), "{values:?}: cut off");
            }
        }
    }

    #[test]
    fn datagrams_need_the_transport() {
        let payload = [0x33, 1];
        assert!(PeerSettings::parse(&payload, true).is_ok_and(|settings| settings.datagrams));
        let error = Err(PeerError::SettingsMalformed);
        assert_eq!(PeerSettings::parse(&payload, false), error);
        assert!(PeerSettings::parse(&[0x33, 0], false).is_ok());
    }

    #[test]
    fn ours_are_in_the_order_of_h2o() {
        let mut out = Vec::new();
        Settings::default().write(&mut out);
        let want = b"\x04\x0f\x33\x01\x42\x76\x01\x01\x80\x00\x40\x00\x07\x40\x64\x08\x01";
        assert_eq!(
            out.escape_ascii().to_string(),
            want.escape_ascii().to_string()
        );
        out.clear();
        let settings = Settings {
            qpack_decoder_capacity: 0,
            ..Settings::default()
        };
        settings.write(&mut out);
        assert_eq!(out, b"\x04\x07\x33\x01\x42\x76\x01\x08\x01");
    }
}
