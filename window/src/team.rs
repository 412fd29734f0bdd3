//! An ordered set of ranks that meet in a store.

use std::fmt;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use transom_registry::header::lock_owner;
use transom_registry::{Access, Cause, Error, Failure, Host, MemoryRegion, Outcome, RemoteRegion, Result};
use transom_transport::{Context, PeerRegion, Producers, ProgressMode, Secret, Signals, Wait};

use crate::Rank;
use crate::environment::{MOST_RANKS, Meeting, Place, STORE};
use crate::store::{Store, StoreServer};

/// Rounds of a barrier among [`MOST_RANKS`] ranks.
const ROUNDS: u32 = MOST_RANKS.ilog2();
/// Bytes of a team's own window: it has nothing but signals.
const CONTROL_SIZE: usize = 4096;
/// How long an error waits for the launcher to say how a rank ended.
const VERDICT: Duration = Duration::from_millis(50);
/// How long a rank that hears of another's trouble waits to see a death that explains it.
const TROUBLE: Duration = Duration::from_millis(500);
/// How much later than its deadline a call that meets in the store ends at the latest: the store says what is missing
/// before that, unless it does not answer at all.
const LATEST: Duration = Duration::from_millis(500);

/// An ordered set of ranks with an epoch.
///
/// A handle: clones are the same team.
///
/// # Examples
/// Two ranks as threads of one process:
/// ```
/// use transom::{Store, Team, Window};
///
/// let store = Store::in_process();
/// let ranks: Vec<_> = (0..2)
///     .map(|rank| {
///         let store = store.clone();
///         std::thread::spawn(move || -> transom::Result<()> {
///             let team = Team::builder().store(store).rank(rank).size(2).transports("local").build()?;
///             let window = Window::allocate(&team, 4096)?;
///             if team.rank() == 0 {
///                 window.put_signal(1, 0, b"hello", 0, 1)?;
///             } else {
///                 window.signal(0)?.wait_at_least(1, team.timeout())?;
///                 let mut seen = [0; 5];
///                 window.local().read(0, &mut seen)?;
///                 assert_eq!(&seen, b"hello");
///             }
///             window.close()
///         })
///     })
///     .collect();
/// for rank in ranks {
///     rank.join().unwrap()?;
/// }
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone)]
pub struct Team(Arc<Inner>);

struct Inner {
    context: Context,
    store: Store,
    rank: Rank,
    size: u32,
    epoch: u64,
    timeout: Duration,
    control: MemoryRegion,
    signals: Signals,
    members: Vec<RemoteRegion>,
    /// Where the launcher tells how ranks end, and which rank of the launch each member is.
    launch: Option<(Store, Vec<Rank>)>,
    links: Vec<Mutex<Option<PeerRegion>>>,
    barriers: tokio::sync::Mutex<u64>,
    /// Collective calls are numbered, so that each meets under a name of its own.
    windows: AtomicU64,
    splits: AtomicU64,
    /// The store's server, when this rank keeps it.
    _server: Option<Arc<StoreServer>>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

/// Builds a [`Team`].
#[derive(Debug)]
pub struct TeamBuilder {
    store: Option<Store>,
    context: Option<Context>,
    server: Option<Arc<StoreServer>>,
    name: String,
    rank: Option<Rank>,
    size: Option<u32>,
    local_size: Option<u32>,
    launched: bool,
    transports: Option<String>,
    secret: Option<Secret>,
    timeout: Duration,
    wait: Wait,
    progress: Option<ProgressMode>,
}

impl TeamBuilder {
    /// Where the ranks meet.
    #[must_use]
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// An opened context to use, instead of one for this team.
    #[must_use]
    pub fn context(mut self, context: Context) -> Self {
        self.context = Some(context);
        self
    }

    /// Its name in the store; several teams in one store have different ones.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(mut self, rank: Rank) -> Self {
        self.rank = Some(rank);
        self
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(mut self, size: u32) -> Self {
        self.size = Some(size);
        self
    }

