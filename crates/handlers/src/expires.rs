//! The directive `expires`, which tells clients how long they may keep a response.

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass};
use h2o_exchange::{Exchange, Filter, FilterResult, Response, Scope};
use h2o_http::{Headers, Known, Name, escape};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "expires",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "`OFF`, or a number and one of `second`, `minute`, `hour`, `day`, `month`, `year`",
    default: "",
    help: "Adds `cache-control: max-age=SECONDS` to successful responses and redirects; if there is a `cache-control` \
           header already, it is extended. A month has 30 days and a year 365 (H2O sends thirty times that for a year). \
           `OFF` cancels the value of an outer level.",
    apply: |scope, command| {
        let max_age = read(command)?;
        *scope.edit::<Expires>() = Expires(max_age);
        Ok(())
    },
}];

/// The element `max-age=SECONDS` that is added to `cache-control`; `None` for none.
#[derive(Clone, Debug, Default)]
struct Expires(Option<Box<str>>);

/// The units of time with their length in seconds. The name may continue, as in `days`.
const UNITS: [(&str, u64); 6] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 60 * 60),
    ("day", 24 * 60 * 60),
    ("month", 30 * 24 * 60 * 60),
    ("year", 365 * 24 * 60 * 60),
];

const UNIT_NAMES: &str = "units: second, minute, hour, day, month, year";

/// The unit that an abbreviation such as `d` means in nginx and Caddy. `m` means minutes there, so months have no
/// abbreviation.
fn abbreviated(unit: &str) -> Option<&'static str> {
    match unit.to_ascii_lowercase().as_str() {
        "s" | "sec" => Some("second"),
        "m" | "min" => Some("minute"),
        "h" => Some("hour"),
        "d" => Some("day"),
        "y" => Some("year"),
        _ => None,
    }
}

fn read(command: &Command<'_>) -> Result<Option<Box<str>>, Error> {
    let text = command.node.scalar()?;
    if text.eq_ignore_ascii_case("OFF") {
        return Ok(None);
    }
    let malformed = || {
        command
            .error("failed to parse the value, should be in form of: `<number> <unit>` or `OFF` (see --help)")
            .with_hint(format!("such as `1 day`; {UNIT_NAMES}"))
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_ascii();
    let number: u64 = number.parse().map_err(|_| malformed())?;
    if unit.is_empty() {
        return Err(malformed());
    }
    let seconds = UNITS
        .iter()
        .find(|(name, _)| {
            let start = unit.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name))
        })
        .map(|(_, seconds)| seconds)
        .ok_or_else(|| {
            let error = command.error(format!("unknown unit:`{unit}` (see --help)"));
            error.with_hint(match abbreviated(unit) {
                Some(name) => format!("write `{number} {name}`; {UNIT_NAMES}"),
                None => UNIT_NAMES.to_owned(),
            })
        })?;
    let seconds = number.checked_mul(*seconds).ok_or_else(malformed)?;
    Ok(Some(format!("max-age={seconds}").into()))
}

pub(crate) fn filter(scope: &Scope) -> Option<Box<dyn Filter>> {
    let max_age = scope.settings.peek::<Expires>()?.0.clone()?;
    Some(Box::new(ExpiresFilter { max_age }))
}

struct ExpiresFilter {
    max_age: Box<str>,
}

impl Filter for ExpiresFilter {
    fn on_response(&self, _: &mut Exchange, response: &mut Response) -> FilterResult {
        // H2O compatibility: responses with the status 300 or 308 get no `max-age`, as in H2O, although caches may keep
        // them as well.
        if matches!(
            response.status.as_u16(),
            200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307
        ) {
            add_directive(&mut response.headers, self.max_age.as_bytes());
        }
        FilterResult::Continue
    }
}

