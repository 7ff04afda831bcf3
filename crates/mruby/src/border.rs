//! The functions of Rust that the shim calls. No panic leaves them.

#![expect(unsafe_code, reason = "C calls these functions with its pointers")]

use std::any::{Any, TypeId};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Value;
use crate::ffi::{RawCall, State};
use crate::function::{Arguments, Call, Leave};
use crate::vm::Vm;

/// What every Rust value that is owned by a Ruby object begins with.
#[repr(C)]
pub(crate) struct Header {
    kind: TypeId,
    drop: unsafe fn(*mut Self),
}

/// A Rust value that is owned by a Ruby object.
#[repr(C)]
struct Owned<T> {
    header: Header,
    value: T,
}

/// A pointer for the Ruby object that owns `value`.
pub(crate) fn own<T: 'static>(value: T) -> *mut Header {
    let drop = |header: *mut Header| {
        // SAFETY: the header is that of the box below.
        std::mem::drop(unsafe { Box::from_raw(header.cast::<Owned<T>>()) });
    };
    let header = Header {
        kind: TypeId::of::<T>(),
        drop,
    };
    Box::into_raw(Box::new(Owned { header, value })).cast()
}

/// The value behind a pointer of [`own`], if it is of this type.
///
/// # Safety
/// The pointer is null or was not dropped.
pub(crate) unsafe fn owned<'a, T: 'static>(pointer: *const Header) -> Option<&'a T> {
    // SAFETY: as promised.
    let header = unsafe { pointer.as_ref() }?;
    (header.kind == TypeId::of::<T>()).then(|| {
        // SAFETY: it is the header of such a value.
        unsafe { &(*pointer.cast::<Owned<T>>()).value }
    })
}

const RETURNED: c_int = 0;
const RAISED: c_int = 1;
const WAITS: c_int = 2;

/// Calls the function with this number in the VM that runs on this thread.
#[unsafe(no_mangle)]
extern "C" fn h2o_mruby_call(_: *mut State, number: i64, raw: *mut RawCall) -> c_int {
    let status = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the shim passes its own record of the call, and arguments that live until this function returns.
        let (call, raw) = unsafe {
            let raw = &mut *raw;
            let arguments: &[Value] = if raw.count == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(raw.arguments.cast(), raw.count)
            };
            let call = Call {
                receiver: Value(raw.receiver),
                block: Value(raw.block),
                arguments: Arguments(arguments),
            };
            (call, raw)
        };
        Vm::with_current(|vm| {
            let called = vm
                .function(number)
                .ok_or_else(|| Leave::runtime("no such function"));
            let called = called.and_then(|function| {
                catch_unwind(AssertUnwindSafe(|| {
                    #[cfg(any(test, feature = "faults"))]
                    crate::faults::strike(number);
                    function(vm, &call)
                }))
                .unwrap_or_else(|panic| Err(Leave::runtime(format!("panic: {}", text_of(&*panic)))))
            });
            let (status, value) = match called {
                Ok(value) => (RETURNED, value),
                Err(Leave::Raise(exception)) => (RAISED, exception),
                Err(Leave::New(class, message)) => (RAISED, vm.exception(class, &message)),
                Err(Leave::Wait) => (WAITS, Value::nil()),
            };
            raw.result = value.0;
            status
        })
    }));
    status.unwrap_or(RAISED)
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

thread_local! {
    static COLLECTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the collector on this thread is dropping an object now, so that the VM must not be entered.
pub(crate) fn is_collecting() -> bool {
    COLLECTING.get()
}

/// Drops an object of Rust that a Ruby object owned. The collector calls this, so the object's destructor must not enter
/// the VM.
#[unsafe(no_mangle)]
extern "C" fn h2o_mruby_drop(object: *mut c_void) {
    let before = COLLECTING.replace(true);
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let header = object.cast::<Header>();
        // SAFETY: `own` made the pointer, and the shim gives it back once.
        unsafe { ((*header).drop)(header) };
    }));
    COLLECTING.set(before);
}
