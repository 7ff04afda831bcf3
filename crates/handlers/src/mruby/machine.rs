//! The mruby VM of a worker, and the scripts that are evaluated in it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use h2o_exchange::{Counter, Exchange, LocalSite, Worker, WorkerStart};
use h2o_mruby::{Finish, Leave, Limit, Options, Part, Rooted, Value, Vm};
use rustc_hash::FxHashMap;

use super::env::EnvMaker;
use super::sub_request::{self, Place};
use super::{content, http, objects, password, redis, wait};

/// The smallest value of `mruby.memory-limit`, in bytes.
pub(super) const LEAST_MEMORY: usize = 32 << 20;

/// Pause between two parts of the collection of garbage after a script has reached a limit, in which the worker serves other requests.
const COLLECTION_PAUSE: Duration = Duration::from_millis(1);

/// How long after the garbage of a script that reached a limit was collected the worker returns free memory to the system, which takes
/// milliseconds. A script that soon reaches a limit again uses that memory.
const GIVE_BACK_AFTER: Duration = Duration::from_millis(200);

/// A script in the configuration.
pub(super) struct Script {
    /// Number that distinguishes scripts, also those of different configurations.
    pub(super) id: u64,
    pub(super) text: Box<[u8]>,
    /// The file of the script, as named in the configuration.
    pub(super) file: Box<str>,
    /// The line of the file in which the script begins.
    pub(super) line: u32,
}

impl WorkerStart for Script {
    fn start(&self, worker: &Rc<Worker>, site: &Rc<LocalSite>) {
        if let Ok(machine) = Machine::of(worker, site) {
            machine.script(self);
        }
    }
}

/// The VMs of a worker: one for each configuration that still serves requests on it.
#[derive(Default)]
struct Machines(RefCell<Vec<KnownMachine>>);

struct KnownMachine {
    site: Weak<LocalSite>,
    /// The VM with its scripts, or the reason why it could not be opened.
    machine: Result<Rc<Machine>, String>,
}

/// Closes the VMs of configurations that no request uses any more.
pub(crate) fn sweep(worker: &Worker) {
    let machines = worker.local::<Machines>();
    let is_dead = |known: &mut KnownMachine| known.site.strong_count() == 0;
    let dead: Vec<_> = machines.0.borrow_mut().extract_if(.., is_dead).collect();
    for machine in dead.iter().filter_map(|known| known.machine.as_ref().ok()) {
        let count = machine.vm.unfinished();
        if count > 0 {
            h2o_log::report!(
                notice,
                "[h2o_mruby] the configuration was replaced: tasks of its scripts that were ended on this worker: {count}"
            );
        }
    }
    // The VMs close here, when the list is no longer borrowed: scripts that run while a VM closes may need the list.
    drop(dead);
}

/// The VM of a worker for one configuration, with its scripts.
pub(super) struct Machine {
    pub(super) vm: Rc<Vm>,
    pub(super) env: EnvMaker,
    scripts: RefCell<FxHashMap<u64, Rc<LocalScript>>>,
}

/// The worker and the configuration that a VM belongs to, kept as state of the VM.
#[derive(Default)]
pub(super) struct Host {
    worker: RefCell<Weak<Worker>>,
    site: RefCell<Weak<LocalSite>>,
    /// Whether the worker has a task that calls [`Vm::collect_some`] until all garbage is collected.
    is_collecting: Cell<bool>,
}

impl Host {
    /// The worker that the VM belongs to.
    pub(super) fn worker(vm: &Vm) -> Result<Rc<Worker>, Leave> {
        let host = vm.local::<Self>();
        let worker = host.worker.borrow().upgrade();
        worker.ok_or_else(|| Leave::runtime("the worker has ended"))
    }

    /// The configuration that the VM was opened for.
    pub(super) fn site(vm: &Vm) -> Result<Rc<LocalSite>, Leave> {
        let site = vm.local::<Self>().site.borrow().upgrade();
        site.ok_or_else(|| Leave::runtime("the configuration of this script was replaced"))
    }
}

/// A script in the VM of a worker, with the state of its evaluation.
pub(super) struct LocalScript {
    id: u64,
    state: RefCell<State>,
    /// The place of the script's handler in the configuration; set when the handler gets its first request.
    place: RefCell<Option<Place>>,
}

enum State {
    /// The script's top-level code waits for something. Requests for the script wait too, with these wakers.
    Evaluating(Vec<Waker>),
    /// The object that the script has evaluated to.
    Ready(Rc<Rooted>),
    /// The script's top-level code has raised an exception.
    Failed,
}

