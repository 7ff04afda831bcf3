//! A VM of mruby, which belongs to one thread.

#![expect(
    unsafe_code,
    reason = "the shim has the unsafe interface of C functions"
)]

mod classes;
mod roots;
mod values;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::path::PathBuf;
use std::ptr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::environment;
use crate::ffi::{self, Fault, Memory, Op, State, Work};
use crate::function::{Function, Leave};
use crate::strand::{IdleStrands, Strand};
use crate::watchdog::Watched;
use crate::{Kind, Value, regexp};

pub use roots::Rooted;
pub use values::{LazyHash, PlainResponse};

/// Memory in bytes that a VM needs to start, and to report that there is no more.
const LEAST_MEMORY: usize = 4 * 1024 * 1024;

/// Name and version of the library mruby.
#[must_use]
pub fn version() -> &'static str {
    // SAFETY: the shim returns a constant text.
    unsafe { CStr::from_ptr(ffi::shim_version()) }
        .to_str()
        .unwrap_or("mruby")
}

/// A function that defines classes and methods in a VM that is being opened.
pub type Part = fn(&Vm) -> Result<(), Value>;

/// Settings of a VM.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum memory of Ruby's objects and code in bytes. A script that needs more gets `NoMemoryError`.
    pub memory_limit: usize,
    /// How long a script may run without waiting; zero for no limit. A script that runs longer is interrupted by
    /// `H2O::TimeLimitError`.
    pub time_limit: Duration,
    /// Functions that define further classes and methods.
    pub parts: &'static [Part],
    /// Further texts in Ruby that are loaded before any script: their file names and the texts.
    pub prelude: &'static [(&'static str, &'static str)],
    /// The directory of the installation, which scripts see as `$H2O_ROOT`; `require` looks below it.
    pub root: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_limit: 256 * 1024 * 1024,
            time_limit: Duration::from_secs(10),
            parts: &[],
            prelude: &[],
            root: "/usr/local".into(),
        }
    }
}

/// Why a VM could not be opened.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// A syntax error in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileFault {
    /// The line, counted from the line number that was passed to [`Vm::compile`].
    pub line: u32,
    /// The column, counted from 0.
    pub column: u32,
    /// The message of the compiler.
    pub message: String,
}

/// Checks the syntax of a script without running it.
///
/// # Errors
/// Returns the first syntax error.
pub fn check(text: &[u8], file: &str, line: u32) -> Result<(), CompileFault> {
    let opened = Vm::open_bare(&Options::default());
    let vm = opened.map_err(|error| CompileFault {
        line,
        column: 0,
        message: error.to_string(),
    })?;
    vm.scope(|| vm.compile(text, file, line)).map(drop)
}

/// The function that is called with the exception of a failed task, since no caller waits for its result.
type LostHook = Box<dyn Fn(&Vm, Value)>;

/// The function that is called when a script has reached a limit; see [`Vm::on_exhausted`].
type ExhaustedHook = Box<dyn Fn(&Vm)>;

/// How many parts of the garbage behind a limit are collected before the next script runs, each of some thousand objects. They take about
/// half as long as a script runs that leaves as many objects in 50 ms as it can.
const PARTS_AT_ONCE: u32 = 40;

