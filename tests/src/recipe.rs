//! Runs the recipes of the manual: starts their configurations and executes their curl commands.

use crate::manual::{self, Example};
use crate::{Folder, Response, Server, Setup, curl, run};

/// A page of the manual whose sections are recipes.
#[derive(Clone, Copy)]
pub struct RecipePage(pub &'static str);

impl RecipePage {
    /// The code blocks of the recipe under this heading.
    ///
    /// # Panics
    /// If the page has no such recipe.
    #[must_use]
    pub fn recipe(self, heading: &str) -> Vec<Example> {
        let mut blocks = manual::examples(self.0);
        blocks.retain(|block| block.section == heading);
        assert!(
            !blocks.is_empty(),
            "docs/recipes.md has no recipe `{heading}`"
        );
        blocks
    }

    /// The recipe's first code block in this language.
    ///
    /// # Panics
    /// If the recipe has no block in this language.
    #[must_use]
    pub fn block(self, heading: &str, language: &str) -> Example {
        let mut blocks = self.recipe(heading).into_iter();
        let found = blocks.find(|block| block.language == language);
        found.unwrap_or_else(|| panic!("the recipe `{heading}` has no block of {language}"))
    }

    /// Makes a server of the configuration in a recipe. The files that it mentions are created in the server's folder. Ports 80 and 443
    /// become the free ports `@PORT@` and `@TLS_PORT@`; `others` are further texts to replace, such as addresses of backends.
    ///
    /// # Panics
    /// If the configuration does not contain a text to replace.
    #[must_use]
    pub fn cook(self, heading: &str, others: &[(&str, &str)]) -> Setup {
        let example = self.block(heading, "yaml");
        let folder = Folder::new();
        manual::furnish(&folder, std::iter::once(&example));
        let mut text = example.moved();
        let ports = [
            ("listen: 80\n", "listen: @PORT@\n"),
            ("port: 80\n", "port: @PORT@\n"),
            ("port: 443\n", "port: @TLS_PORT@\n"),
        ];
        for (written, meant) in ports {
            text = text.replace(written, meant);
        }
        for (written, meant) in others {
            assert!(
                text.contains(written),
                "the recipe `{heading}` has no text `{written}`"
            );
            text = text.replace(written, meant);
        }
        Setup::in_folder(folder, &text)
    }

    /// Runs the curl commands of a recipe, and compares the responses with the statuses and fields in the comments behind the commands.
    ///
    /// # Panics
    /// If a response differs from its comment, or no command has a comment.
    pub fn keeps_its_word(self, server: &Server, heading: &str) {
        let mut count = 0;
        for block in self
            .recipe(heading)
            .iter()
            .filter(|block| block.language == "sh")
        {
            let text = block.text.replace("\\\n", " ");
            for line in text.lines().filter(|line| line.starts_with("curl ")) {
                let (command, promise) = line.split_once(" # ").unwrap_or((line, ""));
                let options = options(server).join(" ");
                // Some responses do not end: curl stops after three seconds, and the head is compared.
                let command =
                    command.replacen("curl", &format!("curl -s --max-time 3 {options}"), 1);
                let output = run("sh", &["-c", &command]).text().to_lowercase();
                for part in promise.split(", ") {
                    let word = part.split(' ').next().unwrap_or_default();
                    let is_status = word.len() == 3 && word.parse::<u16>().is_ok();
                    let is_there = if is_status {
                        let line = output.lines().next().unwrap_or_default();
                        line.starts_with("http/") && line.contains(&format!(" {word}"))
                    } else if part.contains(": ") {
                        output.contains(&format!("\n{part}\r"))
                    } else {
                        continue;
                    };
                    assert!(is_there, "{line}\n{output}");
                    count += 1;
                }
            }
        }
        assert!(count > 0, "the recipe `{heading}` names no response");
    }
}

/// Options of curl that make host names of the manual lead to the server under test.
fn options(server: &Server) -> Vec<String> {
    let mut options = Vec::new();
    for (standard, name) in [(80, "PORT"), (443, "TLS_PORT")] {
        if let Some(port) = server.find_port(name) {
            options.push("--connect-to".to_owned());
            options.push(format!(":{standard}:127.0.0.1:{port}"));
        }
    }
    if server.find_port("TLS_PORT").is_some() {
        options.push("--cacert".to_owned());
        options.push(server.folder.name_of("manual.crt"));
    }
    options
}

/// Requests with curl a URL that has a host name and port of the manual.
///
/// # Panics
/// If `curl` is not installed.
#[must_use]
pub fn ask_by_name(server: &Server, args: &[&str]) -> Response {
    let options = options(server);
    let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
    all.extend(args);
    curl(&all)
}
