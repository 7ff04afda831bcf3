//! Classes with their methods, constants, variables, objects that own Rust data, and exceptions.

#![expect(
    unsafe_code,
    reason = "the shim has the unsafe interface of C functions"
)]

use crate::border;
use crate::ffi::{self, Op};
use crate::function::{Function, Leave};
use crate::{Kind, Value};

use super::Vm;

impl Vm {
    /// The class with this name within `outer` (`None`: at top level). If it does not exist, it is made with this base
    /// class.
    ///
    /// # Errors
    /// Raises `TypeError` if something else has the name, or if the class has another base class.
    pub fn class(
        &self,
        outer: Option<Value>,
        name: &str,
        base: Option<Value>,
    ) -> Result<Value, Value> {
        self.run_named(Op::Class, name, |work| {
            work.a = outer.unwrap_or_else(Value::nil).0;
            work.b = base.unwrap_or_else(Value::nil).0;
        })
    }

    /// Like [`Vm::class`], for a class whose objects own data of Rust: see [`Vm::object`].
    ///
    /// # Errors
    /// The exceptions are those of [`Vm::class`].
    pub fn object_class(&self, outer: Option<Value>, name: &str) -> Result<Value, Value> {
        let class = self.class(outer, name, None)?;
        self.run(Op::DataClass, |work| work.a = class.0)
    }

    /// The module with this name within `outer` (`None`: at top level). If it does not exist, it is made.
    ///
    /// # Errors
    /// Raises `TypeError` if something else has the name.
    pub fn module(&self, outer: Option<Value>, name: &str) -> Result<Value, Value> {
        self.run_named(Op::Module, name, |work| {
            work.a = outer.unwrap_or_else(Value::nil).0
        })
    }

    /// The value of a constant of `outer` (`None`: at top level).
    ///
    /// # Errors
    /// Raises `NameError` if there is no such constant.
    pub fn constant(&self, outer: Option<Value>, name: &str) -> Result<Value, Value> {
        self.run_named(Op::ConstGet, name, |work| {
            work.a = outer.unwrap_or_else(Value::nil).0
        })
    }

    /// Sets a constant of `outer` (`None`: at top level).
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn set_constant(
        &self,
        outer: Option<Value>,
        name: &str,
        value: Value,
    ) -> Result<(), Value> {
        self.run_named(Op::ConstSet, name, |work| {
            (work.a, work.b) = (outer.unwrap_or_else(Value::nil).0, value.0);
        })
        .map(drop)
    }

