//! Request methods (RFC 9110 §9).

/// A request method. Methods are case-sensitive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the method it is spelt like")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// The method CONNECT-UDP of an early draft of RFC 9298.
    ConnectUdp,
    /// Any other method.
    Other(Box<str>),
}

impl Method {
    /// The method with the name `token`; `None` unless it is a token (RFC 9110 §5.6.2).
    #[must_use]
    pub fn from_token(token: &[u8]) -> Option<Self> {
        Some(match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            b"CONNECT-UDP" => Self::ConnectUdp,
            other if crate::is_token(other) => Self::Other(std::str::from_utf8(other).ok()?.into()),
            _ => return None,
        })
    }

    /// The text of the method as sent on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
            Self::ConnectUdp => "CONNECT-UDP",
            Self::Other(token) => token,
        }
    }

    /// Whether a client may repeat a request with this method without harm (RFC 9110 §9.2.2).
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options | Self::Trace
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_read_back_as_they_were_spelt() {
        for token in [
            "GET",
            "HEAD",
            "POST",
            "PUT",
            "DELETE",
            "CONNECT",
            "OPTIONS",
            "TRACE",
            "PATCH",
            "CONNECT-UDP",
            "get",
            "PROPFIND",
        ] {
            assert_eq!(
                Method::from_token(token.as_bytes()).unwrap().as_str(),
                token
            );
        }
        for bad in [&b""[..], b"GE T", b"GET\x7f", b"G\xc3\xa9T"] {
            assert_eq!(Method::from_token(bad), None);
        }
    }
}
