//! The status report of a server, as `h2o top` reads it. Values that the report lacks, because the server has another version,
//! count as 0 or empty.

use serde_json::Value;

/// A status report of the server.
pub(super) struct Report(Value);

/// The counters of one path in a status report.
pub(super) struct PathNumbers {
    /// Host and path, as in the configuration.
    pub(super) name: String,
    pub(super) requests: f64,
    /// Number of responses with a status of 500 to 599.
    pub(super) errors: f64,
    /// Sum of the durations of all requests, in microseconds.
    pub(super) micros: f64,
}

impl Report {
    /// Parses a status report; `None` if the text is not one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let report: Value = serde_json::from_str(text).ok()?;
        report.is_object().then_some(Self(report))
    }

    pub(super) fn number(&self, name: &str) -> f64 {
        number(&self.0, name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        text(&self.0, name)
    }

    /// The counters of the paths; `None` if the server does not count by path.
    pub(super) fn paths(&self) -> Option<Vec<PathNumbers>> {
        let paths = self.0.get("paths")?.as_array()?;
        let path = |path: &Value| PathNumbers {
            name: text(path, "host") + &text(path, "path"),
            requests: number(path, "requests"),
            errors: number(path, "errors"),
            micros: number(path, "micros"),
        };
        Some(paths.iter().map(path).collect())
    }

    /// The backends of the report. For each: whether it is up, if that is known; its URL; and the host and path that use it.
    pub(super) fn backends(&self) -> Vec<(Option<bool>, String, String)> {
        let backends = self.0.get("backends").and_then(Value::as_array);
        let backend = |backend: &Value| {
            let is_up = backend.get("up").and_then(Value::as_bool);
            let place = text(backend, "host") + &text(backend, "path");
            (is_up, text(backend, "url"), place)
        };
        backends.into_iter().flatten().map(backend).collect()
    }
}

fn number(object: &Value, name: &str) -> f64 {
    object.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

/// Reads a text from the report, and replaces characters that would control the terminal.
fn text(object: &Value, name: &str) -> String {
    let text = object.get(name).and_then(Value::as_str).unwrap_or_default();
    text.replace(char::is_control, "?")
}