    /// Defines an instance method of a class or module.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn define(&self, class: Value, name: &str, function: Function) -> Result<(), Value> {
        self.define_as(Op::Define, class, name, function)
    }

    /// Defines a method of one object, such as a class or module itself.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn define_singleton(
        &self,
        object: Value,
        name: &str,
        function: Function,
    ) -> Result<(), Value> {
        self.define_as(Op::DefineSingleton, object, name, function)
    }

    /// Defines the method `match?` of a class of regular expressions or texts. `function` is called in the cases that the shim does not
    /// handle itself.
    pub(crate) fn define_match(&self, class: Value, function: Function) -> Result<(), Value> {
        self.define_as(Op::DefineMatch, class, "match?", function)
    }

    /// Defines the method `compile` of the class of regular expressions. `function` is called if the regular expression is not kept.
    pub(crate) fn define_pattern(&self, class: Value, function: Function) -> Result<(), Value> {
        self.define_as(Op::DefinePattern, class, "compile", function)
    }

    fn define_as(&self, op: Op, class: Value, name: &str, function: Function) -> Result<(), Value> {
        self.expect_kind(class, Kind::Class)?;
        let number = {
            let mut functions = self.functions.borrow_mut();
            functions.push(function);
            functions.len() - 1
        };
        self.run_named(op, name, |work| (work.a, work.count) = (class.0, number))
            .map(drop)
    }

    /// The value of a global variable; `name` includes the `$`.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn global(&self, name: &str) -> Result<Value, Value> {
        self.run_named(Op::GlobalGet, name, |_| ())
    }

    /// Sets a global variable; `name` includes the `$`.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn set_global(&self, name: &str, value: Value) -> Result<(), Value> {
        self.run_named(Op::GlobalSet, name, |work| work.a = value.0)
            .map(drop)
    }

    /// The value of an instance variable, whose `name` includes the `@`; `nil` if it is not set.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn instance_variable(&self, object: Value, name: &str) -> Result<Value, Value> {
        self.run_named(Op::IvarGet, name, |work| work.a = object.0)
    }

    /// Sets an instance variable, whose `name` includes the `@`.
    ///
    /// # Errors
    /// Raises `FrozenError`, or `ArgumentError` for a value that cannot have instance variables.
    pub fn set_instance_variable(
        &self,
        object: Value,
        name: &str,
        value: Value,
    ) -> Result<(), Value> {
        self.run_named(Op::IvarSet, name, |work| {
            (work.a, work.b) = (object.0, value.0)
        })
        .map(drop)
    }

    /// Whether the value is an object of this class or of a subclass.
    #[must_use]
    pub fn is_a(&self, value: Value, class: Value) -> bool {
        // SAFETY: the function does not raise, and `class` is a class.
        class.kind() == Kind::Class && unsafe { ffi::shim_is_a(self.raw, value.0, class.0) } != 0
    }

    /// The name of the value's class.
    #[must_use]
    pub fn class_name(&self, value: Value) -> String {
        // SAFETY: every value has a class.
        let class = Value(unsafe { ffi::shim_class_of(self.raw, value.0) });
        let name = self.call(class, "to_s", &[]).ok();
        let name = name.and_then(|name| self.bytes(name)).unwrap_or_default();
        String::from_utf8_lossy(&name).into_owned()
    }

    /// What messages about a value of the wrong kind call it: `nil`, `true`, `false`, or the name of its class.
    #[must_use]
    pub fn name_in_messages(&self, value: Value) -> String {
        match value.kind() {
            Kind::Nil => "nil".to_owned(),
            Kind::True => "true".to_owned(),
            Kind::False => "false".to_owned(),
            _ => self.class_name(value),
        }
    }

    // ---- Ruby objects that own data of Rust ----

    /// A new object of a class from [`Vm::object_class`] that owns `object`. The garbage collector drops `object` at any
    /// time; its destructor must not enter the VM.
    ///
    /// # Errors
    /// `NoMemoryError`.
    pub fn object<T: 'static>(&self, class: Value, object: T) -> Result<Value, Value> {
        self.expect_kind(class, Kind::Class)?;
        let value = self.run(Op::Object, |work| work.a = class.0)?;
        // SAFETY: `value` is a new Ruby object that owns no Rust value yet.
        unsafe { ffi::shim_set_object(value.0, border::own(object).cast()) };
        Ok(value)
    }

    /// Calls `read` with the Rust object that `value` owns. `read` may run Ruby only if something in Ruby refers to `value`
    /// meanwhile.
    ///
    /// # Errors
    /// Raises `TypeError` if `value` does not own an object of this type.
    pub fn with_object<T: 'static, R>(
        &self,
        value: Value,
        read: impl FnOnce(&T) -> R,
    ) -> Result<R, Leave> {
        self.try_object(value, read)
            .ok_or_else(|| Leave::type_error(format!("uninitialized {}", self.class_name(value))))
    }

    /// Like [`Vm::with_object`], but `None` if `value` does not own an object of this type.
    pub fn try_object<T: 'static, R>(&self, value: Value, read: impl FnOnce(&T) -> R) -> Option<R> {
        // SAFETY: the shim returns only pointers that `Vm::object` has passed to it.
        unsafe { border::owned(ffi::shim_object(value.0).cast()) }.map(read)
    }

    // ---- making exceptions ----

    /// A new exception of the class with this name, such as `A::B` for the class `B` within `A`.
    #[must_use]
    pub fn exception(&self, class: &str, message: &str) -> Value {
        let found = class
            .split("::")
            .try_fold(None, |outer, name| self.constant(outer, name).map(Some));
        let made = found.and_then(|class| {
            self.run_named(Op::Exception, message, |work| {
                work.a = class.unwrap_or_else(Value::nil).0;
            })
        });
        // If there is not enough memory for the exception, the `NoMemoryError` is returned instead.
        made.unwrap_or_else(|exception| exception)
    }
}
