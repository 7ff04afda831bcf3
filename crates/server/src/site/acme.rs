//! Hosts whose certificates the server obtains by ACME.

use std::path::Path;
use std::sync::Arc;

use h2o_acme::{Acme, AcmeClient, AcmeSettings, Challenge, Loader, Order};
use h2o_config::{Error, Memory, Node};
use h2o_exchange::{BackgroundServices, HostName, PathChecks, Scope, Site};
use h2o_tls::ObtainedFiles;

/// The path below which a certificate authority requests a file in order to check a name (RFC 8555 §8.3).
const ANSWERS: &str = "/.well-known/acme-challenge/";

/// The certificates that the server obtains by ACME, each with the index of its host and its names.
#[derive(Clone, Default)]
pub(crate) struct AcmeHosts(Vec<(u32, Vec<Box<str>>)>);

/// Returns the certificate and key files for the `ssl` mapping of a host that names none. Returns `None` if the mapping names a
/// certificate, or `acme` is not configured.
///
/// # Errors
/// If no certificate can be obtained by ACME for the host.
pub(crate) fn obtained_files(
    scope: &mut Scope,
    ssl: &Node,
) -> Result<Option<ObtainedFiles>, Error> {
    let Some(acme) = scope.settings.get::<AcmeSettings>().0.clone() else {
        return Ok(None);
    };
    if h2o_tls::has_identity(ssl)? {
        return Ok(None);
    }
    let Some(HostName { name: host, .. }) = scope.host.clone() else {
        let text = "to use ACME, the `ssl` node must only be specified within each host";
        return Err(ssl.error(text));
    };
    let mut names = Vec::new();
    let further = h2o_tls::acme_names(ssl)?;
    // The certificate of a host with a wildcard is for the names in `acme-names` only.
    if is_public_name(&host) || further.is_empty() {
        names.push((host, ssl));
    }
    if let Some(node) = further.first().filter(|_| acme.loader.is_some()) {
        let text = "`acme-names` has no effect with `loader` of `acme`, which obtains a certificate for the name of the host only";
        return Err(node.error(text));
    }
    for node in further {
        names.push((node.scalar()?.to_ascii_lowercase().into(), node));
    }
    for (name, node) in &names {
        if !is_public_name(name) {
            let error = node.error(format!(
                "no certificate can be obtained for `{name}` by ACME"
            ));
            let hint = "an authority checks names such as `www.example.com`; list such names in `acme-names`, or write `certificate-file` and `key-file` here";
            return Err(error.with_hint(hint));
        }
    }
    let names: Vec<Box<str>> = names.into_iter().map(|(name, _)| name).collect();
    let name = names[0].clone();
    let hosts: &mut AcmeHosts = scope.shared.edit();
    let known = hosts.0.iter().position(|(_, known)| known[0] == name);
    let known = known.unwrap_or_else(|| {
        hosts.0.push((scope.host_index, Vec::new()));
        hosts.0.len() - 1
    });
    // Another `listen` of the same host may list other names: one certificate is for all of them.
    for name in &names {
        if !hosts.0[known].1.contains(name) {
            hosts.0[known].1.push(name.clone());
        }
    }
    let text = |path: &Path| {
        let text = path.to_str();
        text.map(Box::from)
            .ok_or_else(|| ssl.error("`state-directory` of `acme` is not UTF-8"))
    };
    Ok(Some(ObtainedFiles {
        certificate: text(&acme.state.certificate_file(&name))?,
        key: text(&acme.state.key_file(&name))?,
        names,
    }))
}

/// Whether certificate authorities can check this host name; the name also becomes a file name.
fn is_public_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.len() < 64 && label.bytes().all(is_plain)
    };
    // Hosts that serve all names are called `default` in many configurations.
    name != "default"
        && name.len() < 240
        && name.split('.').all(is_label)
        && name.parse::<std::net::IpAddr>().is_err()
}

/// Gives a host the path where the server serves the host's answers to HTTP-01 challenges.
///
/// # Errors
/// Those of the directives of the path.
pub(crate) fn add_answers(scope: &mut Scope) -> Result<(), Error> {
    let Some(acme) = scope.settings.get::<AcmeSettings>().0.clone() else {
        return Ok(());
    };
    let directory = acme.state.answers();
    // A double quoted scalar of YAML takes any text whose quotes and backslashes are escaped.
    let directory = directory
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace('"', "\\\"");
    let text = format!("{ANSWERS}:\n  file.dir: \"{directory}\"\n  file.dirlisting: OFF\n");
    let source = Memory::new().file("acme", text);
    let paths = h2o_config::load("acme", &source)?;
    let checks = scope.shared.get::<PathChecks>().0.len();
    for (_, settings) in paths.mapping()? {
        let route = scope.enter(h2o_config::Level::Path, |scope| {
            scope.path = Some(ANSWERS.into());
            scope.run(settings)?;
            Ok(scope.build_path(ANSWERS))
        })?;
        scope.paths.push(route);
    }
    // The check whether the directory of the challenge answers exists is removed: the server creates the directory when it starts.
    scope.shared.edit::<PathChecks>().0.truncate(checks);
    Ok(())
}

/// Adds the ACME client, which obtains the certificates, once all hosts and listeners are read. `has_clear_port` says whether a
/// listener serves the host with this index without TLS.
pub(crate) fn add_client(scope: &mut Scope, has_clear_port: impl Fn(u32) -> bool) {
    let Some(acme) = scope.settings.get::<AcmeSettings>().0.clone() else {
        return;
    };
    let hosts = scope.shared.get::<AcmeHosts>();
    if hosts.0.is_empty() || acme.loader.is_some() {
        return;
    }
    let orders = hosts.0.iter().map(|(host, names)| Order {
        names: names.clone(),
        challenge: challenge(&acme, has_clear_port(*host)),
    });
    let client = AcmeClient::new(acme.clone(), orders.collect());
    let services: &mut BackgroundServices = scope.shared.edit();
    services.0.push(Arc::new(client));
}

/// Returns the program that is to obtain the certificates of a site's hosts in the server's place; `None` if no `loader` is
/// configured or no host needs a certificate by ACME.
pub(crate) fn loader(site: &Site) -> Option<Loader> {
    let acme = site.settings.get::<AcmeSettings>().0.clone()?;
    let hosts = site.shared.get::<AcmeHosts>();
    if hosts.0.is_empty() {
        return None;
    }
    let names = hosts.0.iter().filter_map(|(_, names)| names.first());
    acme.loader_of(names.map(|name| &**name))
}

/// Chooses the kind of ACME challenge by which a host proves that it has its name.
fn challenge(acme: &Acme, has_clear_port: bool) -> Challenge {
    acme.challenge.unwrap_or(match has_clear_port {
        true => Challenge::Http01,
        false => Challenge::TlsAlpn01,
    })
}

#[cfg(test)]
mod tests {
    use super::is_public_name;

    #[test]
    fn certificates_are_obtained_for_names_that_are_file_names() {
        let long = format!("{}.test", "a".repeat(64));
        for (name, want) in [
            ("a.test", true),
            ("localhost", true),
            ("xn--bcher-kva.example", true),
            ("*.a.test", false),
            ("*", false),
            ("..", false),
            ("a..b", false),
            ("127.0.0.1", false),
            ("[::1]", false),
            ("a_b.test", false),
            ("default", false),
            (&*long, false),
        ] {
            assert_eq!(is_public_name(name), want, "{name}");
        }
    }
}
