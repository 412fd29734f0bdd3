//! Failures of operations that nobody holds a request for: kept until the next flush or close tells of them.

use std::sync::atomic::Ordering;

use transom_registry::{Cause, Error, Failure, Outcome, Result};

use crate::sync::{AtomicBool, Mutex};

/// The late failures of one region of one peer. From the first one until it is told, later operations there are not
/// applied.
#[derive(Debug, Default)]
pub(crate) struct Late {
    failed: AtomicBool,
    first: Mutex<Option<(Error, u64)>>,
}

impl Late {
    /// Keeps a failure: the first one, and how many there were. A transport may tell of what follows from a failure before
    /// it tells of that one, which then takes its place.
    pub(crate) fn record(&self, error: Error) {
        let mut first = self.first.lock();
        match &mut *first {
            Some((kept, count)) => {
                *count += 1;
                if follows(kept) && !follows(&error) {
                    *kept = error;
                }
            }
            None => *first = Some((error, 1)),
        }
        self.failed.store(true, Ordering::Release);
    }

    /// Whether there is a failure that was not told yet.
    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Refuses an operation that would overtake a lost one.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if !self.is_failed() {
            return Ok(());
        }
        let observed = match &*self.first.lock() {
            Some((error, _)) => format!("{error}; flush to be told, and to go on"),
            None => return Ok(()),
        };
        Err(Error::failed(operation, Outcome::NotApplied, Failure::new(None, Cause::Earlier, observed)))
    }

    /// Tells of the failures, once: the first one with the count.
    pub(crate) fn take(&self) -> Option<Error> {
        let mut first = self.first.lock();
        let (error, count) = first.take()?;
        self.failed.store(false, Ordering::Release);
        Some(error.first_of(count))
    }
}

/// Whether an operation failed only because one before it did.
fn follows(error: &Error) -> bool {
    error.root().is_some_and(|failure| failure.cause == Cause::Earlier)
}

#[cfg(all(test, not(transom_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_told_once_with_the_count() {
        let late = Late::default();
        late.check("put").unwrap();
        let failure = Failure::new(None, Cause::ConnectionLost, "reset");
        for operation in ["put", "signal", "put"] {
            late.record(Error::failed(operation, Outcome::InDoubt, failure.clone()));
        }
        assert_eq!(late.check("get").unwrap_err().outcome(), Some(Outcome::NotApplied));
        let told = late.take().unwrap();
        assert!(told.to_string().contains("put in doubt, the first of 3 operations"), "{told}");
        assert!(late.take().is_none());
        late.check("get").unwrap();
    }

    #[test]
    fn a_first_failure_of_any_cause_keeps_the_count() {
        let torn = || Error::Torn { operation: "accumulate", offset: 0, size: 4096 };
        for (first, alone) in [
            (Error::refused(Error::invalid("put", "bad")), "refused by the target: put: bad"),
            (torn(), "being accumulated"),
        ] {
            let late = Late::default();
            late.record(first.clone());
            assert!(late.take().unwrap().to_string().contains(alone));
            for _ in 0..3 {
                late.record(first.clone());
            }
            let told = late.take().unwrap();
            assert!(told.to_string().contains("the first of 3 operations"), "{told}");
            assert_eq!(first.outcome(), told.outcome());
        }
    }

    #[test]
    fn what_follows_from_a_failure_is_not_told_in_its_place() {
        let late = Late::default();
        let earlier = Failure::new(None, Cause::Earlier, "refused one before it");
        late.record(Error::failed("signal", Outcome::NotApplied, earlier.clone()));
        late.record(Error::failed(
            "put",
            Outcome::InDoubt,
            Failure::new(None, Cause::ConnectionLost, "reset"),
        ));
        late.record(Error::failed("put", Outcome::NotApplied, earlier));
        let Some(Error::Failed(told)) = late.take() else { panic!("it is told") };
        assert_eq!((told.operation, told.outcome, told.count), ("put", Outcome::InDoubt, 3));
    }
}
