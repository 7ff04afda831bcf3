//! How fast a connection may send: congestion controllers, and the pacer above them.
//!
//! quinn-proto asks a congestion controller for a window and has a pacer of its own, which knows nothing but windows. This crate decides
//! instead when a connection may send: it lets quinn-proto make as many datagrams as window and pacer allow. While it does so, the
//! controller reports a window without end ([`ReportedWindow::Unlimited`]). When nothing may be sent, the controller reports that the window is full
//! ([`ReportedWindow::Full`]); quinn-proto then still sends acknowledgements and probes.

mod cubic;
mod hystart;
mod loss_based;
mod model;
mod pacer;
mod rapid;
mod reno;
mod resume;
mod underused;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use self::cubic::Cubic;
use self::loss_based::LossBased;
use self::model::Model;
pub(crate) use self::pacer::Pacer;
use self::rapid::RapidStart;
use self::reno::Reno;
pub use self::resume::KnownPaths;
pub(crate) use self::resume::{Jump, Observation};
use self::resume::{JumpPhase, Step};
use crate::config::CongestionControl;

/// The least congestion window, in packets (RFC 9002 §7.2).
const MIN_WINDOW_PACKETS: u64 = 2;

/// The acknowledgement of one packet, or of several that were sent together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub(crate) now: Instant,
    pub(crate) sent: Instant,
    pub(crate) bytes: u64,
    /// Whether the application had nothing more to send before this acknowledgement came.
    pub(crate) app_limited: bool,
    pub(crate) smoothed_rtt: Duration,
}

/// Packets that were lost, or that routers marked with ECN-CE; `bytes` is 0 for marked packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) now: Instant,
    /// When the latest of the lost packets was sent.
    pub(crate) sent: Instant,
    pub(crate) bytes: u64,
    /// Whether this is persistent congestion (RFC 9002 §7.6).
    pub(crate) is_persistent: bool,
}

/// The congestion controllers that can be chosen.
#[derive(Clone, Debug)]
enum Algorithm {
    Reno(Box<LossBased<Reno>>),
    Cubic(Box<LossBased<Cubic>>),
    Model(Box<Model>),
}

macro_rules! each {
    ($algorithm:expr, $name:ident => $call:expr) => {
        match $algorithm {
            Algorithm::Reno($name) => $call,
            Algorithm::Cubic($name) => $call,
            Algorithm::Model($name) => $call,
        }
    };
}

/// What an endpoint and the congestion controllers of its connections tell each other, past the QUIC library between them. One
/// thread uses the endpoint, and handles one connection at a time.
#[derive(Debug, Default)]
pub(crate) struct ControllerChannel {
    reported: AtomicU8,
    /// Whether quinn-proto has asked for the window since the reported window was chosen, which it does when it has ack-eliciting data to
    /// send.
    asked: AtomicBool,
    /// Bytes in flight on the connection whose controller was asked last; [`Controller::metrics`] writes them here.
    in_flight: AtomicU64,
    /// Number of packets acknowledged on all connections of the endpoint, and their bytes.
    acknowledged: (AtomicU64, AtomicU64),
    /// Tells the controller to count no packet as in flight any more.
    forget: AtomicBool,
    /// How the congestion controller of the next connection begins.
    start: Mutex<Option<Start>>,
}

/// How the congestion controller of a new connection begins: with a jump to a larger window or not, and with a rapid start or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) jump: Option<Jump>,
    /// Whether the congestion window does not grow while the application does not fill it.
    pub(crate) respects_underuse: bool,
    pub(crate) is_rapid: bool,
}

/// Which congestion window a controller reports to quinn-proto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ReportedWindow {
    /// The controller reports the true window.
    Actual = 0,
    /// The controller reports a window without end.
    Unlimited = 1,
    /// The controller reports that the window is full.
    Full = 2,
}

impl ControllerChannel {
    pub(crate) fn set(&self, reported: ReportedWindow) {
        self.asked.store(false, Ordering::Relaxed);
        self.reported.store(reported as u8, Ordering::Relaxed);
    }

