//! The directives for request variables (`setenv`, `unsetenv`), for request errors in the error log
//! (`error-log.emit-request-errors`), and `stash`.

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass};
use h2o_exchange::Scope;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "setenv",
        levels: Levels::ALL,
        pass: Pass::Settings,
        kinds: Kinds::MAPPING,
        value: "NAME: VALUE, ...",
        default: "none",
        help: "Sets request variables, which FastCGI applications and scripts see and `%{NAME}e` logs. Levels are applied from the \
               outermost to the innermost; on one level, `unsetenv` is applied before `setenv`.",
        apply: set,
    },
    Directive {
        name: "unsetenv",
        levels: Levels::ALL,
        pass: Pass::Settings,
        kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
        value: "NAME | [NAME, ...]",
        default: "none",
        help: "Removes request variables that an outer level has set.",
        apply: unset,
    },
    Directive {
        name: "error-log.emit-request-errors",
        levels: Levels::ALL,
        pass: Pass::Settings,
        kinds: Kinds::SCALAR,
        value: "ON|OFF",
        default: "ON",
        help: "Whether errors of single requests are written to the error log. `%{error}x` of the access log has them \
               in any case.",
        apply: |scope, command| {
            scope.emit_request_errors = command.node.on_off()?;
            Ok(())
        },
    },
    Directive {
        name: "stash",
        levels: Levels::ALL,
        pass: Pass::Settings,
        kinds: Kinds::ANY,
        value: "anything",
        default: "none",
        help: "Has no effect: a place for YAML nodes with anchors (`&NAME`), which aliases (`*NAME`) elsewhere refer to.",
        apply: |_, _| Ok(()),
    },
];

fn set(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    for (name, value) in command.node.mapping()? {
        let name = name
            .as_str()
            .ok_or_else(|| name.error("key must be a scalar"))?;
        let value = value
            .as_str()
            .ok_or_else(|| value.error(format!("value of `{name}` must be a scalar")))?;
        scope.env.set(name, value);
    }
    Ok(())
}

fn unset(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    for name in command.node.one_or_more() {
        scope.env.unset(name.scalar()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Setup, request};

    const SETUP: Setup = Setup {
        host: "*",
        ..Setup::new(DIRECTIVES, None)
    };

    #[test]
    fn levels_apply_outermost_first_and_a_set_beats_an_unset_of_its_level() {
        let site = SETUP
            .read([
                "setenv: {a: global, b: global, c: global, d: global}",
                "setenv: {a: host}\nunsetenv: [a, b]",
                "unsetenv: c\nsetenv: {e: path}\nsetenv: {e: again}",
            ])
            .unwrap();
        let mut exchange = request(site, "GET", "a.test", "/");
        let site = std::rc::Rc::clone(&exchange.site);
        let path = site.path(exchange.route);
        path.env.as_ref().unwrap().apply(&mut exchange);
        let found = ["a", "b", "c", "d", "e"].map(|name| exchange.env(name));
        let want = [Some("host"), None, None, Some("global"), Some("again")];
        let want = want.map(|text| text.map(str::as_bytes));
        assert_eq!(found, want);
    }

    #[test]
    fn request_errors_are_emitted_unless_an_inner_level_says_no() {
        for (levels, want) in [
            (["", "", ""], true),
            (["error-log.emit-request-errors: OFF", "", ""], false),
            (
                [
                    "error-log.emit-request-errors: OFF",
                    "",
                    "error-log.emit-request-errors: on",
                ],
                true,
            ),
        ] {
            let site = SETUP.read(levels).unwrap();
            assert_eq!(site.hosts[0].paths[0].emit_request_errors, want);
        }
    }

    #[test]
    fn faults_are_placed_and_a_stash_takes_anything() {
        for (text, want) in [
            (
                "setenv: {a: [b]}",
                "[f:1] in command setenv, value of `a` must be a scalar (column 13)",
            ),
            (
                "setenv: {[a]: b}",
                "[f:1] in command setenv, key must be a scalar (column 10)",
            ),
            (
                "setenv: a",
                "[f:1] in command setenv, argument cannot be a scalar (column 9; expected a mapping)",
            ),
            (
                "unsetenv: [a, [b]]",
                "[f:1] in command unsetenv, argument must be a scalar (column 15)",
            ),
            (
                "error-log.emit-request-errors: yes",
                "[f:1] in command error-log.emit-request-errors, argument must be one of: OFF,ON (column 32; did you mean `ON`?)",
            ),
            ("stash: {a: &a [1], b: *a}", "accepted"),
            ("stash: x\nstash: [y]", "accepted"),
        ] {
            assert_eq!(SETUP.refusal(text), want, "{text}");
        }
    }
}
