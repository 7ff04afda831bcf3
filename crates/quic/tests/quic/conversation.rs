//! Conversations of our QUIC server with `quinn-proto`'s own client, in memory.

use bytes::Bytes;
use h2o_quic::{Event, Output, Read, StreamId, Write};

use crate::kit::Pair;

#[test]
fn a_request_is_answered_on_its_stream() {
    let mut pair = Pair::new();
    let mut stream = None;
    let mut request = Vec::new();
    pair.connect();
    let id = pair.client_open();
    pair.client_write(id, b"question", true);
    pair.run(|pair, event| {
        let Event::StreamOpened(opened) = event else {
            return;
        };
        stream = Some(opened);
        let server = pair.server();
        match server.read(opened, usize::MAX) {
            Read::Last(data) => request.extend_from_slice(&data),
            other => panic!("{other:?}"),
        }
        let mut answer = Bytes::from_static(b"answer");
        assert_eq!(server.write(opened, &mut answer), Write::Taken(6));
        assert!(server.finish(opened));
    });
    assert_eq!(stream, Some(StreamId::new(0)));
    assert_eq!(request, b"question");
    assert_eq!(pair.client_read(id), (b"answer".to_vec(), true));
    assert!(pair.seen.contains(&Event::Connected));
}

#[test]
fn output_in_pieces_arrives_in_order_whatever_the_window_takes() {
    let rows: [[&'static [u8]; 2]; 4] = [
        [b"head", b"body"],
        [b"", b"body"],
        [b"head", b""],
        // The window of 1500 bytes ends within the second piece.
        [&[b'h'; 1000], &[b'b'; 3000]],
    ];
    for pieces in rows {
        let mut pair = Pair::new();
        pair.connect();
        let id = pair.client_open();
        pair.client_write(id, b"question", true);
        let mut output = Output::default();
        let (mut received, mut has_ended) = (Vec::new(), false);
        for _ in 0..20 {
            pair.run(|pair, event| match event {
                Event::StreamOpened(stream) => {
                    pair.server().set_send_window(1500);
                    output.write_all(pair.server(), stream, pieces.map(Bytes::from_static));
                    output.finish(pair.server(), stream);
                }
                Event::Writable(stream) => output.flush(pair.server(), stream),
                _ => {}
            });
            if !has_ended {
                let (data, is_end) = pair.client_read(id);
                received.extend_from_slice(&data);
                has_ended = is_end;
            }
            let index = pair.index.expect("the server has accepted the client");
            if let Some(timeout) = pair.endpoint.timeout(index) {
                pair.now = pair.now.max(timeout);
                pair.endpoint.on_timeout(index, pair.now);
            }
        }
        assert_eq!(received, pieces.concat());
        assert!(has_ended && output.is_empty());
    }
}

#[test]
fn the_handshake_tells_name_and_protocol() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(|_, _| {});
    let handshake = pair
        .server()
        .handshake()
        .expect("the handshake is complete");
    assert_eq!(handshake.tls.alpn, Some("h3"));
    assert_eq!(handshake.tls.server_name.as_deref(), Some("localhost"));
    assert_eq!(handshake.version, 1);
    assert!(!handshake.tls.resumed);
}

#[test]
fn a_closed_connection_is_drained_and_its_index_is_free() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(|_, _| {});
    let now = pair.now;
    pair.server().close(now, 0x100, b"bye");
    pair.run_to_the_end();
    assert!(pair.seen.ends_with(&[Event::Drained]), "{:?}", pair.seen);
    assert_eq!(pair.endpoint.open_connections(), 0);
    assert!(pair.client_lost.contains("256"), "{}", pair.client_lost);
}

#[test]
fn with_retry_a_client_shows_its_address_first() {
    let mut config = crate::kit::endpoint_config();
    config
        .server
        .as_mut()
        .expect("the endpoint has a server configuration")
        .retry = true;
    let mut pair = Pair::with(config);
    pair.connect();
    pair.run(|_, _| {});
    assert!(pair.seen.contains(&Event::Connected));
    assert_eq!(pair.answered, 1, "the server sends one Retry packet");
}

