//! The field `Connection` (RFC 9110 §7.6.1) of requests and responses, and how it decides whether the connection persists.

/// The options of all `Connection` fields of a head, which form one list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionOptions {
    is_present: bool,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

impl ConnectionOptions {
    pub(crate) fn on_field(&mut self, value: &[u8]) {
        self.is_present = true;
        for option in value.split(|&byte| byte == b',') {
            let option = option.trim_ascii();
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }

    pub(crate) const fn upgrade(self) -> bool {
        self.upgrade
    }

    /// Whether the connection stays open after the message. `close` always prevents that (RFC 9112 §9.6). H2O
    /// compatibility: H2O closes in HTTP/1.1, too, after a `Connection` without `keep-alive`. This server does not if the
    /// request offers an upgrade that it declines: then the field is there for the upgrade.
    pub(crate) const fn is_persistent(self, is_http10: bool, offers_upgrade: bool) -> bool {
        !self.close && (self.keep_alive || (!is_http10 && (!self.is_present || offers_upgrade)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistence_follows_version_and_options() {
        let cases: &[(&[&str], bool, bool, bool)] = &[
            // each row: the fields; whether the connection persists in HTTP/1.1, in HTTP/1.0, and in HTTP/1.1 if an upgrade
            // was offered
            (&[], true, false, true),
            (&["keep-alive"], true, true, true),
            (&["Keep-Alive"], true, true, true),
            (&["TE, keep-alive"], true, true, true),
            (&["TE", "keep-alive"], true, true, true),
            (&["TE"], false, false, true),
            (&[""], false, false, true),
            (&["close"], false, false, false),
            (&["keep-alive, Close"], false, false, false),
            (&["close", "keep-alive"], false, false, false),
            (&["Upgrade, HTTP2-Settings"], false, false, true),
            (&["keep-alivex"], false, false, true),
        ];
        for (fields, http11, http10, upgrade) in cases {
            let mut options = ConnectionOptions::default();
            for field in *fields {
                options.on_field(field.as_bytes());
            }
            assert_eq!(options.is_persistent(false, false), *http11, "{fields:?}");
            assert_eq!(options.is_persistent(true, false), *http10, "{fields:?}");
            assert_eq!(options.is_persistent(false, true), *upgrade, "{fields:?}");
        }
    }
}
