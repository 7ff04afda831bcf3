//! The class `H2O::Redis`, by which scripts send commands to a Redis server. The Ruby part of it is in `prelude.rb`.

mod connection;
mod reply;
mod subscription;

use std::rc::Rc;
use std::time::Duration;

use h2o_mruby::{Call, Leave, Value, Vm};
use tokio::task::AbortHandle;

use connection::{Failure, Full, Outcome, RedisConnection, Target};
use reply::Reply;
use subscription::Subscription;

use super::arrival::Arrival;
use super::machine::Host;

/// The Ruby object of a connection to Redis. The connection ends when Ruby collects the object.
struct RubyConnection {
    connection: Rc<RedisConnection>,
    task: AbortHandle,
}

impl Drop for RubyConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The Ruby object of a command that waits for its reply.
struct Pending(Arrival<Outcome>);

/// Defines the Ruby classes below `H2O::Redis`.
pub(super) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "H2O")?;
    let redis = vm.class(Some(module), "Redis", None)?;
    let connection = vm.object_class(Some(redis), "Connection")?;
    vm.define_singleton(connection, "open", open)?;
    vm.define(connection, "open?", |vm, call| {
        vm.with_object(call.receiver, |object: &RubyConnection| {
            Value::boolean(object.connection.is_open())
        })
    })?;
    vm.define(connection, "close", |vm, call| {
        vm.with_object(call.receiver, |object: &RubyConnection| {
            object.connection.close();
            Value::nil()
        })
    })?;
    vm.define(connection, "send", |vm, call| {
        let arrival = of_connection(vm, call, |connection, words| connection.send(words))?;
        made(vm, "Pending", Pending(arrival))
    })?;
    vm.define(connection, "subscribe", |vm, call| {
        let subscription = of_connection(vm, call, RedisConnection::subscribe)?;
        made(vm, "Subscription", subscription)
    })?;
    vm.define(connection, "unsubscribe", |vm, call| {
        of_connection(vm, call, |connection, words| connection.unsubscribe(words))?;
        Ok(Value::nil())
    })?;

    let pending = vm.object_class(Some(redis), "Pending")?;
    vm.define(pending, "__join", |vm, call| {
        let arrival = vm.with_object(call.receiver, |pending: &Pending| pending.0.clone())?;
        arrival.join(vm, outcome_to_ruby)
    })?;
    let subscription = vm.object_class(Some(redis), "Subscription")?;
    vm.define(subscription, "__join", |vm, call| {
        let subscription = vm.with_object(call.receiver, Rc::<Subscription>::clone)?;
        subscription.confirmed.join(vm, outcome_to_ruby)
    })?;
    vm.define(subscription, "__shift", |vm, call| {
        let subscription = vm.with_object(call.receiver, Rc::<Subscription>::clone)?;
        subscription.shift(vm)
    })
}

/// The method `open(host, port, connect_timeout, command_timeout)`, which starts to connect.
fn open(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [host, port, connect_timeout, command_timeout] = call.arguments.exactly()?;
    let host = vm.text_of(host)?;
    let host = String::from_utf8(host).map_err(|_| Leave::argument("invalid host"))?;
    let port = String::from_utf8(vm.text_of(port)?).ok();
    let port = port.and_then(|port| {
        if port.is_empty() {
            Some(0)
        } else {
            port.parse().ok()
        }
    });
    let target = Target {
        host,
        port: port.ok_or_else(|| Leave::argument("invalid port"))?,
        connect_timeout: seconds(connect_timeout)?,
        command_timeout: seconds(command_timeout)?,
    };
    let worker = Host::worker(vm)?;
    let connection = Rc::new(RedisConnection::default());
    let running = Rc::clone(&connection).run(Rc::clone(&worker), target, vm.reference());
    let object = RubyConnection {
        connection,
        task: worker.spawn(running).abort_handle(),
    };
    Ok(vm.object(call.receiver, object)?)
}

fn seconds(value: Value) -> Result<Duration, Leave> {
    let seconds = value
        .as_float()
        .ok_or_else(|| Leave::type_error("a timeout of H2O::Redis must be a number of seconds"))?;
    let longest = 86_400.0 * 365.0;
    Ok(Duration::from_secs_f64(seconds.clamp(0.0, longest)))
}

/// Sends a command by the function `send`. The words of the command are the argument of the Ruby method that `call` is
/// about.
fn of_connection<T>(
    vm: &Vm,
    call: &Call<'_>,
    send: impl FnOnce(&Rc<RedisConnection>, &[Vec<u8>]) -> Result<T, Full>,
) -> Result<T, Leave> {
    let [words] = call.arguments.exactly()?;
    let mut texts = Vec::new();
    for word in vm.elements(words).unwrap_or_default() {
        let text = vm.text_of(word)?;
        if text.contains(&0) {
            return Err(Leave::argument("string contains null byte"));
        }
        texts.push(text);
    }
    let connection = vm.with_object(call.receiver, |object: &RubyConnection| {
        Rc::clone(&object.connection)
    })?;
    send(&connection, &texts).map_err(|Full| {
        let text = "too much data waits to be sent to the Redis server".to_owned();
        Leave::New("H2O::Redis::ConnectionError", text)
    })
}

/// Creates an object of the Ruby class with this name below `H2O::Redis`.
fn made<T: 'static>(vm: &Vm, class: &str, object: T) -> Result<Value, Leave> {
    let redis = vm.constant(Some(vm.constant(None, "H2O")?), "Redis")?;
    Ok(vm.object(vm.constant(Some(redis), class)?, object)?)
}

fn outcome_to_ruby(vm: &Vm, outcome: Outcome) -> Result<Value, Value> {
    match outcome {
        Outcome::Reply(reply) => to_ruby(vm, &reply),
        Outcome::Failed(failure) => Ok(exception(vm, failure)),
    }
}

/// Converts a reply to a Ruby value. Errors become objects of the class `ReplyError`, also within Arrays.
fn to_ruby(vm: &Vm, reply: &Reply) -> Result<Value, Value> {
    match reply {
        Reply::Nil => Ok(Value::nil()),
        Reply::Integer(number) => vm.integer(*number),
        Reply::Text(text) => vm.string(text),
        Reply::Error(text) => {
            let redis = vm.constant(Some(vm.constant(None, "H2O")?), "Redis")?;
            let class = vm.constant(Some(redis), "ReplyError")?;
            vm.call(class, "new", &[vm.string(text)?])
        }
        Reply::Array(elements) => {
            let array = vm.array(&[])?;
            for element in elements {
                vm.push(array, to_ruby(vm, element)?)?;
            }
            Ok(array)
        }
    }
}

/// Creates the Ruby exception for a failure of a connection.
fn exception(vm: &Vm, failure: Failure) -> Value {
    let (class, text) = match failure {
        Failure::Connection => ("ConnectionError", "Connection Error"),
        Failure::ConnectTimeout => ("ConnectTimeoutError", "Connection Timeout"),
        Failure::CommandTimeout => ("CommandTimeoutError", "Command Timeout"),
        Failure::Protocol => ("ProtocolError", "Protocol Error"),
    };
    vm.exception(&format!("H2O::Redis::{class}"), text)
}
