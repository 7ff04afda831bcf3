//! Why a certificate could not be obtained.

use std::fmt;

/// The cause of a failed attempt to obtain a certificate, which decides how soon the next attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The authority does not answer, or the server that answers is no ACME server. Another attempt costs the authority
    /// nothing.
    Unreachable,
    /// The authority refused the request. It counts failed attempts and blocks clients that make too many.
    Refused,
    /// The authority does not know the account of this server.
    AccountUnknown,
    /// This server cannot read or write its own files, or cannot create a key.
    Local,
}

/// A failed attempt to obtain a certificate.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    text: String,
}

impl Failure {
    pub(crate) fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self {
            cause,
            text: text.into(),
        }
    }

    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::new(Cause::Refused, text)
    }

    /// The failure of a step on the file `path`.
    pub(crate) fn local(path: &std::path::Path, error: &std::io::Error) -> Self {
        let text = format!("{}: {}", path.display(), h2o_log::reason(error));
        Self::new(Cause::Local, text)
    }

    /// Adds `hint` to the end of the text.
    pub(crate) fn with(mut self, hint: &str) -> Self {
        self.text.push_str(hint);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl From<instant_acme::Error> for Failure {
    fn from(error: instant_acme::Error) -> Self {
        use instant_acme::Error as E;
        match error {
            E::Api(problem) => {
                let kind = problem.r#type.as_deref().unwrap_or_default();
                let kind = kind.rsplit(':').next().unwrap_or_default();
                let cause = if kind == "accountDoesNotExist" {
                    Cause::AccountUnknown
                } else {
                    Cause::Refused
                };
                let detail = problem.detail.as_deref().unwrap_or("no reason given");
                Self::new(
                    cause,
                    format!("the authority refused the request: {detail} ({kind})"),
                )
            }
            E::Json(error) => {
                let text = format!(
                    "the answer of the authority (`server`) is not in the ACME protocol: {error}"
                );
                Self::new(Cause::Unreachable, text)
            }
            E::Timeout(_) => Self::refused(
                "the authority did not check the host names or issue the certificate in time",
            ),
            E::Other(error) => Self::new(Cause::Unreachable, error.to_string()),
            other => Self::new(Cause::Unreachable, other.to_string()),
        }
    }
}
