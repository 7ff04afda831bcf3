//! Responses that the proxy forwards: the client understands what the backend's response means.

mod backend;
mod handed;
mod http1;
mod http2;
mod options;
mod request;

use h2o_upstream::Protocol;

use crate::http2_messages;
use crate::{cuts, pieces};
use options::Options;
use request::ask;

/// The input is three bytes of [`Options`], then what a backend sends: bytes over HTTP/1, or text from which
/// [`http2_messages::write_response`] makes frames. The response goes to a client over HTTP/1 and to one over HTTP/2, and is read there by
/// other code.
///
/// # Panics
/// If an invariant does not hold.
pub fn proxy_responses(input: &[u8]) {
    let Some((&options, text)) = input.split_first_chunk() else {
        return;
    };
    let options = Options(options);
    let frames;
    let bytes = match options.backend() {
        Protocol::Http1 => text,
        Protocol::Http2 | Protocol::Http3 => {
            frames = http2_messages::write_response(text, options.framing());
            &frames
        }
        Protocol::Fastcgi => unreachable!("no fuzz target sends requests by FastCGI"),
    };
    let proxied = options.proxied();
    let ask = |client| ask(&proxied, options, client);
    let (Some(by_http1), Some(by_http2)) = (ask(Protocol::Http1), ask(Protocol::Http2)) else {
        return;
    };
    let whole = by_http1.read([bytes].into_iter());
    for cuts in cuts(bytes) {
        let parts = by_http1.read(pieces(bytes, &cuts));
        assert_eq!(parts, whole, "input cut at {cuts:?}");
    }
    by_http1.check_ends(bytes, &whole);
    // The backend's response is read the same whichever version of HTTP the client speaks.
    assert_eq!(by_http2.read([bytes].into_iter()), whole);
    by_http1.hand_on(&whole);
    by_http2.hand_on(&whole);
}
