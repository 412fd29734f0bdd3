//! The barrier.

use super::*;

impl Team {
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
}

/// Rounds of a barrier: the logarithm of the size, upwards.
fn rounds(size: u32) -> u32 {
    u32::BITS - (size - 1).leading_zeros()
}
