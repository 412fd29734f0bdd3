//! How a team is described, by hand or by the environment.

use super::*;

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
}
