//! The code blocks on the manual's pages, as examples that tests run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{Folder, openssl};

/// System directories that the manual's examples mention. Tests replace them by directories in the folder of the test.
const SYSTEM_DIRECTORIES: [&str; 6] = ["/etc/", "/var/", "/srv/", "/run/", "/opt/", "/usr/share/"];

/// A fenced code block of a page.
#[derive(Clone, Debug)]
pub struct Example {
    /// Position of the block's first line: `docs/tls.md:3`.
    pub place: String,
    /// The heading of the section that the block is in.
    pub section: String,
    /// The word after the fence, such as `yaml`.
    pub language: String,
    /// The lines of the block, without the fences.
    pub text: String,
}

/// The top directory of the source tree.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The paths of all pages: `README.md` and the pages of the manual.
///
/// # Panics
/// If no page is found.
#[must_use]
pub fn pages() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).expect("the manual is in docs/");
    let names = docs.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pages: Vec<_> = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .collect();
    assert!(!pages.is_empty());
    pages.push("README.md".to_owned());
    pages.sort();
    pages
}

/// The text of the page `name`.
///
/// # Panics
/// If there is no such page.
#[must_use]
pub fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The fenced code blocks of the page `name`.
///
/// # Panics
/// If a block has no closing fence.
#[must_use]
pub fn examples(name: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut section = String::new();
    let mut is_open = false;
    for (line, number) in page(name).lines().zip(1..) {
        match line.strip_prefix("```") {
            Some("") if is_open => is_open = false,
            Some(language) => {
                assert!(!is_open, "{name}:{number}: a block has no end");
                is_open = true;
                examples.push(Example {
                    place: format!("{name}:{}", number + 1),
                    section: section.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            None if is_open => {
                if let Some(example) = examples.last_mut() {
                    example.text.push_str(line);
                    example.text.push('\n');
                }
            }
            None => {
                if let Some(heading) = line.strip_prefix('#') {
                    section = heading.trim_start_matches('#').trim().to_owned();
                }
            }
        }
    }
    assert!(!is_open, "{name}: a block has no end");
    examples
}

impl Example {
    /// The file name that the block's first line gives as a comment, such as `# /etc/h2o/sites/shop.yaml`.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?;
        name.starts_with('/').then_some(name)
    }

    /// The block's text with system directories replaced by directories below `@DIR@`.
    #[must_use]
    pub fn moved(&self) -> String {
        let mut text = String::new();
        let mut rest = &*self.text;
        while let Some((at, name)) = find_path(rest) {
            text.push_str(&rest[..at]);
            text.push_str("@DIR@");
            text.push_str(name);
            rest = &rest[at + name.len()..];
        }
        text + rest
    }

    /// The paths in system directories that the block mentions.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        let mut paths = Vec::new();
        let mut rest = &*self.text;
        while let Some((at, name)) = find_path(rest) {
            paths.push(name);
            rest = &rest[at + name.len()..];
        }
        paths
    }
}

/// A file with a ticket key, as the directive `ssl-session-resumption` describes it.
const TICKET_KEYS: &str = "- name: 00112233445566778899aabbccddeeff
  cipher: aes-128-cbc
  hash: sha256
  key: 000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f
  not_before: 0
  not_after: 9999999999
";

/// Creates in the folder what the examples mention: directories, files, and certificates that are valid for their host names.
pub fn furnish<'a>(folder: &Folder, examples: impl Iterator<Item = &'a Example> + Clone) {
    for path in examples.clone().flat_map(Example::paths) {
        let path = path.trim_start_matches('/');
        let is_file = Path::new(path).extension().is_some()
            || path.ends_with("log") && !path.ends_with("qlog");
        // The server makes the directory of a cache itself.
        if !is_file && !path.contains('*') && !path.starts_with("var/cache/") {
            folder.make_dir(path);
            continue;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            folder.make_dir(parent);
        }
        if [".pem", ".crt", ".key", ".pub"]
            .iter()
            .any(|it| path.ends_with(it))
        {
            let names = names(examples.clone());
            certify(folder, path, &names);
        } else if [".html", ".ico", ".htpasswd"]
            .iter()
            .any(|it| path.ends_with(it))
        {
            folder.write(path, "");
        } else if path.ends_with("tickets.yaml") {
            folder.write(path, TICKET_KEYS);
        } else if path.ends_with(".sh") {
            let program = folder.write(path, "#!/bin/sh\n");
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(program, executable).expect("the test owns the program");
        }
    }
}

/// Creates one key, `manual.key`, and one certificate, `manual.crt`, in the folder, unless they exist; `path` becomes a copy of one of
/// them.
fn certify(folder: &Folder, path: &str, names: &[String]) {
    let [key, certificate] = ["manual.key", "manual.crt"];
    if !folder.at(key).exists() {
        let names: Vec<_> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let _ = openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "90",
            "-keyout",
            &folder.name_of(key),
            "-out",
            &folder.name_of(certificate),
            "-subj",
            "/CN=manual",
            "-addext",
            &format!("subjectAltName={}", names.join(",")),
        ])
        .success();
    }
    if path.ends_with(".pub") {
        let args = ["pkey", "-in", &folder.name_of(key), "-pubout"];
        folder.write(path, openssl(&args).success());
        return;
    }
    let is_key = path.contains("key");
    let made = folder.read(if is_key { key } else { certificate });
    folder.write(path, made);
}

/// The host names that the examples mention.
fn names<'a>(examples: impl Iterator<Item = &'a Example>) -> Vec<String> {
    let is_other = |c: char| !(c.is_ascii_alphanumeric() || "-.*".contains(c));
    let words = examples.flat_map(|example| example.text.split(is_other));
    let mut names: Vec<_> = words
        .filter(|word| word.ends_with(".com") || word.ends_with(".test"))
        .map(str::to_owned)
        .collect();
    names.push("localhost".to_owned());
    names.sort();
    names.dedup();
    names
}

/// Finds the first path in a system directory in the text. Returns its offset and the path.
fn find_path(text: &str) -> Option<(usize, &str)> {
    let starts = text.match_indices('/').map(|(at, _)| at).filter(|&at| {
        let is_start = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '@');
        is_start
            && SYSTEM_DIRECTORIES
                .iter()
                .any(|directory| text[at..].starts_with(directory))
    });
    let at = starts.min()?;
    let is_end = |c: char| c.is_whitespace() || "\"',;]}|)$`".contains(c);
    let len = text[at..].find(is_end).unwrap_or(text.len() - at);
    Some((at, text[at..at + len].trim_end_matches(['.', ':', '/'])))
}
