//! Guessing what a misspelt word was meant to be.

/// Words longer than this are not misspelt names, and comparing them would only cost time.
const MAX_LEN: usize = 64;

/// The word of `among` closest to `word`, if one is close enough to be what was meant. Letter case is ignored.
pub fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_LEN {
        return None;
    }
    let word: Vec<char> = word.to_lowercase().chars().collect();
    let mut best = None;
    for candidate in among.filter(|candidate| candidate.len() <= MAX_LEN) {
        let letters: Vec<char> = candidate.to_lowercase().chars().collect();
        // A third of the letters may be wrong, one always.
        let limit = (word.len().max(letters.len()) / 3).max(1);
        // A word as short as its own typing errors (`1` for `ON`) is a guess about nothing.
        if word.len() < 2 || word.len().abs_diff(letters.len()) > limit {
            continue;
        }
        let distance = distance(&word, &letters);
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that make `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, &from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &to) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(from != to);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && from == b[j - 1] && a[i - 1] == to {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_close_enough_are_suggested() {
        let names = [
            "listen",
            "hosts",
            "paths",
            "file.dir",
            "file.dirlisting",
            "num-threads",
            "ON",
        ];
        let cases = [
            ("listn", Some("listen")),
            ("lisetn", Some("listen")),
            ("Listen", Some("listen")),
            ("host", Some("hosts")),
            ("path", Some("paths")),
            ("file.dirs", Some("file.dir")),
            ("num_threads", Some("num-threads")),
            ("file-dir-listing", Some("file.dirlisting")),
            ("server-name", None),
            ("1", None),
            ("", None),
        ];
        for (word, want) in cases {
            assert_eq!(nearest(word, names.into_iter()), want, "{word}");
        }
        assert_eq!(nearest(&"listen".repeat(1000), names.into_iter()), None);
    }

    #[test]
    fn distance_counts_edits() {
        let cases = [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "", 3),
            ("abcd", "abdc", 1),
            ("kitten", "sitting", 3),
        ];
        for (a, b, want) in cases {
            let letters = |word: &str| word.chars().collect::<Vec<_>>();
            assert_eq!(distance(&letters(a), &letters(b)), want, "{a} {b}");
            assert_eq!(distance(&letters(b), &letters(a)), want, "{b} {a}");
        }
    }
}
