//! `annotate-backtrace-symbols`: copies a backtrace from standard input to standard output, and adds to each address of a program
//! or library its place in the source, if `addr2line` finds it.

use std::io::{BufRead, Write};
use std::process::Command;

use crate::Failure;

/// Copies and annotates lines until the end of the input.
pub(super) fn run() -> Result<(), Failure> {
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let place = address(&line).and_then(|(file, address)| look_up(file, address));
        let place = place.map_or_else(String::new, |place| format!(" {place}"));
        // The program that read the standard output has ended.
        if writeln!(out, "{line}{place}").is_err() {
            break;
        }
    }
    Ok(())
}

/// Parses the file and the address from a line as backtrace_symbols(3) writes it: `FILE(SYMBOL+0xOFFSET) [0xADDRESS]`, where the
/// offset is from the start of the file if there is no symbol.
fn address(line: &str) -> Option<(&str, &str)> {
    let (file, rest) = line.split_once('(')?;
    let (inside, rest) = rest.split_once(')')?;
    let offset = inside
        .strip_prefix('+')
        .filter(|offset| offset.starts_with("0x"));
    let absolute = rest.trim().strip_prefix('[')?.strip_suffix(']')?;
    Some((file, offset.unwrap_or(absolute)))
}

fn look_up(file: &str, address: &str) -> Option<String> {
    let output = Command::new("addr2line")
        .args(["-Cfpe", file, address])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    let is_known = output.status.success() && !text.is_empty() && !text.starts_with("??");
    is_known.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_file() {
        let cases = [
            ("/bin/a(+0x12) [0x5512]", Some(("/bin/a", "0x12"))),
            ("/bin/a(main+0x12) [0x5512]", Some(("/bin/a", "0x5512"))),
            ("/bin/a() [0x5512]", Some(("/bin/a", "0x5512"))),
            ("received fatal signal 11", None),
            ("", None),
        ];
        for (line, want) in cases {
            assert_eq!(address(line), want, "{line}");
        }
    }
}
