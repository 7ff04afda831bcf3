//! When a connection that carries many requests is closed because of a timeout: of its streams, of the connection, or because it
//! is idle.

use std::time::{Duration, Instant};

use super::connection::State;
use super::engine::Engine;
use super::stream::{Stream, StreamFailure};

/// When bytes last moved on a connection, and since when it is idle.
#[derive(Debug)]
pub(crate) struct Activity {
    /// When bytes were last received or sent.
    last_io: Instant,
    /// When the last request ended; `None` while a request is in progress.
    idle_since: Option<Instant>,
}

impl Activity {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            last_io: now,
            idle_since: None,
        }
    }

    /// Records that bytes were received or sent.
    pub(crate) const fn note(&mut self, now: Instant) {
        self.last_io = now;
    }

    /// Fails streams whose deadline has passed. Returns when to call this next; `None` if the connection is to be closed: it was
    /// idle for too long, the backend does not read or answer, or it accepts no more requests (GOAWAY) and none is in progress.
    pub(crate) fn check<E: Engine>(
        &mut self,
        state: &mut State<E>,
        now: Instant,
    ) -> Option<Instant> {
        if state.engine.is_over() {
            return None;
        }
        if state.is_busy() {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
        if self.next_deadline(state) <= now && !self.on_deadline(state, now) {
            state.engine.go_away();
            return None;
        }
        Some(self.next_deadline(state))
    }

    /// The earliest time at which a deadline may have passed.
    fn next_deadline<E: Engine>(&self, state: &State<E>) -> Instant {
        if let Some(since) = self.idle_since {
            return since + idle_limit(state);
        }
        let io = self.last_io + state.settings.io_timeout;
        state.earliest.map_or(io, |earliest| earliest.min(io))
    }

    /// Handles a deadline that may have passed. Returns whether the connection stays open.
    fn on_deadline<E: Engine>(&mut self, state: &mut State<E>, now: Instant) -> bool {
        if let Some(since) = self.idle_since {
            return since + idle_limit(state) > now;
        }
        state.expire(now);
        let mut streams = state.streams.iter().flatten();
        let is_up_to_server = state.engine.has_backlog()
            || !state.waiting.is_empty()
            || streams.any(Stream::waits_for_server);
        self.last_io = if is_up_to_server {
            self.last_io.max(state.moved_at)
        } else {
            now
        };
        if self.last_io + state.settings.io_timeout > now {
            return true;
        }
        // H2O compatibility: the texts are H2O's.
        state.fail_each(|stream| {
            if stream.is_headless() {
                StreamFailure::FirstByteTimeout
            } else {
                StreamFailure::IoTimeout
            }
        });
        false
    }
}

/// How long the connection may be idle before it is closed.
fn idle_limit<E: Engine>(state: &State<E>) -> Duration {
    if state.has_begun {
        state.settings.keepalive
    } else {
        // A new connection is kept for `io_timeout` until its first request, even if `keepalive` is zero.
        state.settings.io_timeout
    }
}
