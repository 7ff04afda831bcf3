//! The messages on the control socket: the question of a client, and the server's answer.
//!
//! A client sends one line. The server's answer is a line with the exit status for the client, followed by lines for the client's
//! standard output (marked `+`) and its standard error (marked `!`).

use crate::Failure;

/// A question that a client sends to the server over the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Reload the configuration.
    Reload,
    /// Report what a reload would change, without reloading.
    Differences,
    /// Send the status report.
    Status,
}

impl Question {
    /// The line by which a client asks the question.
    pub(crate) const fn line(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Differences => "differences",
            Self::Status => "status",
        }
    }

    /// Parses the line of a client; `None` if it is no question.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let all = [Self::Reload, Self::Differences, Self::Status];
        all.into_iter().find(|question| question.line() == line)
    }
}

/// What the main thread sends to the thread that serves a client of the control socket, in reply to the client's question.
pub(crate) enum Reply {
    /// The answer is already known.
    Now(Answer),
    /// The answer depends on workers. The client's thread calls this function to wait for it, so that the main thread need not
    /// wait.
    Later(Box<dyn FnOnce() -> Answer + Send>),
}

impl Reply {
    /// Returns the answer, for which the calling thread may have to wait.
    pub(crate) fn wait(self) -> Answer {
        match self {
            Self::Now(answer) => answer,
            Self::Later(wait) => wait(),
        }
    }
}

/// The server's answer: the output of the client and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Exit status of the client.
    pub(crate) code: u8,
    /// Lines for the client's standard output.
    pub(crate) lines: Vec<String>,
    /// Lines for the client's standard error.
    pub(crate) messages: Vec<String>,
}

impl Answer {
    /// The answer if the server refuses to do what the client asks.
    pub(crate) fn refused(text: &str) -> Self {
        let failure = Failure::config(text);
        Self {
            code: failure.code,
            messages: vec![failure.text],
            ..Self::default()
        }
    }

    /// The answer to a question that the server cannot answer now.
    pub(crate) fn busy(text: &str) -> Self {
        let failure = Failure::system(text);
        Self {
            code: failure.code,
            messages: vec![failure.text],
            ..Self::default()
        }
    }

    /// Encodes the answer for the control socket.
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{}\n", self.code);
        let lines = self.lines.iter().map(|line| ('+', line));
        let messages = self.messages.iter().map(|line| ('!', line));
        for (mark, value) in messages.chain(lines) {
            for line in value.split('\n') {
                text.push(mark);
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    /// Parses an answer from the control socket; `None` if the text is not one.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut answer = Self {
            code: lines.next()?.parse().ok()?,
            ..Self::default()
        };
        for line in lines {
            match line.split_at_checked(1)? {
                ("+", line) => answer.lines.push(line.to_owned()),
                ("!", line) => answer.messages.push(line.to_owned()),
                _ => return None,
            }
        }
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let answer = Answer {
            code: 78,
            lines: vec!["+ a".to_owned(), String::new()],
            messages: vec!["one".to_owned(), "two".to_owned()],
        };
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        let of_two_lines = Answer {
            messages: vec!["one\ntwo".to_owned()],
            ..Answer::default()
        };
        assert_eq!(of_two_lines.encode(), "0\n!one\n!two\n");
        for broken in ["", "x\n", "0\n?\n", "256\n", "0\n\n"] {
            assert_eq!(Answer::decode(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn questions_are_lines() {
        for question in [Question::Reload, Question::Differences, Question::Status] {
            assert_eq!(Question::parse(question.line()), Some(question));
        }
        assert_eq!(Question::parse("reload now"), None);
    }
}
