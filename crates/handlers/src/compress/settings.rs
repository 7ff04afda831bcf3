//! The directives `compress`, `gzip` and `compress-minimum-size`.

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Level, Levels, Node, Pass};
use h2o_config::{Unit, Value};
use h2o_exchange::Scope;

use super::encoder::Method;
use crate::coding::Coding;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "compress",
        levels: Levels::ALL_BUT_EXTENSION,
        pass: Pass::Settings,
        kinds: Kinds::ANY.with_attributes(&CODINGS),
        value: "`OFF`, `ON`, a sequence of `gzip`, `br` and `zstd`, or a mapping of these",
        default: "OFF",
        help: "Compresses responses while they are sent, for clients that name a coding in `accept-encoding`: those with status 200 \
               and a type that is [worth compressing](#filemimesettypes). `ON`: brotli at level 1, else zstd at \
               3, else gzip at 1, from 100 bytes on. A sequence or a mapping enables the codings that it names, for any length. Each occurrence \
               replaces those of outer levels. Streamed responses are flushed where their source pauses. See [Compress \
               responses](files.md#compress-responses).",
        apply: |scope, command| {
            let methods = read(command)?;
            let minimum = if methods == Methods::ON && command.node.as_str().is_some() {
                100
            } else {
                0
            };
            scope
                .edit::<CompressSettings>()
                .replace(methods, minimum, command.level);
            Ok(())
        },
    },
    Directive {
        levels: Levels::ALL_BUT_EXTENSION,
        ..Directive::setting(
            "compress-minimum-size",
            "BYTES",
            "100 with `compress: ON`, else 0",
            "Shorter responses are not compressed, if their length is known in advance. The directive may stand before or after \
             `compress` in the same mapping (in H2O, `compress` cancels one that stands before it).",
            |scope, command| {
                let minimum = command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
                let settings = scope.edit::<CompressSettings>();
                settings.minimum = minimum;
                settings.minimum_set_at = Some(command.level);
                Ok(())
            },
        )
    },
    Directive {
        levels: Levels::ALL_BUT_EXTENSION,
        ..Directive::setting(
            "gzip",
            "ON|OFF",
            "OFF",
            "`ON` is the same as `compress: [gzip]`, `OFF` as `compress: OFF`.",
            |scope, command| {
                let gzip = command.node.on_off()?.then_some(DEFAULT_GZIP);
                let methods = Methods {
                    gzip,
                    ..Methods::OFF
                };
                scope
                    .edit::<CompressSettings>()
                    .replace(methods, 0, command.level);
                Ok(())
            },
        )
    },
];

const DEFAULT_GZIP: u8 = 1;

const CODINGS: [Attribute; 3] = [
    Attribute::optional(
        "br",
        Kinds::SCALAR,
        "ON|OFF|LEVEL",
        "`OFF`",
        "Brotli, at level 0 to 11; `ON`: 1.",
    ),
    Attribute::optional(
        "zstd",
        Kinds::SCALAR,
        "ON|OFF|LEVEL",
        "`OFF`",
        "Zstandard, at level 1 to 22; `ON`: 3.",
    ),
    Attribute::optional(
        "gzip",
        Kinds::SCALAR,
        "ON|OFF|LEVEL",
        "`OFF`",
        "Gzip, at level 1 to 9; `ON`: 1.",
    ),
];

/// The settings `compress`, `gzip` and `compress-minimum-size` of a configuration level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompressSettings {
    pub(crate) methods: Methods,
    /// Shortest content that is compressed, in bytes.
    pub(crate) minimum: u64,
    /// The configuration level on which `compress-minimum-size` was last set.
    minimum_set_at: Option<Level>,
}

impl CompressSettings {
    /// Whether any content coding is enabled.
    pub(crate) fn is_on(&self) -> bool {
        self.methods != Methods::OFF
    }

    fn replace(&mut self, methods: Methods, minimum: u64, level: Level) {
        self.methods = methods;
        if self.minimum_set_at != Some(level) {
            self.minimum = minimum;
        }
    }
}

/// The enabled content codings, with the level of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Methods {
    brotli: Option<u8>,
    zstd: Option<u8>,
    gzip: Option<u8>,
}

impl Methods {
    const OFF: Self = Self {
        brotli: None,
        zstd: None,
        gzip: None,
    };
    const ON: Self = Self {
        brotli: Some(1),
        zstd: Some(3),
        gzip: Some(DEFAULT_GZIP),
    };

    /// The method for a content coding, if the coding is enabled.
    pub(crate) fn of(self, coding: Coding) -> Option<Method> {
        let level = self.level(coding);
        level.map(|level| Method { coding, level })
    }

    const fn level(self, coding: Coding) -> Option<u8> {
        match coding {
            Coding::Brotli => self.brotli,
            Coding::Zstd => self.zstd,
            Coding::Gzip => self.gzip,
        }
    }

    fn set(&mut self, coding: Coding, level: Option<u8>) {
        match coding {
            Coding::Brotli => self.brotli = level,
            Coding::Zstd => self.zstd = level,
            Coding::Gzip => self.gzip = level,
        }
    }
}

fn read(command: &Command<'_>) -> Result<Methods, Error> {
    match &command.node.value {
        Value::Scalar(_) => match command.node.on_off() {
            Ok(true) => Ok(Methods::ON),
            Ok(false) => Ok(Methods::OFF),
            Err(_) => Err(command.error("scalar argument must be either of: `OFF`, `ON`")),
        },
        Value::Sequence(codings) => {
            let mut methods = Methods::OFF;
            for node in codings.iter() {
                let coding = node
                    .as_str()
                    .and_then(|text| Coding::from_token(text.as_bytes()));
                let coding = coding.ok_or_else(|| {
                    command.error_at(
                        node,
                        "element of the sequence must be either of: `gzip`, `br`, `zstd`",
                    )
                })?;
                methods.set(coding, Methods::ON.level(coding));
            }
            Ok(methods)
        }
        Value::Mapping(_) => {
            let attributes = command.node.attributes(&CODINGS)?;
            let mut methods = Methods::OFF;
            for coding in Coding::ALL {
                if let Some(node) = attributes.get(coding.token()) {
                    methods.set(coding, level(node, coding)?);
                }
            }
            Ok(methods)
        }
    }
}

/// The level that the configuration gives for a coding; `None` for `OFF`.
fn level(node: &Node, coding: Coding) -> Result<Option<u8>, Error> {
    if let Ok(on) = node.on_off() {
        return Ok(Methods::ON.level(coding).filter(|_| on));
    }
    let (range, message) = match coding {
        Coding::Gzip => (
            1..=9,
            "value of gzip attribute must be either of `OFF`, `ON` or an integer value between 1 and 9",
        ),
        Coding::Brotli => (
            0..=11,
            "value of br attribute must be either of `OFF`, `ON` or an integer between 0 and 11",
        ),
        Coding::Zstd => (
            1..=22,
            "value of zstd attribute must be either of `OFF`, `ON` or an integer between 1 and 22",
        ),
    };
    let level = node.integer("%d", range).map_err(|_| node.error(message))?;
    Ok(Some(level))
}
