//! The directive `acme`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Node};
use h2o_exchange::Scope;
use rustls::ClientConfig;

use crate::StateDirectory;

/// The URL of Let's Encrypt's ACME directory, which is used if the configuration names no authority.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// How an authority checks that the client who asks for a certificate controls its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// The authority requests a file by HTTP (RFC 8555 §8.3).
    Http01,
    /// The authority opens a TLS connection of the protocol `acme-tls/1` (RFC 8737).
    TlsAlpn01,
}

/// A certificate that the server obtains by ACME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The names that the certificate is for, at least one. Its files are named after the first.
    pub names: Vec<Box<str>>,
    /// How the authority checks that the name of a host leads to this server.
    pub challenge: Challenge,
}

impl Order {
    /// The name of the certificate in messages and in file names: the first of its names.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.first().map_or("", |name| name)
    }
}

/// An account of the user at the organisation behind the authority, to which the ACME account is bound (RFC 8555
/// §7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ExternalAccount {
    pub(crate) id: Box<str>,
    pub(crate) key: Vec<u8>,
}

/// The settings of a valid `acme` mapping.
#[derive(Clone)]
pub struct Acme {
    pub(crate) email: Box<str>,
    /// URL of the authority's directory (RFC 8555 §7.1.1).
    pub(crate) server: Box<str>,
    ca_file: Option<PathBuf>,
    /// The TLS settings for connections to the authority.
    pub(crate) tls: Arc<ClientConfig>,
    /// The challenge for all hosts; `None`: each host gets the one that its listeners allow.
    pub challenge: Option<Challenge>,
    pub(crate) external_account: Option<ExternalAccount>,
    /// The program that obtains the certificates (`loader`); `None`: the server obtains them itself.
    pub loader: Option<PathBuf>,
    /// The directory in which certificates, keys and accounts are kept.
    pub state: StateDirectory,
}

/// The setting of the directive `acme`; `None` if the configuration does not have it.
#[derive(Clone, Default)]
pub struct AcmeSettings(pub Option<Arc<Acme>>);

/// The attributes of `acme`.
pub const ATTRIBUTES: &[Attribute] = &[
    Attribute::required(
        "email",
        Kinds::SCALAR,
        "ADDRESS",
        "The e-mail address to which the authority writes about the account.",
    ),
    Attribute::required(
        "accept-tos",
        Kinds::SCALAR,
        "YES",
        "Says that you have read the authority's terms of service and agree to them.",
    ),
    Attribute::optional(
        "server",
        Kinds::SCALAR,
        "URL",
        LETS_ENCRYPT,
        "The URL of the authority's ACME directory, as its documentation names it.",
    ),
    Attribute::optional(
        "ca-file",
        Kinds::SCALAR,
        "FILE",
        "the authorities that the system trusts",
        "The certificates (PEM) by which the ACME server itself is verified, for an ACME server inside a company for example.",
    ),
    Attribute::optional(
        "challenge",
        Kinds::SCALAR,
        "http-01|tls-alpn-01",
        "`http-01` for hosts that have a `listen` without `ssl`, else `tls-alpn-01`",
        "How the authority checks names: by a request to port 80, or by a TLS connection to port 443.",
    ),
    Attribute::optional(
        "eab-key-id",
        Kinds::SCALAR,
        "ID",
        "",
        "Identifier of the external account, if the authority requires one (EAB); needs `eab-key-file`.",
    ),
    Attribute::optional(
        "eab-key-file",
        Kinds::SCALAR,
        "FILE",
        "",
        "File with the HMAC key of the external account, in base64url as the authority gives it.",
    ),
    Attribute::optional(
        "state-directory",
        Kinds::SCALAR,
        "DIRECTORY",
        "`acme` in `$H2O_ROOT/var/h2o`; `/var/lib/h2o/acme` for a program in `/usr/bin`",
        "The directory in which certificates, keys and the account are kept. The server creates it, and it belongs to `user`.",
    ),
    Attribute::optional(
        "loader",
        Kinds::SCALAR,
        "COMMAND",
        "the server obtains the certificates itself",
        "A program that obtains the certificates in the server's place; only a server with `-m master` or `-m daemon` runs it: once \
         with `--check`, then in the background with `--pid PID --directory STATE --email ADDRESS HOST...`. It writes \
         `STATE/certificates/HOST.crt` and `HOST.key`, and answers to HTTP-01 below `STATE/webroot`; it sends HUP to PID when a \
         certificate has changed, and ends when its standard input is closed.",
    ),
];

/// The attributes of `acme` that are an error together with `loader`: only the server's own ACME client uses them.
const OWN_CLIENT: [&str; 5] = [
    "server",
    "ca-file",
    "challenge",
    "eab-key-id",
    "eab-key-file",
];

/// The directive `acme`.
pub const DIRECTIVE: Directive<Scope> = Directive {
    kinds: Kinds::MAPPING.with_attributes(ATTRIBUTES),
    ..Directive::global(
        "acme",
        "MAPPING",
        "none",
        "Obtains and renews the certificates of each host whose `ssl` names no certificate, from an authority that speaks ACME \
         (RFC 8555). Until the first certificate is obtained, clients get one that the server has signed itself.",
        |scope, command| {
            let acme = parse(command)?;
            scope.edit::<AcmeSettings>().0 = Some(Arc::new(acme));
            Ok(())
        },
    )
};

