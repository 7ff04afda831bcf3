//! The budget every connection lives on: what a peer makes us do costs units, time and useful work earn
//! them back, and an overdrawn connection is closed. One mechanism in place of one counter per attack.

use std::time::{Duration, Instant};

/// How much a connection may cost us.
#[derive(Clone, Copy, Debug)]
pub struct BudgetSettings {
    /// Units a connection begins with, and the most it can have.
    pub units: u32,
    /// Units earned back per second.
    pub per_second: u32,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            units: 2000,
            per_second: 100,
        }
    }
}

/// What a peer can make us do without getting anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Octets came that were few and completed nothing: a head or body dripped in.
    Fragment,
    /// A request was answered with an error of the server's own making.
    Refusal,
}

impl Cost {
    const fn units(self) -> u32 {
        match self {
            Self::Fragment => 1,
            Self::Refusal => 5,
        }
    }
}

/// A connection whose peer costs more than it is worth.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn;

/// The budget of one connection.
#[derive(Debug)]
pub(crate) struct Budget {
    units: u32,
    refilled: Instant,
}

impl Budget {
    pub(crate) const fn new(settings: BudgetSettings, now: Instant) -> Self {
        Self {
            units: settings.units,
            refilled: now,
        }
    }

    /// Pays for something.
    ///
    /// # Errors
    /// [`Overdrawn`]: the connection is to be closed.
    pub(crate) fn spend(
        &mut self,
        cost: Cost,
        settings: BudgetSettings,
        now: Instant,
    ) -> Result<(), Overdrawn> {
        if self.units < cost.units() {
            self.refill(settings, now);
        }
        self.units = self.units.checked_sub(cost.units()).ok_or(Overdrawn)?;
        Ok(())
    }

    /// A request was served: the connection is worth keeping.
    pub(crate) fn earn(&mut self, settings: BudgetSettings) {
        self.units = self
            .units
            .saturating_add(settings.units / 20)
            .min(settings.units);
    }

    fn refill(&mut self, settings: BudgetSettings, now: Instant) {
        let elapsed = now
            .saturating_duration_since(self.refilled)
            .min(Duration::from_secs(3600));
        let earned = elapsed.as_millis() * u128::from(settings.per_second) / 1000;
        if earned > 0 {
            self.refilled = now;
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.units = self.units.saturating_add(earned).min(settings.units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any start will do")]
    fn start() -> Instant {
        Instant::now()
    }

    const SETTINGS: BudgetSettings = BudgetSettings {
        units: 10,
        per_second: 2,
    };

    #[test]
    fn an_overdrawn_connection_is_told_so_and_time_earns_units_back() {
        let begin = start();
        let mut budget = Budget::new(SETTINGS, begin);
        for _ in 0..10 {
            assert_eq!(budget.spend(Cost::Fragment, SETTINGS, begin), Ok(()));
        }
        assert_eq!(
            budget.spend(Cost::Fragment, SETTINGS, begin),
            Err(Overdrawn)
        );
        let later = begin + Duration::from_secs(1);
        assert_eq!(budget.spend(Cost::Fragment, SETTINGS, later), Ok(()));
        assert_eq!(budget.spend(Cost::Fragment, SETTINGS, later), Ok(()));
        assert_eq!(
            budget.spend(Cost::Fragment, SETTINGS, later),
            Err(Overdrawn)
        );
        let much_later = begin + Duration::from_secs(7200);
        for _ in 0..10 {
            assert_eq!(budget.spend(Cost::Fragment, SETTINGS, much_later), Ok(()));
        }
        assert_eq!(
            budget.spend(Cost::Fragment, SETTINGS, much_later),
            Err(Overdrawn)
        );
    }

    #[test]
    fn requests_served_pay_for_what_they_cost() {
        let settings = BudgetSettings::default();
        let mut budget = Budget::new(settings, start());
        for _ in 0..100_000 {
            for _ in 0..50 {
                assert_eq!(budget.spend(Cost::Fragment, settings, start()), Ok(()));
            }
            budget.earn(settings);
        }
    }
}
