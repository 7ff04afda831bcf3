//! Our QUIC server over a simulated path: how long downloads take, and how many packets the queue drops.

use std::net::IpAddr;
use std::time::Duration;

use crate::kit::link::{Path, Simulation};
use h2o_quic::{CloseReason, CongestionControl, Event, Ratio, TransportSettings};
use h2o_testkit::Random;

const SMALL: usize = 1_200_000;
const LARGE: usize = 4_600_000;

fn settings(control: CongestionControl) -> TransportSettings {
    TransportSettings {
        congestion_control: control,
        ..TransportSettings::default()
    }
}

/// Downloads once per seed in `0..seeds`. Returns the median time, and the most packets that the queue dropped in one run.
fn median(control: CongestionControl, lost: usize, bytes: usize, seeds: u64) -> (Duration, usize) {
    let runs = (0..seeds).map(|seed| {
        let path = Path {
            lost,
            ..Path::mobile()
        };
        let mut simulation = Simulation::new(seed, path, settings(control));
        simulation.connect();
        let time = simulation.fetch(bytes);
        (time, simulation.dropped())
    });
    let mut runs: Vec<_> = runs.collect();
    let dropped = runs.iter().map(|&(_, dropped)| dropped).max();
    runs.sort_unstable();
    (runs[runs.len() / 2].0, dropped.unwrap_or_default())
}

#[test]
fn a_page_takes_no_longer_than_the_path_needs_with_loss_or_without() {
    let (clean, dropped) = median(CongestionControl::Model, 0, SMALL, 20);
    assert!(clean <= Duration::from_millis(1420), "{clean:?}");
    assert!(dropped < 60, "{dropped}");
    let (lossy, dropped) = median(CongestionControl::Model, 10, SMALL, 20);
    assert!(lossy <= Duration::from_millis(1500), "{lossy:?}");
    assert!(dropped < 60, "{dropped}");
}

#[test]
fn on_a_clean_path_the_model_is_not_slower_than_cubic() {
    let (model, dropped) = median(CongestionControl::Model, 0, LARGE, 3);
    let (cubic, _) = median(CongestionControl::Cubic, 0, LARGE, 3);
    assert!(model <= cubic, "{model:?}, {cubic:?}");
    assert!(dropped < 60, "{dropped}");
}

#[test]
fn cubic_and_reno_use_a_clean_path_too() {
    for control in [CongestionControl::Cubic, CongestionControl::Reno] {
        let (time, _) = median(control, 0, SMALL, 1);
        assert!(time <= Duration::from_millis(1420), "{control:?} {time:?}");
    }
}

/// On a random path, with a random congestion controller, every byte arrives and the simulation never runs out of events. `ours`:
/// whether the client is ours rather than `quinn-proto`'s.
fn any_path(seed: u64, ours: bool) {
    let mut random = Random::new(seed);
    let controls = [
        CongestionControl::Reno,
        CongestionControl::Cubic,
        CongestionControl::Model,
    ];
    let mut path = Path {
        rate: 100_000 << random.below(8),
        delay: Duration::from_millis(1 << random.below(8)),
        queue: 10_000 << random.below(6),
        lost: random.below(50),
        late: random.below(50),
        twice: random.below(50),
        ..Path::default()
    };
    let transport = settings(controls[random.below(3)]);
    let mut simulation = if ours {
        Simulation::with_our_client(seed, path, transport)
    } else {
        Simulation::new(seed, path, transport)
    };
    simulation.connect();
    let mut asked = 0;
    for _ in 0..3 {
        let bytes = random.below(200_000);
        asked += bytes;
        simulation.ask(bytes);
    }
    let third = simulation.received + asked / 3;
    simulation.run_until(|it| it.received >= third || it.ended == 3);
    // The path now carries smaller packets only, and the client has another port.
    path.mtu = 1200 + random.below(273);
    simulation.set_path(path);
    let port = simulation.address.port() + 1;
    simulation.address.set_port(port);
    simulation.run_until(|it| it.ended == 3);
    assert_eq!(simulation.received, asked);
}

#[test]
fn downloads_arrive_over_any_path() {
    for seed in 0..40 {
        any_path(seed, false);
    }
}

#[test]
fn downloads_of_our_own_client_arrive_over_any_path() {
    for seed in 100..130 {
        any_path(seed, true);
    }
}

#[test]
fn connections_survive_new_ports_and_addresses() {
    let mut simulation = Simulation::new(1, Path::mobile(), TransportSettings::default());
    simulation.connect();
    let mut last = simulation.address;
    for turn in 0..6_u8 {
        let ended = simulation.ended;
        simulation.ask(200_000);
        let half = simulation.received + 100_000;
        simulation.run_until(|it| it.received >= half);
        if turn % 2 == 0 {
            last.set_port(last.port() + 1);
        } else {
            last.set_ip([127, 0, 0, 10 + turn].into());
        }
        simulation.address = last;
        simulation.run_until(|it| it.ended > ended);
        // If the download was complete before the server received a datagram from the new address, it receives one now.
        simulation.fetch(1000);
        let index = simulation.connections[0];
        let connection = simulation
            .server
            .connection(index)
            .expect("the connection is open");
        assert_eq!(connection.remote_address(), last);
    }
}

