//! The event loop of a worker: each turn runs the connections that have events.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use h2o_exchange::{Counter, LiveCounters, LocalSite, Order, Sweep, Worker};
use h2o_log::reason;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::LocalSet;

use crate::event::memory::MemoryAccount;
use crate::event::reactor::{Reactor, Readiness, Registry};
use crate::event::thread_waker::{ThreadWaker, WaitingThread};
use crate::event::token::{TABLE_SHIFT, table_of, timer_target};
use crate::event::wake_queue::{WakeQueue, WakeTarget};
use crate::generation::{Generation, LocalGeneration, RetiredSites, start_features};

/// A table of connections that an event loop runs. The table owns sockets and slots. The loop names them by tokens,
/// which the table derives from its [first token](EventLoop::add).
pub(crate) trait ConnectionTable {
    /// Called when a socket that the table has registered is ready.
    fn on_ready(&mut self, event: &Readiness);

    /// Runs a connection that ended its turn with work left to do.
    fn run(&mut self, token: u64);

    /// Called when wakers of requests have fired. All of them belong to one connection: the entries of `woken` have its token, and say
    /// which of its requests can go on.
    fn wake(&mut self, woken: &[WakeTarget]);

    /// Called when a timer that was set with an event of [`timer_event`](crate::event::token::timer_event) has fired.
    fn on_timeout(&mut self, slot: u32, now: Instant);

    /// Number of open connections in the table.
    fn len(&self) -> usize;

    /// Stops accepting connections, and begins graceful shutdown of each open one.
    fn drain(&mut self);

    /// Closes every connection at once, whatever its state.
    fn close_all(&mut self);

    /// Appends the connections that are idle and were accepted at or before the time `accepted_by`, each with the time when it was
    /// accepted.
    fn list_idle(&self, accepted_by: Instant, idle: &mut Vec<(Instant, u64)>);

    /// Closes an idle connection as its protocol prescribes.
    fn close_idle(&mut self, token: u64);

    /// Returns the token of the connection that holds the most memory, and the number of bytes; `None` if no connection holds any.
    fn costliest(&self) -> Option<(u64, usize)>;

    /// Closes a connection to free the memory that it holds.
    fn evict(&mut self, token: u64);

    /// Has new requests use another configuration: opens its new listeners, closes the listeners that it does not have, and gives
    /// every connection the listener that succeeds its own.
    fn adopt(&mut self, next: &mut LocalGeneration);

    /// Runs every connection of the table, even those without events.
    #[cfg(test)]
    fn run_all(&mut self);
}

/// The event loop of a worker.
pub(crate) struct EventLoop {
    worker: Rc<Worker>,
    reactor: Reactor,
    thread: Arc<WaitingThread>,
    orders: UnboundedReceiver<Order>,
    wakes: Arc<WakeQueue>,
    unfinished: Rc<RefCell<Vec<u64>>>,
    memory: Rc<MemoryAccount>,
    wanted: Rc<Cell<usize>>,
    tables: Vec<Box<dyn ConnectionTable>>,
    is_draining: bool,
    /// The current configuration's hosts and paths, by which new requests are routed; requests under way keep those that they began with.
    site: Rc<LocalSite>,
    sweeps: Rc<[Sweep]>,
    /// Timer events that have fired.
    due: Vec<u32>,
    ready: Vec<Readiness>,
    woken: Vec<WakeTarget>,
}

