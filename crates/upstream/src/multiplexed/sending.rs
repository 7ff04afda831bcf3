//! Makes the output to the backend: the streams send pieces of their request bodies in turns.

use std::task::Context;
use std::time::Instant;

use super::connection::State;
use super::engine::{Engine, StreamIndex};
use super::stream::StreamFailure;
use super::upload::PullResult;

impl<E: Engine> State<E> {
    /// Checks uploads that had run out of data: those that have data again may send.
    pub(crate) fn check_starved(&mut self) {
        let mut starved = std::mem::take(&mut self.starved);
        starved.retain(|&key| {
            let upload = self.stream(key).and_then(|stream| stream.upload.as_mut());
            let Some(upload) = upload.filter(|upload| upload.waits_for_client()) else {
                return false;
            };
            let is_fed = upload.is_fed();
            if is_fed {
                self.engine.set_content(key, true);
            }
            !is_fed
        });
        self.starved = starved;
    }

    /// Fills the output with body data as far as the engine takes it.
    pub(crate) fn pump(&mut self, task: &mut Context<'_>, now: Instant) {
        while let Some((key, max)) = self.engine.poll_send() {
            self.pull(key, max, task, now);
        }
    }

    fn pull(&mut self, key: StreamIndex, max: usize, task: &mut Context<'_>, now: Instant) {
        let stream = self.streams.get_mut(key.0).and_then(Option::as_mut);
        let Some(upload) = stream.and_then(|stream| stream.upload.as_mut()) else {
            self.engine.set_content(key, false);
            return;
        };
        let before = self.engine.bytes_made();
        let pulled = upload.pull(&mut self.engine, key, max, task);
        let made = self.engine.bytes_made() - before;
        if let Some(stream) = self.stream(key) {
            stream.note_sent(made);
        }
        match pulled {
            Ok(PullResult::Frame) => self.note_transfer(key, now),
            Ok(PullResult::Starved) => {
                self.engine.set_content(key, false);
                self.starved.push(key);
            }
            Ok(PullResult::End) => self.on_sent(key),
            // The request body cannot be completed: the client has disconnected, or a file with the body cannot be read.
            Err(_) => self.fail(key, StreamFailure::Content),
        }
    }

    /// Records that the request is complete in the output, or that the backend wants no more of it.
    pub(crate) fn on_sent(&mut self, key: StreamIndex) {
        let Some(stream) = self.stream(key) else {
            return;
        };
        stream.on_upload_end();
        if stream.is_forgettable() {
            self.forget(key);
        } else if stream.is_headless() || stream.trace.is_some() {
            self.unwritten.push(key);
        }
    }

    /// Handles output having been written: for requests that have been written completely, the time limit of the response starts.
    pub(crate) fn on_written(&mut self, now: Instant) {
        let until = now + self.settings.first_byte_timeout;
        let mut unwritten = std::mem::take(&mut self.unwritten);
        unwritten.retain(|&key| {
            let is_written = self.engine.is_written(key);
            let Some(stream) = self.stream(key).filter(|_| is_written) else {
                return !is_written;
            };
            if stream.upload.is_none() {
                stream.note_request_end();
            }
            if stream.is_headless() && stream.is_sent() {
                stream.deadline = Some((until, StreamFailure::FirstByteTimeout));
                self.note_deadline(until);
            }
            false
        });
        self.unwritten = unwritten;
    }

    /// Fails the streams whose deadline has passed, and computes the next deadline.
    pub(super) fn expire(&mut self, now: Instant) {
        self.earliest = None;
        for index in 0..self.streams.len() {
            let Some(stream) = &self.streams[index] else {
                continue;
            };
            let (key, queued) = (stream.key, stream.queued());
            let Some((mut until, failure)) = stream.deadline else {
                continue;
            };
            if until <= now {
                if queued == 0 {
                    self.fail(key, failure);
                    continue;
                }
                // The stream waits for the client and not for the backend, so the time limit does not count.
                until = now + self.settings.io_timeout;
                if let Some(stream) = self.stream(key) {
                    stream.deadline = Some((until, failure));
                }
            }
            self.note_deadline(until);
        }
    }
}