    /// How many of them are on this host: when they are more than the cores, waits give the core away early.
    #[must_use]
    pub fn local_size(mut self, size: u32) -> Self {
        self.local_size = Some(size);
        self
    }

    /// The transports, best first: `"shm,tcp:0.0.0.0:0"`.
    #[must_use]
    pub fn transports(mut self, specs: &str) -> Self {
        self.transports = Some(specs.to_owned());
        self
    }

    /// The job's secret.
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

    /// How blocking waits pass the time.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Who drives the transports when no call waits; without this, `TRANSOM_PROGRESS`, else the driver thread.
    #[must_use]
    pub fn progress(mut self, mode: ProgressMode) -> Self {
        self.progress = Some(mode);
        self
    }

    /// Meets the other ranks. Returns when all of them are there.
    ///
    /// # Errors
    /// [`Error::Expired`] that names the missing ranks; [`Error::Invalid`] when ranks disagree on the size or two claim
    /// one rank; as for [`Context`].
    pub fn build(self) -> Result<Team> {
        let timeout = self.timeout;
        let prepared = self.prepare()?;
        let context = prepared.context.clone();
        context.block_on("meet the team", timeout + LATEST, prepared.meet())?
    }

    /// The async form of [`TeamBuilder::build`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future leaves this rank's place in the store taken: build again under another name.
    pub async fn build_async(self) -> Result<Team> {
        self.prepare()?.meet().await
    }

    fn prepare(self) -> Result<Meet> {
        const OPERATION: &str = "build a team";
        let missing = |what: &str| Error::invalid(OPERATION, format!("{what} is missing"));
        let size = self.size.ok_or_else(|| missing("the size"))?;
        let rank = self.rank.ok_or_else(|| missing("the rank"))?;
        if size == 0 || size > MOST_RANKS {
            return Err(Error::invalid(OPERATION, format!("a size of {size} is not in 1 to {MOST_RANKS}")));
        }
        if rank >= size {
            return Err(Error::NoSuchRank { operation: OPERATION, rank, size });
        }
        let store = match (self.store, size) {
            (Some(store), _) => store,
            (None, 1) => Store::in_process(),
            (None, _) => return Err(missing("the store")),
        };
        let context = match self.context {
            Some(context) => context,
            None => {
                let mut builder = Context::builder()
                    .mutual(true)
                    .timeout(self.timeout)
                    .wait(self.wait)
                    .local_ranks(self.local_size.unwrap_or(size) as usize);
                if let Some(specs) = &self.transports {
                    builder = builder.transports(specs);
                }
                if let Some(mode) = self.progress {
                    builder = builder.progress(mode);
                }
                if let Some(secret) = self.secret {
                    builder = builder.secret(secret);
                }
                builder.build()?
            }
        };
        let launch = self.launched.then(|| (store.clone(), rank));
        let store = store.prefix(&format!("team/{}", self.name)).within(self.timeout);
        Ok(Meet { context, store, launch, server: self.server, rank, size, epoch: 1, timeout: self.timeout })
    }
}

/// Everything that a team is made of, before it has met.
struct Meet {
    context: Context,
    store: Store,
    /// Where the launcher tells how ranks end, and this one's rank of the launch.
    launch: Option<(Store, Rank)>,
    server: Option<Arc<StoreServer>>,
    rank: Rank,
    size: u32,
    epoch: u64,
    timeout: Duration,
}

impl Meet {
    async fn meet(self) -> Result<Team> {
        let until = self.context.clock().now() + self.timeout;
        self.meet_until(until).await
    }

