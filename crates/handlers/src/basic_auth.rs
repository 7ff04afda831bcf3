//! The directive `auth.basic`: checks user names and passwords (RFC 7617) by a file that Apache's `htpasswd` writes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels};
use h2o_exchange::{
    BodyUse, Exchange, Handler, Outcome, PathCheck, PathChecks, PathNeed, Response, Scope,
};
use h2o_http::{Known, StatusCode};
use h2o_log::report;
use h2o_password::PasswordHash;
use tokio::task::spawn_blocking;

use crate::turns::Turns;
use crate::watched_file::{Loaded, WatchedFile};

const ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "file",
        Kinds::SCALAR,
        "FILE",
        "A line `NAME:HASH` for each user. Changes take effect within a second, without a reload.",
    ),
    Attribute::optional(
        "realm",
        Kinds::SCALAR,
        "TEXT",
        "`restricted`",
        "What browsers may show when they ask for the password.",
    ),
];

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    levels: Levels::ALL_BUT_EXTENSION,
    kinds: Kinds::SCALAR
        .or(Kinds::MAPPING)
        .with_attributes(&ATTRIBUTES),
    ..Directive::setting(
        "auth.basic",
        "FILE, `OFF`, or a mapping",
        "OFF",
        "Serves only clients that send the name and password of a user, and answers others with 401. Hashes are bcrypt (`htpasswd \
         -B`), `$apr1$`, or `{SHA}` with a warning. The name of the user is `REMOTE_USER` for logs, scripts and FastCGI. `OFF` \
         opens a path that an outer level closes.",
        |scope, command| {
            scope.edit::<BasicAuth>().0 = read(file_and_realm(command)?, command)?;
            if let Some(realm) = &scope.settings.get::<BasicAuth>().0 {
                let path = realm.users.path().to_path_buf();
                let check = PathCheck::new(command, command.node, &path, PathNeed::OwnFile);
                scope.shared.edit::<PathChecks>().0.push(check);
            }
            Ok(())
        },
    )
}];

/// The setting of `auth.basic` at a configuration level; `None` if no password is needed.
#[derive(Clone, Default)]
struct BasicAuth(Option<Arc<Realm>>);

/// The password file and the realm that the argument of `auth.basic` gives; `None` for `OFF`.
fn file_and_realm<'a>(command: &Command<'a>) -> Result<Option<(&'a str, &'a str)>, Error> {
    const REALM: &str = "restricted";
    let (file, realm) = match command.node.as_str() {
        Some("OFF") => return Ok(None),
        Some(file) => (file, REALM),
        None => {
            let attributes = command.node.attributes(&ATTRIBUTES)?;
            let realm = match attributes.get("realm") {
                Some(node) => {
                    let realm = node.scalar()?;
                    if !realm
                        .bytes()
                        .all(|byte| byte == b' ' || byte.is_ascii_graphic())
                    {
                        return Err(node.error("the realm must be printable ASCII"));
                    }
                    realm
                }
                None => REALM,
            };
            (attributes.require("file")?.scalar()?, realm)
        }
    };
    if file.is_empty() || file.contains('\0') {
        return Err(command.error("the name of the file is empty or has a NUL character"));
    }
    Ok(Some((file, realm)))
}

fn read(
    argument: Option<(&str, &str)>,
    command: &Command<'_>,
) -> Result<Option<Arc<Realm>>, Error> {
    let Some((file, realm)) = argument else {
        return Ok(None);
    };
    let mut key = [0; 32];
    rand::fill(&mut key).map_err(|_| command.error("the system gives no random numbers"))?;
    let realm = realm.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(Some(Arc::new(Realm {
        challenge: format!("Basic realm=\"{realm}\", charset=\"UTF-8\"").into(),
        users: WatchedFile::new(Path::new(file), Users::parse),
        key: hmac::Key::new(hmac::HMAC_SHA256, &key),
    })))
}

/// The guard of a path, a handler that runs before the path's own handlers: it asks for a password. `None` if the path
/// needs no password.
pub(crate) fn guard(scope: &Scope) -> Option<Box<dyn Handler>> {
    let realm = scope.settings.peek::<BasicAuth>()?.0.clone()?;
    Some(Box::new(AuthGuard(realm)))
}

struct Realm {
    challenge: Box<str>,
    users: WatchedFile<Users>,
    /// Key of the HMAC by which verified passwords are remembered, so that memory contains neither the passwords nor
    /// unkeyed hashes of them.
    key: hmac::Key,
}

/// How long a verified password is accepted without computing its slow hash again.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Most verified passwords that are remembered per password file.
const MOST_REMEMBERED: usize = 4096;

/// The content of a password file.
pub(crate) struct Users {
    /// The password hashes by user name. The lines of a user are tried in order. `None` stands for a line whose hash is
    /// of an unsupported kind.
    hashes: HashMap<Box<[u8]>, Vec<Option<PasswordHash>>>,
    /// The hash checked for unknown user names, so that the response time does not reveal which names exist.
    decoy: Option<PasswordHash>,
    /// HMACs of user names with passwords that were verified, and the time at which each was verified. Discarded when
    /// the password file changes.
    right: Mutex<HashMap<[u8; 32], Instant>>,
}

