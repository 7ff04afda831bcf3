//! The system calls behind Ruby's `Dir` and `File::Stat`. The classes themselves are in `prelude/files.rb`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::function::text_argument;
use crate::{Arguments, Call, Leave, Value, Vm, errno};

/// Runs `work` with the path that is the first argument. An error becomes an exception of `Errno`.
fn with_path<T>(
    vm: &Vm,
    arguments: Arguments<'_>,
    work: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<T, Leave> {
    let path = text_argument(vm, arguments.get(0))?;
    let path = PathBuf::from(OsString::from_vec(path));
    work(&path).map_err(|error| errno::failed(vm, &error, &path.display().to_string()))
}

/// `H2O.__stat(path, follows)` in Ruby: the numbers of a `File::Stat`. `follows` tells whether symbolic links are followed.
fn stat(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [_, follows] = call.arguments.exactly()?;
    let found = with_path(vm, call.arguments, |path| {
        if follows.is_true() {
            fs::metadata(path)
        } else {
            fs::symlink_metadata(path)
        }
    })?;
    let birth = found.created().ok();
    let birth = birth.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let birth = birth.unwrap_or_default();
    let unsigned = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let numbers = [
        unsigned(found.dev()),
        unsigned(found.ino()),
        found.mode().into(),
        unsigned(found.nlink()),
        found.uid().into(),
        found.gid().into(),
        unsigned(found.rdev()),
        unsigned(found.size()),
        unsigned(found.blksize()),
        unsigned(found.blocks()),
        found.atime(),
        found.atime_nsec() / 1000,
        found.mtime(),
        found.mtime_nsec() / 1000,
        found.ctime(),
        found.ctime_nsec() / 1000,
        unsigned(birth.as_secs()),
        i64::from(birth.subsec_micros()),
        rustix::fs::major(found.dev()).into(),
        rustix::fs::minor(found.dev()).into(),
        rustix::fs::major(found.rdev()).into(),
        rustix::fs::minor(found.rdev()).into(),
    ];
    let array = vm.array(&[])?;
    for number in numbers {
        vm.push(array, vm.integer(number)?)?;
    }
    Ok(array)
}

/// `H2O.__ids` in Ruby: the process's user, group, effective user, effective group and other groups.
fn ids(vm: &Vm, _: &Call<'_>) -> Result<Value, Leave> {
    use rustix::process::{getegid, geteuid, getgid, getgroups, getuid};
    let array = vm.array(&[])?;
    let own = [
        getuid().as_raw(),
        getgid().as_raw(),
        geteuid().as_raw(),
        getegid().as_raw(),
    ];
    let groups = getgroups().unwrap_or_default();
    for id in own
        .into_iter()
        .chain(groups.into_iter().map(|group| group.as_raw()))
    {
        vm.push(array, vm.integer(id.into())?)?;
    }
    Ok(array)
}

/// `H2O.__entries(path)` in Ruby: the names in a directory, with `.` and `..` first.
fn entries(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let names = with_path(vm, call.arguments, |path| {
        let found = fs::read_dir(path)?;
        found
            .map(|entry| Ok(entry?.file_name()))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let array = vm.array(&[])?;
    for name in [OsStr::new("."), OsStr::new("..")]
        .into_iter()
        .chain(names.iter().map(OsString::as_os_str))
    {
        vm.push(array, vm.string(name.as_bytes())?)?;
    }
    Ok(array)
}

fn make_directory(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let mode = call.arguments.get(1).as_integer();
    let mode = mode.and_then(|mode| u32::try_from(mode).ok());
    with_path(vm, call.arguments, |path| {
        DirBuilder::new().mode(mode.unwrap_or(0o777)).create(path)
    })?;
    Ok(vm.integer(0)?)
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__stat", stat)?;
    vm.define_singleton(module, "__ids", ids)?;
    vm.define_singleton(module, "__entries", entries)?;
    vm.define_singleton(module, "__mkdir", make_directory)?;
    vm.define_singleton(module, "__rmdir", |vm, call| {
        with_path(vm, call.arguments, |path| fs::remove_dir(path))?;
        Ok(vm.integer(0)?)
    })?;
    vm.define_singleton(module, "__chdir", |vm, call| {
        with_path(vm, call.arguments, |path| env::set_current_dir(path))?;
        Ok(vm.integer(0)?)
    })?;
    vm.define_singleton(module, "__chroot", |vm, call| {
        with_path(vm, call.arguments, |path| {
            Ok(rustix::process::chroot(path)?)
        })?;
        Ok(vm.integer(0)?)
    })?;
    vm.define_singleton(module, "__getwd", |vm, _| {
        let directory = env::current_dir();
        let directory = directory.map_err(|error| errno::failed(vm, &error, "getcwd"))?;
        Ok(vm.string(directory.into_os_string().into_vec())?)
    })
}
