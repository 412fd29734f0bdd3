//! One process's opened transports, its progress and its identity.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use transom_registry::{
    Error, Failure, Foreign, Host as HostMemory, Incarnation, Memory, MemoryRegion, Outcome, Registry,
    RemoteRegion, Result,
};

use crate::backend::{Host, Transport};
use crate::clock::{Clock, Timers};
use crate::local::Local;
use crate::peer::{self, Peer};
use crate::progress::{Driver, Page, Progress, ProgressMode, Wait};
use crate::secret::Secret;
use crate::signal::Signals;
use crate::spec;

/// Default deadline of blocking calls.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Smallest and largest memory that gets into borrowed buffers go through.
const BOUNCE_SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// How many lost processes are remembered.
const MOST_FAILURES: usize = 1 << 20;
/// How many of each size are kept.
const BOUNCES_KEPT: usize = 8;

/// One process's opened transports, its progress and its identity.
///
/// A handle: clones are the same context. It is closed when the last handle, peer and region of a peer are gone, or by
/// [`Context::close`].
///
/// # Examples
/// ```
/// use transom_transport::{Access, Context, Host};
///
/// let owner = Context::builder().transports("local").build()?;
/// let region = owner.register(Host::new(4096)?, 1)?;
/// let text = region.remote(Access::ALL)?.to_string();
///
/// let other = Context::builder().transports("local").build()?;
/// let remote = text.parse()?;
/// let part = other.connect(&remote)?.open(&remote)?;
/// part.put_signal(16, b"hello", 0, 1)?;
///
/// owner.signals(&region).signal(0)?.wait_at_least(1, std::time::Duration::from_secs(1))?;
/// let mut seen = [0; 5];
/// region.read(16, &mut seen)?;
/// assert_eq!(&seen, b"hello");
/// # Ok::<(), transom_transport::Error>(())
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

pub(crate) struct Inner {
    registry: Arc<Registry>,
    pub(crate) progress: Arc<Progress>,
    timeout: Duration,
    peers: Mutex<HashMap<Incarnation, Weak<peer::Inner>>>,
    /// Who was lost, and why, also when no peer was open to it.
    failures: Mutex<HashMap<Incarnation, Arc<Failure>>>,
    bounces: Mutex<[Vec<MemoryRegion>; BOUNCE_SIZES.len()]>,
    secret: Secret,
    unusable: Vec<(String, Error)>,
    /// Last: it ends after everything that it drives.
    driver: Option<Driver>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("incarnation", &self.incarnation())
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

/// Builds a [`Context`].
#[derive(Debug)]
pub struct ContextBuilder {
    transports: Option<String>,
    given: Vec<GivenTransport>,
    secret: Option<Secret>,
    timeout: Duration,
    local_ranks: usize,
    wait: Wait,
    progress: Option<ProgressMode>,
    mutual: bool,
    clock: Option<Clock>,
    only_given: bool,
}

/// Opens a transport for the host that it is given.
pub type Opener = Box<dyn FnOnce(&Host) -> Result<Arc<dyn Transport>> + Send>;

struct GivenTransport(Opener);

impl fmt::Debug for GivenTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("transport")
    }
}

impl ContextBuilder {
    /// The transports, best first, as comma-separated specifications: `"shm,tcp:0.0.0.0:0"`. `local` is always there.
    /// Without this, `TRANSOM_TRANSPORTS`, else `shm,tcp`.
    #[must_use]
    pub fn transports(mut self, specs: &str) -> Self {
        self.transports = Some(specs.to_owned());
        self
    }

    /// A transport that the program opens itself, after those of [`transports`](Self::transports).
    #[must_use]
    pub fn transport(mut self, open: Opener) -> Self {
        self.given.push(GivenTransport(open));
        self
    }

    /// A transport that the program opens itself, and no other: not even `local`.
    #[must_use]
    pub fn only_transport(mut self, open: Opener) -> Self {
        self.only_given = true;
        self.given = vec![GivenTransport(open)];
        self
    }

    /// The job's secret. Without it, the one of [`Secret::from_env`].
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The deadline of blocking calls; 30 s without it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many ranks share this host: waits spin long only when they are no more than the cores.
    #[must_use]
    pub fn local_ranks(mut self, ranks: usize) -> Self {
        self.local_ranks = ranks;
        self
    }

