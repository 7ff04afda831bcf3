use std::collections::VecDeque;
use std::sync::{Mutex, mpsc};

use super::*;

use NameOrigin::{Configured, Requested};

const ONE: SocketAddr = address(1);
const TWO: SocketAddr = address(2);

const fn address(last: u8) -> SocketAddr {
    let address = std::net::Ipv4Addr::new(192, 0, 2, last);
    SocketAddr::new(IpAddr::V4(address), 80)
}

fn query(host: &str, port: u16, family: Family) -> Query {
    Query {
        host: host.into(),
        port,
        family,
    }
}

/// Runs a test on tokio's paused clock: timers fire as soon as every task waits.
fn run<T>(test: impl AsyncFnOnce(&Rc<Worker>) -> T) -> T {
    run_by(true, test)
}

/// Runs a test like [`run`], on a clock that runs.
fn run_in_time<T>(test: impl AsyncFnOnce(&Rc<Worker>) -> T) -> T {
    run_by(false, test)
}

fn run_by<T>(stands: bool, test: impl AsyncFnOnce(&Rc<Worker>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(stands)
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let worker = Worker::new(0, Arc::default(), Arc::default());
        worker.run(test(&worker)).await
    })
}

/// Lets this time pass on the paused clock.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

fn resolver(
    look_up: impl Fn(&Query) -> Result<Vec<SocketAddr>, ResolveError> + Send + Sync + 'static,
) -> Resolver {
    Resolver::new(Arc::new(look_up), &THREADS)
}

type LookUps = Arc<Mutex<Vec<Query>>>;

/// A resolver that always answers with `result`, and records the look-ups.
fn counting(result: Result<Vec<SocketAddr>, ResolveError>) -> (Resolver, LookUps) {
    let asked = LookUps::default();
    let asked_by = Arc::clone(&asked);
    let resolver = resolver(move |query| {
        asked_by.lock().unwrap().push(query.clone());
        result.clone()
    });
    (resolver, asked)
}

/// A resolver that gives the answers sent through the returned sender, one after another, and an error once the sender is dropped.
fn answering() -> (
    Resolver,
    mpsc::Sender<Result<Vec<SocketAddr>, ResolveError>>,
) {
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let look_up = move |_: &Query| {
        let answer = wait.lock().unwrap().recv();
        answer.unwrap_or(Err(ResolveError::Fail))
    };
    (resolver(look_up), go)
}

impl Resolver {
    async fn find(
        &self,
        worker: &Worker,
        host: &str,
        origin: NameOrigin,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let found = self.resolve(worker, host, 80, origin).await;
        found.map(|found| found.to_vec())
    }
}

#[test]
fn numeric_addresses_need_no_look_up() {
    let (resolver, asked) = counting(Err(ResolveError::Fail));
    run(async |worker| {
        assert_eq!(
            resolver.find(worker, "192.0.2.1", Configured).await,
            Ok(vec![ONE])
        );
        let six: SocketAddr = "[2001:db8::1]:7".parse().unwrap();
        let found = resolver.resolve_family(worker, "2001:db8::1", 7, Family::V6, Requested);
        assert_eq!(found.await.as_deref(), Ok(&[six][..]));
        for (host, family) in [("192.0.2.1", Family::V6), ("::ffff:1.2.3.4", Family::V4)] {
            let found = resolver.resolve_family(worker, host, 80, family, Requested);
            assert_eq!(found.await, Err(ResolveError::AddressFamily), "{host}");
        }
    });
    assert_eq!(*asked.lock().unwrap(), []);
}

#[test]
fn answers_are_used_for_their_time() {
    for (result, life) in [
        (Ok(vec![ONE]), POSITIVE_LIFE),
        (Err(ResolveError::NoName), NEGATIVE_LIFE),
    ] {
        let (resolver, asked) = counting(result.clone());
        run(async |worker| {
            let step = Duration::from_millis(1);
            for (wait, look_ups) in [(Duration::ZERO, 1), (life - step, 1), (step, 2)] {
                tokio::time::advance(wait).await;
                assert_eq!(resolver.find(worker, "name", Requested).await, result);
                assert_eq!(asked.lock().unwrap().len(), look_ups, "{life:?}");
            }
        });
    }
}

