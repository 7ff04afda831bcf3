//! A model of the path: how fast it delivers and how long its shortest round trip is (draft-ietf-ccwg-bbr, "BBRv3"). The rate follows the
//! model, not losses: random loss does not slow a connection down, loss above [`LOSS_THRESHOLD`] does.
//!
//! Written from the draft, with its names where it has them. Two things differ: losses are judged when quinn-proto reports them, since it
//! reports several lost packets at a time; and there is no pacing margin, since [`Phase::Down`] drains the queue that probing has built
//! up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Ack, Loss, bytes_in, rate_of, scale};

/// Gains of the phases in percent: by these, the measured bandwidth is multiplied to get the pacing rate, or the congestion window
/// (`..._WINDOW_GAIN`).
const STARTUP_GAIN: u128 = 277;
/// The draft has a drain gain of 35 percent, which empties the queue sooner, but also leaves the path unused if losses are not
/// known yet.
const DRAIN_GAIN: u128 = 75;
const DOWN_GAIN: u128 = 90;
const UP_GAIN: u128 = 125;
const WINDOW_GAIN: u128 = 200;
const UP_WINDOW_GAIN: u128 = 225;
const PROBE_RTT_WINDOW_GAIN: u128 = 50;
/// The share of the bytes in flight that may be lost before the model takes the path for full, in percent.
const LOSS_THRESHOLD: u128 = 2;
/// Number of packets lost in startup from which their share of a flight can show that the path is full.
const STARTUP_FULL_LOSSES: u64 = 6;
/// The factor in percent by which the bounds on rate and bytes in flight are lowered after a round with too much loss.
const BETA: u128 = 70;
/// The part of `inflight_hi` that may be in flight while cruising, in percent.
const HEADROOM: u128 = 85;
const MIN_PIPE_PACKETS: u64 = 4;
const MIN_RTT_LIFE: Duration = Duration::from_secs(10);
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// Number of rounds without growth of the measured bandwidth after which startup ends.
const FULL_BANDWIDTH_ROUNDS: u32 = 3;
/// Limit of the groups of packets sent together that are remembered. Older ones give no sample of the delivery rate.
const MAX_FLIGHTS: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Doubles the sending rate every round, until the measured bandwidth stops growing.
    Startup,
    /// Sends slower than the measured bandwidth, until the queue that startup has built is empty.
    Drain,
    /// Sends slower than the measured bandwidth, until the queue of the path has room.
    Down,
    /// Sends at the measured bandwidth.
    Cruise,
    /// Sends for a round at the measured bandwidth, without the bounds that recent loss has set.
    Refill,
    /// Sends faster than the measured bandwidth, to find out whether the path has more.
    Up,
    /// Sends very little, to measure the round trip time without a queue.
    ProbeRtt,
}

/// What the acknowledgements that arrive now show about the last probe for bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Idle,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// A group of packets that were sent at the same time.
#[derive(Clone, Copy, Debug)]
struct Flight {
    sent: Instant,
    /// The values that the [`Model`]'s counters of the same names had when these packets were sent.
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    lost: u64,
    /// Bytes in flight when these packets were sent, including them.
    in_flight: u64,
    is_app_limited: bool,
}

/// A measurement of the delivery rate, made from a batch of acknowledgements.
#[derive(Clone, Copy, Debug)]
struct Sample {
    rate: Option<u64>,
    delivered: u64,
    prior_delivered: u64,
    in_flight_when_sent: u64,
    lost: u64,
    is_app_limited: bool,
    acked: u64,
    rtt: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    mtu: u64,
    initial_window: u64,
    window: u64,
    prior_window: u64,
    pacing_rate: u64,
    phase: Phase,
    ack_phase: AckPhase,

    flights: VecDeque<Flight>,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    lost: u64,
    /// Until `delivered` reaches this value, samples count as limited by an application that had too little to send; 0 if no
    /// samples do.
    app_limited_until: u64,
    /// `newest_acked` is when the newest of the packets acknowledged in this batch was sent; `acked` counts the bytes of the
    /// batch.
    newest_acked: Option<Instant>,
    acked: u64,
    was_app_limited: bool,

