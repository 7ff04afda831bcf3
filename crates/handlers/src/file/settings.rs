//! The settings of static files, except those of MIME types.

use std::sync::Arc;

use h2o_config::{Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::Scope;

use super::custom::CustomHandler;
use super::hide::Hidden;

/// The settings of static files at a configuration level. Inner levels inherit them.
#[derive(Clone)]
pub(super) struct FileSettings {
    /// Names of index files, in the order in which they are tried.
    pub(super) index: Arc<[Box<[u8]>]>,
    /// Whether directories without an index file are listed.
    pub(super) listing: bool,
    /// Names of files and directories that are neither listed nor served.
    pub(super) hidden: Hidden,
    /// Whether responses with files have an `etag` field.
    pub(super) etag: bool,
    /// Whether precompressed forms of files are looked for.
    pub(super) compressed: SendCompressed,
    /// The custom handlers (`file.custom-handler`). The MIME map refers to them by their index.
    pub(super) custom: Vec<Arc<CustomHandler>>,
}

impl FileSettings {
    /// Whether both settings have the same values. Custom handlers cannot be compared, so settings with custom handlers
    /// count as different.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        let are_plain = self.custom.is_empty() && other.custom.is_empty();
        are_plain
            && self.index == other.index
            && self.listing == other.listing
            && self.hidden == other.hidden
            && self.etag == other.etag
            && self.compressed == other.compressed
    }
}

impl Default for FileSettings {
    fn default() -> Self {
        let index = ["index.html", "index.htm", "index.txt"];
        Self {
            index: index.iter().map(|name| name.as_bytes().into()).collect(),
            listing: false,
            hidden: Hidden::default(),
            etag: true,
            compressed: SendCompressed::Off,
            custom: Vec::new(),
        }
    }
}

/// The value of `file.send-compressed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendCompressed {
    /// Only the requested file itself is sent.
    Off,
    /// A precompressed form is sent if the client accepts one that exists, and otherwise the file itself.
    On,
    /// A precompressed form or the file itself is sent, as by [`SendCompressed::On`]; if neither can be sent, a gzip
    /// file is unpacked.
    Gunzip,
}

pub(super) const INDEX: Directive<Scope> = Directive {
    name: "file.index",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SEQUENCE,
    value: "[NAME, ...]",
    default: "[index.html, index.htm, index.txt]",
    help: "Names of the files that answer for a directory, in the order they are tried. With an empty sequence \
           there are none: a directory is treated like a file that does not exist, unless `file.dirlisting` is `ON`.",
    apply: |scope, command| {
        let names = command.node.sequence()?.iter().map(|node| {
            let name = node
                .as_str()
                .ok_or_else(|| command.error("argument must be a sequence of scalars"))?;
            // Slashes at its beginning mean nothing, as the name is below the directory.
            let name = name.trim_start_matches('/');
            if name.is_empty() {
                return Err(node.error("the name of an index file cannot be empty"));
            }
            if name.split('/').any(|part| part == "..") {
                return Err(
                    node.error("the name of an index file cannot lead out of its directory")
                );
            }
            file_name(node).map(|_| name.as_bytes().into())
        });
        scope.edit::<FileSettings>().index = names.collect::<Result<_, _>>()?;
        Ok(())
    },
};

pub(super) const DIRLISTING: Directive<Scope> = Directive {
    name: "file.dirlisting",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "ON|OFF",
    default: "OFF",
    help: "Whether a directory without index file is answered with a list of its files, except those that `file.hide` hides.",
    apply: |scope, command| {
        scope.edit::<FileSettings>().listing = command.node.on_off()?;
        Ok(())
    },
};

pub(super) const ETAG: Directive<Scope> = Directive {
    name: "file.etag",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "ON|OFF",
    default: "ON",
    help: "Whether files are sent with an `etag`, which is made of modification time and size. Conditional requests with an \
           `etag` are understood in either case.",
    apply: |scope, command| {
        scope.edit::<FileSettings>().etag = command.node.on_off()?;
        Ok(())
    },
};

pub(super) const SEND_COMPRESSED: Directive<Scope> = Directive {
    name: "file.send-compressed",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "ON|OFF|gunzip",
    default: "OFF",
    help: "Whether `FILE.br`, `FILE.zst` or `FILE.gz` is sent in place of `FILE` to clients that accept its coding. With \
           `gunzip`, a file that exists only as `FILE.gz` is unpacked for clients that accept none.",
    apply: send_compressed,
};

pub(super) const SEND_GZIP: Directive<Scope> = Directive {
    name: "file.send-gzip",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "ON|OFF|gunzip",
    default: "OFF",
    help: "Another name of `file.send-compressed`.",
    apply: send_compressed,
};

fn send_compressed(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    scope.edit::<FileSettings>().compressed = match command.node.one_of(&["OFF", "ON", "gunzip"])? {
        0 => SendCompressed::Off,
        1 => SendCompressed::On,
        _ => SendCompressed::Gunzip,
    };
    Ok(())
}

pub(super) const IO_URING: Directive<Scope> = Directive {
    name: "file.io_uring",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "ON|OFF",
    default: "OFF",
    help: "Accepted without effect: files that are not in memory are read by other threads, so a slow disk never stops a \
           worker.",
    apply: |scope, command| {
        if command.node.on_off()? {
            let text =
                "io_uring is not used: files that are not in memory are read by other threads";
            scope.warn(&command.error(text));
        }
        Ok(())
    },
};

/// Reads a file name from a node of the configuration.
pub(super) fn file_name(node: &Node) -> Result<Box<[u8]>, Error> {
    let name = node.scalar()?;
    if name.contains('\0') {
        return Err(node.error("a file name cannot contain NUL"));
    }
    Ok(name.as_bytes().into())
}