    /// Whether quinn-proto has asked for the window since the reported window was chosen: it has something to send that the peer has to
    /// acknowledge, apart from probes.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Counts an acknowledged packet of `bytes` bytes. Needs no atomic additions, since only one thread writes.
    fn on_ack(&self, bytes: u64) {
        let (packets, total) = &self.acknowledged;
        packets.store(packets.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        total.store(total.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Number of packets acknowledged on all connections of the endpoint, and their bytes.
    pub(crate) fn acknowledged(&self) -> (u64, u64) {
        let (packets, bytes) = &self.acknowledged;
        (
            packets.load(Ordering::Relaxed),
            bytes.load(Ordering::Relaxed),
        )
    }

    /// Sets how the controller of the next connection begins.
    pub(crate) fn set_start(&self, start: Option<Start>) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = start;
    }

    fn take_start(&self) -> Option<Start> {
        self.start
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// The state of `controller`, which must be one that [`Factory`] made.
    pub(crate) fn read(&self, controller: &dyn Controller) -> State {
        let metrics = controller.metrics();
        State {
            window: metrics.congestion_window,
            // quinn-proto has the pacing rate in bits per second.
            rate: metrics.pacing_rate.map(|rate| rate / 8),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }

    /// Makes the controller count no packet as in flight any more, because none of them can be acknowledged any more.
    pub(crate) fn forget_in_flight(&self, controller: &dyn Controller) {
        self.forget.store(true, Ordering::Relaxed);
        controller.metrics();
    }
}

/// The state of a congestion controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) window: u64,
    /// The pacing rate in bytes per second; `None` if only the window limits what is sent.
    pub(crate) rate: Option<u64>,
    pub(crate) in_flight: u64,
}

/// Makes the controllers of an endpoint's connections.
#[derive(Debug)]
pub(crate) struct Factory {
    pub(crate) channel: Arc<ControllerChannel>,
    pub(crate) control: CongestionControl,
    pub(crate) initial_packets: u64,
    pub(crate) packet_len: u64,
    pub(crate) initial_rtt: Duration,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let mtu = u64::from(mtu);
        // H2O compatibility: the initial window is counted in packets of the greatest length configured, not of the length that
        // the path is known to carry.
        let initial_window = self.initial_packets.max(MIN_WINDOW_PACKETS) * self.packet_len;
        let start = self.channel.take_start();
        let respects_underuse = start.is_none_or(|start| start.respects_underuse);
        let rapid = RapidStart::new(start.is_some_and(|start| start.is_rapid));
        let algorithm = match self.control {
            CongestionControl::Reno => {
                let reno = LossBased::new(initial_window, mtu, respects_underuse, rapid);
                Algorithm::Reno(Box::new(reno))
            }
            CongestionControl::Cubic => {
                let cubic = LossBased::new(initial_window, mtu, respects_underuse, rapid);
                Algorithm::Cubic(Box::new(cubic))
            }
            CongestionControl::Model => Algorithm::Model(Box::new(Model::new(
                initial_window,
                mtu,
                self.initial_rtt,
                now,
            ))),
        };
        Box::new(Governor {
            channel: Arc::clone(&self.channel),
            algorithm,
            initial_window,
            in_flight: AtomicU64::new(0),
            smoothed_rtt: self.initial_rtt,
            jump_phase: JumpPhase::new(start.and_then(|start| start.jump)),
        })
    }
}

/// The congestion controller of one path, as the QUIC library calls it.
#[derive(Debug)]
struct Governor {
    channel: Arc<ControllerChannel>,
    algorithm: Algorithm,
    initial_window: u64,
    in_flight: AtomicU64,
    smoothed_rtt: Duration,
    jump_phase: JumpPhase,
}

impl Governor {
    /// Changes the congestion window as the progress of a jump requires.
    fn step(&mut self, step: Step) {
        let floor = self.initial_window;
        match step {
            Step::Stay => {}
            Step::Jump(window) => each!(&mut self.algorithm, it => it.jump(window)),
            Step::Keep(used) => {
                let used = used.max(floor);
                each!(&mut self.algorithm, it => it.limit(used));
            }
            Step::Retreat(delivered) => {
                each!(&mut self.algorithm, it => it.retreat(delivered.max(floor)));
            }
        }
    }

    fn remove_in_flight(&mut self, bytes: u64) {
        let in_flight = self.in_flight.get_mut();
        *in_flight = in_flight.saturating_sub(bytes);
    }
}

impl Controller for Governor {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        let reported = self.channel.reported.load(Ordering::Relaxed);
        if reported != ReportedWindow::Unlimited as u8 || !self.channel.has_asked() {
            // Packets that only contain acknowledgements, and probes, do not count as in flight.
            return;
        }
        let before = *self.in_flight.get_mut();
        *self.in_flight.get_mut() += bytes;
        each!(&mut self.algorithm, it => it.on_sent(now, bytes, before));
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.remove_in_flight(bytes);
        self.channel.on_ack(bytes);
        self.smoothed_rtt = rtt.get();
        let ack = Ack {
            now,
            sent,
            bytes,
            app_limited,
            smoothed_rtt: rtt.get(),
        };
        each!(&mut self.algorithm, it => it.on_ack(&ack));
        let in_flight = *self.in_flight.get_mut() + bytes;
        let step = self.jump_phase.on_ack(&ack, in_flight);
        self.step(step);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _app_limited: bool, _: Option<u64>) {
        *self.in_flight.get_mut() = in_flight;
        each!(&mut self.algorithm, it => it.on_end_acks(now, in_flight));
        let step = self.jump_phase.on_end_acks(now, self.smoothed_rtt);
        self.step(step);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent: bool,
        bytes: u64,
    ) {
        self.remove_in_flight(bytes);
        let in_flight = *self.in_flight.get_mut();
        let loss = Loss {
            now,
            sent,
            bytes,
            is_persistent,
        };
        each!(&mut self.algorithm, it => it.on_loss(&loss, in_flight));
        let step = self.jump_phase.on_loss(&loss);
        self.step(step);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        each!(&mut self.algorithm, it => it.on_mtu_update(mtu.into()));
    }

    fn window(&self) -> u64 {
        let reported = self.channel.reported.load(Ordering::Relaxed);
        if reported == ReportedWindow::Unlimited as u8 {
            self.channel.asked.store(true, Ordering::Relaxed);
            // With a window of this size quinn-proto's own pacer holds nothing back: this crate paces itself.
            u64::MAX
        } else if reported == ReportedWindow::Full as u8 {
            self.channel.asked.store(true, Ordering::Relaxed);
            1
        } else {
            each!(&self.algorithm, it => it.window())
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        if self.channel.forget.swap(false, Ordering::Relaxed) {
            self.in_flight.store(0, Ordering::Relaxed);
        }
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.channel.in_flight.store(in_flight, Ordering::Relaxed);
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = each!(&self.algorithm, it => it.window());
        metrics.ssthresh = each!(&self.algorithm, it => it.slow_start_threshold());
        let rate = each!(&self.algorithm, it => it.pacing_rate(self.smoothed_rtt));
        metrics.pacing_rate = Some(rate.saturating_mul(8));
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            channel: Arc::clone(&self.channel),
            algorithm: self.algorithm.clone(),
            initial_window: self.initial_window,
            // The copy is for a new path, on which nothing is in flight.
            in_flight: AtomicU64::new(0),
            smoothed_rtt: self.smoothed_rtt,
            jump_phase: JumpPhase::Over,
        })
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// `value` times `numerator` / `denominator`; the greatest `u64` if the result is larger.
fn scale(value: u64, numerator: u128, denominator: u128) -> u64 {
    u64::try_from(u128::from(value) * numerator / denominator.max(1)).unwrap_or(u64::MAX)
}

/// The number of bytes sent in `time` at `rate` bytes per second.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    scale(rate, time.as_nanos(), 1_000_000_000)
}

/// The rate, in bytes per second, at which `bytes` bytes are sent in `time`.
fn rate_of(bytes: u64, time: Duration) -> u64 {
    scale(bytes, 1_000_000_000, time.as_nanos())
}

/// The pacing rate in bytes per second of a controller that only has a window (RFC 9002 §7.7): two windows per round trip in
/// slow start, then one and a quarter.
fn rate_of_window(window: u64, threshold: u64, smoothed_rtt: Duration) -> u64 {
    let gain = if window < threshold { 200 } else { 125 };
    rate_of(scale(window, gain, 100), smoothed_rtt)
}