#[test]
fn a_connection_that_is_lost_is_reset_without_state() {
    let mut pair = Pair::new();
    let id = {
        pair.connect();
        pair.client_open()
    };
    // The server is replaced by one with the same keys, which does not know the connection.
    pair.endpoint = h2o_quic::Endpoint::new(crate::kit::endpoint_config());
    pair.index = None;
    pair.client_write(id, &[7; 900], true);
    pair.run(|_, _| {});
    assert_eq!(pair.client_lost, "Reset");
}

#[test]
fn draft_29_is_spoken_too() {
    let mut pair = Pair::new();
    pair.version = 0xff00_001d;
    pair.connect();
    pair.run(|_, _| {});
    let handshake = pair
        .server()
        .handshake()
        .expect("the handshake is complete");
    assert_eq!(handshake.version, 0xff00_001d);
}

#[test]
fn other_versions_are_answered_with_ours() {
    let mut pair = Pair::new();
    let mut datagram = vec![0xc0, 0x6b, 0x33, 0x43, 0xcf, 8];
    datagram.resize(1200, 0);
    let answer = pair.send_to_server(&datagram);
    assert!(answer.windows(4).any(|bytes| bytes == [0, 0, 0, 1]));
    assert!(answer.windows(4).any(|bytes| bytes == [0xff, 0, 0, 0x1d]));
    // A packet of an unknown version that is shorter than 1200 bytes gets no answer (RFC 9000 §14.1).
    assert!(pair.send_to_server(&datagram[..1199]).is_empty());
}

#[test]
fn packets_of_the_handshake_are_handed_over_where_their_connection_may_live() {
    for node in [0, 7] {
        let mut config = crate::kit::endpoint_config();
        config.placement.node = node;
        let mut pair = Pair::with(config);
        pair.connect();
        let first = pair.next_of_client();
        let mut other = crate::kit::endpoint_config();
        (other.placement.node, other.placement.worker) = (node, 1);
        let neighbour = h2o_quic::Neighbours {
            workers: 2,
            ..h2o_quic::Neighbours::default()
        };
        let cases = [
            (node, h2o_quic::Neighbours::default(), false),
            (node, neighbour, true),
            (8, h2o_quic::Neighbours::default(), false),
            (
                8,
                h2o_quic::Neighbours {
                    workers: 0,
                    nodes: [6, 7].into(),
                },
                // Endpoints without server numbers make short ids, which the endpoint with a number does not read.
                node == 7,
            ),
        ];
        let mut answer = Vec::new();
        let received = pair
            .endpoint
            .receive(pair.now, crate::kit::to_server(&first), &mut answer);
        let h2o_quic::Received::Accepted(index) = received else {
            panic!("{received:?}");
        };
        while let Some(transmit) = pair.endpoint.transmit(index, pair.now, 1, &mut answer) {
            pair.to_client.push_back(answer[..transmit.len].to_vec());
            answer.clear();
        }
        let second = pair.next_of_client();
        assert_eq!(
            second[0] & 0xb0,
            0x80,
            "the second packet is an Initial packet with an acknowledgement"
        );
        for (its_node, neighbours, is_handed_over) in cases {
            let mut config = other.clone();
            config.placement.node = its_node;
            config.neighbours = neighbours;
            let mut other = h2o_quic::Endpoint::new(config);
            let received = other.receive(pair.now, crate::kit::to_server(&second), &mut answer);
            let is_elsewhere = matches!(
                received,
                h2o_quic::Received::Elsewhere(place, _) if place.node == node && place.worker == 0
            );
            assert_eq!(is_elsewhere, is_handed_over, "{node} {its_node}");
            // The first packet is accepted by any endpoint that it reaches, as its connection id was chosen by the client.
            let received = other.receive(pair.now, crate::kit::to_server(&first), &mut answer);
            assert!(matches!(received, h2o_quic::Received::Accepted(_)));
        }
    }
}

#[test]
fn packets_for_another_worker_are_handed_over() {
    let mut pair = Pair::new();
    let id = {
        pair.connect();
        pair.client_open()
    };
    let mut config = crate::kit::endpoint_config();
    config.placement.worker = 1;
    let mut other = h2o_quic::Endpoint::new(config);
    pair.client_write(id, b"x", true);
    let datagram = pair.next_of_client();
    let received = other.receive(pair.now, crate::kit::to_server(&datagram), &mut Vec::new());
    let place = h2o_quic::Placement::default();
    assert_eq!(
        received,
        h2o_quic::Received::Elsewhere(place, datagram[..].into())
    );
}

