//! The ACME client as a background service, with a thread of its own.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use h2o_exchange::BackgroundService;
use h2o_log::report;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::client::{Client, Held};
use crate::clock::{self, now};
use crate::failure::{Cause, Failure};
use crate::renewal::{Window, pause_after, renewal_time, shortest_use};
use crate::{Acme, Order};

/// How often the client tries to take the lock of the state directory while another process has it: an earlier
/// generation of this server that drains releases the lock when it ends.
const LOCK_PAUSE: Duration = Duration::from_secs(2);
/// Shortest and longest interval between two questions to the authority about when it wants a certificate renewed.
const ADVICE_INTERVAL: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(86_400));
/// Longest time that the client sleeps without reading the clock, since the clock may be set and the machine may be
/// suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);
/// Time limit for one attempt to obtain a certificate, with all its requests.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(600);

/// The background service that obtains and renews certificates by ACME.
pub struct AcmeClient {
    acme: Arc<Acme>,
    orders: Vec<Order>,
    /// Whether the last attempt to obtain one of the certificates has failed.
    has_failed: Arc<AtomicBool>,
}

impl AcmeClient {
    /// Creates the client for these certificates.
    #[must_use]
    pub fn new(acme: Arc<Acme>, orders: Vec<Order>) -> Self {
        Self {
            acme,
            orders,
            has_failed: Arc::default(),
        }
    }
}

impl BackgroundService for AcmeClient {
    fn begin(&self) -> Result<Box<dyn Any + Send>, String> {
        // A reload may have configured another state directory, which must be created.
        self.acme.state.prepare(None)?;
        let (stop, is_stopped) = oneshot::channel();
        let (acme, orders) = (Arc::clone(&self.acme), self.orders.clone());
        let has_failed = Arc::clone(&self.has_failed);
        let thread = std::thread::Builder::new().name("acme".to_owned());
        let thread = thread.spawn(move || run(&acme, orders, &has_failed, is_stopped));
        let thread = thread.map_err(|error| {
            let reason = h2o_log::reason(&error);
            format!("failed to start the thread that obtains certificates: {reason}")
        })?;
        Ok(Box::new(Running {
            stop: Some(stop),
            thread: Some(thread),
        }))
    }

    /// A client whose attempts fail is started again by each reload, which may have removed the cause.
    fn is_same_as(&self, running: &dyn BackgroundService) -> bool {
        let running = running.as_any().downcast_ref::<Self>();
        running.is_some_and(|running| {
            running.acme == self.acme
                && running.orders == self.orders
                && !running.has_failed.load(Relaxed)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The running client. Dropping this value stops it.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, which the panic hook has reported.
            let _ = thread.join();
        }
    }
}

fn run(
    acme: &Acme,
    orders: Vec<Order>,
    has_failed: &AtomicBool,
    is_stopped: oneshot::Receiver<()>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            report!(
                error,
                "acme: certificates are not obtained: {}",
                h2o_log::reason(&error)
            );
            return;
        }
    };
    runtime.block_on(async {
        let (mut working, mut is_stopped) =
            (pin!(obtain_all(acme, orders, has_failed)), pin!(is_stopped));
        // The channel `is_stopped` carries no value: the client works until the sender of the channel is dropped.
        poll_fn(|task| match is_stopped.as_mut().poll(task) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => working.as_mut().poll(task),
        })
        .await;
    });
    // The shutdown does not wait for a look-up of the authority's name that is in progress.
    runtime.shutdown_background();
}

/// A certificate that the client keeps valid, with the times of its next steps.
struct Task {
    order: Order,
    held: Option<Held>,
    window: Option<Window>,
    /// A random number from 0 to 1, which chooses the time of the renewal within the window.
    random: f64,
    /// When the authority is to be asked for the window of the renewal, in seconds since the Unix epoch.
    ask_at: i64,
    /// When the next attempt to obtain the certificate may be made, in seconds since the Unix epoch.
    attempt_at: i64,
    /// Until when a certificate that was just obtained is not renewed, in seconds since the Unix epoch.
    kept_until: i64,
    /// When the authority takes the next request, as it has said in `retry-after`, in seconds since the Unix epoch.
    retry_after: Arc<AtomicI64>,
    failures: u32,
}

impl Task {
    fn new(acme: &Acme, order: Order) -> Self {
        if let Err(failure) = acme.state.finish_replacement(order.name()) {
            report!(warning, "acme: {failure}");
        }
        let chain = std::fs::read(acme.state.certificate_file(order.name())).ok();
        // If the key of a certificate is lost, the client obtains a new certificate.
        let has_key = h2o_tls::is_pair(
            &acme.state.certificate_file(order.name()),
            &acme.state.key_file(order.name()),
        );
        let held = chain
            .filter(|_| has_key)
            .and_then(|chain| Held::parse(&chain, &order.names));
        Self {
            order,
            held,
            window: None,
            random: fastrand::f64(),
            ask_at: i64::MIN,
            attempt_at: i64::MIN,
            kept_until: i64::MIN,
            retry_after: Arc::new(AtomicI64::new(i64::MIN)),
            failures: 0,
        }
    }

