//! `compress.cache`: compressed forms of files, which are made once and then sent like precompressed files.
//!
//! The first clients get a file compressed while it is sent, at the fast levels of `compress`. Meanwhile a thread ([`maker`]) compresses
//! the file well, into a file in a directory ([`store`]). The name of the compressed form is a hash of the compression level and of what
//! identifies the original: path, inode, times and size. So a form is never sent for a file that has changed, because the changed file
//! has another hash. Several processes can share the directory: a form appears in it by renaming, and a process that finds the forms
//! larger than its limit removes those that were used least recently.

mod maker;
mod store;

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels, Pass, Unit};
use h2o_exchange::{BackgroundServices, Resources, Scope};

use super::identity::FileIdentity;
use crate::coding::{Coding, CodingSet};
use crate::compress::{CompressSettings, Method};
pub(super) use store::Variant;
pub(super) use store::VariantStore;

/// `compress.cache` makes no compressed form of a file that is longer than this number of bytes.
const MAX_FILE: u64 = 64 << 20;

pub(super) const CACHE: Directive<Scope> = Directive {
    name: "compress.cache",
    levels: Levels::GLOBAL_ONLY,
    // This directive is read after `user`, whose value the store needs, and before hosts, whose files need the store.
    pass: Pass::Listen,
    kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
    value: "a mapping, or `OFF`",
    default: "OFF",
    help: "Not in H2O: keeps compressed forms of static files in a directory. Where [`compress`](#compress) is on, the first \
           clients get a file compressed while it is sent; meanwhile a thread compresses it by brotli at level 9, zstd at 12 or \
           gzip at 9 (or what `compress` says, if that is higher), and later clients get that form like a [precompressed \
           file](#filesend-compressed), with a strong `etag` and ranges. A form is made for each coding that a client asks for and \
           `compress` has, of files of up to 64 MiB that have not changed for two seconds. See [Keep compressed \
           files](files.md#keep-compressed-files).",
    apply,
};

const ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "directory",
        Kinds::SCALAR,
        "DIRECTORY",
        "The directory, which nothing else uses. It is made if its parent exists. Only the user that the server runs as, and root, may be able to write there.",
    ),
    Attribute::optional(
        "size",
        Kinds::SCALAR,
        "BYTES",
        "268435456",
        "Largest number of bytes that all compressed forms may have together, at least 1048576. When they have more, those that were used least \
         recently are removed.",
    ),
];

/// The store that `compress.cache` configures; `None` if it is `OFF`.
#[derive(Clone, Default)]
struct ConfiguredStore(Option<Arc<VariantStore>>);

fn apply(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let node = command.node;
    if node.as_mapping().is_none() {
        return match node.as_str() {
            Some("OFF") => {
                scope.shared.edit::<ConfiguredStore>().0 = None;
                Ok(())
            }
            _ => Err(command
                .error("value must be a mapping or `OFF`")
                .with_hint("such as `compress.cache: { directory: /var/cache/h2o }`")),
        };
    }
    let attributes = node.attributes(&ATTRIBUTES)?;
    let directory = attributes.require("directory")?;
    let path = super::settings::file_name(directory)?;
    if path.is_empty() {
        return Err(directory.error("the path of the directory cannot be empty"));
    }
    let size = match attributes.get("size") {
        Some(size) => size.quantity(Unit::Bytes, "%zu", 1 << 20..=u64::MAX)?,
        None => 256 << 20,
    };
    let user = scope.shared.get::<h2o_exchange::ConfiguredUser>().0.clone();
    let next = VariantStore::new(path, size, user);
    let running = scope.running.as_ref();
    let running = running.and_then(|site| site.shared.get::<ConfiguredStore>().0.clone());
    let store = running.filter(|running| running.is_same_as(&next));
    let store = store.unwrap_or_else(|| Arc::new(next));
    let shared = &mut scope.shared;
    shared.edit::<ConfiguredStore>().0 = Some(Arc::clone(&store));
    let place = command.error_at(directory, "");
    (shared.edit::<Resources>()).add(place, Arc::clone(&store) as _);
    let maker = maker::Maker(store);
    shared.edit::<BackgroundServices>().0.push(Arc::new(maker));
    Ok(())
}

/// The store with the compressed forms of the files of a service, and the settings by which the form for a client is chosen.
pub(super) struct Variants {
    pub(super) store: Arc<VariantStore>,
    compress: Arc<CompressSettings>,
}

impl PartialEq for Variants {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store) && *self.compress == *other.compress
    }
}

/// A static file that is to be compressed, and the compressed form that is to be made of it.
#[derive(Debug)]
pub(super) struct WantedVariant {
    pub(super) source: CString,
    pub(super) identity: FileIdentity,
    pub(super) method: Method,
    pub(super) variant: Variant,
}

impl Variants {
    /// Reads the settings of a configuration level. Returns `None` if its files are not kept compressed.
    pub(super) fn of(scope: &Scope) -> Option<Self> {
        let store = scope.shared.get::<ConfiguredStore>().0.clone()?;
        let compress = scope.settings.peek::<CompressSettings>()?;
        compress.is_on().then_some(Self { store, compress })
    }

    /// Returns the compressed form that a client that accepts these codings gets of a file; `None` if the client gets the file as it is.
    /// The coding is chosen as `compress` chooses it.
    pub(super) fn wanted(
        &self,
        accepted: CodingSet,
        source: &CString,
        identity: FileIdentity,
    ) -> Option<WantedVariant> {
        if identity.size < self.compress.minimum || identity.size > MAX_FILE || identity.size == 0 {
            return None;
        }
        let mut codings = Coding::ALL.into_iter().filter(|&it| accepted.has(it));
        let method = codings.find_map(|coding| self.compress.methods.of(coding))?;
        let best = match method.coding {
            Coding::Brotli | Coding::Gzip => 9,
            Coding::Zstd => 12,
        };
        let method = Method {
            level: method.level.max(best),
            ..method
        };
        Some(WantedVariant {
            variant: self.store.variant(source, &identity, method),
            source: source.clone(),
            identity,
            method,
        })
    }
}

/// The path of a directory as text for messages.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