/// A VM of mruby. It stays on its thread. Rust functions that Ruby calls may use its methods, also those that run Ruby code.
pub struct Vm {
    raw: *mut State,
    memory: Box<std::cell::UnsafeCell<Memory>>,
    this: Weak<Self>,
    pub(crate) functions: RefCell<Vec<Function>>,
    locals: RefCell<FxHashMap<TypeId, Rc<dyn Any>>>,
    pub(crate) patterns: regexp::State,
    strand_class: Cell<u64>,
    /// Symbols that every request needs; they are stored since looking them up would cost more than using them.
    /// `resume_name` is the method that resumes a strand, `source_name` the key of the source of a lazy Hash.
    pub(crate) resume_name: Cell<u64>,
    pub(crate) source_name: Cell<u64>,
    copies_hashes: Cell<bool>,
    /// An Array, registered with the garbage collector, of all values that Rust has rooted.
    roots: Cell<u64>,
    free_roots: RefCell<Vec<usize>>,
    root_count: Cell<usize>,
    /// The record by which the watchdog interrupts scripts that do not end; dropped after the VM is closed.
    pub(crate) watched: Arc<Watched>,
    /// Number of [`Entered`] values that exist: how often the VM is entered.
    entries: Cell<u32>,
    /// The sum that [`Vm::report_memory_to`] was given, and how many of its bytes are those of this VM.
    total: RefCell<Option<(Rc<Cell<usize>>, usize)>>,
    /// The exceptions that are raised when a script reaches its time limit or its memory limit.
    pub(crate) interrupts: RefCell<Option<[Rooted; 2]>>,
    pub(crate) time_limit: Duration,
    /// See [`Options::root`].
    pub(crate) root: PathBuf,
    lost: RefCell<Option<LostHook>>,
    exhausted: RefCell<Option<ExhaustedHook>>,
    /// How many collections in parts have to end until the garbage of scripts that reached a limit is collected; 0 for none.
    collections_due: Cell<u8>,
    /// Whether a script has reached a limit, so that a full collection is due, and new exceptions for the next script.
    pub(crate) is_exhausted: Cell<bool>,
    /// Indices in `roots` of the [`Rooted`] values that were dropped while the garbage collector ran. They are freed when the
    /// VM is entered next.
    released: RefCell<Vec<usize>>,
    /// The strands (fibers of scripts) that run, wait or are idle. The garbage collector may free all other strands.
    pub(crate) strands: RefCell<FxHashMap<u64, Strand>>,
    /// Number of strands that were made.
    pub(crate) strand_count: Cell<u64>,
    pub(crate) idle: RefCell<IdleStrands>,
    /// Depth of nested strands: each was begun or resumed by a function that another running strand has called.
    pub(crate) depth: Cell<u32>,
    /// The strand that began to wait last.
    pub(crate) paused: Cell<u64>,
}

thread_local! {
    /// The VM that runs on this thread; null if none does.
    static CURRENT: Cell<*const Vm> = const { Cell::new(ptr::null()) };
}

/// The time during which a VM is entered. When dropped, restores the garbage collector's arena, and the VM that ran before.
pub(crate) struct Entered<'a> {
    vm: &'a Vm,
    arena: c_int,
    before: *const Vm,
    /// The watch that was active on this thread before; `None` if this VM was entered already.
    watch: Option<*mut ffi::Watch>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: `shim_arena_save` returned this index for the same VM.
        unsafe { ffi::shim_arena_restore(self.vm.raw, self.arena) };
        self.vm.entries.set(self.vm.entries.get() - 1);
        if let Some(before) = self.watch {
            // SAFETY: `before` is what `shim_watch_enter` returned when the VM was entered.
            let interrupts = unsafe { ffi::shim_watch_leave(self.vm.watched.watch, before) };
            if interrupts > 0 {
                self.vm.request_collection();
            }
            self.vm.report_memory(self.vm.memory());
        }
        CURRENT.set(self.before);
    }
}

impl Vm {
    /// Opens a VM, and tests whether the library behaves as the shim expects.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or if the library is not usable.
    pub fn open(options: Options) -> Result<Rc<Self>, Error> {
        let vm = Self::open_bare(&options)?;
        let prepared = vm.prepare(&options);
        prepared.map_err(|text| {
            let version = version();
            Error(format!(
                "the Ruby library ({version}) cannot be used: {text}"
            ))
        })?;
        Ok(vm)
    }

