//! Content negotiation by `accept` (RFC 9110 §12.5.1).

/// Whether a client with these `accept` values accepts the media type `name`: a value names it literally (`*/*` does not
/// count) with a weight above 0.
pub fn names_type<'a>(values: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> bool {
    let mut elements = values.flat_map(|value| value.split(|&byte| byte == b','));
    elements.any(|element| {
        let mut parts = element.split(|&byte| byte == b';');
        let range = parts.next().unwrap_or_default().trim_ascii();
        range.eq_ignore_ascii_case(name) && quality(parts).is_some_and(|quality| quality > 0)
    })
}

/// Whether a client with these `accept` values prefers HTML to plain text. `*/*` does not count as HTML: programs send it,
/// while browsers name `text/html`.
pub fn prefers_html<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut html = 0;
    // The client's weights for `text/plain`, `text/*` and `*/*`. The most specific of those that it sent is its weight for
    // plain text.
    let mut plain: [Option<u16>; 3] = [None; 3];
    for element in values.flat_map(|value| value.split(|&byte| byte == b',')) {
        let mut parts = element.split(|&byte| byte == b';');
        let range = parts.next().unwrap_or_default().trim_ascii();
        let Some(quality) = quality(parts) else {
            continue;
        };
        let slot = if range.eq_ignore_ascii_case(b"text/html") {
            html = html.max(quality);
            continue;
        } else if range.eq_ignore_ascii_case(b"text/plain") {
            &mut plain[0]
        } else if range.eq_ignore_ascii_case(b"text/*") {
            &mut plain[1]
        } else if range == b"*/*" {
            &mut plain[2]
        } else {
            continue;
        };
        *slot = Some(slot.unwrap_or(0).max(quality));
    }
    match plain {
        [Some(plain), ..] => html > plain,
        [None, Some(plain), _] | [None, None, Some(plain)] => html > 0 && html >= plain,
        [None, None, None] => html > 0,
    }
}

/// The weight `q` among the parameters of a media range, in thousandths (RFC 9110 §12.4.2); `None` for a malformed weight.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let weight = parameters.find_map(|parameter| {
        let parameter = parameter.trim_ascii();
        let (name, value) = parameter.split_at_checked(2)?;
        name.eq_ignore_ascii_case(b"q=").then_some(value)
    });
    let Some(weight) = weight else {
        return Some(1000);
    };
    let (whole, fraction) = match weight {
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (*whole, fraction),
        [whole] => (*whole, &b""[..]),
        _ => return None,
    };
    let mut quality = match whole {
        b'0' => 0,
        b'1' => 1,
        _ => return None,
    };
    for place in 0..3 {
        let digit = fraction.get(place).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return None;
        }
        quality = quality * 10 + u16::from(digit - b'0');
    }
    (quality <= 1000).then_some(quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_with_weight_zero_is_not_named() {
        let cases = [
            ("application/x", true),
            (
                "text/plain;q=0.5, Application/X ; version=1.0.0;q=0.1",
                true,
            ),
            ("application/x;q=0", false),
            ("application/x;q=7", false),
            ("application/*, */*", false),
            ("", false),
        ];
        for (value, want) in cases {
            let got = names_type(std::iter::once(value.as_bytes()), b"application/x");
            assert_eq!(got, want, "{value}");
        }
    }

    #[test]
    fn html_is_not_for_clients_that_do_not_name_it() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        let cases: &[(&[&str], bool)] = &[
            (&[], false),
            (&["*/*"], false),
            (&["text/*"], false),
            (&["application/json, text/plain, */*"], false),
            (&["text/html, text/plain"], false),
            (&["text/html;q=0.5, text/plain"], false),
            (&["text/html;q=0"], false),
            (&["text/html;q=0.2, */*;q=0.3"], false),
            (
                &["text/html;q=2", "text/html;q=1.001", "text/html;q=x"],
                false,
            ),
            (&["text/html;q=0.1234"], false),
            (&[browser], true),
            (&["text/html"], true),
            (&["TEXT/HTML;Q=0.001"], true),
            (&["text/html, application/xhtml+xml, */*"], true),
            (&["text/plain;q=0.5", "text/html ; level=1 ; q=0.51"], true),
            (&["text/html;q=0.5, text/*;q=0.5, text/plain;q=0.4"], true),
        ];
        for (values, want) in cases {
            let got = prefers_html(values.iter().map(|value| value.as_bytes()));
            assert_eq!(got, *want, "{values:?}");
        }
    }
}
