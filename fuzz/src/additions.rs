//! Files of users (`auth.basic`), and rewriting of URLs.

/// The input is a file of users; each of its lines is also used as the value of an `authorization` field.
///
/// # Panics
/// If an invariant does not hold.
pub fn htpasswd(input: &[u8]) {
    h2o_handlers::fuzzing::htpasswd(input);
}

/// The input is a regular expression, a line with the new URL, and a path that the rule is applied to.
///
/// # Panics
/// If an invariant does not hold.
pub fn rewrite(input: &[u8]) {
    let mut lines = input.splitn(3, |&byte| byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (expression, to, path) = (line(), line(), line());
    if let (Ok(expression), Ok(to)) = (std::str::from_utf8(expression), std::str::from_utf8(to)) {
        h2o_handlers::fuzzing::rewrite(expression, to, path);
    }
}
