//! The signals of a program that is broken, such as SIGSEGV. H2O compatibility: standard error gets the line `received fatal
//! signal N` before the process dies.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

const SIGNALS: [Signal; 5] = [
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
];

const TEXT: &[u8] = b"received fatal signal ";

/// Has these signals reported from now on. They go on to end the process.
pub(crate) fn begin() {
    // The stack of the thread may be what has overflowed, so the handler runs on the thread's alternate stack.
    let report = SigAction::new(
        SigHandler::Handler(on_signal),
        SaFlags::SA_ONSTACK,
        SigSet::empty(),
    );
    for signal in SIGNALS {
        set(signal, &report);
    }
}

fn set(signal: Signal, action: &SigAction) {
    // An error is ignored: the signal then ends the process without the line.
    #[expect(
        unsafe_code,
        reason = "a handler may call few functions, which the compiler does not check"
    )]
    // SAFETY: the handler calls nothing but functions that may be called in a handler: write(2), sigaction(2) and raise(3).
    let _ = unsafe { sigaction(signal, action) };
}

extern "C" fn on_signal(number: i32) {
    let mut line = [0; TEXT.len() + 3];
    line[..TEXT.len()].copy_from_slice(TEXT);
    // The numbers of these signals are below 100.
    let (tens, ones) = (number / 10 % 10, number % 10);
    let digit = |value: i32| b'0' + u8::try_from(value).unwrap_or(0);
    let mut len = TEXT.len();
    for byte in [digit(tens), digit(ones), b'\n'] {
        if byte != b'0' || len > TEXT.len() {
            line[len] = byte;
            len += 1;
        }
    }
    let _ = rustix::io::write(rustix::stdio::stderr(), &line[..len]);
    // The process dies by the default action when the handler has returned.
    if let Ok(signal) = Signal::try_from(number) {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        set(signal, &default);
        let _ = raise(signal);
    }
}
