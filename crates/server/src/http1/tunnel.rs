//! Tunnels: CONNECT, and upgrades to protocols that are not ours.
//!
//! The content of the response goes to the client as it is; what the client sends goes into the pipe that the handler
//! was given with the request. Nothing is timed in here. When the content ends, so does the connection (RFC 9110
//! §9.3.6); that the client has ended its direction is only told to the handler.

use std::rc::Rc;

use h2o_exchange::{BodyPipe, RequestBody, Response};
use h2o_http::{Known, StatusCode};

use super::Http1;
use crate::flow::{Flow, Turn};

impl Http1 {
    /// Hands a request that asks for a tunnel to its handlers.
    pub(super) fn start_tunnel(&mut self, turn: &mut Turn<'_>) -> Flow {
        let Some(active) = &mut self.active else {
            return Flow::Close;
        };
        let pipe = Rc::new(BodyPipe::default());
        pipe.set_owner(active.waker(turn));
        active.exchange.borrow_mut().body = RequestBody::Stream(Rc::clone(&pipe));
        active.upload = Some(pipe);
        active.is_tunnel = true;
        self.start(turn)
    }

    /// A response to a request that asks for a tunnel is about to be sent. One that opens none is the last one of its
    /// connection (H2O compatibility): what the client has sent in good hope is not to be taken for requests.
    pub(super) fn prepare_tunnel(&mut self, response: &mut Response) {
        let Some(active) = &mut self.active else {
            return;
        };
        let exchange = active.exchange.borrow();
        if !exchange.request.is_tunnel_opened_by(response.status) {
            active.is_tunnel = false;
            if let Some(pipe) = active.upload.take() {
                pipe.finish(Ok(()));
            }
            self.engine.shut_down();
            return;
        }
        let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_upgrade && response.headers.get(Known::Upgrade).is_none() {
            let token = exchange.request.upgrade();
            response.headers.push(Known::Upgrade, token);
        }
    }

    /// True if the handler has given the tunnel up: the client is not to take its end for a clean one.
    pub(super) fn is_given_up(&self, turn: &mut Turn<'_>) -> bool {
        let Some(active) = &self.active else {
            return false;
        };
        let Some(reason) = active.upload.as_ref().and_then(|pipe| pipe.given_up()) else {
            return false;
        };
        active.exchange.borrow_mut().note_error("core", reason);
        turn.connection.io.is_cut_off = true;
        true
    }
}
