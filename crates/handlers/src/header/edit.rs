//! Changes to header blocks. When the configuration is read, names of fields are looked up and values are checked.

use h2o_config::{Error, Node};
use h2o_http::{Headers, Known, Name, escape, is_token};

use super::cookie;

/// One change to a header block.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Add(FieldLine),
    Append(FieldLine),
    Merge(FieldLine),
    Set(FieldLine),
    SetIfEmpty(FieldLine),
    Unset(Box<[FieldName]>),
    UnsetUnless(Box<[FieldName]>),
    CookieUnset(Box<[Box<str>]>),
    CookieUnsetUnless(Box<[Box<str>]>),
}

impl Edit {
    /// Whether this edit changes or removes the field `name`, which is in lower case.
    pub(crate) fn names(&self, name: &str) -> bool {
        let is_it = |field: &FieldName| field.get().as_str() == name;
        match self {
            Self::Add(line)
            | Self::Append(line)
            | Self::Merge(line)
            | Self::Set(line)
            | Self::SetIfEmpty(line) => is_it(&line.name),
            Self::Unset(names) => names.iter().any(is_it),
            // `unsetunless` also removes fields whose name has `_` in place of `-`, and the edits of cookies concern
            // only the field `cookie`. So a backend can mistake no remaining field for one that these edits have
            // removed.
            Self::UnsetUnless(_) | Self::CookieUnset(_) | Self::CookieUnsetUnless(_) => false,
        }
    }

    /// Applies the edit to fields that the same rule may have edited before: unlike [`Edit::apply`], this adds nothing
    /// a second time.
    pub(crate) fn apply_again(&self, headers: &mut Headers) {
        match self {
            Self::Add(line) => {
                if !line.is_in(headers) {
                    headers.push(line.name.get(), line.value());
                }
            }
            Self::Append(line) => line.merge_into(headers),
            Self::Merge(_)
            | Self::Set(_)
            | Self::SetIfEmpty(_)
            | Self::Unset(_)
            | Self::UnsetUnless(_)
            | Self::CookieUnset(_)
            | Self::CookieUnsetUnless(_) => self.apply(headers),
        }
    }

    pub(crate) fn apply(&self, headers: &mut Headers) {
        match self {
            Self::Add(line) => headers.push(line.name.get(), line.value()),
            Self::Append(line) => line.append_to(headers),
            Self::Merge(line) => line.merge_into(headers),
            Self::Set(line) => headers.set(line.name.get(), line.value()),
            Self::SetIfEmpty(line) => {
                if headers.get(line.name.get()).is_none() {
                    headers.push(line.name.get(), line.value());
                }
            }
            Self::Unset(names) => {
                for name in names {
                    headers.remove(name.get());
                }
            }
            Self::UnsetUnless(names) => {
                headers.retain(|field| names.iter().any(|name| name.get() == field.name));
            }
            Self::CookieUnset(names) => {
                cookie::retain(headers, |name| !cookie::is_among(names, name))
            }
            Self::CookieUnsetUnless(names) => {
                cookie::retain(headers, |name| cookie::is_among(names, name))
            }
        }
    }
}

/// A field that a rule adds, as written in the configuration.
#[derive(Clone, Debug)]
pub(crate) struct FieldLine {
    name: FieldName,
    value: Box<str>,
}

impl FieldLine {
    /// Reads `name: value`. Everything after the first colon is the value, without any escapes.
    pub(super) fn read(node: &Node) -> Result<Self, Error> {
        let (name, value) = node
            .scalar()?
            .split_once(':')
            .map(|(name, value)| (name.trim_ascii(), value.trim_ascii()))
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                node.error("failed to parse the value; should be in form of `name: value`")
            })?;
        let name = FieldName::new(node, name)?;
        // A line break would begin another field (RFC 9110 §5.5).
        if value
            .bytes()
            .any(|byte| byte.is_ascii_control() && byte != b'\t')
        {
            return Err(node
                .error("invalid header value")
                .with_hint("a header value cannot have line breaks and other control characters"));
        }
        let value = value.into();
        Ok(Self { name, value })
    }

    fn value(&self) -> &[u8] {
        self.value.as_bytes()
    }

    fn is_in(&self, headers: &Headers) -> bool {
        let mut values = headers.get_all(self.name.get());
        values.any(|value| value == self.value())
    }

    fn merge_into(&self, headers: &mut Headers) {
        let first = headers.get(self.name.get());
        if !first.is_some_and(|value| escape::list_contains(value, self.value())) {
            self.append_to(headers);
        }
    }

    fn append_to(&self, headers: &mut Headers) {
        match headers.get(self.name.get()) {
            None => headers.push(self.name.get(), self.value()),
            Some(b"") => headers.replace(self.name.get(), self.value()),
            Some(first) => {
                let joined = [first, b", ", self.value()].concat();
                headers.replace(self.name.get(), &joined);
            }
        }
    }
}

/// The name of a field in a rule.
#[derive(Clone, Debug)]
pub(crate) enum FieldName {
    Known(Known),
    /// The name of another field, in lower case.
    Other(Box<str>),
}

impl FieldName {
    pub(super) fn read_all(list: &[Node]) -> Result<Box<[Self]>, Error> {
        list.iter()
            .map(|node| Self::new(node, node.scalar()?.trim_ascii()))
            .collect()
    }

    fn new(node: &Node, name: &str) -> Result<Self, Error> {
        if !is_token(name.as_bytes()) {
            return Err(node
                .error("invalid header name")
                .with_hint("write letters, digits and hyphens"));
        }
        match Known::from_any_case(name.as_bytes()) {
            // The protocol engines write `connection`, `content-length`, `transfer-encoding`, `date` and `server`
            // themselves; a wrong `date` would mislead caches.
            Some(
                Known::Connection
                | Known::ContentLength
                | Known::TransferEncoding
                | Known::Date
                | Known::Server,
            ) => Err(node
                .error("the named header cannot be rewritten")
                .with_hint("the server itself sets this header")),
            Some(known) => Ok(Self::Known(known)),
            None => Ok(Self::Other(name.to_ascii_lowercase().into())),
        }
    }

    fn get(&self) -> Name<'_> {
        match self {
            Self::Known(known) => Name::Known(*known),
            Self::Other(name) => Name::Other(name),
        }
    }
}