impl EventLoop {
    /// Makes an event loop without tables.
    pub(crate) fn new(
        worker: Rc<Worker>,
        orders: UnboundedReceiver<Order>,
        site: Rc<LocalSite>,
        sweeps: Rc<[Sweep]>,
    ) -> io::Result<Self> {
        let memory = Rc::new(MemoryAccount::new(&worker));
        let counted = Rc::clone(&memory);
        (worker.local::<LiveCounters>()).add(move |counters| {
            counters.set(Counter::BufferBytes, counted.used.get() as u64);
            counters.set(Counter::ScriptBytes, counted.scripts() as u64);
        });
        let thread = WaitingThread::new()?;
        Ok(Self {
            site,
            sweeps,
            reactor: Reactor::new(thread.eventfd())?,
            thread,
            orders,
            wakes: Arc::default(),
            unfinished: Rc::default(),
            memory,
            wanted: Rc::default(),
            worker,
            tables: Vec::new(),
            is_draining: false,
            due: Vec::new(),
            ready: Vec::new(),
            woken: Vec::new(),
        })
    }

    /// Adds the table that `make` returns. `make` gets the first token of the table; all other tokens of the table differ from it
    /// only in the bits below [`TABLE_SHIFT`].
    pub(crate) fn add<T: ConnectionTable + 'static>(
        &mut self,
        make: impl FnOnce(Registry, u64) -> io::Result<T>,
    ) -> io::Result<()> {
        let first_token = (self.tables.len() as u64) << TABLE_SHIFT;
        let table = make(self.reactor.registry(), first_token)?;
        self.tables.push(Box::new(table));
        Ok(())
    }

    pub(crate) const fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// The current configuration's hosts and paths, by which new requests are routed; requests under way keep those that they began with.
    pub(crate) const fn site(&self) -> &Rc<LocalSite> {
        &self.site
    }

    #[cfg(test)]
    pub(crate) const fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// The queue of connections whose wakers have fired.
    pub(crate) const fn wakes(&self) -> &Arc<WakeQueue> {
        &self.wakes
    }

    /// Tokens of the connections that ended their turn with work left to do.
    pub(crate) const fn unfinished(&self) -> &Rc<RefCell<Vec<u64>>> {
        &self.unfinished
    }

    /// When a table accepts a connection, or would if the limit allowed it, it sets this to the number of connections including the
    /// new one, so that the loop enforces `soft-connection-limit`. At other times the value is 0.
    pub(crate) const fn wanted(&self) -> &Rc<Cell<usize>> {
        &self.wanted
    }

    /// Memory account of the connections of all tables.
    pub(crate) const fn memory(&self) -> &Rc<MemoryAccount> {
        &self.memory
    }

    /// Runs the worker on this thread: calls `turn`, which runs a [turn](Self::poll_turn) of the loop, and the tasks of the worker in turns,
    /// and waits for events in between. Returns what `turn` returns at last.
    ///
    /// Must be called in the context of the disk threads and of `tasks`, where connections and handlers spawn their tasks.
    pub(crate) fn run<T>(
        &mut self,
        tasks: &mut LocalSet,
        mut turn: impl FnMut(&mut Self, &mut Context<'_>) -> Poll<T>,
    ) -> T {
        let [loop_waker, tasks_waker] = [(); 2].map(|()| self.thread.waker());
        let (for_loop, for_tasks) = (ThreadWaker::of(&loop_waker), ThreadWaker::of(&tasks_waker));
        let (mut in_loop, mut in_tasks) = (
            Context::from_waker(&for_loop),
            Context::from_waker(&for_tasks),
        );
        // Tasks that were spawned before have woken nobody.
        let mut is_first = true;
        loop {
            loop_waker.take();
            if let Poll::Ready(ended) = turn(self, &mut in_loop) {
                return ended;
            }
            if tasks_waker.take() || is_first {
                is_first = false;
                // The result is ignored: without tasks there is nothing to wait for.
                let _ = Pin::new(&mut *tasks).poll(&mut in_tasks);
            }
            self.thread.begin_wait();
            let limit = if loop_waker.has_fired() || tasks_waker.has_fired() {
                Some(Duration::ZERO)
            } else {
                self.worker.timers.until_next()
            };
            self.wait(limit);
            self.thread.end_wait();
        }
    }

    /// Waits for events, for the time `limit` at most, which the next turn will handle.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) {
        if let Err(error) = self.reactor.wait(limit) {
            h2o_log::report!(
                error,
                "failed to wait for events of sockets: {}",
                reason(&error)
            );
        }
    }

    /// Runs one turn of the event loop, which handles the events that the last [`wait`](Self::wait) has fetched. Ready when the worker is
    /// shutting down and its last connection has closed.
    pub(crate) fn poll_turn(&mut self, task: &mut Context<'_>) -> Poll<()> {
        self.worker.clock.begin_turn();
        self.wakes.begin_turn();
        self.obey_orders(task);
        self.run_unfinished();
        self.run_woken();
        self.run_ready();
        self.run_due();
        if self.wakes.end_turn(task.waker()) || !self.unfinished.borrow().is_empty() {
            task.waker().wake_by_ref();
        }
        self.worker.clock.end_turn();
        if self.is_draining && self.count() == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Number of open connections in all tables.
    pub(crate) fn count(&self) -> usize {
        self.tables.iter().map(|table| table.len()).sum()
    }

    fn obey_orders(&mut self, task: &mut Context<'_>) {
        while let Poll::Ready(Some(order)) = self.orders.poll_recv(task) {
            match order {
                Order::Drain => self.drain(),
                Order::Close => {
                    for table in &mut self.tables {
                        table.close_all();
                    }
                }
                Order::Run(question) => {
                    // The closure comes from another thread, for example for a status report. A panic in it must not end the worker.
                    let _ = catch_unwind(AssertUnwindSafe(|| question(&self.worker)));
                }
                Order::Configure(next) => match next.downcast::<Generation>() {
                    Ok(next) => self.configure(*next),
                    Err(_) => debug_assert!(false, "only the server gives this order"),
                },
            }
        }
    }

    /// Has the worker use another configuration from the next request on.
    fn configure(&mut self, next: Generation) {
        if self.is_draining {
            return;
        }
        let mut next = LocalGeneration::new(next);
        // Scripts and other features of the new configuration start before any table adopts it: from then on, requests may be routed by it.
        start_features(&self.worker, &next.setup.site);
        for table in &mut self.tables {
            table.adopt(&mut next);
        }
        let before = std::mem::replace(&mut self.site, Rc::clone(&next.setup.site));
        RetiredSites::add(&self.worker, &before, &self.sweeps);
    }

    fn drain(&mut self) {
        if self.is_draining {
            return;
        }
        self.is_draining = true;
        self.worker.shut_down();
        for table in &mut self.tables {
            table.drain();
        }
    }

    fn run_unfinished(&mut self) {
        for token in self.unfinished.take() {
            self.run_table(token, |table| table.run(token));
        }
    }

    fn run_woken(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        self.wakes.take(&mut woken);
        // The requests whose wakers have fired are sorted by connection, so that one write sends the output of all streams of a
        // connection.
        woken.sort_by_key(|&(token, _)| token);
        for streams in woken.chunk_by(|one, next| one.0 == next.0) {
            self.run_table(streams[0].0, |table| table.wake(streams));
        }
        woken.clear();
        self.woken = woken;
    }

    fn run_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.reactor.take_events(&mut ready);
        for event in ready.drain(..) {
            self.run_table(event.token, |table| table.on_ready(&event));
        }
        self.ready = ready;
        // Sockets of backends have woken the requests that wait for them.
        self.run_woken();
    }

    fn run_due(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        loop {
            self.worker.timers.take_due(&mut due);
            if due.is_empty() {
                break;
            }
            let now = self.worker.clock.now();
            for event in due.drain(..) {
                let (table, slot) = timer_target(event);
                if let Some(table) = self.tables.get_mut(table) {
                    table.on_timeout(slot, now);
                }
            }
            self.make_room();
        }
        self.due = due;
    }

    /// Calls `run` with the table to which the token belongs.
    fn run_table(&mut self, token: u64, run: impl FnOnce(&mut dyn ConnectionTable)) {
        let index = table_of(token);
        if let Some(table) = self.tables.get_mut(index) {
            run(&mut **table);
            self.make_room();
        }
    }

    /// Enforces `soft-connection-limit`: each worker closes its share of the excess among its idle connections, oldest first.
    #[cold]
    fn make_way(&mut self) {
        let shared = Arc::clone(&self.worker.shared);
        let excess = self.wanted.take().saturating_sub(shared.limits.soft());
        if excess == 0 {
            return;
        }
        let workers = shared.workers.get().map_or(1, Vec::len);
        let now = self.worker.clock.now();
        let Some(accepted_by) = now.checked_sub(shared.limits.soft_min_age()) else {
            return;
        };
        let mut idle = Vec::new();
        for table in &self.tables {
            table.list_idle(accepted_by, &mut idle);
        }
        idle.sort_unstable();
        // Connections that were just accepted and have not run yet look idle; they are not closed, but run first.
        let unfinished = Rc::clone(&self.unfinished);
        let is_new = |token| unfinished.borrow().contains(&token);
        let old = idle.into_iter().filter(|(_, token)| !is_new(*token));
        for (_, token) in old.take(excess.div_ceil(workers)) {
            self.worker.counters.count(Counter::ConnectionsIdleClosed);
            let index = table_of(token);
            if let Some(table) = self.tables.get_mut(index) {
                table.close_idle(token);
            }
        }
    }

    /// Enforces `soft-connection-limit`, and `max-memory`: for the latter it closes connections, the one that holds the most memory
    /// first.
    #[inline]
    fn make_room(&mut self) {
        if self.wanted.get() > 0 {
            self.make_way();
        }
        while self.memory.is_exceeded() && self.evict_costliest() {}
    }

    /// Closes the connection that holds the most memory. Returns `false` if no connection holds any.
    #[cold]
    fn evict_costliest(&mut self) -> bool {
        let tables = self.tables.iter_mut();
        let costliest = tables
            .filter_map(|table| Some((table.costliest()?, table)))
            .max_by_key(|((_, bytes), _)| *bytes);
        let Some(((token, _), table)) = costliest else {
            return false;
        };
        table.evict(token);
        true
    }

    /// Runs every connection of all tables, even those without events.
    #[cfg(test)]
    pub(crate) fn run_all(&mut self) {
        for table in &mut self.tables {
            table.run_all();
        }
    }

    /// Lists the requests in progress, each by the number in its path: in simulations, the path of a request is `/` and a number.
    #[cfg(test)]
    pub(crate) fn live(&self) -> Vec<usize> {
        let mut live = Vec::new();
        self.worker.each_live(|exchange| {
            let path = String::from_utf8_lossy(exchange.request.path());
            live.extend(path.trim_start_matches('/').parse::<usize>());
        });
        live
    }

    /// Returns the bytes on the memory account, and the bytes in temporary files.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, u64) {
        let files = &self.worker.shared.temp_files;
        (self.memory.used.get(), files.used())
    }
}

