//! URLs of backends.

use h2o_upstream::{BackendHost, BackendUrl};

/// The parts of a parsed URL, put together again, are parsed into the same parts.
///
/// # Panics
/// If an invariant does not hold.
pub fn backend_url(input: &[u8]) {
    let Some(url) = std::str::from_utf8(input).ok().and_then(BackendUrl::parse) else {
        return;
    };
    let path =
        std::str::from_utf8(&url.path).expect("the path is a part of the URL, which is UTF-8");
    let again = format!("{}://{}{path}", url.scheme.as_str(), url.authority);
    assert_eq!(BackendUrl::parse(&again).as_ref(), Some(&url), "{again}");
    assert!(url.path.starts_with(b"/") && h2o_http::is_visible(&url.path));
    assert!(url.port < u16::MAX && !url.tls_name().is_empty());
    match &url.host {
        BackendHost::Unix(path) => {
            let path = path
                .to_str()
                .expect("the path is a part of the URL, which is UTF-8");
            assert!(url.authority.starts_with(&format!("[unix:{path}]")));
        }
        BackendHost::Ip(_) | BackendHost::Name(_) => {
            let (host, port) = h2o_http::authority::split(url.authority.as_bytes())
                .expect("the authority is one that other servers accept");
            assert_eq!(port.unwrap_or(url.scheme.default_port()), url.port);
            let name = String::from_utf8_lossy(host).to_ascii_lowercase();
            assert_eq!(name.trim_matches(['[', ']']), url.tls_name());
        }
    }
}
