//! Where ranks meet: keys, values, and waiting for them.
//!
//! A [`Store`] is what the ranks of a job share before they have windows: addresses, keys, counters. It is small and
//! slow beside a window, and it works before anything else does. A blocking call needs no runtime in its caller, and a
//! future of an `_async` form works under any executor: one control thread per process, started by the first call,
//! does the work.
//!
//! ```
//! use std::time::Duration;
//! use transom::store::Store;
//!
//! let store = Store::in_process();
//! store.set("rank/0/address", b"10.0.0.1:7")?;
//! assert_eq!(store.get("rank/0/address", Duration::from_secs(5))?, b"10.0.0.1:7");
//! assert_eq!(store.add("arrived", 1)?, 1);
//! # Ok::<(), transom::store::Error>(())
//! ```
//!
//! Keys are 1 to 256 bytes of printable ASCII without spaces, do not start with '/' and do not contain '..'. Values have
//! at most 1 MiB. A server or a process holds at most 1,000,000 keys.

mod auth;
mod backend;
mod channel;
mod client;
mod control;
mod deadline;
mod doorstep;
mod file;
mod key;
mod rules;
mod scheme;
mod server;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use transom_registry::Outcome;
pub use transom_registry::{Error, Result};

pub use backend::{Answer, Backend, Call};
pub use deadline::Deadline;
pub use server::StoreServer;
pub use transom_transport::Secret;
#[doc(hidden)]
pub use wire::fuzz_store_request;

/// The timeout of calls that are not given one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after its deadline a backend may still tell what was missing.
const GRACE: Duration = Duration::from_millis(200);

/// Keys and values that the ranks of a job share. Clones are the same store.
///
/// Calls without a timeout use the store's own, 30 s or what [`Store::within`] says. A call that gets no answer at all
/// (its server is stopped) returns at most 0.4 s after its deadline.
///
/// # Cancel safety
/// The future of each `_async` form does nothing before its first poll. Dropping it afterwards ends a wait and leaves
/// nothing behind; a change (`set`, `add`, `compare_set`, `delete`) may then be made or not.
#[derive(Clone, Debug)]
pub struct Store {
    backend: Arc<dyn Backend>,
    /// The backend again, where it is a table of this process: its async calls stay on their thread.
    table: Option<Arc<table::Table>>,
    prefix: Arc<str>,
    timeout: Duration,
    process: u32,
}