#[cfg(test)]
mod tests {
    use crate::event::token::{MAX_SLOT, timer_event};
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use h2o_exchange::{BufferLimits, Counters, Shared};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;
    use crate::event::in_runtime::WatchedSet;
    use crate::worker::disk_threads;

    /// A table of connections that records the calls it gets from the event loop.
    struct Table {
        name: &'static str,
        first_token: u64,
        /// Bytes of memory held by each of its connections, which are numbered from 0.
        held: Vec<usize>,
        memory: Rc<MemoryAccount>,
        notes: Notes,
    }

    type Notes = Rc<RefCell<Vec<String>>>;

    impl Table {
        fn note(&self, what: &str) {
            self.notes
                .borrow_mut()
                .push(format!("{} {what}", self.name));
        }

        fn set_used(&self, change: impl FnOnce(usize) -> usize) {
            self.memory.used.set(change(self.memory.used.get()));
        }
    }

    impl ConnectionTable for Table {
        fn on_ready(&mut self, event: &Readiness) {
            self.note(&format!("is ready: {}", event.token - self.first_token));
        }
        fn run(&mut self, token: u64) {
            self.note(&format!("runs {}", token - self.first_token));
        }
        fn wake(&mut self, woken: &[WakeTarget]) {
            let streams: Vec<u32> = woken.iter().map(|(_, stream)| *stream).collect();
            let connection = woken[0].0 - self.first_token;
            self.note(&format!("wakes {connection}: {streams:?}"));
        }
        fn on_timeout(&mut self, slot: u32, _: Instant) {
            self.note(&format!("times out: {slot}"));
        }
        fn len(&self) -> usize {
            self.held.len()
        }
        fn drain(&mut self) {
            self.note("drains");
        }
        fn close_all(&mut self) {
            self.note("closes");
            self.set_used(|used| used - self.held.iter().sum::<usize>());
            self.held.clear();
        }
        fn list_idle(&self, accepted_by: Instant, idle: &mut Vec<(Instant, u64)>) {
            idle.extend(
                (0..self.held.len())
                    .map(|connection| (accepted_by, self.first_token + connection as u64)),
            );
        }
        fn close_idle(&mut self, token: u64) {
            self.note(&format!("closes idle {}", token - self.first_token));
        }
        fn costliest(&self) -> Option<(u64, usize)> {
            let held = self.held.iter().enumerate();
            let (connection, bytes) = held.max_by_key(|(_, bytes)| **bytes)?;
            (*bytes > 0).then_some((self.first_token + connection as u64, *bytes))
        }
        fn evict(&mut self, token: u64) {
            let connection = usize::try_from(token - self.first_token).unwrap();
            self.note(&format!("evicts {connection}"));
            let bytes = std::mem::take(&mut self.held[connection]);
            self.set_used(|used| used - bytes);
        }
        fn adopt(&mut self, _: &mut LocalGeneration) {
            self.note("adopts");
        }
        fn run_all(&mut self) {}
    }

