//! HTTP/2 frame by frame: how the server reacts to wrong frames, flow control to the byte, the form of responses, and the order in which
//! responses share a connection.

mod establishment;
mod fields;
mod flow_control;
mod frames;
mod hpack;
mod kit;
mod limits;
mod priorities;
mod responses;
