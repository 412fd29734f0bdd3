//! One region per rank of a team, addressed as (rank, byte offset).

use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use transom_registry::element;
use transom_registry::{Access, Error, Host, MemoryRegion, RemoteRegion, Result, Slice};
use transom_transport::route::{Route, Routes};
use transom_transport::{
    Atomic, Context, Dtype, Element, List, PeerRegion, Reduce, Request, Signal, Signals,
};

use crate::Rank;
use crate::store::Store;
use crate::team::Team;

/// Signals of a window that is not built with another number.
pub const DEFAULT_SIGNALS: u32 = 64;
/// What building is called in errors.
const BUILD: &str = "build a window";
/// What a rank says to the others while they build: it has what follows; it cannot, for this reason; it cannot because
/// of another.
const HAS: u8 = 1;
const CANNOT: u8 = 0;
const FOLLOWS: u8 = 2;

/// One region per rank of a team, addressed as (rank, byte offset).
///
/// The contract, the same on every transport:
/// - order and completion are per (window, target rank); two puts may land in any order, and the bytes of one in any
///   order, unless a [`fence`](Self::fence), a [`flush`](Self::flush) or a signal says otherwise;
/// - [`put`](Self::put) returns when its source may be reused, [`flush`](Self::flush) when everything to that rank is
///   delivered;
/// - whoever sees the signal of a [`put_signal`](Self::put_signal) sees its payload and every earlier put to that rank;
/// - `_from` and `_into` forms take registered memory without a copy and return a [`Request`].
///
/// Many threads may use one window at once. Dropping it is not collective and never blocks; [`close`](Self::close) is.
/// Errors name the rank.
pub struct Window {
    team: Team,
    number: u64,
    routes: Arc<Routes>,
    parts: Box<[PeerRegion]>,
    local: MemoryRegion,
    signals: Signals,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("team", &self.team)
            .field("number", &self.number)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Window`]; collective, but each rank may choose for itself what its part is.
#[derive(Debug)]
pub struct WindowBuilder<'a> {
    team: &'a Team,
    part: Part,
    signals: u32,
    access: Access,
}

#[derive(Debug)]
enum Part {
    Size(usize),
    Region(MemoryRegion),
}

impl WindowBuilder<'_> {
    /// This rank's part is new shared memory of this size in bytes. Ranks may choose different sizes.
    #[must_use]
    pub fn size(mut self, size: usize) -> Self {
        self.part = Part::Size(size);
        self
    }

    /// This rank's part is a region of its own, with the signals that it was registered with.
    #[must_use]
    pub fn region(mut self, region: &MemoryRegion) -> Self {
        self.part = Part::Region(region.clone());
        self
    }

    /// How many signals this rank's part has; [`DEFAULT_SIGNALS`] without it.
    #[must_use]
    pub fn signals(mut self, signals: u32) -> Self {
        self.signals = signals;
        self
    }

    /// What the other ranks may do with this rank's part; everything without it. New memory that they may neither write nor
    /// use atomics on is [sealed](transom_transport::HostBuilder::read_only_to_peers) against everybody but this process.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Builds the window with the other ranks. Returns when every rank's part can be reached.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Limit`]; [`Error::Expired`] that names the ranks that did not come;
    /// [`Error::Unreachable`].
    pub fn build(self) -> Result<Window> {
        let team = self.team;
        team.block_on(BUILD, self.build_async())?
    }

    /// The async form of [`WindowBuilder::build`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// None: the other ranks wait for this one.
    pub async fn build_async(self) -> Result<Window> {
        let team = self.team;
        let until = team.until();
        let number = team.next_window();
        let store = team.store().prefix(&format!("window/{number}"));
        let mine = self.part().and_then(|region| {
            let remote = region.export_for_epoch(0..region.size(), self.access, team.epoch())?;
            Ok((region, remote.to_bytes()))
        });
        let (local, remotes) = agree(team, &store, until, mine).await?;
        let opened = open_all(team, &remotes, until).await;
        let ((routes, parts), _) =
            agree(team, &store.prefix("open"), until, opened.map(|o| (o, vec![]))).await?;
        let others: Vec<Rank> = (0..team.size()).filter(|rank| *rank != team.rank()).collect();
        let signals = if others.is_empty() {
            team.context().signals(&local)
        } else {
            team.signals_from(&local, others)
        };
        let window = Window { team: team.clone(), number, routes, parts, local, signals };
        // The way that barriers take is there from now on, whatever becomes scarce later.
        team.barrier_async().await?;
        Ok(window)
    }

    fn part(&self) -> Result<MemoryRegion> {
        match &self.part {
            Part::Size(size) => {
                let read_only = self.access & (Access::WRITE | Access::ATOMIC) == Access::NONE;
                let memory = Host::builder(*size).read_only_to_peers(read_only).build()?;
                self.team.context().register(memory, self.signals)
            }
            Part::Region(region) => Ok(region.clone()),
        }
    }
}