/// The result of evaluating a script.
pub(super) enum App {
    /// The script has not been evaluated yet: the waker is called when it has.
    Evaluating,
    /// The object that the script has evaluated to.
    Ready(Rc<Rooted>),
    /// The script has raised an exception, which was logged.
    Failed,
}

pub(super) const PRELUDE: &[(&str, &str)] = &[
    ("h2o.rb", include_str!("prelude.rb")),
    ("redis.rb", include_str!("redis/prelude.rb")),
];
pub(super) const PARTS: &[Part] = &[
    objects::define,
    wait::define,
    content::define,
    http::define,
    sub_request::define,
    password::define,
    redis::define,
];

impl Machine {
    /// The VM of a worker for a configuration. The first call opens it.
    pub(super) fn of(worker: &Rc<Worker>, site: &Rc<LocalSite>) -> Result<Rc<Self>, String> {
        let machines = worker.local::<Machines>();
        let is_of = |known: &&KnownMachine| std::ptr::eq(known.site.as_ptr(), Rc::as_ptr(site));
        // Most requests belong to the newest configuration, which is the last one.
        if let Some(known) = machines.0.borrow().iter().rev().find(is_of) {
            return known.machine.clone();
        }
        let machine = Self::open(worker, site);
        machines.0.borrow_mut().push(KnownMachine {
            site: Rc::downgrade(site),
            machine: machine.clone(),
        });
        machine
    }

    fn open(worker: &Rc<Worker>, site: &Rc<LocalSite>) -> Result<Rc<Self>, String> {
        h2o_mruby::report_to(|text| h2o_log::report!(error, "[h2o_mruby] {text}"));
        let limits = site.settings.get::<ScriptLimits>();
        // Scripts may use half of the memory that `max-memory` allows a worker; the other half stays for the buffers of connections.
        let share = (worker.shared.buffers.memory() / 2).max(LEAST_MEMORY);
        let options = Options {
            memory_limit: limits.memory.min(share),
            time_limit: limits.time,
            parts: PARTS,
            prelude: PRELUDE,
            root: h2o_opener::installation_root(),
        };
        let opened = Vm::open(options);
        let vm = opened.map_err(|error| {
            h2o_log::report!(error, "[h2o_mruby] {error}");
            error.to_string()
        })?;
        vm.report_memory_to(Rc::clone(&worker.script_bytes));
        let host = vm.local::<Host>();
        *host.worker.borrow_mut() = Rc::downgrade(worker);
        *host.site.borrow_mut() = Rc::downgrade(site);
        vm.on_lost(|vm, exception| report(&describe(vm, exception)));
        vm.on_exhausted(|vm| {
            let Ok(worker) = Host::worker(vm) else { return };
            if vm.local::<Host>().is_collecting.replace(true) {
                return;
            }
            let vm = vm.reference();
            let host = Rc::clone(&worker);
            worker.spawn(async move {
                loop {
                    host.sleep(COLLECTION_PAUSE).await;
                    let Some(vm) = vm.upgrade() else { return };
                    if vm.collect_some() {
                        vm.local::<Host>().is_collecting.set(false);
                        break;
                    }
                }
                host.sleep(GIVE_BACK_AFTER).await;
                // Another task that collects garbage by now gives the memory back later.
                if let Some(vm) = vm.upgrade()
                    && !vm.local::<Host>().is_collecting.get()
                {
                    vm.give_back_memory();
                }
            });
        });
        let env = EnvMaker::new(&vm).ok_or("the classes of requests are missing")?;
        Ok(Rc::new(Self {
            env,
            vm,
            scripts: RefCell::default(),
        }))
    }

    /// The place in the configuration of the script whose strand (fiber) runs; `None` if the script's handler has got
    /// no request yet.
    pub(super) fn current_place(vm: &Vm) -> Result<Option<Place>, Leave> {
        let worker = Host::worker(vm)?;
        let machine = Self::of(&worker, &Host::site(vm)?).map_err(Leave::runtime)?;
        let scripts = machine.scripts.borrow();
        let script = vm.context().and_then(|id| scripts.get(&id));
        Ok(script.and_then(|script| script.place.borrow().clone()))
    }

