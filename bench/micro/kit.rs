//! Shared by all micro-benchmarks: which cases are run, and how. See "Micro-benchmarks" in `bench/README.md`.
//!
//! Without arguments every case is timed: the program prints the median of many rounds, in nanoseconds per operation. `--list` prints names
//! and titles. With the name of a case and a number, that case is run that many times without timing, for a tool that counts instructions.

#![expect(
    clippy::print_stdout,
    reason = "the benchmark prints its results to standard output"
)]

use std::time::{Duration, Instant};

/// What the command line of a benchmark program asks for.
pub(crate) enum Bench {
    Time,
    List,
    Run { name: String, times: u32 },
}

impl Bench {
    pub(crate) fn from_arguments() -> Self {
        // `cargo bench` adds the argument `--bench`.
        let mut arguments = std::env::args().skip(1).filter(|text| text != "--bench");
        match (arguments.next(), arguments.next()) {
            (None, _) => Self::Time,
            (Some(list), None) if list == "--list" => Self::List,
            (Some(name), Some(times)) => Self::Run {
                name,
                times: times
                    .parse()
                    .expect("the second argument is the number of repetitions"),
            },
            (Some(_), None) => {
                panic!("usage: --list, or the name of a case and a number of repetitions")
            }
        }
    }

    /// Runs or lists one case. `prepare` makes the operation, and is called only if it will be run.
    pub(crate) fn case<Work: FnMut()>(
        &self,
        name: &str,
        title: &str,
        prepare: impl FnOnce() -> Work,
    ) {
        match self {
            Self::List => println!("{name}\t{title}"),
            Self::Time => println!("{name:28} {:8.1} ns", median(&mut prepare())),
            Self::Run {
                name: wanted,
                times,
            } if wanted == name => repeat(*times, &mut prepare()),
            Self::Run { .. } => {}
        }
    }
}

/// Calls the operation `times` times. The call is never inlined, so its cost does not depend on the loop around it.
#[inline(never)]
fn repeat(times: u32, work: &mut dyn FnMut()) {
    for _ in 0..times {
        work();
    }
}

/// The median time of many rounds, in nanoseconds per operation.
fn median(work: &mut dyn FnMut()) -> f64 {
    const ROUNDS: usize = 101;
    const ROUND: Duration = Duration::from_millis(1);
    #[expect(
        clippy::disallowed_methods,
        reason = "the benchmark measures time and has no worker's clock"
    )]
    let clock = Instant::now;
    let mut time = |times| {
        let start = clock();
        repeat(times, work);
        start.elapsed()
    };
    let mut times = 1;
    while time(times) < ROUND {
        times *= 2;
    }
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| time(times).as_nanos() as f64 / f64::from(times))
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