/// Tells every rank what this one has, or why it has nothing, and returns with what all of them have. What one cannot do
/// is told to all, so that nobody waits for it until the deadline.
async fn agree<T>(
    team: &Team,
    store: &Store,
    until: Instant,
    mine: Result<(T, Vec<u8>)>,
) -> Result<(T, Vec<Vec<u8>>)> {
    // A peer that gave up has taken its region with it, and one that died is missed by all: the reason is to be told.
    let follows = matches!(mine, Err(Error::Stale { .. } | Error::Failed(_) | Error::Unreachable { .. }));
    let said = match &mine {
        Ok((_, said)) => [&[HAS], &said[..]].concat(),
        Err(error) => [&[if follows { FOLLOWS } else { CANNOT }], error.to_string().as_bytes()].concat(),
    };
    store.set_async(&team.rank().to_string(), &said).await?;
    let mine = match mine {
        Err(error) if !follows => return Err(error),
        mine => mine,
    };
    let mut all = team.all_say(BUILD, store, until).await?;
    let said = |reason| all.iter().position(|said| said.first() == Some(&reason));
    if let Some(rank) = said(CANNOT).or_else(|| said(FOLLOWS)) {
        let failed = match all[rank].first() {
            Some(&FOLLOWS) => team.soon_lost_error(BUILD, until).await,
            _ => team.lost_error(BUILD),
        };
        if let Some(failed) = failed {
            return Err(failed);
        }
        if rank == team.rank() as usize {
            mine?;
        }
        let why = format!("rank {rank} could not: {}", String::from_utf8_lossy(&all[rank][1..]));
        return Err(Error::invalid(BUILD, why));
    }
    let (mine, _) = mine?;
    for (rank, said) in all.iter_mut().enumerate() {
        if said.first() != Some(&HAS) {
            let why = format!("rank {rank} wrote {said:?}");
            return Err(Error::Malformed { what: "window record", why });
        }
        said.remove(0);
    }
    Ok((mine, all))
}

/// Opens every rank's part at once: the time is that of the slowest, not the sum.
async fn open_all(
    team: &Team,
    remotes: &[Vec<u8>],
    until: Instant,
) -> Result<(Arc<Routes>, Box<[PeerRegion]>)> {
    let routes = &Routes::new(remotes.len())?;
    let mut opening: Vec<_> = remotes
        .iter()
        .enumerate()
        .map(|(rank, remote)| {
            Some(Box::pin(team.within(until, BUILD, rank as Rank, async move {
                let remote = RemoteRegion::from_bytes(remote)?;
                let peer = team.context().connect_async(&remote).await?;
                peer.open_in(&remote, routes, rank).await.map(|part| part.with_timeout(team.timeout()))
            })))
        })
        .collect();
    let mut opened: Vec<Option<Result<PeerRegion>>> = remotes.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (rank, slot) in opening.iter_mut().enumerate() {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    opened[rank] = Some(result.map_err(|e| team.tell(rank as Rank, e)));
                    *slot = None;
                }
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let parts = opened.into_iter().flatten().collect::<Result<_>>()?;
    Ok((routes.clone(), parts))
}

impl Window {
    /// A window of `size` bytes at every rank, all rights, [`DEFAULT_SIGNALS`] signals. Collective. Returns when every
    /// rank's part can be reached.
    ///
    /// # Errors
    /// As for [`WindowBuilder::build`].
    pub fn allocate(team: &Team, size: usize) -> Result<Self> {
        Self::builder(team).size(size).build()
    }

    /// A window in which this rank's part is a region of its own. Collective.
    ///
    /// # Errors
    /// As for [`WindowBuilder::build`].
    pub fn create(team: &Team, region: &MemoryRegion) -> Result<Self> {
        Self::builder(team).region(region).build()
    }

