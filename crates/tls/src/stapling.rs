//! OCSP stapling (RFC 6066 §8): which OCSP response clients get together with a certificate, and when a new one is fetched.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use h2o_config::{Attributes, Error, Node, Unit};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use crate::ocsp::{OcspError, OcspStatus, OcspSubject};
use crate::x509::Certificate;

/// The `ocsp-*` attributes of an `ssl` mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StaplingSettings {
    /// Time between two fetches of an OCSP response; `None`: no response is stapled.
    pub(crate) interval: Option<Duration>,
    /// How many fetches in a row may fail while the last response is still used.
    pub(crate) max_failures: u32,
    /// The command that fetches OCSP responses; `None`: the server itself sends the request to the OCSP responder.
    pub(crate) command: Option<Box<str>>,
}

impl Default for StaplingSettings {
    fn default() -> Self {
        Self {
            interval: Some(Duration::from_secs(14_400)),
            max_failures: 3,
            command: None,
        }
    }
}

impl StaplingSettings {
    /// Reads the `ocsp-*` attributes.
    ///
    /// # Errors
    /// A message that says what is wrong with an attribute.
    pub(crate) fn parse(attributes: &Attributes<'_>) -> Result<Self, Error> {
        let mut settings = Self::default();
        if let Some(node) = attributes.get("ocsp-update-interval") {
            let seconds = node.quantity(Unit::Seconds, "%lu", 0..=u64::MAX)?;
            settings.interval = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        if let Some(node) = attributes.get("ocsp-max-failures") {
            settings.max_failures = node.integer("%u", 0..=u64::from(u32::MAX))?;
        }
        if let Some(node) = attributes.get("ocsp-update-cmd") {
            settings.command = Some(Node::scalar(node)?.into());
        }
        Ok(settings)
    }
}

/// The OCSP response for a certificate: one value is shared by all listeners and, over a reload, by all configurations that have
/// the certificate with the same settings.
#[derive(Debug)]
pub struct Staple {
    file: Box<str>,
    /// The certificates in the file; the first one is the certificate whose OCSP response is stapled.
    chain: Vec<CertificateDer<'static>>,
    /// The certificate and its issuer, by which OCSP responses are checked; an error if the file has no certificate of the issuer.
    subject: Result<OcspSubject, OcspError>,
    settings: StaplingSettings,
    /// The number of the present response, which changes with each new response; 0 if there is no response.
    version: AtomicU64,
    state: Mutex<StapleState>,
}

#[derive(Debug, Default)]
struct StapleState {
    response: Option<OcspResponse>,
    /// When to fetch the next response, as time since the Unix epoch.
    next: Duration,
    /// When the last fetch began, as time since the Unix epoch.
    begun: Duration,
    /// Number of failed fetches since the last response.
    failures: u32,
    is_fetching: bool,
    /// Whether a fetch has failed permanently, so that there are no more fetches.
    is_given_up: bool,
}

/// An accepted OCSP response: it is about its certificate, the issuer or a responder certified by the issuer has signed it, and it
/// was valid when it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcspResponse {
    bytes: Vec<u8>,
    status: OcspStatus,
}

/// How to fetch an OCSP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StapleFetch {
    /// Send a request to the OCSP responder that the certificate names.
    Ask {
        /// The URL to which the request is sent by POST.
        url: Box<str>,
        /// The OCSP request in DER.
        request: Vec<u8>,
    },
    /// Run this command, which gets the file with the certificates as its standard input and writes the OCSP response to its
    /// standard output.
    Run(PathBuf),
}

/// How the fetch of an OCSP response has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchFailure {
    /// A later attempt to fetch a response may succeed.
    Temporary,
    /// No attempt to fetch a response will succeed.
    Permanent,
}

/// What a finished fetch has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StapleChange {
    /// A new OCSP response is stapled from now on.
    Updated,
    /// The fetch has failed; the old response, if there is one, stays in use.
    Kept,
    /// Too many fetches have failed, so that no response is stapled any more; there will be more attempts.
    Removed,
    /// The fetch has failed permanently: no response is stapled, and there will be no more attempts.
    Disabled,
}

