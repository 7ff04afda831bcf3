//! Field names: the table of well-known names, and the token rule (RFC 9110 §5.1, §5.6.2).

use crate::words;

/// Whether `byte` is allowed in a token (RFC 9110 §5.6.2).
#[inline]
#[must_use]
pub const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize] != 0
}

/// Whether `text` is a token: at least one byte, all of them `tchar` (RFC 9110 §5.6.2).
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

/// For each byte that is allowed in a token its lower-case form, and 0 for all other bytes. One look-up both checks a byte
/// and converts it.
pub(crate) static TOKEN: [u8; 256] = {
    let mut table = [0; 256];
    let marks = b"!#$%&'*+-.^_`|~";
    let mut i = 0;
    while i < marks.len() {
        table[marks[i] as usize] = marks[i];
        i += 1;
    }
    let mut c = b'0';
    while c <= b'9' {
        table[c as usize] = c;
        c += 1;
    }
    let mut c = b'a';
    while c <= b'z' {
        table[c as usize] = c;
        table[(c - 32) as usize] = c;
        c += 1;
    }
    table
};

/// A field name: one of the table of well-known names, or any other in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// A name of the table of well-known names.
    Known(Known),
    /// Any other name, in lower case.
    Other(&'a str),
}

impl<'a> Name<'a> {
    /// The field name `lower`, which must be in lower case already.
    #[must_use]
    pub fn from_lower(lower: &'a str) -> Self {
        Known::from_lower(lower.as_bytes()).map_or(Self::Other(lower), Self::Known)
    }

    /// The text of the name in lower case.
    #[must_use]
    pub fn as_str(&self) -> &'a str {
        match *self {
            Self::Known(known) => known.as_str(),
            Self::Other(text) => text,
        }
    }
}

impl From<Known> for Name<'_> {
    fn from(known: Known) -> Self {
        Self::Known(known)
    }
}

