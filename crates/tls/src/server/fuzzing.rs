//! Entry points for fuzzing.

use crate::server::client_hello::{Greeting, Seen};
use crate::server::server_name;

/// What a [`Greeting`] has seen, without what it borrows.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    NeedMore,
    /// With the place of a name to hide, and whether there is one to choose by.
    Hello(Option<usize>, bool),
    ClearText,
    Unreadable,
}

fn look(greeting: &mut Greeting, received: &[u8]) -> Kind {
    match greeting.look_at(received) {
        Seen::NeedMore => Kind::NeedMore,
        Seen::Hello(hello) => Kind::Hello(hello.odd_name_at, hello.server_name.is_some()),
        Seen::ClearText => Kind::ClearText,
        Seen::Unreadable => Kind::Unreadable,
    }
}

/// The first octets of a client: seen alike however they come in, and a hidden name is gone for rustls and still there for the
/// handshake's hash.
///
/// # Panics
/// If an invariant does not hold.
pub fn client_hello(input: &[u8]) {
    let mut greeting = Greeting::default();
    let kind = look(&mut greeting, input);
    let mut in_pieces = Greeting::default();
    let mut ends = (0..input.len())
        .step_by(1 + input.len() / 64)
        .chain([input.len()]);
    let first = ends.find_map(|end| {
        let kind = look(&mut in_pieces, &input[..end]);
        (kind != Kind::NeedMore || end == input.len()).then_some(kind)
    });
    assert_eq!(first.as_ref(), Some(&kind));
    let Kind::Hello(Some(at), has_name) = kind else {
        return;
    };
    assert!(!has_name, "a name counts and is hidden");
    let original = greeting.message().to_vec();
    let rewritten = greeting.with_hidden_name(input, at);
    let mut again = Greeting::default();
    assert_eq!(look(&mut again, &rewritten), Kind::Hello(None, false));
    assert_ne!(again.message(), original);
    assert_eq!(server_name::restored(again.message()), original);
}
