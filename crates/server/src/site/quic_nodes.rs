//! The directive `quic-nodes`: the servers of a fleet, which forward QUIC packets to each other.

use std::net::ToSocketAddrs;
use std::sync::Arc;

use h2o_config::{Attribute, Directive, Error, Kinds, Node};
use h2o_exchange::Scope;

use crate::site::quic_settings::{NodeAddress, QuicNodes};
use crate::site::settings::settings;

const ATTRIBUTES: &[Attribute] = &[
    Attribute::required(
        "self",
        Kinds::SCALAR,
        "NUMBER",
        "The number of this server. `0`: the connection ids of this server name no server, and it forwards no packets.",
    ),
    Attribute::required(
        "mapping",
        Kinds::MAPPING,
        "NUMBER: HOST[:PORT]",
        "The address at which each server receives QUIC packets; by default the port is that of the listener. The entry of this server itself has no effect.",
    ),
];

pub(crate) const DIRECTIVE: Directive<Scope> = Directive {
    kinds: Kinds::MAPPING.with_attributes(ATTRIBUTES),
    ..Directive::global(
        "quic-nodes",
        "MAPPING",
        "none",
        "The servers of a fleet that share an address, each with a number. Connection ids then name the server that has the connection. \
         If a packet reaches another server, for example after a change of the client's address, that server forwards it to the one with \
         the connection. All servers need the same ticket keys (`ssl-session-resumption` with another `ticket-store` than `internal`). \
         Forwarded packets are accepted from these addresses only, but not authenticated: the network must drop packets that pretend to \
         come from them.",
        |scope, command| {
            let nodes = parse(command.node)?;
            settings(scope).quic_nodes = Some(Arc::new(nodes));
            Ok(())
        },
    )
};

fn parse(node: &Node) -> Result<QuicNodes, Error> {
    let attributes = node.attributes(ATTRIBUTES)?;
    let (this, mapping) = (attributes.require("self")?, attributes.require("mapping")?);
    let this: u64 = this.integer("%lu", 0..=u64::MAX)?;
    let mut others: Vec<(u64, NodeAddress)> = Vec::new();
    for (number, address) in mapping.mapping()? {
        let other: u64 = number.integer("%lu", 1..=u64::MAX)?;
        if others.iter().any(|(known, _)| *known == other) {
            return Err(number.error("duplicate key found"));
        }
        others.push((other, resolve(address)?));
    }
    // The entry of this server itself has no effect. Number 0: this server forwards no packets.
    others.retain(|(number, _)| this != 0 && *number != this);
    Ok(QuicNodes { this, others })
}

/// Reads `HOST` or `HOST:PORT`, in which an IPv6 address with a port stands in brackets. H2O compatibility: H2O resolves names when
/// it reads its configuration, too.
fn resolve(node: &Node) -> Result<NodeAddress, Error> {
    let text = node.scalar()?;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            let number = port.parse().ok().filter(|port| *port != 0);
            let number = number.ok_or_else(|| {
                node.error(format!("`{port}` is not a port"))
                    .with_hint("write `HOST` or `HOST:PORT`")
            })?;
            (host, Some(number))
        }
        Some(_) | None => (text, None),
    };
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let found = (bare.unwrap_or(host), 0).to_socket_addrs();
    let address = found
        .map_err(|error| node.error(format!("failed to resolve address: {error}")))?
        .next();
    let address = address.ok_or_else(|| node.error("failed to resolve address"))?;
    Ok(NodeAddress {
        ip: address.ip(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use h2o_config::Memory;

    use super::*;
    use crate::load;

    fn read(value: &str) -> Result<Option<QuicNodes>, String> {
        let text = format!(
            "quic-nodes: {value}\nlisten: 80\nhosts:\n  default:\n    paths: {{ /: {{ redirect: /a }} }}\n"
        );
        load("f", &Memory::new().file("f", text))
            .map(|loaded| loaded.settings().quic_nodes.as_deref().cloned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn nodes_have_numbers_and_addresses() {
        let all =
            "{ 1: 192.0.2.1, 2: '192.0.2.2:8443', 3: '2001:db8::3', 4: '[2001:db8::4]:8443' }";
        let nodes = read(&format!("{{ self: 1, mapping: {all} }}"))
            .unwrap()
            .unwrap();
        assert_eq!(nodes.this, 1);
        let found: Vec<String> = (1..=5)
            .filter_map(|node| Some(nodes.address(node)?.for_listener(443).to_string()))
            .collect();
        assert_eq!(
            found,
            ["192.0.2.2:8443", "[2001:db8::3]:443", "[2001:db8::4]:8443"]
        );
        for (remote, is_known) in [
            ("192.0.2.2:8443", true),
            ("[::ffff:192.0.2.2]:8443", true),
            ("192.0.2.2:443", false),
            ("[2001:db8::3]:443", true),
            ("192.0.2.1:443", false),
            ("192.0.2.9:8443", false),
        ] {
            let remote = remote.parse().unwrap();
            assert_eq!(nodes.is_known(remote, 443), is_known, "{remote}");
        }
        let alone = read(&format!("{{ self: 0, mapping: {all} }}"))
            .unwrap()
            .unwrap();
        assert!(alone.others.is_empty());
    }

    #[test]
    fn what_names_no_fleet_is_refused() {
        let cases = [
            ("{ self: 1 }", "cannot find mandatory attribute: mapping"),
            ("{ mapping: {} }", "cannot find mandatory attribute: self"),
            (
                "{ self: a, mapping: {} }",
                "argument must match the format: %lu",
            ),
            (
                "{ self: 1, mapping: { 1: 192.0.2.1, 1: 192.0.2.2 } }",
                "duplicate key found",
            ),
            (
                "{ self: 1, mapping: { 0: 192.0.2.1 } }",
                "argument must be >= 1",
            ),
            (
                "{ self: 1, mapping: { 2: '192.0.2.1:0' } }",
                "`0` is not a port",
            ),
            (
                "{ self: 1, mapping: { 2: '192.0.2.1:x' } }",
                "`x` is not a port",
            ),
        ];
        for (value, want) in cases {
            let error = read(value).expect_err(value);
            assert!(error.contains(want), "{value}: {error}");
        }
    }
}
