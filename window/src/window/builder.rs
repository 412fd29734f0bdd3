//! Building a window: what ranks tell each other before it is there.

use super::*;

/// What building is called in errors.
const BUILD: &str = "build a window";
/// What a rank says to the others while they build: it has what follows; it cannot, for this reason; it cannot because
/// of another.
const HAS: u8 = 1;
const CANNOT: u8 = 0;
const FOLLOWS: u8 = 2;

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

impl<'a> WindowBuilder<'a> {
    pub(super) fn new(team: &'a Team) -> Self {
        Self { team, part: Part::Size(0), signals: DEFAULT_SIGNALS, access: Access::ALL }
    }

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
