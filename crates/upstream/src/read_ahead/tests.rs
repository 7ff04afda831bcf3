//! Tests of buffering responses, with a scripted backend and clients of various speeds.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Waker;

use h2o_exchange::{Counters, Shared, TempFiles};
use h2o_http::{Headers, Known};
use tokio::runtime::{Builder, LocalOptions};

use super::*;

/// What the backend has sent and will send. The value of byte `n` of the body is the second byte of the number `n`.
#[derive(Default)]
struct SentBytes {
    /// Number of bytes that can be read now.
    ready: usize,
    taken: usize,
    /// The length of the body, if known.
    length: Option<usize>,
    /// The end of the body that follows the available bytes; `None` if it has not arrived.
    end: Option<Result<(), &'static str>>,
    has_trailers: bool,
    /// Whether the connection to the backend is still in use.
    is_held: bool,
    waker: Option<Waker>,
}

type Backend = Rc<RefCell<SentBytes>>;

/// The body of a response, as it is read from the scripted backend.
struct FromBackend(Backend);

impl Drop for FromBackend {
    fn drop(&mut self) {
        self.0.borrow_mut().is_held = false;
    }
}

fn content(bytes: std::ops::Range<usize>) -> Vec<u8> {
    bytes.map(|n| n.to_le_bytes()[1]).collect()
}

impl BodySource for FromBackend {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let sent = &mut *self.0.borrow_mut();
        let bytes = sent.ready.min(max);
        if bytes > 0 {
            sent.ready -= bytes;
            sent.taken += bytes;
            let piece = content(sent.taken - bytes..sent.taken);
            return Poll::Ready(Some(Ok(piece.into())));
        }
        match sent.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(text)) => Poll::Ready(Some(Err(broken_off(text)))),
            None => {
                sent.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn trailers(&mut self) -> Trailers {
        let sent = self.0.borrow();
        match sent.end {
            None if sent.has_trailers => Trailers::Unknown,
            Some(_) if sent.has_trailers => {
                let mut fields = Headers::new();
                fields.push(Known::ServerTiming, b"a");
                Trailers::Fields(fields)
            }
            _ => Trailers::None,
        }
    }

    fn retained(&self) -> usize {
        0
    }
}

impl Origin for FromBackend {
    fn remaining(&self) -> Option<u64> {
        let sent = self.0.borrow();
        sent.length.map(|length| (length - sent.taken) as u64)
    }
}

/// A response on its way to a client.
struct Response {
    body: Box<dyn BodySource>,
    backend: Backend,
    files: Arc<TempFiles>,
    worker: Rc<Worker>,
    received: usize,
}

impl Response {
    fn new(sent: SentBytes, files: TempFiles, max_file: u64) -> Self {
        let files = Arc::new(files);
        let shared = Shared {
            temp_files: Arc::clone(&files),
            ..Shared::default()
        };
        let worker = Worker::new(0, Arc::new(Counters::default()), Arc::new(shared));
        let backend = Rc::new(RefCell::new(SentBytes {
            is_held: true,
            ..sent
        }));
        let buffering = Buffering {
            worker: Rc::clone(&worker),
            max_file,
        };
        let Body::Stream(body) = body(FromBackend(Rc::clone(&backend)), Some(buffering)) else {
            panic!("the body is a stream");
        };
        Self {
            body,
            backend,
            files,
            worker,
            received: 0,
        }
    }

    /// The backend sends this number of bytes more.
    fn send(&self, bytes: usize) {
        let mut sent = self.backend.borrow_mut();
        sent.ready += bytes;
        if let Some(waker) = sent.waker.take() {
            waker.wake();
        }
    }

    fn end(&self, end: Result<(), &'static str>) {
        self.backend.borrow_mut().end = Some(end);
        self.send(0);
    }

    /// The client takes nothing for this time. The clock does not advance while a disk thread works.
    async fn block(&mut self, time: Duration) {
        let worker = Rc::clone(&self.worker);
        let ahead = poll_fn(|context| {
            self.body.poll_ahead(context);
            assert!(
                self.body.retained() <= MAX_MEMORY,
                "{}",
                self.body.retained()
            );
            Poll::<()>::Pending
        });
        let _ = worker.run(worker.timeout(time, ahead)).await;
    }

