//! Random calls on the byte queue, compared with a simple queue: the same bytes in the same order.

use std::collections::VecDeque;

use bytes::Bytes;
use h2o_exchange::ByteQueue;

/// Creates bytes whose values depend on their position, so that the test notices misplaced ones.
fn some(random: &mut fastrand::Rng, limit: usize) -> Vec<u8> {
    let len = random.usize(..limit);
    (0..len).map(|_| random.u8(..)).collect()
}

fn check(queue: &ByteQueue, model: &VecDeque<u8>, seed: u64) {
    assert_eq!(queue.len(), model.len(), "seed {seed}");
    assert_eq!(queue.is_empty(), model.is_empty(), "seed {seed}");
    let slices: Vec<&[u8]> = queue.slices().collect();
    assert!(
        slices.iter().all(|slice| !slice.is_empty()),
        "seed {seed}: the queue has an empty slice"
    );
    assert!(slices.concat().iter().eq(model), "seed {seed}");
}

#[test]
fn random_calls_agree_with_a_plain_queue() {
    for seed in 0..16 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut queue = ByteQueue::default();
        let mut model: VecDeque<u8> = VecDeque::new();
        for _ in 0..40 {
            // Small pieces are combined, large ones are queued as they are: lengths on both sides of the limits.
            let limit = [10, 3_000, 40_000, 70_000][random.usize(..4)];
            match random.u8(..7) {
                0 | 1 => {
                    let bytes = some(&mut random, limit);
                    queue.push(&bytes);
                    model.extend(bytes);
                }
                2 => {
                    let bytes = some(&mut random, limit);
                    queue.push_piece(Bytes::from(bytes.clone()));
                    model.extend(bytes);
                }
                3 => {
                    let max = random.usize(..limit);
                    let piece = queue.take(max);
                    assert!(piece.len() <= max, "seed {seed}");
                    assert_eq!(
                        piece.is_empty(),
                        max == 0 || model.is_empty(),
                        "seed {seed}"
                    );
                    assert!(model.drain(..piece.len()).eq(piece), "seed {seed}");
                }
                4 => {
                    let max = random.usize(..2 * limit);
                    let first = queue.split_to(max);
                    let rest = model.split_off(max.min(model.len()));
                    let split = std::mem::replace(&mut model, rest);
                    check(&first, &split, seed);
                }
                5 => {
                    let mut later = ByteQueue::default();
                    for _ in 0..random.usize(..3) {
                        let bytes = some(&mut random, limit);
                        later.push(&bytes);
                        model.extend(bytes);
                    }
                    let later = {
                        // The calls are repeated with a queue from which bytes were taken before.
                        let gone = later.take(usize::MAX);
                        let mut both = ByteQueue::default();
                        both.push_piece(gone);
                        both.append(later);
                        both
                    };
                    queue.append(later);
                }
                _ => {
                    if let Some(whole) = queue.take_whole() {
                        assert!(model.drain(..).eq(whole), "seed {seed}");
                    }
                }
            }
            check(&queue, &model, seed);
        }
    }
}

#[test]
fn a_queue_that_fails_to_give_a_whole_gives_it_in_pieces() {
    let mut queue = ByteQueue::default();
    queue.push_piece(Bytes::from(vec![1; 50_000]));
    queue.push(b"tail");
    for _ in 0..3 {
        assert_eq!(
            queue.take_whole(),
            None,
            "a queue of two pieces cannot be taken as a whole"
        );
        assert_eq!(
            queue.len(),
            50_004,
            "a call of take_whole that fails removes no bytes"
        );
    }
    assert_eq!(queue.take(usize::MAX).len(), 50_000);
    assert_eq!(queue.take_whole().as_deref(), Some(&b"tail"[..]));
    assert_eq!(queue.take_whole().as_deref(), Some(&b""[..]));
}
