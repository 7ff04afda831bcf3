//! The body of a FastCGI response.

use std::task::{Context, Poll};

use bytes::Bytes;
use h2o_exchange::{BodyError, BodySource, Trailers};

use super::exchange::{FastcgiExchange, Part};
use crate::read_ahead::Origin;

/// The body of a FastCGI response: reads it from the connection when polled, and returns the connection to the pool
/// after END_REQUEST.
pub(super) struct FastcgiBody {
    exchange: Option<FastcgiExchange>,
    /// The error with which the body ends after the bytes of `ready`; `None` if there is no error so far.
    failure: Option<String>,
    /// Bytes of the body that arrived together with the head.
    ready: Bytes,
    /// Number of bytes of the body that may still be passed on before the announced length is reached. The application's bytes
    /// beyond it are dropped. `None` if no length was announced.
    left: Option<u64>,
}

impl FastcgiBody {
    pub(super) fn new(
        exchange: Option<FastcgiExchange>,
        failure: Option<String>,
        ready: Bytes,
        length: Option<u64>,
    ) -> Self {
        Self {
            exchange,
            failure,
            ready,
            left: length,
        }
    }

    /// Cuts off the bytes beyond the announced length.
    fn cut(&mut self, mut piece: Bytes) -> Bytes {
        if let Some(left) = &mut self.left {
            piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= piece.len() as u64;
        }
        piece
    }

    fn fail(&mut self, text: String) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.exchange = None;
        Poll::Ready(Some(Err(BodyError::Failed(text))))
    }
}

impl BodySource for FastcgiBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if !self.ready.is_empty() {
            let piece = self.ready.split_to(max.min(self.ready.len()));
            let piece = self.cut(piece);
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(piece)));
            }
            self.ready.clear();
        }
        loop {
            let Some(exchange) = &mut self.exchange else {
                return match self.failure.take() {
                    Some(text) => self.fail(text),
                    // Filters may have removed the announced length from the response, so nobody else would notice.
                    None if self.left.take_if(|left| *left > 0).is_some() => {
                        self.fail("the response body is shorter than announced".into())
                    }
                    None => Poll::Ready(None),
                };
            };
            match std::task::ready!(exchange.poll_part(context, max)) {
                Ok(Part::Content(piece)) => {
                    let piece = self.cut(piece);
                    if !piece.is_empty() {
                        return Poll::Ready(Some(Ok(piece)));
                    }
                }
                Ok(Part::End { .. }) => {
                    if let Some(exchange) = self.exchange.take() {
                        exchange.finish();
                    }
                }
                Ok(Part::Closed) if self.left.is_none_or(|left| left == 0) => self.exchange = None,
                Ok(Part::Closed) => {
                    return self.fail("fastcgi connection closed unexpectedly".into());
                }
                Err(error) => return self.fail(error.to_string()),
            }
        }
    }

    fn trailers(&mut self) -> Trailers {
        // The announced length may have arrived while the application's END_REQUEST is still to come.
        match self.exchange {
            Some(_) => Trailers::Unknown,
            None => Trailers::None,
        }
    }

    fn retained(&self) -> usize {
        let exchange = self.exchange.as_ref().map_or(0, FastcgiExchange::retained);
        exchange + self.ready.len()
    }
}

impl Origin for FastcgiBody {
    fn remaining(&self) -> Option<u64> {
        match (&self.exchange, &self.failure) {
            (None, None) => Some(self.ready.len() as u64),
            _ => self.left,
        }
    }
}
