//! Where contexts come from, and what runs a case: one implementation for each kind of transport.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use transom_transport::{Context, Open, register_transport, sim};

use crate::process;
use crate::world::World;

/// Hard limit of one case; a long form has an hour.
#[must_use]
pub fn most() -> Duration {
    Duration::from_secs(if crate::is_long() { 3600 } else { 60 })
}

/// A transport under test.
pub trait Fabric: Sized {
    /// The fabrics on which each case runs, one after the other: a simulation has one for each seed.
    fn rounds(self) -> Vec<Self> {
        vec![self]
    }

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

/// The simulated fabric, with its adversary at its worst.
#[derive(Debug)]
pub struct Simulated {
    fabric: sim::Fabric,
    seed: u64,
}

/// Seeds of a short run; `TRANSOM_SEEDS` says how many of another.
const SEEDS: u64 = 3;

impl Simulated {
    /// The fabric of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { fabric: sim::Fabric::new(seed, sim::Adversary::wild()), seed }
    }
}

impl Fabric for Simulated {
    fn rounds(self) -> Vec<Self> {
        let seeds = match std::env::var("TRANSOM_SEEDS") {
            Ok(seeds) => seeds.parse().expect("TRANSOM_SEEDS is a number"),
            Err(_) => SEEDS,
        };
        (self.seed..self.seed + seeds).map(Self::new).collect()
    }

    fn transport(&self) -> &str {
        "sim"
    }

    fn contexts(&self, count: usize) -> Vec<Context> {
        (0..count).map(|_| self.fabric.open().unwrap()).collect()
    }

    fn run<F: Future>(&self, case: F) -> F::Output {
        match self.fabric.run(vec![Box::pin(case)]) {
            Ok(mut output) => output.remove(0),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }
}

/// Runs one case that never blocks.
pub fn case<A: Fabric, F: Future<Output = ()>>(_: &str, fabric: A, case: impl Fn(World) -> F) {
    for fabric in fabric.rounds() {
        let world = World::of(&fabric);
        fabric.run(case(world));
    }
}

/// Runs one case in a process of its own, because it measures the process.
pub fn case_alone<A: Fabric, F: Future<Output = ()>>(test: &str, fabric: A, run: impl Fn(World) -> F) {
    process::alone(test, most(), || case(test, fabric, run));
}

/// Runs one case that blocks.
pub fn blocking<A: Fabric>(_: &str, fabric: A, case: impl FnOnce(World)) {
    case(World::of(&fabric));
}