macro_rules! known {
    ($($variant:ident = $text:literal),* $(,)?) => {
        /// The well-known field names. A value takes one byte instead of the text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each variant is the field name it is spelt like")]
        pub enum Known { $($variant),* }

        impl Known {
            /// All well-known names, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            const TEXT: &'static [&'static str] = &[$($text),*];
            const LINE_STARTS: &'static [&'static str] = &[$(concat!($text, ": ")),*];

            /// Finds the well-known name `lower`, which must be in lower case already.
            #[must_use]
            pub fn from_lower(lower: &[u8]) -> Option<Self> {
                $(const $variant: &[u8] = $text.as_bytes();)*
                #[allow(non_upper_case_globals, reason = "constants are named as their variants")]
                match lower {
                    $($variant => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

#[allow(
    non_upper_case_globals,
    reason = "the match constants are named as their variants"
)]
mod table {
    known! {
        Accept = "accept",
        AcceptCharset = "accept-charset",
        AcceptEncoding = "accept-encoding",
        AcceptLanguage = "accept-language",
        AcceptRanges = "accept-ranges",
        AccessControlAllowOrigin = "access-control-allow-origin",
        Age = "age",
        Allow = "allow",
        AltSvc = "alt-svc",
        Authorization = "authorization",
        CacheControl = "cache-control",
        CacheDigest = "cache-digest",
        Connection = "connection",
        ContentDisposition = "content-disposition",
        ContentEncoding = "content-encoding",
        ContentLanguage = "content-language",
        ContentLength = "content-length",
        ContentLocation = "content-location",
        ContentRange = "content-range",
        ContentSecurityPolicy = "content-security-policy",
        ContentType = "content-type",
        Cookie = "cookie",
        DatagramFlowId = "datagram-flow-id",
        Date = "date",
        EarlyData = "early-data",
        Etag = "etag",
        Expect = "expect",
        Expires = "expires",
        Forwarded = "forwarded",
        From = "from",
        Host = "host",
        Http2Settings = "http2-settings",
        IfMatch = "if-match",
        IfModifiedSince = "if-modified-since",
        IfNoneMatch = "if-none-match",
        IfRange = "if-range",
        IfUnmodifiedSince = "if-unmodified-since",
        KeepAlive = "keep-alive",
        LastModified = "last-modified",
        Link = "link",
        Location = "location",
        MaxForwards = "max-forwards",
        NoEarlyHints = "no-early-hints",
        Origin = "origin",
        Pragma = "pragma",
        Priority = "priority",
        ProxyAuthenticate = "proxy-authenticate",
        ProxyAuthorization = "proxy-authorization",
        ProxyConnection = "proxy-connection",
        ProxyStatus = "proxy-status",
        Purpose = "purpose",
        Range = "range",
        Referer = "referer",
        Refresh = "refresh",
        RetryAfter = "retry-after",
        SecChUa = "sec-ch-ua",
        SecChUaMobile = "sec-ch-ua-mobile",
        SecChUaPlatform = "sec-ch-ua-platform",
        SecFetchDest = "sec-fetch-dest",
        SecFetchMode = "sec-fetch-mode",
        SecFetchSite = "sec-fetch-site",
        SecFetchUser = "sec-fetch-user",
        Server = "server",
        ServerTiming = "server-timing",
        SetCookie = "set-cookie",
        StrictTransportSecurity = "strict-transport-security",
        Te = "te",
        Trailer = "trailer",
        TransferEncoding = "transfer-encoding",
        Upgrade = "upgrade",
        UpgradeInsecureRequests = "upgrade-insecure-requests",
        UserAgent = "user-agent",
        Vary = "vary",
        Via = "via",
        WwwAuthenticate = "www-authenticate",
        XCompressHint = "x-compress-hint",
        XContentTypeOptions = "x-content-type-options",
        XForwardedFor = "x-forwarded-for",
        XForwardedProto = "x-forwarded-proto",
        XFrameOptions = "x-frame-options",
        XReproxyUrl = "x-reproxy-url",
        XTraffic = "x-traffic",
    }

    impl Known {
        /// The text of the name in lower case.
        #[inline]
        #[must_use]
        pub const fn as_str(self) -> &'static str {
            Self::TEXT[self as usize]
        }

        /// The text of the name in lower case, followed by the colon and the blank of an HTTP/1 field line.
        #[inline]
        #[must_use]
        pub(crate) const fn line_start(self) -> &'static str {
            Self::LINE_STARTS[self as usize]
        }
    }
}
pub use table::Known;

/// Length in bytes of the longest well-known name. Longer names are not looked up.
pub(crate) const LONGEST_KNOWN: usize = 27;

/// Number of eight-byte words that hold the longest well-known name, and its length in the last byte.
const WORDS: usize = 4;

/// The well-known names as words of eight bytes, padded with zeroes; the last byte of the last word is the length of the
/// name.
static FORMS: [[u64; WORDS]; Known::ALL.len()] = {
    let mut forms = [[0; WORDS]; Known::ALL.len()];
    let mut index = 0;
    while index < forms.len() {
        let text = Known::ALL[index].as_str().as_bytes();
        assert!(text.len() <= LONGEST_KNOWN && LONGEST_KNOWN < 8 * WORDS);
        let mut at = 0;
        while at < text.len() {
            forms[index][at / 8] |= (text[at] as u64) << (8 * (at % 8));
            at += 1;
        }
        forms[index][WORDS - 1] |= (text.len() as u64) << 56;
        index += 1;
    }
    forms
};

/// Hash table of the well-known names: a slot holds an index in the table of names; collisions are resolved by linear
/// probing.
static SLOTS: [u8; 256] = {
    const FREE: u8 = u8::MAX;
    assert!(Known::ALL.len() < FREE as usize);
    let mut slots = [FREE; 256];
    let mut index = 0;
    while index < Known::ALL.len() {
        let words = FORMS[index];
        let len = Known::ALL[index].as_str().len();
        // The name's bytes in its last word; 0 if the length of the name is a multiple of eight.
        let last = words[len / 8] & ((1 << (8 * (len % 8))) - 1);
        let mut slot = slot_of(words[0], last);
        while slots[slot] != FREE {
            slot = (slot + 1) % slots.len();
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the assertion above limits the number of names"
        )]
        let place = index as u8;
        slots[slot] = place;
        index += 1;
    }
    slots
};

#[inline]
const fn slot_of(first: u64, last: u64) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    ((first ^ last.rotate_left(25)).wrapping_mul(MIX) >> 56) as usize
}

impl Known {
    /// Whether the engines write this field themselves, because it frames messages or manages connections in HTTP/1.
    #[must_use]
    pub const fn frames_messages(self) -> bool {
        matches!(
            self,
            Self::Connection | Self::ContentLength | Self::TransferEncoding | Self::KeepAlive
        )
    }

