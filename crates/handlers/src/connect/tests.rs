//! Tests of the directives for tunnels, and of their error messages.

use h2o_config::{Memory, Registry, load};
use h2o_exchange::{Features, Scope};

use super::*;
use crate::testing::Setup;

fn setup() -> Setup {
    Setup::new(DIRECTIVES, None)
}

#[test]
fn what_cannot_be_read_is_refused() {
    let cases = [
        ("proxy.connect: [ '+*' ]", "accepted"),
        ("proxy.connect: []", "accepted"),
        ("proxy.connect-udp: [ '-*', '+*:53' ]", "accepted"),
        (
            "proxy.connect: '+*'",
            "[f:1] in command proxy.connect, argument cannot be a scalar (column 16; expected a sequence: write `[+*]`)",
        ),
        (
            "proxy.connect:\n  - '+*'\n  - [ '+*' ]",
            "[f:3] in command proxy.connect, ACL entry must be a scalar (column 5)",
        ),
        (
            "proxy.connect-udp: [ '*' ]",
            "[f:1] in command proxy.connect-udp, ACL entry must begin with + or - (column 22; write addresses, not names, such as `+192.0.2.0/24:443`, `-[::1]` or `+*:443`)",
        ),
        (
            "proxy.connect: [ '+a.example' ]",
            "[f:1] in command proxy.connect, failed to parse address (column 18; write addresses, not names, such as `+192.0.2.0/24:443`, `-[::1]` or `+*:443`)",
        ),
        (
            "proxy.proxy-status.identity: \"a\\tb\"",
            "[f:1] in command proxy.proxy-status.identity, the identity must only consist of printable ASCII characters (column 30)",
        ),
        (
            "proxy.happy-eyeballs.name-resolution-delay: soon",
            "[f:1] in command proxy.happy-eyeballs.name-resolution-delay, argument must match the format: %lu (column 45; `soon` is not a whole number of milliseconds; write digits only)",
        ),
        (
            "proxy.connect.masque-draft-03: maybe",
            "[f:1] in command proxy.connect.masque-draft-03, argument must be one of: OFF,ON (column 32)",
        ),
    ];
    for (config, want) in cases {
        assert_eq!(setup().refusal(config), want, "{config}");
    }
}

#[test]
fn handlers_stand_at_paths_only() {
    for name in ["proxy.connect", "proxy.connect-udp"] {
        let config = format!("{name}: [ '+*' ]");
        let want = format!(
            "[f:1] in command {name}, the command cannot be used at this level (column 1; this is global level, it may be used at: path)"
        );
        let refused = setup().read([&config, "", ""]).err().unwrap();
        assert_eq!(refused.to_string(), want);
    }
}

#[test]
fn inner_levels_inherit_and_old_names_are_warned_of() {
    let files = Memory::new().file(
        "f",
        "proxy.connect.proxy-status: ON\nproxy-status.identity: a b\nproxy.happy-eyeballs.connection-attempt-delay: 7",
    );
    let features = Features {
        guards: Vec::new(),
        sweeps: Vec::new(),
        registry: Registry::new(&[DIRECTIVES]),
        filters: Vec::new(),
    };
    let mut scope = Scope::new(Arc::new(features));
    scope.run(&load("f", &files).unwrap()).unwrap();
    assert_eq!(
        scope.warnings,
        [
            "[warning] [f:1] in command proxy.connect.proxy-status, the command is deprecated; use proxy.connect.emit-proxy-status (column 29)",
            "[warning] [f:2] in command proxy-status.identity, the command is deprecated; use proxy.proxy-status.identity (column 24)",
        ]
    );
    let settings = scope
        .enter(h2o_config::Level::Path, |scope| {
            Ok(scope.settings.get::<ConnectSettings>())
        })
        .unwrap();
    assert!(settings.emits_proxy_status);
    assert_eq!(&*settings.identity, "\"a b\"");
    assert_eq!(settings.connection_attempt_delay, Duration::from_millis(7));
    assert_eq!(settings.name_resolution_delay, Duration::from_millis(50));
}
