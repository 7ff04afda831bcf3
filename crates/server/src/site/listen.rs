//! The directive `listen`: the addresses to bind, their options, and the hosts that they serve.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use h2o_config::{
    Attribute, Attributes, Command, Directive, Error, Kinds, Levels, Node, Pass, Pos, Unit,
};
use h2o_exchange::{Endpoint, Host, Scope};
use rustc_hash::FxHashMap;

use crate::site::acme;
use crate::site::port_holder::PortOf;
use crate::site::quic;
use crate::site::quic_settings::QuicSettings;
use crate::site::users::{find_group, find_user};
use crate::site::warnings::warn;
use h2o_tls::TlsSettings;
use h2o_upstream::MAX_UNIX_PATH;

/// The listeners of a configuration, in the order in which the file first mentions them.
#[derive(Clone, Default)]
pub(crate) struct Listeners(pub(crate) Vec<Listener>);

impl Listeners {
    /// Whether a listener on a TCP port serves the host with this index without TLS.
    pub(crate) fn have_clear_port(&self, host: u32) -> bool {
        let serves =
            |hosts: &Option<Vec<u32>>| (hosts.as_ref()).is_none_or(|hosts| hosts.contains(&host));
        self.0.iter().any(|listener| {
            !listener.is_tls() && listener.port().is_some() && serves(&listener.hosts)
        })
    }
}

/// A listener of the configuration: one address, with its options.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) endpoint: Endpoint,
    /// Position in the configuration file where the listener is first mentioned.
    pub(crate) pos: Pos,
    /// The address as the configuration gives it, `HOST:PORT`; for messages.
    pub(crate) label: Arc<str>,
    /// Whether `listen` had no `host`: the machine may then lack one of the two address families.
    pub(crate) any_address: bool,
    /// The hosts that the listener serves, by index; `None` for a listener at the global level, which serves all hosts.
    pub(crate) hosts: Option<Vec<u32>>,
    pub(crate) tls: Vec<TlsEntry>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) socket: SocketOptions,
    /// The settings of QUIC, if this is a QUIC listener.
    pub(crate) quic: Option<Arc<QuicSettings>>,
}

/// Value of `proxy-protocol` of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProxyProtocol {
    /// Connections begin with TLS or HTTP.
    #[default]
    Off,
    /// Connections may begin with a PROXY header. H2O compatibility: H2O accepts both, although the specification
    /// (section 2) forbids receivers to guess.
    Accepted,
    /// Connections must begin with a PROXY header; others are closed.
    Required,
}

/// One `ssl` mapping of a listener, and the hosts for whose names it is chosen.
#[derive(Clone)]
pub(crate) struct TlsEntry {
    /// The hosts of the mapping, by index; empty for a mapping at the global level.
    pub(crate) hosts: Vec<u32>,
    pub(crate) settings: Arc<TlsSettings>,
}

/// The options of a listening socket. An option that the kind of socket does not have is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketOptions {
    /// Size of the send buffer in bytes.
    pub(crate) sndbuf: Option<usize>,
    /// Size of the receive buffer in bytes.
    pub(crate) rcvbuf: Option<usize>,
    /// Name of the TCP congestion control; `None` for `auto`.
    pub(crate) congestion: Option<Arc<str>>,
    /// Owner, group and permissions of the file of a Unix socket.
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) group: Option<Arc<str>>,
    pub(crate) permission: Option<u32>,
}

impl SocketOptions {
    /// The names of the attributes of `listen` that have other values in `other`.
    pub(crate) fn differences(&self, other: &Self) -> impl Iterator<Item = &'static str> {
        let differs = [
            ("sndbuf", self.sndbuf != other.sndbuf),
            ("rcvbuf", self.rcvbuf != other.rcvbuf),
            ("cc", self.congestion != other.congestion),
            ("owner", self.owner != other.owner),
            ("group", self.group != other.group),
            ("permission", self.permission != other.permission),
        ];
        let differs = differs.into_iter().filter(|(_, differs)| *differs);
        differs.map(|(name, _)| name)
    }
}

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "listen",
    levels: Levels::GLOBAL_HOST,
    pass: Pass::Listen,
    kinds: Kinds::ANY.with_attributes(ATTRIBUTES),
    value: "PORT (of all IPv4 and IPv6 addresses), or a mapping; or a sequence of those",
    default: "mandatory",
    help: "An address to accept connections on. One at the global level serves all hosts, one at the host level the hosts that have \
           a `listen` for it.",
    apply: |scope, command| {
        command
            .node
            .one_or_more()
            .iter()
            .try_for_each(|node| listen(scope, command, node))
    },
}];

