//! Strands: the fibers in which scripts run, and in which they may wait.
//!
//! A strand is a loop in Ruby that runs one job after another (`prelude/core.rb`). It catches every exception itself, since
//! an exception that leaves a fiber which C has resumed would corrupt the stack of mruby 3.1.

#![expect(unsafe_code, reason = "objects of Rust are handed to the shim")]

use std::rc::{Rc, Weak};

use rustc_hash::FxHashMap;

use crate::border;
use crate::ffi::Op;
use crate::function::Leave;
use crate::vm::{LazyHash, Rooted};
use crate::{Value, Vm};

/// Maximum number of idle strands (fibers that wait for a job) that are kept for later jobs.
const KEPT: usize = 256;

/// Maximum depth of strands that are resumed by functions that another strand calls: each level takes part of the thread's
/// stack.
const DEEPEST: u32 = 32;

/// Receives the result of a job.
pub trait Finish {
    /// Receives the value of the job, or the exception that ended it. Called within the strand of the job. If this method
    /// raises, the exception is caught and passed to a second call.
    ///
    /// # Errors
    /// Returns the exception to pass to a second call, as if the job had raised it.
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave>;
}

/// Receives the result of a `task`, which no caller waits for. An exception is passed to the hook of [`Vm::on_lost`].
struct Task;

impl Finish for Task {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        if let Err(exception) = result {
            vm.report_lost(exception);
        }
        Ok(())
    }
}

/// A strand that waits. It is used to resume the strand.
pub struct Ticket {
    vm: Weak<Vm>,
    /// The strand that waits; `None` once the ticket was used.
    strand: Option<Value>,
    /// The number of the strand.
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The strand waits, and without its ticket it is never resumed, so the garbage collector may free it.
        if let (Some(strand), Some(vm)) = (self.strand, self.vm.upgrade()) {
            let mut strands = vm.strands.borrow_mut();
            // If the garbage collector has freed the strand already, a new one may have taken its place.
            let is_same = (strands.get(&strand.0)).is_some_and(|known| known.number == self.number);
            let lost = is_same.then(|| strands.remove(&strand.0));
            drop(strands);
            drop(lost);
        }
    }
}

/// A strand: a Ruby fiber that runs jobs.
pub(crate) struct Strand {
    /// Keeps the fiber from the garbage collector; `None` while another Ruby object [holds](Vm::suspend_for) it.
    rooted: Option<Rooted>,
    /// Tells the strand apart from others whose fibers had the same place in memory.
    number: u64,
    /// The Ruby object that the strand calls for each job.
    callable: Value,
    /// Receives the result of the current job; `None` once the job has its result.
    job: Option<Rc<dyn Finish>>,
    /// A value that the caller of [`Vm::spawn`] attaches to the job, such as the number of the handler whose script
    /// it runs.
    context: u64,
    /// Whether the strand waits for a job.
    pub(crate) is_idle: bool,
}

/// The idle strands (fibers that wait for a job), by the Ruby objects that they call for each job.
#[derive(Default)]
pub(crate) struct IdleStrands {
    /// The strand that has become idle last, and what it calls: most often the next job is for it.
    last: Option<(Value, Value)>,
    by_callable: FxHashMap<u64, Vec<Value>>,
    count: usize,
}

impl IdleStrands {
    fn take(&mut self, callable: Value) -> Option<Value> {
        let strand = match self.last {
            Some((called, strand)) if called == callable => {
                self.last = None;
                strand
            }
            _ => self.by_callable.get_mut(&callable.0)?.pop()?,
        };
        self.count -= 1;
        Some(strand)
    }

    /// Keeps an idle strand for a later job. Returns whether there was room for the strand.
    fn keep(&mut self, callable: Value, strand: Value) -> bool {
        if self.count == KEPT {
            return false;
        }
        self.count += 1;
        if let Some((callable, strand)) = self.last.replace((callable, strand)) {
            self.by_callable.entry(callable.0).or_default().push(strand);
        }
        true
    }
}

impl Vm {
    /// Runs `callable.call(argument)` in a strand at once, until it waits or ends. `finish` receives the result. While the
    /// strand runs, [`Vm::context`] returns `context`.
    ///
    /// A Rust function that another strand has called may call this method, too: that strand continues afterwards.
    pub fn spawn(&self, callable: Value, argument: Value, context: u64, finish: Rc<dyn Finish>) {
        let _arena = self.enter();
        if let Some(strand) = self.prepare_strand(callable, context, finish) {
            self.go_on(strand, argument);
        }
    }