impl Users {
    /// Reads the lines `NAME:HASH` of a password file. Comments and lines without a colon are skipped.
    fn parse(content: Vec<u8>) -> Self {
        let mut hashes: HashMap<Box<[u8]>, Vec<_>> = HashMap::new();
        let mut decoy = None;
        for line in content.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            if line.starts_with(b"#") {
                continue;
            }
            let (name, hash) = (&line[..colon], &line[colon + 1..]);
            // Further fields of a line, after another colon, are comments.
            let hash = hash.split(|&byte| byte == b':').next().unwrap_or_default();
            let hash = std::str::from_utf8(hash).ok().and_then(PasswordHash::parse);
            if decoy.is_none() {
                decoy.clone_from(&hash);
            }
            hashes.entry(name.into()).or_default().push(hash);
        }
        Self {
            hashes,
            decoy,
            right: Mutex::default(),
        }
    }

    /// Whether the file has a hash of a weak kind, whose password can be found quickly by guessing.
    fn has_weak(&self) -> bool {
        let mut all = self.hashes.values().flatten().flatten();
        all.any(PasswordHash::is_weak)
    }

    /// Checks a user name and password. This takes long on purpose, so it runs on the thread pool.
    fn judge(&self, credentials: &Credentials, digest: [u8; 32], now: Instant) -> Verdict {
        let verdict = self.check(&credentials.name, &credentials.password);
        if verdict == Verdict::Right {
            self.remember(digest, now);
        }
        verdict
    }

    fn check(&self, name: &[u8], password: &[u8]) -> Verdict {
        let Some(hashes) = self.hashes.get(name) else {
            if let Some(decoy) = &self.decoy {
                let _ = decoy.fits(password);
            }
            return Verdict::Wrong;
        };
        if hashes.iter().flatten().any(|hash| hash.fits(password)) {
            Verdict::Right
        } else if hashes.iter().any(Option::is_none) {
            Verdict::UnknownHash
        } else {
            Verdict::Wrong
        }
    }

    fn remembers(&self, digest: &[u8; 32], now: Instant) -> bool {
        let right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        right
            .get(digest)
            .is_some_and(|at| now.saturating_duration_since(*at) < REMEMBERED)
    }

    fn remember(&self, digest: [u8; 32], now: Instant) {
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        if right.len() >= MOST_REMEMBERED {
            right.retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED);
        }
        if right.len() >= MOST_REMEMBERED {
            right.clear();
        }
        right.insert(digest, now);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Right,
    Wrong,
    /// The password was not verified: a line of this user has a hash of an unsupported kind.
    UnknownHash,
}

/// The user name and the password that a request has.
struct Credentials {
    name: Vec<u8>,
    password: Vec<u8>,
}

impl Credentials {
    /// Reads the value of `authorization` (RFC 7617 §2); `None` if it is malformed or of another scheme.
    fn parse(value: &[u8]) -> Option<Self> {
        let (scheme, rest) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let mut name = STANDARD.decode(rest.trim_ascii()).ok()?;
        let colon = name.iter().position(|&byte| byte == b':')?;
        let password = name.split_off(colon + 1);
        name.pop();
        (!name.iter().any(u8::is_ascii_control)).then_some(Self { name, password })
    }

    fn digest(&self, key: &hmac::Key) -> [u8; 32] {
        let mut context = hmac::Context::with_key(key);
        context.update(&self.name);
        context.update(b":");
        context.update(&self.password);
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

struct AuthGuard(Arc<Realm>);

impl Handler for AuthGuard {
    fn access_rules(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.0).addr())
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let value = exchange.request.headers.get(Known::Authorization);
        let Some(credentials) = value.and_then(Credentials::parse) else {
            return self.0.ask(exchange);
        };
        let digest = credentials.digest(&self.0.key);
        let now = exchange.worker.clock.now();
        if let Some(Ok(users)) = self.0.users.fresh(now)
            && users.remembers(&digest, now)
        {
            return admit(exchange, &credentials);
        }
        let Some(reference) = exchange.reference() else {
            return self.0.ask(exchange);
        };
        let realm = Arc::clone(&self.0);
        let turns = exchange.worker.local::<Turns>();
        Outcome::Later(Box::pin(async move {
            let looking = Arc::clone(&realm);
            // Checks of passwords that were not verified before run one after the other, so that a client who guesses
            // passwords does not delay users whose password is remembered.
            let judged = match spawn_blocking(move || looking.look(now)).await {
                Ok(Ok(users)) if users.remembers(&digest, now) => {
                    Some((credentials, Ok(Verdict::Right)))
                }
                Ok(Ok(users)) => {
                    let work = move || {
                        let verdict = users.judge(&credentials, digest, now);
                        (credentials, Ok(verdict))
                    };
                    turns.take(work).await
                }
                Ok(Err(error)) => Some((credentials, Err(error))),
                Err(_) => None,
            };
            let exchange = &mut *reference.borrow_mut();
            let failure = match judged {
                Some((credentials, Ok(Verdict::Right))) => return admit(exchange, &credentials),
                Some((_, Ok(Verdict::Wrong))) => return realm.ask(exchange),
                Some((_, Ok(Verdict::UnknownHash))) => {
                    "crypt-style password hash is not supported".to_owned()
                }
                Some((_, Err(error))) => error.to_string(),
                None => "the thread that checks passwords has panicked".to_owned(),
            };
            let path = realm.users.path().display();
            let text = format!("failed to validate password using file:{path}:{failure}");
            exchange.note_error("auth.basic", &text);
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            exchange.worker.counters.count_status(status);
            let reason = "Internal Server Error";
            Outcome::Done(Response::error(status, reason, reason))
        }))
    }
}