    /// Begins to build a window.
    #[must_use]
    pub fn builder(team: &Team) -> WindowBuilder<'_> {
        WindowBuilder { team, part: Part::Size(0), signals: DEFAULT_SIGNALS, access: Access::ALL }
    }

    /// Its team.
    #[must_use]
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// This rank's own part.
    #[must_use]
    pub fn local(&self) -> &MemoryRegion {
        &self.local
    }

    /// A rank's part, with the calls of a [`PeerRegion`].
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn part(&self, rank: Rank) -> Result<&PeerRegion> {
        self.find("window", rank)
    }

    /// Size of a rank's part in bytes.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn size(&self, rank: Rank) -> Result<u64> {
        Ok(self.find("size", rank)?.size())
    }

    fn find(&self, operation: &'static str, rank: Rank) -> Result<&PeerRegion> {
        match self.parts.get(rank as usize) {
            Some(part) => Ok(part),
            None => Err(Error::NoSuchRank { operation, rank, size: self.team.size() }),
        }
    }

    #[inline(always)]
    fn route(&self, rank: Rank) -> Option<Route<'_>> {
        self.routes.at(rank as usize)
    }

    fn tell<T>(&self, rank: Rank, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.team.tell(rank, error))
    }

    fn request(
        &self,
        operation: &'static str,
        rank: Rank,
        begin: impl FnOnce(&PeerRegion) -> Result<Request>,
    ) -> Result<Request> {
        self.tell(rank, begin(self.find(operation, rank)?)).map(|request| request.at_rank(rank))
    }

    /// Writes `from` at `offset` of a rank's part. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn put(&self, rank: Rank, offset: u64, from: &[u8]) -> Result<()> {
        if self.route(rank).is_some_and(|route| route.put(offset, from)) {
            Ok(())
        } else {
            self.put_slow(rank, offset, from)
        }
    }

    #[cold]
    #[inline(never)]
    fn put_slow(&self, rank: Rank, offset: u64, from: &[u8]) -> Result<()> {
        self.tell(rank, self.find("put", rank)?.put(offset, from))
    }

    /// Reads into `into` from `offset` of a rank's part. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn get(&self, rank: Rank, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.route(rank).is_some_and(|route| route.get(offset, into)) {
            Ok(())
        } else {
            self.get_slow(rank, offset, into)
        }
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, rank: Rank, offset: u64, into: &mut [u8]) -> Result<()> {
        self.tell(rank, self.find("get", rank)?.get(offset, into))
    }

    /// Writes `from`, then adds `add` to a signal of that rank: see [`PeerRegion::put_signal`].
    ///
    /// # Errors
    /// As there; [`Error::NoSuchRank`].
    #[inline]
    pub fn put_signal(&self, rank: Rank, offset: u64, from: &[u8], signal: u32, add: u64) -> Result<()> {
        if let Some(route) = self.route(rank)
            && route.has_signal(signal)
            && route.put(offset, from)
        {
            match route.signal(signal, add) {
                Some(false) => return Ok(()),
                Some(true) => return self.ring(rank),
                None => {}
            }
        }
        self.put_signal_slow(rank, offset, from, signal, add)
    }

    #[cold]
    #[inline(never)]
    fn ring(&self, rank: Rank) -> Result<()> {
        self.find("signal", rank)?.ring();
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn put_signal_slow(&self, rank: Rank, offset: u64, from: &[u8], signal: u32, add: u64) -> Result<()> {
        self.tell(rank, self.find("put_signal", rank)?.put_signal(offset, from, signal, add))
    }

    /// Adds to a signal of a rank, after everything before it to that rank is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::signal`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn send_signal(&self, rank: Rank, signal: u32, add: u64) -> Result<()> {
        match self.route(rank).and_then(|route| route.signal(signal, add)) {
            Some(false) => Ok(()),
            Some(true) => self.ring(rank),
            None => self.tell(rank, self.find("signal", rank)?.signal(signal, add)),
        }
    }

    /// One of this rank's own signals, to wait for. A wait fails once every other rank has failed.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such signal.
    pub fn signal(&self, id: u32) -> Result<Signal> {
        self.signals.signal(id)
    }

    /// This rank's own signals, to wait for any or all of several.
    #[must_use]
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// This rank's own signals as these ranks add to them: a wait fails once all of them have failed.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Invalid`] for no ranks.
    pub fn signals_from(&self, ranks: &[Rank]) -> Result<Signals> {
        const OPERATION: &str = "signals_from";
        if ranks.is_empty() {
            return Err(Error::invalid(OPERATION, "no rank was named"));
        }
        for rank in ranks {
            self.team.check_rank(OPERATION, *rank)?;
        }
        Ok(self.team.signals_from(&self.local, ranks.to_vec()))
    }

    /// Orders what was issued to a rank before it before what is issued after it. Never waits.
    ///
    /// # Errors
    /// As for [`PeerRegion::fence`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn fence(&self, rank: Rank) -> Result<()> {
        if self.route(rank).is_some_and(Route::flush) {
            return Ok(());
        }
        self.tell(rank, self.find("fence", rank)?.fence())
    }

    /// Waits until everything that was issued to a rank before, by any thread, is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::flush`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn flush(&self, rank: Rank) -> Result<()> {
        if self.route(rank).is_some_and(Route::flush) { Ok(()) } else { self.flush_slow(rank) }
    }

    #[cold]
    #[inline(never)]
    fn flush_slow(&self, rank: Rank) -> Result<()> {
        self.tell(rank, self.find("flush", rank)?.flush())
    }

    /// Flushes every rank. All are waited for; the first failure is told.
    ///
    /// # Errors
    /// As for [`Window::flush`].
    pub fn flush_all(&self) -> Result<()> {
        let mut first = Ok(());
        for rank in 0..self.team.size() {
            let flushed = self.flush(rank);
            first = first.and(flushed);
        }
        first
    }

    /// The async form of [`Window::flush`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait, and nothing else.
    pub async fn flush_async(&self, rank: Rank) -> Result<()> {
        let flushed = self.find("flush", rank)?.flush_async().await;
        self.tell(rank, flushed)
    }

    /// The async form of [`Window::flush_all`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As for [`Window::flush_async`].
    pub async fn flush_all_async(&self) -> Result<()> {
        let mut first = Ok(());
        for rank in 0..self.team.size() {
            let flushed = self.flush_async(rank).await;
            first = first.and(flushed);
        }
        first
    }

    /// Writes registered memory without a copy on this side. The request resolves when it is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::put_from`]; [`Error::NoSuchRank`].
    pub fn put_from(&self, rank: Rank, offset: u64, from: Slice) -> Result<Request> {
        self.request("put", rank, |part| part.put_from(offset, from))
    }

    /// As [`Window::put_from`], then adds to a signal.
    ///
    /// # Errors
    /// As there.
    pub fn put_signal_from(
        &self,
        rank: Rank,
        offset: u64,
        from: Slice,
        signal: u32,
        add: u64,
    ) -> Result<Request> {
        self.request("put_signal", rank, |part| part.put_signal_from(offset, from, signal, add))
    }

    /// Reads into registered memory. The request resolves when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get_into`]; [`Error::NoSuchRank`].
    pub fn get_into(&self, rank: Rank, offset: u64, into: Slice) -> Result<Request> {
        self.request("get", rank, |part| part.get_into(offset, into))
    }

    /// Writes bytes to the parts of a list: consecutive ones, or those at its places. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put_list`]; [`Error::NoSuchRank`].
    pub fn put_list(&self, rank: Rank, list: &List, from: &[u8]) -> Result<()> {
        self.tell(rank, self.find("put_list", rank)?.put_list(list, from))
    }

    /// As [`Window::put_list`], from registered memory.
    ///
    /// # Errors
    /// As there.
    pub fn put_list_from(&self, rank: Rank, list: &List, from: Slice) -> Result<Request> {
        self.request("put_list", rank, |part| part.put_list_from(list, from))
    }

    /// Reads the parts of a list into consecutive bytes, or to its places. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get_list`]; [`Error::NoSuchRank`].
    pub fn get_list(&self, rank: Rank, list: &List, into: &mut [u8]) -> Result<()> {
        self.tell(rank, self.find("get_list", rank)?.get_list(list, into))
    }

    /// As [`Window::get_list`], into registered memory.
    ///
    /// # Errors
    /// As there.
    pub fn get_list_into(&self, rank: Rank, list: &List, into: Slice) -> Result<Request> {
        self.request("get_list", rank, |part| part.get_list_into(list, into))
    }

    /// Adds to the 64-bit word at `offset` of a rank's part and returns what was there.
    ///
    /// # Errors
    /// As for [`PeerRegion::fetch_add`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn fetch_add(&self, rank: Rank, offset: u64, add: u64) -> Result<u64> {
        match self.route(rank).and_then(|route| route.word64(offset)) {
            Some(word) => Ok(word.fetch_add(add, std::sync::atomic::Ordering::SeqCst)),
            None => self.atomic(rank, Atomic::Add, 8, offset, add, 0),
        }
    }

    /// Stores `value` in the 64-bit word at `offset` of a rank's part and returns what was there.
    ///
    /// # Errors
    /// As for [`Window::fetch_add`].
    pub fn swap(&self, rank: Rank, offset: u64, value: u64) -> Result<u64> {
        self.atomic(rank, Atomic::Swap, 8, offset, value, 0)
    }

    /// Stores `value` in the 64-bit word at `offset` if it is `expected`, and returns what was there.
    ///
    /// # Errors
    /// As for [`Window::fetch_add`].
    pub fn compare_swap(&self, rank: Rank, offset: u64, expected: u64, value: u64) -> Result<u64> {
        self.atomic(rank, Atomic::CompareSwap, 8, offset, value, expected)
    }

    /// Any fetching atomic on a word of 4 or 8 bytes: see [`PeerRegion::atomic`].
    ///
    /// # Errors
    /// As there; [`Error::NoSuchRank`].
    pub fn atomic(
        &self,
        rank: Rank,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<u64> {
        self.tell(rank, self.find("atomic", rank)?.atomic(atomic, width, offset, operand, compare))
    }

    /// The async form of [`Window::atomic`].
    ///
    /// # Errors
    /// As there.
    pub fn atomic_request(
        &self,
        rank: Rank,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<Request> {
        self.request("atomic", rank, |part| part.atomic_request(atomic, width, offset, operand, compare))
    }

    /// Reduces elements into those at `offset` of a rank's part, each atomically against every other accumulate on the
    /// window.
    ///
    /// # Errors
    /// As for [`PeerRegion::accumulate`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn accumulate<T: Element>(&self, rank: Rank, offset: u64, from: &[T], reduce: Reduce) -> Result<()> {
        let from = element::as_bytes(from);
        match self.route(rank).map_or(0, |route| route.accumulate(T::DTYPE, reduce, offset, from)) {
            done if done > 0 && done == from.len() => Ok(()),
            done => self.accumulate_rest(rank, offset, from, T::DTYPE, reduce, done),
        }
    }

    #[cold]
    #[inline(never)]
    fn accumulate_rest(
        &self,
        rank: Rank,
        offset: u64,
        from: &[u8],
        dtype: Dtype,
        reduce: Reduce,
        done: usize,
    ) -> Result<()> {
        let part = self.find("accumulate", rank)?;
        self.tell(rank, part.accumulate_rest(offset, from, dtype, reduce, done))
    }

    /// As [`Window::accumulate`], from registered memory.
    ///
    /// # Errors
    /// As there.
    pub fn accumulate_from(
        &self,
        rank: Rank,
        offset: u64,
        from: Slice,
        dtype: Dtype,
        reduce: Reduce,
    ) -> Result<Request> {
        self.request("accumulate", rank, |part| part.accumulate_from(offset, from, dtype, reduce))
    }

    /// The 64-bit word at `offset` (a multiple of 8) of a rank's part, resolved once: its operations cost a store, or a
    /// locked instruction, and one look at whether the rank lives.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn at(&self, rank: Rank, offset: u64) -> Result<Slot<'_>> {
        const OPERATION: &str = "at";
        let part = self.find(OPERATION, rank)?;
        let limit = part.size();
        if limit < 8 || offset > limit - 8 {
            return Err(Error::OutOfRange { operation: OPERATION, offset, size: 8, limit });
        }
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: 8 });
        }
        let word = self.route(rank).and_then(|route| route.slot(offset));
        Ok(Slot { window: self, rank, offset, word })
    }

    /// Tells this rank's part to processes outside of the team, in the store under this name: late readers, standbys and
    /// restarted programs open it by [`Window::open_published`].
    ///
    /// # Errors
    /// As for [`Store::set`]; [`Error::Access`].
    pub fn publish(&self, store: &Store, name: &str, access: Access) -> Result<()> {
        let remote = self.local.export(0..self.local.size(), access)?;
        store.set(&published(name, self.team.rank()), &remote.to_bytes())
    }

    /// The async form of [`Window::publish`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the part published or not.
    pub async fn publish_async(&self, store: &Store, name: &str, access: Access) -> Result<()> {
        let remote = self.local.export(0..self.local.size(), access)?;
        store.set_async(&published(name, self.team.rank()), &remote.to_bytes()).await
    }

    /// Opens one rank's part of a window that was published under this name, from outside of its team. Waits until it is
    /// there.
    ///
    /// # Errors
    /// [`Error::Expired`]; as for [`Context::connect`] and [`transom_transport::Peer::open`].
    pub fn open_published(
        context: &Context,
        store: &Store,
        name: &str,
        rank: Rank,
        timeout: Duration,
    ) -> Result<PeerRegion> {
        let opening = Self::open_published_async(context, store, name, rank, timeout);
        context.block_on("open_published", timeout.saturating_add(context.timeout()), opening)?
    }

    /// The async form of [`Window::open_published`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up.
    pub async fn open_published_async(
        context: &Context,
        store: &Store,
        name: &str,
        rank: Rank,
        timeout: Duration,
    ) -> Result<PeerRegion> {
        let remote = RemoteRegion::from_bytes(&store.get_async(&published(name, rank), timeout).await?)?;
        context.connect_async(&remote).await?.open_async(&remote).await
    }

    /// Which way each rank is reached, and why the better ones are not taken; one line a rank.
    #[must_use]
    pub fn explain(&self) -> String {
        let lines: Vec<String> = self
            .parts
            .iter()
            .enumerate()
            .map(|(rank, part)| format!("rank {rank}: {}", part.explain()))
            .collect();
        lines.join("\n")
    }

    /// Ends the window with the other ranks: flushes, then waits until every rank has stopped using it, so that no rank's
    /// memory goes before its last peer is done. Collective.
    ///
    /// # Errors
    /// The first late failure; as for [`Team::barrier`]. The window is gone in any case.
    pub fn close(self) -> Result<()> {
        let flushed = self.flush_all();
        let met = self.team.barrier();
        for part in &self.parts {
            let _ = part.close();
        }
        flushed.and(met)
    }

    /// The async form of [`Window::close`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// None: the other ranks wait for this one.
    pub async fn close_async(self) -> Result<()> {
        let flushed = self.flush_all_async().await;
        let met = self.team.barrier_async().await;
        for part in &self.parts {
            let _ = part.close();
        }
        flushed.and(met)
    }
}

