//! The directives `allow` and `deny`, which decide by the client's address whether a request is served.

use std::sync::Arc;

use h2o_config::{Command, Directive, Error, Kinds, Level, Levels};
use h2o_exchange::{Address, BodyUse, Exchange, Handler, Outcome, Protocol, Response, Scope};
use h2o_http::StatusCode;

use crate::network::Network;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
        levels: Levels::ALL_BUT_EXTENSION,
        ..Directive::setting(
            "allow",
            "`ADDRESS`, `ADDRESS/BITS`, `unix`, `all`, or a sequence of these",
            "everyone is served",
            "Serves clients with these addresses. Rules of `allow` and `deny` are tried in the order of the file, and the first \
             rule that names the client decides. Clients that no rule names are served if no rule is an `allow`, and otherwise \
             get 403. The rules of an inner level replace those of the outer one. `unix` stands for clients of Unix sockets.",
            |scope, command| add(scope, command, true),
        )
    },
    Directive {
        kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
        levels: Levels::ALL_BUT_EXTENSION,
        ..Directive::setting(
            "deny",
            "`ADDRESS`, `ADDRESS/BITS`, `unix`, `all`, or a sequence of these",
            "nobody is refused",
            "Answers clients with these addresses with 403. See [`allow`](#allow).",
            |scope, command| add(scope, command, false),
        )
    },
];

/// The clients that a rule of `allow` or `deny` names.
#[derive(Clone, Copy, Debug)]
enum Clients {
    All,
    Unix,
    In(Network),
}

/// The rules of `allow` and `deny` at a configuration level.
#[derive(Clone, Debug, Default)]
struct AccessRules {
    /// The configuration level on which `rules` were given. Rules of an inner level replace them.
    owner: Option<Level>,
    rules: Vec<(Clients, bool)>,
}

fn add(scope: &mut Scope, command: &Command<'_>, is_allowed: bool) -> Result<(), Error> {
    let nodes = command.node.one_or_more();
    // Without a rule, the level would be open to everybody, which an empty list of `allow` is not meant to say.
    if nodes.is_empty() {
        return Err(command
            .error("the sequence cannot be empty")
            .with_hint("write `all` for all clients"));
    }
    let mut read = Vec::new();
    for node in nodes {
        let clients = match node.scalar()? {
            "all" => Clients::All,
            "unix" => Clients::Unix,
            _ => Clients::In(Network::read(node)?),
        };
        read.push((clients, is_allowed));
    }
    let owner = Some(command.level);
    let access = scope.edit::<AccessRules>();
    if access.owner != owner {
        access.owner = owner;
        access.rules.clear();
    }
    access.rules.extend(read);
    Ok(())
}

/// The guard of a path, a handler that runs before the path's own handlers: it applies the rules of `allow` and `deny`.
/// `None` if the path has no such rules.
pub(crate) fn guard(scope: &Scope) -> Option<Box<dyn Handler>> {
    let rules = scope.settings.peek::<AccessRules>()?;
    Some(Box::new(AccessGuard::new(&rules)))
}

struct AccessGuard {
    /// The address of the rules, which the settings of the path keep.
    identity: usize,
    rules: Box<[(Clients, bool)]>,
    /// Whether a client whose address matches no rule is served.
    others: bool,
}

impl AccessGuard {
    fn new(access: &Arc<AccessRules>) -> Self {
        Self {
            identity: Arc::as_ptr(access).addr(),
            // If some rule is an `allow`, clients that match no rule are refused.
            others: !access.rules.iter().any(|(_, is_allowed)| *is_allowed),
            rules: access.rules.clone().into(),
        }
    }

    fn serves(&self, address: Address) -> bool {
        let rule = self.rules.iter().find(|(clients, _)| match clients {
            Clients::All => true,
            Clients::Unix => address == Address::Unix,
            Clients::In(network) => network.contains(address),
        });
        rule.map_or(self.others, |(_, is_allowed)| *is_allowed)
    }
}

impl Handler for AccessGuard {
    fn access_rules(&self) -> Option<usize> {
        Some(self.identity)
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        if self.serves(exchange.client_address()) {
            if exchange.is_early && matches!(exchange.protocol, Protocol::Http3(_)) {
                // Early data of QUIC can come in a datagram with a forged source address. The client has shown that the address is its own
                // when the handshake is complete; then the request runs again.
                return Outcome::Done(Response::too_early());
            }
            return Outcome::Declined;
        }
        let status = StatusCode::FORBIDDEN;
        exchange.worker.counters.count_status(status);
        exchange.note_error("access", "the address of the client is denied");
        Outcome::Done(Response::error(status, "Forbidden", "forbidden"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Setup;

    /// Which of the test's clients the rules at the global and the path level serve.
    fn served([global, path]: [&str; 2]) -> String {
        let site = Setup::new(DIRECTIVES, None)
            .read([global, "", path])
            .unwrap();
        let guard = AccessGuard::new(&site.hosts[0].paths[0].settings.get());
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        let clients = [
            ("ten", ip("10.1.1.1:1")),
            ("one", ip("192.0.2.1:1")),
            ("six", ip("[2001:db8::1]:1")),
            ("unix", Address::Unix),
        ];
        let names = clients
            .into_iter()
            .filter(|(_, address)| guard.serves(*address));
        names.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_first_rule_that_names_a_client_decides() {
        for (levels, want) in [
            (["deny: 10.0.0.0/8", ""], "one six unix"),
            (["allow: 10.0.0.0/8", ""], "ten"),
            (["allow: [10.0.0.0/8, unix]", ""], "ten unix"),
            (["deny: 10.1.1.1\nallow: all", ""], "one six unix"),
            (["allow: all\ndeny: 10.1.1.1", ""], "ten one six unix"),
            (
                ["allow: 10.1.1.1\ndeny: 10.0.0.0/8\nallow: '::/0'", ""],
                "ten six",
            ),
            (["deny: all", "allow: 192.0.2.1"], "one"),
            (["allow: 10.0.0.0/8", "deny: unix"], "ten one six"),
            (["deny: all", ""], ""),
        ] {
            assert_eq!(served(levels), want, "{levels:?}");
        }
    }
}