const ATTRIBUTES: &[Attribute] = &[
    Attribute::required(
        "port",
        Kinds::SCALAR,
        "PORT, or PATH with `type: unix`",
        "The TCP port, or the path of the Unix socket.",
    ),
    Attribute::optional(
        "host",
        Kinds::SCALAR,
        "ADDRESS or NAME",
        "all addresses, IPv4 and IPv6",
        "The address to bind. A name is looked up when the configuration is read, and each address that it has is bound.",
    ),
    Attribute::optional(
        "type",
        Kinds::SCALAR,
        "tcp|unix|quic",
        "`tcp`, or `quic` with the attribute `quic`",
        "Kind of socket. `quic`: a UDP port for HTTP/3, which needs `ssl`. `mptcp` is not supported yet: the server refuses the \
         configuration.",
    ),
    Attribute::optional(
        "ssl",
        Kinds::MAPPING.with_attributes(&h2o_tls::ATTRIBUTES),
        "a mapping, see below",
        "clear text",
        "Settings of TLS, the certificate among them.",
    ),
    Attribute::optional(
        "quic",
        Kinds::MAPPING.with_attributes(quic::ATTRIBUTES),
        "a mapping, see below",
        "the defaults of its attributes",
        "Settings of QUIC connections. If several `listen` are for one address, those of the first count.",
    ),
    Attribute::optional(
        "proxy-protocol",
        Kinds::SCALAR,
        "ON|OFF|REQUIRED",
        "OFF",
        "A load balancer in front sends the client's address in a PROXY header, version 1 or 2. That address replaces the one of \
         the connection in logs and everywhere else. The server trusts the header, and the scheme in the targets of requests \
         (`https://...`, `:scheme`), so make sure that only the load balancer can connect. With `ON` connections without the \
         header are served as well, with `REQUIRED` they are closed.",
    ),
    Attribute::optional(
        "owner",
        Kinds::SCALAR,
        "USER",
        "the starting user",
        "Owner of the socket file (`type: unix`).",
    ),
    Attribute::optional(
        "group",
        Kinds::SCALAR,
        "GROUP",
        "the group of `owner`",
        "Group of the socket file; needs `owner`.",
    ),
    Attribute::optional(
        "permission",
        Kinds::SCALAR,
        "MODE",
        "by the umask of the process",
        "Permissions of the socket file in octal digits, such as `660`.",
    ),
    Attribute::optional(
        "cc",
        Kinds::SCALAR,
        "auto|NAME",
        "auto",
        "Congestion control of accepted TCP connections (`TCP_CONGESTION`). `auto`: the kernel's default, but `bbr` in place of \
         `cubic` where the kernel has it. A name such as `cubic` is used as it is. For QUIC: `reno`, `cubic`, `pico` or `auto`, in \
         any letter case; `pico` and `auto` stand for one controller, which measures the bandwidth of the path in place of waiting \
         for losses.",
    ),
    Attribute::optional(
        "initcwnd",
        Kinds::SCALAR,
        "PACKETS",
        "32",
        "Initial congestion window of QUIC connections in packets, at least 2. For TCP it is ignored with a warning.",
    ),
    Attribute::optional(
        "sndbuf",
        Kinds::SCALAR,
        "BYTES",
        "the kernel's choice",
        "Send buffer of accepted TCP connections (`SO_SNDBUF`). Linux doubles the size, to have room for its own bookkeeping.",
    ),
    Attribute::optional(
        "rcvbuf",
        Kinds::SCALAR,
        "BYTES",
        "the kernel's choice",
        "Receive buffer of accepted TCP connections (`SO_RCVBUF`). Linux doubles the size, as for `sndbuf`.",
    ),
];

