//! What access logs say about durations and bytes of the exchange with the backend.

use h2o_tests::Backend;

use super::kit::proxy;

#[test]
fn access_logs_tell_times_and_bytes_of_both_ways() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine";
    let backend = Backend::start(move |talk| {
        while talk.read_request().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(60));
            talk.send(answer);
        }
    });
    let elements: Vec<String> = [
        "request-bytes",
        "request-bytes-header",
        "request-bytes-body",
        "response-bytes",
        "response-bytes-header",
        "response-bytes-body",
        "idle-time",
        "connect-time",
        "request-time",
        "process-time",
        "response-time",
        "total-time",
    ]
    .iter()
    .map(|name| format!("%{{proxy.{name}}}x"))
    .collect();
    let log = format!(
        "access-log: {{ path: @DIR@/access-log, format: '%s {}' }}",
        elements.join(" ")
    );
    let server = proxy(&log, &backend);
    server
        .ask("POST /\nContent-Length: 5\n\nhello")
        .must_be("200 OK\n\nfine");
    let line = server.read_until("access-log", "\n");
    let columns: Vec<&str> = line.trim_end().split(' ').collect();
    assert_eq!(columns.len(), 13, "{line}");
    let sent = backend.received(0).len();
    let bytes = [sent, sent - 5, 5, answer.len(), answer.len() - 4, 4];
    let want: Vec<String> = bytes.iter().map(usize::to_string).collect();
    assert_eq!(columns[0], "200");
    assert_eq!(columns[1..7], want, "{line}");
    let times: Vec<f64> = columns[7..]
        .iter()
        .map(|time| time.parse().unwrap())
        .collect();
    assert!(
        times.iter().all(|time| (0.0..10.0).contains(time)),
        "{line}"
    );
    let (process, total) = (times[3], times[5]);
    assert!((0.05..5.0).contains(&process) && total >= process, "{line}");
}
