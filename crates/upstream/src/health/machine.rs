//! The health of one backend, as a state machine that is passed the time.

use std::time::{Duration, Instant};

use super::PassiveCheck;

/// The share of requests of a backend that is fully up. A backend in slow start has a smaller share, a backend that is down has 0.
pub(super) const FULL: u32 = 1024;

/// The rules by which the state of a backend changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthRules {
    /// `rise` and `fall` of active checks; `None` if there are no active checks.
    pub(super) active: Option<(u32, u32)>,
    /// The settings of passive checks; `None` if there are no passive checks.
    pub(super) passive: Option<PassiveCheck>,
    /// `slow-start`: how long the share of requests grows after the backend came up.
    pub(super) slow_start: Duration,
}

/// The health of one backend.
#[derive(Debug)]
pub(super) struct HealthMachine {
    rules: HealthRules,
    state: HealthState,
    /// Number of successful active checks in a row, and of failed ones.
    successes: u32,
    failed_checks: u32,
    /// Number of failed requests in a row.
    failures: u32,
    /// The number of the last probe.
    probes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthState {
    /// The backend is up, and gets its full share of the requests.
    Up,
    /// The backend came up at `since`; its share of the requests is still growing (slow start).
    Returning { since: Instant },
    /// Active checks failed, and only successful active checks bring the backend up again.
    Down,
    /// Requests to the backend failed: it gets no requests before `until`, unless active checks succeed earlier.
    Paused { until: Instant },
    /// The pause is over, and one request is sent to the backend as a probe.
    OnProbe { number: u32, until: Instant },
}

/// A change of a backend's state, for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    /// The change is not logged.
    Nothing,
    /// The backend went down.
    Down,
    /// The backend came up.
    Up,
}

impl HealthMachine {
    /// Makes the machine of a backend, which counts as healthy at first.
    pub(super) const fn new(rules: HealthRules) -> Self {
        Self {
            rules,
            state: HealthState::Up,
            successes: 0,
            failed_checks: 0,
            failures: 0,
            probes: 0,
        }
    }

    /// Takes over the state of another machine for the same backend, as far as the rules of this one know the state.
    pub(super) const fn adopt(&mut self, other: &Self) {
        self.state = match other.state {
            HealthState::Down if self.rules.active.is_some() => HealthState::Down,
            // A probe that is in progress does not report to this machine, so another one follows.
            HealthState::Paused { until } | HealthState::OnProbe { until, .. }
                if self.rules.passive.is_some() =>
            {
                HealthState::Paused { until }
            }
            HealthState::Returning { since } if !self.rules.slow_start.is_zero() => {
                HealthState::Returning { since }
            }
            HealthState::Up
            | HealthState::Returning { .. }
            | HealthState::Down
            | HealthState::Paused { .. }
            | HealthState::OnProbe { .. } => HealthState::Up,
        };
    }

    /// Records the result of an active check of the backend.
    pub(super) fn on_check(&mut self, is_ok: bool, now: Instant) -> HealthChange {
        let Some((rise, fall)) = self.rules.active else {
            return HealthChange::Nothing;
        };
        if is_ok {
            (self.successes, self.failed_checks) = (self.successes.saturating_add(1), 0);
        } else {
            (self.successes, self.failed_checks) = (0, self.failed_checks.saturating_add(1));
        }
        match self.state {
            HealthState::Up | HealthState::Returning { .. } if self.failed_checks >= fall => {
                self.state = HealthState::Down;
                HealthChange::Down
            }
            // The backend was paused because requests failed, and now active checks fail as well: from now on only successful
            // active checks bring it up.
            HealthState::Paused { .. } | HealthState::OnProbe { .. }
                if self.failed_checks >= fall =>
            {
                self.state = HealthState::Down;
                HealthChange::Nothing
            }
            HealthState::Down | HealthState::Paused { .. } | HealthState::OnProbe { .. }
                if self.successes >= rise =>
            {
                self.come_up(now)
            }
            HealthState::Up
            | HealthState::Returning { .. }
            | HealthState::Down
            | HealthState::Paused { .. }
            | HealthState::OnProbe { .. } => HealthChange::Nothing,
        }
    }

