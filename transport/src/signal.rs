//! Waiting for signals in the process's own memory.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use transom_registry::{Error, Failure, MemoryRegion, Outcome, Result};

use crate::progress::{Condition, Progress};

/// Tells whether everybody who could still add to a signal has failed, and by which failure.
pub type Producers = Arc<dyn Fn() -> Option<Arc<Failure>> + Send + Sync>;

/// Signals of a region of this process: what it can wait for.
#[derive(Clone)]
pub struct Signals {
    region: MemoryRegion,
    progress: Arc<Progress>,
    producers: Option<Producers>,
    name: Option<Name>,
}

/// Says in an error what it knows of who failed.
type Name = Arc<dyn Fn(Error) -> Error + Send + Sync>;

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("region", &self.region).finish_non_exhaustive()
    }
}

/// One signal of a region of this process.
#[derive(Debug, Clone)]
pub struct Signal {
    signals: Signals,
    id: u32,
}

struct Wanted {
    signals: Signals,
    wanted: Box<[(u32, u64)]>,
    all: bool,
}

impl Wanted {
    /// The index of a signal that is there; with `all`, of the last one, when all are.
    fn found(&self) -> Option<usize> {
        let mut last = None;
        for (index, &(id, at_least)) in self.wanted.iter().enumerate() {
            let there = self.signals.region.signal(id).is_ok_and(|value| value >= at_least);
            match (there, self.all) {
                (true, false) => return Some(index),
                (false, true) => return None,
                _ => last = Some(index),
            }
        }
        if self.all { last } else { None }
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.signals.producers.as_ref().and_then(|producers| producers())
    }

    /// Nobody can add any more: the context is closed, or everybody has failed.
    fn end(&self) -> Option<Error> {
        if let Err(closed) = self.signals.progress.check_open("signal wait") {
            return Some(closed);
        }
        self.failure().map(|failure| Error::failed("signal wait", Outcome::NotApplied, failure))
    }

    /// A signal that did arrive wins over the failure.
    fn answer(&self) -> Option<Result<usize>> {
        if let Some(index) = self.found() {
            return Some(Ok(index));
        }
        let end = self.end()?;
        if let Some(index) = self.found() {
            return Some(Ok(index));
        }
        Some(Err(match &self.signals.name {
            Some(name) => name(end),
            None => end,
        }))
    }

    fn expired(&self, after: Duration) -> Error {
        let missing = self
            .wanted
            .iter()
            .filter_map(|&(id, at_least)| {
                let value = self.signals.region.signal(id).ok()?;
                (value < at_least).then(|| format!("signal {id} is {value}, waiting for {at_least}"))
            })
            .take(4)
            .collect::<Vec<_>>();
        Error::Expired {
            operation: "signal wait",
            rank: None,
            after,
            detail: missing.join("; "),
            outcome: None,
        }
    }
}

impl Condition for Wanted {
    fn is_over(&self) -> bool {
        self.found().is_some() || self.end().is_some()
    }
}

struct Waits {
    wanted: Arc<Wanted>,
    id: Option<u64>,
}

impl Future for Waits {
    type Output = Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Some(answer) = self.wanted.answer() {
            return Poll::Ready(answer);
        }
        let progress = self.wanted.signals.progress.clone();
        progress.drive_in_passing();
        let condition: Arc<dyn Condition> = self.wanted.clone();
        self.id = Some(progress.wait_for(self.id, &condition, cx.waker()));
        // Registered and armed: whoever adds from now on wakes us. Look once more for whoever did before.
        match self.wanted.answer() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.wanted.signals.progress.stop_waiting(id);
        }
    }
}

impl Signals {
    pub(crate) fn new(region: &MemoryRegion, progress: &Arc<Progress>) -> Self {
        Self { region: region.clone(), progress: progress.clone(), producers: None, name: None }
    }

    /// The same signals; their waits end with a failure once `producers` tells one.
    #[must_use]
    pub fn with_producers(mut self, producers: Producers) -> Self {
        self.producers = Some(producers);
        self
    }

    /// The same signals; `name` adds to the error of a wait that failed what it knows: the number of a rank.
    #[must_use]
    pub fn with_names(mut self, name: impl Fn(Error) -> Error + Send + Sync + 'static) -> Self {
        self.name = Some(Arc::new(name));
        self
    }

