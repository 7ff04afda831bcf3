//! Fuzzes the responses that are made from the values that scripts return.

use std::rc::Rc;

use h2o_exchange::{Body, Exchange, Outcome, Response};
use h2o_handlers::fuzzing::{script_outcome, script_vm};
use h2o_http::{Method, RequestHead};
use h2o_mruby::Vm;

use crate::proxied::Proxied;
use crate::ruby::Plain;

thread_local! {
    static VM: Rc<Vm> = script_vm();
}

/// The fuzz target. The first byte of the input says whether the method is HEAD, and whether the value that the script returns is of any
/// kind, or a list of status, fields and body of which each is of any kind. The response that is made from the value must be well-formed.
///
/// # Panics
/// If the response is not well-formed.
pub fn script_responses(input: &[u8]) {
    let Some((&options, mut rest)) = input.split_first() else {
        return;
    };
    let path = Proxied::new("", "/", "http://127.0.0.1:1/");
    let mut request = RequestHead::default();
    if options & 1 != 0 {
        request.method = Method::Head;
    }
    let target = request.headers.store(b"/");
    request.set_target(target);
    let Some(mut exchange) = path.exchange(&request) else {
        return;
    };
    VM.with(|vm| {
        vm.scope(|| {
            let mut parts = Vec::new();
            if options & 2 != 0 {
                parts.push(Plain::Integer(100 + i64::from(options) * 4 % 900));
            }
            while parts.len() < 3 {
                parts.push(Plain::read(&mut rest, 4));
            }
            let whole = if options & 4 != 0 {
                Plain::read(&mut rest, 4)
            } else {
                Plain::List(parts)
            };
            let value = whole.to_ruby(vm).expect("the VM has memory left");
            vm.set_global("$response", value)
                .expect("the VM has memory left");
            match script_outcome(vm, &mut exchange, value) {
                Outcome::Done(response) => check(&exchange, &response),
                Outcome::Declined | Outcome::Next(_) => {}
                Outcome::Later(_) | Outcome::Reroute(_) => {
                    panic!("the script waits for nothing, so the handler answers at once")
                }
            }
        });
    });
}

fn check(exchange: &Exchange, response: &Response) {
    assert!((100..=999).contains(&response.status.as_u16()));
    for field in response.headers.iter() {
        let name = field.name.as_str();
        assert!(h2o_http::is_token(name.as_bytes()), "{name:?}");
        assert!(
            !name.bytes().any(|byte| byte.is_ascii_uppercase()),
            "{name}"
        );
        let unsafe_byte = field.value.iter().find(|byte| b"\r\n\0".contains(byte));
        assert_eq!(unsafe_byte, None, "{name}");
        assert!(!["connection", "transfer-encoding", "content-length"].contains(&name));
    }
    if let Body::Bytes(bytes) = &response.body {
        assert!(exchange.request.method != Method::Head || response.is_plain_error);
        assert!(
            response
                .length
                .is_none_or(|length| length == bytes.len() as u64)
        );
    }
}
