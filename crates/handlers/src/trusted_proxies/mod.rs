//! The directive `trusted-proxies`: the networks of proxies in front of this server, which name the clients whose
//! requests they forward.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hops;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use h2o_config::{Attribute, Command, Directive, Error, Kind, Kinds, Levels, Node, Pass};
use h2o_exchange::{Address, ClientOrigin, Exchange, Scope, Site};
use h2o_http::{Headers, Known, Name};

use crate::network::Network;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "trusted-proxies",
    levels: Levels::GLOBAL_ONLY,
    pass: Pass::Settings,
    kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
    value: "NETWORK | [NETWORK, ...] | { networks: ..., header: ... }",
    default: "none: the peer of the connection is the client, and its `x-forwarded-for` is passed on",
    help: "The proxies and load balancers in front of this server. The address that these give for a client counts as the client's \
           address in logs, in scripts and for backends. What other peers say about clients is removed from their requests. See \
           [Behind another server](running.md#behind-another-server).",
    apply,
}];

const ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "networks",
        Kinds::SCALAR.or(Kinds::SEQUENCE),
        "NETWORK | [NETWORK, ...]",
        "Networks such as `10.0.0.0/8` and `2001:db8::/32`, addresses, and `unix` for all who connect to Unix sockets.",
    ),
    Attribute::optional(
        "header",
        Kinds::SCALAR,
        "x-forwarded-for|forwarded",
        "x-forwarded-for",
        "The field in which the proxies name the client: `x-forwarded-for`, or `forwarded` (RFC 7239). Only one is read, since \
         proxies pass on the other one as the client has sent it.",
    ),
];

fn apply(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let (networks, header) = match command.node.kind() {
        Kind::Scalar | Kind::Sequence => (command.node, None),
        Kind::Mapping => {
            let attributes = command.node.attributes(&ATTRIBUTES)?;
            (attributes.require("networks")?, attributes.get("header"))
        }
    };
    let names_client = match header.map(|node| node.one_of(&["x-forwarded-for", "forwarded"])) {
        Some(Ok(1)) => HopField::Forwarded,
        Some(Err(error)) => return Err(error),
        Some(Ok(_)) | None => HopField::XForwardedFor,
    };
    let mut trusted = TrustedProxies {
        names_client,
        ..TrustedProxies::default()
    };
    for node in networks.one_or_more() {
        match read_peer(node)? {
            TrustedPeer::Unix => trusted.trusts_unix = true,
            TrustedPeer::Network(network) => trusted.networks.push(network),
        }
    }
    *scope.edit::<TrustedProxies>() = trusted;
    Ok(())
}

enum TrustedPeer {
    Unix,
    Network(Network),
}

fn read_peer(node: &Node) -> Result<TrustedPeer, Error> {
    let text = node.scalar()?;
    if text == "unix" {
        return Ok(TrustedPeer::Unix);
    }
    Network::parse(text).map(TrustedPeer::Network).ok_or_else(|| {
        node.error(format!("`{text}` is not a network")).with_hint(
            "write networks as `10.0.0.0/8` or `2001:db8::/32`, addresses without brackets, or `unix`",
        )
    })
}

/// The field in which proxies name the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HopField {
    #[default]
    XForwardedFor,
    /// The field `forwarded` (RFC 7239).
    Forwarded,
}

/// The proxies that are trusted to name the client, and the field in which they do.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    networks: Vec<Network>,
    /// Whether this server trusts every client that connects to one of its Unix sockets.
    trusts_unix: bool,
    names_client: HopField,
}

impl TrustedProxies {
    /// The trusted proxies of a configuration; `None` if it names none.
    #[must_use]
    pub fn of(site: &Site) -> Option<Arc<Self>> {
        site.settings.peek()
    }

    /// Whether the peer of a connection is a trusted proxy.
    #[must_use]
    pub fn trust(&self, peer: Address) -> bool {
        match peer {
            Address::Unix => self.trusts_unix,
            Address::Ip(address) => self.trust_address(address.ip()),
        }
    }

    fn trust_address(&self, address: IpAddr) -> bool {
        let mut networks = self.networks.iter();
        networks.any(|network| network.contains_ip(address))
    }

    /// Finds out who the client of a request is, once the request head is there. Of the fields about the client only
    /// those stay that are true: `x-forwarded-for` then begins with the client's address, and `x-forwarded-proto` was
    /// sent by a proxy.
    pub fn settle(&self, exchange: &mut Exchange) {
        let headers = &mut exchange.request.headers;
        let is_proxy = self.trust(exchange.connection.peer);
        let believed = if is_proxy {
            self.believed(headers)
        } else {
            Vec::new()
        };
        headers.retain(|field| match field.name {
            Name::Known(Known::XForwardedFor | Known::Forwarded) => false,
            Name::Known(Known::XForwardedProto) => is_proxy,
            Name::Known(_) | Name::Other(_) => true,
        });
        let chain: Vec<_> = believed.iter().map(|hop| hop.ip().to_string()).collect();
        if !chain.is_empty() {
            headers.push(Known::XForwardedFor, chain.join(", ").as_bytes());
        }
        exchange.client = if is_proxy {
            let client = believed.first().copied();
            ClientOrigin::Proxy { client }
        } else {
            ClientOrigin::Peer
        };
    }

    /// The addresses that the trusted proxies name, the client first. Each proxy appends the address that has connected
    /// to it. So the addresses are true from the right up to the first one that is not the address of a trusted proxy:
    /// this is the client, and the addresses to the left of it are the client's own statement.
    fn believed(&self, headers: &Headers) -> Vec<SocketAddr> {
        let (name, split): (_, hops::Split) = match self.names_client {
            HopField::XForwardedFor => (Known::XForwardedFor, hops::of_x_forwarded_for),
            HopField::Forwarded => (Known::Forwarded, hops::of_forwarded),
        };
        let mut believed: Vec<SocketAddr> = Vec::new();
        let values: Vec<&[u8]> = headers.get_all(name).collect();
        'fields: for value in values.into_iter().rev() {
            for hop in split(value).into_iter().rev() {
                let Some(address) = hop else { break 'fields };
                believed.push(address);
                if !self.trust_address(address.ip()) {
                    break 'fields;
                }
            }
        }
        believed.reverse();
        believed
    }
}