    /// When the certificate is to be obtained or renewed, in seconds since the Unix epoch.
    fn due_at(&self) -> i64 {
        let wanted = self.held.as_ref().map_or(i64::MIN, |held| {
            renewal_time(held.validity, self.window, self.random)
        });
        wanted.max(self.attempt_at).max(self.kept_until)
    }

    /// When the next step for this certificate is due: asking for the window of its renewal, or obtaining it.
    fn next_at(&self) -> i64 {
        match self.held {
            Some(_) => self.due_at().min(self.ask_at.max(self.attempt_at)),
            None => self.due_at(),
        }
    }

    async fn advance(&mut self, acme: &Acme) -> Result<(), Failure> {
        let mut client = Client::open(acme, &self.retry_after).await?;
        let now = now();
        if let Some(held) = self.held.as_ref().filter(|_| self.ask_at <= now) {
            let advice = client.advice(held).await;
            let (shortest, longest) = ADVICE_INTERVAL;
            let ask_after = advice.as_ref().map_or(longest, |advice| advice.ask_after);
            self.ask_at = after(now, ask_after.clamp(shortest, longest));
            self.window = advice.map(|advice| advice.window);
        }
        if self.due_at() > now {
            return Ok(());
        }
        let name = self.order.name();
        let obtained = match client.obtain(&self.order, self.held.as_ref()).await {
            Err(failure) if failure.cause == Cause::AccountUnknown => {
                report!(
                    warning,
                    "acme: {}: {failure}; registering a new account",
                    acme.server
                );
                client = Client::register(acme, &self.retry_after).await?;
                client.obtain(&self.order, None).await
            }
            obtained => obtained,
        }?;
        let verb = if self.held.is_some() {
            "renewed"
        } else {
            "obtained"
        };
        report!(notice, "acme: {verb} the certificate of {name}");
        let obtained_at = clock::now();
        if renewal_time(obtained.validity, None, self.random) <= obtained_at {
            report!(
                warning,
                "acme: the new certificate of {name} is old already: is the clock of this machine right?"
            );
        }
        let kept_for = shortest_use(obtained.validity, obtained_at);
        self.kept_until = after(obtained_at, kept_for);
        self.held = Some(obtained);
        self.window = None;
        self.random = fastrand::f64();
        self.ask_at = i64::MIN;
        Ok(())
    }
}

async fn obtain_all(acme: &Acme, orders: Vec<Order>, has_failed: &AtomicBool) {
    let _lock = lock(acme).await;
    let mut tasks: Vec<Task> = orders
        .into_iter()
        .map(|order| Task::new(acme, order))
        .collect();
    loop {
        for task in &mut tasks {
            if task.next_at() > now() {
                continue;
            }
            let advanced = tokio::time::timeout(ATTEMPT_LIMIT, task.advance(acme)).await;
            let advanced = advanced
                .unwrap_or_else(|_| Err(Failure::refused("the authority did not answer in time")));
            match advanced {
                Ok(()) => task.failures = 0,
                Err(failure) => {
                    task.failures = task.failures.saturating_add(1);
                    let (now, own) = (now(), pause_after(task.failures, failure.cause));
                    let asked = task.retry_after.swap(i64::MIN, Relaxed);
                    let asked = u64::try_from(asked.saturating_sub(now)).unwrap_or(0);
                    let pause = own.max(Duration::from_secs(asked));
                    task.attempt_at = after(now, pause);
                    report!(
                        error,
                        "acme: failed to obtain the certificate of {}: {failure}; next attempt in {} seconds",
                        task.order.name(),
                        pause.as_secs()
                    );
                }
            }
            has_failed.store(task.failures > 0, Relaxed);
        }
        has_failed.store(tasks.iter().any(|task| task.failures > 0), Relaxed);
        let next = tasks.iter().map(Task::next_at).min().unwrap_or(i64::MAX);
        let pause = u64::try_from(next.saturating_sub(now())).unwrap_or(0);
        let pause = Duration::from_secs(pause.max(1)).min(LONGEST_SLEEP);
        tokio::time::sleep(pause).await;
    }
}

/// Waits until no other process obtains certificates with the same state directory: an earlier generation of this
/// server that drains, or another server.
async fn lock(acme: &Acme) -> std::fs::File {
    let mut is_reported = false;
    loop {
        match acme.state.lock() {
            Ok(Some(file)) => return file,
            Ok(None) => {}
            Err(failure) if !is_reported => {
                is_reported = true;
                report!(error, "acme: certificates are not obtained: {failure}");
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

fn after(now: i64, pause: Duration) -> i64 {
    now.saturating_add(i64::try_from(pause.as_secs()).unwrap_or(i64::MAX))
}
