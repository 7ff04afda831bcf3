//! Prints the response to a test request of `h2o mruby`, and checks the assertions about it.

use h2o_http::{Headers, StatusCode};
use h2o_server::TrialResponse;

use super::case::{Assertion, Case, Expected, Subject};

/// The status (399) with which a script delegates the request to the next handler.
pub(crate) const DELEGATES: u16 = 399;

/// A response, and the results of the assertions about it.
pub(crate) struct Report<'a> {
    case: &'a Case,
    response: &'a TrialResponse,
    /// The name of the test file; `None` if the request is from the command line.
    file: Option<&'a str>,
    /// The header fields of the response. They include the response fields by which a script sets request variables, one for each
    /// variable that was set.
    fields: Vec<(String, Vec<u8>)>,
    /// A line for each failed assertion or other failure.
    failures: Vec<String>,
}

impl<'a> Report<'a> {
    /// Checks the assertions of `case` about `response`. `file` is the test file that contains the case.
    pub(crate) fn new(case: &'a Case, response: &'a TrialResponse, file: Option<&'a str>) -> Self {
        let mut report = Self {
            case,
            response,
            file,
            fields: fields(response),
            failures: Vec::new(),
        };
        for assertion in &case.assertions {
            if let Err(found) = report.check(assertion) {
                let place = report.place(assertion.line);
                report
                    .failures
                    .push(format!("{place}{}: {found}", assertion.text));
            }
        }
        if case.assertions.is_empty() && response.exceptions > 0 {
            report
                .failures
                .push("the script raised an exception".into());
        }
        if let Some(failure) = &response.failure {
            report
                .failures
                .push(format!("the body is not complete: {failure}"));
        }
        report
    }

    /// Whether all assertions hold and nothing else failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failures.is_empty()
    }

    /// Returns one line if all assertions hold; otherwise also the whole response.
    pub(crate) fn brief(&self) -> String {
        let verdict = if self.is_good() { "ok  " } else { "FAIL" };
        let (place, title) = (self.place(self.case.line), &self.case.title);
        let mut text = format!("{verdict} {place}{title}: {}\n", self.summary());
        if !self.is_good() {
            text.push_str(&indented(&self.content()));
        }
        text + &self.complaints()
    }

    /// The whole response as text, for the terminal.
    pub(crate) fn whole(&self) -> String {
        let (title, summary) = (&self.case.title, self.summary());
        let content = indented(&self.content());
        format!("{title}: {summary}\n{content}{}", self.complaints())
    }

    fn place(&self, line: usize) -> String {
        self.file
            .map_or_else(String::new, |file| format!("{file}:{line}: "))
    }

    fn summary(&self) -> String {
        let status = self.response.status.as_u16();
        let next = if status == DELEGATES {
            " (the next handler answers)"
        } else {
            ""
        };
        let time = self.response.time.as_secs_f64() * 1e3;
        format!("{status}{next} in {time:.3} ms")
    }

    fn complaints(&self) -> String {
        let lines = self.failures.iter();
        lines.map(|line| format!("  * {line}\n")).collect()
    }

    /// The interim responses, and the header fields and the body of the response, as text.
    fn content(&self) -> String {
        let mut text = String::new();
        for (status, headers) in &self.response.informational {
            text.push_str(&interim(*status, headers));
        }
        for (name, value) in &self.fields {
            let value = String::from_utf8_lossy(value);
            text.push_str(&format!("{name}: {value}\n"));
        }
        if !self.response.body.is_empty() {
            let body = String::from_utf8_lossy(&self.response.body);
            let end = if body.ends_with('\n') { "" } else { "\n" };
            text.push_str(&format!("\n{body}{end}"));
        }
        text
    }

    /// Checks one assertion. The error says what the response has in place of the expected value.
    fn check(&self, assertion: &Assertion) -> Result<(), String> {
        match &assertion.subject {
            Subject::Status => {
                let status = self.response.status.as_u16().to_string();
                compare(&[status.as_bytes()], &assertion.expected)
            }
            Subject::Body => compare(&[&self.response.body], &assertion.expected),
            Subject::Log => compare(&[self.response.errors.as_bytes()], &assertion.expected),
            Subject::Field(name) => {
                let of_name = self.fields.iter().filter(|(other, _)| other == name);
                let values: Vec<&[u8]> = of_name.map(|(_, value)| &**value).collect();
                compare(&values, &assertion.expected)
            }
        }
    }
}

/// Checks whether one of the values meets the expectation of an assertion. The error says which values there are.
fn compare(values: &[&[u8]], expected: &Expected) -> Result<(), String> {
    let holds = match expected {
        Expected::Is(wanted) => values.contains(&&**wanted),
        Expected::Contains(part) => values.iter().any(|value| contains(value, part)),
        Expected::Absent => values.is_empty(),
    };
    if holds {
        return Ok(());
    }
    let shown = values
        .iter()
        .map(|value| format!("`{}`", String::from_utf8_lossy(value)));
    let shown: Vec<_> = shown.collect();
    Err(match &shown[..] {
        [] => "the response has no such field".into(),
        shown => format!("the value is {}", shown.join(" and ")),
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

fn fields(response: &TrialResponse) -> Vec<(String, Vec<u8>)> {
    let fields = response.headers.iter();
    let mut all: Vec<_> = fields
        .map(|field| (field.name.as_str().to_owned(), field.value.to_vec()))
        .collect();
    for (name, value) in &response.variables {
        let name = name.to_ascii_lowercase().replace('_', "-");
        all.push((format!("x-fallthru-set-{name}"), value.to_vec()));
    }
    all
}

fn interim(status: StatusCode, headers: &Headers) -> String {
    let fields = headers.iter();
    let lines = fields.map(|field| {
        let value = String::from_utf8_lossy(field.value);
        format!("{} {}: {value}\n", status.as_u16(), field.name.as_str())
    });
    lines.collect()
}

fn indented(text: &str) -> String {
    let lines = text.lines();
    lines
        .map(|line| {
            if line.is_empty() {
                "\n".to_owned()
            } else {
                format!("    {line}\n")
            }
        })
        .collect()
}
