//! The source from which configuration files and environment variables are read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

/// Maximum length of a configuration file in bytes. Larger files, such as `!file /dev/zero`, are refused.
const MAX_FILE_LEN: u64 = 64 << 20;

/// The source of the files and environment variables that loading a configuration reads.
pub trait Source {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// The text of the error becomes the reason in the configuration error.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The value of an environment variable; `None` if it is not set.
    fn env(&self, name: &str) -> Option<String>;

    /// The paths of the files that match a pattern with `*`, `?` and `[...]`, in any order.
    ///
    /// # Errors
    /// As for [`Self::read`], the text of the error becomes the reason in the configuration error.
    fn glob(&self, pattern: &str) -> io::Result<Vec<String>>;
}

/// The file system and environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsSource;

impl Source for OsSource {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        File::open(path)?
            .take(MAX_FILE_LEN + 1)
            .read_to_end(&mut content)?;
        if content.len() as u64 > MAX_FILE_LEN {
            return Err(io::Error::other(format!(
                "the file is larger than {MAX_FILE_LEN} bytes"
            )));
        }
        Ok(content)
    }

    fn env(&self, name: &str) -> Option<String> {
        // Names that no environment variable can have are refused first, because `var_os` panics on them.
        if name.is_empty() || name.contains(['=', '\0']) {
            return None;
        }
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn glob(&self, pattern: &str) -> io::Result<Vec<String>> {
        let mut paths = Vec::new();
        for entry in glob::glob_with(pattern, GLOB).map_err(io::Error::other)? {
            let path = entry.map_err(io::Error::from)?;
            if path.is_dir() {
                continue;
            }
            let path = path.into_os_string().into_string();
            paths.push(path.map_err(|path| {
                io::Error::other(format!("file name is not UTF-8: {}", path.display()))
            })?);
        }
        Ok(paths)
    }
}

/// How patterns match: as in a shell, `*` matches neither `/` nor a leading dot.
const GLOB: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Configuration files in memory, for tests, fuzzing and generated configurations.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    files: BTreeMap<String, Vec<u8>>,
    variables: BTreeMap<String, String>,
}

impl Memory {
    /// A source without files and environment variables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file to the source.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.into(), content.into());
        self
    }

    /// Adds an environment variable to the source.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}

impl Source for Memory {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let not_found = || io::Error::new(io::ErrorKind::NotFound, "No such file or directory");
        self.files.get(path).cloned().ok_or_else(not_found)
    }

    fn env(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn glob(&self, pattern: &str) -> io::Result<Vec<String>> {
        let pattern = glob::Pattern::new(pattern).map_err(io::Error::other)?;
        Ok(self
            .files
            .keys()
            .filter(|path| pattern.matches_with(path, GLOB))
            .cloned()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_on_disk() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(OsSource.read(manifest).unwrap().starts_with(b"[package]"));
        assert_eq!(
            OsSource.read("/no/such/file").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let pattern = concat!(env!("CARGO_MANIFEST_DIR"), "/src/s*rc?.rs");
        let found = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source.rs");
        assert_eq!(OsSource.glob(pattern).unwrap(), [found]);
        assert!(
            OsSource
                .glob(env!("CARGO_MANIFEST_DIR"))
                .unwrap()
                .is_empty(),
            "a pattern matches files only, and no directories"
        );
        assert!(OsSource.read("/dev/zero").is_err());
    }

    #[test]
    fn impossible_variable_names_are_unset() {
        assert!(OsSource.env("PATH").is_some());
        for name in ["", "=", "A=B", "\0", "H2O_TEST_UNSET_VARIABLE"] {
            assert_eq!(OsSource.env(name), None, "{name:?}");
        }
    }
}
