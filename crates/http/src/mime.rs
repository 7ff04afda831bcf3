//! The MIME map: media types by file extension, and attributes by media type. H2O compatibility: the built-in map is H2O's.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

mod builtin;

/// Properties of a media type that change how its files are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MimeAttributes {
    /// Whether files of the type are worth compressing.
    pub compressible: bool,
    /// Whether files of the type block the rendering of a page: their responses are sent before others.
    pub highest_priority: bool,
}

impl MimeAttributes {
    /// The attributes that a media type has by default. Parameters after `;` do not matter.
    #[must_use]
    pub fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let highest_priority = matches!(
            essence,
            "text/css"
                | "text/javascript"
                | "text/ecmascript"
                | "application/javascript"
                | "application/ecmascript"
        );
        Self {
            compressible: highest_priority
                || matches!(essence, "application/json" | "application/xml")
                || essence.starts_with("text/")
                || essence.ends_with("+json")
                || essence.ends_with("+xml"),
            highest_priority,
        }
    }
}

/// A value of `content-type`, with the attributes of the media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MimeType {
    /// The value of `content-type`.
    pub content_type: Box<str>,
    /// The attributes of the media type.
    pub attributes: MimeAttributes,
}

impl MimeType {
    /// A media type with its default attributes.
    #[must_use]
    pub fn new(content_type: &str) -> Self {
        Self {
            content_type: content_type.into(),
            attributes: MimeAttributes::of(content_type),
        }
    }
}

/// What a MIME map says about the files with some extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MimeEntry {
    /// The files are sent with this type.
    Type(Arc<MimeType>),
    /// The files are passed to a handler. The number identifies the handler to the caller that inserted the entry.
    Dynamic(u32),
}

/// Length in bytes of the longest extension that is looked up; a file with a longer one has the default type.
pub const MAX_EXTENSION: usize = 255;

/// Media types by file extension, and attributes by media type. A clone shares the data until one of the two is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MimeMap {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    by_extension: FxHashMap<Box<[u8]>, MimeEntry>,
    by_type: FxHashMap<Box<str>, UsedType>,
    default: MimeEntry,
    dynamic: usize,
}

/// The attributes of a media type to which the map assigns at least one extension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UsedType {
    attributes: MimeAttributes,
    extensions: usize,
}

/// The default map is the built-in one.
impl Default for MimeMap {
    fn default() -> Self {
        static BUILT_IN: LazyLock<MimeMap> = LazyLock::new(|| {
            let mut map = MimeMap::empty();
            for (content_type, extensions) in builtin::TYPES {
                let entry = MimeEntry::Type(Arc::new(MimeType::new(content_type)));
                for extension in *extensions {
                    map.insert(extension.as_bytes(), entry.clone());
                }
            }
            map
        });
        BUILT_IN.clone()
    }
}

