//! Reads the addresses in the fields `x-forwarded-for` and `forwarded`, in the order in which they stand there: the
//! client first.

use std::net::{IpAddr, SocketAddr};

use memchr::memmem;

/// A function that reads the addresses in a field. `None` stands for an element that is not an address, such as
/// `unknown` or an obfuscated identifier (RFC 7239 §6.3).
pub(super) type Split = fn(&[u8]) -> Vec<Option<SocketAddr>>;

/// Reads the addresses in the value of an `x-forwarded-for` field.
pub(super) fn of_x_forwarded_for(value: &[u8]) -> Vec<Option<SocketAddr>> {
    let hops = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    // Empty elements of a list are ignored (RFC 9110 §5.6.1.2).
    hops.filter(|hop| !hop.is_empty()).map(parse_node).collect()
}

/// Reads the addresses in the value of a `forwarded` field (RFC 7239 §4): the parameter `for` of each element. Quotes
/// count only if all are closed: an open quote, which only a client can have written, must not hide the elements that
/// proxies have appended.
pub(super) fn of_forwarded(value: &[u8]) -> Vec<Option<SocketAddr>> {
    let mut hops = Vec::new();
    let (mut at, mut start) = (0, 0);
    let mut is_quoted = false;
    while let Some(&byte) = value.get(at) {
        match byte {
            b'"' => is_quoted = !is_quoted,
            // A backslash within quotes escapes the next character (RFC 9110 §5.6.4).
            b'\\' if is_quoted => at += 1,
            b',' if !is_quoted => {
                hops.push(&value[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    hops.push(&value[start..]);
    if is_quoted {
        hops = value.split(|&byte| byte == b',').collect();
    }
    let hops = hops.into_iter().map(<[u8]>::trim_ascii);
    hops.filter(|hop| !hop.is_empty())
        .map(|element| parse_node(for_parameter(element)?))
        .collect()
}

/// The value of the parameter `for` of an element, without quotes. `None` if the element has no such parameter, or
/// several.
fn for_parameter(element: &[u8]) -> Option<&[u8]> {
    // No address, port or name contains a `;`. So if a quoted value contains one, splitting there gives no valid `for`
    // parameter, or several.
    let mut values = element.split(|&byte| byte == b';').filter_map(|pair| {
        let (name, value) = pair.split_at(memchr::memchr(b'=', pair)?);
        name.trim_ascii()
            .eq_ignore_ascii_case(b"for")
            .then(|| value[1..].trim_ascii())
    });
    let value = values.next()?;
    if values.next().is_some() || memmem::find(value, b"\\").is_some() {
        return None;
    }
    match value {
        [b'"', inner @ .., b'"'] => Some(inner),
        value => Some(value),
    }
}

/// Reads an address with or without a port; IPv6 addresses may have brackets.
fn parse_node(node: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(node).ok()?;
    let address = match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, 0),
        Err(_) => match text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
        {
            Some(inner) => SocketAddr::new(IpAddr::V6(inner.parse().ok()?), 0),
            None => text.parse().ok()?,
        },
    };
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
