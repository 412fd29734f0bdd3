//! Where contexts come from, and what runs a case: one implementation for each kind of transport.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use transom_transport::{Context, ContextBuilder, Open, ProgressMode, register_transport, sim};

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

    fn builder(&self) -> ContextBuilder {
        Context::builder().transports(&self.spec).timeout(Duration::from_secs(20))
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
        (0..count).map(|_| self.builder().build().unwrap()).collect()
    }

    fn run<F: Future>(&self, case: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(most(), case).await }).expect("the case ends")
    }
}

/// A transport in real time whose contexts have no driver: a thread of the test polls them, as their program would.
#[derive(Debug)]
pub struct Driverless {
    real: Real,
    mode: ProgressMode,
    contexts: Arc<Mutex<Vec<Context>>>,
    over: Arc<AtomicBool>,
    program: Option<JoinHandle<()>>,
}

impl Driverless {
    /// The transport of this specification, in this mode.
    #[must_use]
    pub fn new(spec: &str, mode: ProgressMode) -> Self {
        let contexts: Arc<Mutex<Vec<Context>>> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let (polled, stop) = (contexts.clone(), over.clone());
        let program = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut polled = polled.lock();
                // What the case has dropped is dropped here too.
                polled.retain(|context| context.handles() > 1);
                let worked = polled.iter().filter(|context| context.poll()).count();
                drop(polled);
                if worked == 0 {
                    std::thread::yield_now();
                }
            }
        });
        Self { real: Real::new(spec), mode, contexts, over, program: Some(program) }
    }
}

impl Drop for Driverless {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(program) = self.program.take() {
            let ended = program.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the thread that polls ends well");
        }
    }
}

impl Fabric for Driverless {
    fn transport(&self) -> &str {
        self.real.transport()
    }

    fn contexts(&self, count: usize) -> Vec<Context> {
        let open = || self.real.builder().progress(self.mode).build();
        let contexts: Vec<_> = (0..count).map(|_| open().unwrap()).collect();
        self.contexts.lock().extend(contexts.iter().cloned());
        contexts
    }

    fn run<F: Future>(&self, case: F) -> F::Output {
        self.real.run(case)
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