fn listen(scope: &mut Scope, command: &Command<'_>, node: &Node) -> Result<(), Error> {
    if let Some(text) = node.as_str() {
        let addresses = tcp_addresses(node, None).map_err(|error| explain(text, error))?;
        return bind(scope, node, addresses, &ListenOptions::default());
    }
    let attributes = node.attributes(ATTRIBUTES)?;
    let port = attributes.require("port")?;
    let kind = attributes.get("type").map(Node::scalar).transpose()?;
    let mut quic = attributes.get("quic");
    // H2O compatibility: like H2O, the server ignores the attribute `quic` of a `listen` with `type: tcp` or `type: unix`.
    if let (Some(kind @ ("tcp" | "unix")), Some(node)) = (kind, quic) {
        let text = format!("`quic` has no effect with `type: {kind}`");
        warn(scope, command, node, &text);
        quic = None;
    }
    let endpoints = match (kind, quic) {
        (Some("quic"), _) | (None, Some(_)) => udp_addresses(port, attributes.get("host"))?,
        (None | Some("tcp"), _) => tcp_addresses(port, attributes.get("host"))?,
        (Some("unix"), _) => vec![unix_address(scope, port)?],
        (Some(other @ "mptcp"), _) => {
            return Err(attributes
                .require("type")?
                .error(format!("listen type {other} is not supported yet")));
        }
        (Some(other), _) => {
            return Err(attributes
                .require("type")?
                .error(format!("unknown listen type: {other}"))
                .with_hint("write `tcp`, `quic` or `unix`"));
        }
    };
    let options = ListenOptions::parse(scope, command, &attributes, &endpoints)?;
    bind(scope, node, endpoints, &options)
}

/// Adds a hint to `error` if the address is written in the syntax of another server: how to write it here.
fn explain(text: &str, error: Error) -> Error {
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0);
    if text.starts_with('/') {
        return error.with_hint(format!("write `listen: {{ type: unix, port: {text} }}`"));
    }
    match text.split_once(char::is_whitespace) {
        Some((name, value)) if ATTRIBUTES.iter().any(|attribute| attribute.name == name) => {
            return error.with_hint(format!(
                "there must be a colon after the name: `{name}: {}`",
                value.trim_start()
            ));
        }
        Some((port, options)) if is_port(port) => {
            return error.with_hint(format!(
                "only a port can be written here; write `port: {port}` on a line of its own, and an attribute for `{options}` below it"
            ));
        }
        Some(_) | None => {}
    }
    match text.rsplit_once(':') {
        Some(("*" | "0.0.0.0" | "[::]" | "", port)) if is_port(port) => {
            error.with_hint(format!("write `listen: {port}` for all addresses"))
        }
        Some((name, port))
            if is_port(port) && ATTRIBUTES.iter().any(|known| known.name == name) =>
        {
            error.with_hint(format!(
                "there must be a space after the colon: `{name}: {port}`"
            ))
        }
        Some((host, port)) if is_port(port) => {
            let host = host.trim_matches(['[', ']']);
            let host = if host.contains(':') {
                format!("\"{host}\"")
            } else {
                host.to_owned()
            };
            error.with_hint(format!("write `listen: {{ host: {host}, port: {port} }}`"))
        }
        _ => error,
    }
}

type Address = (Endpoint, Arc<str>, bool);

fn tcp_addresses(port: &Node, host: Option<&Node>) -> Result<Vec<Address>, Error> {
    let number: u16 = port.integer("%hu", 1..=65_535).map_err(|error| {
        let known = port.as_str().and_then(|name| match name {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        });
        match known {
            Some(known) => error.with_hint(format!("write the port as a number: `{known}`")),
            None => error,
        }
    })?;
    let Some(host) = host else {
        let label: Arc<str> = format!("ANY:{number}").into();
        let address = |ip: IpAddr| {
            (
                Endpoint::Tcp(SocketAddr::new(ip, number)),
                Arc::clone(&label),
                true,
            )
        };
        return Ok(vec![
            address(Ipv4Addr::UNSPECIFIED.into()),
            address(Ipv6Addr::UNSPECIFIED.into()),
        ]);
    };
    let name = host.scalar()?;
    let label: Arc<str> = format!("{name}:{number}").into();
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    let found = (bare, number).to_socket_addrs();
    let mut addresses: Vec<SocketAddr> = found
        .map_err(|error| {
            host.error(format!("failed to resolve address: {error}"))
                .with_hint(
                    "write an IP address of this machine, or leave `host` out for all of them",
                )
        })?
        .collect();
    addresses.dedup();
    Ok(addresses
        .into_iter()
        .map(|address| (Endpoint::Tcp(address), Arc::clone(&label), false))
        .collect())
}