    round_ends_at: u64,
    is_round_start: bool,
    rounds_since_probe: u64,
    /// The highest delivery rate measured in this probing cycle, and in the one before.
    max_rates: [u64; 2],
    full_rate: u64,
    full_rate_rounds: u32,
    is_full_now: bool,
    is_full: bool,

    loss_round_ends_at: u64,
    is_loss_round_start: bool,
    has_loss_in_round: bool,
    rate_latest: u64,
    inflight_latest: u64,
    rate_lo: u64,
    inflight_lo: u64,
    inflight_hi: u64,
    can_judge_probe: bool,
    up_rounds: u32,
    up_acked: u64,
    up_step: u64,

    cycle_began: Instant,
    probe_wait: Duration,
    /// A pseudo-random number that varies the time between probes. It only has to differ between connections, so it needs no
    /// random source.
    probe_jitter: u64,

    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    probe_rtt_min: Option<Duration>,
    probe_rtt_at: Instant,
    probe_rtt_done_at: Option<Instant>,
    is_probe_rtt_round_done: bool,
    is_restarting: bool,

    /// Bytes acknowledged beyond what the measured rate explains, since acknowledgements arrive in batches (`extra_acked`):
    /// the maximum of the recent rounds, and of those before.
    extra_acked: [u64; 2],
    extra_rounds: u32,
    ack_epoch_began: Instant,
    ack_epoch_acked: u64,
}

impl Model {
    pub(crate) fn new(initial_window: u64, mtu: u64, initial_rtt: Duration, now: Instant) -> Self {
        Self {
            mtu,
            initial_window,
            window: initial_window,
            prior_window: 0,
            pacing_rate: scale(rate_of(initial_window, initial_rtt), STARTUP_GAIN, 100),
            phase: Phase::Startup,
            ack_phase: AckPhase::Idle,
            flights: VecDeque::new(),
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            lost: 0,
            app_limited_until: 0,
            newest_acked: None,
            acked: 0,
            was_app_limited: false,
            round_ends_at: 0,
            is_round_start: false,
            rounds_since_probe: 0,
            max_rates: [0; 2],
            full_rate: 0,
            full_rate_rounds: 0,
            is_full_now: false,
            is_full: false,
            loss_round_ends_at: 0,
            is_loss_round_start: false,
            has_loss_in_round: false,
            rate_latest: 0,
            inflight_latest: 0,
            rate_lo: u64::MAX,
            inflight_lo: u64::MAX,
            inflight_hi: u64::MAX,
            can_judge_probe: false,
            up_rounds: 0,
            up_acked: 0,
            up_step: u64::MAX,
            cycle_began: now,
            probe_wait: Duration::from_secs(2),
            probe_jitter: 0x9e37_79b9,
            min_rtt: None,
            min_rtt_at: now,
            probe_rtt_min: None,
            probe_rtt_at: now,
            probe_rtt_done_at: None,
            is_probe_rtt_round_done: false,
            is_restarting: false,
            extra_acked: [0; 2],
            extra_rounds: 0,
            ack_epoch_began: now,
            ack_epoch_acked: 0,
        }
    }

    /// Raises the window for a jump: the connection begins with a larger window than the initial one.
    pub(crate) fn jump(&mut self, window: u64) {
        self.window = self.window.max(window);
        self.initial_window = self.initial_window.max(window);
        if let Some(min_rtt) = self.min_rtt {
            self.pacing_rate = self.pacing_rate.max(rate_of(window, min_rtt));
        }
    }

    /// After a jump, lowers the congestion window to `window` bytes: the part of it that was used.
    pub(crate) fn limit(&mut self, window: u64) {
        self.window = self.window.min(window);
        self.initial_window = self.initial_window.min(window);
    }