fn published(name: &str, rank: Rank) -> String {
    format!("published/{name}/{rank}")
}

/// A 64-bit word of a rank's part, resolved once by [`Window::at`].
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    window: &'a Window,
    rank: Rank,
    offset: u64,
    word: Option<transom_transport::route::Slot<'a>>,
}

impl Slot<'_> {
    /// Writes the word.
    ///
    /// # Errors
    /// As for [`Window::put`].
    #[inline(always)]
    pub fn put(&self, value: u64) -> Result<()> {
        match self.word.and_then(|word| word.put()) {
            Some(word) => {
                word.store(value, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            }
            None => self.window.put_slow(self.rank, self.offset, &value.to_le_bytes()),
        }
    }

    /// Waits until what was put is delivered.
    ///
    /// # Errors
    /// As for [`Window::flush`].
    #[inline(always)]
    pub fn flush(&self) -> Result<()> {
        if self.word.is_some_and(|word| word.flush()) { Ok(()) } else { self.window.flush_slow(self.rank) }
    }

    /// Adds to the word and returns what was there.
    ///
    /// # Errors
    /// As for [`Window::fetch_add`].
    #[inline(always)]
    pub fn fetch_add(&self, add: u64) -> Result<u64> {
        match self.word.and_then(|word| word.atomic()) {
            Some(word) => Ok(word.fetch_add(add, std::sync::atomic::Ordering::SeqCst)),
            None => self.window.fetch_add(self.rank, self.offset, add),
        }
    }
}