/// Resolves the UDP addresses of a `listen` for QUIC.
fn udp_addresses(port: &Node, host: Option<&Node>) -> Result<Vec<Address>, Error> {
    let mut addresses = tcp_addresses(port, host)?;
    for (endpoint, ..) in &mut addresses {
        if let Endpoint::Tcp(address) = *endpoint {
            *endpoint = Endpoint::Udp(address);
        }
    }
    Ok(addresses)
}

fn unix_address(scope: &Scope, port: &Node) -> Result<Address, Error> {
    let path = port.scalar()?;
    if path.len() > MAX_UNIX_PATH {
        return Err(port
            .error(format!("path:{path} is too long as a unix socket name"))
            .with_hint("the path of a unix socket has at most 107 bytes"));
    }
    if path.is_empty() {
        return Err(port.error("the path of a unix socket cannot be empty"));
    }
    let known = running_socket(scope, Path::new(path));
    let endpoint = known.unwrap_or_else(|| Endpoint::Unix(path.into()));
    Ok((endpoint, path.into(), false))
}

/// The address of the running server's listener whose socket file is at `path`, too: the configuration that is read to replace the
/// running one may write the path of the same socket differently.
fn running_socket(scope: &Scope, path: &Path) -> Option<Endpoint> {
    let file = |path: &Path| {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let wanted = file(path)?;
    let listeners = scope.running.as_ref()?.shared.get::<Listeners>();
    let mut open = listeners.0.iter();
    let same = open.find(|open| open.unix_path().and_then(file) == Some(wanted))?;
    Some(same.endpoint.clone())
}

/// An `ssl` mapping in the configuration.
struct SslMapping<'a> {
    node: &'a Node,
    settings: Arc<TlsSettings>,
}

/// Options that all addresses of one `listen` share.
#[derive(Default)]
struct ListenOptions<'a> {
    tls: Option<SslMapping<'a>>,
    proxy_protocol: ProxyProtocol,
    socket: SocketOptions,
    quic: Option<Arc<QuicSettings>>,
}

