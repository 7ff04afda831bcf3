//! The encodings in which a file may be sent, and the names of precompressed files.

use h2o_http::{RequestHead, Version};

use super::settings::SendCompressed;
use crate::coding::{Coding, CodingSet};

/// Suffixes of the names of precompressed files, in the order in which they are tried; `.zstd` is the deprecated
/// spelling of `.zst`.
pub(super) const VARIANTS: [(&[u8], Coding); 4] = [
    (b".br", Coding::Brotli),
    (b".zst", Coding::Zstd),
    (b".gz", Coding::Gzip),
    (b".zstd", Coding::Zstd),
];

/// The suffix of the names of gzip files, which can be unpacked for clients that do not accept gzip.
pub(super) const GZIP_SUFFIX: &[u8] = b".gz";

/// The encodings in which a file may be sent to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AcceptedEncodings {
    codings: CodingSet,
    may_unpack: bool,
}

impl AcceptedEncodings {
    /// The encodings that both settings and request allow. `keeps_variants`: whether `compress.cache` keeps compressed forms of the
    /// files. HTTP/1.0 clients get unencoded files only.
    pub(super) fn of(setting: SendCompressed, keeps_variants: bool, request: &RequestHead) -> Self {
        let may_unpack = match setting {
            SendCompressed::Off if !keeps_variants => return Self::default(),
            SendCompressed::Off | SendCompressed::On => false,
            SendCompressed::Gunzip => true,
        };
        if request.version < Version::Http11 {
            return Self::default();
        }
        Self {
            codings: CodingSet::accepted_by(request),
            may_unpack,
        }
    }

    /// The content codings in which a file may be sent to the client.
    pub(super) const fn codings(self) -> CodingSet {
        self.codings
    }

    /// Whether a file may be sent to the client in this content coding.
    pub(super) const fn has(self, coding: Coding) -> bool {
        self.codings.has(coding)
    }

    /// Whether a gzip file may be unpacked while it is sent.
    pub(super) const fn may_unpack(self) -> bool {
        self.may_unpack
    }

    /// The encodings as a number, for hashing.
    pub(super) const fn bits(self) -> u8 {
        self.codings.bits() | if self.may_unpack { 8 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use h2o_http::Known;

    fn encodings(setting: SendCompressed, version: Version, fields: &[&str]) -> Vec<&'static str> {
        let mut request = RequestHead::default();
        request.version = version;
        for field in fields {
            request
                .headers
                .push(Known::AcceptEncoding, field.as_bytes());
        }
        let encodings = AcceptedEncodings::of(setting, false, &request);
        let codings = Coding::ALL
            .into_iter()
            .filter(|&coding| encodings.has(coding));
        codings
            .map(Coding::token)
            .chain(encodings.may_unpack().then_some("unpacked"))
            .collect()
    }

    #[test]
    fn codings_count_only_when_named_without_parameters() {
        let cases: &[(&[&str], &[&str])] = &[
            (&[], &[]),
            (&["gzip"], &["gzip"]),
            (&["gzip, deflate, br, zstd"], &["br", "zstd", "gzip"]),
            (&["GZIP ,\tBr"], &["br", "gzip"]),
            (&["gzip", "br"], &["br", "gzip"]),
            (&["gzip;q=0.8, br;q=1"], &[]),
            (&["*", "x-gzip", "gzipped", "identity", ","], &[]),
        ];
        for (fields, want) in cases {
            let found = encodings(SendCompressed::On, Version::Http2, fields);
            assert_eq!(found, *want, "{fields:?}");
        }
    }

    #[test]
    fn settings_and_version_limit_the_forms() {
        let on = SendCompressed::On;
        let gunzip = SendCompressed::Gunzip;
        assert!(encodings(SendCompressed::Off, Version::Http11, &["gzip"]).is_empty());
        assert!(encodings(gunzip, Version::Http10, &["gzip"]).is_empty());
        assert_eq!(encodings(on, Version::Http11, &["gzip"]), ["gzip"]);
        assert_eq!(
            encodings(gunzip, Version::Http11, &["br"]),
            ["br", "unpacked"]
        );
    }
}