    async fn meet_until(self, until: Instant) -> Result<Team> {
        const OPERATION: &str = "meet the team";
        let clock = self.context.clock().clone();
        let control = self.context.register(Host::builder(CONTROL_SIZE).sparse(true).build()?, ROUNDS)?;
        let mine = control.export_for_epoch(0..CONTROL_SIZE, Access::SIGNAL, self.epoch)?;
        let mut record = self.size.to_le_bytes().to_vec();
        record.extend(self.launch.as_ref().map_or(self.rank, |(_, rank)| *rank).to_le_bytes());
        record.extend(mine.to_bytes());
        let key = format!("rank/{}", self.rank);
        let there = self.store.compare_set_async(&key, None, &record).await?;
        if there != record {
            let why = format!(
                "rank {} is taken by another process (are two launched with it, or is the store old?)",
                self.rank
            );
            return Err(Error::invalid(OPERATION, why));
        }
        let keys: Vec<String> = (0..self.size).map(|rank| format!("rank/{rank}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let records = self.store.get_many_async(&keys, until.saturating_duration_since(clock.now())).await;
        let records = records.map_err(|e| missing_ranks(OPERATION, self.timeout, e, self.size))?;
        let mut members = Vec::with_capacity(records.len());
        let mut launched = Vec::with_capacity(records.len());
        for (rank, record) in records.iter().enumerate() {
            let cut = || Error::Malformed { what: "team record", why: format!("rank {rank}'s is cut short") };
            let (size, rest) = record.split_first_chunk::<4>().ok_or_else(cut)?;
            let (of_launch, region) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            let size = u32::from_le_bytes(*size);
            launched.push(Rank::from_le_bytes(*of_launch));
            if size != self.size {
                let why = format!(
                    "rank {rank} says that the team has {size} ranks, rank {} says {}",
                    self.rank, self.size
                );
                return Err(Error::invalid(OPERATION, why));
            }
            members.push(RemoteRegion::from_bytes(region)?);
        }
        let signals = self.context.signals(&control);
        let links = members.iter().map(|_| Mutex::default()).collect();
        Ok(Team(Arc::new(Inner {
            context: self.context,
            store: self.store,
            rank: self.rank,
            size: self.size,
            epoch: self.epoch,
            timeout: self.timeout,
            control,
            signals,
            members,
            launch: self.launch.map(|(store, _)| (store, launched)),
            links,
            barriers: tokio::sync::Mutex::new(0),
            windows: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            _server: self.server,
        })))
    }
}

/// Says which ranks did not come, in the team's words.
pub(crate) fn missing_ranks(operation: &'static str, after: Duration, error: Error, size: u32) -> Error {
    match error {
        Error::Expired { detail, .. } => Error::Expired {
            operation,
            rank: None,
            after,
            detail: format!("of {size} ranks these are missing: {detail}"),
            outcome: None,
        },
        other => other,
    }
}

impl Team {
    /// Begins to build a team by hand.
    #[must_use]
    pub fn builder() -> TeamBuilder {
        TeamBuilder {
            store: None,
            context: None,
            server: None,
            name: "0".into(),
            rank: None,
            size: None,
            local_size: None,
            launched: false,
            transports: None,
            secret: None,
            timeout: transom_transport::DEFAULT_TIMEOUT,
            wait: Wait::Adaptive,
            progress: None,
        }
    }

    /// Meets the ranks that the launcher started: `transom launch`, torchrun, Slurm, Open MPI or PMI. Alone, without any
    /// of them, a team of one.
    ///
    /// # Errors
    /// [`Error::Config`] that names the variable; as for [`TeamBuilder::build`].
    pub fn from_env() -> Result<Self> {
        Self::builder_from_env()?.build()
    }

    /// As [`Team::from_env`], to be changed before it is built.
    ///
    /// # Errors
    /// As there.
    pub fn builder_from_env() -> Result<TeamBuilder> {
        let place = Place::from_env()?;
        let mut builder = Self::builder().rank(place.rank).size(place.size);
        builder.local_size = place.local_size;
        builder.launched = place.launched;
        let timeout = builder.timeout;
        match place.meeting {
            Meeting::Alone => {}
            Meeting::Url(url) => {
                let secret = Secret::from_env()?;
                let store = Store::open(&url, &secret, timeout).map_err(|error| match error {
                    Error::Config { why, .. } | Error::Invalid { why, .. } => {
                        Error::Config { name: STORE.into(), value: url.clone(), why }
                    }
                    other => other,
                })?;
                builder = builder.store(store).secret(secret);
            }
            Meeting::RankZero(address) => {
                let secret = Secret::from_env()?;
                if place.rank == 0 {
                    let at =
                        address.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(|| {
                            Error::Config {
                                name: "MASTER_ADDR".into(),
                                value: address.clone(),
                                why: "it cannot be resolved".into(),
                            }
                        })?;
                    builder.server = Some(Arc::new(StoreServer::bind(at, &secret)?));
                }
                builder = builder.store(Store::connect(&address, &secret, timeout)?).secret(secret);
            }
        }
        Ok(builder)
    }

    /// This process's rank.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.0.rank
    }

    /// How many ranks there are.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// How often its members have changed: 1 for a team that was just built.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// The deadline of its blocking calls.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Its part of the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Checks a rank.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn check_rank(&self, operation: &'static str, rank: Rank) -> Result<()> {
        if rank < self.size() {
            Ok(())
        } else {
            Err(Error::NoSuchRank { operation, rank, size: self.size() })
        }
    }

