//! What a request for a cached file costs. Not run by default:
//! `cargo test --release -p h2o-handlers cost -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use h2o_exchange::Outcome;
use h2o_http::{Known, Name};

use super::super::testing::{kit, let_files_settle};
use super::{tree, write};

const REQUESTS: u32 = 200_000;

/// What a browser sends, as far as it is among the known names.
const FIELDS: [(Name<'static>, &[u8]); 8] = [
    (
        Name::Known(Known::UserAgent),
        b"Mozilla/5.0 (X11; Linux x86_64)",
    ),
    (Name::Known(Known::Accept), b"text/html,*/*;q=0.8"),
    (Name::Known(Known::AcceptLanguage), b"en"),
    (
        Name::Known(Known::AcceptEncoding),
        b"gzip, deflate, br, zstd",
    ),
    (Name::Known(Known::SecFetchDest), b"document"),
    (Name::Known(Known::SecFetchMode), b"navigate"),
    (Name::Other("sec-gpc"), b"1"),
    (Name::Known(Known::Priority), b"u=0, i"),
];

#[test]
#[ignore = "measures"]
#[expect(clippy::disallowed_methods, reason = "measures real time")]
fn cached_small_file() {
    let_files_settle();
    let root = tree(&[]);
    write(root.path(), "a.html", vec![b'x'; 1280]);
    write(root.path(), "index.html", vec![b'x'; 1280]);
    for (setting, targets) in [("OFF", ["/a.html", "/"]), ("ON", ["/a.html", "/"])] {
        for target in targets {
            for turns in [false, true] {
                let config = format!("file.dir: ROOT\nfile.send-compressed: {setting}");
                let kit = kit(root.path(), &config);
                let codings = "gzip, deflate, br, zstd";
                kit.ask(target).field(Known::AcceptEncoding, codings).send();
                let exchange = kit.exchange(target);
                let mut exchange = exchange.borrow_mut();
                for (name, value) in FIELDS {
                    exchange.request.headers.push(name, value);
                }
                let handler = kit.handler();
                let started = Instant::now();
                for _ in 0..REQUESTS {
                    if turns {
                        kit.worker.clock.begin_turn();
                    }
                    let Outcome::Done(response) = handler.on_request(&mut exchange) else {
                        panic!("the file is cached")
                    };
                    exchange.sent.headers = black_box(response).headers;
                    kit.reuse(&mut exchange);
                }
                let each = started.elapsed() / REQUESTS;
                let turn = if turns { "a turn each" } else { "one turn" };
                println!("send-compressed {setting}, {target}, {turn}: {each:?}");
            }
        }
    }
}
