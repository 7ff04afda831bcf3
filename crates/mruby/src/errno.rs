//! Ruby's `Errno`: names, numbers and texts of the kernel's errors. The classes are in `prelude/errno.rb`.

use std::io;

use crate::{Leave, Value, Vm};

/// Names of the kernel's errors, with their numbers. If two names have the same number, exceptions have the class of the
/// first.
const NAMES: &[(&str, i32)] = &[
    ("NOERROR", 0),
    ("E2BIG", libc::E2BIG),
    ("EACCES", libc::EACCES),
    ("EADDRINUSE", libc::EADDRINUSE),
    ("EADDRNOTAVAIL", libc::EADDRNOTAVAIL),
    ("EAFNOSUPPORT", libc::EAFNOSUPPORT),
    ("EAGAIN", libc::EAGAIN),
    ("EALREADY", libc::EALREADY),
    ("EBADF", libc::EBADF),
    ("EBADMSG", libc::EBADMSG),
    ("EBUSY", libc::EBUSY),
    ("ECANCELED", libc::ECANCELED),
    ("ECHILD", libc::ECHILD),
    ("ECONNABORTED", libc::ECONNABORTED),
    ("ECONNREFUSED", libc::ECONNREFUSED),
    ("ECONNRESET", libc::ECONNRESET),
    ("EDEADLK", libc::EDEADLK),
    ("EDESTADDRREQ", libc::EDESTADDRREQ),
    ("EDOM", libc::EDOM),
    ("EDQUOT", libc::EDQUOT),
    ("EEXIST", libc::EEXIST),
    ("EFAULT", libc::EFAULT),
    ("EFBIG", libc::EFBIG),
    ("EHOSTDOWN", libc::EHOSTDOWN),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("EIDRM", libc::EIDRM),
    ("EILSEQ", libc::EILSEQ),
    ("EINPROGRESS", libc::EINPROGRESS),
    ("EINTR", libc::EINTR),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EISCONN", libc::EISCONN),
    ("EISDIR", libc::EISDIR),
    ("ELOOP", libc::ELOOP),
    ("EMFILE", libc::EMFILE),
    ("EMLINK", libc::EMLINK),
    ("EMSGSIZE", libc::EMSGSIZE),
    ("EMULTIHOP", libc::EMULTIHOP),
    ("ENAMETOOLONG", libc::ENAMETOOLONG),
    ("ENETDOWN", libc::ENETDOWN),
    ("ENETRESET", libc::ENETRESET),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("ENFILE", libc::ENFILE),
    ("ENOBUFS", libc::ENOBUFS),
    ("ENODATA", libc::ENODATA),
    ("ENODEV", libc::ENODEV),
    ("ENOENT", libc::ENOENT),
    ("ENOEXEC", libc::ENOEXEC),
    ("ENOLCK", libc::ENOLCK),
    ("ENOLINK", libc::ENOLINK),
    ("ENOMEM", libc::ENOMEM),
    ("ENOMSG", libc::ENOMSG),
    ("ENOPROTOOPT", libc::ENOPROTOOPT),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSR", libc::ENOSR),
    ("ENOSTR", libc::ENOSTR),
    ("ENOSYS", libc::ENOSYS),
    ("ENOTBLK", libc::ENOTBLK),
    ("ENOTCONN", libc::ENOTCONN),
    ("ENOTDIR", libc::ENOTDIR),
    ("ENOTEMPTY", libc::ENOTEMPTY),
    ("ENOTRECOVERABLE", libc::ENOTRECOVERABLE),
    ("ENOTSOCK", libc::ENOTSOCK),
    ("ENOTSUP", libc::ENOTSUP),
    ("ENOTTY", libc::ENOTTY),
    ("ENXIO", libc::ENXIO),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EOVERFLOW", libc::EOVERFLOW),
    ("EOWNERDEAD", libc::EOWNERDEAD),
    ("EPERM", libc::EPERM),
    ("EPFNOSUPPORT", libc::EPFNOSUPPORT),
    ("EPIPE", libc::EPIPE),
    ("EPROTO", libc::EPROTO),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
    ("EPROTOTYPE", libc::EPROTOTYPE),
    ("ERANGE", libc::ERANGE),
    ("EREMOTE", libc::EREMOTE),
    ("EROFS", libc::EROFS),
    ("ESHUTDOWN", libc::ESHUTDOWN),
    ("ESOCKTNOSUPPORT", libc::ESOCKTNOSUPPORT),
    ("ESPIPE", libc::ESPIPE),
    ("ESRCH", libc::ESRCH),
    ("ESTALE", libc::ESTALE),
    ("ETIME", libc::ETIME),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ETOOMANYREFS", libc::ETOOMANYREFS),
    ("ETXTBSY", libc::ETXTBSY),
    ("EUSERS", libc::EUSERS),
    ("EWOULDBLOCK", libc::EWOULDBLOCK),
    ("EXDEV", libc::EXDEV),
    ("EADV", libc::EADV),
    ("EBADE", libc::EBADE),
    ("EBADFD", libc::EBADFD),
    ("EBADR", libc::EBADR),
    ("EBADRQC", libc::EBADRQC),
    ("EBADSLT", libc::EBADSLT),
    ("EBFONT", libc::EBFONT),
    ("ECHRNG", libc::ECHRNG),
    ("ECOMM", libc::ECOMM),
    ("EDEADLOCK", libc::EDEADLOCK),
    ("EDOTDOT", libc::EDOTDOT),
    ("EISNAM", libc::EISNAM),
    ("EKEYEXPIRED", libc::EKEYEXPIRED),
    ("EKEYREJECTED", libc::EKEYREJECTED),
    ("EKEYREVOKED", libc::EKEYREVOKED),
    ("EL2HLT", libc::EL2HLT),
    ("EL2NSYNC", libc::EL2NSYNC),
    ("EL3HLT", libc::EL3HLT),
    ("EL3RST", libc::EL3RST),
    ("ELIBACC", libc::ELIBACC),
    ("ELIBBAD", libc::ELIBBAD),
    ("ELIBEXEC", libc::ELIBEXEC),
    ("ELIBMAX", libc::ELIBMAX),
    ("ELIBSCN", libc::ELIBSCN),
    ("ELNRNG", libc::ELNRNG),
    ("EMEDIUMTYPE", libc::EMEDIUMTYPE),
    ("ENAVAIL", libc::ENAVAIL),
    ("ENOANO", libc::ENOANO),
    ("ENOCSI", libc::ENOCSI),
    ("ENOKEY", libc::ENOKEY),
    ("ENOMEDIUM", libc::ENOMEDIUM),
    ("ENONET", libc::ENONET),
    ("ENOPKG", libc::ENOPKG),
    ("ENOTNAM", libc::ENOTNAM),
    ("ENOTUNIQ", libc::ENOTUNIQ),
    ("EREMCHG", libc::EREMCHG),
    ("EREMOTEIO", libc::EREMOTEIO),
    ("ERESTART", libc::ERESTART),
    ("ERFKILL", libc::ERFKILL),
    ("ESRMNT", libc::ESRMNT),
    ("ESTRPIPE", libc::ESTRPIPE),
    ("EUCLEAN", libc::EUCLEAN),
    ("EUNATCH", libc::EUNATCH),
    ("EXFULL", libc::EXFULL),
];