    struct World {
        event_loop: EventLoop,
        orders: UnboundedSender<Order>,
        notes: Notes,
        second_token: u64,
    }

    /// Makes a loop with two tables. Each table is given as the bytes that each of its connections holds, and the seconds until the
    /// timers of its first and its last slot fire.
    fn world(limit: usize, tables: [(&[usize], &[u64]); 2]) -> World {
        let shared = Shared {
            buffers: BufferLimits::new(limit, 0),
            ..Shared::default()
        };
        let worker = Worker::new(0, Arc::<Counters>::default(), Arc::new(shared));
        let (orders, receiver) = unbounded_channel();
        let mut event_loop =
            EventLoop::new(worker, receiver, Rc::default(), Rc::default()).unwrap();
        let (notes, last_token) = (Notes::default(), Rc::new(Cell::new(0)));
        for (name, (held, timeouts)) in ["A", "B"].into_iter().zip(tables) {
            let memory = Rc::clone(event_loop.memory());
            let worker = Rc::clone(event_loop.worker());
            let make = |_: Registry, first_token| {
                last_token.set(first_token);
                let slots = [0, MAX_SLOT].map(|slot| first_token | u64::from(slot));
                for (token, seconds) in slots.into_iter().zip(timeouts) {
                    let deadline = worker.clock.now() + Duration::from_secs(*seconds);
                    let timer = worker.timers.add(timer_event(token));
                    worker.timers.set(timer, Some(deadline));
                }
                let table = Table {
                    name,
                    first_token,
                    held: held.to_vec(),
                    memory,
                    notes: Rc::clone(&notes),
                };
                table.set_used(|used| used + held.iter().sum::<usize>());
                Ok(table)
            };
            event_loop.add(make).unwrap();
        }
        World {
            event_loop,
            orders,
            notes,
            second_token: last_token.get(),
        }
    }