    fn open_bare(options: &Options) -> Result<Rc<Self>, Error> {
        let memory = Box::new(std::cell::UnsafeCell::new(Memory {
            used: 0,
            limit: options.memory_limit.max(LEAST_MEMORY),
            most: 0,
            watch: ptr::null_mut(),
        }));
        // SAFETY: the memory record lives as long as the VM, in a box that does not move.
        let raw = unsafe { ffi::shim_open(memory.get()) };
        if raw.is_null() {
            return Err(Error("a Ruby VM cannot be opened: no memory".into()));
        }
        let Some(watched) = Watched::new(raw, memory.get(), options.time_limit) else {
            // SAFETY: the VM is open, nothing refers to it, and it has no watch.
            unsafe { ffi::shim_close(raw, ptr::null_mut()) };
            return Err(Error("a Ruby VM cannot be opened: no memory".into()));
        };
        let vm = Rc::new_cyclic(|this| Self {
            raw,
            memory,
            this: Weak::clone(this),
            functions: RefCell::default(),
            locals: RefCell::default(),
            patterns: regexp::State::default(),
            strand_class: Cell::new(Value::nil().0),
            resume_name: Cell::new(Value::nil().0),
            source_name: Cell::new(Value::nil().0),
            copies_hashes: Cell::default(),
            roots: Cell::new(Value::nil().0),
            free_roots: RefCell::default(),
            root_count: Cell::new(0),
            watched,
            entries: Cell::new(0),
            total: RefCell::default(),
            interrupts: RefCell::default(),
            time_limit: options.time_limit,
            root: options.root.clone(),
            lost: RefCell::default(),
            exhausted: RefCell::default(),
            collections_due: Cell::default(),
            is_exhausted: Cell::new(false),
            released: RefCell::default(),
            strands: RefCell::default(),
            strand_count: Cell::new(0),
            idle: RefCell::default(),
            depth: Cell::new(0),
            paused: Cell::new(Value::nil().0),
        });
        Ok(vm)
    }

    fn prepare(&self, options: &Options) -> Result<(), String> {
        let _arena = self.enter();
        let prepared = || {
            let roots = self.run(Op::Array, |_| ())?;
            self.roots.set(roots.0);
            // SAFETY: the VM is open, and `roots` is a value of it.
            unsafe {
                ffi::shim_register(self.raw, roots.0);
                ffi::shim_prepare(self.raw, self.watched.watch);
            }
            self.resume_name.set(self.symbol("__h2o_resume")?.0);
            // A name that no script uses as a key.
            self.source_name.set(self.symbol("H2O::Env source")?.0);
            let module = self.module(None, "H2O")?;
            self.define_strands(module)?;
            for define in environment::PARTS.iter().chain(options.parts) {
                define(self)?;
            }
            for (name, text) in environment::PRELUDE.iter().chain(options.prelude) {
                self.load(text, name, 1)?;
            }
            self.strand_class
                .set(self.constant(Some(module), "Strand")?.0);
            let base = self.constant(None, "Exception")?;
            self.class(Some(module), "TimeLimitError", Some(base))?;
            self.prepare_interrupts()?;
            Ok(())
        };
        prepared().map_err(|exception: Value| self.describe(exception))?;
        self.test_itself()?;
        self.watched.begin();
        Ok(())
    }