#[test]
fn families_and_ports_are_asked_for_apart_and_origins_do_not_share_answers() {
    let (resolver, asked) = counting(Ok(vec![ONE]));
    run(async |worker| {
        for _ in 0..2 {
            for (family, port) in [
                (Family::V4, 80),
                (Family::V6, 80),
                (Family::Any, 80),
                (Family::Any, 81),
            ] {
                let found = resolver.resolve_family(worker, "name", port, family, Requested);
                assert_eq!(found.await.as_deref(), Ok(&[ONE][..]));
            }
        }
        let _ = resolver.find(worker, "name", Configured).await;
    });
    let want = [
        query("name", 80, Family::V4),
        query("name", 80, Family::V6),
        query("name", 80, Family::Any),
        query("name", 81, Family::Any),
        query("name", 80, Family::Any),
    ];
    assert_eq!(*asked.lock().unwrap(), want);
}

#[test]
fn requests_at_the_same_time_share_a_look_up_that_outlives_the_first_of_them() {
    let (resolver, go) = answering();
    run(async |worker| {
        let resolver = Rc::new(resolver);
        let ask = || {
            let (resolver, worker) = (Rc::clone(&resolver), Rc::clone(worker));
            tokio::task::spawn_local(async move { resolver.find(&worker, "name", Requested).await })
        };
        let (first, second, third) = (ask(), ask(), ask());
        tokio::task::yield_now().await;
        first.abort();
        assert!(first.await.is_err());
        // The test sends only one value: a second look-up would find the channel closed.
        go.send(Ok(vec![TWO])).unwrap();
        drop(go);
        for asking in [second, third] {
            assert_eq!(asking.await.unwrap(), Ok(vec![TWO]));
        }
    });
}

#[test]
fn each_address_comes_first_now_and_then_and_the_others_follow_in_order() {
    let all = [ONE, TWO, address(3)];
    let (resolver, _) = counting(Ok(all.to_vec()));
    let mut came_first = [0; 3];
    run(async |worker| {
        for _ in 0..300 {
            let found = resolver.find(worker, "name", Configured).await.unwrap();
            let at = all.iter().position(|address| *address == found[0]).unwrap();
            came_first[at] += 1;
            let mut want = all;
            want.rotate_left(at);
            assert_eq!(*found, want);
        }
    });
    // Each address should come first about 100 times; fewer than 30 practically never happen.
    assert!(came_first.iter().all(|times| *times > 30), "{came_first:?}");
}

#[test]
fn names_that_cannot_be_are_not_looked_up() {
    let (resolver, asked) = counting(Ok(vec![ONE]));
    run(async |worker| {
        let longest = "a".repeat(MAX_NAME_LEN);
        assert!(resolver.find(worker, &longest, Requested).await.is_ok());
        let found = resolver
            .find(worker, &format!("{longest}a"), Requested)
            .await;
        assert_eq!(found, Err(ResolveError::NoName));
    });
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[test]
fn nothing_found_is_an_error() {
    let (resolver, _) = counting(Ok(Vec::new()));
    let found = run(async |worker| resolver.find(worker, "name", Configured).await);
    assert_eq!(found, Err(ResolveError::NoData));
}

#[test]
fn a_look_up_that_panics_is_an_error_and_the_next_is_tried() {
    let times = Mutex::new(0);
    let resolver = resolver(move |_| {
        let time = {
            let mut times = times.lock().unwrap();
            *times += 1;
            *times
        };
        assert!(time > 1, "this panic is part of the test");
        Ok(vec![ONE])
    });
    run(async |worker| {
        let found = resolver.find(worker, "name", Configured).await;
        assert_eq!(found, Err(ResolveError::Other));
        tokio::time::advance(NEGATIVE_LIFE).await;
        assert_eq!(
            resolver.find(worker, "name", Configured).await,
            Ok(vec![ONE])
        );
    });
}

#[test]
fn a_configured_name_keeps_its_last_answer_while_a_new_one_is_awaited() {
    let (resolver, go) = answering();
    run_in_time(async |worker| {
        go.send(Ok(vec![ONE])).unwrap();
        assert_eq!(
            resolver.find(worker, "name", Configured).await,
            Ok(vec![ONE])
        );
        // When the previous answer has expired, a new answer that arrives within `MAX_WAIT` is used.
        pass(POSITIVE_LIFE).await;
        go.send(Ok(vec![TWO])).unwrap();
        assert_eq!(
            resolver.find(worker, "name", Configured).await,
            Ok(vec![TWO])
        );
        // Callers wait for the new answer until `MAX_WAIT` has passed since the first of them called, and then get the previous
        // answer.
        pass(POSITIVE_LIFE).await;
        let soon = || tokio::time::timeout(MAX_WAIT / 2, resolver.find(worker, "name", Configured));
        assert!(soon().await.is_err());
        assert_eq!(
            resolver.find(worker, "name", Configured).await,
            Ok(vec![TWO])
        );
        assert_eq!(soon().await, Ok(Ok(vec![TWO])));
        // A new answer that arrives after `MAX_WAIT` is used by later callers.
        go.send(Ok(vec![ONE])).unwrap();
        let late = async {
            while resolver.find(worker, "name", Configured).await != Ok(vec![ONE]) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), late)
            .await
            .unwrap();
    });
}

