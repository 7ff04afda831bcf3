//! The listening sockets: opens them, or takes those that a supervisor has opened.

pub(crate) mod bind;
pub(crate) mod inherited;