    /// Runs a test on tokio's paused clock.
    fn paused(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(test);
    }

    impl World {
        /// Runs one turn of the loop. Returns whether the loop has ended, and the calls that the tables got.
        async fn turn(&mut self) -> (bool, Vec<String>) {
            let set = WatchedSet::of(&self.event_loop).unwrap();
            let is_over =
                poll_fn(|task| Poll::Ready(self.event_loop.poll_in_runtime(&set, task).is_ready()));
            (is_over.await, self.notes.take())
        }
    }

    #[test]
    fn each_table_gets_what_is_its_own() {
        paused(async {
            let mut world = world(100, [(&[0], &[]), (&[0], &[])]);
            let second = world.second_token;
            world
                .event_loop
                .unfinished()
                .borrow_mut()
                .extend([7, second + 8]);
            for woken in [(second + 1, 5), (2, 6), (second + 1, 4)] {
                WakeQueue::waker(world.event_loop.wakes(), woken).wake();
            }
            let want = [
                "A runs 7",
                "B runs 8",
                "A wakes 2: [6]",
                "B wakes 1: [5, 4]",
            ];
            assert_eq!(
                world.turn().await,
                (false, want.map(str::to_owned).to_vec())
            );
        });
    }

    #[test]
    fn the_thread_waits_for_events_timers_wakers_and_tasks() {
        let disk = disk_threads(1).unwrap();
        let _disk = disk.enter();
        let mut tasks = LocalSet::new();
        let _tasks = tasks.enter();
        let mut world = world(100, [(&[0], &[1]), (&[0], &[])]);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let registry = world.event_loop.reactor.registry();
        registry.add_connection(&ours, 5).unwrap();
        let wakes = Arc::clone(world.event_loop.wakes());
        let (notes, spawned) = (Rc::clone(&world.notes), Rc::clone(&world.notes));
        // Each step begins what ends the next wait of the thread: an event, a waker on another thread, a task, whose work is done on another
        // thread. After them comes the timer.
        let mut steps: VecDeque<Box<dyn FnOnce()>> = VecDeque::new();
        steps.push_back(Box::new(move || (&theirs).write_all(b"?").unwrap()));
        steps.push_back(Box::new(move || {
            let waker = WakeQueue::waker(&wakes, (6, 7));
            std::thread::spawn(|| waker.wake()).join().unwrap();
        }));
        steps.push_back(Box::new(move || {
            tokio::task::spawn_local(async move {
                tokio::task::spawn_blocking(|| ()).await.unwrap();
                spawned.borrow_mut().push("a task has ended".to_owned());
            });
        }));
        let mut seen = Vec::new();
        world.event_loop.run(&mut tasks, |event_loop, task| {
            let _ = event_loop.poll_turn(task);
            let new = notes.take();
            if new.is_empty() {
                return Poll::Pending;
            }
            seen.extend(new);
            match steps.pop_front() {
                Some(step) => step(),
                None if seen.len() == 5 => return Poll::Ready(()),
                None => {}
            }
            Poll::Pending
        });
        let want = [
            "A is ready: 5",
            "A is ready: 5",
            "A wakes 6: [7]",
            "a task has ended",
            "A times out: 0",
        ];
        assert_eq!(seen, want);
    }

