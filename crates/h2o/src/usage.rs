//! The `--help` texts of the program and its commands.

use std::fmt::Write;

use crate::getopt::Known;

/// Widest option, in columns, next to which the description begins on the same line.
const MAX_COLUMN: usize = 28;

/// The kind of operands of a command: of the words on its command line that are not options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operands {
    None,
    Files,
    Directories,
}

/// The usage of the program or of one of its commands.
pub(crate) struct Usage {
    /// The name of the command; empty for the program without a command.
    pub(crate) name: &'static str,
    /// The rest of the usage line after the name of the command.
    pub(crate) words: &'static str,
    pub(crate) operands: Operands,
    pub(crate) about: &'static str,
    pub(crate) options: Vec<Known<()>>,
    /// The text of `--help` after the list of options.
    pub(crate) end: &'static str,
}

impl Usage {
    /// The program with the name of the command: `h2o COMMAND`.
    pub(crate) fn program(&self) -> String {
        format!("h2o {}", self.name).trim_end().to_owned()
    }

    /// The text of `--help` of a command.
    pub(crate) fn help(&self) -> String {
        format!(
            "{}\n\nUsage:\n  {} {}\n\nOptions:\n{}\n{}",
            self.about,
            self.program(),
            self.words,
            self.options_text(),
            self.end
        )
    }

    /// The list of options, each with its description to the right.
    pub(crate) fn options_text(&self) -> String {
        let left: Vec<_> = self.options.iter().map(left).collect();
        let widths = left.iter().map(|text| text.chars().count() + 2);
        let column = widths
            .filter(|width| *width <= MAX_COLUMN)
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for (left, option) in left.iter().zip(&self.options) {
            let mut left = left.as_str();
            if left.chars().count() + 2 > column {
                let _ = writeln!(text, "{left}");
                left = "";
            }
            for line in option.help.text.lines() {
                let _ = writeln!(text, "{left:column$}{line}");
                left = "";
            }
        }
        text
    }
}

/// Formats an option as it is written: `  -c, --conf FILE`.
fn left(option: &Known<()>) -> String {
    let letter = match option.short {
        Some(letter) => format!("-{letter},"),
        None => "   ".to_owned(),
    };
    format!("  {letter} --{} {}", option.long, option.help.value)
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::getopt::{letter, long};

    #[test]
    fn descriptions_begin_in_one_column() {
        let usage = Usage {
            name: "reload",
            words: "[options]",
            operands: Operands::None,
            about: "About.",
            options: vec![
                letter('c', "conf", true, ()).help("FILE", "one\ntwo"),
                long("diff", false, ()).help("", "three"),
                long("a-very-long-option-with", true, ()).help("VALUE", "four"),
            ],
            end: "End.\n",
        };
        let want = "About.

Usage:
  h2o reload [options]

Options:
  -c, --conf FILE  one
                   two
      --diff       three
      --a-very-long-option-with VALUE
                   four

End.
";
        assert_eq!(usage.help(), want);
    }
}
