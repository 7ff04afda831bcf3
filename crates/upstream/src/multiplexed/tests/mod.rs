//! Conversations that are the same over HTTP/2 and HTTP/3, on a virtual clock.

mod content;
mod endings;
mod http2_server;
mod http3_server;
pub(crate) mod kit;
mod over_http3;
mod requests;

/// Makes a test of each conversation for each of the two protocols.
macro_rules! over_each_version {
    ($($name:ident),* $(,)?) => {
        mod http2 {
            $(
                #[test]
                fn $name() {
                    crate::http2::tests::kit::run(super::$name::<super::super::http2_server::Http2Server>());
                }
            )*
        }
        mod http3 {
            $(
                #[test]
                fn $name() {
                    crate::http2::tests::kit::run(super::$name::<super::super::http3_server::Http3Server>());
                }
            )*
        }
    };
}
use over_each_version;

use super::window;

#[test]
fn max_buffer_size_is_the_window() {
    for (size, want) in [
        (None, 192 * 1024),
        (Some(1), 1),
        (Some(70_000), 70_000),
        (Some(u64::MAX), u32::MAX),
    ] {
        assert_eq!(window(size), want, "{size:?}");
    }
}