impl MimeMap {
    /// A map that gives every file the type `application/octet-stream`.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            inner: Arc::new(Inner {
                by_extension: FxHashMap::default(),
                by_type: FxHashMap::default(),
                default: MimeEntry::Type(Arc::new(MimeType::new("application/octet-stream"))),
                dynamic: 0,
            }),
        }
    }

    /// Removes every extension from the map. The default entry stays if it is a type; if it is dynamic, it becomes
    /// `application/octet-stream`.
    pub fn clear(&mut self) {
        let default = match self.default_entry() {
            entry @ MimeEntry::Type(_) => entry.clone(),
            MimeEntry::Dynamic(_) => Self::empty().default_entry().clone(),
        };
        *self = Self::empty();
        self.set_default(default);
    }

    /// Sets the entry for `extension`, which is given without its dot. It must be in lower case: extensions of files are
    /// converted to lower case before they are looked up.
    pub fn insert(&mut self, extension: &[u8], entry: MimeEntry) {
        self.remove(extension);
        let inner = Arc::make_mut(&mut self.inner);
        match &entry {
            MimeEntry::Dynamic(_) => inner.dynamic += 1,
            MimeEntry::Type(kind) => {
                let known = inner
                    .by_type
                    .entry(kind.content_type.clone())
                    .or_insert(UsedType {
                        attributes: kind.attributes,
                        extensions: 0,
                    });
                known.attributes = kind.attributes;
                known.extensions += 1;
            }
        }
        inner.by_extension.insert(extension.into(), entry);
    }

    /// Removes an extension from the map.
    pub fn remove(&mut self, extension: &[u8]) {
        let inner = Arc::make_mut(&mut self.inner);
        match inner.by_extension.remove(extension) {
            None => {}
            Some(MimeEntry::Dynamic(_)) => inner.dynamic -= 1,
            Some(MimeEntry::Type(kind)) => {
                if let Some(known) = inner.by_type.get_mut(&kind.content_type) {
                    known.extensions -= 1;
                    if known.extensions == 0 {
                        inner.by_type.remove(&kind.content_type);
                    }
                }
            }
        }
    }

    /// Sets the entry for files whose extension is absent or not in the map.
    pub fn set_default(&mut self, entry: MimeEntry) {
        let inner = Arc::make_mut(&mut self.inner);
        inner.dynamic -= usize::from(matches!(inner.default, MimeEntry::Dynamic(_)));
        inner.dynamic += usize::from(matches!(entry, MimeEntry::Dynamic(_)));
        inner.default = entry;
    }

    /// The entry for files whose extension is absent or not in the map.
    #[must_use]
    pub fn default_entry(&self) -> &MimeEntry {
        &self.inner.default
    }

    /// The entry for the file with the name or path `path`.
    #[must_use]
    pub fn of_file(&self, path: &[u8]) -> &MimeEntry {
        extension(path)
            .and_then(|extension| self.of_extension(extension))
            .unwrap_or(&self.inner.default)
    }

    /// The entry for files with this extension; letter case is ignored.
    fn of_extension(&self, extension: &[u8]) -> Option<&MimeEntry> {
        let mut lower = [0; MAX_EXTENSION];
        let lower = lower.get_mut(..extension.len())?;
        lower.copy_from_slice(extension);
        lower.make_ascii_lowercase();
        self.inner.by_extension.get(&*lower)
    }

    /// The attributes of the media type in a `content-type` value. The map is searched for the whole value, then for the
    /// part before the first `;` or blank; letter case matters. `None` if no extension has that type.
    #[must_use]
    pub fn attributes(&self, content_type: &[u8]) -> Option<MimeAttributes> {
        let find = |text: &[u8]| {
            let known = self.inner.by_type.get(std::str::from_utf8(text).ok()?)?;
            Some(known.attributes)
        };
        find(content_type).or_else(|| {
            let end = content_type
                .iter()
                .position(|byte| matches!(byte, b';' | b' ' | b'\t'))?;
            find(&content_type[..end])
        })
    }

    /// Whether an extension or the default has an entry that names a handler ([`MimeEntry::Dynamic`]).
    #[must_use]
    pub fn has_dynamic(&self) -> bool {
        self.inner.dynamic > 0
    }
}