#[test]
fn only_the_word_that_there_is_no_address_ends_the_last_answer() {
    use ResolveError::{Again, Fail, NoData, NoName, System};
    for (error, want) in [
        (Again, Ok(vec![ONE])),
        (Fail, Ok(vec![ONE])),
        (System, Ok(vec![ONE])),
        (NoName, Err(NoName)),
        (NoData, Err(NoData)),
    ] {
        let (resolver, go) = answering();
        run_in_time(async |worker| {
            go.send(Ok(vec![ONE])).unwrap();
            assert_eq!(
                resolver.find(worker, "name", Configured).await,
                Ok(vec![ONE])
            );
            // A look-up after the life of the good answer fails, and another one after the life of that failure: the result is the
            // same.
            for life in [POSITIVE_LIFE, NEGATIVE_LIFE] {
                pass(life).await;
                go.send(Err(error)).unwrap();
                assert_eq!(
                    resolver.find(worker, "name", Configured).await,
                    want,
                    "{error:?}"
                );
                assert_eq!(
                    resolver.find(worker, "name", Configured).await,
                    want,
                    "{error:?}"
                );
            }
            pass(STALE_LIFE).await;
            go.send(Err(error)).unwrap();
            assert_eq!(resolver.find(worker, "name", Configured).await, Err(error));
        });
    }
    // Names from requests get the true result, and no stale answer.
    let (resolver, go) = answering();
    run_in_time(async |worker| {
        go.send(Ok(vec![ONE])).unwrap();
        assert_eq!(
            resolver.find(worker, "name", Requested).await,
            Ok(vec![ONE])
        );
        pass(POSITIVE_LIFE).await;
        go.send(Err(Again)).unwrap();
        assert_eq!(resolver.find(worker, "name", Requested).await, Err(Again));
    });
}

#[test]
fn names_are_bounded() {
    let (resolver, asked) = counting(Ok(vec![ONE]));
    run(async |worker| {
        for number in 0..=MAX_NAMES {
            let found = resolver
                .find(worker, &format!("name{number}"), Requested)
                .await;
            assert!(found.is_ok(), "{number}");
            assert!(resolver.requested.borrow().0.len() <= MAX_NAMES);
        }
        assert_eq!(asked.lock().unwrap().len(), MAX_NAMES + 1);
    });
}

/// A resolver on which look-ups of names that begin with `slow` wait until the returned sender is dropped; others are answered at
/// once.
fn slow(threads: usize) -> (Resolver, mpsc::Receiver<String>, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let wait = Mutex::new(wait);
    let look_up = move |query: &Query| {
        begun.send(query.host.to_string()).unwrap();
        if query.host.starts_with("slow") {
            let _ = wait.lock().unwrap().recv();
        }
        Ok(vec![ONE])
    };
    let threads: &'static Threads = Box::leak(Box::new(Threads::new(threads)));
    (Resolver::new(Arc::new(look_up), threads), begins, go)
}

/// Starts a look-up without waiting for its answer.
fn begin(
    worker: &Worker,
    resolver: &Resolver,
    host: &str,
    origin: NameOrigin,
) -> watch::Receiver<Option<Answer>> {
    let asked = resolver.ask(worker, query(host, 80, Family::Any), origin);
    asked.unwrap().answer
}

