//! Compiles the shim (`shim.c` and `limits.c`) against the installed mruby, and links mruby's static library.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

fn main() {
    for file in ["src/shim.c", "src/limits.c", "src/limits.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=MRUBY_CONFIG");
    println!("cargo:rerun-if-changed=/usr/bin/mruby-config");
    println!("cargo:rerun-if-changed=/usr/include/mruby.h");

    let program = env::var("MRUBY_CONFIG").unwrap_or_else(|_| "mruby-config".to_owned());
    let (Some(flags), Some(libraries)) = (ask(&program, "--cflags"), ask(&program, "--ldflags"))
    else {
        refuse(&format!("{program} cannot be run"));
    };

    let mut build = cc::Build::new();
    build.files(["src/shim.c", "src/limits.c"]).std("gnu99");
    // Of the flags of the installed mruby, uses those that define `MRB_` macros, which change the layout of its structs,
    // and the include paths that exist on this machine. The other flags belong to the machine on which the package was
    // built.
    for flag in flags.split_whitespace() {
        if flag.starts_with("-DMRB_")
            || flag
                .strip_prefix("-I")
                .is_some_and(|path| Path::new(path).is_dir())
        {
            build.flag(flag);
        }
    }
    if let Err(error) = build.try_compile("h2o_mruby_shim") {
        refuse(&format!("its headers cannot be used: {error}"));
    }

    let named = libraries
        .split_whitespace()
        .filter_map(|flag| flag.strip_prefix("-L"));
    let multiarch = env::var("TARGET")
        .unwrap_or_default()
        .replace("-unknown-", "-");
    let usual = [
        format!("/usr/lib/{multiarch}"),
        "/usr/lib".to_owned(),
        "/usr/local/lib".to_owned(),
    ];
    let mut places = named.map(str::to_owned).chain(usual).map(PathBuf::from);
    let Some(place) = places.find(|place| place.join("libmruby.a").is_file()) else {
        refuse("libmruby.a is not there");
    };
    println!("cargo:rustc-link-search=native={}", place.display());
    println!("cargo:rustc-link-lib=static=mruby");
    println!("cargo:rustc-link-lib=m");
}

/// What mruby-config prints for this option; `None` if it cannot be run or fails.
fn ask(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn refuse(reason: &str) -> ! {
    eprintln!(
        "scripts (mruby.handler) need mruby 3.1 or later, and {reason}.\n\
         Install it (Debian: `apt-get install libmruby-dev mruby`), name its mruby-config in MRUBY_CONFIG,\n\
         or build without scripts: `--no-default-features`."
    );
    exit(1)
}
