//! Ranks that are lost: who is told of them, and in which words.

use super::*;

/// How long an error waits for the launcher to say how a rank ended.
const VERDICT: Duration = Duration::from_millis(50);
/// How long a rank that hears of another's trouble waits to see a death that explains it.
const TROUBLE: Duration = Duration::from_millis(500);

impl Team {
    /// Why a rank failed, as far as this one knows: `None` while it lives.
    #[must_use]
    pub fn failure(&self, rank: Rank) -> Option<Arc<Failure>> {
        self.0.context.failure_of(self.0.members.get(rank as usize)?.incarnation)
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
    pub(super) async fn unless_lost<T>(
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
    pub(super) fn lost(&self, is_one: impl Fn(Rank, &Failure) -> bool) -> Option<(Rank, Arc<Failure>)> {
        self.0.context.failures().into_iter().find_map(|(incarnation, failure)| {
            let members = self.0.members.iter().enumerate();
            let mut ranks = members.filter(|(_, member)| member.incarnation == incarnation);
            let rank = ranks.next()?.0 as Rank;
            is_one(rank, &failure).then_some((rank, failure))
        })
    }

    /// The error of a wait for one rank, told of the rank that it follows from.
    pub(super) fn tell_root(&self, from: Rank, error: Error) -> Error {
        let root = error.root().and_then(|failure| failure.incarnation);
        let rank = root.and_then(|root| self.0.members.iter().position(|m| m.incarnation == root));
        self.tell(rank.map_or(from, |rank| rank as Rank), error)
    }
}