    /// The client takes the bytes that are available, at most this number. Returns their number.
    async fn take(&mut self, most: usize) -> usize {
        let mut left = most;
        while left > 0 {
            let next = poll_fn(|context| self.body.poll_next(context, left.min(48 * 1024)));
            let Ok(Some(piece)) = tokio::time::timeout(Duration::from_secs(5), next).await else {
                break;
            };
            let piece = piece.expect("the content has another piece");
            assert!(piece == content(self.received..self.received + piece.len()));
            self.received += piece.len();
            left -= piece.len();
        }
        most - left
    }

    /// Waits for the next piece of the body, and returns its length.
    async fn next(&mut self) -> Option<Result<usize, String>> {
        let next = poll_fn(|context| self.body.poll_next(context, 1 << 20)).await;
        next.map(|piece| match piece {
            Ok(piece) => Ok(piece.len()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn taken(&self) -> usize {
        self.backend.borrow().taken
    }

    fn is_held(&self) -> bool {
        self.backend.borrow().is_held
    }

    fn counted(&self) -> u64 {
        self.worker.counters.get(Counter::ResponsesBuffered)
    }
}

fn run(test: impl Future<Output = ()>) {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .expect("a runtime starts")
        .block_on(test);
}

/// A response of this length that was sent completely.
fn sent(length: usize) -> SentBytes {
    SentBytes {
        ready: length,
        length: Some(length),
        end: Some(Ok(())),
        ..SentBytes::default()
    }
}

const MANY: u64 = 1 << 30;
const MOMENT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(1);

#[test]
fn what_fits_into_memory_is_taken_before_the_client_takes_it() {
    for has_length in [true, false] {
        run(async {
            let mut response = Response::new(sent(MAX_MEMORY), TempFiles::default(), MANY);
            if !has_length {
                response.backend.borrow_mut().length = None;
            }
            assert_eq!(response.take(1000).await, 1000);
            assert!(response.is_held() && response.counted() == 0);
            response.block(MOMENT).await;
            assert!(
                !response.is_held(),
                "the response holds no connection any more"
            );
            assert_eq!((response.counted(), response.files.made()), (1, 0));
            assert_eq!(response.take(MAX_MEMORY).await, MAX_MEMORY - 1000);
            assert_eq!(response.next().await, None);
        });
    }
}

#[test]
fn a_client_that_keeps_up_has_nothing_kept() {
    run(async {
        let length = 16 << 20;
        let mut response = Response::new(sent(length), TempFiles::default(), MANY);
        while response.received < length {
            // The client is blocked repeatedly, and reads everything available in between.
            response.block(MOMENT).await;
            response.take(1 << 20).await;
        }
        assert_eq!(response.files.made(), 0);
        assert!(response.counted() <= 1, "the last bytes are kept in memory");
    });
}

#[test]
fn a_slow_client_does_not_hold_the_backend() {
    for has_length in [true, false] {
        run(async {
            let length = 5_000_000;
            let mut response = Response::new(sent(length), TempFiles::default(), MANY);
            if !has_length {
                response.backend.borrow_mut().length = None;
            }
            response.block(MOMENT).await;
            let at_once = if has_length { 0 } else { MAX_MEMORY };
            assert_eq!(response.taken(), at_once);
            response.block(LONG).await;
            assert!(!response.is_held() && response.files.made() == 1);
            assert!(response.body.retained() < WORTH_WRITING);
            assert_eq!(response.take(length).await, length);
            assert_eq!(response.files.used(), 0, "the temporary file is removed");
            assert_eq!((response.next().await, response.counted()), (None, 1));
        });
    }
}

#[test]
fn a_client_that_takes_a_little_now_and_then_is_slow() {
    run(async {
        let length = 5_000_000;
        let mut response = Response::new(sent(length), TempFiles::default(), MANY);
        for _ in 0..50 {
            response.block(MOMENT).await;
            response.take(10_000).await;
        }
        assert!(!response.is_held());
        assert_eq!(response.take(length).await, length - 500_000);
    });
}

#[test]
fn what_comes_slowly_is_handed_on_at_once() {
    run(async {
        let mut response = Response::new(SentBytes::default(), TempFiles::default(), MANY);
        for _ in 0..3 {
            assert_eq!(response.take(1).await, 0);
            response.send(20);
            assert_eq!(response.take(100).await, 20);
            // After bytes were buffered, in memory and then in a file, bytes that arrive slowly are again passed on at once.
            for kept in [1_000, 1_000_000] {
                response.send(kept);
                response.block(LONG).await;
                response.send(20);
                response.block(LONG).await;
                assert_eq!(response.take(kept + 100).await, kept + 20);
            }
        }
        assert_eq!(response.files.made(), 3);
    });
}

#[test]
fn content_that_breaks_off_is_broken_off_behind_what_was_kept() {
    for length in [1_000, 1_000_000] {
        run(async {
            let mut response = Response::new(SentBytes::default(), TempFiles::default(), MANY);
            response.send(length);
            response.end(Err("I/O error"));
            response.block(LONG).await;
            assert!(!response.is_held());
            assert_eq!(response.take(length).await, length);
            assert_eq!(response.next().await, Some(Err("I/O error".to_owned())));
        });
    }
}

#[test]
fn trailers_follow_what_was_kept() {
    for length in [1_000, 1_000_000] {
        run(async {
            let mut response = Response::new(sent(length), TempFiles::default(), MANY);
            response.backend.borrow_mut().has_trailers = true;
            response.backend.borrow_mut().end = None;
            response.block(LONG).await;
            assert!(matches!(response.body.trailers(), Trailers::Unknown));
            response.end(Ok(()));
            response.block(LONG).await;
            assert!(!response.is_held());
            assert_eq!(response.take(length).await, length);
            assert_eq!(response.next().await, None);
            let Trailers::Fields(fields) = response.body.trailers() else {
                panic!("the response has trailers");
            };
            assert_eq!(fields.get(Known::ServerTiming), Some(&b"a"[..]));
        });
    }
}

#[test]
fn at_the_ceiling_the_backend_waits_and_goes_on_later() {
    let ceilings = [
        // Each case: the temporary files of the process, the limit of one response's file, and the number of bytes that fit into
        // the file.
        (TempFiles::default(), 1_000_000, 1_000_000),
        (TempFiles::new("/tmp".into(), 1_000_000), MANY, 1_000_000),
        (TempFiles::default(), 0, 0),
        (TempFiles::new("/tmp".into(), 0), MANY, 0),
        (TempFiles::new("/nonexistent".into(), MANY), MANY, 0),
    ];
    for (files, max_file, most) in ceilings {
        run(async {
            let length = 10_000_000;
            let mut response = Response::new(sent(length), files, max_file);
            response.block(LONG).await;
            let ahead = response.taken();
            let wanted = MAX_MEMORY.max(most)..=most + MAX_MEMORY;
            assert!(wanted.contains(&ahead), "{ahead}");
            response.block(LONG).await;
            assert!(response.taken() == ahead && response.is_held());
            assert_eq!(response.take(700_000).await, 700_000);
            response.block(LONG).await;
            assert!(response.taken() > ahead);
            while response.received < length {
                assert!(response.take(100_000).await > 0);
                response.block(MOMENT).await;
                assert!(response.files.used() <= max_file.min(response.files.limit()));
            }
            assert_eq!((response.next().await, response.files.used()), (None, 0));
        });
    }
}

#[test]
fn a_client_that_goes_away_takes_the_file_and_the_backends_connection_along() {
    run(async {
        let mut response = Response::new(SentBytes::default(), TempFiles::default(), MANY);
        response.send(2_000_000);
        response.block(LONG).await;
        assert!(response.is_held() && response.files.used() > 1_000_000);
        let (backend, files) = (Rc::clone(&response.backend), Arc::clone(&response.files));
        drop(response);
        assert!(!backend.borrow().is_held);
        // The paused clock does not advance while a disk thread closes the file.
        tokio::time::sleep(MOMENT).await;
        assert_eq!(files.used(), 0);
    });
}

#[test]
fn a_limit_on_buffers_keeps_content_with_the_backend() {
    let mut settings = crate::upstream::tests::settings();
    let worker = Worker::new(0, Arc::default(), Arc::default());
    assert!(Buffering::of(&worker, &settings).is_some());
    settings.max_buffer_size = Some(1 << 30);
    assert!(Buffering::of(&worker, &settings).is_none());
    run(async {
        let backend = Rc::new(RefCell::new(sent(1000)));
        let Body::Stream(mut body) = body(FromBackend(Rc::clone(&backend)), None) else {
            panic!("the body is a stream");
        };
        body.poll_ahead(&mut Context::from_waker(Waker::noop()));
        assert_eq!(backend.borrow().taken, 0);
    });
}
