//! A proxy whose limit of file descriptors is reached.

use h2o_tests::http2::{Frame, Http2, get};
use h2o_tests::{Backend, FINE, Folder, Setup, Talk, eventually};

use super::streaming::gate;

#[test]
fn connections_to_backends_do_not_take_the_descriptors_of_clients_and_files() {
    let (open, pass) = gate();
    let backend = Backend::start(move |talk: &mut Talk| {
        while let Some(request) = talk.read_request() {
            if request.target() == "/wait" {
                pass();
            }
            talk.send(FINE);
        }
    });
    let folder = Folder::new();
    folder.make_dir("files");
    folder.write("files/large", vec![b'x'; 3_000_000]);
    let config = format!(
        "num-threads: 1
max-connections: 100
http2-idle-timeout: 60
listen: @PORT@
hosts:
  default:
    paths:
      /files: {{ file.dir: '@DIR@/files' }}
      /: {{ proxy.reverse.url: '{}' }}
",
        backend.url("/")
    );
    let server = Setup::in_folder(folder, &config).descriptors(120).start();
    let mut client = Http2::open(server.port(), &[]);
    let streams: Vec<u32> = (0..100).map(|number| 2 * number + 1).collect();
    for &stream in &streams {
        client.send_frame(&Frame::request(stream, get("/wait")));
    }
    let answered = |client: &Http2| {
        let answers = streams.iter().map(|&stream| client.answer(stream));
        answers.filter(|answer| answer.is_ended).count()
    };
    // Requests for which the server cannot open a connection are answered with 503 at once.
    client.read_until("refusals", |client| answered(client) >= 40);
    eventually("the requests that were not refused, at the backend", || {
        client.ping();
        (backend.connections() + answered(&client) == 100).then_some(())
    });
    assert!(backend.connections() >= 20, "{}", backend.connections());
    for &stream in &streams {
        let answer = client.answer(stream);
        assert!(!answer.is_ended || answer.status() == 503, "{stream}");
    }
    server.wait_for_message("RLIMIT_NOFILE) is reached");
    let mut others: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for other in &mut others {
        other.send("GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(other.read_response("GET").body.len(), 3_000_000);
    }
    // That the server cannot open connections does not count as a failure of the backend.
    let address = format!("127.0.0.1:{}", backend.port());
    assert!(!server.messages().contains(&address));
    (0..100).for_each(|_| open.send(()).unwrap_or_default());
    client.read_until("the responses to all 100 requests", |client| {
        answered(client) == 100
    });
    assert_eq!(client.ask(201, &get("/")).text(), "fine");
}
