//! Flow control windows (RFC 9113 §5.2 and §6.9).

/// The peer would raise a send window above 2^31-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOverflow;

/// The peer sent more content than a receive window allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowExceeded;

/// A send window in bytes. It is signed, since a smaller SETTINGS_INITIAL_WINDOW_SIZE can make it negative (RFC 9113
/// §6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow(i32);

impl SendWindow {
    /// A send window of `size` bytes, at most 2^31-1.
    #[must_use]
    pub const fn new(size: u32) -> Self {
        if size > i32::MAX.unsigned_abs() {
            return Self(i32::MAX);
        }
        Self(size.cast_signed())
    }

    /// How many bytes may be sent now; 0 if the window is negative.
    #[inline]
    #[must_use]
    pub fn available(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    /// The size of the window, which may be negative.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Raises the window by the increment of a WINDOW_UPDATE frame.
    ///
    /// # Errors
    /// Returns [`WindowOverflow`] if the window would exceed 2^31-1, which is the peer's fault (§6.9.1).
    pub fn grow(&mut self, by: u32) -> Result<(), WindowOverflow> {
        let by = i32::try_from(by).map_err(|_| WindowOverflow)?;
        self.0 = self.0.checked_add(by).ok_or(WindowOverflow)?;
        Ok(())
    }

    /// Changes the window by `by`, the difference between a new and the old SETTINGS_INITIAL_WINDOW_SIZE (§6.9.2).
    ///
    /// # Errors
    /// Returns [`WindowOverflow`] if the window would exceed 2^31-1.
    pub fn shift(&mut self, by: i64) -> Result<(), WindowOverflow> {
        self.0 = i32::try_from(i64::from(self.0) + by).map_err(|_| WindowOverflow)?;
        Ok(())
    }

    /// Deducts `len` bytes that were sent from the window: at most [`SendWindow::available`].
    #[inline]
    pub fn spend(&mut self, len: usize) {
        debug_assert!(
            len <= self.available(),
            "more bytes were sent than the window allows"
        );
        self.0 = self
            .0
            .saturating_sub(i32::try_from(len).unwrap_or(i32::MAX));
    }
}

/// A receive window in bytes, with the bytes that the caller has used but that no WINDOW_UPDATE has given back to the peer
/// yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWindow {
    left: u32,
    /// Number of bytes received and not given back to the peer yet.
    owed: u32,
}

impl RecvWindow {
    /// A receive window of `size` bytes.
    #[must_use]
    pub const fn new(size: u32) -> Self {
        Self {
            left: size,
            owed: 0,
        }
    }

    /// How many bytes the peer may still send.
    #[must_use]
    pub const fn left(self) -> u32 {
        self.left
    }

    /// Deducts `len` bytes that were received, including padding (§6.1).
    ///
    /// # Errors
    /// Returns [`WindowExceeded`] if the window does not allow as many.
    pub fn take(&mut self, len: usize) -> Result<(), WindowExceeded> {
        let len = u32::try_from(len).map_err(|_| WindowExceeded)?;
        self.left = self.left.checked_sub(len).ok_or(WindowExceeded)?;
        Ok(())
    }

    /// Raises the window by `by` bytes; the caller sends the WINDOW_UPDATE that announces it.
    pub const fn raise(&mut self, by: u32) {
        self.left = self.left.saturating_add(by);
    }

    /// Notes that the caller has used `len` bytes. Returns the increment for a WINDOW_UPDATE frame once that is worthwhile:
    /// when at least as many bytes are to be given back as the peer may still send (§5.2.1 leaves the moment open). H2O
    /// compatibility: H2O sends WINDOW_UPDATE at the same moment.
    #[must_use]
    pub fn give_back(&mut self, len: usize) -> Option<u32> {
        self.give_back_up_to(len, u32::MAX)
    }

    /// Like [`RecvWindow::give_back`], but the window does not get larger than `most` bytes; the excess is given back
    /// later.
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