/// The exception for an error of the kernel. `detail` says what failed, such as the path of a file.
pub(crate) fn failed(vm: &Vm, error: &io::Error, detail: &str) -> Leave {
    let raised = || {
        let number = vm.integer(error.raw_os_error().unwrap_or(0).into())?;
        let detail = vm.string(detail)?;
        let class = vm.constant(None, "SystemCallError")?;
        vm.call(class, "new", &[detail, number])
    };
    let (Ok(exception) | Err(exception)) = raised();
    Leave::Raise(exception)
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__errno", |vm, call| {
        let [name] = call.arguments.exactly()?;
        let name = vm.text_of(name)?;
        let known = NAMES.iter().find(|known| known.0.as_bytes() == name);
        known.map_or(Ok(Value::nil()), |known| Ok(vm.integer(known.1.into())?))
    })?;
    vm.define_singleton(module, "__errno_name", |vm, call| {
        let [number] = call.arguments.exactly()?;
        let number = number.as_integer();
        let known = NAMES.iter().find(|known| Some(known.1.into()) == number);
        known.map_or(Ok(Value::nil()), |known| Ok(vm.string(known.0)?))
    })?;
    vm.define_singleton(module, "__strerror", |vm, call| {
        let [number] = call.arguments.exactly()?;
        let number = number
            .as_integer()
            .and_then(|number| i32::try_from(number).ok());
        let text = io::Error::from_raw_os_error(number.unwrap_or(0)).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        Ok(vm.string(text)?)
    })
}
