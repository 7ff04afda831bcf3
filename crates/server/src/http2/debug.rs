//! Makes the response of the handler `http2-debug-state`: the present state of the HTTP/2 connection.

use bytes::Bytes;
use h2o_exchange::{Body, DebugState, Exchange, Response};
use h2o_handlers::{HpackReport, Http2Report, SettingsReport, StreamReport};
use h2o_http::Name;
use h2o_http2::{ServerConnection, StreamInfo, StreamKey, StreamState};

use super::slot;
use crate::context::Context;
use crate::flow::Turn;
use crate::request::Requests;

/// Writes the state of the connection into the response of `stream`; `exchange` is the exchange of that stream's request.
pub(super) fn show_state(
    engine: &ServerConnection,
    table: &Requests,
    turn: &Turn<'_>,
    stream: StreamKey,
    detail: DebugState,
    exchange: &Exchange,
    response: &mut Response,
) {
    let context = turn.context;
    let created_by = |stream| {
        let exchange = table.exchange(slot(stream))?.try_borrow().ok()?;
        Some(created(context, &exchange))
    };
    let (flow_in, flow_out) = engine.windows();
    let peer = engine.peer_settings();
    let state = Http2Report {
        settings: SettingsReport {
            enable_push: 0,
            max_concurrent_streams: turn.connection.listener.setup.http2.max_streams,
            ..SettingsReport::default()
        },
        peer_settings: SettingsReport {
            header_table_size: peer.header_table_size,
            enable_push: peer.enable_push.into(),
            max_concurrent_streams: peer.max_concurrent_streams,
            initial_window_size: peer.initial_window_size,
            max_frame_size: peer.max_frame_size,
        },
        conn_flow_in: flow_in.into(),
        conn_flow_out: flow_out.into(),
        streams: engine
            .streams()
            .map(|info| {
                let created = if info.key == stream {
                    Some(created(context, exchange))
                } else {
                    created_by(info.key)
                };
                stream_state(&info, created.unwrap_or_default())
            })
            .collect(),
        hpack: (detail == DebugState::Hpack).then(|| hpack_state(engine)),
    };
    let json = Bytes::from(state.to_json());
    response.length = Some(json.len() as u64);
    response.body = Body::Bytes(json);
    for (name, value) in [
        ("conn-flow-in", state.conn_flow_in),
        ("conn-flow-out", state.conn_flow_out),
    ] {
        let value = value.to_string();
        response.headers.push(Name::Other(name), value.as_bytes());
    }
}

fn hpack_state(engine: &ServerConnection) -> HpackReport {
    let owned = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
    let (decoder, encoder) = engine.compression();
    HpackReport {
        inbound: decoder.entries().map(owned).collect(),
        outbound: encoder.entries().map(owned).collect(),
    }
}

fn stream_state(info: &StreamInfo, created: u64) -> StreamReport {
    StreamReport {
        id: info.id.get(),
        state: match info.state {
            StreamState::ReservedLocal => "RESERVED_LOCAL",
            StreamState::Open => "OPEN",
            StreamState::HalfClosedLocal => "HALF_CLOSED_LOCAL",
            StreamState::HalfClosedRemote => "HALF_CLOSED_REMOTE",
            StreamState::Closed => "CLOSED",
        },
        flow_in: info.recv_window.into(),
        flow_out: info.send_window.into(),
        data_in: info.received,
        data_out: info.sent,
        created,
    }
}

/// When the request of an exchange came, in seconds since the Unix epoch.
fn created(context: &Context, exchange: &Exchange) -> u64 {
    let clock = &context.worker.clock;
    let age = clock
        .now()
        .saturating_duration_since(exchange.timings.begun);
    clock.unix().saturating_sub(age).as_secs()
}