    /// Tests that the library works: runs one job that returns a value and one that raises an exception.
    fn test_itself(&self) -> Result<(), String> {
        #[derive(Default)]
        struct Seen(RefCell<Vec<String>>);
        impl crate::Finish for Seen {
            fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
                let text = match result {
                    Ok(value) => format!("{:?}", value.as_integer()),
                    // Not what `inspect` returns: its format differs between versions of the library.
                    Err(exception) => {
                        let message = vm.text_of(exception).unwrap_or_default();
                        let message = String::from_utf8_lossy(&message);
                        format!("{}: {message}", vm.class_name(exception))
                    }
                };
                self.0.borrow_mut().push(text);
                Ok(())
            }
        }
        let compile = |text: &str| {
            self.compile(text, "self-test", 1)
                .map_err(|fault| fault.message)
        };
        let seen = Rc::new(Seen::default());
        for text in [
            "x = 40; [1].each { |y| x += y }; x + 1",
            // The method is that of a class without a name, so that scripts do not find it.
            "Class.new { def fail; raise 'expected'; end }.new.fail",
        ] {
            let _arena = self.enter();
            let code = compile(text)?;
            self.evaluate(code, 0, Rc::clone(&seen) as Rc<dyn crate::Finish>);
        }
        let seen = seen.0.borrow();
        if *seen != ["Some(42)", "RuntimeError: expected"] {
            return Err(format!(
                "two test scripts gave {seen:?} in place of the expected results"
            ));
        }
        Ok(())
    }

    /// Enters the VM. Values that Rust makes from now on are valid until the result is dropped.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let before = CURRENT.replace(self);
        let is_first = self.entries.get() == 0;
        self.entries.set(self.entries.get() + 1);
        while let Some(slot) = self.take_released() {
            self.release(slot);
        }
        // SAFETY: the VM is open.
        let arena = unsafe { ffi::shim_arena_save(self.raw) };
        // Done before the watchdog counts: the next script must not pay for the garbage of a script that reached a limit.
        if is_first && self.is_exhausted.replace(false) {
            regexp::forget_kept(self);
            self.plan_collection();
            let _ = self.prepare_interrupts();
        }
        // SAFETY: the VM is open, and `Entered` leaves it when it is dropped.
        let watch = is_first.then(|| unsafe { ffi::shim_watch_enter(self.watched.watch) });
        Entered {
            vm: self,
            arena,
            before,
            watch,
        }
    }

    /// Runs `work` in the VM. Values that `work` makes are valid until it returns.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let _arena = self.enter();
        work()
    }

    pub(crate) fn with_current<T>(run: impl FnOnce(&Self) -> T) -> T {
        let current = Self::current();
        run(current.expect("Ruby runs only after `enter`"))
    }

    /// The VM that this thread has entered; `None` if there is none.
    pub(crate) fn current<'a>() -> Option<&'a Self> {
        // SAFETY: `enter` borrows the VM until it restores the pointer, and the callers use it only meanwhile.
        unsafe { CURRENT.get().as_ref() }
    }

    pub(crate) fn function(&self, number: i64) -> Option<Function> {
        let number = usize::try_from(number).ok()?;
        self.functions.borrow().get(number).copied()
    }

    pub(crate) fn strand_class(&self) -> Value {
        Value(self.strand_class.get())
    }

    /// The running fiber, or `nil` if it is not a strand; and whether it can wait at this point.
    pub(crate) fn current_fiber(&self) -> (Value, bool) {
        if self.strand_class().is_nil() {
            return (Value::nil(), false);
        }
        let mut can_wait = 0;
        // SAFETY: the class is a constant of the VM, so that it is valid.
        let strand = unsafe {
            ffi::shim_current_strand(self.raw, self.strand_class.get(), &raw mut can_wait)
        };
        (Value(strand), can_wait != 0)
    }

    /// Executes one operation of the shim, which may raise an exception.
    pub(crate) fn run(&self, op: Op, fill: impl FnOnce(&mut Work)) -> Result<Value, Value> {
        let mut work = self.work(op);
        fill(&mut work);
        self.execute(&mut work)
    }

    /// The record of an operation, which the caller completes for [`Vm::execute`].
    pub(crate) fn work(&self, op: Op) -> Work {
        Work {
            mrb: self.raw,
            op: op as c_int,
            failed: 0,
            a: Value::nil().0,
            b: Value::nil().0,
            c: Value::nil().0,
            text: ptr::null(),
            len: 0,
            values: ptr::null(),
            count: 0,
            number: 0.0,
            file: ptr::null(),
            line: 0,
            fault: ptr::null_mut(),
            watch: ptr::null_mut(),
            object: ptr::null_mut(),
        }
    }

    /// Executes an operation whose record is complete.
    pub(crate) fn execute(&self, work: &mut Work) -> Result<Value, Value> {
        let before = CURRENT.replace(self);
        // SAFETY: the record is complete for this operation: the callers fill in what the shim reads for it.
        let value = Value(unsafe { ffi::shim_run(work) });
        CURRENT.set(before);
        if work.failed == 0 {
            Ok(value)
        } else {
            Err(value)
        }
    }

    fn run_named(
        &self,
        op: Op,
        name: impl AsRef<[u8]>,
        fill: impl FnOnce(&mut Work),
    ) -> Result<Value, Value> {
        let name = name.as_ref();
        self.run(op, |work| {
            work.text = name.as_ptr();
            work.len = name.len();
            fill(work);
        })
    }

    // ---- calling Ruby from Rust ----

    /// Calls a method.
    ///
    /// # Errors
    /// Returns the exception that the method raises.
    pub fn call(&self, receiver: Value, name: &str, arguments: &[Value]) -> Result<Value, Value> {
        self.call_with_block(receiver, name, arguments, Value::nil())
    }

    /// Calls a method with a block. Neither the method nor the block can wait.
    ///
    /// # Errors
    /// Returns the exception that the method raises.
    pub fn call_with_block(
        &self,
        receiver: Value,
        name: &str,
        arguments: &[Value],
        block: Value,
    ) -> Result<Value, Value> {
        self.run_named(Op::Call, name, |work| {
            (work.a, work.c) = (receiver.0, block.0);
            work.values = arguments.as_ptr().cast();
            work.count = arguments.len();
        })
    }

    /// Calls a block or Proc.
    ///
    /// # Errors
    /// Returns the exception that the block raises, or `TypeError` if `block` is not a Proc.
    pub fn yield_to(&self, block: Value, arguments: &[Value]) -> Result<Value, Value> {
        self.expect_kind(block, Kind::Proc)?;
        self.run(Op::Yield, |work| {
            work.a = block.0;
            work.values = arguments.as_ptr().cast();
            work.count = arguments.len();
        })
    }

    /// Whether the object has a method of this name.
    #[must_use]
    pub fn responds_to(&self, value: Value, name: &str) -> bool {
        let Ok(name) = self.symbol(name) else {
            return false;
        };
        self.call(value, "respond_to?", &[name])
            .is_ok_and(Value::is_true)
    }

    /// Runs a text in Ruby at the top level. Only for texts of the program itself, before any script runs.
    ///
    /// # Errors
    /// Returns the exception that the text raises; a syntax error is one, too.
    pub fn load(&self, text: &str, file: &str, line: u32) -> Result<Value, Value> {
        let file = to_c(file);
        let line = c_int::try_from(line).unwrap_or(c_int::MAX);
        self.run_named(Op::Load, text, |work| {
            work.file = file.as_ptr();
            work.line = line;
        })
    }

    /// Whether a compiled script may copy Hashes by `**`. The VM does this without a call of a method, so the copy of a
    /// [lazy Hash](LazyHash) lacks the entries that were not read before.
    #[must_use]
    pub const fn copies_hashes(&self) -> bool {
        self.copies_hashes.get()
    }

    /// Compiles a script, whose first line has the number `line` in `file`. The code that is returned is for
    /// [`Vm::evaluate`]; it is valid as long as other values are.
    ///
    /// # Errors
    /// Returns the first syntax error.
    pub fn compile(
        &self,
        text: impl AsRef<[u8]>,
        file: &str,
        line: u32,
    ) -> Result<Value, CompileFault> {
        let mut fault = Fault {
            line: 0,
            column: 0,
            len: 0,
            message: [0; 512],
        };
        let is_copying = text.as_ref().windows(2).any(|pair| pair == b"**");
        self.copies_hashes
            .set(self.copies_hashes.get() || is_copying);
        let file = to_c(file);
        let start = c_int::try_from(line).unwrap_or(c_int::MAX);
        let compiled = self.run_named(Op::Compile, text.as_ref(), |work| {
            work.file = file.as_ptr();
            work.line = start;
            work.fault = &raw mut fault;
            work.watch = self.watched.watch;
        });
        let placed = |message: String| CompileFault {
            line: u32::try_from(fault.line).unwrap_or(line),
            column: u32::try_from(fault.column).unwrap_or(0),
            message,
        };
        match compiled {
            Ok(_) if fault.len > 0 => Err(placed(
                String::from_utf8_lossy(&fault.message[..fault.len]).into_owned(),
            )),
            Ok(code) => Ok(code),
            Err(exception) => Err(placed(self.describe(exception))),
        }
    }

    /// Runs compiled code in a strand at once, until it waits or ends. `finish` receives the result; `context` is that of
    /// the strand.
    pub fn evaluate(&self, code: Value, context: u64, finish: Rc<dyn crate::Finish>) {
        let _arena = self.enter();
        let module = self.constant(None, "H2O");
        match module.and_then(|module| self.constant(Some(module), "Evaluator")) {
            Ok(evaluator) => self.spawn(evaluator, code, context, finish),
            Err(exception) => {
                let _ = finish.finish(self, Err(exception));
            }
        }
    }

    // ---- other methods ----

    /// Sets the function that is called with the exception of a failed task, which nothing else receives.
    pub fn on_lost(&self, hook: impl Fn(&Self, Value) + 'static) {
        *self.lost.borrow_mut() = Some(Box::new(hook));
    }

    /// Sets the function that is called when garbage is to be collected ([`Vm::request_collection`]). It has to see to it that
    /// [`Vm::collect_some`] is called again and again, with pauses for the requests of others, until all is collected, and then
    /// [`Vm::give_back_memory`].
    pub fn on_exhausted(&self, hook: impl Fn(&Self) + 'static) {
        *self.exhausted.borrow_mut() = Some(Box::new(hook));
    }

    /// Has the garbage collected, in parts, from the end of the running script's turn on: called when a script has reached a limit, and when
    /// many objects hold something that is not memory, such as a connection.
    pub fn request_collection(&self) {
        if !self.is_exhausted.replace(true)
            && let Some(hook) = &*self.exhausted.borrow()
        {
            hook(self);
        }
    }

    /// A script has reached a limit, and may have left much garbage, which [`Vm::collect_some`] is to collect. A part of it is collected now,
    /// and more if memory is short, as much as the next script may need. If nobody calls `collect_some`, all of it is collected now, which may take
    /// as long as the script ran.
    fn plan_collection(&self) {
        if self.exhausted.borrow().is_none() {
            self.collect();
            return;
        }
        // A collection that is under way began before the garbage was there, so that another one has to follow it.
        let due = if self.collections_due.get() == 0 {
            1
        } else {
            2
        };
        self.collections_due.set(due);
        // Some parts at once, so that not all of the garbage is still there if the next script leaves as much.
        let has_ended = (0..PARTS_AT_ONCE).any(|_| self.collect_part());
        let eighth = self.memory_limit() / 8;
        if !has_ended && self.memory() > eighth * 6 {
            while self.memory() > eighth * 5 && !self.collect_part() {}
        }
    }

    /// Collects a part of the garbage that scripts have left which reached a limit, in a few milliseconds at most; the last part takes as long
    /// as the collection of all objects that live. Returns whether all has been collected.
    pub fn collect_some(&self) -> bool {
        let _entered = self.enter();
        self.collect_part()
    }

    fn collect_part(&self) -> bool {
        let due = self.collections_due.get();
        if due == 0 {
            return true;
        }
        let left = match self.run(Op::CollectStep, |_| ()) {
            Ok(has_ended) => due - u8::from(has_ended.is_true()),
            Err(_) => {
                self.collect();
                0
            }
        };
        self.collections_due.set(left);
        if left == 0 {
            let _ = self.run(Op::EndSteps, |_| ());
        }
        left == 0
    }

    /// Returns free memory to the system.
    pub fn give_back_memory(&self) {
        give_back_free_memory();
    }

    pub(crate) fn report_lost(&self, exception: Value) {
        if let Some(hook) = &*self.lost.borrow() {
            hook(self, exception);
        }
    }

    /// The VM's state of type `T`, which is made on first use.
    pub fn local<T: Default + 'static>(&self) -> Rc<T> {
        let mut locals = self.locals.borrow_mut();
        let value = locals
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Rc::new(T::default()));
        Rc::clone(value)
            .downcast()
            .unwrap_or_else(|_| unreachable!("each entry is stored under its own type"))
    }

    /// Runs a full garbage collection.
    pub fn collect(&self) {
        let _ = self.run(Op::Collect, |work| work.watch = self.watched.watch);
    }

    /// Bytes of memory that Ruby's objects, code and compiled regular expressions use.
    #[must_use]
    pub fn memory(&self) -> usize {
        // SAFETY: only the allocator writes the record, and it does not run meanwhile.
        unsafe { (*self.memory.get()).used }
    }

    /// The limit of [`Vm::memory`], in bytes.
    pub fn memory_limit(&self) -> usize {
        // SAFETY: no thread writes the limit.
        unsafe { (*self.memory.get()).limit }
    }

    /// Checks whether the running script has run for too long. A function in Rust that may work for long calls this from time to time:
    /// the script itself is interrupted only between two instructions.
    ///
    /// # Errors
    /// The exception of the time limit.
    pub(crate) fn check_time(&self) -> Result<(), Leave> {
        // SAFETY: the record lives as long as the VM.
        if unsafe { ffi::shim_watch_is_overdue(self.watched.watch) } == 0 {
            return Ok(());
        }
        let interrupts = self.interrupts.borrow();
        let [time, _] = interrupts
            .as_ref()
            .ok_or_else(|| Leave::runtime("the script was stopped"))?;
        Err(Leave::Raise(time.value()))
    }

    /// Adds bytes that Rust has allocated on behalf of a script to the VM's memory. If the memory comes close to its limit, the running
    /// script is interrupted.
    pub(crate) fn charge(&self, bytes: usize) {
        // SAFETY: the record belongs to this VM, and nothing else uses the record during the call.
        unsafe { ffi::limits_charge(self.memory.get(), bytes) };
    }

    /// Subtracts bytes that were [added](Vm::charge) before from the VM's memory.
    pub(crate) fn refund(&self, bytes: usize) {
        // SAFETY: the record belongs to this VM, and nothing else uses the record meanwhile.
        unsafe { (*self.memory.get()).used -= bytes };
    }

    /// Adds [`Vm::memory`] of this VM to `total`, which can be the sum of several VMs, until this VM is closed. The sum is brought up to
    /// date whenever the VM is left.
    pub fn report_memory_to(&self, total: Rc<Cell<usize>>) {
        let now = self.memory();
        total.set(total.get() + now);
        *self.total.borrow_mut() = Some((total, now));
    }

    fn report_memory(&self, now: usize) {
        if let Some((total, reported)) = &mut *self.total.borrow_mut() {
            total.set(total.get() - *reported + now);
            *reported = now;
        }
    }

    /// Number of values that Rust has rooted.
    #[must_use]
    pub fn kept_values(&self) -> usize {
        self.root_count.get() - self.free_roots.borrow().len() - self.released.borrow().len()
    }

    /// A weak reference to this VM.
    #[must_use]
    pub fn reference(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.locals.get_mut().clear();
        let before = CURRENT.replace(self);
        // SAFETY: no strand runs, since this was the last reference to the VM.
        unsafe { ffi::shim_close(self.raw, self.watched.watch) };
        #[cfg(test)]
        if !std::thread::panicking() {
            assert_eq!(self.memory(), 0, "a closed VM keeps no memory");
        }
        CURRENT.set(before);
        self.report_memory(0);
        give_back_free_memory();
    }
}

/// Returns free memory of the C library's allocator to the system.
fn give_back_free_memory() {
    // SAFETY: the function may be called at any time.
    unsafe { ffi::limits_trim() };
}

/// A text as a C string; it ends at the first NUL of the text.
fn to_c(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}