impl<'a> ListenOptions<'a> {
    fn parse(
        scope: &mut Scope,
        command: &Command<'_>,
        attributes: &Attributes<'a>,
        endpoints: &[Address],
    ) -> Result<Self, Error> {
        let is_unix = matches!(endpoints.first(), Some((Endpoint::Unix(_), ..)));
        let is_quic = matches!(endpoints.first(), Some((Endpoint::Udp(_), ..)));
        let size = |name: &str| {
            attributes
                .get(name)
                .map(|node| node.quantity(Unit::Bytes, "%u", 1..=u64::from(i32::MAX as u32)))
                .transpose()
        };
        let text = |name: &str| {
            attributes
                .get(name)
                .map(|node| node.scalar().map(Arc::from))
                .transpose()
        };
        let permission = attributes.get("permission").map(|node| {
            let mode = u32::from_str_radix(node.scalar()?, 8)
                .ok()
                .filter(|mode| *mode <= 0o7777);
            mode.ok_or_else(|| {
                node.error("`permission` must be an octal number")
                    .with_hint("write octal digits such as `660`")
            })
        });
        let mut socket = SocketOptions {
            sndbuf: size("sndbuf")?,
            rcvbuf: size("rcvbuf")?,
            congestion: text("cc")?.filter(|name| **name != *"auto"),
            owner: text("owner")?,
            group: text("group")?,
            permission: permission.transpose()?,
        };
        if let (Some(owner), Some(name)) = (attributes.get("owner"), &socket.owner)
            && find_user(name).is_none()
        {
            return Err(owner.error(format!("failed to obtain uid of user:{name}: Not found")));
        }
        if let (Some(group), Some(name)) = (attributes.get("group"), &socket.group)
            && find_group(name).is_none()
        {
            return Err(group.error(format!("failed to obtain gid of group:{name}: Not found")));
        }
        if let (Some(group), None) = (attributes.get("group"), &socket.owner) {
            return Err(group
                .error("`group` cannot be used without `owner`")
                .with_hint("add `owner: USER`"));
        }
        if !is_unix
            && let Some(node) = ["owner", "group", "permission"]
                .iter()
                .find_map(|name| attributes.get(name))
        {
            warn(
                scope,
                command,
                node,
                "`owner`, `group` and `permission` are ignored without `type: unix`",
            );
            (socket.owner, socket.group, socket.permission) = (None, None, None);
        }
        if let Some(node) = attributes.get("initcwnd").filter(|_| !is_quic) {
            warn(
                scope,
                command,
                node,
                "`initcwnd` is ignored: it is a setting of QUIC",
            );
        }
        if is_quic {
            for name in ["sndbuf", "rcvbuf", "proxy-protocol"] {
                if let Some(node) = attributes.get(name) {
                    let place = if name == "proxy-protocol" {
                        "QUIC has no PROXY header"
                    } else {
                        "the buffers of a UDP port are set in `quic`"
                    };
                    warn(
                        scope,
                        command,
                        node,
                        &format!("`{name}` is ignored: {place}"),
                    );
                }
            }
        }
        if is_unix && let Some(node) = attributes.get("cc") {
            warn(scope, command, node, "`cc` is ignored on unix sockets");
            socket.congestion = None;
        }
        let proxy_protocol = attributes
            .get("proxy-protocol")
            .map(|node| {
                const WORDS: [(&str, ProxyProtocol); 3] = [
                    ("OFF", ProxyProtocol::Off),
                    ("ON", ProxyProtocol::Accepted),
                    ("REQUIRED", ProxyProtocol::Required),
                ];
                Ok(WORDS[node.one_of(&WORDS.map(|(word, _)| word))?].1)
            })
            .transpose()?
            .unwrap_or(ProxyProtocol::Off);
        let tls = attributes
            .get("ssl")
            .map(|node| {
                let obtained = acme::obtained_files(scope, node)?;
                let settings = h2o_tls::parse(node, obtained.as_ref(), &mut scope.warnings)?;
                let settings = Arc::new(settings);
                Ok(SslMapping { node, settings })
            })
            .transpose()?;
        if is_quic {
            let node = attributes.require("port")?;
            let ssl = tls.as_ref().ok_or_else(|| {
                node.error("QUIC endpoint must have an accompanying SSL configuration")
                    .with_hint("add `ssl` with `certificate-file` and `key-file`")
            })?;
            if !ssl.settings.has_tls13() {
                return Err(ssl
                    .node
                    .error("QUIC support requires TLS 1.3")
                    .with_hint("leave `max-version` out"));
            }
            let quic = quic::parse(attributes, scope, command)?;
            return Ok(Self {
                tls,
                proxy_protocol: ProxyProtocol::Off,
                socket: SocketOptions {
                    sndbuf: quic.send_buffer,
                    rcvbuf: quic.receive_buffer,
                    ..SocketOptions::default()
                },
                quic: Some(Arc::new(quic)),
            });
        }
        Ok(Self {
            tls,
            proxy_protocol,
            socket,
            quic: None,
        })
    }
}

