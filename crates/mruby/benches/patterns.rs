//! Benchmark of searches with regular expressions in scripts. One operation is a hundred searches, which the script contains one after
//! the other, without a loop.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::hint::black_box;
use std::rc::Rc;

use h2o_mruby::{Finish, Leave, Options, Value, Vm};

/// Number of searches in one operation of the benchmark.
const SEARCHES: usize = 100;

struct Defined;

impl Finish for Defined {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        result
            .map(drop)
            .map_err(|exception| panic!("{}", vm.describe(exception)))
    }
}

fn main() {
    let bench = kit::Bench::from_arguments();
    for (name, title, pattern, text, search) in [
        (
            "match",
            "100 times `match?`, which finds a version of HTTP",
            r"\A(HTTP\/3|HTTP\/2|HTTP\/1\.1)\z",
            "HTTP/1.1",
            "pattern.match?(text)",
        ),
        (
            "no-match",
            "100 times `match?`, which finds no extension",
            r"(\/banned_file|\.mp3)\z",
            "/articles/2026/index.html",
            "pattern.match?(text)",
        ),
        (
            "literal",
            "100 times `match?` of a literal, looked up each time",
            r"\.html",
            "/test.html",
            "/PATTERN/.match?(text)",
        ),
        (
            "include",
            "100 times `include?`, to compare with",
            "",
            "/test.html",
            "text.include?('.html')",
        ),
    ] {
        bench.case(name, title, || searches(pattern, text, search));
    }
}

fn searches(pattern: &str, text: &str, search: &str) -> impl FnMut() + use<> {
    let vm = Vm::open(Options::default()).expect("the Ruby library can be used");
    let search = search.replace("PATTERN", pattern);
    let many = format!("{search}\n").repeat(SEARCHES);
    let script =
        format!("pattern, text = /{pattern}/, '{text}'\n$searches = lambda do\n{many}end\n");
    vm.scope(|| {
        let code = vm.compile(&script, "bench.rb", 1);
        let code = code.expect("the script is well-formed");
        vm.evaluate(code, 1, Rc::new(Defined));
    });
    let block = vm.scope(|| {
        vm.global("$searches")
            .expect("the script has set $searches")
    });
    move || {
        let found = vm.scope(|| vm.yield_to(block, &[]).map(Value::is_true));
        black_box(found).expect("the search raises no exception");
    }
}
