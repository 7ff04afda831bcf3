//! A private key in the key process, as rustls uses it.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use crate::holder::{self, KeyRecord, Place};
use crate::message::{DONE, LONGEST, SignRequest};

/// How long a thread of the server waits for a signature, however busy the machine is. A signature with the largest RSA
/// key takes a twentieth of this time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The socket by which a thread of the server asks the key process for signatures.
struct Channel {
    socket: OwnedFd,
    /// Generation of the key process at the other end of the socket.
    generation: u64,
    buffer: Vec<u8>,
}

thread_local! {
    static CHANNEL: RefCell<Option<Channel>> = const { RefCell::new(None) };
}

/// A private key that is in the key process.
#[derive(Clone, Debug)]
pub(crate) struct RemoteKey(pub(crate) Arc<KeyRecord>);

#[derive(Debug)]
struct RemoteSigner {
    key: RemoteKey,
    scheme: SignatureScheme,
}

impl SigningKey for RemoteKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let mut schemes = self.0.schemes.iter();
        let scheme = *schemes.find(|scheme| offered.contains(scheme))?;
        let key = self.clone();
        Some(Box::new(RemoteSigner { key, scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(self.0.public_key.as_slice()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm
    }
}

impl Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signed = sign(&self.key.0, self.scheme, message);
        signed.map_err(|text| Error::General(format!("the TLS handshake got no signature: {text}")))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

fn sign(key: &KeyRecord, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, String> {
    let Place { generation, number } = holder::place_of(key)?;
    let request = SignRequest {
        number,
        scheme,
        message,
    };
    let request = request.encode();
    if request.len() > LONGEST {
        return Err("the message to sign is too long".to_owned());
    }
    CHANNEL.with_borrow_mut(|slot| {
        let mut channel = match slot
            .take()
            .filter(|channel| channel.generation == generation)
        {
            Some(channel) => channel,
            None => Channel {
                socket: holder::channel(generation)?,
                generation,
                buffer: vec![0; LONGEST],
            },
        };
        match ask(&mut channel, &request) {
            Ok(answer) => {
                *slot = Some(channel);
                answer
            }
            // The channel is dropped, because on it a late answer would be taken for the answer to the next request.
            Err(error) => {
                holder::on_failure(generation);
                Err(match error.kind() {
                    io::ErrorKind::WouldBlock => "the key process does not answer".to_owned(),
                    _ => h2o_log::reason(&error),
                })
            }
        }
    })
}

fn ask(channel: &mut Channel, request: &[u8]) -> io::Result<Result<Vec<u8>, String>> {
    let Channel { socket, buffer, .. } = channel;
    rustix::io::retry_on_intr(|| rustix::net::send(&*socket, request, SendFlags::NOSIGNAL))?;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recv(&*socket, &mut **buffer, RecvFlags::empty())
    });
    let (_, len) = received?;
    match buffer.get(..len).and_then(<[u8]>::split_first) {
        None => Err(io::Error::other("the key process has ended")),
        Some((&DONE, signature)) => Ok(Ok(signature.to_vec())),
        Some((_, text)) => Ok(Err(String::from_utf8_lossy(text).into_owned())),
    }
}
