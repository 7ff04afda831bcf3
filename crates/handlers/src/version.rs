//! Names and versions of the program and its TLS library.

/// The version of the program, as `h2o -v`, the `server` field and the status report show it.
pub const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The TLS library, as `h2o -v` and the status report show it.
pub const TLS_LIBRARY: &str = "rustls 0.23, aws-lc-rs 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tls_library_is_the_one_that_is_locked() {
        let lock = include_str!("../../../Cargo.lock");
        for part in TLS_LIBRARY.split(", ") {
            let (name, version) = part.split_once(' ').unwrap();
            let locked = format!("name = \"{name}\"\nversion = \"{version}.");
            assert!(lock.contains(&locked), "{part} is not in Cargo.lock");
        }
    }
}
