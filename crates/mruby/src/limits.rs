//! The exceptions that a script gets when it reaches a limit of memory or time.

#![expect(unsafe_code, reason = "C functions of the shim raise the exceptions")]

use crate::ffi;
use crate::{Value, Vm};

/// A limit that a script can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The limit of memory (`mruby.memory-limit`).
    Memory,
    /// The limit of the depth of nested calls.
    Stack,
    /// The time that a script may run without waiting (`mruby.time-limit`).
    Time,
}

impl Vm {
    /// Makes the exceptions that interrupt the next script. An exception that was raised keeps its backtrace, so new ones
    /// are made after that.
    pub(crate) fn prepare_interrupts(&self) -> Result<(), Value> {
        let time = self.time_limit.as_millis();
        let time = format!(
            "the script was stopped: it has run for {time} ms without waiting (`mruby.time-limit`)"
        );
        let time = self.root(self.exception("H2O::TimeLimitError", &time))?;
        let memory = "the script was stopped: there is no more memory (`mruby.memory-limit`)";
        let memory = self.root(self.exception("NoMemoryError", memory))?;
        // SAFETY: the exceptions are rooted as long as the shim may raise them.
        unsafe {
            ffi::shim_watch_set_exceptions(self.watched.watch, time.value().0, memory.value().0);
        }
        self.interrupts.replace(Some([time, memory]));
        Ok(())
    }

    /// The text of an exception for the log: `MESSAGE (CLASS)`, or only the class if there is no message. If a limit raised
    /// the exception, the place in the script is added.
    #[must_use]
    pub fn describe(&self, exception: Value) -> String {
        let text = self
            .call(exception, "inspect", &[])
            .and_then(|text| self.text_of(text));
        let mut shown = match text {
            Ok(text) if !text.is_empty() => {
                message_first(&String::from_utf8_lossy(&text), &self.class_name(exception))
            }
            _ => self.class_name(exception),
        };
        if self.limit_of(exception).is_some() {
            if let Some(place) = self.place_of(exception) {
                shown.push_str(" at ");
                shown.push_str(&place);
            }
            self.request_collection();
        }
        shown
    }

    /// The limit that a script has reached, if the exception is one that a limit raises.
    #[must_use]
    pub fn limit_of(&self, exception: Value) -> Option<Limit> {
        match &*self.class_name(exception) {
            "NoMemoryError" => Some(Limit::Memory),
            "SystemStackError" => Some(Limit::Stack),
            "H2O::TimeLimitError" => Some(Limit::Time),
            _ => None,
        }
    }

    /// The place in the script where the exception was raised, as `FILE:LINE`.
    fn place_of(&self, exception: Value) -> Option<String> {
        let lines = self.call(exception, "backtrace", &[]).ok()?;
        let first = self.elements(lines)?.first().copied()?;
        let line = self.bytes(first)?;
        let line = String::from_utf8_lossy(&line);
        Some(line.split(":in ").next().unwrap_or_default().to_owned())
    }
}

/// Puts the message in front: `MESSAGE (CLASS)`, which `inspect` of an exception returns up to mruby 3.3. Since mruby 4.0 it returns
/// `#<CLASS: MESSAGE>`. Any other text, from an `inspect` of a script, stays as it is.
fn message_first(inspected: &str, class: &str) -> String {
    let message = inspected
        .strip_prefix("#<")
        .and_then(|rest| rest.strip_prefix(class))
        .and_then(|rest| rest.strip_prefix(": "))
        .and_then(|rest| rest.strip_suffix('>'));
    message.map_or_else(
        || inspected.to_owned(),
        |message| format!("{message} ({class})"),
    )
}

#[cfg(test)]
mod tests {
    use super::message_first;

    #[test]
    fn the_message_of_an_exception_is_before_its_class() {
        for (inspected, class, want) in [
            ("no (M::E)", "M::E", "no (M::E)"),
            ("#<M::E: no>", "M::E", "no (M::E)"),
            ("#<M::E: a: <b>\n>", "M::E", "a: <b>\n (M::E)"),
            ("#<#<Class:0x1>: no>", "#<Class:0x1>", "no (#<Class:0x1>)"),
            ("M::E", "M::E", "M::E"),
            ("#<M::E: no", "M::E", "#<M::E: no"),
            ("#<M::Else: no>", "M::E", "#<M::Else: no>"),
            ("shown", "M::E", "shown"),
        ] {
            assert_eq!(message_first(inspected, class), want, "{inspected}");
        }
    }
}
