//! Windows (RFC 9113 §5.2 and §6.9).

/// A window would exceed 2^31-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOverflow;

/// The peer sent more content than the window allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowExceeded;

/// The send window. Signed: a smaller SETTINGS_INITIAL_WINDOW_SIZE can make it negative (RFC 9113 §6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow(i32);

impl SendWindow {
    /// A window of `size` bytes, at most 2^31-1.
    #[must_use]
    pub const fn new(size: u32) -> Self {
        if size > i32::MAX.unsigned_abs() {
            return Self(i32::MAX);
        }
        Self(size.cast_signed())
    }

    /// Bytes that may be sent now.
    #[inline]
    #[must_use]
    pub fn available(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    /// The signed size.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Handles WINDOW_UPDATE: raises the window. The RFC limits windows to `i32::MAX`, so an overflow is the peer's fault
    /// (§6.9.1).
    ///
    /// # Errors
    /// [`WindowOverflow`]
    pub fn grow(&mut self, by: u32) -> Result<(), WindowOverflow> {
        let by = i32::try_from(by).map_err(|_| WindowOverflow)?;
        self.0 = self.0.checked_add(by).ok_or(WindowOverflow)?;
        Ok(())
    }

    /// Handles a changed SETTINGS_INITIAL_WINDOW_SIZE: the window grows or shrinks by the difference to the old value
    /// (§6.9.2).
    ///
    /// # Errors
    /// [`WindowOverflow`]
    pub fn shift(&mut self, by: i64) -> Result<(), WindowOverflow> {
        self.0 = i32::try_from(i64::from(self.0) + by).map_err(|_| WindowOverflow)?;
        Ok(())
    }

    /// Deducts `len` bytes that were sent: at most [`SendWindow::available`].
    #[inline]
    pub fn spend(&mut self, len: usize) {
        debug_assert!(len <= self.available(), "more was sent than allowed");
        self.0 = self
            .0
            .saturating_sub(i32::try_from(len).unwrap_or(i32::MAX));
    }
}

/// A receive window, and the bytes that the caller has used but that were not yet announced to the peer with WINDOW_UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWindow {
    left: u32,
    /// Bytes received and not given back yet.
    owed: u32,
}

impl RecvWindow {
    /// A window of `size` bytes.
    #[must_use]
    pub const fn new(size: u32) -> Self {
        Self {
            left: size,
            owed: 0,
        }
    }

    /// Bytes the peer may still send.
    #[must_use]
    pub const fn left(self) -> u32 {
        self.left
    }

    /// Deducts `len` bytes that were received, padding included (§6.1).
    ///
    /// # Errors
    /// [`WindowExceeded`]
    pub fn take(&mut self, len: usize) -> Result<(), WindowExceeded> {
        let len = u32::try_from(len).map_err(|_| WindowExceeded)?;
        self.left = self.left.checked_sub(len).ok_or(WindowExceeded)?;
        Ok(())
    }

    /// Raises the window by `by` bytes; the caller sends the WINDOW_UPDATE that announces it.
    pub const fn raise(&mut self, by: u32) {
        self.left = self.left.saturating_add(by);
    }

    /// Gives back `len` bytes that the caller has used. Returns the increment for a WINDOW_UPDATE frame once that is
    /// worthwhile: when at least as many bytes are to be given back as the peer may still send (§5.2.1 leaves the moment to
    /// us). H2O compatibility: H2O announces at the same moment.
    #[must_use]
    pub fn give_back(&mut self, len: usize) -> Option<u32> {
        self.give_back_up_to(len, u32::MAX)
    }

    /// As [`RecvWindow::give_back`], but raises the window to at most `most` bytes; what exceeds that is given back later.
    #[must_use]
    pub fn give_back_up_to(&mut self, len: usize, most: u32) -> Option<u32> {
        self.owed = self
            .owed
            .saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        let increment = self.owed.min(most.saturating_sub(self.left));
        if increment == 0 || increment < self.left {
            return None;
        }
        self.owed -= increment;
        self.raise(increment);
        Some(increment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_windows_end_at_2_31_and_may_be_negative() {
        let mut window = SendWindow::new(65_535);
        assert_eq!(window.grow(0x7fff_ffff), Err(WindowOverflow));
        assert_eq!(window.grow(0x7fff_ffff - 65_535), Ok(()));
        assert_eq!(window.grow(1), Err(WindowOverflow));
        window.spend(0x7fff_ffff);
        assert_eq!(window.available(), 0);
        assert_eq!(window.shift(-65_535), Ok(()));
        assert_eq!((window.get(), window.available()), (-65_535, 0));
        assert_eq!(window.grow(65_536), Ok(()));
        assert_eq!(window.available(), 1);
        assert_eq!(window.shift(i64::from(i32::MAX)), Err(WindowOverflow));
    }

    #[test]
    fn receive_windows_are_refilled_when_half_is_used() {
        let mut window = RecvWindow::new(100);
        assert_eq!(window.take(49), Ok(()));
        assert_eq!(window.give_back(49), None);
        assert_eq!(window.take(1), Ok(()));
        assert_eq!(window.give_back(1), Some(50));
        assert_eq!(window.left(), 100);
        assert_eq!(window.give_back(0), None);
        assert_eq!(window.take(101), Err(WindowExceeded));
    }
    #[test]
    fn receive_windows_stay_below_what_is_asked_for() {
        let mut window = RecvWindow::new(100);
        assert_eq!(window.take(80), Ok(()));
        assert_eq!(window.give_back_up_to(80, 20), None);
        assert_eq!(window.give_back_up_to(0, 39), None);
        assert_eq!(window.give_back_up_to(0, 45), Some(25));
        assert_eq!(window.take(45), Ok(()));
        assert_eq!(window.give_back_up_to(45, 0), None);
        assert_eq!(window.give_back_up_to(0, 1), Some(1));
        assert_eq!(window.give_back_up_to(0, u32::MAX), Some(99));
        assert_eq!(window.left(), 100);
    }
}
