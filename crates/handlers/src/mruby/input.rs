//! Reads the request body for scripts, in pieces. The Ruby class `InputStream` of `rack.input` is in `prelude.rb`.

use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use h2o_exchange::{BodyError, FileRange, FileReader, RequestBody};
use h2o_mruby::{Leave, Value, Vm};

use super::machine::Host;
use super::objects::RequestState;

/// Most bytes that are read from a temporary file at a time.
const PIECE: usize = 64 * 1024;

/// Defines the methods of the class of [`RequestState`] that read the request body.
pub(super) fn define(vm: &Vm, class: Value) -> Result<(), Value> {
    vm.define(class, "size", |vm, call| {
        let len = vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            request.body_len().unwrap_or(0)
        })?;
        Ok(vm.integer(i64::try_from(len).unwrap_or(i64::MAX))?)
    })?;
    // The bytes from `from` on, at most `len`. The value is an exception if the body cannot be read.
    vm.define(class, "__part", |vm, call| {
        let [from, len] = call.arguments.exactly()?;
        let (from, len) = (position(from)?, position(len)?);
        let part = vm.with_object(call.receiver, |request: &Rc<RequestState>| {
            request.part_of_body(from, len)
        })?;
        match part {
            RequestBody::Bytes(bytes) => Ok(vm.string(bytes)?),
            RequestBody::File(range) => read(vm, range),
            RequestBody::Stream(_) | RequestBody::None => Ok(vm.string("")?),
        }
    })
}

fn position(value: Value) -> Result<u64, Leave> {
    let position = value.as_integer().and_then(|at| u64::try_from(at).ok());
    position.ok_or_else(|| Leave::argument("a length must be an Integer of at least 0"))
}

/// What `read` of an untouched `InputStream`, or the rest of one, would return, without passing through Ruby. The stream is at its end
/// afterwards. `None` for other objects, and for streams whose request has ended.
pub(super) fn take(vm: &Vm, input: Value) -> Result<Option<RequestBody>, Leave> {
    // A class that is derived from it may have its own method `read`.
    if vm.class_name(input) != "InputStream" {
        return Ok(None);
    }
    let rest = vm.call(input, "__take", &[])?;
    let rest = vm.elements(rest).unwrap_or_default();
    let [request, from] = *rest.as_slice() else {
        return Ok(None);
    };
    let from = position(from)?;
    let body = vm.with_object(request, |request: &Rc<RequestState>| {
        request.part_of_body(from, u64::MAX)
    })?;
    Ok(Some(body))
}

/// Reads a part of a temporary file: at once if it is in the page cache, otherwise the strand (fiber) waits.
fn read(vm: &Vm, mut range: FileRange) -> Result<Value, Leave> {
    // A String of that length raises an exception, so the bytes behind it are not needed.
    range.len = range.len.min(vm.memory_limit() as u64 + 1);
    let mut reading = Box::pin(read_all(range.clone()));
    if let Poll::Ready(read) = reading
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        return give(vm, read).map_err(Leave::Raise);
    }
    let worker = Host::worker(vm)?;
    let Ok(ticket) = vm.suspend() else {
        // A fiber that the script has made cannot wait, nor can Ruby below functions of C.
        return give(vm, read_blocking(&range)).map_err(Leave::Raise);
    };
    let reference = vm.reference();
    worker.spawn(async move {
        let read = reading.await;
        if let Some(vm) = reference.upgrade() {
            vm.resume(ticket, |vm| {
                give(vm, read).unwrap_or_else(|exception| exception)
            });
        }
    });
    Err(Leave::Wait)
}

fn give(vm: &Vm, read: Result<Vec<u8>, BodyError>) -> Result<Value, Value> {
    match read {
        Ok(bytes) => vm.string(bytes),
        Err(error) => Err(vm.exception("IOError", &error.to_string())),
    }
}

async fn read_all(range: FileRange) -> Result<Vec<u8>, BodyError> {
    let mut reader = FileReader::new(range);
    let mut content = Vec::new();
    while poll_fn(|task| reader.poll_append(task, PIECE, &mut content)).await? > 0 {}
    Ok(content)
}

fn read_blocking(range: &FileRange) -> Result<Vec<u8>, BodyError> {
    let mut content = vec![0; usize::try_from(range.len).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while let Some(rest) = content.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let read = range.file.read_blocking(range.offset + filled as u64, rest);
        match read.map_err(BodyError::Local)? {
            0 => return Err(BodyError::Local(io::ErrorKind::UnexpectedEof.into())),
            read => filled += read,
        }
    }
    Ok(content)
}
