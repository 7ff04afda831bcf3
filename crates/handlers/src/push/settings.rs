//! The settings of HTTP/2 push, and their directives.

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Level, Levels, Node, Pass};
use h2o_exchange::Scope;

/// The push settings of a host or path, inherited like all settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushSettings {
    /// The setting of `http2-push-preload`: whether `link` fields with `rel=preload` cause pushes.
    pub preload: bool,
    /// The setting of `http2-casper`; `None` for `OFF`.
    pub casper: Option<CasperSettings>,
    /// The setting of `http2-allow-cross-origin-push` at the global level. H2O compatibility: H2O accepts the directive
    /// at path level and ignores it there.
    pub allow_cross_origin: bool,
}

impl Default for PushSettings {
    fn default() -> Self {
        Self {
            preload: true,
            casper: None,
            allow_cross_origin: false,
        }
    }
}

/// The settings of the CASPer cookie, which records what a client has cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasperSettings {
    /// Number of bits of a key in the cookie, 1 to 15. More bits tell more resources apart.
    pub capacity_bits: u8,
    /// Whether all responses are recorded, not only those that block rendering.
    pub tracks_all: bool,
}

impl Default for CasperSettings {
    fn default() -> Self {
        Self {
            capacity_bits: 13,
            tracks_all: false,
        }
    }
}

const fn on_off(
    name: &'static str,
    levels: Levels,
    default: &'static str,
    help: &'static str,
    apply: fn(&mut Scope, &Command<'_>) -> Result<(), Error>,
) -> Directive<Scope> {
    Directive {
        levels,
        ..Directive::setting(name, "ON|OFF", default, help, apply)
    }
}

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    on_off(
        "http2-push-preload",
        Levels::GLOBAL_HOST,
        "ON",
        "Whether resources are pushed that a `link` header with `rel=preload` names. `x-http2-push-only` elements are \
         removed from the header either way.",
        |scope, command| {
            settings(scope).preload = command.node.on_off()?;
            Ok(())
        },
    ),
    on_off(
        "http2-allow-cross-origin-push",
        Levels::GLOBAL.or(Levels::PATH),
        "OFF",
        "Whether resources with URLs of other authorities are pushed, too; the pushed request then has the path of the URL, and \
         the authority of the client's request. At path level it has no effect.",
        |scope, command| {
            let is_allowed = command.node.on_off()?;
            if command.level == Level::Global {
                settings(scope).allow_cross_origin = is_allowed;
            }
            Ok(())
        },
    ),
    Directive {
        name: "http2-casper",
        levels: Levels::GLOBAL_HOST,
        pass: Pass::Settings,
        kinds: Kinds::ANY.with_attributes(&CASPER),
        value: "ON|OFF, or a mapping",
        default: "OFF",
        help: "Whether a cookie remembers which resources the client has got, so that they are not pushed again. A mapping \
               does not inherit from outer levels.",
        apply: casper,
    },
];

fn settings(scope: &mut Scope) -> &mut PushSettings {
    scope.edit()
}

fn casper(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    if command.node.as_sequence().is_some() {
        return Err(command
            .error("value must be `OFF`,`ON` or a mapping containing the necessary attributes"));
    }
    let Some(word) = command.node.as_str() else {
        settings(scope).casper = casper_mapping(command.node)?;
        return Ok(());
    };
    if word.eq_ignore_ascii_case("ON") {
        settings(scope).casper = Some(CasperSettings::default());
    } else if word.eq_ignore_ascii_case("OFF") {
        settings(scope).casper = None;
    } else {
        // H2O compatibility: H2O ignores other words; this server warns of them.
        scope.warn(&command.error(format!("`{word}` is neither `ON` nor `OFF` and is ignored")));
    }
    Ok(())
}

const CASPER: [Attribute; 2] = [
    Attribute::optional(
        "capacity-bits",
        Kinds::SCALAR,
        "0 to 15",
        "13",
        "Size of the cookie: room for about two to the power of this many resources. `0` is `OFF`.",
    ),
    Attribute::optional(
        "tracking-types",
        Kinds::SCALAR,
        "blocking-assets|all",
        "blocking-assets",
        "The resources that are remembered: style sheets and scripts, or all.",
    ),
];

