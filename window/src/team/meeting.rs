//! The meeting in the store: one record for each rank.

use super::*;

/// Rounds of a barrier among [`MOST_RANKS`] ranks.
const ROUNDS: u32 = MOST_RANKS.ilog2();
/// Bytes of a team's own window: it has nothing but signals.
const CONTROL_SIZE: usize = 4096;

/// Everything that a team is made of, before it has met.
pub(super) struct Meet {
    pub(super) context: Context,
    pub(super) store: Store,
    /// Where the launcher tells how ranks end, and this one's rank of the launch.
    pub(super) launch: Option<(Store, Rank)>,
    pub(super) server: Option<Arc<StoreServer>>,
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) epoch: u64,
    pub(super) timeout: Duration,
}

impl Meet {
    pub(super) async fn meet(self) -> Result<Team> {
        let until = self.context.clock().now() + self.timeout;
        self.meet_until(until).await
    }

    pub(super) async fn meet_until(self, until: Instant) -> Result<Team> {
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
