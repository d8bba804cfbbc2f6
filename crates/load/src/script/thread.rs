//! The thread object of scripts: `thread.addr`, `thread:get`, `thread:set`, `thread:stop`, and the
//! addresses that `wrk.lookup` returns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlua::{FromLua, Lua, MetaMethod, UserData, UserDataFields, UserDataMethods, Value, WeakLua};
use parking_lot::Mutex;

/// Maximum depth of a table that is copied to another state. The limit ends the copy of a table
/// that contains itself.
const MAX_DEPTH: usize = 64;

/// An address, as `wrk.lookup` returns it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address(pub(super) SocketAddr);

impl UserData for Address {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| Ok(this.0.to_string()));
    }
}

impl FromLua for Address {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<Self> {
        match &value {
            Value::UserData(data) => data.borrow::<Self>().map(|address| *address),
            other => Err(mlua::Error::runtime(format!(
                "an address from wrk.lookup() is needed, not a {}",
                other.type_name()
            ))),
        }
    }
}

/// State shared by a thread's script and the generator.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stopped: AtomicBool,
    /// The first address of the host, which is the initial `thread.addr`.
    first: SocketAddr,
    chosen: Mutex<Option<SocketAddr>>,
}

impl Shared {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { stopped: AtomicBool::new(false), first: address, chosen: Mutex::new(None) }
    }

    pub(super) fn chosen_address(&self) -> Option<SocketAddr> {
        *self.chosen.lock()
    }
}

/// A thread, as passed to `setup` and held by `wrk.thread`.
pub(super) struct ScriptThread {
    /// The thread's own Lua state. The reference is weak, because a strong reference in
    /// `wrk.thread` would keep the state alive.
    pub(super) state: WeakLua,
    pub(super) shared: Arc<Shared>,
}

impl ScriptThread {
    fn state(&self) -> mlua::Result<Lua> {
        self.state.try_upgrade().ok_or_else(|| mlua::Error::runtime("the thread has ended"))
    }
}

impl UserData for ScriptThread {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("addr", |_, this| {
            Ok(Address(this.shared.chosen_address().unwrap_or(this.shared.first)))
        });
        fields.add_field_method_set("addr", |_, this, address: Address| {
            let mut held = this.shared.chosen.lock();
            *held = Some(address.0);
            Ok(())
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("get", |lua, this, name: Value| {
            let value: Value = this.state()?.globals().raw_get(copy(&name, &this.state()?, 0)?)?;
            copy(&value, lua, 0)
        });
        methods.add_method("set", |_, this, (name, value): (Value, Value)| {
            let state = this.state()?;
            state.globals().raw_set(copy(&name, &state, 0)?, copy(&value, &state, 0)?)
        });
        methods.add_method("stop", |_, this, ()| {
            this.shared.stopped.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}

/// Copies a value, with its contents, to another state.
fn copy(value: &Value, to: &Lua, depth: usize) -> mlua::Result<Value> {
    Ok(match value {
        Value::Nil => Value::Nil,
        Value::Boolean(flag) => Value::Boolean(*flag),
        Value::Integer(number) => Value::Integer(*number),
        Value::Number(number) => Value::Number(*number),
        Value::String(text) => Value::String(to.create_string(text.as_bytes())?),
        Value::Table(_) if depth == MAX_DEPTH => {
            let message = format!("a table {MAX_DEPTH} deep can't go to another thread");
            return Err(mlua::Error::runtime(message));
        }
        Value::Table(table) => {
            let copied = to.create_table()?;
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                copied.raw_set(copy(&key, to, depth + 1)?, copy(&value, to, depth + 1)?)?;
            }
            Value::Table(copied)
        }
        other => {
            let message = format!(
                "a {} can't go to another thread: nil, booleans, numbers, strings and tables of \
                 them can",
                other.type_name()
            );
            return Err(mlua::Error::runtime(message));
        }
    })
}