impl Store {
    /// The store that this backend keeps.
    #[must_use]
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self::over(Arc::new(backend))
    }

    fn over(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            table: None,
            prefix: "".into(),
            timeout: DEFAULT_TIMEOUT,
            process: std::process::id(),
        }
    }

    /// A new store inside this process, for its clones only. Its async calls run where they are awaited, so that ranks
    /// that are tasks of one thread meet there in an order that repeats.
    #[must_use]
    pub fn in_process() -> Self {
        let table = Arc::new(table::Table::new());
        Self { table: Some(table.clone()), ..Self::over(table) }
    }

    /// A store in a directory on a file system that all ranks share, with working `flock` and rename.
    ///
    /// The directory is made with mode 0700 if it is not there; it should be a new one for each job, since keys stay in
    /// it. Waiting is polling, every 1 to 50 ms.
    ///
    /// # Errors
    /// [`Error::Config`] when others may write to the directory; [`Error::Io`].
    pub fn file(directory: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::new(file::Files::open(directory.as_ref())?))
    }

    /// Connects to a [`StoreServer`]. `address` is `host:port`: a name, an IPv4 address, or an IPv6 address in brackets.
    ///
    /// Tries again until the timeout while nobody listens there, so that ranks may start before their server. A
    /// connection that is lost later is not made again: every call then fails with
    /// [`Cause::ConnectionLost`](transom_registry::Cause::ConnectionLost).
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that cannot be one, [`Error::Auth`] at once when the server has another secret,
    /// [`Error::Expired`] with the last reason when the timeout has passed.
    pub fn connect(address: &str, secret: &Secret, timeout: Duration) -> Result<Self> {
        let deadline = Deadline::after(timeout);
        let waiter = control::run(CONNECT, client::connect(address.to_owned(), secret.clone(), deadline))?;
        match waiter.wait_until(deadline.at() + 2 * GRACE) {
            Some(client) => Ok(Self::new(client?)),
            None => Err(deadline.expired(CONNECT, format!("{address} does not answer"), None)),
        }
    }

    /// [`Store::connect`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn connect_async(
        address: &str,
        secret: &Secret,
        timeout: Duration,
    ) -> impl Future<Output = Result<Self>> + Send + use<> {
        let (address, secret) = (address.to_owned(), secret.clone());
        async move {
            let client = client::connect(address, secret, Deadline::after(timeout));
            Ok(Self::new(control::run(CONNECT, client)?.await?))
        }
    }

    /// Opens the store at a URL: `tcp://host:port`, `file:///directory`, `inproc://name`, or a scheme that was registered
    /// with [`Store::register_scheme`]. Two opens of one `inproc` name in a process are one store while either lives.
    ///
    /// # Errors
    /// [`Error::Config`] with the known schemes when this one is not known; those of the way that it names.
    pub fn open(url: &str, secret: &Secret, timeout: Duration) -> Result<Self> {
        scheme::open(url, secret, timeout)
    }

    /// Lets [`Store::open`] open URLs that start with `name://` with this function, in this process. It is given the whole
    /// URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the name is not one of lower-case letters, digits, '+', '-' and '.', or is taken.
    pub fn register_scheme(
        name: &str,
        open: impl Fn(&str, &Secret, Duration) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<()> {
        scheme::register(name, Arc::new(open))
    }

    /// The part of this store whose keys start with `name` and a slash, as a store.
    #[must_use]
    pub fn prefix(&self, name: &str) -> Self {
        Self { prefix: format!("{}{name}/", self.prefix).into(), ..self.clone() }
    }

    /// The same store with another timeout for the calls that are not given one.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad key or a value over 1 MiB, [`Error::Limit`] when the server has 1,000,000 keys,
    /// [`Error::Expired`], [`Error::Failed`].
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        done(self.block(self.set_call(key, value), self.timeout)?)
    }

    /// [`Store::set`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn set_async(&self, key: &str, value: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        let answer = self.begin(self.set_call(key, value), self.timeout);
        async move { done(answer.await?) }
    }

    /// Waits until a key is set and returns its value.
    ///
    /// # Errors
    /// [`Error::Expired`] with the key when the timeout has passed, [`Error::Invalid`] for a bad key, [`Error::Failed`].
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        one(self.block(self.get_call(&[key]), timeout)?)
    }

    /// [`Store::get`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn get_async(
        &self,
        key: &str,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        let answer = self.begin(self.get_call(&[key]), timeout);
        async move { one(answer.await?) }
    }

    /// Waits until all of these keys are set and returns their values in the same order, in one round trip.
    ///
    /// A key that is set and deleted again while the call waits for another one may be waited for again.
    ///
    /// # Errors
    /// [`Error::Expired`] with the missing keys when the timeout has passed; else as [`Store::get`].
    pub fn get_many(&self, keys: &[impl AsRef<str>], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        many(self.block(self.get_call(keys), timeout)?, keys.len())
    }

    /// [`Store::get_many`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn get_many_async<K: AsRef<str>>(
        &self,
        keys: &[K],
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Vec<u8>>>> + Send + use<K> {
        let count = keys.len();
        let answer = self.begin(self.get_call(keys), timeout);
        async move { if count == 0 { Ok(Vec::new()) } else { many(answer.await?, count) } }
    }

    /// The value of a key, or `None` when it is not set.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad key, [`Error::Expired`], [`Error::Failed`].
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        value(self.block(self.key_call("store try_get", key, |key| Call::TryGet { key }), self.timeout)?)
    }

    /// [`Store::try_get`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn try_get_async(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send + use<> {
        let call = self.key_call("store try_get", key, |key| Call::TryGet { key });
        let answer = self.begin(call, self.timeout);
        async move { value(answer.await?) }
    }

    /// Adds to the number that a key has as decimal text, zero when it is not set, and returns the sum.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the value is not a number or the sum is outside 64 bits; else as [`Store::set`].
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        number(self.block(self.key_call("store add", key, |key| Call::Add { key, delta }), self.timeout)?)
    }

    /// [`Store::add`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn add_async(&self, key: &str, delta: i64) -> impl Future<Output = Result<i64>> + Send + use<> {
        let call = self.key_call("store add", key, |key| Call::Add { key, delta });
        let answer = self.begin(call, self.timeout);
        async move { number(answer.await?) }
    }

    /// Sets a key if it has the expected value (`None`: if it is not set), and returns the value that is there after it:
    /// `new`, or the one that was not expected. Both together have at most 1 MiB.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a value is expected and the key is not set; else as [`Store::set`].
    pub fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>> {
        there(self.block(self.compare_set_call(key, expected, new), self.timeout)?)
    }

    /// [`Store::compare_set`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn compare_set_async(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        let answer = self.begin(self.compare_set_call(key, expected, new), self.timeout);
        async move { there(answer.await?) }
    }

    /// Deletes a key and says whether it was set.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad key, [`Error::Expired`], [`Error::Failed`].
    pub fn delete(&self, key: &str) -> Result<bool> {
        deleted(self.block(self.key_call("store delete", key, |key| Call::Delete { key }), self.timeout)?)
    }

    /// [`Store::delete`] as a future.
    ///
    /// # Errors
    /// As there.
    pub fn delete_async(&self, key: &str) -> impl Future<Output = Result<bool>> + Send + use<> {
        let call = self.key_call("store delete", key, |key| Call::Delete { key });
        let answer = self.begin(call, self.timeout);
        async move { deleted(answer.await?) }
    }

    fn full_key(&self, operation: &'static str, key: &str) -> Result<String> {
        key::check(operation, key)?;
        let full = format!("{}{key}", self.prefix);
        key::check(operation, &full)?;
        Ok(full)
    }

    fn key_call(
        &self,
        operation: &'static str,
        key: &str,
        call: impl FnOnce(String) -> Call,
    ) -> Result<Call> {
        Ok(call(self.full_key(operation, key)?))
    }

    fn set_call(&self, key: &str, value: &[u8]) -> Result<Call> {
        let key = self.full_key("store set", key)?;
        key::check_value("store set", &key, value.len())?;
        Ok(Call::Set { key, value: value.to_vec() })
    }

    fn get_call(&self, keys: &[impl AsRef<str>]) -> Result<Call> {
        let keys = keys.iter().map(|key| self.full_key("store get", key.as_ref())).collect::<Result<_>>()?;
        Ok(Call::Get { keys })
    }

    fn compare_set_call(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Call> {
        let key = self.full_key("store compare_set", key)?;
        key::check_value("store compare_set", &key, expected.map_or(0, <[u8]>::len) + new.len())?;
        Ok(Call::CompareSet { key, expected: expected.map(<[u8]>::to_vec), new: new.to_vec() })
    }

    /// Starts a call on the control thread.
    fn start(&self, call: Call, deadline: Deadline) -> Result<control::Waiter<Answer>> {
        let operation = call.operation();
        if self.process != std::process::id() {
            return Err(Error::Forked { operation });
        }
        let outcome = call.changes().then_some(Outcome::InDoubt);
        let silent = silent(call.keys());
        let backend = Arc::clone(&self.backend);
        control::run(operation, async move {
            let answer = backend.call(call, deadline);
            match tokio::time::timeout_at((deadline.at() + GRACE).into(), answer).await {
                Ok(answer) => answer,
                Err(_) => Err(deadline.expired(operation, silent, outcome)),
            }
        })
    }

    fn block(&self, call: Result<Call>, timeout: Duration) -> Result<Answer> {
        let call = call?;
        let deadline = Deadline::after(timeout);
        let (operation, changes, silent) = (call.operation(), call.changes(), silent(call.keys()));
        match self.start(call, deadline)?.wait_until(deadline.at() + 2 * GRACE) {
            Some(answer) => answer,
            None => Err(deadline.expired(operation, silent, changes.then_some(Outcome::InDoubt))),
        }
    }

    fn begin(
        &self,
        call: Result<Call>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer>> + Send + use<> {
        let store = self.clone();
        async move {
            let (call, deadline) = (call?, Deadline::after(timeout));
            match &store.table {
                Some(table) if store.process == std::process::id() => table.call_here(call, deadline).await,
                _ => store.start(call, deadline)?.await,
            }
        }
    }
}

const CONNECT: &str = "store connect";

/// What is known when a store says nothing at all.
fn silent(keys: &[String]) -> String {
    match keys {
        [key] => format!("the store says nothing of key {key}"),
        keys => format!(
            "the store does not say which of {} keys are missing, the first is {}",
            keys.len(),
            keys.first().map_or("", String::as_str)
        ),
    }
}

fn other<T>(answer: &Answer) -> Result<T> {
    Err(Error::Malformed {
        what: "answer of the store's backend",
        why: format!("{answer:?} was not asked for"),
    })
}

fn done(answer: Answer) -> Result<()> {
    if answer == Answer::Done { Ok(()) } else { other(&answer) }
}

fn one(answer: Answer) -> Result<Vec<u8>> {
    match answer {
        Answer::Values(mut values) if values.len() == 1 => Ok(values.swap_remove(0)),
        answer => other(&answer),
    }
}

fn many(answer: Answer, count: usize) -> Result<Vec<Vec<u8>>> {
    match answer {
        Answer::Values(values) if values.len() == count => Ok(values),
        answer => other(&answer),
    }
}

fn value(answer: Answer) -> Result<Option<Vec<u8>>> {
    match answer {
        Answer::Value(value) => Ok(value),
        answer => other(&answer),
    }
}

fn there(answer: Answer) -> Result<Vec<u8>> {
    match answer {
        Answer::Value(Some(value)) => Ok(value),
        answer => other(&answer),
    }
}

fn number(answer: Answer) -> Result<i64> {
    match answer {
        Answer::Number(number) => Ok(number),
        answer => other(&answer),
    }
}

fn deleted(answer: Answer) -> Result<bool> {
    match answer {
        Answer::Deleted(deleted) => Ok(deleted),
        answer => other(&answer),
    }
}