/// All staples that are in use, so that configurations can share them.
static STAPLES: Mutex<Vec<Weak<Staple>>> = Mutex::new(Vec::new());

impl Staple {
    /// Returns the staple of the first certificate of a chain; `None` if there is nothing to fetch: stapling is off, or neither
    /// the certificate names an OCSP responder nor the settings a command.
    pub(crate) fn of(
        file: &str,
        chain: &[CertificateDer<'static>],
        settings: &StaplingSettings,
    ) -> Option<Arc<Self>> {
        settings.interval?;
        if settings.command.is_none() {
            Certificate::parse(chain.first()?)?.ocsp_responder()?;
        }
        let mut staples = STAPLES.lock().unwrap_or_else(PoisonError::into_inner);
        staples.retain(|staple| staple.strong_count() > 0);
        let is_same = |staple: &Arc<Self>| {
            *staple.file == *file && staple.chain == chain && staple.settings == *settings
        };
        if let Some(staple) = staples.iter().filter_map(Weak::upgrade).find(is_same) {
            return Some(staple);
        }
        let staple = Arc::new(Self {
            file: file.into(),
            chain: chain.to_vec(),
            subject: OcspSubject::of_chain(chain),
            settings: settings.clone(),
            version: AtomicU64::new(0),
            state: Mutex::default(),
        });
        staples.push(Arc::downgrade(&staple));
        Some(staple)
    }

    /// The path of the file with the certificate.
    pub fn file(&self) -> &str {
        &self.file
    }

    fn state(&self) -> MutexGuard<'_, StapleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: &mut StapleState, response: Option<OcspResponse>) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        state.response = response;
        let version = match state.response {
            Some(_) => LAST.fetch_add(1, Ordering::Relaxed) + 1,
            None => 0,
        };
        self.version.store(version, Ordering::Release);
    }

    /// Removes a response that is no longer valid. `now`: time since the Unix epoch.
    pub fn drop_stale(&self, now: Duration) {
        let mut state = self.state();
        let is_stale = |response: &OcspResponse| is_over(response.status.until, now);
        if state.response.as_ref().is_some_and(is_stale) {
            self.set(&mut state, None);
        }
    }

    /// Returns whether the caller has to fetch an OCSP response now; if so, [`Staple::finish`] must be called after the fetch.
    /// `now`: time since the Unix epoch.
    pub fn poll(&self, now: Duration) -> bool {
        let mut state = self.state();
        if state.is_fetching || state.is_given_up || now < state.next {
            return false;
        }
        state.is_fetching = true;
        state.begun = now;
        true
    }

    /// Has the next [`Staple::poll`] fetch a response if there is none, however earlier fetches have failed: a reload is the word of the
    /// administrator, who may have removed the cause.
    pub fn retry(&self) {
        let mut state = self.state();
        if state.response.is_none() {
            state.is_given_up = false;
            state.next = Duration::ZERO;
        }
    }

    /// Returns how to fetch an OCSP response for the certificate, whether or not a fetch is due.
    ///
    /// # Errors
    /// If the file has no certificate of the issuer: no OCSP response could be checked without it.
    pub fn fetch(&self) -> Result<StapleFetch, OcspError> {
        let subject = self.subject.as_ref().map_err(|error| *error)?;
        if let Some(command) = &self.settings.command {
            return Ok(StapleFetch::Run(h2o_opener::command_path(command)));
        }
        Ok(StapleFetch::Ask {
            url: subject.responder().unwrap_or_default().into(),
            request: subject.request(),
        })
    }