#[test]
fn clients_have_to_show_their_address_while_many_handshakes_are_under_way() {
    let mut config = crate::kit::endpoint_config();
    config
        .server
        .as_mut()
        .expect("the endpoint has a server configuration")
        .retry_above = 2;
    let mut endpoint = h2o_quic::Endpoint::new(config);
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        let mut other = Pair::new();
        other.connect();
        let datagram = crate::kit::to_server(&other.next_of_client());
        let received = endpoint.receive(other.now, datagram, &mut Vec::new());
        outcomes.push(match received {
            h2o_quic::Received::Accepted(_) => "accepted",
            h2o_quic::Received::Answered(_) => "Retry",
            _ => "ignored",
        });
    }
    assert_eq!(outcomes, ["accepted", "accepted", "Retry", "Retry"]);
}

#[test]
fn pings_and_new_paths_cost_units_and_requests_none() {
    let mut pair = Pair::new();
    pair.connect();
    for _ in 0..10 {
        let id = pair.client_open();
        pair.client_write(id, b"question", true);
        pair.run(|_, _| {});
    }
    assert_eq!(pair.server().take_costs(), 0);
    for _ in 0..200 {
        pair.client().ping();
        pair.run(|_, _| {});
    }
    let units = pair.server().take_costs();
    assert!((100..=250).contains(&units), "{units}");
    assert_eq!(pair.server().take_costs(), 0);
}

#[test]
fn a_server_that_shuts_down_sends_new_clients_to_tcp_and_keeps_its_connections() {
    let mut pair = Pair::new();
    pair.connect();
    let id = pair.client_open();
    pair.endpoint.set_admission(h2o_quic::Admission::Closed);
    pair.client_write(id, b"question", true);
    pair.run(|_, _| {});
    assert!(pair.seen.contains(&Event::StreamOpened(StreamId::new(0))));
    // The client opens a second connection.
    pair.index = None;
    pair.connect();
    pair.run(|_, _| {});
    assert_eq!(pair.client_lost, "VersionMismatch");
    assert_eq!(pair.endpoint.open_connections(), 1);
}

#[test]
fn memory_that_is_held_is_told() {
    let mut pair = Pair::new();
    pair.connect();
    let id = pair.client_open();
    let idle = pair.server().retained();
    assert!(idle < 18_000, "{idle}");
    pair.client_write(id, &[7; 100_000], false);
    pair.run(|_, _| {});
    let unread = pair.server().retained();
    assert!(
        (idle + 80_000..idle + 120_000).contains(&unread),
        "{unread}"
    );
    let mut read = 0;
    while let Read::Data(data) | Read::Last(data) = pair.server().read(StreamId::new(0), usize::MAX)
    {
        read += data.len();
    }
    assert_eq!(read, 100_000);
    assert!(pair.server().retained() < idle + 10_000);
    let mut answer = Bytes::from(vec![7; 50_000]);
    pair.server().write(StreamId::new(0), &mut answer);
    assert!(pair.server().retained() > idle + 45_000);
    pair.run(|_, _| {});
    assert_eq!(pair.client_read(id).0.len(), 50_000);
    pair.run(|_, _| {});
    assert!(
        pair.server().retained() < idle + 2000,
        "memory for bytes that are acknowledged is freed"
    );
}

#[test]
fn a_long_download_beside_an_open_request_is_not_taken_for_memory() {
    let mut pair = Pair::new();
    pair.connect();
    let id = pair.client_open();
    pair.client_write(id, b"question", false);
    pair.run(|_, _| {});
    let (mut sent, mut received) = (0, 0);
    while received < 20_000_000 {
        let mut piece = Bytes::from(vec![7; 100_000]);
        while !piece.is_empty() {
            match pair.server().write(StreamId::new(0), &mut piece) {
                h2o_quic::Write::Taken(len) => sent += len,
                _ => break,
            }
        }
        pair.run(|_, _| {});
        received += pair.client_read(id).0.len();
    }
    assert!(sent >= received);
    let retained = pair.server().retained();
    assert!(retained < 18_000, "{retained}");
}

