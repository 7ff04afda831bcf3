//! The directive `log-rotation`, which rotates access logs and the error log.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels, Node, Pass, Unit};
use h2o_exchange::{BackgroundService, BackgroundServices, Resource, Resources, Scope};
use h2o_log::{Rotation, Rotator, Target, reason};

const ATTRIBUTES: [Attribute; 4] = [
    Attribute::optional(
        "size",
        Kinds::SCALAR,
        "BYTES",
        "no limit",
        "The size in bytes at which a log file is rotated.",
    ),
    Attribute::optional(
        "age",
        Kinds::SCALAR,
        "SECONDS",
        "no limit",
        "The time since the creation of a log file after which it is rotated, unless it is empty.",
    ),
    Attribute::optional(
        "keep",
        Kinds::SCALAR,
        "NUMBER",
        "7",
        "How many rotated files of a log are kept; older ones are removed.",
    ),
    Attribute::optional(
        "compress",
        Kinds::SCALAR,
        "ON|OFF",
        "ON",
        "Whether rotated files are compressed by gzip, except the youngest one.",
    ),
];

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "log-rotation",
    levels: Levels::GLOBAL_ONLY,
    pass: Pass::Settings,
    kinds: Kinds::SCALAR
        .or(Kinds::MAPPING)
        .with_attributes(&ATTRIBUTES),
    value: "`OFF`, or a mapping with `size` or `age`",
    default: "OFF",
    help: "Rotates the files of `access-log` and `error-log`: a file that is large or old enough is renamed to `NAME.TIME`, an \
           empty file takes its place, and older rotated files are compressed and removed. Commands and sockets are not \
           affected. See [the page on logs](logs.md#rotation).",
    apply: |scope, command| {
        scope.edit::<LogRotation>().0 = read(command)?;
        Ok(())
    },
}];

/// The setting of `log-rotation`; `None` if logs are not rotated.
#[derive(Clone, Copy, Default)]
struct LogRotation(Option<Rotation>);

fn read(command: &Command<'_>) -> Result<Option<Rotation>, Error> {
    if let Some(word) = command.node.as_str() {
        if word == "OFF" {
            return Ok(None);
        }
        let hint = "write `log-rotation: { age: 86400 }` for one file a day";
        return Err(command
            .error("argument must be `OFF` or a mapping")
            .with_hint(hint));
    }
    let attributes = command.node.attributes(&ATTRIBUTES)?;
    let number = |name: &str, unit| {
        let read = |node: &Node| node.quantity(unit, "%llu", 1..=u64::MAX);
        attributes.get(name).map(read).transpose()
    };
    let size = number("size", Unit::Bytes)?;
    let age = number("age", Unit::Seconds)?;
    if size.is_none() && age.is_none() {
        return Err(command
            .error("`size` or `age` is missing: one of them has to say when logs are rotated"));
    }
    let keep = attributes
        .get("keep")
        .map(|node| node.integer("%u", 0..=100_000));
    let compresses = attributes.get("compress").map(Node::on_off);
    Ok(Some(Rotation {
        size,
        age: age.map(Duration::from_secs),
        keep: keep.transpose()?.unwrap_or(7),
        compresses: compresses.transpose()?.unwrap_or(true),
    }))
}

/// Adds the service that rotates the logs of the configuration. Called when the configuration was read. `error_log`:
/// the argument of `error-log`.
pub fn rotate_logs(scope: &mut Scope, error_log: Option<&str>) {
    let Some(rotation) = scope.settings.get::<LogRotation>().0 else {
        return;
    };
    let access_logs = super::target::all(scope);
    let error_log = error_log.map(Into::into);
    let service = Arc::new(RotationService {
        rotation,
        access_logs,
        error_log,
    });
    let resources: &mut Resources = scope.shared.edit();
    // The service opens nothing, so there is no failure that would need a place.
    resources.add(Error::new(""), Arc::<RotationService>::clone(&service) as _);
    let services: &mut BackgroundServices = scope.shared.edit();
    services.0.push(service);
}

struct RotationService {
    rotation: Rotation,
    access_logs: Vec<Arc<Target>>,
    error_log: Option<Box<str>>,
}

/// When this service is opened, it announces the names of the log files to the keeper, a process with the rights of the
/// starting user, which renames the files later.
impl Resource for RotationService {
    fn open(&self) -> Result<(), String> {
        self.announce();
        Ok(())
    }

    fn announce(&self) {
        let access_logs = self.access_logs.iter().map(|log| log.path());
        for path in access_logs.chain(self.error_log.as_deref()) {
            h2o_log::will_rotate(path, self.rotation);
        }
    }

    fn reopen(&self) -> Result<(), String> {
        Ok(())
    }
}

impl BackgroundService for RotationService {
    fn begin(&self) -> Result<Box<dyn Any + Send>, String> {
        let access_logs = self.access_logs.iter().map(Arc::clone);
        let error_log = h2o_log::error_log().map(Arc::clone);
        let targets = access_logs.chain(error_log).collect();
        match Rotator::start(self.rotation, targets) {
            Ok(rotator) => Ok(Box::new(rotator)),
            Err(error) => Err(format!(
                "failed to start a thread for the rotation of logs: {}",
                reason(&error)
            )),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