/// Adds the addresses of a `listen` to the listeners; if a listener with an address exists, it gets the host in addition.
fn bind(
    scope: &mut Scope,
    node: &Node,
    addresses: Vec<Address>,
    options: &ListenOptions<'_>,
) -> Result<(), Error> {
    let mut warnings = Vec::new();
    let host = scope.host.is_some().then_some(scope.host_index);
    for (endpoint, label, any_address) in addresses {
        let listeners: &mut Listeners = scope.shared.edit();
        let Some(listener) = listeners
            .0
            .iter_mut()
            .find(|listener| listener.endpoint == endpoint)
        else {
            listeners.0.push(Listener {
                endpoint,
                pos: node.pos.clone(),
                label,
                any_address,
                hosts: host.map(|host| vec![host]),
                tls: options
                    .tls
                    .iter()
                    .map(|ssl| TlsEntry {
                        hosts: host.into_iter().collect(),
                        settings: Arc::clone(&ssl.settings),
                    })
                    .collect(),
                proxy_protocol: options.proxy_protocol,
                socket: options.socket.clone(),
                quic: options.quic.clone(),
            });
            continue;
        };
        let mut warn_of_lost = |place: &Node, what: &str| {
            warnings.push(format!(
                "[warning] [{}:{}] in command listen, {what} no effect: the `listen` at {}:{} is for the same address and comes first",
                place.pos.file(),
                place.pos.line(),
                listener.pos.file(),
                listener.pos.line(),
            ));
        };
        if options.quic != listener.quic {
            warn_of_lost(node, "the QUIC settings given here have");
        } else if let Ok(attributes) = node.attributes(ATTRIBUTES) {
            for name in options.socket.differences(&listener.socket) {
                // A `listen` without the attribute asks for no value of its own.
                if let Some(given) = attributes.get(name) {
                    warn_of_lost(given, &format!("`{name}` has"));
                }
            }
        }
        match (&options.tls, listener.tls.is_empty()) {
            (Some(_), true) => {
                return Err(node
                    .error("cannot accept HTTPS; already defined to accept HTTP")
                    .with_hint("an earlier `listen` has this address without `ssl`"));
            }
            (None, false) => {
                return Err(node
                    .error("cannot accept HTTP; already defined to accept HTTPS")
                    .with_hint("an earlier `listen` has this address with `ssl`"));
            }
            (None, true) | (Some(_), false) => {}
        }
        if options.proxy_protocol != listener.proxy_protocol {
            let text = match (options.proxy_protocol, listener.proxy_protocol) {
                (ProxyProtocol::Off, _) => {
                    "`proxy-protocol` cannot be turned off, already defined as opposite"
                }
                (_, ProxyProtocol::Off) => {
                    "`proxy-protocol` cannot be turned on, already defined as opposite"
                }
                (ProxyProtocol::Accepted | ProxyProtocol::Required, _) => {
                    "`proxy-protocol` is `ON` in one place and `REQUIRED` in another"
                }
            };
            return Err(node
                .error(text)
                .with_hint("write the same value in each `listen` of an address"));
        }
        match (host, &mut listener.hosts) {
            // A listener at the global level serves all hosts already; the `listen` of a host only adds a certificate.
            (Some(_), None) => {}
            (Some(host), Some(hosts)) => {
                if !hosts.contains(&host) {
                    hosts.push(host);
                }
            }
            (None, hosts) => *hosts = None,
        }
        if let Some(ssl) = &options.tls {
            add_tls_entry(&mut listener.tls, ssl, host, &mut warnings)?;
        }
    }
    for (index, warning) in warnings.iter().enumerate() {
        // The IPv4 and the IPv6 address may cause the same warning, which is shown once.
        if !warnings[..index].contains(warning) {
            scope.warnings.push(warning.clone());
        }
    }
    Ok(())
}

/// Adds an `ssl` mapping to an address. Warns if an earlier mapping makes it ineffective.
///
/// H2O compatibility: if the identity is already registered for the address, H2O only adds the host's name to it.
///
/// # Errors
/// If the `client-ca-file` of the mapping would have no effect, because the hosts that it protects would be open to every client.
fn add_tls_entry(
    entries: &mut Vec<TlsEntry>,
    ssl: &SslMapping<'_>,
    host: Option<u32>,
    warnings: &mut Vec<String>,
) -> Result<(), Error> {
    let settings = &ssl.settings;
    // `taken` is the mapping that clients of this host get already; at the global level, the one that clients of unknown hosts get.
    let taken = entries.iter().find(|entry| match host {
        Some(host) => entry.hosts.contains(&host),
        None => entry.hosts.is_empty(),
    });
    if let Some(entry) = taken.filter(|entry| !entry.settings.same_identity(settings)) {
        settings.must_agree_on_clients(&entry.settings, ssl.node)?;
        warnings.push(format!(
            "[warning] [{}:{}] in command listen, this `ssl` has no effect: the one at {} has the same address and host; to offer several certificates, list them in `identity`",
            ssl.node.pos.file(),
            ssl.node.pos.line(),
            entry.settings.place(),
        ));
        return Ok(());
    }
    let same = entries
        .iter_mut()
        .find(|entry| entry.settings.same_identity(settings));
    let Some(entry) = same else {
        entries.push(TlsEntry {
            hosts: host.into_iter().collect(),
            settings: Arc::clone(settings),
        });
        return Ok(());
    };
    settings.must_agree_on_clients(&entry.settings, ssl.node)?;
    settings.warn_of_lost(&entry.settings, ssl.node, warnings);
    // A mapping without hosts serves every host already.
    if let Some(host) = host
        && !entry.hosts.is_empty()
        && !entry.hosts.contains(&host)
    {
        entry.hosts.push(host);
    }
    Ok(())
}