impl Realm {
    /// The users in the password file as it is now. Logs a warning if its content is new and has weak hashes.
    fn look(&self, now: Instant) -> Loaded<Users> {
        let before = self.users.latest();
        let users = self.users.look(now)?;
        let is_new = !matches!(before, Some(Ok(before)) if Arc::ptr_eq(&before, &users));
        if is_new && users.has_weak() {
            report!(
                warning,
                "auth.basic: {} has {{SHA}} hashes, which are guessed quickly: make new ones by `htpasswd -B`",
                self.users.path().display()
            );
        }
        Ok(users)
    }

    fn ask(&self, exchange: &mut Exchange) -> Outcome {
        let status = StatusCode::UNAUTHORIZED;
        exchange.worker.counters.count_status(status);
        let mut response = Response::error(status, "Unauthorized", "Authorization Required");
        response
            .headers
            .push(Known::WwwAuthenticate, self.challenge.as_bytes());
        Outcome::Done(response)
    }
}

/// Lets the request through, with the user's name in the variable `REMOTE_USER`.
fn admit(exchange: &mut Exchange, credentials: &Credentials) -> Outcome {
    let name = Arc::from(&*credentials.name);
    exchange.set_env(&Arc::from("REMOTE_USER"), &name);
    Outcome::Declined
}

/// Entry points for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::{Credentials, Users};

    /// Reads `content` as a password file, and each of its lines as the value of an `authorization` field.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn htpasswd(content: &[u8]) {
        let users = Users::parse(content.to_vec());
        let lines = content.split(|&byte| byte == b'\n');
        assert!(users.hashes.len() <= lines.clone().count());
        assert!(!users.hashes.keys().any(|name| name.contains(&b'\n')));
        for line in lines {
            if let Some(credentials) = Credentials::parse(line) {
                assert!(!credentials.name.contains(&b':'));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_as_the_rfc_writes_them() {
        let read = |value: &str| {
            let found = Credentials::parse(value.as_bytes())?;
            let text = |bytes| String::from_utf8(bytes).unwrap();
            Some((text(found.name), text(found.password)))
        };
        let some = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        for (value, want) in [
            (
                "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
                some("Aladdin", "open sesame"),
            ),
            (
                "basic  QWxhZGRpbjpvcGVuIHNlc2FtZQ== ",
                some("Aladdin", "open sesame"),
            ),
            ("Basic YTpiOmM=", some("a", "b:c")),
            ("Basic Og==", some("", "")),
            ("Basic YQ==", None),
            ("Basic", None),
            ("Basic ", None),
            ("Basic ?", None),
            ("Bearer YTpi", None),
            ("Basic YQo6Yg==", None),
        ] {
            assert_eq!(read(value), want, "{value}");
        }
    }

    #[test]
    fn lines_of_a_user_are_tried_in_order() {
        let users = Users::parse(
            b"# ann:{SHA}\nann:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=:a comment\r\nann:crypt\nno colon\nbob:crypt".to_vec(),
        );
        assert!(users.has_weak());
        for (name, password, want) in [
            ("ann", "123456", Verdict::Right),
            ("ann", "x", Verdict::UnknownHash),
            ("bob", "x", Verdict::UnknownHash),
            ("# ann", "123456", Verdict::Wrong),
            ("no colon", "", Verdict::Wrong),
            ("", "", Verdict::Wrong),
        ] {
            let got = users.check(name.as_bytes(), password.as_bytes());
            assert_eq!(got, want, "{name} {password}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = h2o_exchange::Clock::default().now();
        let users = Users::parse(Vec::new());
        for number in 0..10_000_u32 {
            let mut digest = [0; 32];
            digest[..4].copy_from_slice(&number.to_be_bytes());
            users.remember(digest, now);
            assert!(users.remembers(&digest, now));
        }
        assert!(users.right.lock().unwrap().len() <= MOST_REMEMBERED);
    }
}