    #[test]
    fn only_slots_whose_time_has_come_are_told() {
        paused(async {
            let mut world = world(100, [(&[0], &[2]), (&[0], &[1, 3])]);
            let mut notes = Vec::new();
            for _ in 0..4 {
                notes.push(world.turn().await.1);
                // The timer wheel fires timers up to one eighth of their time late.
                tokio::time::advance(Duration::from_millis(1150)).await;
            }
            let last = format!("B times out: {MAX_SLOT}");
            let want = [
                vec![],
                vec!["B times out: 0".to_owned()],
                vec!["A times out: 0".to_owned()],
                vec![last],
            ];
            assert_eq!(notes, want);
        });
    }

    #[test]
    fn the_costliest_connection_of_all_tables_goes_first() {
        paused(async {
            let mut world = world(100, [(&[10, 60], &[]), (&[50, 70, 0], &[])]);
            WakeQueue::waker(world.event_loop.wakes(), (0, 0)).wake();
            let (_, notes) = world.turn().await;
            assert_eq!(notes, ["A wakes 0: [0]", "B evicts 1", "A evicts 1"]);
            assert_eq!(world.event_loop.held().0, 60);
        });
    }

    #[test]
    fn a_lower_memory_limit_applies_from_the_next_turn_on() {
        paused(async {
            let mut world = world(200, [(&[10, 60], &[]), (&[50, 70, 0], &[])]);
            WakeQueue::waker(world.event_loop.wakes(), (0, 0)).wake();
            let (_, notes) = world.turn().await;
            assert_eq!(notes, ["A wakes 0: [0]"]);
            let shared = Arc::clone(&world.event_loop.worker().shared);
            shared.buffers.set(100, 0);
            WakeQueue::waker(world.event_loop.wakes(), (0, 0)).wake();
            let (_, notes) = world.turn().await;
            assert_eq!(notes, ["A wakes 0: [0]", "B evicts 1", "A evicts 1"]);
            shared.buffers.set(200, 0);
            assert!(!world.event_loop.memory().is_tight());
            shared.buffers.set(60, 0);
            assert!(world.event_loop.memory().is_tight());
            assert!(!world.event_loop.memory().is_exceeded());
        });
    }