    /// Ends a jump that went too far: packets were lost, and only `delivered` bytes sent since the jump have arrived. Lowers
    /// only the initial window: the model itself bounds the bytes in flight if loss is high, and low loss may have other
    /// reasons.
    pub(crate) fn retreat(&mut self, delivered: u64) {
        self.initial_window = self.initial_window.min(delivered);
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn slow_start_threshold(&self) -> Option<u64> {
        None
    }

    pub(crate) fn pacing_rate(&self, smoothed_rtt: Duration) -> u64 {
        if self.max_rate() == 0 {
            // No rate is measured yet, but the handshake has measured the round trip time.
            let rate = rate_of(self.initial_window, smoothed_rtt);
            return scale(rate, STARTUP_GAIN, 100);
        }
        self.pacing_rate
    }

    pub(crate) fn on_mtu_update(&mut self, mtu: u64) {
        self.mtu = mtu;
        self.window = self.window.max(self.min_pipe());
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, before: u64) {
        if before == 0 {
            self.first_sent = now;
            self.delivered_at = now;
            if self.was_app_limited {
                self.restart_from_idle(now);
            }
        }
        if let Some(last) = self.flights.back_mut()
            && last.sent == now
        {
            last.in_flight = before + bytes;
            return;
        }
        if self.flights.len() >= MAX_FLIGHTS {
            self.flights.pop_front();
        }
        self.flights.push_back(Flight {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            lost: self.lost,
            in_flight: before + bytes,
            is_app_limited: self.app_limited_until > 0,
        });
    }

    fn restart_from_idle(&mut self, now: Instant) {
        self.is_restarting = true;
        self.ack_epoch_began = now;
        self.ack_epoch_acked = 0;
        match self.phase {
            Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up => self.set_pacing_rate(100),
            Phase::ProbeRtt => self.leave_probe_rtt_if_done(now),
            Phase::Startup | Phase::Drain => {}
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &Ack) {
        self.delivered += ack.bytes;
        self.acked += ack.bytes;
        self.newest_acked = self.newest_acked.max(Some(ack.sent));
        self.was_app_limited = ack.app_limited;
    }

    pub(crate) fn on_end_acks(&mut self, now: Instant, in_flight: u64) {
        let Some(sent) = self.newest_acked.take() else {
            return;
        };
        self.delivered_at = now;
        if self.app_limited_until > 0 && self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        if self.was_app_limited {
            self.app_limited_until = (self.delivered + in_flight).max(1);
        }
        let sample = self.sample(now, sent);
        self.update(now, in_flight, &sample);
        self.control(&sample);
        self.acked = 0;
        if in_flight == 0 {
            self.flights = VecDeque::new();
        }
    }

    fn sample(&mut self, now: Instant, sent: Instant) -> Sample {
        let mut sample = Sample {
            rate: None,
            delivered: 0,
            prior_delivered: 0,
            in_flight_when_sent: 0,
            lost: 0,
            is_app_limited: self.app_limited_until > 0,
            acked: self.acked,
            rtt: now.saturating_duration_since(sent),
        };
        // Acknowledgements that are late because of reordering or loss concern packets of the last few round trips: older
        // flights are forgotten.
        let old = self.min_rtt.unwrap_or_default() * 4;
        while self.flights.len() > 1
            && let Some(first) = self.flights.front()
            && first.sent + old < sent
        {
            self.flights.pop_front();
        }
        let found = self
            .flights
            .binary_search_by(|flight| flight.sent.cmp(&sent));
        let Some(flight) = found.ok().and_then(|at| self.flights.get(at)) else {
            sample.prior_delivered = self.delivered - self.acked;
            return sample;
        };
        sample.prior_delivered = flight.delivered;
        sample.delivered = self.delivered - flight.delivered;
        sample.in_flight_when_sent = flight.in_flight;
        sample.lost = self.lost - flight.lost;
        sample.is_app_limited = flight.is_app_limited;
        let sending = flight.sent.saturating_duration_since(flight.first_sent);
        let acking = now.saturating_duration_since(flight.delivered_at);
        let interval = sending.max(acking);
        self.first_sent = flight.sent;
        // An interval shorter than a round trip comes from acknowledgements that arrived together, and would give too high a
        // rate.
        if !interval.is_zero() && self.min_rtt.is_none_or(|least| interval >= least) {
            sample.rate = Some(rate_of(sample.delivered, interval));
        }
        sample
    }

    fn update(&mut self, now: Instant, in_flight: u64, sample: &Sample) {
        self.update_latest_delivery(sample);
        self.update_round(sample);
        self.update_max_rate(sample);
        self.adapt_lower_bounds();
        self.update_extra_acked(now, sample);
        self.check_full_rate(sample);
        self.check_startup_done(in_flight);
        self.update_probing(now, in_flight, sample);
        self.update_min_rtt(now, in_flight, sample);
        if self.is_loss_round_start {
            self.rate_latest = sample.rate.unwrap_or_default();
            self.inflight_latest = sample.delivered;
        }
    }

    fn update_latest_delivery(&mut self, sample: &Sample) {
        self.rate_latest = self.rate_latest.max(sample.rate.unwrap_or_default());
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        self.is_loss_round_start = sample.prior_delivered >= self.loss_round_ends_at;
        if self.is_loss_round_start {
            self.loss_round_ends_at = self.delivered;
        }
    }

    fn update_round(&mut self, sample: &Sample) {
        self.is_round_start = sample.prior_delivered >= self.round_ends_at;
        if self.is_round_start {
            self.round_ends_at = self.delivered;
            self.rounds_since_probe += 1;
        }
    }

    fn start_round(&mut self) {
        self.round_ends_at = self.delivered;
    }

    fn max_rate(&self) -> u64 {
        self.max_rates[0].max(self.max_rates[1])
    }

    /// The sending rate in bytes per second that the model allows.
    fn rate(&self) -> u64 {
        self.max_rate().min(self.rate_lo)
    }

    fn update_max_rate(&mut self, sample: &Sample) {
        if let Some(rate) = sample.rate
            && (rate >= self.max_rate() || !sample.is_app_limited)
        {
            self.max_rates[0] = self.max_rates[0].max(rate);
        }
    }

    fn is_probing(&self) -> bool {
        matches!(self.phase, Phase::Startup | Phase::Refill | Phase::Up)
    }

    fn adapt_lower_bounds(&mut self) {
        if !self.is_loss_round_start {
            return;
        }
        if self.has_loss_in_round && !self.is_probing() {
            if self.rate_lo == u64::MAX {
                self.rate_lo = self.max_rate();
            }
            if self.inflight_lo == u64::MAX {
                self.inflight_lo = self.window;
            }
            self.rate_lo = self.rate_latest.max(scale(self.rate_lo, BETA, 100));
            self.inflight_lo = self.inflight_latest.max(scale(self.inflight_lo, BETA, 100));
        }
        self.has_loss_in_round = false;
    }

    fn reset_lower_bounds(&mut self) {
        self.rate_lo = u64::MAX;
        self.inflight_lo = u64::MAX;
    }

    fn update_extra_acked(&mut self, now: Instant, sample: &Sample) {
        if self.is_round_start {
            self.extra_rounds += 1;
            if self.extra_rounds >= 5 {
                self.extra_rounds = 0;
                self.extra_acked = [0, self.extra_acked[0]];
            }
        }
        let elapsed = now.saturating_duration_since(self.ack_epoch_began);
        let expected = bytes_in(self.rate(), elapsed);
        // As long as the measured rate still grows, it is always lower than the rate of acknowledgements, so the difference does
        // not show that acknowledgements come in batches.
        if self.ack_epoch_acked <= expected || !self.is_full {
            self.ack_epoch_began = now;
            self.ack_epoch_acked = sample.acked;
            return;
        }
        self.ack_epoch_acked += sample.acked;
        let extra = self
            .ack_epoch_acked
            .saturating_sub(expected)
            .min(self.window);
        self.extra_acked[0] = self.extra_acked[0].max(extra);
    }

    fn check_full_rate(&mut self, sample: &Sample) {
        if self.is_full_now || !self.is_round_start || sample.is_app_limited {
            return;
        }
        let Some(rate) = sample.rate else {
            return;
        };
        if rate >= scale(self.full_rate, 125, 100) {
            self.reset_full_rate();
            self.full_rate = rate;
            return;
        }
        self.full_rate_rounds += 1;
        self.is_full_now = self.full_rate_rounds >= FULL_BANDWIDTH_ROUNDS;
        self.is_full |= self.is_full_now;
    }

    fn reset_full_rate(&mut self) {
        self.full_rate = 0;
        self.full_rate_rounds = 0;
        self.is_full_now = false;
    }

    fn check_startup_done(&mut self, in_flight: u64) {
        if self.phase == Phase::Startup && self.is_full {
            self.phase = Phase::Drain;
        }
        if self.phase == Phase::Drain && in_flight <= self.drained() {
            self.enter_down(self.delivered_at);
        }
    }

    /// The bandwidth-delay product times `gain` percent, but at least as many packets as are needed to keep acknowledgements
    /// coming.
    fn inflight(&self, gain: u128) -> u64 {
        let Some(min_rtt) = self.min_rtt else {
            return self.initial_window;
        };
        let product = bytes_in(self.rate(), min_rtt);
        scale(product, gain, 100).max(self.min_pipe())
    }

    fn sees_no_queue(&self, sample: &Sample) -> bool {
        self.min_rtt
            .is_none_or(|least| sample.rtt <= least + least / 4)
    }

    /// The number of bytes in flight at which the path has almost no queue: the bandwidth-delay product and a few packets more, so
    /// that the path is never idle.
    fn drained(&self) -> u64 {
        self.inflight(100) + 3 * self.mtu
    }

    fn min_pipe(&self) -> u64 {
        MIN_PIPE_PACKETS * self.mtu
    }

    fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_hi == u64::MAX {
            return u64::MAX;
        }
        scale(self.inflight_hi, HEADROOM, 100).max(self.min_pipe())
    }

    fn enter_down(&mut self, now: Instant) {
        self.has_loss_in_round = false;
        self.rate_latest = 0;
        self.inflight_latest = 0;
        self.up_step = u64::MAX;
        // The time until the next probe is random, so that connections do not all probe at the same time.
        self.probe_jitter = self
            .probe_jitter
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(self.delivered | 1);
        self.rounds_since_probe = (self.probe_jitter >> 40) & 1;
        self.probe_wait =
            Duration::from_secs(2) + Duration::from_micros((self.probe_jitter >> 44) & 0xf_ffff);
        self.cycle_began = now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.phase = Phase::Down;
    }

    fn enter_refill(&mut self) {
        self.reset_lower_bounds();
        self.up_rounds = 0;
        self.up_acked = 0;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.phase = Phase::Refill;
    }

    fn enter_up(&mut self, now: Instant, sample: &Sample) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_rate();
        self.full_rate = sample.rate.unwrap_or_default();
        self.cycle_began = now;
        self.phase = Phase::Up;
        self.raise_slope();
    }