fn casper_mapping(node: &Node) -> Result<Option<CasperSettings>, Error> {
    let attributes = node.attributes(&CASPER)?;
    let mut casper = CasperSettings::default();
    if let Some(bits) = attributes.get("capacity-bits") {
        casper.capacity_bits = bits.integer("%u", 0..=15).map_err(|_| {
            bits.error("value of `capacity-bits` must be an integer between 0 to 15")
        })?;
    }
    if let Some(types) = attributes.get("tracking-types") {
        casper.tracks_all = types.one_of(&["blocking-assets", "all"])? == 1;
    }
    Ok(Some(casper).filter(|casper| casper.capacity_bits > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Setup;

    const SETUP: Setup = Setup::new(DIRECTIVES, None);

    #[test]
    fn hosts_and_paths_inherit() {
        let casper = |capacity_bits, tracks_all| {
            Some(CasperSettings {
                capacity_bits,
                tracks_all,
            })
        };
        let default = PushSettings::default();
        let cases = [
            (["", "", ""], default.clone(), default.clone()),
            (
                [
                    "http2-push-preload: OFF\nhttp2-casper: ON",
                    "http2-casper: { tracking-types: all }",
                    "",
                ],
                PushSettings {
                    preload: false,
                    casper: casper(13, true),
                    ..default.clone()
                },
                PushSettings {
                    preload: false,
                    casper: casper(13, false),
                    ..default.clone()
                },
            ),
            (
                [
                    "http2-casper: { Capacity-Bits: 11 }",
                    "http2-casper: off",
                    "http2-allow-cross-origin-push: ON",
                ],
                default.clone(),
                PushSettings {
                    casper: casper(11, false),
                    ..default.clone()
                },
            ),
            (
                [
                    "http2-allow-cross-origin-push: ON",
                    "http2-push-preload: OFF",
                    "http2-allow-cross-origin-push: OFF",
                ],
                PushSettings {
                    preload: false,
                    allow_cross_origin: true,
                    ..default.clone()
                },
                PushSettings {
                    allow_cross_origin: true,
                    ..default.clone()
                },
            ),
            (
                ["http2-casper: on", "http2-casper: { capacity-bits: 0 }", ""],
                default.clone(),
                PushSettings {
                    casper: casper(13, false),
                    ..default.clone()
                },
            ),
        ];
        for (levels, host, outside) in cases {
            let site = SETUP.read(levels).unwrap_or_else(|error| panic!("{error}"));
            let of_host = PushSettings::clone(&site.hosts[0].paths[0].settings.get());
            let of_site = PushSettings::clone(&site.settings.get());
            assert_eq!((of_host, of_site), (host, outside), "{levels:?}");
        }
    }

    #[test]
    fn bad_values_are_refused() {
        let cases = [
            (
                "http2-casper: []",
                "value must be `OFF`,`ON` or a mapping containing the necessary attributes (column 15)",
            ),
            (
                "http2-casper: { capacity-bits: 16 }",
                "value of `capacity-bits` must be an integer between 0 to 15 (column 32)",
            ),
            (
                "http2-casper: { capacity-bits: x }",
                "value of `capacity-bits` must be an integer between 0 to 15 (column 32)",
            ),
            (
                "http2-casper: { capacity-bits: [] }",
                "attribute `capacity-bits` must be a scalar (column 32)",
            ),
            (
                "http2-casper: { tracking-types: some }",
                "argument must be one of: blocking-assets,all (column 33)",
            ),
            (
                "http2-push-preload: maybe",
                "argument must be one of: OFF,ON (column 21)",
            ),
        ];
        for (text, want) in cases {
            let name = text.split(':').next().unwrap();
            let error = SETUP.read([text, "", ""]).err().unwrap().to_string();
            assert_eq!(error, format!("[f:1] in command {name}, {want}"), "{text}");
        }
        let at_host = SETUP.read(["", "http2-allow-cross-origin-push: ON", ""]);
        let error = at_host.err().unwrap().to_string();
        assert!(
            error.contains("the command cannot be used at this level"),
            "{error}"
        );
    }
}
