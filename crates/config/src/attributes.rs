//! Mappings that hold the attributes of one directive, such as the argument of `listen`.

use crate::error::Error;
use crate::kinds::Attribute;
use crate::nearest::nearest;
use crate::node::Node;

/// The attributes of a mapping in a configuration, checked against their specification.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    mapping: &'a Node,
    values: Vec<(&'static str, Option<&'a Node>)>,
}

impl Node {
    /// Reads a mapping of attributes and checks it against `spec`. Letter case of the attributes' names is ignored.
    ///
    /// # Errors
    /// The messages are `argument must be a mapping`, `key must be a scalar`, `unexpected key:X`, `duplicate key found`,
    /// ``attribute `X` must be a scalar`` and `cannot find mandatory attribute: X`.
    pub fn attributes(&self, spec: &[Attribute]) -> Result<Attributes<'_>, Error> {
        let mut values: Vec<(_, Option<&Self>)> = spec
            .iter()
            .map(|attribute| (attribute.name, None))
            .collect();
        for (key, value) in self.mapping()? {
            let name = key
                .as_str()
                .ok_or_else(|| key.error("key must be a scalar"))?;
            let index = spec
                .iter()
                .position(|attribute| {
                    attribute
                        .names()
                        .any(|known| known.eq_ignore_ascii_case(name))
                })
                .ok_or_else(|| {
                    key.error(format!("unexpected key:{name}"))
                        .did_you_mean(nearest(name, spec.iter().flat_map(Attribute::names)))
                })?;
            let Attribute { name, kinds, .. } = spec[index];
            if let Some(first) = values[index].1 {
                let line = first.pos.line();
                return Err(key
                    .error("duplicate key found")
                    .with_hint(format!("`{name}` is also on line {line}")));
            }
            if !kinds.contains(value.kind()) {
                return Err(value.error(format!("attribute `{name}` must be {kinds}")));
            }
            values[index].1 = Some(value);
        }
        let missing = spec
            .iter()
            .zip(&values)
            .find(|(attribute, (_, value))| attribute.required && value.is_none());
        if let Some((attribute, _)) = missing {
            return Err(self.error(format!(
                "cannot find mandatory attribute: {}",
                attribute.name
            )));
        }
        Ok(Attributes {
            mapping: self,
            values,
        })
    }
}

impl<'a> Attributes<'a> {
    /// The value of the attribute that has this name in the specification; `None` if the configuration does not have it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        let entry = self.values.iter().find(|(known, _)| *known == name);
        debug_assert!(
            entry.is_some(),
            "the list of this directive's attributes does not have `{name}`"
        );
        entry.and_then(|(_, value)| *value)
    }

    /// Like [`Self::get`], for an attribute that is mandatory only if another attribute has a certain value.
    ///
    /// # Errors
    /// The message is `cannot find mandatory attribute: X`.
    pub fn require(&self, name: &str) -> Result<&'a Node, Error> {
        self.get(name).ok_or_else(|| {
            self.mapping
                .error(format!("cannot find mandatory attribute: {name}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kinds;
    use crate::{Memory, load};

    const SPEC: [Attribute; 3] = [
        Attribute::required("port", Kinds::SCALAR, "PORT", "The port."),
        Attribute::optional("ssl", Kinds::MAPPING, "a mapping", "", "TLS."),
        Attribute::optional("key", Kinds::SCALAR.or(Kinds::SEQUENCE), "KEY", "", "Keys.")
            .aliases(&["secret-key"]),
    ];

    #[test]
    fn attribute_mappings_are_checked() {
        let cases = [
            ("port: 80", "port=80"),
            ("PORT: 80\nKey: x", "port=80 key=x"),
            ("secret-KEY: x\nport: ''", "port= key=x"),
            ("x", "[f:1] argument must be a mapping (column 1)"),
            ("port: 1\n[a]: 2", "[f:2] key must be a scalar (column 1)"),
            (
                "port: 1\nProt: 2",
                "[f:2] unexpected key:Prot (column 1; did you mean `port`?)",
            ),
            ("port: 1\nzzzzz: 2", "[f:2] unexpected key:zzzzz (column 1)"),
            (
                "port: 1\nPort: 2",
                "[f:2] duplicate key found (column 1; `port` is also on line 1)",
            ),
            (
                "port: 1\nkey: 1\nsecret-key: 2",
                "[f:3] duplicate key found (column 1; `key` is also on line 2)",
            ),
            (
                "port: [1]",
                "[f:1] attribute `port` must be a scalar (column 7)",
            ),
            (
                "port: 1\nssl: 1",
                "[f:2] attribute `ssl` must be a mapping (column 6)",
            ),
            (
                "port: 1\nkey: {}",
                "[f:2] attribute `key` must be a scalar or a sequence (column 6)",
            ),
            (
                "key: 1",
                "[f:1] cannot find mandatory attribute: port (column 1)",
            ),
        ];
        for (text, want) in cases {
            let node = load("f", &Memory::new().file("f", text)).unwrap();
            let got = node.attributes(&SPEC).map(|found| {
                let shown = ["port", "ssl", "key"].map(|name| {
                    found
                        .get(name)
                        .map(|v| format!("{name}={}", v.as_str().unwrap()))
                });
                shown.into_iter().flatten().collect::<Vec<_>>().join(" ")
            });
            assert_eq!(
                got.unwrap_or_else(|error| error.to_string()),
                want,
                "{text}"
            );
        }
    }

    #[test]
    fn require_names_the_missing_attribute() {
        let node = load("f", &Memory::new().file("f", "\nport: 1")).unwrap();
        let found = node.attributes(&SPEC).unwrap();
        assert_eq!(found.require("port").unwrap().as_str(), Some("1"));
        assert_eq!(
            found.require("key").unwrap_err().to_string(),
            "[f:2] cannot find mandatory attribute: key (column 1)",
        );
    }
}
