//! Reads the files of a configuration with the rights of the starting user, even after the server has given these
//! rights up.

use std::io;
use std::path::Path;

use h2o_config::{OsSource, Source};

/// The file system as the source of a configuration, read with the rights of the starting user.
pub(crate) struct Files;

impl Source for Files {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        h2o_opener::will_read(path);
        match OsSource.read(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                h2o_opener::read(Path::new(path))
            }
            read => read,
        }
    }

    fn env(&self, name: &str) -> Option<String> {
        OsSource.env(name)
    }

    fn glob(&self, pattern: &str) -> io::Result<Vec<String>> {
        h2o_opener::will_expand(pattern);
        h2o_opener::expand(pattern).unwrap_or_else(|| OsSource.glob(pattern))
    }
}
