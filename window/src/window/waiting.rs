//! Signals, fence and flush.

use super::*;

impl Window {
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
    pub(super) fn flush_slow(&self, rank: Rank) -> Result<()> {
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
}
