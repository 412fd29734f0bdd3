//! Where contexts come from, and what runs a case: one implementation for each kind of transport.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use transom_transport::{Context, Open, register_transport};

use crate::process;
use crate::world::World;

/// Hard limit of one case; a long form has an hour.
#[must_use]
pub fn most() -> Duration {
    Duration::from_secs(if crate::is_long() { 3600 } else { 60 })
}

/// A transport under test.
pub trait Fabric {
    /// Its name, as `explain()` and its addresses tell it.
    fn transport(&self) -> &str;

    /// Contexts that reach each other by it.
    fn contexts(&self, count: usize) -> Vec<Context>;

    /// Runs a case to its end; panics when it does not end.
    fn run<F: Future>(&self, case: F) -> F::Output;
}

/// A transport in real time, by its specification.
#[derive(Debug, Clone)]
pub struct Real {
    spec: String,
}

impl Real {
    /// The transport of this specification: `"local"`, `"shm"`, `"tcp:127.0.0.1:0"`.
    #[must_use]
    pub fn new(spec: &str) -> Self {
        Self { spec: spec.to_owned() }
    }

    /// A transport of the test's own, registered under this name at the first call.
    #[must_use]
    pub fn registered(name: &str, open: Open) -> Self {
        register(name, open);
        Self::new(name)
    }
}

/// Registers a transport for the whole process; again does nothing.
pub fn register(name: &str, open: Open) {
    static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock();
    if names.insert(name.to_owned()) {
        register_transport(name, open).unwrap();
    }
}

impl Fabric for Real {
    fn transport(&self) -> &str {
        self.spec.split(':').next().unwrap_or(&self.spec)
    }

    fn contexts(&self, count: usize) -> Vec<Context> {
        let open = || Context::builder().transports(&self.spec).timeout(Duration::from_secs(20)).build();
        (0..count).map(|_| open().unwrap()).collect()
    }

    fn run<F: Future>(&self, case: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(most(), case).await }).expect("the case ends")
    }
}

/// Runs one case that never blocks.
pub fn case<A: Fabric, F: Future<Output = ()>>(_: &str, fabric: &A, case: impl FnOnce(World) -> F) {
    let world = World::of(fabric);
    fabric.run(case(world));
}

/// Runs one case in a process of its own, because it measures the process.
pub fn case_alone<A: Fabric, F: Future<Output = ()>>(test: &str, fabric: &A, run: impl FnOnce(World) -> F) {
    process::alone(test, most(), || case(test, fabric, run));
}

/// Runs one case that blocks.
pub fn blocking<A: Fabric>(_: &str, fabric: &A, case: impl FnOnce(World)) {
    case(World::of(fabric));
}
