//! Tests that make random calls, compare the scheduler with a plain model of the tree, and check its invariants.

use std::collections::VecDeque;

use super::*;

/// A plain model of the dependency tree: for each stream its parent and weight.
#[derive(Default)]
struct Model {
    streams: BTreeMap<u32, (u32, u16)>,
    closed: VecDeque<u32>,
    open: Vec<u32>,
    idle: Vec<u32>,
    ready: Vec<u32>,
}

impl Model {
    fn place(&mut self, id: u32, priority: Priority) {
        let known = priority.dependency == 0 || self.streams.contains_key(&priority.dependency);
        let Priority {
            exclusive,
            dependency,
            weight,
        } = if known { priority } else { Priority::DEFAULT };
        if self.ancestors(dependency).contains(&id) {
            let parent = self.streams[&id].0;
            self.streams.get_mut(&dependency).unwrap().0 = parent;
        }
        self.streams.insert(id, (dependency, weight));
        if exclusive {
            for (&other, place) in &mut self.streams {
                if other != id && place.0 == dependency && place.1 != 257 {
                    place.0 = id;
                }
            }
        }
    }

    fn ancestors(&self, id: u32) -> Vec<u32> {
        let mut all = Vec::new();
        let mut at = id;
        while let Some(&(parent, _)) = self.streams.get(&at) {
            all.push(parent);
            at = parent;
        }
        all
    }

    fn close(&mut self, id: u32) {
        self.open.retain(|&open| open != id);
        self.ready.retain(|&ready| ready != id);
        self.closed.push_back(id);
        if self.closed.len() > 10 {
            let gone = self.closed.pop_front().unwrap();
            let (parent, weight) = self.streams.remove(&gone).unwrap();
            let below: Vec<u32> = self
                .streams
                .iter()
                .filter(|of| of.1.0 == gone)
                .map(|of| *of.0)
                .collect();
            let sum: f64 = below.iter().map(|id| f64::from(self.streams[id].1)).sum();
            for id in below {
                let place = self.streams.get_mut(&id).unwrap();
                let share = f64::from(weight) * f64::from(place.1) / sum;
                *place = (
                    parent,
                    (1..=256)
                        .rev()
                        .min_by(|&a, &b| {
                            (f64::from(a) - share)
                                .abs()
                                .total_cmp(&(f64::from(b) - share).abs())
                        })
                        .unwrap(),
                );
            }
        }
    }

    /// The share of all turns that a stream should have.
    fn share(&self, id: u32) -> f64 {
        if self
            .ancestors(id)
            .iter()
            .any(|above| self.ready.contains(above))
        {
            return 0.0;
        }
        let is_active = |id: u32| {
            self.ready
                .iter()
                .any(|&ready| ready == id || self.ancestors(ready).contains(&id))
        };
        let mut share = 1.0;
        let mut at = id;
        while let Some(&(parent, weight)) = self.streams.get(&at) {
            let rivals = self
                .streams
                .iter()
                .filter(|of| of.1.0 == parent && is_active(*of.0))
                .map(|of| of.1.1);
            let rivals: Vec<u16> = rivals.collect();
            if rivals.contains(&257) {
                let first = rivals.iter().filter(|&&weight| weight == 257).count();
                share *= if weight == 257 {
                    1.0 / first as f64
                } else {
                    0.0
                };
            } else {
                share *= f64::from(weight) / rivals.into_iter().map(f64::from).sum::<f64>();
            }
            at = parent;
        }
        share
    }

    fn places(&self) -> String {
        let places: Vec<String> = self
            .streams
            .iter()
            .map(|(id, (parent, weight))| format!("{id}<{parent}:{weight}"))
            .collect();
        places.join(" ")
    }
}

fn random_priority(random: &mut Random, id: u32, newest: u32) -> Priority {
    let reach = newest.min(50) + 8;
    let mut dependency = if random.below(4) == 0 {
        0
    } else {
        (newest + 8).saturating_sub(random.below(reach))
    };
    if dependency == id {
        dependency = 0;
    }
    Priority {
        exclusive: random.below(3) == 0,
        dependency,
        weight: u16::try_from(1 + random.below(256)).unwrap(),
    }
}

