//! Strands: the fibers in which scripts run, and in which they may wait.
//!
//! A strand is a loop in Ruby that runs one job after another (`prelude/core.rb`). It catches every exception itself, since
//! an exception that leaves a fiber which C has resumed would corrupt the stack of mruby 3.1.

use std::rc::Rc;

use crate::ffi::Op;
use crate::function::Leave;
use crate::vm::Rooted;
use crate::{Value, Vm};

/// Maximum number of idle strands that are kept.
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

/// Receives the result of a `task`, which nothing waits for; an exception is reported.
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
    /// `None` once the strand was resumed.
    strand: Option<Rooted>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(strand) = &self.strand {
            strand.forget_strand();
        }
    }
}

/// The state of a strand (a fiber that runs a script) while it runs or waits.
#[derive(Clone)]
pub(crate) struct Info {
    /// The receiver of the job's result; `None` once it has received it.
    pub(crate) job: Option<Rc<dyn Finish>>,
    /// A value that the caller of [`Vm::spawn`] attaches to the strand, such as the number of the handler whose script
    /// it runs.
    pub(crate) context: u64,
}

impl Vm {
    /// Runs `callable.call(argument)` in a strand at once, until it waits or ends. `finish` receives the result. While the
    /// strand runs, [`Vm::context`] returns `context`.
    ///
    /// A function that Ruby calls may call this method, too; its caller continues afterwards.
    pub fn spawn(&self, callable: Value, argument: Value, context: u64, finish: Rc<dyn Finish>) {
        let arena = self.enter();
        let strand = match self.idle_strand() {
            Ok(strand) => strand,
            Err(exception) => {
                let _ = finish.finish(self, Err(exception));
                return;
            }
        };
        let info = Info {
            job: Some(finish),
            context,
        };
        self.strands.borrow_mut().insert(strand.0, info);
        self.go_on(strand, &[callable, argument]);
        drop(arena);
    }

    /// Resumes a strand that waits: the method in which it waits returns `value`. If the value is an exception, the methods
    /// of the prelude raise it.
    ///
    /// A function that Ruby calls may call this method, too; its caller continues afterwards.
    pub fn resume(&self, mut ticket: Ticket, value: impl FnOnce(&Self) -> Value) {
        let Some(rooted) = ticket.strand.take() else {
            return;
        };
        let _arena = self.enter();
        let strand = rooted.value();
        self.protect(strand);
        let value = value(self);
        drop(rooted);
        self.go_on(strand, &[value]);
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
        let ticket = Ticket {
            strand: Some(self.root(strand).map_err(Leave::Raise)?),
        };
        self.paused.set(strand.0);
        Ok(ticket)
    }

    /// The context that was passed to [`Vm::spawn`] for the running strand; a task has the context of the strand that made
    /// it.
    pub fn context(&self) -> Option<u64> {
        let strand = self.current_strand()?;
        let strands = self.strands.borrow();
        strands.get(&strand.0).map(|info| info.context)
    }

    /// A strand without a job: an idle one, or a new one.
    fn idle_strand(&self) -> Result<Value, Value> {
        let kept = self.idle.borrow_mut().pop();
        if let Some(strand) = kept {
            let value = strand.value();
            self.protect(value);
            return Ok(value);
        }
        let class = self.strand_class();
        self.call(class, "make", &[])
    }

    fn go_on(&self, strand: Value, values: &[Value]) {
        self.paused.set(Value::nil().0);
        let depth = self.depth.get();
        if depth >= DEEPEST {
            let exception = self.exception("FiberError", "too many fibers resume each other");
            self.lose(strand, exception);
            return;
        }
        self.depth.set(depth + 1);
        let result = self.run(Op::Resume, |work| {
            (work.a, work.b) = (strand.0, self.resume_name.get());
            work.values = values.as_ptr().cast();
            work.count = values.len();
        });
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
        if let Some(finish) = lost.and_then(|info| info.job) {
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
            let [value] = call.arguments.exactly()?;
            vm.end_job(Ok(value))
        })?;
        self.define_singleton(module, "__fail", |vm, call| {
            let [exception] = call.arguments.exactly()?;
            vm.end_job(Err(exception))
        })?;
        // Called by a strand without a job: it waits for the next one.
        self.define_singleton(module, "__idle", |vm, _| {
            let strand = vm
                .current_strand()
                .ok_or_else(|| Leave::runtime("no strand"))?;
            let rooted = vm.root(strand).map_err(Leave::Raise)?;
            vm.strands.borrow_mut().remove(&strand.0);
            vm.paused.set(strand.0);
            let mut idle = vm.idle.borrow_mut();
            if idle.len() < KEPT {
                idle.push(rooted);
            }
            Err(Leave::Wait)
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
            vm.spawn(call.block, Value::nil(), context, Rc::new(Task));
            Ok(Value::nil())
        })
    }

    fn end_job(&self, result: Result<Value, Value>) -> Result<Value, Leave> {
        let strand = self
            .current_strand()
            .ok_or_else(|| Leave::runtime("no strand"))?;
        let job = self
            .strands
            .borrow()
            .get(&strand.0)
            .and_then(|info| info.job.clone());
        if let Some(finish) = job {
            finish.finish(self, result)?;
            if let Some(info) = self.strands.borrow_mut().get_mut(&strand.0) {
                info.job = None;
            }
        }
        Ok(Value::nil())
    }
}
