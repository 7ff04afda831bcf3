//! Levels of a configuration, with directives made for the test: what an inner level inherits, keeps, and passes on.

use std::sync::Arc;

use h2o_config::{Directive, Error, Level, Levels, Memory, Pass, Registry};
use h2o_exchange::{
    Exchange, Features, Filter, FilterResult, Handler, Logger, Outcome, PathRoute, Response, Scope,
};
use h2o_http::{Headers, Known};

/// The values of the test's directives `number` and `word`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Set {
    number: u32,
    words: Vec<String>,
}

/// Values that the directives of every level have added.
#[derive(Clone, Debug, Default)]
struct Collected(Vec<String>);

/// The routes that the test's directive `inner` has created, in file order.
#[derive(Clone, Default)]
struct CreatedRoutes(Vec<RouteMade>);

/// A route: its path, the values of the test's directives `number` and `word`, and how many handlers, loggers and
/// filters it has.
type RouteMade = (String, u32, Vec<String>, usize, usize, usize);

struct Answer;
impl Handler for Answer {
    fn on_request(&self, _: &mut Exchange) -> Outcome {
        Outcome::Done(Response::not_found())
    }
}

struct Traced {
    wants_trace: bool,
    hints: Option<Headers>,
}
impl Filter for Traced {
    fn on_response(&self, _: &mut Exchange, _: &mut Response) -> FilterResult {
        FilterResult::Continue
    }
    fn wants_trace(&self) -> bool {
        self.wants_trace
    }
    fn early_hints(&self) -> Option<&Headers> {
        self.hints.as_ref()
    }
}

struct Log {
    wants_unfiltered: bool,
}
impl Logger for Log {
    fn log(&self, _: &Exchange) {}
    fn wants_unfiltered_headers(&self) -> bool {
        self.wants_unfiltered
    }
}

static DIRECTIVES: &[Directive<Scope>] = &[
    Directive::setting("number", "N", "0", "Sets the number.", |scope, command| {
        scope.edit::<Set>().number = command.node.integer("a number", 0..=1000)?;
        Ok(())
    }),
    Directive::setting("word", "TEXT", "none", "Adds a word.", |scope, command| {
        let word = command.node.scalar()?.to_owned();
        scope.edit::<Set>().words.push(word);
        Ok(())
    }),
    Directive::setting(
        "seen",
        "TEXT",
        "none",
        "Notes a text for the whole site.",
        |scope, command| {
            let text = command.node.scalar()?.to_owned();
            scope.shared.edit::<Collected>().0.push(text);
            Ok(())
        },
    ),
    Directive::setting("log", "ON|OFF", "none", "Adds a log.", |scope, command| {
        let wants_unfiltered = command.node.on_off()?;
        scope.loggers.push(Arc::new(Log { wants_unfiltered }));
        Ok(())
    }),
    Directive::setting(
        "variable",
        "TEXT",
        "none",
        "Sets a variable.",
        |scope, command| {
            scope.env.set("name", command.node.scalar()?);
            Ok(())
        },
    ),
    Directive::setting("answer", "ON", "none", "Adds a handler.", |scope, _| {
        scope.handlers.push(Box::new(Answer));
        Ok(())
    }),
    Directive::setting("warn", "TEXT", "none", "Warns.", |scope, command| {
        let error = command.error(command.node.scalar()?);
        scope.warn(&error);
        Ok(())
    }),
    Directive::setting("fail", "TEXT", "none", "Fails.", |_, command| {
        Err(command.error(command.node.scalar()?))
    }),
    Directive {
        kinds: h2o_config::Kinds::MAPPING,
        levels: Levels::ALL,
        pass: Pass::Content,
        ..Directive::setting(
            "inner",
            "MAPPING",
            "none",
            "A level inside of this one.",
            |scope, command| {
                scope.enter(Level::Extension, |inner| {
                    inner.run(command.node)?;
                    let set = inner.settings.get::<Set>();
                    let route = inner.build_path("/inner");
                    let counts = (
                        route.handlers.len(),
                        route.loggers.len(),
                        route.filters.len(),
                    );
                    let entry = (
                        String::from(&*route.path),
                        set.number,
                        set.words.clone(),
                        counts.0,
                        counts.1,
                        counts.2,
                    );
                    inner.shared.edit::<CreatedRoutes>().0.push(entry);
                    Ok(())
                })
            },
        )
    },
];

/// Executes the text of a configuration at the global level.
fn run(text: &str) -> (Scope, Result<(), Error>) {
    run_with(text, Vec::new())
}