    /// Sets how many bytes must be acknowledged for each packet that `inflight_hi` is raised by. The growth doubles every
    /// round.
    fn raise_slope(&mut self) {
        let growth = self.mtu << self.up_rounds.min(30);
        self.up_rounds += 1;
        self.up_step = (self.window / (growth / self.mtu).max(1)).max(self.mtu);
    }

    fn update_probing(&mut self, now: Instant, in_flight: u64, sample: &Sample) {
        if !self.is_full {
            return;
        }
        self.adapt_upper_bounds(now, sample);
        match self.phase {
            Phase::Down => {
                if self.is_time_to_probe(now) {
                    self.enter_refill();
                } else if in_flight <= self.inflight_with_headroom() && in_flight <= self.drained()
                {
                    self.phase = Phase::Cruise;
                }
            }
            Phase::Cruise => {
                if self.is_time_to_probe(now) {
                    self.enter_refill();
                }
            }
            Phase::Refill => {
                if self.is_round_start {
                    self.can_judge_probe = true;
                    self.enter_up(now, sample);
                }
            }
            Phase::Up => {
                if self.is_window_limited(in_flight, sample) && self.window >= self.inflight_hi {
                    self.reset_full_rate();
                    self.full_rate = sample.rate.unwrap_or_default();
                } else if self.is_full_now {
                    self.enter_down(now);
                }
            }
            Phase::Startup | Phase::Drain | Phase::ProbeRtt => {}
        }
    }