    /// The signal with this number.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the region has none.
    pub fn signal(&self, id: u32) -> Result<Signal> {
        self.region.signal_word(id)?;
        Ok(Signal { signals: self.clone(), id })
    }

    /// Waits until any of these signals (number, value) has at least its value. Returns the first one's index.
    ///
    /// # Errors
    /// [`Error::Expired`] at the deadline; [`Error::Failed`] when everybody who could add has failed.
    pub fn wait_any(&self, wanted: &[(u32, u64)], timeout: Duration) -> Result<usize> {
        self.wait(wanted, false, timeout)
    }

    /// Waits until all of these signals (number, value) have at least their values.
    ///
    /// # Errors
    /// As for [`Signals::wait_any`].
    pub fn wait_all(&self, wanted: &[(u32, u64)], timeout: Duration) -> Result<()> {
        self.wait(wanted, true, timeout).map(drop)
    }

    /// The async form of [`Signals::wait_any`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: signals are counters.
    pub async fn wait_any_async(&self, wanted: &[(u32, u64)], timeout: Duration) -> Result<usize> {
        self.wait_async(wanted, false, timeout).await
    }

    /// The async form of [`Signals::wait_all`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn wait_all_async(&self, wanted: &[(u32, u64)], timeout: Duration) -> Result<()> {
        self.wait_async(wanted, true, timeout).await.map(drop)
    }

    fn wanted(&self, wanted: &[(u32, u64)], all: bool) -> Result<Arc<Wanted>> {
        crate::fork::check("signal wait")?;
        if wanted.is_empty() {
            return Err(Error::invalid("signal wait", "no signal was named"));
        }
        for (id, _) in wanted {
            self.region.signal_word(*id)?;
        }
        Ok(Arc::new(Wanted { signals: self.clone(), wanted: wanted.into(), all }))
    }

    fn wait(&self, wanted: &[(u32, u64)], all: bool, timeout: Duration) -> Result<usize> {
        let wanted = self.wanted(wanted, all)?;
        self.progress.spin(timeout, || wanted.found().is_some());
        self.sleep(&wanted, timeout)
    }

    fn sleep(&self, wanted: &Arc<Wanted>, timeout: Duration) -> Result<usize> {
        if let Some(answer) = wanted.answer() {
            return answer;
        }
        let waits = Waits { wanted: wanted.clone(), id: None };
        match self.progress.block_on("signal wait", timeout, waits)? {
            Some(answer) => answer,
            None => Err(wanted.expired(timeout)),
        }
    }

    async fn wait_async(&self, wanted: &[(u32, u64)], all: bool, timeout: Duration) -> Result<usize> {
        let wanted = self.wanted(wanted, all)?;
        let waits = Waits { wanted: wanted.clone(), id: None };
        match self.progress.clock().timeout(timeout, waits).await {
            Some(answer) => answer,
            None => Err(wanted.expired(timeout)),
        }
    }
}

impl Signal {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its value now (acquire: whoever sees a value sees what was put before it).
    #[must_use]
    pub fn value(&self) -> u64 {
        self.signals.region.signal(self.id).unwrap_or(0)
    }

    /// Waits until it is at least `value`, and returns what it is then.
    ///
    /// # Errors
    /// [`Error::Expired`] at the deadline; [`Error::Failed`] when everybody who could add to it has failed: a value that
    /// did arrive wins.
    pub fn wait_at_least(&self, value: u64, timeout: Duration) -> Result<u64> {
        let word = self.signals.region.signal_word(self.id)?;
        let arrived = || word.load(std::sync::atomic::Ordering::Acquire) >= value;
        if !self.signals.progress.spin(timeout, arrived) {
            let wanted = self.signals.wanted(&[(self.id, value)], true)?;
            self.signals.sleep(&wanted, timeout)?;
        }
        Ok(self.value())
    }

    /// The async form of [`Signal::wait_at_least`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: signals are counters.
    pub async fn wait_at_least_async(&self, value: u64, timeout: Duration) -> Result<u64> {
        self.signals.wait_async(&[(self.id, value)], true, timeout).await?;
        Ok(self.value())
    }
}
