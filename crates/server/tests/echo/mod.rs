//! A response body that echoes the bytes that the client sends.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{BodyError, BodyPipe, BodySource};

/// The source of the echoing body; the second value is the rest of a piece of the request body that was larger than the connection
/// asked for.
pub(crate) struct Echo(Rc<BodyPipe>, Bytes);

impl Echo {
    pub(crate) const fn new(pipe: Rc<BodyPipe>) -> Self {
        Self(pipe, Bytes::new())
    }
}

impl BodySource for Echo {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.1.is_empty() {
            match self.0.poll_next(context) {
                Poll::Ready(Some(Ok(piece))) => self.1 = piece,
                other => return other,
            }
        }
        let len = max.min(self.1.len());
        Poll::Ready(Some(Ok(self.1.split_to(len))))
    }

    fn retained(&self) -> usize {
        0
    }
}