    /// Why a rank failed, as far as this one knows: `None` while it lives.
    #[must_use]
    pub fn failure(&self, rank: Rank) -> Option<Arc<Failure>> {
        self.0.context.failure_of(self.0.members.get(rank as usize)?.incarnation)
    }

    /// The number of the next collective window.
    pub(crate) fn next_window(&self) -> u64 {
        self.0.windows.fetch_add(1, Ordering::Relaxed)
    }

    /// The signals of a region whose waits fail, with the number of a rank, once every one of these ranks has failed.
    pub(crate) fn signals_from(&self, region: &MemoryRegion, ranks: Vec<Rank>) -> Signals {
        let (team, names) = (Arc::downgrade(&self.0), Arc::downgrade(&self.0));
        let first = ranks.first().copied();
        let producers: Producers = Arc::new(move || {
            let team = Self(team.upgrade()?);
            let mut first = None;
            for rank in &ranks {
                let failure = team.failure(*rank)?;
                first.get_or_insert(failure);
            }
            first
        });
        let name = move |error| match (names.upgrade(), first) {
            (Some(team), Some(first)) => Self(team).tell_root(first, error),
            _ => error,
        };
        self.context().signals(region).with_producers(producers).with_names(name)
    }

    /// An error of a rank, with its number, and with how it ended where the launcher knows that.
    #[cold]
    pub(crate) fn tell(&self, rank: Rank, mut error: Error) -> Error {
        error = error.at_rank(rank);
        if let Error::Expired { detail, .. } = &mut error {
            self.name_holder(detail);
        }
        let Error::Failed(mut failed) = error else { return error };
        if matches!(failed.failure.cause, Cause::Exited(None) | Cause::ConnectionLost)
            && let Some(cause) = self.verdict(rank)
        {
            failed.failure = Arc::new(Failure { cause, ..(*failed.failure).clone() });
        }
        Error::Failed(failed)
    }

    /// Adds the rank to what is known of the holder of a lock.
    fn name_holder(&self, detail: &mut String) {
        let held = detail.rsplit_once("held by incarnation ");
        let Some(holder) = held.and_then(|(_, holder)| u64::from_str_radix(holder, 16).ok()) else { return };
        if let Some(rank) = self.0.members.iter().position(|m| lock_owner(m.incarnation) == holder) {
            detail.push_str(&format!(", rank {rank}"));
        }
    }

    /// How the launcher says that a rank ended.
    fn verdict(&self, rank: Rank) -> Option<Cause> {
        let (store, ranks) = self.0.launch.as_ref()?;
        let said = store.get(&format!("exit/{}", ranks.get(rank as usize)?), VERDICT).ok()?;
        let (kind, number) = std::str::from_utf8(&said).ok()?.split_once(' ')?;
        match (kind, number.parse().ok()?) {
            ("exited", code) => Some(Cause::Exited(Some(code))),
            ("signaled", signal) => Some(Cause::Signaled(signal)),
            _ => None,
        }
    }