    /// Records that a request to the backend got a response.
    pub(super) fn on_response(&mut self, now: Instant) -> HealthChange {
        match self.state {
            HealthState::Up | HealthState::Returning { .. } => {
                self.failures = 0;
                HealthChange::Nothing
            }
            HealthState::OnProbe { .. } => self.come_up(now),
            // This response belongs to a request sent before the backend went down, so it does not show that the
            // backend is up.
            HealthState::Down | HealthState::Paused { .. } => HealthChange::Nothing,
        }
    }

    /// Records that a request to the backend failed.
    pub(super) fn on_failure(&mut self, now: Instant) -> HealthChange {
        let Some(passive) = &self.rules.passive else {
            return HealthChange::Nothing;
        };
        let until = now + passive.pause;
        match self.state {
            HealthState::Up | HealthState::Returning { .. } => {
                self.failures += 1;
                if self.failures < passive.fall {
                    return HealthChange::Nothing;
                }
                self.pause(until);
                HealthChange::Down
            }
            HealthState::OnProbe { .. } => {
                self.pause(until);
                HealthChange::Nothing
            }
            HealthState::Down | HealthState::Paused { .. } => HealthChange::Nothing,
        }
    }

    /// Begins a probe of the backend and returns its number, if the pause is over and no other probe is in progress.
    pub(super) fn begin_probe(&mut self, now: Instant) -> Option<u32> {
        match self.state {
            HealthState::Paused { until } if until <= now => {
                self.probes = self.probes.wrapping_add(1);
                let number = self.probes;
                self.state = HealthState::OnProbe { number, until };
                Some(number)
            }
            HealthState::Up
            | HealthState::Returning { .. }
            | HealthState::Down
            | HealthState::Paused { .. }
            | HealthState::OnProbe { .. } => None,
        }
    }

    /// Ends the probe with this number. If it had no result, another request may be the next probe.
    pub(super) fn end_probe(&mut self, number: u32) {
        match self.state {
            HealthState::OnProbe {
                number: ours,
                until,
            } if ours == number => {
                self.state = HealthState::Paused { until };
            }
            HealthState::Up
            | HealthState::Returning { .. }
            | HealthState::Down
            | HealthState::Paused { .. }
            | HealthState::OnProbe { .. } => {}
        }
    }

    /// The backend's current share of requests, by which the balancer multiplies its weight; at most [`FULL`].
    pub(super) fn share(&mut self, now: Instant) -> u32 {
        match self.state {
            HealthState::Up => FULL,
            HealthState::Returning { since } => {
                let passed = now.saturating_duration_since(since);
                let slow_start = self.rules.slow_start;
                if passed >= slow_start {
                    self.state = HealthState::Up;
                }
                slow_start_share(passed, slow_start)
            }
            HealthState::Down | HealthState::Paused { .. } | HealthState::OnProbe { .. } => 0,
        }
    }

    /// Whether requests must avoid this backend while another one is up.
    pub(super) const fn is_down(&self) -> bool {
        match self.state {
            HealthState::Up | HealthState::Returning { .. } => false,
            HealthState::Down | HealthState::Paused { .. } | HealthState::OnProbe { .. } => true,
        }
    }

    /// Whether the next response would change the state.
    pub(super) const fn response_matters(&self) -> bool {
        match self.state {
            HealthState::Up | HealthState::Returning { .. } => self.failures > 0,
            HealthState::OnProbe { .. } => true,
            HealthState::Down | HealthState::Paused { .. } => false,
        }
    }

    /// From which time on the balancer must ask this machine for its share or for a probe; `None` if it need not ask.
    pub(super) const fn needed_from(&self) -> Option<Instant> {
        match self.state {
            HealthState::Returning { since } => Some(since),
            HealthState::Paused { until } => Some(until),
            HealthState::Up | HealthState::Down | HealthState::OnProbe { .. } => None,
        }
    }

