//! Sends and receives batches of UDP datagrams, several by one system call, with ECN marks, local addresses and the
//! don't-fragment bit.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;

use bytes::BytesMut;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};

use crate::endpoint::{Datagram, Ecn, Transmit};

/// Length in bytes of one receive buffer: the most that the kernel joins into one read (generic receive offload).
const BUFFER_LEN: usize = 64 * 1024;

/// The least number of buffers that a system call gets for received datagrams.
const LEAST_BATCH: usize = 4;

/// Largest number of bytes that one system call sends: the longest payload of a UDP datagram over IPv4.
const MAX_SENT: u64 = 65_507;

/// How many datagrams of `len` bytes one system call can send at most, whatever else limits them.
pub(crate) fn max_datagrams(len: u64) -> usize {
    usize::try_from(MAX_SENT / len.max(1)).unwrap_or(usize::MAX)
}

/// The capabilities of a socket. The socket itself belongs to the caller.
#[derive(Debug)]
pub struct UdpSocket {
    state: UdpSocketState,
}

impl UdpSocket {
    /// Sets the socket up: nonblocking, without fragmentation, and reporting local addresses and ECN marks.
    ///
    /// # Errors
    /// Fails if the kernel refuses one of the socket options.
    pub fn new(socket: &impl AsFd) -> io::Result<Self> {
        Ok(Self {
            state: UdpSocketState::new(UdpSockRef::from(socket))?,
        })
    }

    /// How many datagrams one system call can send at most.
    pub fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Whether the kernel might send datagrams in fragments.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Sends the datagrams that `transmit` describes; `data` has their bytes.
    ///
    /// # Errors
    /// `WouldBlock`, and others after which the datagrams count as lost.
    pub fn send(&self, socket: &impl AsFd, transmit: &Transmit, data: &[u8]) -> io::Result<()> {
        let transmit = quinn_udp::Transmit {
            destination: transmit.remote,
            ecn: transmit.ecn.map(|ecn| match ecn {
                Ecn::Ect0 => EcnCodepoint::Ect0,
                Ecn::Ect1 => EcnCodepoint::Ect1,
                Ecn::Ce => EcnCodepoint::Ce,
            }),
            contents: data,
            segment_size: transmit.segment_len,
            src_ip: transmit.local,
        };
        self.state.try_send(UdpSockRef::from(socket), &transmit)
    }

    /// Receives a batch and calls `take` for each datagram. Returns whether there may be more: the kernel fills a batch as long as
    /// there are datagrams, so after a smaller one the socket is empty, and an edge-triggered event tells of the next. A batch may have
    /// twice as many datagrams as the one before.
    ///
    /// # Errors
    /// `WouldBlock` if there was none, and other errors of the system call.
    pub fn receive(
        &self,
        socket: &impl AsFd,
        buffers: &mut ReceiveBuffers,
        mut take: impl FnMut(Datagram),
    ) -> io::Result<bool> {
        let ReceiveBuffers { data, metas, room } = buffers;
        let mut slices = data.each_mut().map(|buffer| IoSliceMut::new(buffer));
        let count = self.state.recv(
            UdpSockRef::from(socket),
            &mut slices[..*room],
            &mut metas[..*room],
        )?;
        for (meta, buffer) in metas.iter().zip(data).take(count) {
            let received = buffer.get(..meta.len).unwrap_or_default();
            for data in received.chunks(meta.stride.max(1)) {
                take(Datagram {
                    remote: meta.addr,
                    local: meta.dst_ip,
                    ecn: meta.ecn.map(|ecn| match ecn {
                        EcnCodepoint::Ect0 => Ecn::Ect0,
                        EcnCodepoint::Ect1 => Ecn::Ect1,
                        EcnCodepoint::Ce => Ecn::Ce,
                    }),
                    data: BytesMut::from(data),
                });
            }
        }
        let is_full = count == *room;
        *room = (2 * count).clamp(LEAST_BATCH, BATCH_SIZE);
        Ok(is_full)
    }
}

/// The buffers into which a batch is received. Each worker has one.
pub struct ReceiveBuffers {
    data: [Box<[u8]>; BATCH_SIZE],
    metas: [RecvMeta; BATCH_SIZE],
    /// How many of the buffers the next system call gets: to prepare all of them can take longer than the call.
    room: usize,
}

impl Default for ReceiveBuffers {
    fn default() -> Self {
        Self {
            data: std::array::from_fn(|_| vec![0; BUFFER_LEN].into_boxed_slice()),
            metas: [RecvMeta::default(); BATCH_SIZE],
            room: LEAST_BATCH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket as StdSocket};

    #[test]
    fn as_many_datagrams_as_fit_are_sent_by_one_call() {
        let here = || StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (near, far) = (here(), here());
        let socket = UdpSocket::new(&near).unwrap();
        for segment in [1400, 1472, 9000, 65_507] {
            let count = max_datagrams(segment as u64).min(socket.max_segments());
            let data = vec![7; count * segment];
            let transmit = Transmit {
                remote: far.local_addr().unwrap(),
                local: None,
                ecn: None,
                len: data.len(),
                segment_len: (count > 1).then_some(segment),
            };
            socket.send(&near, &transmit, &data).unwrap();
            for _ in 0..count {
                let mut received = vec![0; 65_536];
                assert_eq!(far.recv(&mut received).unwrap(), segment);
            }
        }
    }

    #[test]
    fn a_full_batch_says_that_there_may_be_more_and_a_smaller_one_that_there_is_not() {
        let here = || StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (near, far) = (here(), here());
        let socket = UdpSocket::new(&near).unwrap();
        for number in 0..=BATCH_SIZE {
            let datagram = [u8::try_from(number).unwrap()];
            far.send_to(&datagram, near.local_addr().unwrap()).unwrap();
        }
        let (mut buffers, mut received) = (ReceiveBuffers::default(), Vec::new());
        let mut receive = || {
            let result = socket.receive(&near, &mut buffers, |one| received.push(one.data[0]));
            (result, received.len())
        };
        let mut expected = 0;
        for batch in [4, 8, 16] {
            let (may_have_more, count) = receive();
            expected += batch;
            assert!(may_have_more.unwrap());
            assert_eq!(count, expected);
        }
        assert!(!receive().0.unwrap());
        let (error, count) = receive();
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(count, BATCH_SIZE + 1);
        assert!((0..).zip(&received).all(|(number, byte)| number == *byte));
    }
}