fn run_with(text: &str, filters: Vec<h2o_exchange::FilterFactory>) -> (Scope, Result<(), Error>) {
    let mut scope = Scope::new(Arc::new(Features {
        guards: Vec::new(),
        sweeps: Vec::new(),
        registry: Registry::new(&[DIRECTIVES]),
        filters,
    }));
    let memory = Memory::new().file("t.conf", text);
    let node = h2o_config::load("t.conf", &memory).expect("the text is valid YAML");
    let result = scope.run(&node);
    (scope, result)
}

#[test]
fn an_inner_level_inherits_and_changes_its_own() {
    let (mut scope, result) = run(
        "number: 1\nword: outer\nlog: OFF\ninner:\n  number: 2\n  word: middle\n  log: ON\n  \
        answer: ON\n  inner:\n    word: deepest\n    answer: ON\n",
    );
    result.expect("the configuration is valid");
    let made = scope.shared.get::<CreatedRoutes>();
    let words = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        made.0,
        [
            // The path has only its own handler; its logger is added to those of outer levels.
            (
                "/inner".into(),
                2,
                words(&["outer", "middle", "deepest"]),
                1,
                2,
                0
            ),
            ("/inner".into(), 2, words(&["outer", "middle"]), 1, 2, 0),
        ]
    );
    // The settings of the outer level are unchanged.
    let set = scope.settings.get::<Set>();
    assert_eq!((set.number, &set.words), (1, &words(&["outer"])));
    let route = scope.build_path("/");
    assert_eq!((route.handlers.len(), route.loggers.len()), (0, 1));
}

#[test]
fn what_is_shared_goes_through_all_levels_in_their_order() {
    let (scope, result) =
        run("seen: a\ninner:\n  seen: b\n  inner:\n    seen: c\n  warn: careful\nwarn: later\n");
    result.expect("the configuration is valid");
    // Nested levels are executed after the settings of their level.
    assert_eq!(scope.shared.get::<Collected>().0, ["a", "b", "c"]);
    assert_eq!(scope.warnings.len(), 2);
    assert!(scope.warnings[0].contains("later"), "{:?}", scope.warnings);
    assert!(
        scope.warnings[1].contains("careful"),
        "{:?}",
        scope.warnings
    );
}

#[test]
fn nothing_that_was_collected_is_lost_with_an_error_inside() {
    let (scope, result) = run("seen: a\ninner:\n  seen: b\n  fail: no use\n");
    let error = result
        .expect_err("the command of the inner level fails")
        .to_string();
    assert_eq!(error, "[t.conf:4] in command fail, no use (column 9)");
    assert_eq!(scope.shared.get::<Collected>().0, ["a", "b"]);
}

#[test]
fn variables_of_a_level_are_behind_those_of_the_levels_around_it() {
    let (mut scope, result) = run("variable: outer\n");
    result.expect("the configuration is valid");
    assert!(scope.build_path("/").env.is_some());
    let (mut scope, _) = run("number: 1\n");
    assert!(
        scope.build_path("/").env.is_none(),
        "a site without such commands has an empty list of levels"
    );
    let inner = scope.enter(Level::Path, |inner| {
        inner.env.set("name", "inner");
        Ok(inner.build_path("/a"))
    });
    assert!(inner.expect("the inner level is valid").env.is_some());
    assert!(
        scope.build_path("/").env.is_none(),
        "the inner level does not change the outer one"
    );
}

/// Creates a route with filters from these filter factories.
fn route(text: &str, filters: Vec<h2o_exchange::FilterFactory>) -> PathRoute {
    let (mut scope, result) = run_with(text, filters);
    result.expect("the configuration is valid");
    scope.build_path("/")
}

#[test]
fn a_route_has_the_filters_that_apply_and_what_they_ask_for() {
    let plain = |_: &Scope| -> Option<Box<dyn Filter>> {
        Some(Box::new(Traced {
            wants_trace: false,
            hints: None,
        }))
    };
    let tracing = |_: &Scope| -> Option<Box<dyn Filter>> {
        Some(Box::new(Traced {
            wants_trace: true,
            hints: None,
        }))
    };
    let hinting = |_: &Scope| -> Option<Box<dyn Filter>> {
        let mut hints = Headers::new();
        hints.push(Known::Link, b"</a>; rel=preload");
        Some(Box::new(Traced {
            wants_trace: false,
            hints: Some(hints),
        }))
    };
    let by_number = |scope: &Scope| -> Option<Box<dyn Filter>> {
        let applies = scope.settings.get::<Set>().number == 7;
        applies.then(|| {
            Box::new(Traced {
                wants_trace: false,
                hints: None,
            }) as Box<dyn Filter>
        })
    };
    let none = route("number: 1\n", vec![by_number]);
    assert_eq!(
        (
            none.filters.len(),
            none.keep_trace,
            none.early_hints.is_some()
        ),
        (0, false, false)
    );
    let one = route("number: 7\n", vec![by_number]);
    assert_eq!((one.filters.len(), one.keep_trace), (1, false));
    let three = route("number: 7\n", vec![plain, tracing, by_number]);
    assert_eq!(
        (
            three.filters.len(),
            three.keep_trace,
            three.early_hints.is_some()
        ),
        (3, true, false)
    );
    let hinted = route("number: 1\n", vec![plain, hinting]);
    let hints = hinted.early_hints.expect("one filter has early hints");
    assert_eq!(hints.get(Known::Link), Some(&b"</a>; rel=preload"[..]));
}

