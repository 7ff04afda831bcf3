//! The order of names in a listing, as people expect it: `file2` before `file10`, `b` before `C`.

use std::cmp::Ordering;
use std::iter::Peekable;

/// Compares names letter by letter, ignoring case, and numbers within them by value. Names that are equal by this are
/// compared by bytes, so that different names are never equal.
pub(super) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let (left, right) = (String::from_utf8_lossy(one), String::from_utf8_lossy(other));
    let (mut left, mut right) = (left.chars().peekable(), right.chars().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return one.cmp(other),
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (a, b) = (number(&mut left), number(&mut right));
                a.len().cmp(&b.len()).then_with(|| a.cmp(&b))
            }
            _ => left.next().map(fold).cmp(&right.next().map(fold)),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn fold(letter: char) -> char {
    letter.to_lowercase().next().unwrap_or(letter)
}

/// Reads the digits of a number from the text. Returns them without leading zeros.
fn number(text: &mut Peekable<impl Iterator<Item = char>>) -> String {
    let mut digits = String::new();
    while let Some(digit) = text.next_if(char::is_ascii_digit) {
        if digit != '0' || !digits.is_empty() {
            digits.push(digit);
        }
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_in_which_people_look_for_them() {
        let sorted = [
            ".hidden",
            "10",
            "A",
            "a",
            "ab",
            "B",
            "file",
            "file 2",
            "file01",
            "file1",
            "file2",
            "file2.1",
            "file2.10",
            "file10",
            "file99999999999999999999999999",
            "fileX",
            "zUpper",
            "ZUPPER0",
            "Äa",
            "äb",
        ];
        for (at, one) in sorted.iter().enumerate() {
            for (place, other) in sorted.iter().enumerate() {
                let got = compare(one.as_bytes(), other.as_bytes());
                assert_eq!(got, at.cmp(&place), "{one} {other}");
            }
        }
        assert_eq!(compare(b"\xff1", b"\xfe1"), Ordering::Greater);
    }
}
