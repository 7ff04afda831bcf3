//! Finds the files of which `h2o compress` publishes compressed variants.

use std::fs;
use std::path::{Path, PathBuf};

use h2o_http::mime::{MimeEntry, MimeMap};

/// Largest file of which compressed variants are made, in bytes: a thread holds the whole file in memory.
const MAX_LEN: u64 = 256 << 20;

/// Finds the files below a directory, the largest first, so that no thread begins the longest job when the others have finished.
/// Symbolic links are not followed, and hidden names are left out, except `.well-known`.
pub(super) fn below(directory: &Path, originals: &mut Vec<PathBuf>, errors: &mut Vec<String>) {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_path_buf()];
    let types = MimeMap::default();
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                errors.push(format!(
                    "{}: {}",
                    directory.display(),
                    h2o_log::reason(&error)
                ));
                continue;
            }
        };
        for entry in entries {
            let looked_at = entry.and_then(|entry| {
                let name = entry.file_name();
                let name = name.as_encoded_bytes();
                let kind = entry.file_type()?;
                if name.starts_with(b".") && name != b".well-known" {
                } else if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() && is_compressible(&types, name) {
                    found.push((entry.metadata()?.len(), entry.path()));
                }
                Ok(())
            });
            if let Err(error) = looked_at {
                errors.push(format!(
                    "{}: {}",
                    directory.display(),
                    h2o_log::reason(&error)
                ));
            }
        }
    }
    found.sort_by(|(a_len, a), (b_len, b)| b_len.cmp(a_len).then_with(|| a.cmp(b)));
    for (len, path) in found {
        if len > MAX_LEN {
            errors.push(format!(
                "{}: larger than {} MiB, so it is not compressed",
                path.display(),
                MAX_LEN >> 20
            ));
        } else if len > 0 {
            originals.push(path);
        }
    }
}

/// MIME types worth compressing in advance, although the server does not compress them on the fly: formats that are not compressed
/// themselves.
const MORE_TYPES: [&str; 8] = [
    "application/vnd.ms-fontobject",
    "application/wasm",
    "font/collection",
    "font/otf",
    "font/ttf",
    "image/x-icon",
    "image/x-ms-bmp",
    "model/gltf-binary",
];

/// Whether files of this name become smaller by compression, judged by their type in the built-in MIME map.
fn is_compressible(types: &MimeMap, name: &[u8]) -> bool {
    // Files with this extension have the MIME type of SVG, but are already compressed.
    if name.ends_with(b".svgz") {
        return false;
    }
    match types.of_file(name) {
        MimeEntry::Type(kind) => {
            kind.attributes.compressible || MORE_TYPES.contains(&&*kind.content_type)
        }
        MimeEntry::Dynamic(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_compression_of_their_own_gain() {
        let types = MimeMap::default();
        let cases = [
            ("a.html", true),
            ("A.CSS", true),
            ("a.svg", true),
            ("a.wasm", true),
            ("a.ttf", true),
            ("a.svgz", false),
            ("a.woff2", false),
            ("a.png", false),
            ("a.html.gz", false),
            ("a.html.br", false),
            ("a.html.zst", false),
            ("README", false),
        ];
        for (name, want) in cases {
            assert_eq!(is_compressible(&types, name.as_bytes()), want, "{name}");
        }
        for extra in MORE_TYPES {
            assert!(types.attributes(extra.as_bytes()).is_some(), "{extra}");
        }
    }

    #[test]
    fn hidden_names_and_symbolic_links_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in [
            ".well-known/a.txt",
            "sub/b.txt",
            ".git/c.txt",
            ".d.txt",
            "e.txt",
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
        }
        fs::write(root.join("empty.txt"), "").unwrap();
        std::os::unix::fs::symlink(root.join("e.txt"), root.join("link.txt")).unwrap();
        std::os::unix::fs::symlink(root.join("sub"), root.join("loop")).unwrap();
        let (mut originals, mut errors) = (Vec::new(), Vec::new());
        below(root, &mut originals, &mut errors);
        let names: Vec<_> = originals
            .iter()
            .map(|original| original.strip_prefix(root).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, [".well-known/a.txt", "sub/b.txt", "e.txt"]);
        below(&root.join("none"), &mut originals, &mut errors);
        assert_eq!(errors.len(), 1, "{errors:?}");
    }
}