    fn is_window_limited(&self, in_flight: u64, sample: &Sample) -> bool {
        in_flight + sample.acked + self.mtu >= self.window
    }

    /// Whether the next probe for bandwidth is due: after a time, or after as many rounds as there are packets in flight. Reno
    /// would regain its window in this number of rounds, so we probe about as often as Reno flows on the same path.
    fn is_time_to_probe(&self, now: Instant) -> bool {
        let rounds = (self.inflight(100) / self.mtu).min(63);
        now.saturating_duration_since(self.cycle_began) > self.probe_wait
            || self.rounds_since_probe >= rounds
    }

    fn adapt_upper_bounds(&mut self, now: Instant, sample: &Sample) {
        if self.ack_phase == AckPhase::ProbeStarting && self.is_round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.is_round_start {
            self.can_judge_probe = false;
            self.ack_phase = AckPhase::Idle;
            if matches!(
                self.phase,
                Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up
            ) && !sample.is_app_limited
            {
                self.max_rates = [0, self.max_rates[0]];
            }
        }
        if is_too_much_lost(sample.lost, sample.in_flight_when_sent) {
            self.judge_loss(now, sample.in_flight_when_sent, sample.is_app_limited);
            return;
        }
        if self.inflight_hi == u64::MAX {
            return;
        }
        self.inflight_hi = self.inflight_hi.max(sample.in_flight_when_sent);
        if self.phase == Phase::Up {
            self.probe_upward(sample);
        }
    }

