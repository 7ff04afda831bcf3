//! Replays the corpora of all targets, and mutations of the seeds that are the same in every run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use h2o_fuzz::Target;
use h2o_tls::{OcspError, OcspSubject};

/// Number of mutations for each target: enough to find shallow faults; libFuzzer searches for deeper ones.
const MUTATIONS: u64 = 20_000;
/// Number of mutations for targets where each input takes TLS handshakes, or many calls of Ruby.
const FEW_MUTATIONS: u64 = 2_000;
/// Bytes of the longest seed that is mutated; longer ones are only replayed.
const MUTATED_UP_TO: usize = 4096;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn paths_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry of the directory can be read").path())
        .collect();
    paths.sort();
    paths
}

/// The seeds of a target, in the order of their names.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = paths_in(&directory("corpus").join(target)).into_iter();
    paths
        .map(|path| {
            (
                path.clone(),
                fs::read(path).expect("a seed is a readable file"),
            )
        })
        .collect()
}

/// The names of files and directories without their extensions.
fn names_in(directory: &Path) -> BTreeSet<String> {
    let paths = paths_in(directory);
    let stems = paths.iter().filter_map(|path| path.file_stem());
    stems
        .map(|stem| stem.to_string_lossy().into_owned())
        .collect()
}

#[test]
fn every_target_has_a_binary_and_seeds() {
    let targets: BTreeSet<_> = h2o_fuzz::TARGETS
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(
        targets,
        names_in(&directory("fuzz_targets")),
        "fuzz_targets/ and the list of targets differ"
    );
    assert_eq!(
        targets,
        names_in(&directory("corpus")),
        "corpus/ and the list of targets differ"
    );
    let manifest = fs::read_to_string(directory("Cargo.toml")).unwrap();
    for target in &targets {
        assert!(
            manifest.contains(&format!("name = \"{target}\"")),
            "Cargo.toml does not have the target {target}"
        );
        assert!(!corpus(target).is_empty(), "{target} has no seeds");
    }
}

#[test]
fn corpora_hold() {
    for (target, check) in h2o_fuzz::TARGETS {
        for (path, input) in corpus(target) {
            run(*check, &input, &path.display().to_string());
        }
    }
}

#[test]
fn mutated_corpora_hold() {
    std::thread::scope(|scope| {
        for (target, check) in h2o_fuzz::TARGETS {
            scope.spawn(move || mutate_all(target, *check));
        }
    });
}

fn mutate_all(target: &str, check: Target) {
    let seeds: Vec<_> = corpus(target)
        .into_iter()
        .map(|(_, input)| input)
        .filter(|input| input.len() <= MUTATED_UP_TO)
        .collect();
    let mutations = match target {
        "tls_records"
        | "ruby_json"
        | "ruby_patterns"
        | "ruby_pattern_engines"
        | "script_responses" => FEW_MUTATIONS,
        _ => MUTATIONS,
    };
    for number in 0..mutations {
        let mut random = Random(number);
        let mut input = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(4) {
            let other = &seeds[random.below(seeds.len())];
            mutate(&mut input, other, &mut random);
        }
        input.truncate(MUTATED_UP_TO);
        run(check, &input, &format!("mutation {number} of {target}"));
    }
}

/// Runs the target; if it panics, prints the input.
fn run(check: Target, input: &[u8], name: &str) {
    if let Err(panic) = std::panic::catch_unwind(|| check(input)) {
        eprintln!("{name} does not hold: b\"{}\"", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

/// Byte strings that parsers treat specially, for mutations.
const PIECES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b":",
    b" ",
    b"\t",
    b"\0",
    b"\x7f",
    b"\x80",
    b"%2e",
    b"%00",
    b"/..",
    b"/./",
    b"0\r\n",
    b"1\r\na\r\n",
    b";",
    b",",
    b"=",
    b"-",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Host: b\r\n",
    b"Upgrade: x\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"GET / HTTP/1.1\r\n\r\n",
    b"ffffffffffffffff",
    b"18446744073709551616",
    b"http://",
    b"[::1]",
    b"@",
];

fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let len = random.below(input.len() - at + 1);
    match random.below(7) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = PIECES.concat()[random.below(PIECES.concat().len())],
        2 => drop(input.drain(at..at + len.min(16))),
        3 => {
            let copy = input[at..at + len.min(64)].to_vec();
            input.splice(at..at, copy);
        }
        4 => {
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        5 => input.truncate(at),
        _ => {
            let piece = PIECES[random.below(PIECES.len())];
            input.splice(at..at, piece.iter().copied());
        }
    }
}

/// The random number generator SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % limit as u64).expect("the number is below a limit of type usize")
    }
}

#[test]
fn seeds_of_ocsp_responses_reach_every_kind_of_signer() {
    let subject = OcspSubject::of_pem(h2o_fuzz::OCSP_CHAIN).unwrap();
    let seeds: [(&[u8], Result<bool, OcspError>); 4] = [
        (include_bytes!("../corpus/ocsp_response/good"), Ok(false)),
        (
            include_bytes!("../corpus/ocsp_response/delegated"),
            Ok(false),
        ),
        (
            include_bytes!("../corpus/ocsp_response/revoked-open-ended"),
            Ok(true),
        ),
        (
            include_bytes!("../corpus/ocsp_response/try-later"),
            Err(OcspError::Refused(3)),
        ),
    ];
    for (seed, want) in seeds {
        let status = subject.check(seed, h2o_fuzz::OCSP_TIME);
        assert_eq!(status.map(|status| status.is_revoked), want);
    }
}