/// Notes for each host, and each of its listeners, which authority (`client-ca-file`) must have issued the clients' certificates.
pub(crate) fn set_client_authorities(hosts: &mut [Host], listeners: &Listeners) {
    let asks = |listener: &Listener| {
        let mut entries = listener.tls.iter();
        entries.any(|entry| entry.settings.client_authority().is_some())
    };
    if !listeners.0.iter().any(asks) {
        return;
    }
    let mut of_hosts: Vec<Vec<(Endpoint, Option<Arc<str>>)>> = vec![Vec::new(); hosts.len()];
    for listener in &listeners.0 {
        // A host without a mapping of its own uses the mapping of the global level.
        let global = listener.tls.iter().find(|entry| entry.hosts.is_empty());
        let default = global
            .or(listener.tls.first())
            .and_then(|entry| entry.settings.client_authority());
        let mut own: FxHashMap<u32, Option<&Arc<str>>> = FxHashMap::default();
        for entry in &listener.tls {
            for host in &entry.hosts {
                let authority = entry.settings.client_authority();
                own.entry(*host).or_insert(authority);
            }
        }
        for host in listener.hosts.iter().flatten() {
            let authority = own.get(host).copied().unwrap_or(default);
            of_hosts[*host as usize].push((listener.endpoint.clone(), authority.cloned()));
        }
    }
    for (host, authorities) in hosts.iter_mut().zip(of_hosts) {
        if authorities.iter().any(|(_, authority)| authority.is_some()) {
            host.client_authorities = authorities.into();
        }
    }
}

/// Notes for each host the value of the `alt-svc` field that tells clients of its QUIC listener; if the host has several such
/// listeners, the first one. It names no time (`ma`), since the day that RFC 7838 §3.1 has clients assume is right, and each byte is sent with
/// every response.
pub(crate) fn set_alternative_services(hosts: &mut [Host], listeners: &Listeners) {
    for listener in &listeners.0 {
        let Some(port) = listener.port().filter(|_| listener.quic.is_some()) else {
            continue;
        };
        for &host in listener.hosts.iter().flatten() {
            hosts[host as usize]
                .alt_svc
                .get_or_insert_with(|| format!("h3=\":{port}\"").into_bytes().into());
        }
    }
}

impl Listener {
    /// Whether clients of the listener use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        !self.tls.is_empty()
    }

    /// Makes an error with the position of the `listen` in the configuration.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        Error::at(self.pos.clone(), message).in_command("listen", &self.pos)
    }

    /// The transport protocol (TCP or UDP) of the listener's port.
    pub(crate) const fn transport(&self) -> PortOf {
        match self.endpoint {
            Endpoint::Udp(_) => PortOf::Udp,
            Endpoint::Tcp(_) | Endpoint::Unix(_) => PortOf::Tcp,
        }
    }

    /// The port of the listener; `None` for a Unix socket.
    pub(crate) fn port(&self) -> Option<u16> {
        match &self.endpoint {
            Endpoint::Tcp(address) | Endpoint::Udp(address) => Some(address.port()),
            Endpoint::Unix(_) => None,
        }
    }

    /// The path of the listener's Unix socket; `None` for a listener with a port.
    pub(crate) fn unix_path(&self) -> Option<&Path> {
        match &self.endpoint {
            Endpoint::Unix(path) => Some(path),
            Endpoint::Tcp(_) | Endpoint::Udp(_) => None,
        }
    }
}
