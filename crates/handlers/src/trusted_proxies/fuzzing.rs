//! Entry point for fuzzing: the fields in which proxies name clients.

use std::net::{Ipv4Addr, SocketAddr};

use super::hops;

/// Checks that no text of a client can hide the address that a proxy appends to it.
pub fn forwarded_fields(value: &[u8]) {
    let added = SocketAddr::new(Ipv4Addr::new(198, 51, 100, 7).into(), 0);
    let list = [value, b", 198.51.100.7"].concat();
    assert_eq!(hops::of_x_forwarded_for(&list).last(), Some(&Some(added)));
    let list = [value, b", for=198.51.100.7"].concat();
    assert_eq!(hops::of_forwarded(&list).last(), Some(&Some(added)));
}