/// The extension of the last component of `path`: the text after its last dot, unless that is empty.
fn extension(path: &[u8]) -> Option<&[u8]> {
    let at = path.iter().rposition(|&byte| matches!(byte, b'.' | b'/'))?;
    (path[at] == b'.' && at + 1 < path.len()).then(|| &path[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(entry: &MimeEntry) -> String {
        match entry {
            MimeEntry::Type(kind) => kind.content_type.to_string(),
            MimeEntry::Dynamic(number) => format!("dynamic {number}"),
        }
    }

    fn plain(content_type: &str) -> MimeEntry {
        MimeEntry::Type(Arc::new(MimeType::new(content_type)))
    }

    #[test]
    fn built_in_map_has_136_extensions_of_102_types() {
        let map = MimeMap::default();
        assert_eq!(map.inner.by_extension.len(), 136);
        assert_eq!(map.inner.by_type.len(), 102);
        let compressible = map.inner.by_type.values();
        let compressible = compressible.filter(|known| known.attributes.compressible);
        assert_eq!(compressible.count(), 24);
        for absent in "gz tar bz2 xz php yaml yml log map ini sh".split(' ') {
            let file = format!("/a/b.{absent}");
            assert_eq!(
                text(map.of_file(file.as_bytes())),
                "application/octet-stream"
            );
        }
    }

    #[test]
    fn extension_is_what_follows_the_last_dot_of_the_last_component() {
        let long = [&b"x."[..], &[b'a'; MAX_EXTENSION]].concat();
        let longer = [&b"x."[..], &[b'a'; MAX_EXTENSION + 1]].concat();
        let mut map = MimeMap::default();
        map.insert(&[b'a'; MAX_EXTENSION], plain("a/255"));
        map.insert(&[b'a'; MAX_EXTENSION + 1], plain("a/256"));
        map.insert(b"profile", plain("a/profile"));
        map.insert(b"UP", plain("a/up"));
        let cases: &[(&[u8], &str)] = &[
            (b"/a.txt", "text/plain"),
            (b"/A.TxT", "text/plain"),
            (b"/a.tar.css", "text/css"),
            (b"/a.css.tar", "application/octet-stream"),
            (b"/d.css/a", "application/octet-stream"),
            (b"/x.", "application/octet-stream"),
            (b"/x", "application/octet-stream"),
            (b"", "application/octet-stream"),
            (b"/.profile", "a/profile"),
            (b"/x.up", "application/octet-stream"),
            (b"/x.UP", "application/octet-stream"),
            (&long, "a/255"),
            (&longer, "application/octet-stream"),
        ];
        for (path, want) in cases {
            assert_eq!(text(map.of_file(path)), *want, "{}", path.escape_ascii());
        }
    }

    #[test]
    fn default_attributes_go_by_the_type_without_parameters() {
        let cases = [
            ("text/css", true, true),
            ("text/css; charset=utf-8", true, true),
            ("text/javascript", true, true),
            ("text/ecmascript", true, true),
            ("application/javascript", true, true),
            ("application/ecmascript", true, true),
            ("application/json", true, false),
            ("application/xml ;x=y", true, false),
            ("text/anything", true, false),
            ("image/svg+xml", true, false),
            ("model/gltf+json", true, false),
            ("application/zip", false, false),
            ("application/xml-dtd", false, false),
            ("image/png; a=+xml", false, false),
        ];
        for (content_type, compressible, highest_priority) in cases {
            let want = MimeAttributes {
                compressible,
                highest_priority,
            };
            assert_eq!(MimeAttributes::of(content_type), want, "{content_type}");
        }
    }

    #[test]
    fn attributes_are_found_only_for_types_of_the_map() {
        let map = MimeMap::default();
        let found = |text: &str| map.attributes(text.as_bytes()).map(|a| a.compressible);
        let cases = [
            ("text/html", Some(true)),
            ("text/html; charset=utf-8", Some(true)),
            ("text/html charset", Some(true)),
            ("image/png", Some(false)),
            ("Text/html", None),
            ("application/javascript", None),
            ("application/xml", None),
            ("text/unheard-of", None),
            ("", None),
        ];
        for (content_type, want) in cases {
            assert_eq!(found(content_type), want, "{content_type}");
        }
        assert_eq!(map.attributes(b"text/\xff"), None);
    }

    #[test]
    fn exact_type_comes_before_the_type_without_parameters() {
        let mut map = MimeMap::default();
        let special = MimeType {
            content_type: "text/html; a".into(),
            attributes: MimeAttributes::default(),
        };
        map.insert(b"special", MimeEntry::Type(Arc::new(special)));
        assert!(!map.attributes(b"text/html; a").unwrap().compressible);
        assert!(map.attributes(b"text/html; b").unwrap().compressible);
        map.remove(b"special");
        assert!(map.attributes(b"text/html; a").unwrap().compressible);
    }

    #[test]
    fn changing_a_clone_leaves_the_original_alone() {
        let outer = MimeMap::default();
        let mut inner = outer.clone();
        inner.insert(b"txt", MimeEntry::Dynamic(3));
        inner.set_default(plain("a/b"));
        assert_eq!(text(inner.of_file(b"a.txt")), "dynamic 3");
        assert_eq!(text(inner.of_file(b"a")), "a/b");
        assert!(inner.has_dynamic());
        assert_eq!(
            inner.attributes(b"text/plain"),
            None,
            "a type whose only extension was removed has no attributes"
        );
        assert_eq!(text(outer.of_file(b"a.txt")), "text/plain");
        assert!(!outer.has_dynamic());
    }

    #[test]
    fn clearing_keeps_the_default_type_but_no_dynamic_one() {
        let mut map = MimeMap::default();
        map.insert(b"php", MimeEntry::Dynamic(0));
        map.set_default(plain("a/b"));
        map.clear();
        assert_eq!(text(map.of_file(b"a.txt")), "a/b");
        assert!(!map.has_dynamic());
        map.set_default(MimeEntry::Dynamic(1));
        assert!(map.has_dynamic());
        map.clear();
        assert!(!map.has_dynamic());
        assert_eq!(text(map.default_entry()), "application/octet-stream");
    }
}
