//! The pipe that carries a request body from its connection to its handler.

use std::task::{Context, Poll, Waker};

mod content;
mod states;

fn poll<T>(ask: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    ask(&mut Context::from_waker(Waker::noop()))
}
