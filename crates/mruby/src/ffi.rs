//! Declarations of the functions and structs of `shim.c` and `limits.c`, and of the numbers that both sides use. They must
//! agree with the definitions there.

#![expect(unsafe_code, reason = "the declarations are those of C functions")]

use std::ffi::{c_char, c_double, c_int, c_ulong, c_void};
use std::mem::MaybeUninit;

/// A VM of mruby, `mrb_state` in C.
#[repr(C)]
pub(crate) struct State {
    _opaque: [u8; 0],
}

/// The memory that a VM uses, in bytes: `struct shim_memory` in `limits.h`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) used: usize,
    pub(crate) limit: usize,
    pub(crate) most: usize,
    pub(crate) watch: *mut Watch,
}

/// The first syntax error in a script: `struct shim_fault` in `shim.c`.
#[repr(C)]
pub(crate) struct Fault {
    pub(crate) line: c_int,
    pub(crate) column: c_int,
    pub(crate) len: usize,
    pub(crate) message: [u8; 512],
}

/// The record by which a VM is interrupted: `struct shim_watch` in `limits.c`.
#[repr(C)]
pub(crate) struct Watch {
    _opaque: [u8; 0],
}

/// A call from Ruby of a function in Rust: `struct shim_call` in `shim.c`.
#[repr(C)]
pub(crate) struct RawCall {
    pub(crate) receiver: u64,
    pub(crate) block: u64,
    pub(crate) arguments: *const u64,
    pub(crate) count: usize,
    pub(crate) result: u64,
}

/// A text of a response: `struct shim_text` in `shim.c`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawText {
    pub(crate) start: *const u8,
    pub(crate) len: usize,
}

/// Maximum number of header fields, and of pieces of the body, of a response that [`shim_plain_response`] takes apart.
const MOST_FIELDS: usize = 16;
const MOST_PIECES: usize = 4;

/// A response that [`shim_plain_response`] has taken apart: `struct shim_response` in `shim.c`.
#[repr(C)]
pub(crate) struct RawResponse {
    pub(crate) status: i64,
    pub(crate) fields: usize,
    pub(crate) pieces: usize,
    pub(crate) field_texts: [MaybeUninit<[RawText; 2]>; MOST_FIELDS],
    pub(crate) piece_texts: [MaybeUninit<RawText>; MOST_PIECES],
}

/// The operations of [`shim_run`]; they have the numbers of `enum op` in `shim.c`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Op {
    String,
    Array,
    Push,
    Hash,
    HashSet,
    HashGet,
    HashKeys,
    Symbol,
    Call,
    Yield,
    Class,
    Module,
    ConstGet,
    ConstSet,
    Define,
    DefineSingleton,
    DefineMatch,
    DefinePattern,
    GlobalGet,
    GlobalSet,
    IvarGet,
    IvarSet,
    Float,
    Integer,
    Object,
    DataClass,
    Exception,
    Resume,
    Load,
    Compile,
    Freeze,
    Collect,
    CollectStep,
    EndSteps,
    ArraySet,
    Begin,
    Source,
    PlainHash,
}

/// One operation of [`shim_run`], which may raise an exception: `struct shim_work` in `shim.c`.
#[repr(C)]
pub(crate) struct Work {
    pub(crate) mrb: *mut State,
    pub(crate) op: c_int,
    pub(crate) failed: c_int,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) text: *const u8,
    pub(crate) len: usize,
    pub(crate) values: *const u64,
    pub(crate) count: usize,
    pub(crate) number: c_double,
    pub(crate) file: *const c_char,
    pub(crate) line: c_int,
    pub(crate) fault: *mut Fault,
    pub(crate) watch: *mut Watch,
    pub(crate) object: *mut c_void,
}

unsafe extern "C" {
    pub(crate) fn shim_open(memory: *mut Memory) -> *mut State;
    pub(crate) fn shim_close(mrb: *mut State, watch: *mut Watch);
    pub(crate) fn shim_version() -> *const c_char;
    pub(crate) fn shim_nil() -> u64;
    pub(crate) fn shim_bool(value: c_int) -> u64;
    pub(crate) fn shim_kind(value: u64) -> c_int;
    pub(crate) fn shim_integer(value: u64) -> i64;
    pub(crate) fn shim_float(value: u64) -> c_double;
    pub(crate) fn shim_string(value: u64, len: *mut usize) -> *const u8;
    pub(crate) fn shim_symbol(mrb: *mut State, value: u64, len: *mut usize) -> *const u8;
    pub(crate) fn shim_array(value: u64, len: *mut usize) -> *const u64;
    pub(crate) fn shim_text_entries(
        mrb: *mut State,
        hash: u64,
        values: *mut u64,
        most: usize,
    ) -> usize;
    pub(crate) fn shim_plain_response(
        mrb: *mut State,
        value: u64,
        response: *mut RawResponse,
    ) -> c_int;
    pub(crate) fn shim_is_a(mrb: *mut State, value: u64, class: u64) -> c_int;
    pub(crate) fn shim_class_of(mrb: *mut State, value: u64) -> u64;
    pub(crate) fn shim_arena_save(mrb: *mut State) -> c_int;
    pub(crate) fn shim_arena_restore(mrb: *mut State, index: c_int);
    pub(crate) fn shim_register(mrb: *mut State, value: u64);
    pub(crate) fn shim_object(value: u64) -> *mut c_void;
    pub(crate) fn shim_set_object(value: u64, object: *mut c_void);
    pub(crate) fn shim_current_strand(mrb: *mut State, class: u64, can_wait: *mut c_int) -> u64;
    pub(crate) fn shim_watch_new(mrb: *mut State, memory: *mut Memory) -> *mut Watch;
    pub(crate) fn shim_watch_free(watch: *mut Watch);
    pub(crate) fn shim_watch_set_exceptions(watch: *mut Watch, time: u64, memory: u64);
    pub(crate) fn shim_watch_enter(watch: *mut Watch) -> *mut Watch;
    pub(crate) fn shim_watch_leave(watch: *mut Watch, before: *mut Watch) -> c_int;
    pub(crate) fn shim_watch_entries(watch: *mut Watch) -> c_ulong;
    pub(crate) fn shim_watch_time(watch: *mut Watch) -> u64;
    pub(crate) fn shim_watch_is_overdue(watch: *mut Watch) -> c_int;
    pub(crate) fn shim_watch_interrupt(watch: *mut Watch, entry: c_ulong) -> c_int;
    pub(crate) fn shim_watch_ask_place(watch: *mut Watch, entry: c_ulong);
    pub(crate) fn shim_watch_take_place(
        watch: *mut Watch,
        place: *mut c_char,
        size: usize,
    ) -> c_int;
    pub(crate) fn limits_charge(memory: *mut Memory, size: usize);
    pub(crate) fn limits_trim();
    pub(crate) fn shim_prepare(mrb: *mut State, watch: *mut Watch);
    pub(crate) fn shim_run(work: *mut Work) -> u64;
}
