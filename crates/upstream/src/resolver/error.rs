//! Why a name could not be resolved.

use std::fmt;

use dns_lookup::LookupError;

/// The errors of `getaddrinfo` (RFC 3493 §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// `EAI_NONAME`: the name does not exist.
    NoName,
    /// `EAI_NODATA`: the name has no address.
    NoData,
    /// `EAI_FAIL`: name resolution failed for good.
    Fail,
    /// `EAI_AGAIN`: name resolution failed for the moment.
    Again,
    /// `EAI_ADDRFAMILY`: the name has no address in this address family.
    AddressFamily,
    /// `EAI_BADFLAGS`: the flags of the query are invalid.
    BadFlags,
    /// `EAI_FAMILY`: the address family is not supported.
    Family,
    /// `EAI_MEMORY`: there is not enough memory.
    Memory,
    /// `EAI_SERVICE`: the port is not valid for the type of socket.
    Service,
    /// `EAI_SOCKTYPE`: the type of socket is not supported.
    SocketType,
    /// `EAI_SYSTEM`: a system call failed.
    System,
    /// Any other error of `getaddrinfo`.
    Other,
}

impl ResolveError {
    /// The message for clients and log. H2O compatibility: the texts are H2O's.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoName => "hostname does not exist",
            Self::NoData => "no address associated with hostname",
            Self::Fail => "non-recoverable failure in name resolution",
            Self::Again => "temporary failure in name resolution",
            Self::AddressFamily => "address family for hostname not supported",
            Self::BadFlags => "bad value for ai_flags",
            Self::Family => "ai_family not supported",
            Self::Memory => "memory allocation failure",
            Self::Service => "servname not supported for ai_socktype",
            Self::SocketType => "ai_socktype not supported",
            Self::System => "system error",
            Self::Other => "name resolution failed",
        }
    }

    /// The DNS response code for `proxy-status` (RFC 9209 §2.3.2), if there is one for the error. H2O compatibility: H2O maps the
    /// same errors.
    #[must_use]
    pub const fn rcode(self) -> Option<&'static str> {
        match self {
            Self::NoName => Some("NXDOMAIN"),
            Self::NoData => Some("NODATA"),
            Self::Fail => Some("REFUSED"),
            Self::Again => Some("SERVFAIL"),
            Self::AddressFamily
            | Self::BadFlags
            | Self::Family
            | Self::Memory
            | Self::Service
            | Self::SocketType
            | Self::System
            | Self::Other => None,
        }
    }

    /// Whether the name may have addresses in spite of this error. After other errors, a previous answer is obsolete.
    pub(super) const fn is_inconclusive(self) -> bool {
        !matches!(self, Self::NoName | Self::NoData)
    }

    const fn from_number(number: i32) -> Self {
        /// The error `EAI_ADDRFAMILY`, which only the GNU C library has.
        const EAI_ADDRFAMILY: i32 = -9;
        match number {
            libc::EAI_NONAME => Self::NoName,
            libc::EAI_NODATA => Self::NoData,
            libc::EAI_FAIL => Self::Fail,
            libc::EAI_AGAIN => Self::Again,
            EAI_ADDRFAMILY => Self::AddressFamily,
            libc::EAI_BADFLAGS => Self::BadFlags,
            libc::EAI_FAMILY => Self::Family,
            libc::EAI_MEMORY => Self::Memory,
            libc::EAI_SERVICE => Self::Service,
            libc::EAI_SOCKTYPE => Self::SocketType,
            libc::EAI_SYSTEM => Self::System,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

impl std::error::Error for ResolveError {}

impl From<LookupError> for ResolveError {
    fn from(error: LookupError) -> Self {
        // A name that contains a NUL cannot be passed to `getaddrinfo`; the crate `dns_lookup` then reports the error number 0.
        match error.error_num() {
            0 => Self::NoName,
            number => Self::from_number(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_getaddrinfo_have_their_texts() {
        let cases = [
            (
                libc::EAI_NONAME,
                "hostname does not exist",
                Some("NXDOMAIN"),
            ),
            (
                libc::EAI_NODATA,
                "no address associated with hostname",
                Some("NODATA"),
            ),
            (
                libc::EAI_FAIL,
                "non-recoverable failure in name resolution",
                Some("REFUSED"),
            ),
            (
                libc::EAI_AGAIN,
                "temporary failure in name resolution",
                Some("SERVFAIL"),
            ),
            (-9, "address family for hostname not supported", None),
            (libc::EAI_BADFLAGS, "bad value for ai_flags", None),
            (libc::EAI_FAMILY, "ai_family not supported", None),
            (libc::EAI_MEMORY, "memory allocation failure", None),
            (
                libc::EAI_SERVICE,
                "servname not supported for ai_socktype",
                None,
            ),
            (libc::EAI_SOCKTYPE, "ai_socktype not supported", None),
            (libc::EAI_SYSTEM, "system error", None),
            (libc::EAI_OVERFLOW, "name resolution failed", None),
        ];
        for (number, text, rcode) in cases {
            let error = ResolveError::from(LookupError::new(number));
            assert_eq!((error.text(), error.rcode()), (text, rcode), "{number}");
        }
    }
}