    #[test]
    fn scripts_leave_connections_less_memory_but_never_below_half() {
        paused(async {
            let mut world = world(100, [(&[10, 30], &[]), (&[20, 0], &[])]);
            let scripts = Rc::clone(&world.event_loop.worker().script_bytes);
            assert!(!world.event_loop.memory().is_tight());
            scripts.set(30);
            assert!(world.event_loop.memory().is_tight());
            assert!(!world.event_loop.memory().is_exceeded());
            scripts.set(1000);
            WakeQueue::waker(world.event_loop.wakes(), (0, 0)).wake();
            let (_, notes) = world.turn().await;
            assert_eq!(notes, ["A wakes 0: [0]", "A evicts 1"]);
        });
    }

    #[test]
    fn a_loop_ends_when_it_drains_and_the_last_table_is_empty() {
        paused(async {
            let mut world = world(100, [(&[], &[]), (&[1], &[])]);
            assert_eq!(world.turn().await, (false, vec![]));
            let drains = ["A drains", "B drains"].map(str::to_owned).to_vec();
            for want in [(false, drains), (false, vec![])] {
                world.orders.send(Order::Drain).unwrap();
                assert_eq!(world.turn().await, want);
                assert!(world.event_loop.worker().shutting_down.get());
            }
            world.orders.send(Order::Close).unwrap();
            let closes = ["A closes", "B closes"].map(str::to_owned).to_vec();
            assert_eq!(world.turn().await, (true, closes));
        });
    }

    #[test]
    fn a_question_that_panics_does_not_end_the_loop() {
        paused(async {
            let mut world = world(100, [(&[], &[]), (&[], &[])]);
            let (sender, answer) = std::sync::mpsc::channel();
            let panic: h2o_exchange::WorkerTask =
                Box::new(|_| panic!("this panic is part of the test"));
            world.orders.send(Order::Run(panic)).unwrap();
            let question = Order::Run(Box::new(move |worker| sender.send(worker.index).unwrap()));
            world.orders.send(question).unwrap();
            assert_eq!(world.turn().await, (false, vec![]));
            assert_eq!(answer.try_recv(), Ok(0));
        });
    }
}
