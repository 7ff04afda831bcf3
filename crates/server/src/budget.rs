//! The abuse budget of a connection: misbehaviour and failed requests cost units, time and served requests restore them, and the server
//! closes a connection that has no units left. This one mechanism serves in place of a counter for each kind of attack.

use std::time::Duration;

/// Settings of the abuse budget that every connection has.
#[derive(Clone, Copy, Debug)]
pub struct BudgetSettings {
    /// Units of the abuse budget that a connection has at the start, and the most that it can have.
    pub units: u32,
    /// Units of the abuse budget that are restored per second.
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

/// A client's behaviour that takes units off the abuse budget of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// A read brought few bytes that completed no message or frame: the client sends a request's head or body a few bytes at a
    /// time.
    Fragment,
    /// The server itself answered a request with an error.
    Refusal,
}

impl Cost {
    pub(crate) const fn units(self) -> u32 {
        match self {
            Self::Fragment => 1,
            Self::Refusal => 5,
        }
    }
}

/// The connection has used up its abuse budget and must be closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn;

/// Abuse budget of one connection.
#[derive(Debug)]
pub(crate) struct Budget {
    units: u32,
    /// Age of the connection, in milliseconds, when units were last restored.
    refilled: u32,
    is_overdrawn: bool,
}

impl Budget {
    pub(crate) const fn new(settings: BudgetSettings) -> Self {
        Self {
            units: settings.units,
            refilled: 0,
            is_overdrawn: false,
        }
    }

    /// Takes `units` off the connection's abuse budget. `age` is the age of the connection.
    ///
    /// # Errors
    /// [`Overdrawn`]: the connection must be closed.
    pub(crate) fn spend(
        &mut self,
        units: u32,
        settings: BudgetSettings,
        age: Duration,
    ) -> Result<(), Overdrawn> {
        if self.units < units {
            self.refill(settings, age);
        }
        let left = self.units.checked_sub(units);
        self.is_overdrawn |= left.is_none();
        self.units = left.ok_or(Overdrawn)?;
        Ok(())
    }

    /// Whether the abuse budget is used up: [`Budget::spend`] has failed.
    pub(crate) const fn is_overdrawn(&self) -> bool {
        self.is_overdrawn
    }

    /// Adds `units` to the abuse budget, which never exceeds the number of units that a new connection has.
    pub(crate) fn earn_units(&mut self, units: u32, settings: BudgetSettings) {
        self.units = self.units.saturating_add(units).min(settings.units);
    }

    fn refill(&mut self, settings: BudgetSettings, age: Duration) {
        let age = u32::try_from(age.as_millis()).unwrap_or(u32::MAX);
        let elapsed = age.saturating_sub(self.refilled).min(3_600_000);
        let earned = u64::from(elapsed) * u64::from(settings.per_second) / 1000;
        if earned > 0 {
            self.refilled = age;
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.units = self.units.saturating_add(earned).min(settings.units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: BudgetSettings = BudgetSettings {
        units: 10,
        per_second: 2,
    };

    #[test]
    fn an_overdrawn_connection_is_told_so_and_time_earns_units_back() {
        let begin = Duration::ZERO;
        let mut budget = Budget::new(SETTINGS);
        for _ in 0..10 {
            assert_eq!(
                budget.spend(Cost::Fragment.units(), SETTINGS, begin),
                Ok(())
            );
        }
        assert_eq!(
            budget.spend(Cost::Fragment.units(), SETTINGS, begin),
            Err(Overdrawn)
        );
        let later = begin + Duration::from_secs(1);
        assert_eq!(
            budget.spend(Cost::Fragment.units(), SETTINGS, later),
            Ok(())
        );
        assert_eq!(
            budget.spend(Cost::Fragment.units(), SETTINGS, later),
            Ok(())
        );
        assert_eq!(
            budget.spend(Cost::Fragment.units(), SETTINGS, later),
            Err(Overdrawn)
        );
        let much_later = begin + Duration::from_secs(7200);
        for _ in 0..10 {
            assert_eq!(
                budget.spend(Cost::Fragment.units(), SETTINGS, much_later),
                Ok(())
            );
        }
        assert_eq!(
            budget.spend(Cost::Fragment.units(), SETTINGS, much_later),
            Err(Overdrawn)
        );
    }

    #[test]
    fn useful_work_earns_no_more_than_a_connection_begins_with() {
        let mut budget = Budget::new(SETTINGS);
        budget.earn_units(5, SETTINGS);
        assert_eq!(budget.spend(11, SETTINGS, Duration::ZERO), Err(Overdrawn));
        assert_eq!(budget.spend(10, SETTINGS, Duration::ZERO), Ok(()));
        budget.earn_units(3, SETTINGS);
        assert_eq!(budget.spend(3, SETTINGS, Duration::ZERO), Ok(()));
        assert_eq!(budget.spend(1, SETTINGS, Duration::ZERO), Err(Overdrawn));
    }
}
