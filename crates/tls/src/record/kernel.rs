//! `ssl-offload: kernel` (kTLS): the kernel encrypts sent data (Linux, Documentation/networking/tls.rst), so that files
//! go from the page cache to the network without passing through this process.
//!
//! Only the sending direction is offloaded, and only once a connection sends a large file: for smaller responses,
//! encrypting in this process is as cheap. Received records are always decrypted in this process.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use h2o_config::{Directive, Kinds, Levels, Pass};
use h2o_exchange::{Resource, Resources, Scope};
use h2o_log::report;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{TcpTlsTx, TcpUlp, TlsCryptoInfo};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket};
use rustls::ConnectionTrafficSecrets;

use crate::record::framing::ContentType;
use crate::versions::Version;

/// Length in bytes of the smallest file for which a connection is offloaded to the kernel: for smaller files, the system calls
/// cost more than they save.
pub const OFFLOADED_FILE_LEN: u64 = 256 * 1024;

/// The setting `ssl-offload`.
#[derive(Clone, Debug, Default)]
pub struct OffloadSettings {
    /// Whether `ssl-offload: kernel` is configured and the kernel supports it; set when the server opens its files at the start.
    is_possible: Arc<AtomicBool>,
}

impl OffloadSettings {
    /// Whether `ssl-offload: kernel` is configured and the kernel supports it.
    pub fn is_possible(&self) -> bool {
        self.is_possible.load(Relaxed)
    }
}

/// The directive `ssl-offload`.
pub const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "ssl-offload",
    levels: Levels::GLOBAL_ONLY,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR,
    value: "OFF|kernel|zerocopy",
    default: "OFF",
    help: "`kernel`: large files over HTTP/1 are encrypted by the Linux kernel on their way from the page cache. If the kernel has no TLS \
           (`modprobe tls`), a warning at the start says so and the server encrypts itself. `zerocopy` is accepted and has no \
           effect.",
    apply: |scope, command| {
        if command.node.one_of(&["OFF", "kernel", "zerocopy"])? == 1 {
            let is_possible = Arc::clone(&scope.edit::<OffloadSettings>().is_possible);
            let resources = scope.shared.edit::<Resources>();
            resources.add(command.error(""), Arc::new(KernelTlsProbe(is_possible)));
        }
        Ok(())
    },
}];

/// Checks at the start of the server whether the kernel supports TLS.
struct KernelTlsProbe(Arc<AtomicBool>);

impl Resource for KernelTlsProbe {
    /// Checks as the user that starts the server: if this is root, the kernel loads its TLS module.
    fn open(&self) -> Result<(), String> {
        match find() {
            Ok(()) => self.0.store(true, Relaxed),
            Err(error) => report!(
                warning,
                "ssl-offload: kernel: the kernel has no TLS ({}; try `modprobe tls`): the server encrypts itself",
                error.desc()
            ),
        }
        Ok(())
    }
}

/// Whether the kernel can encrypt TLS records.
#[must_use]
pub fn is_supported() -> bool {
    find().is_ok()
}

/// Asks the kernel whether it supports TLS.
///
/// # Errors
/// The kernel's error.
fn find() -> Result<(), Errno> {
    let probe = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    match set_up(&probe) {
        // The kernel has TLS, and refuses only because this socket is not connected.
        Err(Errno::ENOTCONN) => Ok(()),
        other => other,
    }
}

fn set_up(socket: &impl AsFd) -> Result<(), Errno> {
    setsockopt(socket, TcpUlp::default(), b"tls")
}

/// The keys with which the kernel encrypts what a connection sends.
pub struct KernelKeys(pub(crate) TlsCryptoInfo);

/// What the driver has the kernel do on a connection that the kernel encrypts, in addition to sending application data.
pub enum KernelAction {
    /// Send a record of this content type with this payload.
    Record(u8, Vec<u8>),
    /// Use these keys for all further records that are sent.
    Keys(KernelKeys),
}

impl KernelAction {
    pub(crate) fn record(content_type: ContentType, payload: &[u8]) -> Self {
        Self::Record(content_type.byte(), payload.to_vec())
    }
}

impl KernelKeys {
    /// Makes the keys for the kernel; `None` for a cipher suite that the kernel does not support.
    pub(crate) fn new(
        version: Version,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<Self> {
        let info = |cipher_type: u16| libc::tls_crypto_info {
            version: match version {
                Version::Tls12 => libc::TLS_1_2_VERSION,
                Version::Tls13 => libc::TLS_1_3_VERSION,
            },
            cipher_type,
        };
        let rec_seq = sequence.to_be_bytes();
        let info = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                let (salt, rest) = iv.as_ref().split_first_chunk()?;
                TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
                    info: info(libc::TLS_CIPHER_AES_GCM_128),
                    iv: gcm_iv(version, rest.try_into().ok()?),
                    key: key.as_ref().try_into().ok()?,
                    salt: *salt,
                    rec_seq,
                })
            }
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                let (salt, rest) = iv.as_ref().split_first_chunk()?;
                TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
                    info: info(libc::TLS_CIPHER_AES_GCM_256),
                    iv: gcm_iv(version, rest.try_into().ok()?),
                    key: key.as_ref().try_into().ok()?,
                    salt: *salt,
                    rec_seq,
                })
            }
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 {
                    info: info(libc::TLS_CIPHER_CHACHA20_POLY1305),
                    iv: iv.as_ref().try_into().ok()?,
                    key: key.as_ref().try_into().ok()?,
                    salt: [],
                    rec_seq,
                })
            }
            _ => return None,
        };
        Some(Self(info))
    }

    /// Has the kernel encrypt what is sent on a socket from now on. All records that this process has encrypted must be in the
    /// socket already.
    ///
    /// # Errors
    /// The kernel's error; nothing has changed then.
    pub fn hand_over(&self, socket: &impl AsFd) -> Result<(), Errno> {
        set_up(socket)?;
        self.set(socket)
    }

    /// Replaces the keys of an offloaded socket. Linux supports this since 6.14.
    ///
    /// # Errors
    /// The kernel's error; nothing more can be sent then.
    pub fn set(&self, socket: &impl AsFd) -> Result<(), Errno> {
        setsockopt(socket, TcpTlsTx, &self.0)
    }
}

/// The eight bytes of the kernel's IV that follow the salt. In TLS 1.3 they are combined with the sequence number. In TLS 1.2 they
/// are the explicit nonce (RFC 5288 §3) of the kernel's first record, which it increments. Its first bit differs from that of all
/// nonces used before, which were the same bytes combined with small sequence numbers.
fn gcm_iv(version: Version, rest: [u8; 8]) -> [u8; 8] {
    match version {
        Version::Tls13 => rest,
        Version::Tls12 => [!rest[0] & 0x80, 0, 0, 0, 0, 0, 0, 0],
    }
}
