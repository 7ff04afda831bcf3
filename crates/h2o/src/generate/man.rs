//! Generates the man pages.

use std::fmt::Write;

use super::ABOUT;
use super::roff::{escape, from_markdown};
use crate::usage::Usage;
use crate::{DEFAULT_CONFIG, INSTALLED_CONFIG};

/// The chapter of the manual from which h2o(8) takes its sections on signals and exit statuses.
const RUNNING: &str = include_str!("../../../../docs/running.md");

fn head(name: &str, section: u8, about: &str) -> String {
    format!(
        ".TH \"{}\" {section} \"\" \"h2o {}\" \"\"\n.SH NAME\n{} \\- {}\n",
        name.to_uppercase(),
        h2o_handlers::SERVER_VERSION,
        escape(name),
        escape(about)
    )
}

/// Generates the man page h2o(8).
pub(super) fn program(usages: &[Usage]) -> String {
    let mut page = head("h2o", 8, ABOUT);
    page += ".SH SYNOPSIS\n.nf\n";
    for usage in usages {
        let _ = writeln!(
            page,
            "\\fB{}\\fR {}",
            escape(&usage.program()),
            escape(usage.words)
        );
    }
    page += ".fi\n.SH DESCRIPTION\n";
    let _ = writeln!(
        page,
        "\\fBh2o\\fR serves HTTP/1, HTTP/2 and HTTP/3 as its configuration says, see \\fBh2o.conf\\fR(5)."
    );
    for usage in usages {
        if usage.name.is_empty() {
            page += ".SH OPTIONS\n";
        } else {
            let _ = write!(
                page,
                ".SH \"{}\"\n{}\n",
                escape(&usage.program().to_uppercase()),
                escape(usage.about)
            );
        }
        for option in &usage.options {
            let letter = option
                .short
                .map(|letter| format!("\\fB\\-{letter}\\fR, "))
                .unwrap_or_default();
            let value = match option.help.value {
                "" => String::new(),
                value => format!(" \\fI{value}\\fR"),
            };
            let _ = write!(
                page,
                ".TP\n{letter}\\fB\\-\\-{}\\fR{value}\n",
                escape(option.long)
            );
            for line in option.help.text.lines() {
                if line.starts_with("- ") {
                    page += ".br\n";
                }
                let _ = writeln!(page, "{}", escape(line.trim_start()));
            }
        }
        if !usage.name.is_empty() {
            let _ = write!(page, ".PP\n{}", escape(usage.end));
        }
    }
    let running = from_markdown(&signals_and_statuses(RUNNING));
    page += running.trim_end();
    let _ = write!(
        page,
        "\n.SH FILES\n.TP\n\\fI{DEFAULT_CONFIG}\\fR\nthe configuration, if none is named; without it, the modes test, master and daemon use \\fI{INSTALLED_CONFIG}\\fR\n\
         .SH \"SEE ALSO\"\n\\fBh2o.conf\\fR(5)\n"
    );
    page
}

/// Returns the tables of docs/running.md that the man page h2o(8) contains, under the headings of the man page.
fn signals_and_statuses(running: &str) -> String {
    let statuses = running
        .lines()
        .skip_while(|line| !line.starts_with("| Exit status"))
        .take_while(|line| line.starts_with('|'));
    let signals = running
        .lines()
        .skip_while(|line| *line != "## Signals")
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    let mut text = String::from("## Exit status\n\n");
    for line in statuses {
        text += line;
        text.push('\n');
    }
    text += "\n## Signals\n";
    for line in signals {
        text += line;
        text.push('\n');
    }
    text
}

/// The man page h2o.conf(5), made from the list of directives in Markdown.
pub(super) fn configuration(directives: &str) -> String {
    let mut page = head("h2o.conf", 5, "configuration of h2o");
    // The first line of the Markdown is its title, which the man page has already.
    let text = directives.split_once('\n').map_or("", |(_, rest)| rest);
    page += ".SH DESCRIPTION\nThe configuration is a YAML file. \\fBh2o \\-t\\fR checks it.\n";
    page += &from_markdown(text);
    page = page.trim_end().to_owned();
    page += "\n.SH \"SEE ALSO\"\n\\fBh2o\\fR(8)\n";
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_tables_of_the_manual() {
        let text = signals_and_statuses(RUNNING);
        for part in ["| 78 |", "| HUP |", "| TERM |"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let registry = &h2o_server::features().registry;
        let page = configuration(&registry.markdown());
        for name in registry.names() {
            if registry.find(name).is_some() {
                let heading = format!(".SS \"{}\"\n", escape(name));
                assert!(page.contains(&heading), "{name}");
            }
        }
    }
}