#[test]
fn look_ups_wait_for_a_thread() {
    let (resolver, begins, go) = slow(2);
    run(async |worker| {
        let mut answers: VecDeque<_> = ["slow1", "slow2", "slow3"]
            .map(|host| begin(worker, &resolver, host, Configured))
            .into();
        tokio::task::yield_now().await;
        let mut begun = [begins.recv().unwrap(), begins.recv().unwrap()];
        begun.sort();
        assert_eq!(begun, ["slow1", "slow2"]);
        assert!(begins.try_recv().is_err());
        drop(go);
        while let Some(mut answer) = answers.pop_front() {
            assert!(answer.wait_for(Option::is_some).await.is_ok());
        }
        assert_eq!(begins.recv().unwrap(), "slow3");
    });
}

#[test]
fn a_new_limit_of_threads_holds_for_the_look_ups_that_begin_then() {
    let (go, wait) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let wait = Mutex::new(wait);
    let look_up = move |query: &Query| {
        begun.send(query.host.to_string()).unwrap();
        let _ = wait.lock().unwrap().recv();
        Ok(vec![ONE])
    };
    let threads: &'static Threads = Box::leak(Box::new(Threads::new(2)));
    let resolver = Resolver::new(Arc::new(look_up), threads);
    run(async |worker| {
        let mut answers = Vec::new();
        for (limit, hosts, starting) in [
            (2, ["a", "b", "c"], 2),
            (3, ["d", "e", "f"], 3),
            (2, ["g", "h", "i"], 2),
        ] {
            threads.limit(limit);
            answers.extend(hosts.map(|host| begin(worker, &resolver, host, Configured)));
            tokio::task::yield_now().await;
            let mut started: Vec<_> = (0..starting).map(|_| begins.recv().unwrap()).collect();
            started.sort();
            assert_eq!(started, hosts[..starting]);
        }
        assert!(begins.try_recv().is_err());
        drop(go);
        for mut answer in answers {
            assert!(answer.wait_for(Option::is_some).await.is_ok());
        }
    });
}

#[test]
fn names_that_requests_bring_take_neither_threads_nor_places_from_backends() {
    for threads in [1, 2, 8] {
        let (resolver, begins, go) = slow(threads);
        run(async |worker| {
            let mut answers = Vec::new();
            for number in 0..MAX_NAMES {
                answers.push(begin(
                    worker,
                    &resolver,
                    &format!("slow{number}"),
                    Requested,
                ));
            }
            tokio::task::yield_now().await;
            for _ in 0..(threads / 2).max(1) {
                begins.recv().unwrap();
            }
            let full = resolver.find(worker, "another", Requested).await;
            assert_eq!(full, Err(ResolveError::Again));
            // A further caller can still wait for a name that is being looked up.
            answers.push(begin(worker, &resolver, "slow0", Requested));
            assert!(begins.try_recv().is_err());
            assert_eq!(
                resolver.find(worker, "backend", Configured).await,
                Ok(vec![ONE])
            );
            assert_eq!(begins.recv().unwrap(), "backend");
            drop(go);
            for mut answer in answers {
                assert!(answer.wait_for(Option::is_some).await.is_ok());
            }
            assert!(resolver.find(worker, "another", Requested).await.is_ok());
        });
    }
}

#[test]
fn a_name_that_nobody_waits_for_any_more_is_not_looked_up() {
    let (resolver, begins, go) = slow(2);
    run(async |worker| {
        let mut first = begin(worker, &resolver, "slow", Requested);
        drop(begin(worker, &resolver, "left", Requested));
        let mut last = begin(worker, &resolver, "wanted", Requested);
        tokio::task::yield_now().await;
        drop(go);
        assert!(first.wait_for(Option::is_some).await.is_ok());
        assert!(last.wait_for(Option::is_some).await.is_ok());
        let begun: Vec<_> = begins.try_iter().collect();
        assert_eq!(begun, ["slow", "wanted"]);
        // A later caller starts a new look-up, and gets its answer.
        assert_eq!(
            resolver.find(worker, "left", Requested).await,
            Ok(vec![ONE])
        );
    });
}

#[test]
fn the_system_is_asked_with_the_port() {
    let ask = |host| threads::ask_system(&query(host, 8080, Family::Any));
    assert_eq!(
        ask("127.0.0.1"),
        Ok(vec!["127.0.0.1:8080".parse().unwrap()])
    );
    assert_eq!(ask("a\0b"), Err(ResolveError::NoName));
    // The address of `localhost` is in /etc/hosts.
    let found = ask("localhost").unwrap();
    let is_right = |address: &SocketAddr| address.ip().is_loopback() && address.port() == 8080;
    assert!(!found.is_empty() && found.iter().all(is_right), "{found:?}");
}
