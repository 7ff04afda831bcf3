//! Compares two status reports, and describes what the server did between them in lines of text.

use super::report::{PathNumbers, Report};

/// Largest number of paths that are listed on the screen.
const MAX_PATHS: usize = 20;

/// The order in which paths are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The paths with the most requests come first.
    Requests,
    /// The paths whose requests take longest come first.
    Time,
}

/// The rates of one path between two status reports.
struct PathRates {
    name: String,
    requests: f64,
    errors: f64,
    millis: f64,
    total: f64,
}

/// Describes what the server did between two status reports, which were made `seconds` apart.
pub(super) fn lines(before: &Report, now: &Report, seconds: f64, order: Order) -> Vec<String> {
    let rate = |name: &str| per_second(before.number(name), now.number(name), seconds);
    let number = |name: &str| now.number(name);
    let mut lines = vec![
        format!(
            "h2o {}   up {}   threads {}",
            now.text("server-version"),
            uptime(number("uptime")),
            number("worker-threads")
        ),
        format!(
            "requests/s {:.1}   2xx {:.1}   3xx {:.1}   4xx {:.1}   5xx {:.1}",
            rate("traffic.requests"),
            rate("traffic.responses.2xx"),
            rate("traffic.responses.3xx"),
            rate("traffic.responses.4xx"),
            rate("traffic.responses.5xx")
        ),
        format!(
            "sent/s {}   received/s {}   memory {}   buffers {}",
            bytes(rate("traffic.bytes-sent")),
            bytes(rate("traffic.bytes-received")),
            bytes(number("memory.resident-bytes")),
            bytes(number("memory.buffers-bytes"))
        ),
        format!(
            "connections {} of {}   accepted/s {:.1}",
            number("connections"),
            number("max-connections"),
            rate("num-sessions")
        ),
    ];
    for version in ["http1", "http2", "http3"] {
        let [active, idle, ending] = ["active", "idle", "shutdown"]
            .map(|state| number(&format!("connections.{version}.{state}")));
        lines.push(format!(
            "  {version}   active {active}   idle {idle}   ending {ending}"
        ));
    }
    lines.push(String::new());
    match now.paths() {
        None => lines.push("paths are not counted: set `metrics: ON`".to_owned()),
        Some(paths) => {
            let rates = rates(&before.paths().unwrap_or_default(), paths, seconds, order);
            lines.push(" requests/s   mean ms    5xx/s      total  path".to_owned());
            lines.extend(rates.iter().take(MAX_PATHS).map(|path| {
                let PathRates {
                    name,
                    requests,
                    errors,
                    millis,
                    total,
                } = path;
                format!("{requests:11.1} {millis:9.2} {errors:8.1} {total:10}  {name}")
            }));
        }
    }
    let mut backends = now.backends();
    if !backends.is_empty() {
        // Backends that are down are listed first, since they matter most.
        backends.sort_by_key(|(is_up, ..)| *is_up != Some(false));
        lines.push(String::new());
        lines.push("backends".to_owned());
        lines.extend(backends.into_iter().map(|(is_up, url, place)| {
            let state = match is_up {
                Some(true) => "up",
                Some(false) => "down",
                None => "-",
            };
            format!("  {state:4}  {url}  for {place}")
        }));
    }
    lines
}

/// Computes what each path did between two reports, in the order in which the paths will be listed.
fn rates(
    before: &[PathNumbers],
    now: Vec<PathNumbers>,
    seconds: f64,
    order: Order,
) -> Vec<PathRates> {
    let rates = now.into_iter().map(|path| {
        let earlier = before.iter().find(|earlier| earlier.name == path.name);
        let [requests, errors, micros] = earlier.map_or([0.0; 3], |earlier| {
            [earlier.requests, earlier.errors, earlier.micros]
        });
        let count = (path.requests - requests).max(0.0);
        PathRates {
            requests: per_second(requests, path.requests, seconds),
            errors: per_second(errors, path.errors, seconds),
            millis: (path.micros - micros).max(0.0) / count.max(1.0) / 1000.0,
            total: path.requests,
            name: path.name,
        }
    });
    let mut rates: Vec<_> = rates.collect();
    let key = |path: &PathRates| match order {
        Order::Requests => (path.requests, path.total),
        Order::Time => (path.millis, path.requests),
    };
    rates.sort_by(|a, b| {
        let ((a1, a2), (b1, b2)) = (key(a), key(b));
        b1.total_cmp(&a1)
            .then(b2.total_cmp(&a2))
            .then_with(|| a.name.cmp(&b.name))
    });
    rates
}

