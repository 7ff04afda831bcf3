//! Generates completions for shells.

use std::fmt::Write;

use super::brief;
use crate::getopt::Known;
use crate::usage::{Operands, Usage};

/// What a shell offers as completion after an option, or in place of an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Completes {
    Files,
    Directories,
    Choices(&'static [&'static str]),
    /// Nothing, since only the user knows the value.
    Nothing,
}

fn value_of(option: &Known<()>) -> Completes {
    match option.help.value {
        _ if !option.help.choices.is_empty() => Completes::Choices(option.help.choices),
        "FILE" => Completes::Files,
        "DIRECTORY" => Completes::Directories,
        _ => Completes::Nothing,
    }
}

const fn operand_of(usage: &Usage) -> Completes {
    match usage.operands {
        Operands::None => Completes::Nothing,
        Operands::Files => Completes::Files,
        Operands::Directories => Completes::Directories,
    }
}

/// Lists the spellings of an option, such as `-c` and `--conf`.
fn spellings(option: &Known<()>) -> impl Iterator<Item = String> {
    let letter = option.short.map(|letter| format!("-{letter}"));
    letter
        .into_iter()
        .chain(std::iter::once(format!("--{}", option.long)))
}

/// The description of an option, joined into one line.
fn description(option: &Known<()>) -> String {
    let lines = option
        .help
        .text
        .lines()
        .take_while(|line| !line.starts_with("- "));
    let text = lines.collect::<Vec<_>>().join(" ");
    text.trim_end_matches(':').to_owned()
}

fn commands(usages: &[Usage]) -> String {
    let names: Vec<_> = usages.iter().skip(1).map(|usage| usage.name).collect();
    names.join(" ")
}

/// Generates the completion script for bash.
pub(super) fn bash(usages: &[Usage]) -> String {
    let compgen = |completes| match completes {
        Completes::Files => "compgen -f -- \"$word\"".to_owned(),
        Completes::Directories => "compgen -d -- \"$word\"".to_owned(),
        Completes::Choices(choices) => format!("compgen -W '{}' -- \"$word\"", choices.join(" ")),
        Completes::Nothing => "true".to_owned(),
    };
    let mut values = String::new();
    let mut words = String::new();
    for usage in usages {
        for option in usage.options.iter().filter(|option| option.takes_value) {
            for spelling in spellings(option) {
                let _ = writeln!(
                    values,
                    "        {}:{spelling}) readarray -t COMPREPLY < <({}); return ;;",
                    usage.name,
                    compgen(value_of(option))
                );
            }
        }
        let options: Vec<_> = usage.options.iter().flat_map(spellings).collect();
        let _ = writeln!(
            words,
            "        {}) options='{}'; operand() {{ {}; }} ;;",
            if usage.name.is_empty() {
                "''"
            } else {
                usage.name
            },
            options.join(" "),
            compgen(operand_of(usage))
        );
    }
    let commands = commands(usages);
    format!(
        "# Completion of h2o for bash.
_h2o() {{
    local word=$2 command= options
    if ((COMP_CWORD > 1)); then
        case ${{COMP_WORDS[1]}} in
        {}) command=${{COMP_WORDS[1]}} ;;
        esac
    fi
    case $command:$3 in
{values}    esac
    case $command in
{words}    esac
    if [[ $word == -* ]]; then
        readarray -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")
    elif ((COMP_CWORD == 1)); then
        readarray -t COMPREPLY < <(compgen -W '{commands}' -- \"$word\")
    else
        readarray -t COMPREPLY < <(operand)
    fi
    unset -f operand
}}
complete -o filenames -F _h2o h2o
",
        commands.replace(' ', " | ")
    )
}

/// Escapes a description for a zsh completion script, where it stands between single quotes and where `:` and brackets would end
/// it.
fn zsh_text(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        match c {
            '\'' => quoted += "'\\''",
            ':' | '[' | ']' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c => quoted.push(c),
        }
    }
    quoted
}

