//! HTTP/2 frame by frame: what a client may send wrong and what it gets for it, flow control to the byte, the form of
//! responses, and the order in which they share a connection.

mod establishment;
mod fields;
mod flow_control;
mod frames;
mod hpack;
mod kit;
mod limits;
mod priorities;
mod responses;