#[test]
fn the_path_mtu_is_found_and_used() {
    let mut simulation = Simulation::new(1, Path::mobile(), TransportSettings::default());
    simulation.connect();
    simulation.fetch(SMALL);
    assert!(simulation.largest > 1440, "{}", simulation.largest);
    let path = Path {
        mtu: 1300,
        ..Path::mobile()
    };
    let mut simulation = Simulation::new(1, path, TransportSettings::default());
    simulation.connect();
    simulation.fetch(SMALL);
    assert!(
        (1250..=1300).contains(&simulation.largest),
        "{}",
        simulation.largest
    );
}

#[test]
fn marks_of_a_queue_keep_it_short() {
    let path = Path {
        marks_at: 20_000,
        ..Path::mobile()
    };
    let mut simulation = Simulation::new(1, path, settings(CongestionControl::Cubic));
    simulation.connect();
    let time = simulation.fetch(SMALL);
    assert_eq!(simulation.dropped(), 0);
    assert!(time < Duration::from_millis(1800), "{time:?}");
}

#[test]
fn a_lost_tail_is_repaired_one_probe_later() {
    let path = Path {
        rate: 125_000_000,
        ..Path::mobile()
    };
    for seed in 0..10 {
        let mut simulation = Simulation::new(seed, path, TransportSettings::default());
        simulation.connect();
        // Several downloads make the estimate of the round trip time exact.
        for _ in 0..10 {
            simulation.fetch(3600);
        }
        let usual = simulation.fetch(3600);
        simulation.loses_tail = true;
        let time = simulation.fetch(3600);
        assert!(!simulation.loses_tail);
        // The server repeats the lost packet with its first probe: after the round trip time of 80 ms and the 25 ms for which the
        // client may delay its acknowledgement. If it waited for the answer to the probe, that would take 80 ms more.
        let lost = time - usual;
        let earliest = Duration::from_millis(105);
        assert!(
            (earliest..earliest + Duration::from_millis(50)).contains(&lost),
            "{lost:?}"
        );
    }
}

#[test]
fn handshakes_that_take_too_long_are_given_up() {
    // After the client's first packet arrived, the path drops all datagrams.
    let mut simulation = Simulation::new(1, Path::default(), TransportSettings::default());
    simulation.settle();
    simulation.run_until(|it| !it.connections.is_empty());
    let start = simulation.now;
    let path = Path {
        mtu: 0,
        ..Path::default()
    };
    simulation.set_path(path);
    simulation.run_until(|it| it.connections.is_empty());
    let reason = Event::Closed(CloseReason::HandshakeTimeout);
    assert!(
        simulation.server_events.contains(&reason),
        "{:?}",
        simulation.server_events
    );
    let time = simulation.now - start;
    assert!(time < Duration::from_secs(30), "{time:?}");
    assert_eq!(simulation.server.open_connections(), 0);
}

#[test]
fn a_client_that_comes_again_may_begin_where_it_was() {
    let [usual, jumped] = [0, 100].map(|max_jump_packets| {
        let transport = TransportSettings {
            max_jump_packets,
            ..TransportSettings::default()
        };
        let mut simulation = Simulation::new(1, Path::mobile(), transport);
        simulation.connect();
        simulation.fetch(SMALL);
        simulation.connect_again();
        simulation.fetch(200_000)
    });
    assert!(
        jumped + Duration::from_millis(5) < usual,
        "{jumped:?}, {usual:?}"
    );
}

/// Returns how long a new client's first download takes, and how many packets the queue dropped.
fn first_file(path: Path, bytes: usize, transport: TransportSettings) -> (Duration, usize) {
    let mut simulation = Simulation::new(1, path, transport);
    simulation.connect();
    let time = simulation.fetch(bytes);
    (time, simulation.dropped())
}

#[test]
fn a_new_client_may_begin_with_a_jump_and_what_is_too_much_is_taken_back() {
    for control in [
        CongestionControl::Reno,
        CongestionControl::Cubic,
        CongestionControl::Model,
    ] {
        let jumping = |first_jump_packets, is_paced, first_jumps| TransportSettings {
            initial_window_packets: 10,
            first_jump_packets,
            first_jumps,
            is_paced,
            ..settings(control)
        };
        let always = Ratio::ALWAYS;
        let file =
            |bytes, packets| first_file(Path::mobile(), bytes, jumping(packets, always, always));
        let (usual, _) = file(60_000, 0);
        let (jumped, dropped) = file(60_000, 60);
        assert!(
            jumped < usual * 3 / 4 && dropped == 0,
            "{control:?} {usual:?} {jumped:?} {dropped}"
        );
        // Connections without pacing, and connections outside the share that jumps, do not jump.
        for (paced, ratio) in [(Ratio::NEVER, always), (always, Ratio::NEVER)] {
            let jump = first_file(Path::mobile(), 60_000, jumping(60, paced, ratio));
            let none = first_file(Path::mobile(), 60_000, jumping(0, paced, ratio));
            assert_eq!(jump, none, "{control:?}");
        }
        // The jump is to three times of what the path and its queue hold together.
        let (usual, _) = file(SMALL, 0);
        let (jumped, dropped) = file(SMALL, 300);
        assert!(jumped < usual * 5 / 4, "{control:?} {usual:?} {jumped:?}");
        assert!(dropped < 400, "{control:?} {dropped}");
    }
}

