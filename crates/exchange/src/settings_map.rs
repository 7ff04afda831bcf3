//! A set of settings, one value per type: each feature has a struct of its own.

use std::any::{Any, TypeId};
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// A type whose values can be kept in a [`SettingsMap`].
pub trait Setting: Any + Clone + Default + Send + Sync {}
impl<T: Any + Clone + Default + Send + Sync> Setting for T {}

/// Holds one value per type. A clone, such as the map of an inner configuration level, shares the values until one of
/// the maps changes them.
#[derive(Clone, Default)]
pub struct SettingsMap {
    values: FxHashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl SettingsMap {
    /// The settings of type `T`; their default if none were set.
    #[must_use]
    pub fn get<T: Setting>(&self) -> Arc<T> {
        self.peek().unwrap_or_default()
    }

    /// The settings of type `T`, if any were set.
    #[must_use]
    pub fn peek<T: Setting>(&self) -> Option<Arc<T>> {
        let value = Arc::clone(self.values.get(&TypeId::of::<T>())?);
        value.downcast().ok()
    }

    /// Returns the settings of type `T` to be changed. Maps that were cloned from this one earlier keep their own.
    pub fn edit<T: Setting>(&mut self) -> &mut T {
        let mut value = self
            .values
            .remove(&TypeId::of::<T>())
            .and_then(|value| value.downcast().ok())
            .unwrap_or_else(|| Arc::new(T::default()));
        Arc::make_mut(&mut value);
        let slot: &mut Arc<dyn Any + Send + Sync> = self
            .values
            .entry(TypeId::of::<T>())
            .insert_entry(value)
            .into_mut();
        Arc::get_mut(slot)
            .and_then(|value| value.downcast_mut())
            .expect("the value has type T, and this map is its only owner")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_levels_change_their_own_copy() {
        let mut outer = SettingsMap::default();
        *outer.edit::<u32>() = 1;
        let mut inner = outer.clone();
        *inner.edit::<u32>() += 1;
        assert_eq!((*outer.get::<u32>(), *inner.get::<u32>()), (1, 2));
        assert_eq!(outer.peek::<String>(), None);
        assert_eq!(*outer.get::<String>(), "");
    }
}