    /// How blocking waits pass the time.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Who drives the transports when no call waits. Without this, `TRANSOM_PROGRESS` (`thread`, `inline` or `manual`), else
    /// the driver thread.
    #[must_use]
    pub fn progress(mut self, mode: ProgressMode) -> Self {
        self.progress = Some(mode);
        self
    }

    /// Peers connect to this context about when it connects to them, as the members of a team do: then one of the two
    /// waits a moment for the other, and one connection serves both.
    #[must_use]
    pub fn mutual(mut self, mutual: bool) -> Self {
        self.mutual = mutual;
        self
    }

    /// A simulation's clock: no thread is started, and calls that would block are errors.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens the context.
    ///
    /// # Errors
    /// [`Error::Config`] for a specification that makes no sense; [`Error::Unusable`] when no transport that was named
    /// can be used; [`Error::Io`].
    pub fn build(self) -> Result<Context> {
        crate::fork::mark();
        crate::fork::check("open a context")?;
        let specs = if self.only_given { Vec::new() } else { spec::parse(self.transports)? };
        let page = Arc::new(Page::new()?);
        let incarnation = Incarnation::random()?;
        let registry = Registry::new(incarnation, page.clone());
        let runtime = match &self.clock {
            Some(_) => None,
            None => Some(
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|e| Error::io("start the driver", e))?,
            ),
        };
        let tasks = runtime.as_ref().map(|r| r.handle().clone());
        let clock = match (self.clock, &tasks) {
            (Some(clock), _) => clock,
            (None, Some(tasks)) => Clock::Machine(Timers::new(tasks.clone())),
            (None, None) => return Err(Error::invalid("open a context", "it has no clock")),
        };
        let mode = self.progress.map_or_else(ProgressMode::from_env, Ok)?;
        let progress = Progress::new(page.clone(), self.local_ranks, self.timeout, clock, mode)?;
        progress.set_wait(self.wait);
        let secret = match self.secret {
            Some(secret) => secret,
            None => Secret::from_env()?,
        };
        let inside: Arc<Mutex<Weak<Inner>>> = Arc::default();
        let host = Host {
            registry: registry.clone(),
            secret: secret.clone(),
            bell: page.clone(),
            tasks,
            lost: Arc::new({
                let inside = inside.clone();
                move |incarnation, failure| {
                    let inner = inside.lock().upgrade();
                    if let Some(inner) = inner {
                        inner.lost(incarnation, &failure);
                    }
                }
            }),
            page: page.clone(),
            mutual: self.mutual,
            kick: Arc::new({
                let page = page.clone();
                let driven = progress.clock().is_virtual().then(|| Arc::downgrade(&progress));
                move || match &driven {
                    None => transom_registry::exposed::Bell::ring(&*page),
                    Some(progress) => {
                        if let Some(progress) = progress.upgrade() {
                            progress.drive();
                        }
                    }
                }
            }),
        };
        // The alive lock is held before anybody can connect.
        let driver = runtime.map(|runtime| Driver::start(runtime, &progress, &page)).transpose()?;
        let mut addresses = Vec::new();
        if !self.only_given {
            let local: Arc<dyn Transport> = Local::open(&host);
            addresses.extend(local.addresses());
            progress.add_transport(local)?;
        }
        let mut unusable = Vec::new();
        let mut opened = 0;
        for (name, spec) in specs {
            if name == "local" {
                continue;
            }
            match spec::open(&spec, &host) {
                Ok(transport) => {
                    addresses.extend(transport.addresses());
                    progress.add_transport(transport)?;
                    opened += 1;
                }
                Err(error @ Error::Config { .. }) => return Err(error),
                Err(error) => unusable.push((name, error)),
            }
        }
        for GivenTransport(open) in self.given {
            let transport = open(&host)?;
            addresses.extend(transport.addresses());
            progress.add_transport(transport)?;
            opened += 1;
        }
        if opened == 0
            && let Some((_, error)) = unusable.first()
        {
            return Err(error.clone());
        }
        registry.set_addresses(addresses);
        let inner = Arc::new(Inner {
            registry,
            progress,
            timeout: self.timeout,
            peers: Mutex::default(),
            failures: Mutex::default(),
            bounces: Mutex::default(),
            secret,
            unusable,
            driver,
        });
        *inside.lock() = Arc::downgrade(&inner);
        Ok(Context(inner))
    }
}

