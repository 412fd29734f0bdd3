use std::time::{Duration, Instant};

use transom_registry::{Error, Outcome, Result};

/// The moment at which a call on a store has to be over, and how long that was from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    /// The deadline that is this long from now. Durations over ten years count as ten years.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        let timeout = timeout.min(Duration::from_secs(10 * 365 * 24 * 3600));
        Self { at: Instant::now() + timeout, timeout }
    }

    /// When it is.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.at
    }

    /// What is left of it, zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// The error that says that it has passed; `detail` says what is missing, `outcome` what is known of a change.
    #[must_use]
    pub fn expired(
        &self,
        operation: &'static str,
        detail: impl Into<String>,
        outcome: Option<Outcome>,
    ) -> Error {
        Error::Expired { operation, rank: None, after: self.timeout, detail: detail.into(), outcome }
    }
}

/// Ends when the deadline has passed; inside a tokio runtime with timers.
pub(super) async fn passed(deadline: Deadline) -> Result<()> {
    tokio::time::sleep_until(deadline.at.into()).await;
    Ok(())
}