    /// Checks the octets of an OCSP response by [`OcspSubject::check`]. `now`: time since the Unix epoch.
    ///
    /// # Errors
    /// Why the OCSP response is refused.
    pub fn accept(&self, bytes: Vec<u8>, now: Duration) -> Result<OcspResponse, OcspError> {
        let subject = self.subject.as_ref().map_err(|error| *error)?;
        let status = subject.check(&bytes, now)?;
        Ok(OcspResponse { bytes, status })
    }

    /// Handles the end of a fetch. `fetched`: a response that [`Staple::accept`] has returned, or how the fetch has failed. `now`:
    /// time since the Unix epoch.
    pub fn finish(
        &self,
        fetched: Result<OcspResponse, FetchFailure>,
        now: Duration,
    ) -> StapleChange {
        let interval = self.settings.interval.unwrap_or_default();
        let mut state = self.state();
        state.is_fetching = false;
        state.next = state.begun.saturating_add(interval);
        match fetched {
            Ok(response) => {
                state.failures = 0;
                let half = half_of_rest(response.status.until, now);
                state.next = state.begun.saturating_add(interval.min(half));
                self.set(&mut state, Some(response));
                return StapleChange::Updated;
            }
            Err(FetchFailure::Permanent) => {
                state.is_given_up = true;
                self.set(&mut state, None);
                return StapleChange::Disabled;
            }
            Err(FetchFailure::Temporary) => {
                state.failures = state.failures.saturating_add(1);
                // There is another attempt before the response that is stapled now expires, but not every moment.
                if let Some(response) = &state.response {
                    let half = half_of_rest(response.status.until, now).max(SHORTEST_PAUSE);
                    state.next = state.begun.saturating_add(interval.min(half));
                }
            }
        }
        if state.failures > self.settings.max_failures {
            self.set(&mut state, None);
            return StapleChange::Removed;
        }
        StapleChange::Kept
    }
}

/// Shortest time from a failed attempt to fetch an OCSP response to the next one, unless `ocsp-update-interval` is shorter.
const SHORTEST_PAUSE: Duration = Duration::from_secs(60);

