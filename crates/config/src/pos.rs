//! Positions in configuration files.

use std::sync::Arc;

/// A position in a configuration file; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pos {
    file: Arc<str>,
    line: u32,
    column: u32,
}

impl Pos {
    /// The position at `line` and `column`, which both count from 1.
    #[must_use]
    pub fn new(file: Arc<str>, line: u32, column: u32) -> Self {
        Self { file, line, column }
    }

    /// The path of the file, as given on the command line or by `!file`.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The number of the line, counted from 1.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line
    }

    /// The number of the character in the line, counted from 1.
    #[must_use]
    pub fn column(&self) -> u32 {
        self.column
    }
}