    fn probe_upward(&mut self, sample: &Sample) {
        if self.window < self.inflight_hi {
            return;
        }
        self.up_acked += sample.acked;
        if self.up_acked >= self.up_step {
            let packets = self.up_acked / self.up_step;
            self.up_acked -= packets * self.up_step;
            self.inflight_hi = self.inflight_hi.saturating_add(packets * self.mtu);
        }
        if self.is_round_start {
            self.raise_slope();
        }
    }

    /// Handles a sample in which more was lost than the threshold allows: lowers the bound on bytes in flight.
    /// `in_flight_when_sent`: bytes in flight when the lost packets were sent.
    fn judge_loss(&mut self, now: Instant, in_flight_when_sent: u64, is_app_limited: bool) {
        if !self.can_judge_probe {
            return;
        }
        self.can_judge_probe = false;
        if !is_app_limited {
            let target = self.inflight(100).min(self.window);
            self.inflight_hi = in_flight_when_sent.max(scale(target, BETA, 100));
        }
        if self.phase == Phase::Up {
            self.enter_down(now);
        }
    }

    pub(crate) fn on_loss(&mut self, loss: &Loss, in_flight: u64) {
        self.lost += loss.bytes;
        if !self.has_loss_in_round {
            self.loss_round_ends_at = self.delivered;
        }
        self.has_loss_in_round = true;
        let found = self
            .flights
            .binary_search_by(|flight| flight.sent.cmp(&loss.sent));
        let flight = found.ok().and_then(|at| self.flights.get(at)).copied();
        let (lost, when_sent, is_app_limited) = match flight {
            Some(flight) => (
                self.lost - flight.lost,
                flight.in_flight,
                flight.is_app_limited,
            ),
            None => (loss.bytes, in_flight + loss.bytes, false),
        };
        let is_too_much = is_too_much_lost(lost, when_sent) || loss.bytes == 0;
        if self.phase == Phase::Startup {
            let packets = lost / self.mtu;
            if is_too_much && packets >= STARTUP_FULL_LOSSES {
                self.is_full = true;
                self.inflight_hi = self.inflight(100).max(self.inflight_latest);
            }
        } else if is_too_much {
            self.judge_loss(loss.now, when_sent, is_app_limited);
        }
        if loss.is_persistent {
            self.window = self.min_pipe();
        }
    }

