//! The directives that change the map from extensions to MIME types.

use std::sync::Arc;

use h2o_config::{Attribute, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::Scope;
use h2o_http::mime::{MimeEntry, MimeMap, MimeType};

const TYPES: &str = "a mapping of `TYPE` to `.EXT`, to a sequence of those, or to a mapping";

pub(super) const SETTYPES: Directive<Scope> = Directive {
    name: "file.mime.settypes",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::MAPPING.with_attributes(&LONG_FORM),
    value: TYPES,
    default: "the built-in map",
    help: "Replaces the map from extensions to MIME types. The default type is kept; custom handlers are removed.",
    apply: |scope, command| {
        let types = parse_types(command.node)?;
        let map = scope.edit::<MimeMap>();
        map.clear();
        insert_all(map, types);
        Ok(())
    },
};

pub(super) const ADDTYPES: Directive<Scope> = Directive {
    name: "file.mime.addtypes",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::MAPPING.with_attributes(&LONG_FORM),
    value: TYPES,
    default: "none",
    help: "Adds extensions to the map of MIME types, or gives them another type. Extensions are written in lower \
           case; those of files may be in any.",
    apply: |scope, command| {
        let types = parse_types(command.node)?;
        insert_all(scope.edit(), types);
        Ok(())
    },
};

pub(super) const REMOVETYPES: Directive<Scope> = Directive {
    name: "file.mime.removetypes",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SEQUENCE,
    value: "[.EXT, ...]",
    default: "none",
    help: "Takes extensions out of the map of MIME types.",
    apply: |scope, command| {
        let nodes = command.node.sequence()?;
        let extensions = nodes.iter().map(extension).collect::<Result<Vec<_>, _>>()?;
        let map = scope.edit::<MimeMap>();
        for extension in extensions {
            map.remove(extension.as_bytes());
        }
        Ok(())
    },
};

pub(super) const SETDEFAULTTYPE: Directive<Scope> = Directive {
    name: "file.mime.setdefaulttype",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "TYPE",
    default: "application/octet-stream",
    help: "The MIME type of files whose extension is absent or not in the map.",
    apply: |scope, command| {
        let kind = MimeType::new(&mime_type(command.node)?);
        scope
            .edit::<MimeMap>()
            .set_default(MimeEntry::Type(Arc::new(kind)));
        Ok(())
    },
};

fn insert_all(map: &mut MimeMap, types: Vec<(MimeType, Vec<&str>)>) {
    for (kind, extensions) in types {
        let entry = MimeEntry::Type(Arc::new(kind));
        for extension in extensions {
            map.insert(extension.as_bytes(), entry.clone());
        }
    }
}

fn parse_types(node: &Node) -> Result<Vec<(MimeType, Vec<&str>)>, Error> {
    let entries = node.mapping()?.iter();
    entries
        .map(|(key, value)| {
            let mut kind = MimeType::new(&mime_type(key)?);
            let extensions = match value.as_mapping() {
                None => value.one_or_more(),
                Some(_) => parse_attributes(value, &mut kind)?,
            };
            let extensions = extensions.iter().map(extension).collect::<Result<_, _>>()?;
            Ok((kind, extensions))
        })
        .collect()
}

/// The attributes of an entry in its long form (a mapping).
const LONG_FORM: [Attribute; 3] = [
    Attribute::required(
        "extensions",
        Kinds::SEQUENCE,
        "[.EXT, ...]",
        "The extensions that have this type.",
    ),
    Attribute::optional(
        "is_compressible",
        Kinds::SCALAR,
        "YES|NO",
        "`YES` for text, JSON and XML",
        "Whether content of this type is worth compressing.",
    ),
    Attribute::optional(
        "priority",
        Kinds::SCALAR,
        "normal|highest",
        "`highest` for style sheets and scripts",
        "Whether HTTP/2 sends content of this type ahead of the rest (`http2-reprioritize-blocking-assets`).",
    ),
];

/// Reads an entry in its long form: changes the attributes of `kind` and returns the extensions.
fn parse_attributes<'a>(node: &'a Node, kind: &mut MimeType) -> Result<&'a [Node], Error> {
    let attributes = node.attributes(&LONG_FORM)?;
    if let Some(value) = attributes.get("is_compressible") {
        // H2O's manual says ON and OFF, and H2O accepts YES and NO; both are accepted here.
        kind.attributes.compressible = value.on_off().or_else(|_| value.yes_no())?;
    }
    if let Some(value) = attributes.get("priority") {
        kind.attributes.highest_priority = value.one_of(&["normal", "highest"])? == 1;
    }
    attributes.require("extensions")?.sequence()
}

/// Reads a MIME type. It is in lower case except for its parameters.
fn mime_type(node: &Node) -> Result<String, Error> {
    let Some(text) = node.as_str() else {
        return Err(node.error("expected a scalar (mime-type)"));
    };
    // A line break or another control character would break the header field.
    let printable = text
        .bytes()
        .all(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
    if !text.contains('/') || !printable {
        return Err(node.error(format!(
            "the string \"{}\" does not look like a mime-type",
            text.escape_debug()
        )));
    }
    let essence = text.find(';').unwrap_or(text.len());
    Ok(text[..essence].to_ascii_lowercase() + &text[essence..])
}

/// Reads an extension. Returns it without its dot.
pub(super) fn extension(node: &Node) -> Result<&str, Error> {
    let Some(text) = node.as_str() else {
        return Err(node.error("expected a scalar (extension)"));
    };
    match text.strip_prefix('.') {
        None => Err(node.error(format!(
            "given extension \"{text}\" does not start with a \".\""
        ))),
        Some("") => Err(node.error(format!(
            "given extension \"{text}\" is invalid: at least 2 characters are required"
        ))),
        Some(extension) => Ok(extension),
    }
}