fn parse(command: &Command<'_>) -> Result<Acme, Error> {
    let attributes = command.node.attributes(ATTRIBUTES)?;
    let text = |name: &str| attributes.get(name).map(Node::scalar).transpose();
    let email = attributes.require("email")?;
    let accepts = attributes.require("accept-tos")?;
    if !accepts.scalar()?.eq_ignore_ascii_case("YES") {
        return Err(command.error_at(accepts, "accept-tos must be \"YES\""));
    }
    if !is_address(email.scalar()?) {
        return Err(command.error_at(
            email,
            "`email` is not an address such as `admin@example.com`",
        ));
    }
    let server = match attributes.get("server") {
        Some(node) if !is_https(node.scalar()?) => {
            let error = command.error_at(node, "`server` must be a URL of scheme https");
            return Err(error.with_hint(format!("such as `{LETS_ENCRYPT}`")));
        }
        Some(node) => node.scalar()?,
        None => LETS_ENCRYPT,
    };
    let ca_file = text("ca-file")?.map(PathBuf::from);
    let tls = h2o_tls::authority_client(ca_file.as_deref()).map_err(|error| {
        let node = attributes.get("ca-file").unwrap_or(command.node);
        command.error_at(node, error.to_string())
    })?;
    let challenge = attributes.get("challenge").map(|node| {
        let word = node.one_of(&["http-01", "tls-alpn-01"])?;
        Ok([Challenge::Http01, Challenge::TlsAlpn01][word])
    });
    let external_account = match (attributes.get("eab-key-id"), attributes.get("eab-key-file")) {
        (None, None) => None,
        (Some(id), Some(file)) => Some(ExternalAccount {
            id: id.scalar()?.into(),
            key: read_key(file.scalar()?.as_ref()).map_err(|text| command.error_at(file, text))?,
        }),
        (Some(node), None) | (None, Some(node)) => {
            let text = "`eab-key-id` and `eab-key-file` must be given together";
            return Err(command.error_at(node, text));
        }
    };
    let state = text("state-directory")?.map_or_else(default_state, PathBuf::from);
    let loader = text("loader")?.map(h2o_opener::command_path);
    for name in OWN_CLIENT {
        if let Some(node) = attributes.get(name).filter(|_| loader.is_some()) {
            let text =
                format!("`{name}` has no effect with `loader`, which obtains the certificates");
            return Err(command.error_at(node, text));
        }
    }
    Ok(Acme {
        email: email.scalar()?.into(),
        server: server.into(),
        ca_file,
        tls,
        challenge: challenge.transpose()?,
        external_account,
        loader,
        state: StateDirectory::new(state),
    })
}

fn is_address(text: &str) -> bool {
    let is_plain = |byte: u8| byte > b' ' && byte != 0x7f && byte != b',' && byte != b'?';
    text.bytes().all(is_plain)
        && text
            .split_once('@')
            .is_some_and(|(name, domain)| !name.is_empty() && !domain.is_empty())
}

fn is_https(url: &str) -> bool {
    let parsed: Result<hyper::Uri, _> = url.parse();
    parsed.is_ok_and(|url| url.scheme_str() == Some("https") && url.host().is_some())
}

fn read_key(path: &Path) -> Result<Vec<u8>, String> {
    let fault = |reason: &str| {
        format!(
            "failed to load the key of the external account:{}: {reason}",
            path.display()
        )
    };
    let text = h2o_opener::read(path).map_err(|error| fault(&h2o_log::reason(&error)))?;
    // The attribute `external-account` has the key in base64url. Some authorities give out keys with `=` at their end,
    // which are accepted.
    let text = text.trim_ascii();
    let end = text
        .iter()
        .rposition(|byte| *byte != b'=')
        .map_or(0, |at| at + 1);
    let key = h2o_http::base64url::decode(&text[..end]).filter(|key| !key.is_empty());
    key.ok_or_else(|| fault("the file is not base64url"))
}

/// The directory in which H2O keeps its state, which depends on where the program is installed.
fn default_state() -> PathBuf {
    let root = h2o_opener::installation_root();
    if root == Path::new("/usr") {
        return "/var/lib/h2o/acme".into();
    }
    root.join("var/h2o/acme")
}

impl PartialEq for Acme {
    /// Whether two mappings configure the same ACME client, so that a running client need not be started again.
    fn eq(&self, other: &Self) -> bool {
        self.email == other.email
            && self.server == other.server
            && self.ca_file == other.ca_file
            && self.external_account == other.external_account
            && self.loader == other.loader
            && self.state == other.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_email_has_a_name_and_a_domain() {
        for (text, want) in [
            ("a@b.test", true),
            ("a@", false),
            ("@b.test", false),
            ("a b@c", false),
            ("a@b,c@d", false),
            ("", false),
        ] {
            assert_eq!(is_address(text), want, "{text}");
        }
    }

    #[test]
    fn an_authority_is_asked_over_https_only() {
        for (text, want) in [
            (LETS_ENCRYPT, true),
            ("https://127.0.0.1:14000/dir", true),
            ("http://a.test/", false),
            ("https://", false),
            ("a.test", false),
            ("", false),
        ] {
            assert_eq!(is_https(text), want, "{text}");
        }
    }

    #[test]
    fn the_key_of_an_external_account_is_base64url_with_or_without_padding() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for (text, want) in [
            ("aGk", Some("hi")),
            ("aGk=\n", Some("hi")),
            ("", None),
            ("a!", None),
        ] {
            std::fs::write(&path, text).unwrap();
            let read = read_key(&path).ok();
            assert_eq!(read.as_deref(), want.map(str::as_bytes), "{text}");
        }
    }
}
