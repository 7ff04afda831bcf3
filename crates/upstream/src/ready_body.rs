//! The content of a request at the moment the request is sent.

use std::future::poll_fn;

use h2o_exchange::RequestBody;
use h2o_http::{BodyLength, RequestHead};

use crate::Call;

/// The content of a request at the moment the request is sent.
pub(crate) struct ReadyBody {
    body: RequestBody,
    /// Its length, if it was to be streamed and all of it was there.
    whole: Option<u64>,
}

impl ReadyBody {
    /// Takes the content out of the call. A streamed one is waited for until it begins; if that is all of it, it is not
    /// streamed any more (H2O compatibility).
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

    /// Whether all of it is kept, and can be sent again.
    pub(crate) const fn can_resend(&self) -> bool {
        match self.body {
            RequestBody::None | RequestBody::Bytes(_) | RequestBody::File(_) => true,
            RequestBody::Stream(_) => false,
        }
    }

    /// Puts the length into a head that does not know it.
    pub(crate) fn fit(&self, head: &mut RequestHead) {
        if let (BodyLength::Unknown, Some(length)) = (head.body, self.whole) {
            head.body = BodyLength::Known(length);
        }
    }

    /// The content for one attempt: a handle of it, as a retry may need it again.
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
