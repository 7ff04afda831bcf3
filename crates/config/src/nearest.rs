//! Finds the word for which a misspelt word was probably meant.

/// Words of more bytes than this are not compared, since that would take long.
const MAX_LEN: usize = 64;

/// The word in `among` that is most similar to `word`, if it is similar enough for a misspelling, and none of the others is as similar.
/// Letter case is ignored.
pub fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_LEN {
        return None;
    }
    let word = word.to_lowercase();
    let len = word.chars().count();
    // For a word of one letter, such as `1` instead of `ON`, any suggestion would be arbitrary.
    if len < 2 {
        return None;
    }
    let mut best: Option<(usize, Option<&str>)> = None;
    for candidate in among.filter(|candidate| candidate.len() <= MAX_LEN) {
        // The number of insertions, deletions, replacements and swaps of adjacent letters that turn one word into the
        // other.
        let distance = strsim::osa_distance(&word, &candidate.to_lowercase());
        // A word counts as a misspelling if at most a third of its letters are wrong; one wrong letter is always allowed.
        let limit = (len.max(candidate.chars().count()) / 3).max(1);
        if distance > limit {
            continue;
        }
        match &mut best {
            Some((least, _)) if *least < distance => {}
            Some((least, found)) if *least == distance => {
                *found = found.filter(|found| *found == candidate);
            }
            _ => best = Some((distance, Some(candidate))),
        }
    }
    best.and_then(|(_, candidate)| candidate)
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
            "TLSv1.2",
            "TLSv1.3",
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
            ("TLSv1.4", None),
            ("TLS1.3", Some("TLSv1.3")),
            ("1", None),
            ("", None),
        ];
        for (word, want) in cases {
            assert_eq!(nearest(word, names.into_iter()), want, "{word}");
        }
        assert_eq!(nearest(&"listen".repeat(1000), names.into_iter()), None);
    }
}