/// Returns the rate at which a counter grew. The rate is not negative even if the server was restarted between the reports, so that
/// its counters began at 0 again.
fn per_second(before: f64, now: f64, seconds: f64) -> f64 {
    (now - before).max(0.0) / seconds.max(0.001)
}

fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.*} {}", usize::from(unit > 0), units[unit])
}

fn uptime(seconds: f64) -> String {
    let (days, hours, minutes) = (
        (seconds / 86400.0).floor(),
        (seconds / 3600.0).floor() % 24.0,
        (seconds / 60.0).floor() % 60.0,
    );
    if days > 0.0 {
        format!("{days}d {hours}h")
    } else if hours > 0.0 {
        format!("{hours}h {minutes}m")
    } else {
        format!("{minutes}m {}s", seconds % 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(requests: u32, slow: u32, micros: u32) -> Report {
        let text = format!(
            r#"{{"server-version": "1", "uptime": 90061, "worker-threads": 2, "traffic.requests": {requests},
            "traffic.bytes-sent": {}, "connections": 3, "max-connections": 1024, "connections.http2.idle": 3,
            "paths": [{{"host":"a","path":"/fast","requests":{requests},"errors":0,"micros":{requests}}},
            {{"host":"a","path":"/sl\u001bow","requests":{slow},"errors":{slow},"micros":{micros}}}],
            "backends": [{{"url":"http://b/","host":"a","path":"/","up":null}},
            {{"url":"http://c/","host":"a","path":"/","up":false}}]}}"#,
            requests * 1024
        );
        Report::parse(&text).expect("the text is a status report")
    }

    #[test]
    fn what_happened_between_two_reports_is_shown() {
        let (before, now) = (report(100, 10, 1000), report(300, 14, 41_000));
        let shown = lines(&before, &now, 2.0, Order::Requests);
        let want = [
            "h2o 1   up 1d 1h   threads 2",
            "requests/s 100.0   2xx 0.0   3xx 0.0   4xx 0.0   5xx 0.0",
            "sent/s 100.0 KiB   received/s 0 B   memory 0 B   buffers 0 B",
            "connections 3 of 1024   accepted/s 0.0",
            "  http1   active 0   idle 0   ending 0",
            "  http2   active 0   idle 3   ending 0",
            "  http3   active 0   idle 0   ending 0",
            "",
            " requests/s   mean ms    5xx/s      total  path",
            "      100.0      0.00      0.0        300  a/fast",
            "        2.0     10.00      2.0         14  a/sl?ow",
            "",
            "backends",
            "  down  http://c/  for a/",
            "  -     http://b/  for a/",
        ];
        assert_eq!(shown, want);
        let slowest = lines(&before, &now, 2.0, Order::Time);
        assert_eq!(slowest[9], want[10]);
        // The later report has smaller counters, as after a restart of the server.
        let restarted = lines(&now, &before, 2.0, Order::Requests);
        assert!(restarted[1].starts_with("requests/s 0.0 "), "{restarted:?}");
        assert!(restarted[10].ends_with(" 10  a/sl?ow"), "{restarted:?}");
    }

    #[test]
    fn a_server_without_metrics_has_no_paths() {
        let report = Report::parse(r#"{"paths": null}"#).expect("the text is a status report");
        let shown = lines(&report, &report, 1.0, Order::Time);
        assert_eq!(
            shown.last().unwrap(),
            "paths are not counted: set `metrics: ON`"
        );
        assert!(Report::parse("[]").is_none() && Report::parse("{").is_none());
    }
}
