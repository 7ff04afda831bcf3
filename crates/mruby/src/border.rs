//! The functions of Rust that the shim in C (`shim.c`) calls. No panic leaves them.

#![expect(unsafe_code, reason = "mruby calls these functions with C pointers")]

use std::any::{Any, TypeId};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Value;
use crate::ffi::{RawCall, State};
use crate::function::{Arguments, Call, Leave};
use crate::regexp;
use crate::vm::Vm;

/// The header in front of every Rust value that a Ruby object owns: the type of the value, and the function that drops it.
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

/// Moves `value` to the heap. Returns the pointer that is to be stored in the Ruby object that owns the value.
pub(crate) fn own<T: 'static>(value: T) -> *mut Header {
    let drop = |header: *mut Header| {
        // SAFETY: `header` points to the box that is made at the end of `own`.
        std::mem::drop(unsafe { Box::from_raw(header.cast::<Owned<T>>()) });
    };
    let header = Header {
        kind: TypeId::of::<T>(),
        drop,
    };
    Box::into_raw(Box::new(Owned { header, value })).cast()
}

/// Drops a value that [`own`] has moved to the heap.
///
/// # Safety
/// [`own`] has returned the pointer, and nothing uses it any more.
pub(crate) unsafe fn disown(pointer: *mut Header) {
    // SAFETY: the header has the function for the type of its value.
    unsafe { ((*pointer).drop)(pointer) };
}

/// Returns the value to which a pointer from [`own`] leads, if the value has the type `T`.
///
/// # Safety
/// The pointer is null, or [`own`] has returned it and the value has not been dropped.
pub(crate) unsafe fn owned<'a, T: 'static>(pointer: *const Header) -> Option<&'a T> {
    // SAFETY: the caller promises that the pointer is null or leads to a value that was not dropped.
    let header = unsafe { pointer.as_ref() }?;
    (header.kind == TypeId::of::<T>()).then(|| {
        // SAFETY: the header says that the value has the type `T`.
        unsafe { &(*pointer.cast::<Owned<T>>()).value }
    })
}

const RETURNED: c_int = 0;
const RAISED: c_int = 1;
const WAITS: c_int = 2;

/// The result of [`h2o_mruby_is_match`] if the object is no regular expression, or if the search fails.
const UNKNOWN: c_int = -1;

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
                .ok_or_else(|| Leave::runtime("this method has no function in Rust"));
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

/// Whether the regular expression that a Ruby object owns matches a text: 1 or 0; -1 if the object owns something else, or if the search
/// fails.
#[unsafe(no_mangle)]
extern "C" fn h2o_mruby_is_match(object: *const c_void, text: *const u8, len: usize) -> c_int {
    let found = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the shim passes the pointer of a Ruby object, and a String that stays where it is as long as Ruby does not run.
        let (object, text) = unsafe { (owned(object.cast()), slice_of(text, len)) };
        Vm::with_current(|vm| regexp::is_match(vm, object?, text))
    }));
    found.ok().flatten().map_or(UNKNOWN, c_int::from)
}

/// Stores the kept regular expression with this source and these flags in `found`. Returns whether there is one.
#[unsafe(no_mangle)]
extern "C" fn h2o_mruby_kept_pattern(
    source: *const u8,
    len: usize,
    flags: *const u8,
    flags_len: usize,
    found: *mut u64,
) -> c_int {
    let regexp = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the shim passes Strings that stay where they are as long as Ruby does not run.
        let (source, flags) = unsafe { (slice_of(source, len), slice_of(flags, flags_len)) };
        Vm::with_current(|vm| regexp::kept(vm, source, flags))
    }));
    let Ok(Some(regexp)) = regexp else {
        return 0;
    };
    // SAFETY: the shim passes a place for the result.
    unsafe { *found = regexp.0 };
    1
}

/// The bytes as text; `None` if they are not UTF-8. Most subjects of searches are short and ASCII, which is found out more quickly than
/// whether other bytes are UTF-8.
pub(crate) fn as_text(bytes: &[u8]) -> Option<&str> {
    if bytes.is_ascii() {
        // SAFETY: ASCII is UTF-8.
        return Some(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    std::str::from_utf8(bytes).ok()
}

/// The bytes of a String.
///
/// # Safety
/// `start` points to `len` bytes that do not change during `'a`; it may be null if `len` is 0.
pub(crate) unsafe fn slice_of<'a>(start: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller promises that `start` points to `len` bytes that do not change.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// The message of a panic.
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
        // SAFETY: `own` has made the pointer, and the C shim passes it to this function only once.
        unsafe { disown(object.cast()) };
    }));
    COLLECTING.set(before);
}
