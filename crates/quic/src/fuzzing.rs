//! Entry points for fuzzing QUIC.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::crypto::HandshakeTokenKey;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::ResolvesServerCertUsingSni;

use crate::forward::Forwarded;
use crate::keys::{KeyRing, TokenKey};
use crate::{
    Datagram, Endpoint, EndpointConfig, Keys, KnownPaths, Neighbours, Placement, Received,
    ServerRole, TransportSettings,
};

/// Feeds a server with datagrams of unknown senders. In the input, each datagram follows two bytes with its length and one byte of
/// flags: the port it comes from, whether it is padded to 1200 bytes, and whether time passes before it. The server must neither
/// panic nor send more than three times what it has received.
///
/// # Panics
/// If the server sends more than that.
#[allow(
    clippy::disallowed_methods,
    reason = "a virtual clock has to begin at some instant"
)]
pub fn quic_datagrams(input: &[u8]) {
    let Some(mut endpoint) = server() else {
        return;
    };
    let mut now = Instant::now();
    let (mut buffer, mut rest) = (Vec::new(), input);
    let (mut received_len, mut sent_len) = (0, 0);
    let mut connections = Vec::new();
    while let [high, low, circumstances, data @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(data.len());
        let (data, others) = data.split_at(len);
        rest = others;
        let mut data = BytesMut::from(data);
        if circumstances & 4 != 0 && data.len() < 1200 {
            data.resize(1200, 0);
        }
        if circumstances & 8 != 0 {
            now += Duration::from_millis(u64::from(circumstances >> 4) << 4);
        }
        received_len += data.len();
        let port = 1000 + u16::from(circumstances & 3);
        let datagram = Datagram {
            remote: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            local: None,
            ecn: None,
            data,
        };
        buffer.clear();
        match endpoint.receive(now, datagram, &mut buffer) {
            Received::Accepted(index) => connections.push(index),
            Received::Answered(transmit) => sent_len += transmit.len,
            Received::Connection(_) | Received::Elsewhere(..) | Received::Ignored => {}
        }
        for &index in &connections {
            if endpoint.timeout(index).is_some_and(|time| time <= now) {
                endpoint.on_timeout(index, now);
            }
            while endpoint.poll_event(index).is_some() {}
            buffer.clear();
            while let Some(transmit) = endpoint.transmit(index, now, 4, &mut buffer) {
                sent_len += transmit.len;
                buffer.clear();
            }
        }
    }
    assert!(
        sent_len <= 3 * received_len,
        "{sent_len} bytes were sent for {received_len} received bytes"
    );
}

/// A server without a certificate for any name.
fn server() -> Option<Endpoint> {
    let mut tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .ok()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let role = ServerRole::new(Arc::new(Arc::new(tls)), TransportSettings::default());
    Some(Endpoint::new(EndpointConfig {
        keys: vec![Keys::derive(7, b"secret")],
        placement: Placement::default(),
        neighbours: Neighbours::default(),
        known_paths: KnownPaths::default(),
        server: Some(role),
        finds_mtu: true,
        seed: Some([3; 32]),
    }))
}

/// Reads any bytes as a connection id, as a datagram forwarded by another server, and as an address token. If they are read as one
/// of the first two, writing the result must give the same bytes.
///
/// # Panics
/// If the bytes differ.
pub fn quic_ids_and_tokens(input: &[u8]) {
    let ring = KeyRing::new(&[Keys::derive(7, b"secret"), Keys::derive(8, b"older")]);
    if let Some(placement) = ring.decode_id(input) {
        let id = ring.encode_id(placement, 1, 2);
        let again = id.and_then(|id| ring.decode_id(&id));
        assert_eq!(
            again,
            Some(placement),
            "decoding an encoded connection id gives the same placement"
        );
    }
    if let Some((forwarded, inner)) = Forwarded::decode(input) {
        let mut again = Vec::new();
        forwarded.encode(&mut again);
        again.extend_from_slice(inner);
        assert_eq!(
            again, input,
            "decoding and encoding a forwarded datagram gives the same bytes"
        );
    }
    let nonce = input.get(..16).unwrap_or(input);
    let key = TokenKey(Arc::clone(&ring)).aead_from_hkdf(nonce);
    let mut forged = input.to_vec();
    assert!(
        key.open(&mut forged, &[]).is_err(),
        "a token that the key has not sealed is refused"
    );
    let mut sealed = input.to_vec();
    if key.seal(&mut sealed, &[]).is_ok() {
        let opened = key.open(&mut sealed, &[]);
        assert_eq!(opened.ok().as_deref(), Some(input));
    }
}