/// Generates the completion script for zsh.
pub(super) fn zsh(usages: &[Usage]) -> String {
    let action = |completes| match completes {
        Completes::Files => "_files".to_owned(),
        Completes::Directories => "_files -/".to_owned(),
        Completes::Choices(choices) => format!("({})", choices.join(" ")),
        Completes::Nothing => String::new(),
    };
    let mut cases = String::new();
    for usage in usages {
        let mut arguments = String::new();
        for option in &usage.options {
            for spelling in spellings(option) {
                let value = if option.takes_value {
                    format!(":{}:{}", option.help.value, action(value_of(option)))
                } else {
                    String::new()
                };
                let equals = match (option.takes_value, spelling.starts_with("--")) {
                    (true, true) => "=",
                    (true, false) => "+",
                    (false, _) => "",
                };
                let _ = write!(
                    arguments,
                    " \\\n        '{spelling}{equals}[{}]{value}'",
                    zsh_text(&description(option))
                );
            }
        }
        let operand = match operand_of(usage) {
            Completes::Nothing => String::new(),
            completes => format!(" \\\n        '*:operand:{}'", action(completes)),
        };
        let name = if usage.name.is_empty() {
            "*"
        } else {
            usage.name
        };
        // The case `*`, which matches every word, must come last.
        let case = format!("    {name})\n        _arguments{arguments}{operand}\n        ;;\n");
        if usage.name.is_empty() {
            cases.push_str(&case);
        } else {
            cases.insert_str(0, &case);
        }
    }
    let mut commands = String::new();
    for usage in usages.iter().skip(1) {
        let _ = write!(
            commands,
            " '{}:{}'",
            usage.name,
            zsh_text(&brief(usage)).replace("\\:", ":")
        );
    }
    format!(
        "#compdef h2o
# Completion of h2o for zsh.
_h2o() {{
    local -a commands=({})
    if ((CURRENT == 2)) && [[ $PREFIX != -* ]]; then
        _describe command commands
        return
    fi
    local command=$words[2]
    if ((CURRENT > 2)) && ((${{commands[(I)$command:*]}})); then
        # _arguments takes the first word for the program's name.
        shift words
        ((CURRENT--))
    fi
    case $command in
{cases}    esac
}}
_h2o \"$@\"
",
        commands.trim_start()
    )
}

/// Generates the completion script for fish.
pub(super) fn fish(usages: &[Usage]) -> String {
    let quote = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let mut text = String::from("# Completion of h2o for fish.\ncomplete -c h2o -f\n");
    for usage in usages.iter().skip(1) {
        let _ = writeln!(
            text,
            "complete -c h2o -n __fish_is_first_token -a {} -d '{}'",
            usage.name,
            quote(&brief(usage))
        );
    }
    for usage in usages {
        let condition = if usage.name.is_empty() {
            format!("not __fish_seen_subcommand_from {}", commands(usages))
        } else {
            format!("__fish_seen_subcommand_from {}", usage.name)
        };
        match operand_of(usage) {
            Completes::Files => {
                let _ = writeln!(text, "complete -c h2o -n '{condition}' -F");
            }
            Completes::Directories => {
                let _ = writeln!(
                    text,
                    "complete -c h2o -n '{condition}' -a '(__fish_complete_directories)'"
                );
            }
            Completes::Choices(_) | Completes::Nothing => {}
        }
        for option in &usage.options {
            let letter = option
                .short
                .map(|letter| format!(" -s {letter}"))
                .unwrap_or_default();
            let value = match value_of(option) {
                _ if !option.takes_value => String::new(),
                Completes::Files => " -r -F".to_owned(),
                Completes::Directories => " -x -a '(__fish_complete_directories)'".to_owned(),
                Completes::Choices(choices) => format!(" -x -a '{}'", choices.join(" ")),
                Completes::Nothing => " -x".to_owned(),
            };
            let _ = writeln!(
                text,
                "complete -c h2o -n '{condition}'{letter} -l {}{value} -d '{}'",
                option.long,
                quote(&description(option))
            );
        }
    }
    text
}
