//! One region per rank of a team, addressed as (rank, byte offset).

mod atomics;
mod builder;
mod moving;
mod publishing;
mod waiting;

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

pub use atomics::Slot;
pub use builder::WindowBuilder;

use crate::Rank;
use crate::store::Store;
use crate::team::Team;

/// Signals of a window that is not built with another number.
pub const DEFAULT_SIGNALS: u32 = 64;

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
        WindowBuilder::new(team)
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
