//! Content codings, and the field `accept-encoding` by which clients name those they can decode.

use h2o_http::{Known, RequestHead};

/// A content coding (RFC 9110 §8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    /// All codings, in the order in which the server prefers them.
    pub(crate) const ALL: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// The name of the coding in `content-encoding`.
    pub(crate) const fn token(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// The coding with this name, in any letter case; `None` for an unknown name.
    pub(crate) fn from_token(token: &[u8]) -> Option<Self> {
        let mut codings = Self::ALL.into_iter();
        codings.find(|coding| token.eq_ignore_ascii_case(coding.token().as_bytes()))
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Brotli => 1,
            Self::Zstd => 2,
            Self::Gzip => 4,
        }
    }
}

/// A set of content codings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CodingSet(u8);

impl CodingSet {
    /// The codings that `accept-encoding` names. H2O compatibility: H2O ignores elements with a parameter (`gzip;q=0.8`),
    /// and `*` and `x-gzip`.
    pub(crate) fn accepted_by(request: &RequestHead) -> Self {
        let mut set = Self::default();
        for value in request.headers.get_all(Known::AcceptEncoding) {
            for element in value.split(|&byte| byte == b',') {
                if let Some(coding) = Coding::from_token(element.trim_ascii()) {
                    set.0 |= coding.bit();
                }
            }
        }
        set
    }

    /// Whether the set contains the content coding.
    pub(crate) const fn has(self, coding: Coding) -> bool {
        self.0 & coding.bit() != 0
    }

    /// Whether the set contains no content coding.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set with `coding` alone, if the set has it; otherwise the empty set.
    pub(crate) const fn only(self, coding: Coding) -> Self {
        Self(self.0 & coding.bit())
    }

    /// A number below 8 that is different for each set.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }
}