#[test]
fn unfiltered_fields_are_kept_if_some_log_wants_them() {
    for (text, want) in [
        ("number: 1\n", false),
        ("log: OFF\n", false),
        ("log: ON\n", true),
    ] {
        assert_eq!(route(text, Vec::new()).keep_unfiltered, want, "{text}");
    }
    let (mut scope, _) = run("log: ON\n");
    let inner = scope.enter(Level::Path, |inner| {
        inner.loggers.push(Arc::new(Log {
            wants_unfiltered: false,
        }));
        Ok(inner.build_path("/"))
    });
    assert!(
        inner.expect("the inner level is valid").keep_unfiltered,
        "one of two filters that asks for the unfiltered headers is enough"
    );
}

#[test]
fn a_semicolon_at_the_end_is_warned_of_where_it_can_hardly_be_meant() {
    let cases: &[(&str, usize)] = &[
        ("word: text\n", 0),
        ("word: text;\n", 1),
        ("word: a;b\n", 0),
        ("word: [a;, b]\n", 1),
        ("word: a;\nseen: b;\n", 2),
        ("inner:\n  word: a;\n", 1),
    ];
    for (text, want) in cases {
        let (scope, _) = run(text);
        let warnings: Vec<_> = scope
            .warnings
            .iter()
            .filter(|warning| warning.contains("`;`"))
            .collect();
        assert_eq!(warnings.len(), *want, "{text}: {warnings:?}");
    }
}

/// A level of a configuration in the model.
#[derive(Clone, Default)]
struct ModelLevel {
    number: u32,
    words: Vec<String>,
    logs: usize,
}

/// Writes a configuration level with random directives, and records the routes and values that it should lead to.
fn random_level(
    random: &mut fastrand::Rng,
    depth: usize,
    outer: &ModelLevel,
    text: &mut String,
    seen: &mut Vec<String>,
    made: &mut Vec<RouteMade>,
) {
    use std::fmt::Write as _;
    let indent = "  ".repeat(depth);
    let (mut level, mut handlers) = (outer.clone(), 0);
    let mut inner = String::new();
    let mut kinds: Vec<u8> = (0..6).collect();
    random.shuffle(&mut kinds);
    // A mapping contains each directive at most once.
    for kind in kinds.into_iter().take(random.usize(1..=6)) {
        match kind {
            0 => {
                level.number = random.u32(..1000);
                let _ = writeln!(text, "{indent}number: {}", level.number);
            }
            1 => {
                let word = format!("w{}", random.u32(..100));
                let _ = writeln!(text, "{indent}word: {word}");
                level.words.push(word);
            }
            2 => {
                let word = format!("s{}", random.u32(..100));
                let _ = writeln!(text, "{indent}seen: {word}");
                seen.push(word);
            }
            3 => {
                let _ = writeln!(text, "{indent}log: OFF");
                level.logs += 1;
            }
            4 => {
                let _ = writeln!(text, "{indent}answer: ON");
                handlers += 1;
            }
            _ if depth < 5 => inner = format!("{indent}inner:\n"),
            _ => {}
        }
    }
    if !inner.is_empty() {
        // A nested level is executed after all settings of its outer level, wherever it stands in the text.
        text.push_str(&inner);
        random_level(random, depth + 1, &level, text, seen, made);
    } else if text.is_empty() || text.ends_with("inner:\n") {
        let _ = writeln!(text, "{indent}number: {}", level.number);
    }
    if depth > 0 {
        made.push((
            "/inner".into(),
            level.number,
            level.words,
            handlers,
            level.logs,
            0,
        ));
    }
}

#[test]
fn levels_inherit_as_the_rules_say_however_they_are_nested() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut text, mut seen, mut made) = (String::new(), Vec::new(), Vec::new());
        let top = ModelLevel::default();
        random_level(&mut random, 0, &top, &mut text, &mut seen, &mut made);
        let (scope, result) = run(&text);
        assert!(result.is_ok(), "seed {seed}: {result:?} of\n{text}");
        assert_eq!(
            scope.shared.get::<Collected>().0,
            seen,
            "seed {seed}:\n{text}"
        );
        assert_eq!(
            scope.shared.get::<CreatedRoutes>().0,
            made,
            "seed {seed}:\n{text}"
        );
    }
}