    /// Finds the well-known name, in any letter case, that stands before a colon at the start of `text`. Returns it with
    /// its length; `None` if the text before the colon is another name or none.
    #[inline(always)]
    #[must_use]
    pub fn before_colon(text: &[u8]) -> Option<(Self, usize)> {
        let mut lower = [0; WORDS];
        for at in 0..WORDS {
            let word = words::load(text, 8 * at);
            let colons = words::marks_of(word, b':');
            lower[at] = words::fold_case(word);
            if colons != 0 {
                // Clears the colon and the bytes after it. `before_mark` also covers the low seven bits of the colon, hence
                // the shift.
                lower[at] &= words::before_mark(colons) >> 7;
                let len = 8 * at + words::bytes_before(colons);
                let last = lower[at];
                lower[WORDS - 1] |= (len as u64) << 56;
                return Self::from_words(&lower, last).map(|known| (known, len));
            }
        }
        None
    }

    /// Finds a well-known name given in lower case in the form of [`FORMS`]. `last` is the last word that has text.
    #[inline]
    fn from_words(lower: &[u64; WORDS], last: u64) -> Option<Self> {
        let mut slot = slot_of(lower[0], last);
        loop {
            let index = usize::from(SLOTS[slot]);
            if *FORMS.get(index)? == *lower {
                return Self::ALL.get(index).copied();
            }
            slot = (slot + 1) % SLOTS.len();
        }
    }

    /// Finds a well-known name given in any letter case. `None` for any other name.
    #[must_use]
    pub fn from_any_case(name: &[u8]) -> Option<Self> {
        let mut lower = [0; LONGEST_KNOWN];
        let lower = lower.get_mut(..name.len())?;
        for (to, from) in lower.iter_mut().zip(name) {
            *to = from.to_ascii_lowercase();
        }
        Self::from_lower(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case_and_fits_the_buffer() {
        for &known in Known::ALL {
            assert!(known.as_str().len() <= LONGEST_KNOWN, "{}", known.as_str());
            assert!(is_token(known.as_str().as_bytes()));
            assert_eq!(Known::from_lower(known.as_str().as_bytes()), Some(known));
            assert_eq!(
                Known::from_any_case(known.as_str().to_uppercase().as_bytes()),
                Some(known)
            );
            let line = known.as_str().to_uppercase() + ": x:y\r\n";
            let want = Some((known, known.as_str().len()));
            assert_eq!(Known::before_colon(line.as_bytes()), want);
            let name = &line.as_bytes()[..=known.as_str().len()];
            assert_eq!(Known::before_colon(name), want);
            assert_eq!(Known::before_colon(&name[1..]), None);
            assert_eq!(Known::before_colon(&name[..name.len() - 1]), None);
            for odd in ["\0:", " :", "\r\n:", "x:"] {
                let odd = known.as_str().to_owned() + odd;
                assert_eq!(Known::before_colon(odd.as_bytes()), None, "{odd}");
            }
            // Replaces each byte of the name by every other byte value: the name may only be found if the case of a letter
            // changed.
            for at in 0..known.as_str().len() {
                for byte in 0..=255 {
                    let mut line = line.clone().into_bytes();
                    line[at] = byte;
                    let name = &line[..known.as_str().len()];
                    let want = (byte != b':').then(|| Known::from_any_case(name)).flatten();
                    let got = Known::before_colon(&line).filter(|_| byte != b':');
                    assert_eq!(got.map(|(known, _)| known), want, "{}", line.escape_ascii());
                }
            }
        }
        for line in [&b""[..], b":", b"host", b"\r\n\r\n", &[b'a'; 400]] {
            assert_eq!(Known::before_colon(line), None);
        }
        assert_eq!(Known::from_any_case(b"x-unheard-of"), None);
        assert_eq!(Known::from_any_case(&[b'a'; 400]), None);
        assert_eq!(Name::from_lower("host"), Name::Known(Known::Host));
        assert_eq!(Name::from_lower("x-a"), Name::Other("x-a"));
    }

    #[test]
    fn tokens_follow_rfc_9110() {
        for byte in 0..=255u8 {
            let want = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(is_token_byte(byte), want, "{byte:#x}");
        }
        assert!(!is_token(b""));
    }
}
