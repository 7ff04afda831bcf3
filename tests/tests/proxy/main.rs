//! The reverse proxy between clients and back ends, both byte by byte and of other people's making.

mod aborts;
mod broken;
mod buffering;
mod descriptors;
mod early;
mod expectations;
mod health;
mod hostile;
mod http2_upstream;
mod informational;
mod kit;
mod logs;
mod mapping;
mod measures;
mod pool;
mod real;
mod real_http2;
mod refused;
mod refused_streams;
mod request;
mod rerouted;
mod slow;
mod splice;
mod streaming;
mod tunnel;
mod websocket;