#[test]
fn rapid_start_fills_a_long_path_sooner() {
    for control in [CongestionControl::Reno, CongestionControl::Cubic] {
        let starting = |rapid_start| TransportSettings {
            initial_window_packets: 10,
            rapid_start,
            ..settings(control)
        };
        let long = Path {
            rate: 12_500_000,
            delay: Duration::from_millis(50),
            queue: 1_000_000,
            ..Path::default()
        };
        let (usual, _) = first_file(long, 3_000_000, starting(Ratio::NEVER));
        let (rapid, dropped) = first_file(long, 3_000_000, starting(Ratio::ALWAYS));
        assert!(
            rapid < usual * 7 / 8 && dropped == 0,
            "{control:?} {usual:?} {rapid:?} {dropped}"
        );
        let (usual, _) = first_file(Path::mobile(), SMALL, starting(Ratio::NEVER));
        let (rapid, dropped) = first_file(Path::mobile(), SMALL, starting(Ratio::ALWAYS));
        assert!(rapid < usual * 5 / 4, "{control:?} {usual:?} {rapid:?}");
        assert!(dropped < 250, "{control:?} {dropped}");
    }
}

#[test]
fn fast_paths_are_filled_too() {
    let path = Path {
        rate: 1_250_000_000,
        delay: Duration::from_micros(50),
        ..Path::default()
    };
    let mut simulation = Simulation::new(3, path, TransportSettings::default());
    simulation.connect();
    simulation.fetch(20_000_000);
    // At the path's full rate of 10 Gbit/s the download would take 16.7 ms.
    let time = simulation.fetch(20_000_000);
    assert!(time < Duration::from_millis(18), "{time:?}");
}

#[test]
fn a_client_that_has_not_shown_its_address_gets_no_more_than_three_times_what_it_sends() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed, Path::default(), TransportSettings::default());
        simulation.settle();
        simulation.run_until(|it| !it.connections.is_empty());
        // From now on, the path drops every datagram that the server sends.
        let path = Path {
            mtu: 0,
            ..Path::default()
        };
        simulation.set_path(path);
        simulation.run_until(|it| it.connections.is_empty());
        let (sent, received) = simulation.bytes[&simulation.address.ip()];
        assert!(
            sent > 0 && sent <= 3 * received,
            "{sent} bytes were sent for {received} received bytes"
        );
    }
}

#[test]
fn an_address_that_confirms_nothing_gets_no_more_than_three_times_what_it_sends() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed, Path::mobile(), TransportSettings::default());
        simulation.connect();
        simulation.ask(2_000_000);
        simulation.run_until(|it| it.received >= 300_000);
        let address = IpAddr::from([127, 0, 0, 99]);
        simulation.address.set_ip(address);
        simulation.run_until(|it| it.bytes.contains_key(&address));
        // From now on, the path drops every datagram that the server sends.
        let path = Path {
            mtu: 0,
            ..Path::mobile()
        };
        simulation.set_path(path);
        // Nobody has answered at the address, so that the client does not get its rights.
        assert_ne!(simulation.validated(), address);
        simulation.run_until(|it| it.connections.is_empty());
        let (sent, received) = simulation.bytes[&address];
        assert!(
            sent > 0 && sent <= 3 * received,
            "{sent} bytes were sent for {received} received bytes"
        );
    }
}

#[test]
fn a_client_that_moves_is_asked_to_confirm_even_if_it_has_sent_little() {
    let mut simulation = Simulation::new(1, Path::mobile(), TransportSettings::default());
    simulation.connect();
    for last in 20..40 {
        simulation.ask(200_000);
        let half = simulation.received + 100_000;
        simulation.run_until(|it| it.received >= half);
        simulation.address.set_ip([127, 0, 0, last].into());
        let (since, ended) = (simulation.now, simulation.ended);
        simulation.run_until(|it| it.ended > ended);
        let time = simulation.now - since;
        assert!(time < Duration::from_millis(1500), "{time:?}");
        // The server knows that the client is there when it sends the next packet.
        simulation.fetch(1000);
        assert_eq!(simulation.validated(), simulation.address.ip());
    }
}