    fn update_min_rtt(&mut self, now: Instant, in_flight: u64, sample: &Sample) {
        let is_expired = now.saturating_duration_since(self.probe_rtt_at) > PROBE_RTT_INTERVAL;
        if is_expired || self.probe_rtt_min.is_none_or(|least| sample.rtt <= least) {
            self.probe_rtt_min = Some(sample.rtt);
            self.probe_rtt_at = now;
        }
        let is_old = now.saturating_duration_since(self.min_rtt_at) > MIN_RTT_LIFE;
        if let Some(least) = self.probe_rtt_min
            && (is_old || self.min_rtt.is_none_or(|min_rtt| least <= min_rtt))
        {
            self.min_rtt = Some(least);
            self.min_rtt_at = self.probe_rtt_at;
        }
        if is_expired && !self.is_restarting && self.phase != Phase::ProbeRtt {
            self.save_window();
            self.probe_rtt_done_at = None;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
            self.phase = Phase::ProbeRtt;
        }
        if self.phase == Phase::ProbeRtt {
            self.probe_rtt(now, in_flight);
        }
        if sample.delivered > 0 {
            self.is_restarting = false;
        }
    }

    fn probe_rtt(&mut self, now: Instant, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
        match self.probe_rtt_done_at {
            None if in_flight <= self.probe_rtt_window() => {
                self.probe_rtt_done_at = Some(now + PROBE_RTT_TIME);
                self.is_probe_rtt_round_done = false;
                self.start_round();
            }
            Some(_) => {
                self.is_probe_rtt_round_done |= self.is_round_start;
                if self.is_probe_rtt_round_done {
                    self.leave_probe_rtt_if_done(now);
                }
            }
            None => {}
        }
    }

    fn probe_rtt_window(&self) -> u64 {
        self.inflight(PROBE_RTT_WINDOW_GAIN)
    }

    fn leave_probe_rtt_if_done(&mut self, now: Instant) {
        if self.probe_rtt_done_at.is_none_or(|done| now <= done) {
            return;
        }
        self.probe_rtt_at = now;
        self.window = self.window.max(self.prior_window);
        self.reset_lower_bounds();
        if self.is_full {
            self.enter_down(now);
            self.phase = Phase::Cruise;
        } else {
            self.phase = Phase::Startup;
        }
    }

    fn save_window(&mut self) {
        self.prior_window = if self.phase == Phase::ProbeRtt {
            self.prior_window.max(self.window)
        } else {
            self.window
        };
    }

    fn control(&mut self, sample: &Sample) {
        self.set_pacing_rate(match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Down => DOWN_GAIN,
            Phase::Cruise | Phase::Refill | Phase::ProbeRtt => 100,
            Phase::Up => UP_GAIN,
        });
        self.set_window(sample);
    }

    fn set_pacing_rate(&mut self, gain: u128) {
        let rate = scale(self.rate(), gain, 100);
        if rate > 0 && (self.is_full || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    fn set_window(&mut self, sample: &Sample) {
        let gain = match self.phase {
            Phase::Up => UP_WINDOW_GAIN,
            // In startup, measured rates are too low while a flight is paced over only a third of a round trip, so the window
            // gets a larger gain. It does no harm as long as the path has no queue.
            Phase::Startup if self.sees_no_queue(sample) => STARTUP_GAIN,
            Phase::Startup
            | Phase::Drain
            | Phase::Down
            | Phase::Cruise
            | Phase::Refill
            | Phase::ProbeRtt => WINDOW_GAIN,
        };
        let extra = self.extra_acked[0].max(self.extra_acked[1]);
        // The window has room for at least three bursts of the pacer, so that it does not cut a burst short.
        let bursts = 3 * (2 * self.mtu).max(bytes_in(self.pacing_rate, Duration::from_millis(1)));
        let max = self.inflight(gain).saturating_add(extra + bursts);
        if self.is_full {
            self.window = (self.window + sample.acked).min(max);
        } else if self.window < max || self.delivered < self.initial_window {
            self.window += sample.acked;
        }
        self.window = self.window.max(self.min_pipe());
        if self.phase == Phase::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
        let bound = match self.phase {
            Phase::Down | Phase::Refill | Phase::Up => self.inflight_hi,
            Phase::Cruise | Phase::ProbeRtt => self.inflight_with_headroom(),
            Phase::Startup | Phase::Drain => u64::MAX,
        };
        let bound = bound.min(self.inflight_lo).max(self.min_pipe());
        self.window = self.window.min(bound);
    }
}

fn is_too_much_lost(lost: u64, in_flight_when_sent: u64) -> bool {
    lost > scale(in_flight_when_sent, LOSS_THRESHOLD, 100)
}