    /// Returns the script in this VM. The first call evaluates the script.
    pub(super) fn script(&self, script: &Script) -> Rc<LocalScript> {
        if let Some(known) = self.scripts.borrow().get(&script.id) {
            return Rc::clone(known);
        }
        let local = Rc::new(LocalScript {
            id: script.id,
            state: RefCell::new(State::Evaluating(Vec::new())),
            place: RefCell::default(),
        });
        self.scripts
            .borrow_mut()
            .insert(script.id, Rc::clone(&local));
        let vm = &self.vm;
        let evaluation = Rc::new(Evaluation {
            script: Rc::clone(&local),
            is_checked: Cell::new(false),
        });
        vm.scope(|| {
            // The text has no syntax error, since it was checked when the configuration was read.
            match vm.compile(&script.text, &script.file, script.line) {
                Ok(code) => vm.evaluate(code, script.id, evaluation),
                Err(fault) => {
                    report(&fault.message);
                    local.settle(State::Failed);
                }
            }
        });
        local
    }
}

impl LocalScript {
    /// The result of evaluating the script. If there is none yet, `waker` is called when there is one.
    pub(super) fn app(&self, waker: Option<&Waker>) -> App {
        match &mut *self.state.borrow_mut() {
            State::Evaluating(waiting) => {
                waiting.extend(waker.cloned());
                App::Evaluating
            }
            State::Ready(app) => App::Ready(Rc::clone(app)),
            State::Failed => App::Failed,
        }
    }

    /// Waits until the script is evaluated.
    pub(super) async fn evaluated(&self) -> App {
        let settled = poll_fn(|task| match self.app(Some(task.waker())) {
            App::Evaluating => Poll::Pending,
            settled => Poll::Ready(settled),
        });
        settled.await
    }

    /// Notes the place of the script in the configuration, because its handler runs.
    pub(super) fn note_place(&self, exchange: &Exchange) {
        let place = &mut *self.place.borrow_mut();
        if !place.as_ref().is_some_and(|place| place.is_of(exchange)) {
            *place = Some(Place::of(exchange));
        }
    }

    /// A number that identifies the script's handler to the Rust functions that the script's strands (fibers) call.
    pub(super) const fn context(&self) -> u64 {
        self.id
    }

    fn settle(&self, state: State) {
        let before = self.state.replace(state);
        if let State::Evaluating(waiting) = before {
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// Waits until the scripts that a worker has begun to evaluate are evaluated. Returns whether all of them have a value.
pub async fn are_scripts_evaluated(worker: &Worker) -> bool {
    let machines = worker.local::<Machines>();
    let mut scripts = Vec::new();
    for known in &*machines.0.borrow() {
        let Ok(machine) = &known.machine else {
            return false;
        };
        scripts.extend(machine.scripts.borrow().values().cloned());
    }
    let mut have_values = true;
    for script in scripts {
        have_values &= matches!(script.evaluated().await, App::Ready(_));
    }
    have_values
}

/// Takes the value of a script when its evaluation ends.
struct Evaluation {
    script: Rc<LocalScript>,
    /// Whether the script's value was checked.
    is_checked: Cell<bool>,
}

impl Finish for Evaluation {
    fn finish(&self, vm: &Vm, result: Result<Value, Value>) -> Result<(), Leave> {
        match result {
            Ok(app) => {
                if !self.is_checked.replace(true) {
                    let module = vm.constant(None, "H2O").map_err(Leave::Raise)?;
                    vm.call(module, "__check_app", &[app])
                        .map_err(Leave::Raise)?;
                }
                let rooted = vm.root(app).map_err(Leave::Raise)?;
                self.script.settle(State::Ready(Rc::new(rooted)));
            }
            Err(exception) => {
                report(&describe(vm, exception));
                self.script.settle(State::Failed);
            }
        }
        Ok(())
    }
}

/// The limits on memory and time of scripts on each worker.
#[derive(Clone, Debug)]
pub(super) struct ScriptLimits {
    /// The value of `mruby.memory-limit` in bytes.
    pub(super) memory: usize,
    /// The value of `mruby.time-limit`; zero for no limit.
    pub(super) time: Duration,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        let options = Options::default();
        Self {
            memory: options.memory_limit,
            time: options.time_limit,
        }
    }
}

/// Counts an exception, and returns the text `MESSAGE (CLASS)` about it.
pub(super) fn describe(vm: &Vm, exception: Value) -> String {
    if let Ok(worker) = Host::worker(vm) {
        worker.counters.count(Counter::ScriptExceptions);
        match vm.limit_of(exception) {
            Some(Limit::Memory) => worker.counters.count(Counter::ScriptMemoryLimit),
            Some(Limit::Time) => worker.counters.count(Counter::ScriptTimeLimit),
            Some(Limit::Stack) | None => {}
        }
    }
    vm.describe(exception)
}

/// Logs an exception that belongs to no request.
pub(super) fn report(exception: &str) {
    h2o_log::report!(error, "mruby raised: {exception}");
}
