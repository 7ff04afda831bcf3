//! The engine room: workers, listeners, TLS, connection drivers, routing.

mod tls;