    fn come_up(&mut self, now: Instant) -> HealthChange {
        self.state = if self.rules.slow_start.is_zero() {
            HealthState::Up
        } else {
            HealthState::Returning { since: now }
        };
        self.failures = 0;
        HealthChange::Up
    }

    fn pause(&mut self, until: Instant) {
        self.state = HealthState::Paused { until };
        // The counts of successes and failures start anew.
        (self.successes, self.failed_checks, self.failures) = (0, 0, 0);
    }
}

/// The share of requests after the time `passed` of a slow start of length `whole`: it grows linearly, and is at least 1.
fn slow_start_share(passed: Duration, whole: Duration) -> u32 {
    if passed >= whole {
        return FULL;
    }
    let share = passed.as_nanos() * u128::from(FULL) / whole.as_nanos();
    u32::try_from(share).unwrap_or(FULL).clamp(1, FULL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIVE: Option<(u32, u32)> = Some((2, 3));
    const PASSIVE: Option<PassiveCheck> = Some(PassiveCheck {
        fall: 3,
        pause: Duration::from_secs(10),
    });

    fn origin() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn machine(active: Option<(u32, u32)>, passive: Option<PassiveCheck>) -> HealthMachine {
        HealthMachine::new(HealthRules {
            active,
            passive,
            slow_start: Duration::ZERO,
        })
    }

    /// Passes events to a machine, each with the second at which it happens: `+` and `-` are results of active checks, `a` and `f`
    /// a response and a failed request, `t` and `e` the begin and the end of a probe.
    fn play(machine: &mut HealthMachine, origin: Instant, events: &[(u64, char)]) -> String {
        let mut seen = String::new();
        for &(second, event) in events {
            let now = origin + Duration::from_secs(second);
            let change = match event {
                '+' | '-' => machine.on_check(event == '+', now),
                'a' => machine.on_response(now),
                'f' => machine.on_failure(now),
                't' => {
                    seen.push(if machine.begin_probe(now).is_some() {
                        't'
                    } else {
                        'n'
                    });
                    continue;
                }
                'e' => {
                    machine.end_probe(machine.probes);
                    HealthChange::Nothing
                }
                other => panic!("the test has no event {other}"),
            };
            seen.push(match change {
                HealthChange::Nothing => '.',
                HealthChange::Down => 'D',
                HealthChange::Up => 'U',
            });
        }
        seen
    }

    fn at_once(events: &str) -> Vec<(u64, char)> {
        events.chars().map(|event| (0, event)).collect()
    }

    #[test]
    fn checks_and_requests_in_a_row_move_a_backend() {
        let cases = [
            // Each case: settings of active checks, settings of passive checks, events, and the changes of the state.
            (ACTIVE, None, "---", "..D"),
            (ACTIVE, None, "--+--+--", "........"),
            (ACTIVE, None, "----+-++-", "..D....U."),
            (ACTIVE, None, "fffff", "....."),
            (ACTIVE, None, "---aat", "..D..n"),
            (None, PASSIVE, "fff", "..D"),
            (None, PASSIVE, "ffaffaff", "........"),
            (None, PASSIVE, "----", "...."),
            // A response to a request that was sent before the backend went down does not bring it up.
            (None, PASSIVE, "fffafft", "..D...n"),
            (ACTIVE, PASSIVE, "fff++", "..D.U"),
            // Active checks that succeeded before requests failed do not count towards `rise`.
            (ACTIVE, PASSIVE, "+fff+-++", "...D...U"),
            (ACTIVE, PASSIVE, "fff---++", "..D....U"),
            (ACTIVE, PASSIVE, "---fff++", "..D....U"),
            (None, None, "---fff", "......"),
        ];
        for (active, passive, events, want) in cases {
            let mut machine = machine(active, passive);
            let seen = play(&mut machine, origin(), &at_once(events));
            assert_eq!(seen, want, "{active:?} {passive:?} {events}");
        }
    }

    #[test]
    fn after_a_pause_one_request_at_a_time_tries() {
        let fall = [(0, 'f'), (0, 'f'), (0, 'f')];
        let cases: &[(&[(u64, char)], &str)] = &[
            (&[(9, 't'), (10, 't'), (10, 't')], "ntn"),
            (&[(10, 't'), (11, 'a'), (11, 't')], "tUn"),
            // The probe fails, and another pause begins.
            (&[(10, 't'), (12, 'f'), (21, 't'), (22, 't')], "t.nt"),
            // A probe ends without a result, so the next request is a probe.
            (&[(10, 't'), (11, 'e'), (11, 't'), (11, 'a')], "t.tU"),
            (&[(10, 't'), (11, 'a'), (11, 'e'), (11, 'f')], "tU.."),
        ];
        for (events, want) in cases {
            let (mut machine, origin) = (machine(None, PASSIVE), origin());
            assert_eq!(play(&mut machine, origin, &fall), "..D");
            assert_eq!(play(&mut machine, origin, events), *want, "{events:?}");
        }
        // Active checks can end the pause early, or keep the backend down for good.
        for (checks, want) in [("++", ".Un"), ("---", "...n"), ("+", ".t")] {
            let (mut machine, origin) = (machine(ACTIVE, PASSIVE), origin());
            play(&mut machine, origin, &fall);
            let mut events = at_once(checks);
            events.push((10, 't'));
            assert_eq!(play(&mut machine, origin, &events), want, "{checks}");
        }
    }

    #[test]
    fn the_end_of_an_old_probe_does_not_end_the_next() {
        let (mut machine, origin) = (machine(None, PASSIVE), origin());
        play(&mut machine, origin, &at_once("fff"));
        let first = machine.begin_probe(origin + Duration::from_secs(10));
        let first = first.expect("a probe is allowed after the pause");
        machine.on_failure(origin + Duration::from_secs(10));
        let second = machine.begin_probe(origin + Duration::from_secs(20));
        assert!(second.is_some());
        machine.end_probe(first);
        assert_eq!(machine.begin_probe(origin + Duration::from_secs(20)), None);
    }

    #[test]
    fn a_backend_that_comes_up_gets_its_share_slowly() {
        let origin = origin();
        let mut machine = HealthMachine::new(HealthRules {
            active: Some((1, 1)),
            passive: None,
            slow_start: Duration::from_secs(8),
        });
        assert_eq!((machine.share(origin), machine.needed_from()), (FULL, None));
        machine.on_check(false, origin);
        assert_eq!((machine.share(origin), machine.needed_from()), (0, None));
        machine.on_check(true, origin);
        for (milliseconds, want) in [
            (0, 1),
            (1, 1),
            (1000, FULL / 8),
            (4000, FULL / 2),
            (7999, FULL - 1),
        ] {
            let now = origin + Duration::from_millis(milliseconds);
            assert_eq!(machine.share(now), want, "{milliseconds}");
            assert_eq!(machine.needed_from(), Some(origin), "{milliseconds}");
        }
        assert_eq!(machine.share(origin + Duration::from_secs(8)), FULL);
        assert_eq!(machine.needed_from(), None);
    }

    #[test]
    fn answers_are_minded_only_where_they_change_something() {
        let cases = [
            ("", false),
            ("f", true),
            ("fa", false),
            ("fff", false),
            ("ffft", false),
        ];
        for (events, want) in cases {
            let mut machine = machine(None, PASSIVE);
            play(&mut machine, origin(), &at_once(events));
            assert_eq!(machine.response_matters(), want, "{events}");
        }
        let (mut machine, origin) = (machine(None, PASSIVE), origin());
        play(&mut machine, origin, &at_once("fff"));
        play(&mut machine, origin, &[(10, 't')]);
        assert!(machine.response_matters());
    }
}
