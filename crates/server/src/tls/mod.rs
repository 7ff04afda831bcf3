//! TLS on rustls.
