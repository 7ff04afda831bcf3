//! The body of a request, ready to be sent to a backend.

use std::future::poll_fn;

use h2o_exchange::RequestBody;
use h2o_http::{BodyLength, RequestHead};

use crate::Call;

/// The body of a request, ready to be sent to a backend.
pub(crate) struct ReadyBody {
    body: RequestBody,
    /// The length of the body, if a streamed body turned out to be complete.
    whole: Option<u64>,
}

impl ReadyBody {
    /// Takes the body out of the call. Waits until a streamed body begins; if the body is complete then, it is sent with a length
    /// (H2O compatibility: H2O waits as well).
    pub(crate) async fn of(call: &mut Call<'_>) -> Self {
        let body = std::mem::take(&mut call.body);
        if let RequestBody::Stream(pipe) = &body
            && call.waits_for_content
        {
            poll_fn(|context| pipe.poll_begun(context)).await;
            if let Some(whole) = pipe.take_whole() {
                return Self {
                    whole: Some(whole.len() as u64),
                    body: RequestBody::Bytes(whole),
                };
            }
        }
        Self { body, whole: None }
    }

    /// Whether the whole body is here, so that it can be sent again however much of it an attempt sends.
    pub(crate) const fn is_whole(&self) -> bool {
        match self.body {
            RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => true,
            RequestBody::Stream(_) => false,
        }
    }

    /// Makes the body ready to be sent from its start again after a failed attempt. Returns `false` if a part of a streamed body is
    /// gone. Bytes of a tunnel are [kept](h2o_exchange::BodyPipe::keep) until the backend answers.
    pub(crate) fn rewind(&self) -> bool {
        match &self.body {
            RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => true,
            RequestBody::Stream(pipe) => pipe.is_kept() && pipe.rewind(),
        }
    }

    /// Sets the length in the head of a request, if the head has no length and the body turned out to be complete.
    pub(crate) fn set_length(&self, head: &mut RequestHead) {
        if let (BodyLength::Unknown, Some(length)) = (head.body, self.whole) {
            head.body = BodyLength::Known(length);
        }
    }

    /// Returns a handle of the body for one attempt to send the request; a retry may need another handle.
    pub(crate) fn to_send(&self) -> RequestBody {
        self.body.clone()
    }
}

#[cfg(test)]
impl From<RequestBody> for ReadyBody {
    fn from(body: RequestBody) -> Self {
        Self { body, whole: None }
    }
}