#[test]
fn packets_are_not_marked_without_ecn() {
    let mut config = crate::kit::endpoint_config();
    let server = config
        .server
        .as_mut()
        .expect("the endpoint has a server configuration");
    server.transport.ecn = h2o_quic::Ratio::NEVER;
    let mut endpoint = h2o_quic::Endpoint::new(config);
    let mut pair = Pair::new();
    pair.connect();
    let datagram = crate::kit::to_server(&pair.next_of_client());
    let mut buffer = Vec::new();
    let h2o_quic::Received::Accepted(index) = endpoint.receive(pair.now, datagram, &mut buffer)
    else {
        panic!("the endpoint accepts the Initial packet");
    };
    buffer.clear();
    let transmit = endpoint.transmit(index, pair.now, 1, &mut buffer);
    assert_eq!(
        transmit.expect("the server answers the Initial packet").ecn,
        None
    );
}

/// Returns a connection on which the server has more to send than the congestion window allows.
fn with_a_large_answer() -> Pair {
    let mut pair = Pair::new();
    pair.connect();
    let id = pair.client_open();
    pair.client_write(id, b"question", true);
    pair.run(|_, _| {});
    let mut answer = Bytes::from(vec![7; 1_000_000]);
    pair.server().write(StreamId::new(0), &mut answer);
    pair
}

#[test]
fn a_full_window_does_not_keep_the_end_of_a_connection_back() {
    let mut pair = with_a_large_answer();
    let (now, index) = (
        pair.now,
        pair.index.expect("the server has accepted the connection"),
    );
    let mut buffer = Vec::new();
    let mut sent = 0;
    while let Some(transmit) = pair.endpoint.transmit(index, now, 10, &mut buffer) {
        sent += transmit.len;
        buffer.clear();
    }
    assert!(sent > 0 && sent < 1_000_000, "{sent}");
    pair.server().close(now, 0x100, b"");
    let last = pair.endpoint.transmit(index, now, 10, &mut buffer);
    assert!(
        last.is_some(),
        "CONNECTION_CLOSE is sent although the congestion window is full"
    );
}

#[test]
fn keys_are_updated_as_often_as_the_client_likes() {
    let mut pair = Pair::new();
    pair.connect();
    for round in 1..=4_u64 {
        let id = pair.client_open();
        pair.client_write(id, b"question", true);
        pair.run(|_, _| {});
        let stream = StreamId::new(4 * (round - 1));
        assert_eq!(
            pair.server().read(stream, 100),
            Read::Last("question".into())
        );
        assert_eq!(
            pair.server().write_copy(stream, b"answer"),
            h2o_quic::Write::Taken(6)
        );
        pair.run(|_, _| {});
        assert_eq!(pair.client_read(id).0, b"answer");
        pair.client().force_key_update();
        // The next key update is allowed once this one is acknowledged.
        pair.now += std::time::Duration::from_secs(1);
    }
    assert_eq!(pair.client_lost, "");
}

#[test]
fn what_waits_for_a_full_window_goes_when_its_stall_ends() {
    let mut pair = with_a_large_answer();
    let index = pair.index.expect("the server has accepted the connection");
    let mut buffer = Vec::new();
    let mut sent_after = |pair: &mut Pair| {
        let mut sent = 0;
        while let Some(transmit) = pair.endpoint.transmit(index, pair.now, 10, &mut buffer) {
            sent += transmit.len;
            buffer.clear();
        }
        sent
    };
    // The pacer releases the window in parts, and the client acknowledges nothing.
    let mut waits = 0;
    while waits < 10 {
        pair.now += std::time::Duration::from_millis(100);
        waits = if sent_after(&mut pair) > 0 {
            0
        } else {
            waits + 1
        };
    }
    pair.now += std::time::Duration::from_secs(4);
    assert!(
        sent_after(&mut pair) > 0,
        "the server sends again after a stall"
    );
}

#[test]
fn a_client_has_three_connection_ids_at_a_time() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(|_, _| {});
    // The client has its first connection id from the handshake, and two more from NEW_CONNECTION_ID frames.
    assert_eq!(pair.client().stats().frame_rx.new_connection_id, 2);
    // On a new network path the client uses another connection id, and gets a new one in place of the id that it retires.
    pair.client().local_address_changed();
    pair.run(|_, _| {});
    assert_eq!(pair.client().stats().frame_rx.new_connection_id, 3);
    assert_eq!(pair.client_lost, "");
}
