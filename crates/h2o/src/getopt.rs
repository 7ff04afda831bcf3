//! Reads command lines as GNU `getopt_long` does: abbreviations of long options, `--name=value`, several letters after one `-`. No
//! library that we know does all of this and leaves the other words to the program.

/// An option of a program.
#[derive(Clone, Copy)]
pub(crate) struct Known<F> {
    pub(crate) long: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) takes_value: bool,
    pub(crate) flag: F,
    /// The description of the option in `--help`, the man page and shell completions.
    pub(crate) help: Help,
}

/// The description of an option. The line breaks of its text are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Help {
    /// The placeholder of the option's value; shells complete file names for `FILE` and directories for `DIRECTORY`.
    pub(crate) value: &'static str,
    /// All values that the option can have, if they are few.
    pub(crate) choices: &'static [&'static str],
    pub(crate) text: &'static str,
}

impl<F: Copy> Known<F> {
    /// Adds the placeholder of the value and the description to the option.
    pub(crate) const fn help(self, value: &'static str, text: &'static str) -> Self {
        self.one_of(value, &[], text)
    }

    /// Adds to the option its description, and all values that it can have.
    pub(crate) const fn one_of(
        self,
        value: &'static str,
        choices: &'static [&'static str],
        text: &'static str,
    ) -> Self {
        let help = Help {
            value,
            choices,
            text,
        };
        Self { help, ..self }
    }

    /// The option as users see it: without the flag by which the program recognises it.
    pub(crate) const fn described(&self) -> Known<()> {
        Known {
            long: self.long,
            short: self.short,
            takes_value: self.takes_value,
            flag: (),
            help: self.help,
        }
    }
}

/// Makes an option without a letter.
pub(crate) const fn long<F: Copy>(long: &'static str, takes_value: bool, flag: F) -> Known<F> {
    Known {
        long,
        short: None,
        takes_value,
        flag,
        help: Help {
            value: "",
            choices: &[],
            text: "",
        },
    }
}

/// Makes an option with a letter.
pub(crate) const fn letter<F: Copy>(
    short: char,
    name: &'static str,
    takes_value: bool,
    flag: F,
) -> Known<F> {
    Known {
        short: Some(short),
        ..long(name, takes_value, flag)
    }
}

/// Makes the option `--help`.
pub(crate) const fn help<F: Copy>(flag: F) -> Known<F> {
    letter('h', "help", false, flag).help("", "prints this help")
}

/// An element of a command line.
pub(crate) enum Argument<F> {
    /// An option found on the command line, with its value if it takes one.
    Option(F, Option<String>),
    /// A word that is no option.
    Word(String),
    /// The word `--`: the words after it are no options.
    End,
}

/// A command line of which words are still to be read.
pub(crate) struct CommandLine<F: 'static, I> {
    /// The program's name, for messages.
    program: &'static str,
    known: &'static [Known<F>],
    words: I,
    /// Letters after a single `-` that are still to be read as options, such as `bc` of `-abc` after `a` was read.
    letters: String,
}

impl<F: Copy, I: Iterator<Item = String>> CommandLine<F, I> {
    /// Begins to read the command line `words`, which do not include the program's name.
    pub(crate) fn new(program: &'static str, known: &'static [Known<F>], words: I) -> Self {
        Self {
            program,
            known,
            words,
            letters: String::new(),
        }
    }

    /// The error message about a word that is not an option, for a program that takes only options.
    pub(crate) fn unexpected(&self, word: &str) -> String {
        let program = self.program;
        format!("{program}: unexpected argument: {word} (see {program} --help)")
    }

    /// Reads the next option or word of the command line.
    ///
    /// # Errors
    /// The message of `getopt_long`.
    pub(crate) fn next(&mut self) -> Result<Option<Argument<F>>, String> {
        if !self.letters.is_empty() {
            return self.next_letter().map(Some);
        }
        let Some(word) = self.words.next() else {
            return Ok(None);
        };
        if word == "--" {
            return Ok(Some(Argument::End));
        }
        if let Some(long) = word.strip_prefix("--") {
            return self.long(long).map(Some);
        }
        match word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            Some(letters) => {
                self.letters = letters.to_owned();
                self.next_letter().map(Some)
            }
            None => Ok(Some(Argument::Word(word))),
        }
    }

    /// Returns the words that were not read.
    pub(crate) fn rest(self) -> I {
        self.words
    }

    fn long(&mut self, text: &str) -> Result<Argument<F>, String> {
        let (name, value) = text
            .split_once('=')
            .map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
        let option = self.find(name)?;
        let value = match (option.takes_value, value) {
            (true, None) => {
                Some(self.words.next().ok_or_else(|| {
                    self.message(&format!("option '--{name}' requires an argument"))
                })?)
            }
            (false, Some(_)) => {
                return Err(self.message(&format!("option '--{name}' doesn't allow an argument")));
            }
            (_, value) => value,
        };
        Ok(Argument::Option(option.flag, value))
    }

    fn next_letter(&mut self) -> Result<Argument<F>, String> {
        let letter = self.letters.remove(0);
        let mut known = self.known.iter();
        let option = known
            .find(|option| option.short == Some(letter))
            .ok_or_else(|| self.message(&format!("invalid option -- '{letter}'")))?;
        let value = if !option.takes_value {
            None
        } else if self.letters.is_empty() {
            Some(self.words.next().ok_or_else(|| {
                self.message(&format!("option requires an argument -- '{letter}'"))
            })?)
        } else {
            Some(std::mem::take(&mut self.letters))
        };
        Ok(Argument::Option(option.flag, value))
    }

    /// Finds the option with this long name, or the only option whose name begins with it.
    fn find(&self, name: &str) -> Result<Known<F>, String> {
        if let Some(option) = self.known.iter().find(|option| option.long == name) {
            return Ok(*option);
        }
        let mut found = self
            .known
            .iter()
            .filter(|option| !name.is_empty() && option.long.starts_with(name));
        match (found.next(), found.next()) {
            (Some(option), None) => Ok(*option),
            (None, _) => Err(self.message(&format!("unrecognized option '--{name}'"))),
            (Some(_), Some(_)) => Err(self.message(&format!("option '--{name}' is ambiguous"))),
        }
    }

    fn message(&self, text: &str) -> String {
        format!("{0}: {text} (see {0} --help)", self.program)
    }
}