    /// The signals of a rank's control window.
    async fn link(&self, rank: Rank) -> Result<PeerRegion> {
        if let Some(link) = self.0.links[rank as usize].lock().as_ref() {
            return Ok(link.clone());
        }
        let member = &self.0.members[rank as usize];
        let peer = self.0.context.connect_async(member).await.map_err(|e| self.tell(rank, e))?;
        let link = peer.open_async(member).await.map_err(|e| self.tell(rank, e))?;
        *self.0.links[rank as usize].lock() = Some(link.clone());
        Ok(link)
    }

    /// Returns when every rank has called it.
    ///
    /// Takes log2(size) rounds of one signal each (dissemination: Hensgen, Finkel and Manber, 1988). It orders nothing but
    /// the calls themselves: flush a window before it to have its puts delivered.
    ///
    /// # Errors
    /// [`Error::Failed`] when a rank that this one waits for has failed; [`Error::Expired`] that names it.
    pub fn barrier(&self) -> Result<()> {
        if let Some(done) = self.barrier_fast() {
            return done;
        }
        self.block_on("barrier", self.barrier_async())?
    }

    /// Waits for a call of ours that keeps its deadline by itself.
    pub(crate) fn block_on<F: Future>(&self, operation: &'static str, call: F) -> Result<F::Output> {
        self.0.context.block_on(operation, self.timeout() + LATEST, call)
    }

    /// When a call that begins now has to be over.
    pub(crate) fn until(&self) -> Instant {
        self.0.context.clock().now() + self.timeout()
    }

    /// What is left until then.
    pub(crate) fn left(&self, until: Instant) -> Duration {
        until.saturating_duration_since(self.0.context.clock().now())
    }

    /// Reads what every rank says in the store. Ends at once when one of them is lost before it has said anything.
    pub(crate) async fn all_say(
        &self,
        operation: &'static str,
        store: &Store,
        until: Instant,
    ) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<String> = (0..self.size()).map(|rank| rank.to_string()).collect();
        let said = async {
            let said = store.get_many_async(&keys, self.left(until)).await;
            said.map_err(|e| missing_ranks(operation, self.timeout(), e, self.size()))
        };
        self.unless_lost(operation, store, |rank| Some(rank.to_string()), until, said).await
    }

