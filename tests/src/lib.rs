//! End-to-end test kit: runs the real binary with a configuration for each test, against clients of other projects.
//!
//! A test writes a configuration with placeholders, starts the server, sends requests, and compares the responses as text:
//!
//! ```no_run
//! let server = h2o_tests::Setup::new(
//!     "listen: @PORT@\nhosts:\n  default:\n    paths:\n      /:\n        file.dir: @DIR@/www\n",
//! )
//! .file("www/a.txt", "hello")
//! .start();
//! server.ask("GET /a.txt").must_be("200 OK\ncontent-type: text/plain\n\nhello");
//! ```
//!
//! The binary is `$H2O_BIN`, or else the one that cargo built beside the tests. Every wait has a time limit; a server or client process
//! ends when the value that represents it is dropped.

mod backend;
pub mod certs;
mod clients;
mod folder;
mod installation;
pub mod manual;
mod message;
mod ocsp;
mod raw;
mod recipe;
mod server;
mod service;

pub use backend::{Backend, ClosedPort, FINE, Request, Talk};
pub use clients::{Output, browse, browse_patiently, curl, openssl, run, run_with_input, tool};
pub use folder::{Folder, MODIFIED, MODIFIED_TEXT};
pub use h2o_testkit::{Deadline, Random, eventually, http2, http3, quic};
pub use installation::install;
pub use message::Response;
pub use ocsp::{OcspAuthority, OcspResponder};
pub use raw::Raw;
pub use recipe::{RecipePage, ask_by_name};
pub use server::{Refused, Server, Setup, binary};
pub use service::{Service, free_port};
