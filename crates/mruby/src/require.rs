//! Ruby's `require` and `load`: finding files, and compiling them. The methods themselves are in `prelude/require.rb`, so
//! that the top level of a file can wait.

use std::cell::RefCell;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::function::text_argument;
use crate::{Call, Leave, Rooted, Value, Vm};

/// The folder of the scripts that come with the program, relative to `$H2O_ROOT`.
const FOLDER: &str = "share/h2o/mruby";

/// Scripts that are built into the program. A file of the same name in the folder of shipped scripts is preferred.
const SHIPPED: &[(&str, &str)] = &[
    (
        "dos_detector.rb",
        include_str!("../../../share/mruby/dos_detector.rb"),
    ),
    (
        "htpasswd.rb",
        include_str!("../../../share/mruby/htpasswd.rb"),
    ),
    (
        "lru_cache.rb",
        include_str!("../../../share/mruby/lru_cache.rb"),
    ),
    (
        "prometheus.rb",
        include_str!("../../../share/mruby/prometheus.rb"),
    ),
    (
        "trie_addr.rb",
        include_str!("../../../share/mruby/trie_addr.rb"),
    ),
];

/// Files that H2O loads before any script. To `require` one of them has no effect, since what it defines exists already.
const LOADED: [&str; 3] = ["bootstrap.rb", "acl.rb", "preloads.rb"];

/// The text of a file, and the code that was compiled from it.
type Code = (Vec<u8>, Rooted);

/// The compiled code of files by path: a file that is loaded repeatedly and has not changed is compiled only once. The code
/// stays in memory until the VM is closed.
#[derive(Default)]
struct Compiled(RefCell<FxHashMap<PathBuf, Code>>);

/// The name of a script in the folder of shipped scripts; `None` if `path` is elsewhere.
fn shipped_name<'a>(vm: &Vm, path: &'a Path) -> Option<&'a str> {
    path.strip_prefix(vm.root.join(FOLDER)).ok()?.to_str()
}

fn shipped_text(name: &str) -> Option<&'static str> {
    let mut scripts = SHIPPED.iter();
    scripts
        .find(|script| script.0 == name)
        .map(|script| script.1)
}

/// The path under which a file is noted as loaded; `None` if there is no such file.
fn existing(vm: &Vm, path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return fs::canonicalize(path).ok();
    }
    let name = shipped_name(vm, path)?;
    (shipped_text(name).is_some() || LOADED.contains(&name)).then(|| path.to_owned())
}

fn load_error(text: &str, path: &Path) -> Leave {
    Leave::New("LoadError", format!("{text} -- {}", path.display()))
}

fn path_of(vm: &Vm, value: Value) -> Result<PathBuf, Leave> {
    let path = text_argument(vm, value)?;
    Ok(OsString::from_vec(path).into())
}

/// The folders of `$LOAD_PATH`.
fn load_path(vm: &Vm) -> Result<Vec<PathBuf>, Leave> {
    let folders = vm.global("$LOAD_PATH")?;
    let folders = vm.elements(folders).unwrap_or_default().into_iter();
    folders.map(|folder| path_of(vm, folder)).collect()
}

/// `H2O.__find(name)` in Ruby: the real path of the file that `require name` means.
fn find(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [name] = call.arguments.exactly()?;
    let name = path_of(vm, name)?;
    let missing = || load_error("cannot load such file", &name);
    let names = match name.extension().map(OsStr::as_bytes) {
        Some(b"rb" | b"mrb") => vec![name.clone()],
        None => vec![name.with_extension("rb"), name.with_extension("mrb")],
        Some(_) => return Err(missing()),
    };
    let starts = name.as_os_str().as_bytes().first();
    let folders = if matches!(starts, Some(b'/' | b'.')) {
        vec![PathBuf::new()]
    } else {
        load_path(vm)?
    };
    let found = names.iter().find_map(|name| {
        let mut paths = folders.iter().map(|folder| folder.join(name));
        paths.find_map(|path| existing(vm, &path))
    });
    let found = found.ok_or_else(missing)?;
    Ok(vm.string(found.into_os_string().into_vec())?)
}

/// `H2O.__read(path)` in Ruby: the compiled code of a file.
fn read(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [path] = call.arguments.exactly()?;
    let path = path_of(vm, path)?;
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) => {
            let shipped = shipped_name(vm, &path).and_then(shipped_text);
            let shipped = shipped.filter(|_| error.kind() == ErrorKind::NotFound);
            let text = shipped.ok_or_else(|| load_error("File not found", &path))?;
            text.as_bytes().to_vec()
        }
    };
    let compiled = vm.local::<Compiled>();
    if let Some((known, code)) = compiled.0.borrow().get(&path)
        && *known == text
    {
        return Ok(code.value());
    }
    let file = path.display().to_string();
    let code = vm.compile(&text, &file, 1).map_err(|fault| {
        let text = format!("{file}:{}: {}", fault.line, fault.message);
        Leave::New("SyntaxError", text)
    })?;
    let rooted = vm.root(code)?;
    let former = compiled.0.borrow_mut().insert(path, (text, rooted));
    drop(former);
    Ok(code)
}

/// An Array of the paths as Strings.
fn strings(vm: &Vm, paths: impl IntoIterator<Item = PathBuf>) -> Result<Value, Value> {
    let array = vm.array(&[])?;
    for path in paths {
        let text = vm.string(path.into_os_string().into_vec())?;
        vm.push(array, text)?;
    }
    Ok(array)
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__find", find)?;
    vm.define_singleton(module, "__read", read)?;
    let folder = vm.root.join(FOLDER);
    let root = vm.string(vm.root.as_os_str().as_bytes())?;
    vm.set_global("$H2O_ROOT", root)?;
    vm.set_global("$\"", strings(vm, LOADED.map(|name| folder.join(name)))?)?;
    let named = env::var_os("MRBLIB").unwrap_or_default();
    let named = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let folders = named.chain([PathBuf::from("."), folder]);
    vm.set_global("$LOAD_PATH", strings(vm, folders)?)
}
