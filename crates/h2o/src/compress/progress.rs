//! The progress bar of `h2o compress`.

use std::io::{self, IsTerminal, Write};

/// Number of characters of a full bar.
const WIDTH: usize = 40;

/// A progress bar on standard error; nothing is shown if that is no terminal.
pub(super) struct Progress {
    total: usize,
    done: usize,
    is_shown: bool,
    /// The percentage that the terminal shows.
    shown: Option<usize>,
}

impl Progress {
    pub(super) fn new(total: usize, is_quiet: bool) -> Self {
        Self {
            total,
            done: 0,
            is_shown: !is_quiet && io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Counts one more finished variant, and updates the bar.
    pub(super) fn advance(&mut self) {
        self.done += 1;
        let percent = self.done * 100 / self.total.max(1);
        if self.is_shown && self.shown.replace(percent) != Some(percent) {
            // If the terminal was closed, writing the bar fails; the compression goes on.
            let _ = write!(io::stderr(), "\r{}", line(self.done, self.total));
        }
    }

    /// Removes the bar from the terminal.
    pub(super) fn finish(self) {
        if self.shown.is_some() && self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: usize, total: usize) -> String {
    let full = done * WIDTH / total.max(1);
    format!(
        "[{:WIDTH$}] {:3} % ({done} of {total} variants)",
        "#".repeat(full),
        done * 100 / total.max(1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_as_long_as_what_is_done() {
        let half = format!(
            "[{}{}]  50 % (3 of 6 variants)",
            "#".repeat(20),
            " ".repeat(20)
        );
        assert_eq!(line(3, 6), half);
        assert_eq!(
            line(6, 6),
            format!("[{}] 100 % (6 of 6 variants)", "#".repeat(40))
        );
    }
}
