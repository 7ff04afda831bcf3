//! Entry points for fuzzing the ClientHello.

use crate::server::client_hello::{ClientHelloReader, HelloStatus};
use crate::server::server_name;

/// Result of a [`ClientHelloReader`], without borrows.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    NeedMore,
    /// The ClientHello is complete. The values are the position of a name to hide, and whether there is a server name by which to
    /// choose a configuration.
    Hello(Option<usize>, bool),
    ClearText,
    Malformed,
}

fn look(reader: &mut ClientHelloReader, received: &[u8]) -> Kind {
    match reader.read(received) {
        HelloStatus::NeedMore => Kind::NeedMore,
        HelloStatus::Complete(hello) => {
            Kind::Hello(hello.hidden_name_at, hello.server_name.is_some())
        }
        HelloStatus::ClearText => Kind::ClearText,
        HelloStatus::Malformed => Kind::Malformed,
    }
}

/// Reads the first bytes of a client: the result must not depend on how they are split, and a hidden name must be
/// invisible to rustls and still part of the handshake's hash.
///
/// # Panics
/// If an invariant is violated.
pub fn client_hello(input: &[u8]) {
    let mut reader = ClientHelloReader::default();
    let kind = look(&mut reader, input);
    let mut in_pieces = ClientHelloReader::default();
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
    assert!(
        !has_name,
        "a ClientHello whose server name is to be hidden from rustls also has a valid server name"
    );
    let original = reader.message().to_vec();
    let rewritten = reader.with_hidden_name(input, at);
    let mut again = ClientHelloReader::default();
    assert_eq!(look(&mut again, &rewritten), Kind::Hello(None, false));
    assert_ne!(again.message(), original);
    assert_eq!(server_name::restored(again.message()), original);
}