    /// Awaits what ranks say in the store, each under its key. Ends at once when one of them is lost before it has.
    async fn unless_lost<T>(
        &self,
        operation: &'static str,
        store: &Store,
        key: impl Fn(Rank) -> Option<String>,
        until: Instant,
        said: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut said = std::pin::pin!(said);
        let mut lost = std::pin::pin!(self.one_is_lost(operation, store, key, until));
        std::future::poll_fn(|cx| match said.as_mut().poll(cx) {
            Poll::Ready(said) => Poll::Ready(said),
            Poll::Pending => lost.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// That a rank has died, as [`lost_error`](Self::lost_error), when it is seen soon: somebody else had trouble with it.
    pub(crate) async fn soon_lost_error(&self, operation: &'static str, until: Instant) -> Option<Error> {
        let inner = Arc::downgrade(&self.0);
        let lost: Producers = Arc::new(move || {
            let team = Self(inner.upgrade()?);
            team.lost(|_, failure| failure.cause != Cause::Left).map(|(_, failure)| failure)
        });
        let signals = self.0.signals.clone().with_producers(lost);
        let _ = signals.wait_any_async(&[(0, u64::MAX)], self.left(until).min(TROUBLE)).await;
        self.lost_error(operation)
    }

    /// Waits until a rank is lost that has not said anything in the store, for as long as it takes.
    async fn one_is_lost(
        &self,
        operation: &'static str,
        store: &Store,
        key: impl Fn(Rank) -> Option<String>,
        until: Instant,
    ) -> Error {
        // Nor is anything expected of a rank without a key.
        let mut has_spoken: Vec<Rank> = (0..self.size()).filter(|rank| key(*rank).is_none()).collect();
        loop {
            let (inner, spoken) = (Arc::downgrade(&self.0), has_spoken.clone());
            let lost: Producers = Arc::new(move || {
                Self(inner.upgrade()?).lost(|rank, _| !spoken.contains(&rank)).map(|(_, failure)| failure)
            });
            // Nobody ever counts that far: what ends this wait is a failure.
            let signals = self.0.signals.clone().with_producers(lost);
            let _ = signals.wait_any_async(&[(0, u64::MAX)], self.left(until)).await;
            let Some((rank, failure)) = self.lost(|rank, _| !has_spoken.contains(&rank)) else {
                return std::future::pending().await;
            };
            if let Some(key) = key(rank)
                && let Ok(None) = store.try_get_async(&key).await
            {
                return self.tell(rank, Error::failed(operation, Outcome::NotApplied, failure));
            }
            has_spoken.push(rank);
        }
    }

    /// That a rank has died, if one has: what every collective call then fails with.
    pub(crate) fn lost_error(&self, operation: &'static str) -> Option<Error> {
        let (rank, failure) = self.lost(|_, failure| failure.cause != Cause::Left)?;
        Some(self.tell(rank, Error::failed(operation, Outcome::NotApplied, failure)))
    }

    /// The first rank of these that is known to have failed.
    fn lost(&self, is_one: impl Fn(Rank, &Failure) -> bool) -> Option<(Rank, Arc<Failure>)> {
        self.0.context.failures().into_iter().find_map(|(incarnation, failure)| {
            let members = self.0.members.iter().enumerate();
            let mut ranks = members.filter(|(_, member)| member.incarnation == incarnation);
            let rank = ranks.next()?.0 as Rank;
            is_one(rank, &failure).then_some((rank, failure))
        })
    }

    /// The barrier over links that are all there already, without a task.
    fn barrier_fast(&self) -> Option<Result<()>> {
        let size = self.size();
        let mut count = self.0.barriers.try_lock().ok()?;
        let rounds = rounds(size);
        for round in 0..rounds {
            self.0.links[self.towards(round) as usize].lock().as_ref()?;
        }
        *count += 1;
        // One clock for all rounds; a single one has all of the time.
        let until = (rounds > 1).then(|| self.until());
        for round in 0..rounds {
            let to = self.towards(round);
            let link = self.0.links[to as usize].lock().clone()?;
            if let Err(error) = link.signal(round, 1) {
                return Some(Err(self.tell(to, error)));
            }
            let from = self.from(round);
            let left = until.map_or(self.timeout(), |until| self.left(until));
            if let Err(error) = self.round(from).signal(round).and_then(|s| s.wait_at_least(*count, left)) {
                return Some(Err(self.tell_root(from, error)));
            }
        }
        Some(Ok(()))
    }

    /// The async form of [`Team::barrier`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// None: a barrier that was begun and dropped leaves the team's barriers out of step.
    pub async fn barrier_async(&self) -> Result<()> {
        let until = self.until();
        let mut count = self.0.barriers.lock().await;
        *count += 1;
        for round in 0..rounds(self.size()) {
            let to = self.towards(round);
            let link = self.within(until, "barrier", to, self.link(to)).await?;
            link.with_room(|| link.signal(round, 1)).await.map_err(|e| self.tell(to, e))?;
            let from = self.from(round);
            let signal = self.round(from).signal(round)?;
            let came = signal.wait_at_least_async(*count, self.left(until)).await;
            came.map_err(|e| self.tell_root(from, e))?;
        }
        Ok(())
    }

    /// A step with one rank, which has to be over by then.
    pub(crate) async fn within<T>(
        &self,
        until: Instant,
        operation: &'static str,
        rank: Rank,
        step: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.0.context.clock().timeout(self.left(until), step).await.unwrap_or_else(|| {
            Err(Error::Expired {
                operation,
                rank: Some(rank),
                after: self.timeout(),
                detail: "it does not answer".into(),
                outcome: None,
            })
        })
    }

    fn towards(&self, round: u32) -> Rank {
        ((u64::from(self.rank()) + (1 << round)) % u64::from(self.size())) as Rank
    }

    fn from(&self, round: u32) -> Rank {
        let size = u64::from(self.size());
        ((u64::from(self.rank()) + size - ((1 << round) % size)) % size) as Rank
    }

    /// The signals of a barrier, as one rank adds to them. A rank that died is missed by all, wherever each of them stands;
    /// one that left in good order has passed the last barrier that it cares for.
    fn round(&self, from: Rank) -> Signals {
        let inner = Arc::downgrade(&self.0);
        self.0.signals.clone().with_producers(Arc::new(move || {
            let is_missed = |rank, failure: &Failure| rank == from || failure.cause != Cause::Left;
            Self(inner.upgrade()?).lost(is_missed).map(|(_, failure)| failure)
        }))
    }

    /// The error of a wait for one rank, told of the rank that it follows from.
    fn tell_root(&self, from: Rank, error: Error) -> Error {
        let root = error.root().and_then(|failure| failure.incarnation);
        let rank = root.and_then(|root| self.0.members.iter().position(|m| m.incarnation == root));
        self.tell(rank.map_or(from, |rank| rank as Rank), error)
    }

    /// Splits the team: ranks with the same color form a new one, in the order of their keys, then of their ranks.
    /// Collective; `None` as color takes part and gets no team.
    ///
    /// # Errors
    /// As for [`TeamBuilder::build`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        self.block_on("split", self.split_async(color, key))?
    }

    /// The async form of [`Team::split`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// None: the other members wait for this one.
    pub async fn split_async(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        const OPERATION: &str = "split";
        let until = self.until();
        let number = self.0.splits.fetch_add(1, Ordering::Relaxed);
        let store = self.0.store.prefix(&format!("split/{number}"));
        let mine = match color {
            Some(color) => format!("{color} {key}"),
            None => "none".into(),
        };
        store.set_async(&format!("{}", self.rank()), mine.as_bytes()).await?;
        let said = self.all_say(OPERATION, &store, until).await?;
        let Some(color) = color else { return Ok(None) };
        let mut members = Vec::new();
        for (rank, said) in said.iter().enumerate() {
            let said = String::from_utf8_lossy(said);
            let Some((theirs, key)) = said.split_once(' ') else { continue };
            let malformed =
                |_| Error::Malformed { what: "split record", why: format!("rank {rank} wrote {said:?}") };
            let (theirs, key): (u32, u32) =
                (theirs.parse().map_err(malformed)?, key.parse().map_err(malformed)?);
            if theirs == color {
                members.push((key, rank as Rank));
            }
        }
        members.sort_unstable();
        let rank = members
            .iter()
            .position(|(_, rank)| *rank == self.rank())
            .ok_or_else(|| Error::invalid(OPERATION, "this rank is not among its own color"))?;
        let meet = Meet {
            context: self.0.context.clone(),
            store: store.prefix(&format!("color/{color}")),
            launch: self
                .0
                .launch
                .as_ref()
                .and_then(|(store, ranks)| Some((store.clone(), *ranks.get(self.rank() as usize)?))),
            server: None,
            rank: rank as Rank,
            size: members.len() as u32,
            epoch: self.epoch(),
            timeout: self.timeout(),
        };
        let place = |rank| members.iter().position(|(_, member)| *member == rank);
        let key = |rank| place(rank).map(|place| format!("rank/{place}"));
        let there = meet.store.clone();
        self.unless_lost(OPERATION, &there, key, until, meet.meet_until(until)).await.map(Some)
    }

    /// Which way each rank is reached by the team's own signals, as far as it was needed.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut out = format!("rank {} of {}, epoch {}", self.rank(), self.size(), self.epoch());
        for (rank, link) in self.0.links.iter().enumerate() {
            if let Some(link) = link.lock().as_ref() {
                out.push_str(&format!("\nrank {rank}: {}", link.explain()));
            }
        }
        for (name, error) in self.0.context.unusable() {
            out.push_str(&format!("\n{name}: {error}"));
        }
        out
    }

    /// The memory of its own signals.
    #[must_use]
    pub fn control(&self) -> &MemoryRegion {
        &self.0.control
    }
}

/// Rounds of a barrier: the logarithm of the size, upwards.
fn rounds(size: u32) -> u32 {
    u32::BITS - (size - 1).leading_zeros()
}