    /// Like [`Vm::spawn`]; the argument is a new lazy Hash, which owns `source`.
    pub fn spawn_lazy<T: 'static>(
        &self,
        callable: Value,
        hash: LazyHash,
        source: T,
        context: u64,
        finish: Rc<dyn Finish>,
    ) {
        let _arena = self.enter();
        let Some(strand) = self.prepare_strand(callable, context, finish) else {
            return;
        };
        self.run_strand(strand, |vm| {
            let source = border::own(source);
            let mut work = vm.work(Op::Begin);
            (work.a, work.b, work.c) = (strand.0, vm.resume_name.get(), vm.source_name.get());
            work.values = (&raw const hash).cast();
            work.object = source.cast();
            let result = vm.execute(&mut work);
            if !work.object.is_null() {
                // SAFETY: there was no memory for the Hash, so nothing owns the source.
                unsafe { border::disown(source) };
            }
            result
        });
    }

    /// Gives a strand that calls `callable` a job. If there is no memory for a strand, `finish` receives the exception.
    fn prepare_strand(
        &self,
        callable: Value,
        context: u64,
        finish: Rc<dyn Finish>,
    ) -> Option<Value> {
        match self.strand_for(callable) {
            Ok(strand) => {
                if let Some(known) = self.strands.borrow_mut().get_mut(&strand.0) {
                    (known.job, known.context, known.is_idle) = (Some(finish), context, false);
                }
                Some(strand)
            }
            Err(exception) => {
                let _ = finish.finish(self, Err(exception));
                None
            }
        }
    }

    /// Resumes a strand that waits: the method in which it waits returns `value`. If the value is an exception, the methods
    /// of the prelude raise it.
    ///
    /// A Rust function that another strand has called may call this method, too: that strand continues afterwards.
    pub fn resume(&self, mut ticket: Ticket, value: impl FnOnce(&Self) -> Value) {
        let Some(strand) = ticket.strand.take() else {
            return;
        };
        let _arena = self.enter();
        let value = value(self);
        let is_held = self.holds(strand, ticket.number);
        if is_held == Some(false) {
            match self.root(strand) {
                Ok(rooted) => {
                    if let Some(known) = self.strands.borrow_mut().get_mut(&strand.0) {
                        known.rooted = Some(rooted);
                    }
                }
                Err(exception) => {
                    self.lose(strand, exception);
                    return;
                }
            }
        }
        if is_held.is_some() {
            self.go_on(strand, value);
        }
    }

    /// Number of jobs and tasks that have begun and not ended.
    pub fn unfinished(&self) -> usize {
        let strands = self.strands.borrow();
        let unfinished = strands.values().filter(|known| known.job.is_some());
        unfinished.count()
    }

    /// Whether a strand that waits is kept from the garbage collector by this VM; `None` if there is no such strand.
    fn holds(&self, strand: Value, number: u64) -> Option<bool> {
        let strands = self.strands.borrow();
        let known = strands.get(&strand.0)?;
        (known.number == number).then_some(known.rooted.is_some())
    }

    /// Makes the running strand wait until the ticket is used; the caller must return [`Leave::Wait`]. If the ticket is
    /// dropped, the strand is never resumed, and the garbage collector takes it.
    ///
    /// # Errors
    /// Raises `FiberError` if a wait is impossible: outside of strands, in fibers that the script has made, and below
    /// functions of C.
    pub fn suspend(&self) -> Result<Ticket, Leave> {
        let (strand, can_wait) = self.current_fiber();
        if !can_wait {
            let text = if strand.is_nil() {
                "cannot wait here: only handlers and tasks can, and fibers made by a script cannot (use `task`)"
            } else {
                "can't cross C function boundary"
            };
            return Err(Leave::New("FiberError", text.into()));
        }
        self.paused.set(strand.0);
        let strands = self.strands.borrow();
        let number = strands.get(&strand.0).map_or(0, |known| known.number);
        Ok(Ticket {
            vm: self.reference(),
            strand: Some(strand),
            number,
        })
    }

    /// Like [`Vm::suspend`], for a wait that only a script can end, by means of the Ruby object `keeper`, which owns the ticket. The
    /// garbage collector takes the strand together with `keeper` once no script can reach that object.
    ///
    /// # Errors
    /// As [`Vm::suspend`], and `NoMemoryError`.
    pub fn suspend_for(&self, keeper: Value) -> Result<Ticket, Leave> {
        let mut ticket = self.suspend()?;
        if let Some(strand) = ticket.strand {
            if let Err(exception) = self.set_instance_variable(keeper, "__strand", strand) {
                // The strand goes on with the exception, so it must not end with its ticket.
                ticket.strand = None;
                self.paused.set(Value::nil().0);
                return Err(Leave::Raise(exception));
            }
            let mut strands = self.strands.borrow_mut();
            let rooted = strands
                .get_mut(&strand.0)
                .and_then(|known| known.rooted.take());
            drop(strands);
            drop(rooted);
        }
        Ok(ticket)
    }

    /// The context that was passed to [`Vm::spawn`] for the running strand; a task has the context of the strand that made
    /// it.
    pub fn context(&self) -> Option<u64> {
        let strand = self.current_strand()?;
        let strands = self.strands.borrow();
        strands.get(&strand.0).map(|known| known.context)
    }

    /// Returns a strand without a job that calls this object: an idle one if there is one, else a new one.
    fn strand_for(&self, callable: Value) -> Result<Value, Value> {
        let idle = self.idle.borrow_mut().take(callable);
        if let Some(strand) = idle {
            return Ok(strand);
        }
        let strand = self.call(self.strand_class(), "make", &[callable])?;
        let number = self.strand_count.get() + 1;
        self.strand_count.set(number);
        let known = Strand {
            rooted: Some(self.root(strand)?),
            number,
            callable,
            job: None,
            context: u64::MAX,
            is_idle: false,
        };
        let before = self.strands.borrow_mut().insert(strand.0, known);
        // The strand of a fiber that the garbage collector has freed may still have had its entry.
        drop(before);
        Ok(strand)
    }

    fn go_on(&self, strand: Value, value: Value) {
        self.run_strand(strand, |vm| {
            vm.run(Op::Resume, |work| {
                (work.a, work.b, work.c) = (strand.0, vm.resume_name.get(), value.0);
            })
        });
    }

    /// Runs a strand by an operation of the shim, which resumes it.
    fn run_strand(&self, strand: Value, resume: impl FnOnce(&Self) -> Result<Value, Value>) {
        self.paused.set(Value::nil().0);
        let depth = self.depth.get();
        if depth >= DEEPEST {
            let exception = self.exception("FiberError", "too many fibers resume each other");
            self.lose(strand, exception);
            return;
        }
        self.depth.set(depth + 1);
        let result = resume(self);
        self.depth.set(depth);
        if result.is_ok() && self.paused.get() == strand.0 {
            return;
        }
        // Either the VM could not continue, or the script itself has called `Fiber.yield` in the strand.
        let exception = match result {
            Err(exception) => exception,
            Ok(_) => self.exception(
                "RuntimeError",
                "Fiber.yield must not be called outside of the script's own fibers",
            ),
        };
        self.lose(strand, exception);
    }

    /// Ends a strand that will not continue; the receiver of its job gets `exception`.
    fn lose(&self, strand: Value, exception: Value) {
        let lost = self.strands.borrow_mut().remove(&strand.0);
        if let Some(finish) = lost.and_then(|mut lost| lost.job.take()) {
            let _ = finish.finish(self, Err(exception));
        }
    }

    /// The running strand; `None` if a fiber that the script has made runs.
    fn current_strand(&self) -> Option<Value> {
        let (strand, _) = self.current_fiber();
        (!strand.is_nil()).then_some(strand)
    }

    /// Defines the functions that the loop of a strand calls.
    pub(crate) fn define_strands(&self, module: Value) -> Result<(), Value> {
        self.define_singleton(module, "__finish", |vm, call| {
            vm.end_job(Ok(call.arguments.get(0)))
        })?;
        self.define_singleton(module, "__fail", |vm, call| {
            vm.end_job(Err(call.arguments.get(0)))
        })?;
        self.define_singleton(module, "__idle", |vm, _| {
            let strand = vm.current_strand();
            vm.wait_for_job(
                strand
                    .ok_or_else(|| Leave::runtime("the fiber belongs to no handler and no task"))?,
            )
        })?;
        // The number that tells scripts apart (the strand's context), or nil.
        self.define_singleton(module, "__context", |vm, _| match vm.context() {
            Some(context) => Ok(vm.integer(context.cast_signed())?),
            None => Ok(Value::nil()),
        })?;
        let kernel = self.constant(None, "Kernel")?;
        // Runs the block in a strand of its own at once, until it waits or ends.
        self.define(kernel, "task", |vm, call| {
            call.arguments.exactly::<0>()?;
            if call.block.is_nil() {
                return Err(Leave::argument("task needs a block"));
            }
            let context = vm.context().unwrap_or(u64::MAX);
            let module = vm.constant(None, "H2O")?;
            let task = vm.constant(Some(module), "Task")?;
            vm.spawn(task, call.block, context, Rc::new(Task));
            Ok(Value::nil())
        })
    }

    /// Ends the job of the current strand: the caller of the job gets the result, and the strand waits for its next job.
    fn end_job(&self, result: Result<Value, Value>) -> Result<Value, Leave> {
        let strand = self.current_strand();
        let strand =
            strand.ok_or_else(|| Leave::runtime("the fiber belongs to no handler and no task"))?;
        let strands = self.strands.borrow();
        let job = strands.get(&strand.0).and_then(|known| known.job.clone());
        drop(strands);
        if let Some(finish) = job {
            finish.finish(self, result)?;
        }
        self.wait_for_job(strand)
    }

    fn wait_for_job(&self, strand: Value) -> Result<Value, Leave> {
        let mut strands = self.strands.borrow_mut();
        let known = strands.get_mut(&strand.0);
        let mut before = None;
        let is_kept = known.is_some_and(|known| {
            before = known.job.take();
            let was_idle = std::mem::replace(&mut known.is_idle, true);
            was_idle || self.idle.borrow_mut().keep(known.callable, strand)
        });
        let released = if is_kept {
            None
        } else {
            strands.remove(&strand.0)
        };
        drop(strands);
        drop((released, before));
        self.paused.set(strand.0);
        Err(Leave::Wait)
    }
}