impl Context {
    /// Begins to build a context.
    #[must_use]
    pub fn builder() -> ContextBuilder {
        ContextBuilder {
            transports: None,
            given: Vec::new(),
            secret: None,
            timeout: DEFAULT_TIMEOUT,
            local_ranks: 1,
            wait: Wait::Adaptive,
            progress: None,
            mutual: false,
            clock: None,
            only_given: false,
        }
    }

    /// Its identity: this life of this process.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.0.registry.incarnation()
    }

    /// Where peers reach it, best first.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.0.registry.addresses()
    }

    /// The transports that were named and could not be opened, and why.
    #[must_use]
    pub fn unusable(&self) -> &[(String, Error)] {
        &self.0.unusable
    }

    /// The deadline of its blocking calls.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// The job's secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.0.secret
    }

    /// Its transports, for tests that go below peers.
    #[cfg(test)]
    pub(crate) fn transports(&self) -> Vec<Arc<dyn Transport>> {
        self.0.progress.transports()
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.0.clock()
    }

    /// Drives its transports once: for programs that wait in their own way, and for those without a driver
    /// ([`ProgressMode`]). Returns whether there was work: call again, there may be more.
    pub fn poll(&self) -> bool {
        self.0.progress.poll()
    }

    /// How many handles, peers and regions of peers keep it: for tests that hold one more.
    #[doc(hidden)]
    #[must_use]
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// How blocking waits pass the time from now on.
    pub fn set_wait(&self, wait: Wait) {
        self.0.progress.set_wait(wait);
    }

    /// Registers memory, with `signals` signals beside it.
    ///
    /// # Errors
    /// As for [`Registry::register`]; [`Error::Forked`].
    pub fn register(&self, memory: impl Memory + 'static, signals: u32) -> Result<MemoryRegion> {
        crate::fork::check("register")?;
        self.0.registry.register(memory, signals)
    }

    /// Allocates shared host memory and registers it.
    ///
    /// # Errors
    /// As for [`transom_registry::Host`].
    pub fn allocate(&self, size: usize, signals: u32) -> Result<MemoryRegion> {
        self.register(HostMemory::new(size)?, signals)
    }

    /// The signals of a region of this context, to wait for.
    #[must_use]
    pub fn signals(&self, region: &MemoryRegion) -> Signals {
        Signals::new(region, &self.0.progress)
    }

    /// Waits for a future, driving the transports, at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Expired`]; [`Error::Blocking`] under a virtual clock; [`Error::Forked`].
    pub fn block_on<F: Future>(
        &self,
        operation: &'static str,
        timeout: Duration,
        future: F,
    ) -> Result<F::Output> {
        self.0.block(operation, timeout, future)
    }

    /// Connects to the process that owns a region, over the first transport that works.
    ///
    /// # Errors
    /// [`Error::Failed`] when it was lost before; [`Error::Unreachable`] with what was tried; [`Error::Auth`];
    /// [`Error::Stale`] when another life answers there; [`Error::Expired`].
    pub fn connect(&self, region: &RemoteRegion) -> Result<Peer> {
        self.0.block("connect", self.0.timeout, self.connect_async(region))?
    }

    /// The async form of [`Context::connect`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up.
    pub async fn connect_async(&self, region: &RemoteRegion) -> Result<Peer> {
        self.connect_to(region.incarnation, &region.addresses).await
    }

    /// Connects to the process with this identity at one of these addresses.
    ///
    /// # Errors
    /// As for [`Context::connect`].
    ///
    /// # Cancel safety
    /// As for [`Context::connect_async`].
    pub async fn connect_to(&self, incarnation: Incarnation, addresses: &[String]) -> Result<Peer> {
        const OPERATION: &str = "connect";
        crate::fork::check(OPERATION)?;
        self.0.progress.check_open(OPERATION)?;
        if let Some(peer) = self.0.peer(incarnation)
            && peer.failure().is_none()
        {
            return Ok(peer);
        }
        let deadline = self.0.clock().now() + self.0.timeout;
        let mut tried = Vec::new();
        for transport in self.0.progress.transports() {
            match peer::connect(&self.0, &transport, addresses, Some(incarnation), deadline).await {
                Ok(Some(endpoint)) => {
                    let peer = self.0.adopt(incarnation, addresses);
                    peer.adopt(endpoint);
                    return Ok(peer);
                }
                Ok(None) => tried.push(format!("{}: it has no address there", transport.name())),
                Err(error @ (Error::Stale { .. } | Error::Auth { .. })) => return Err(error),
                Err(error) => tried.push(format!("{}: {error}", transport.name())),
            }
        }
        for (name, error) in &self.0.unusable {
            tried.push(format!("{name}: {error}"));
        }
        // Who was lost before is not found again: that is the reason.
        if let Some(failure) = self.failure_of(incarnation) {
            return Err(Error::failed(OPERATION, Outcome::NotApplied, failure));
        }
        Err(Error::Unreachable { peer: format!("incarnation {incarnation}"), tried: tried.join("; ") })
    }

    /// Why the process with this identity was lost; `None` while it lives, or when this one was never connected to it.
    #[must_use]
    pub fn failure_of(&self, incarnation: Incarnation) -> Option<Arc<Failure>> {
        self.0.failures.lock().get(&incarnation).cloned()
    }

    /// Every process that was lost so far, and why.
    #[must_use]
    pub fn failures(&self) -> Vec<(Incarnation, Arc<Failure>)> {
        self.0.failures.lock().iter().map(|(incarnation, failure)| (*incarnation, failure.clone())).collect()
    }

    /// Says goodbye to all peers and stops: later calls to its peers, and its waits, are [`Error::Closed`]. What is in
    /// flight is not waited for: flush before.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Inner {
    pub(crate) fn clock(&self) -> &Clock {
        self.progress.clock()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.registry.incarnation()
    }

    pub(crate) fn block<F: Future>(
        &self,
        operation: &'static str,
        timeout: Duration,
        future: F,
    ) -> Result<F::Output> {
        self.progress.block_on(operation, timeout, future)?.ok_or_else(|| Error::Expired {
            operation,
            rank: None,
            after: timeout,
            detail: String::new(),
            outcome: Some(transom_registry::Outcome::NotApplied),
        })
    }

    fn peer(&self, incarnation: Incarnation) -> Option<Peer> {
        self.peers.lock().get(&incarnation).and_then(Weak::upgrade).map(Peer)
    }

    /// The peer with this identity: the one that is known and lives, else a new one.
    fn adopt(self: &Arc<Self>, incarnation: Incarnation, addresses: &[String]) -> Peer {
        let mut peers = self.peers.lock();
        if let Some(known) = peers.get(&incarnation).and_then(Weak::upgrade).map(Peer)
            && known.failure().is_none()
        {
            return known;
        }
        peers.retain(|_, peer| peer.strong_count() > 0);
        let peer = Peer::new(self.clone(), incarnation, addresses.to_vec());
        peers.insert(incarnation, Arc::downgrade(&peer.0));
        peer
    }

    fn lost(&self, incarnation: Incarnation, failure: &Arc<Failure>) {
        let mut failures = self.failures.lock();
        if failures.len() < MOST_FAILURES {
            failures.entry(incarnation).or_insert_with(|| failure.clone());
        }
        drop(failures);
        if let Some(peer) = self.peer(incarnation) {
            peer.fail(failure);
        }
        self.progress.scan();
    }

    /// Registered memory of at least `size` bytes that only this process uses.
    pub(crate) fn bounce(&self, size: usize) -> Result<MemoryRegion> {
        let class = BOUNCE_SIZES.iter().position(|s| size <= *s);
        if let Some(kept) = class.and_then(|class| self.bounces.lock()[class].pop()) {
            return Ok(kept);
        }
        let size = class.map_or(size.max(1), |class| BOUNCE_SIZES[class]);
        self.registry.register(Foreign::from_vec(vec![0; size])?, 0)
    }

    /// Gives memory back that nobody writes to any more.
    pub(crate) fn give_bounce(&self, bounce: MemoryRegion) {
        if let Some(class) = BOUNCE_SIZES.iter().position(|s| bounce.size() == *s) {
            let kept = &mut self.bounces.lock()[class];
            if kept.len() < BOUNCES_KEPT {
                kept.push(bounce);
            }
        }
    }

    fn close(&self) {
        if crate::fork::is_child() {
            return;
        }
        self.progress.close();
        let peers: Vec<_> = self.peers.lock().values().filter_map(Weak::upgrade).collect();
        for peer in peers {
            Peer(peer).close();
        }
        for transport in self.progress.transports() {
            transport.close();
        }
        if let Some(driver) = &self.driver {
            driver.stop();
        }
        self.progress.scan();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