#[test]
fn agrees_with_a_plain_model() {
    for seed in 0..150 {
        println!("seed {seed}"); // Only shown if the test fails.
        let mut random = Random::new(seed);
        let (mut bench, mut model) = (Bench::new(), Model::default());
        let (mut next_id, mut next_push) = (1, 2);
        for _ in 0..300 {
            let any = (!model.open.is_empty()).then(|| {
                model.open[random.below(u32::try_from(model.open.len()).unwrap()) as usize]
            });
            match (random.below(12), any) {
                (0..=2, _) if model.open.len() < 30 => {
                    let id = next_id;
                    next_id += 2 * (1 + random.below(2));
                    let was_idle = model.idle.contains(&id);
                    model.idle.retain(|&idle| idle != id);
                    let priority =
                        (random.below(3) > 0).then(|| random_priority(&mut random, id, id));
                    if !was_idle || priority.is_some() {
                        model.streams.entry(id).or_insert((0, 16));
                        model.place(id, priority.unwrap_or_default());
                    }
                    model.open.push(id);
                    bench.open(id, priority);
                }
                (3, Some(id)) if model.open.len() < 30 => {
                    bench.push(next_push, id);
                    model.streams.insert(next_push, (id, 16));
                    model.open.push(next_push);
                    next_push += 2;
                }
                (4..=5, _) if bench.newest > 0 => {
                    let id = (bench.newest + 6).saturating_sub(random.below(30)).max(1);
                    let priority = random_priority(&mut random, id, bench.newest);
                    let is_idle = !model.streams.contains_key(&id);
                    let full =
                        is_idle && id > bench.newest && id % 2 == 1 && model.idle.len() == 16;
                    if full {
                        continue;
                    }
                    bench.priority(id, Some(priority));
                    if is_idle && (id <= bench.newest || id % 2 == 0) {
                        continue;
                    }
                    if is_idle {
                        model.idle.push(id);
                        model.streams.insert(id, (0, 16));
                    }
                    if model.streams[&id].1 != 257 {
                        model.place(id, priority);
                    }
                }
                (6, Some(id)) => {
                    if model.streams[&id].1 == 257 {
                        let weight = bench.scheduler.received(bench.keys[&id]).weight;
                        model.streams.insert(id, (0, weight));
                    }
                    bench.close(id);
                    model.close(id);
                }
                (7..=9, Some(id)) => {
                    if random.below(3) == 0 {
                        bench.blocked(&[id]);
                        model.ready.retain(|&ready| ready != id);
                    } else if !model.ready.contains(&id) {
                        bench.ready(&[id]);
                        model.ready.push(id);
                    }
                }
                (10, Some(id)) if random.below(20) == 0 => {
                    bench.scheduler.elevate(bench.keys[&id]);
                    model.streams.insert(id, (0, 257));
                }
                _ => {
                    let next = bench.next();
                    assert_eq!(next.is_some(), !model.ready.is_empty(), "seed {seed}");
                    assert!(next.is_none_or(|id| model.share(id) > 0.0), "seed {seed}");
                }
            }
            bench.check();
            assert_eq!(bench.places(), model.places(), "seed {seed}");
        }
        bench.checks = false;
        bench.turns(2_000);
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for id in bench.turns(20_000) {
            *counts.entry(id).or_default() += 1;
        }
        for &id in &model.ready {
            let (got, want) = (
                f64::from(*counts.get(&id).unwrap_or(&0)),
                model.share(id) * 20_000.0,
            );
            assert!(
                (got - want).abs() <= 10.0 + want / 50.0,
                "seed {seed}: {id} had {got} of {want}"
            );
        }
    }
}

#[test]
fn random_calls_keep_the_invariants() {
    for seed in 1000..1150 {
        println!("seed {seed}"); // Only shown if the test fails.
        let mut random = Random::new(seed);
        let mut bench = Bench::new();
        let (mut next_id, mut top) = (1, 0);
        for _ in 0..300 {
            let open: Vec<u32> = {
                let mut open: Vec<u32> = bench.keys.keys().copied().collect();
                open.sort_unstable();
                open
            };
            let any = (!open.is_empty())
                .then(|| open[random.below(u32::try_from(open.len()).unwrap()) as usize]);
            match (random.below(10), any) {
                // The client opens a stream as Chromium does: the stream depends on the newest one whose weight is not
                // smaller.
                (0..=2, _) => {
                    let weight = WEIGHT_OF_URGENCY[random.below(8) as usize];
                    bench.open(
                        next_id,
                        only(
                            if bench.keys.contains_key(&top) {
                                top
                            } else {
                                0
                            },
                            weight,
                        ),
                    );
                    if random.below(3) > 0 {
                        bench.ready(&[next_id]);
                    }
                    top = next_id;
                    next_id += 2;
                }
                (3, Some(id)) => {
                    bench.close(id);
                }
                (4..=5, Some(id)) => {
                    bench.answers(id, answer(u8::try_from(random.below(8)).unwrap()));
                }
                (6, Some(id)) => {
                    let ready = bench.scheduler.is_ready(bench.keys[&id]);
                    bench.scheduler.set_ready(bench.keys[&id], !ready);
                }
                (7, Some(id)) => {
                    let mut priority = random_priority(&mut random, id, next_id);
                    priority.exclusive = random.below(10) > 0;
                    bench.priority(id, Some(priority));
                }
                (8, Some(id)) if random.below(20) == 0 => bench.scheduler.elevate(bench.keys[&id]),
                (9, _) if random.below(300) == 0 => bench.scheduler.use_urgencies(),
                _ => assert_eq!(
                    bench.next().is_some(),
                    bench.scheduler.has_ready(),
                    "seed {seed}"
                ),
            }
            bench.check();
        }
    }
}