/// Half of the time until the OCSP response expires, but at least one second. The next response is fetched then, so that there is
/// time for another attempt.
fn half_of_rest(until: Option<i64>, now: Duration) -> Duration {
    let rest = until.map_or(i64::MAX, |until| until.saturating_sub(seconds(now)));
    Duration::from_secs(u64::try_from(rest / 2).unwrap_or(0).max(1))
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn is_over(until: Option<i64>, now: Duration) -> bool {
    until.is_some_and(|until| until <= seconds(now))
}

/// A certificate with its key, as clients get it: with the OCSP response that is stapled to it.
#[derive(Debug)]
pub(crate) struct PresentedKey {
    key: Arc<CertifiedKey>,
    staple: Option<Arc<Staple>>,
    /// The version number of an OCSP response, and the key with that response stapled to it.
    stapled: RwLock<(u64, Arc<CertifiedKey>)>,
}

impl PresentedKey {
    pub(crate) fn new(key: Arc<CertifiedKey>, staple: Option<Arc<Staple>>) -> Self {
        Self {
            stapled: RwLock::new((0, Arc::clone(&key))),
            key,
            staple,
        }
    }

    /// The key without an OCSP response, for the choice among several keys.
    pub(crate) fn key(&self) -> &CertifiedKey {
        &self.key
    }

    /// The key with the present OCSP response, if there is one.
    pub(crate) fn present(&self) -> Arc<CertifiedKey> {
        let Some(staple) = &self.staple else {
            return Arc::clone(&self.key);
        };
        let version = staple.version.load(Ordering::Acquire);
        if version == 0 {
            return Arc::clone(&self.key);
        }
        let stapled = self.stapled.read().unwrap_or_else(PoisonError::into_inner);
        if stapled.0 == version {
            return Arc::clone(&stapled.1);
        }
        drop(stapled);
        let state = staple.state();
        let Some(response) = &state.response else {
            return Arc::clone(&self.key);
        };
        let key = Arc::new(CertifiedKey {
            ocsp: Some(response.bytes.clone()),
            ..CertifiedKey::clone(&self.key)
        });
        let version = staple.version.load(Ordering::Acquire);
        drop(state);
        let mut stapled = self.stapled.write().unwrap_or_else(PoisonError::into_inner);
        *stapled = (version, Arc::clone(&key));
        key
    }
}

impl OcspResponse {
    /// Whether the response says that the certificate has been revoked.
    #[must_use]
    pub const fn is_revoked(&self) -> bool {
        self.status.is_revoked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_response_is_fetched_before_the_last_one_ends() {
        let now = Duration::from_secs(100);
        let day = Duration::from_secs(86_400);
        for (until, want) in [
            (None, day),
            (Some(1_000_000), day),
            (Some(300), Duration::from_secs(100)),
            (Some(101), Duration::from_secs(1)),
            (Some(0), Duration::from_secs(1)),
            (Some(i64::MIN), Duration::from_secs(1)),
        ] {
            assert_eq!(day.min(half_of_rest(until, now)), want, "{until:?}");
        }
    }

    /// A staple without a response.
    fn staple() -> Staple {
        Staple {
            file: "a".into(),
            chain: Vec::new(),
            subject: Err(OcspError::NoCertificate),
            settings: StaplingSettings::default(),
            version: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// A response that is valid until this time, in seconds since the Unix epoch.
    fn response(until: i64) -> OcspResponse {
        OcspResponse {
            bytes: vec![1],
            status: OcspStatus {
                until: Some(until),
                is_revoked: false,
            },
        }
    }

    #[test]
    fn a_response_is_dropped_at_its_end_even_if_nothing_is_fetched() {
        let staple = staple();
        let response = response(100);
        staple.set(&mut staple.state(), Some(response));
        assert!(staple.poll(Duration::ZERO));
        for (now, has_response) in [(99, true), (100, false)] {
            let now = Duration::from_secs(now);
            staple.drop_stale(now);
            assert!(
                !staple.poll(now),
                "no second fetch starts while the response is being fetched"
            );
            assert_eq!(staple.state().response.is_some(), has_response);
            assert_eq!(staple.version.load(Ordering::Acquire) != 0, has_response);
        }
    }

    #[test]
    fn a_reload_has_a_response_fetched_if_there_is_none() {
        let staple = staple();
        for failure in [FetchFailure::Temporary, FetchFailure::Permanent] {
            assert!(staple.poll(Duration::from_secs(100)));
            staple.finish(Err(failure), Duration::from_secs(100));
            assert!(!staple.poll(Duration::from_secs(101)));
            staple.retry();
        }
        assert!(staple.poll(Duration::from_secs(102)));
        // While a response is fetched or valid, nothing more is due.
        staple.retry();
        assert!(!staple.poll(Duration::from_secs(103)));
        staple.finish(Ok(response(10_000)), Duration::from_secs(103));
        staple.retry();
        assert!(!staple.poll(Duration::from_secs(104)));
    }

    #[test]
    fn after_a_failure_a_fetch_is_tried_again_while_the_response_is_valid() {
        let staple = staple();
        let response = response(8000);
        let at = Duration::from_secs;
        assert!(staple.poll(at(0)));
        assert_eq!(staple.finish(Ok(response), at(0)), StapleChange::Updated);
        // Half of the time is left after each attempt, but at least a minute passes.
        for time in [4000, 6000, 7000] {
            assert!(!staple.poll(at(time - 1)));
            assert!(staple.poll(at(time)));
            let change = staple.finish(Err(FetchFailure::Temporary), at(time));
            assert_eq!(change, StapleChange::Kept, "{time}");
        }
        staple.drop_stale(at(8000));
        assert!(staple.poll(at(8000)));
        staple.finish(Err(FetchFailure::Temporary), at(8000));
        assert!(!staple.poll(at(8000 + 14_399)), "the interval is 4 hours");
        assert!(staple.poll(at(8000 + 14_400)));
    }
}