/// Adds an element to the last `cache-control` field, or as a new field if there is none. Does nothing if the response
/// has the element already.
fn add_directive(headers: &mut Headers, element: &[u8]) {
    let mut count = 0;
    for value in headers.get_all(Known::CacheControl) {
        if escape::list_contains(value, element) {
            return;
        }
        count += 1;
    }
    if count == 0 {
        headers.push(Known::CacheControl, element);
        return;
    }
    headers.edit(|field| {
        if field.name != Name::Known(Known::CacheControl) {
            return None;
        }
        count -= 1;
        (count == 0).then(|| {
            Some(match field.value {
                b"" => element.to_vec(),
                value => [value, b", ", element].concat(),
            })
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, headers, request, shown};
    use h2o_exchange::Body;
    use h2o_http::StatusCode;

    const SETUP: Setup = Setup::new(DIRECTIVES, Some(filter));

    fn filtered(levels: [&str; 3], status: u16, before: &str) -> String {
        let site = SETUP.read(levels).unwrap_or_else(|error| panic!("{error}"));
        let mut exchange = request(site, "GET", "default", "/");
        let status = StatusCode::new(status).unwrap();
        let mut response = Response::new(status, headers(before), Body::Empty);
        let site = std::rc::Rc::clone(&exchange.site);
        for filter in &site.path(exchange.route).filters {
            assert!(matches!(
                filter.on_response(&mut exchange, &mut response),
                FilterResult::Continue
            ));
        }
        shown(&response.headers)
    }

    #[test]
    fn units_are_known_by_how_they_begin() {
        let cases = [
            ("1 second", 1),
            ("0 seconds", 0),
            ("2 minutes", 120),
            ("3 Hours", 10800),
            ("1day", 86400),
            ("1 DAY", 86400),
            ("2 months", 5_184_000),
            ("1 year", 31_536_000),
            ("1 yearling", 31_536_000),
        ];
        for (value, seconds) in cases {
            assert_eq!(
                filtered(["", "", &format!("expires: {value}")], 200, ""),
                format!("cache-control: max-age={seconds}"),
                "{value}"
            );
        }
    }

    #[test]
    fn max_age_is_added_to_what_is_there() {
        let age = "max-age=60";
        let cases = [
            ("", format!("cache-control: {age}")),
            (
                "cache-control: public",
                format!("cache-control: public, {age}"),
            ),
            ("cache-control: ", format!("cache-control: {age}")),
            (
                "cache-control: max-age=1",
                format!("cache-control: max-age=1, {age}"),
            ),
            (
                "cache-control: max-age=600",
                format!("cache-control: max-age=600, {age}"),
            ),
            (
                "cache-control: a, Max-Age=60",
                "cache-control: a, Max-Age=60".to_owned(),
            ),
            (
                "cache-control: a\netag: e\ncache-control: b\nvary: v",
                format!("cache-control: a\netag: e\ncache-control: b, {age}\nvary: v"),
            ),
            (
                "cache-control: max-age=60\ncache-control: b",
                "cache-control: max-age=60\ncache-control: b".to_owned(),
            ),
        ];
        for (before, want) in cases {
            assert_eq!(
                filtered(["", "", "expires: 1 minute"], 200, before),
                want,
                "{before}"
            );
        }
    }

    #[test]
    fn only_some_statuses_get_it() {
        for status in 100..=599 {
            let want = [200, 201, 204, 206, 301, 302, 303, 304, 307].contains(&status);
            assert_eq!(
                !filtered(["expires: 1 day", "", ""], status, "").is_empty(),
                want,
                "{status}"
            );
        }
    }

    #[test]
    fn the_innermost_and_last_value_counts() {
        let cases = [
            (["expires: 1 day", "", ""], "cache-control: max-age=86400"),
            (
                ["expires: 1 day", "expires: 1 hour", ""],
                "cache-control: max-age=3600",
            ),
            (["expires: 1 day", "", "expires: off"], ""),
            (
                ["expires: off", "", "expires: 1 hour\nexpires: 1 second"],
                "cache-control: max-age=1",
            ),
        ];
        for (levels, want) in cases {
            assert_eq!(filtered(levels, 200, ""), want, "{levels:?}");
        }
        let site = SETUP.read(["expires: 1 day", "", "expires: OFF"]).unwrap();
        assert!(site.hosts[0].paths[0].filters.is_empty());
    }

    #[test]
    fn other_values_are_refused() {
        let form = "failed to parse the value, should be in form of: `<number> <unit>` or `OFF` (see --help)";
        let example = "such as `1 day`; ";
        let cases = [
            ("''", form, example),
            ("ON", form, example),
            ("1", form, example),
            ("day", form, example),
            ("-1 day", form, example),
            ("99999999999999999999 days", form, example),
            ("999999999999999999 years", form, example),
            ("1 week", "unknown unit:`week` (see --help)", ""),
            ("1.5 days", "unknown unit:`.5 days` (see --help)", ""),
            ("1 m", "unknown unit:`m` (see --help)", "write `1 minute`; "),
            ("1d", "unknown unit:`d` (see --help)", "write `1 day`; "),
        ];
        for (value, want, hint) in cases {
            assert_eq!(
                SETUP.refusal(&format!("expires: {value}")),
                format!("[f:1] in command expires, {want} (column 10; {hint}{UNIT_NAMES})"),
                "{value}"
            );
        }
        assert_eq!(
            SETUP.refusal("expires: [1 day]"),
            "[f:1] in command expires, argument cannot be a sequence (column 10; expected a scalar)"
        );
    }
}
