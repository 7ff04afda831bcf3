//! Generates the texts of `--help` and `--generate`: man pages and shell completions, made from the options and the table of
//! directives.

mod completion;
mod man;
mod roff;

use crate::usage::Usage;
use crate::{compress, options, reload, top};

/// The description of the program in the title of its man page.
const ABOUT: &str = "HTTP/1, HTTP/2 and HTTP/3 server";

/// The usage of the program without a command, followed by the usage of each command.
fn usages() -> Vec<Usage> {
    vec![
        options::usage(),
        compress::usage(),
        #[cfg(feature = "mruby")]
        crate::script::usage(),
        reload::usage(),
        top::usage(),
    ]
}

/// The first sentence of a command's description, in a form for a list of commands.
fn brief(usage: &Usage) -> String {
    let text = usage.about.replace('\n', " ");
    let end = text.find([':', ',', '.']).unwrap_or(text.len());
    let mut text = text[..end].to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

/// The text of `h2o --help`.
pub(crate) fn help() -> String {
    let usages = usages();
    let mut lines = String::new();
    for usage in usages.iter().skip(1) {
        let left = format!("  {} {}", usage.program(), usage.words);
        lines += &format!("{left}\n      {}\n", brief(usage));
    }
    let usage = options::usage();
    format!(
        "h2o version {}\n\nUsage:\n  h2o {}\n{lines}\nOptions:\n{}\n{}",
        h2o_handlers::SERVER_VERSION,
        usage.words,
        usage.options_text(),
        usage.end
    )
}

/// The text of `h2o --generate KIND`.
///
/// # Errors
/// If there is no such kind of text.
pub(crate) fn generate(kind: &str) -> Result<String, String> {
    let usages = usages();
    match kind {
        "h2o.8" => Ok(man::program(&usages)),
        "h2o.conf.5" => Ok(man::configuration(
            &h2o_server::features().registry.markdown(),
        )),
        "bash" => Ok(completion::bash(&usages)),
        "zsh" => Ok(completion::zsh(&usages)),
        "fish" => Ok(completion::fish(&usages)),
        _ => Err(format!(
            "--generate: `{kind}` is none of h2o.8, h2o.conf.5, bash, zsh and fish"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_a_description_and_a_placeholder_for_its_value() {
        for usage in usages() {
            for option in &usage.options {
                assert!(!option.help.text.is_empty(), "{}", option.long);
                let has_value = !option.help.value.is_empty();
                assert_eq!(has_value, option.takes_value, "{}", option.long);
            }
        }
        let help = help();
        assert!(help.contains(crate::DEFAULT_CONFIG));
        assert!(reload::usage().help().contains(crate::DEFAULT_CONFIG));
        assert!(help.contains("  h2o compress [options] DIRECTORY...\n      publishes compressed variants beside the files of a directory\n"), "{help}");
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    }

    #[test]
    fn every_kind_is_generated() {
        let generate_option = usages()[0]
            .options
            .iter()
            .find(|option| option.long == "generate")
            .copied();
        let kinds = generate_option.unwrap().help.choices;
        for kind in kinds {
            assert!(generate(kind).unwrap().contains("h2o"), "{kind}");
        }
        assert!(generate("csh").is_err());
    }
}
