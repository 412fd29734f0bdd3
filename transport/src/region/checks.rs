//! What is checked before anything is begun: once, for every transport.

use super::*;

impl PeerRegion {
    /// The way, after everything that does not depend on the operation was checked.
    pub(super) fn way(&self, operation: &'static str, needed: Access) -> Result<Way> {
        crate::fork::check(operation)?;
        let way = self.shared.way.read().clone();
        if matches!(way, Way::Closed) {
            return Err(closed(operation));
        }
        if let Some(failure) = self.shared.peer.failure() {
            return Err(Error::failed(operation, Outcome::NotApplied, failure));
        }
        self.shared.late.check(operation)?;
        let granted = self.shared.remote.access;
        if !granted.contains(needed) {
            return Err(Error::Access { operation, needed, granted });
        }
        if let Way::Mapped(exposed, ..) = &way {
            let state = exposed.header()?.state().load(Ordering::Acquire);
            if state == State::Gone as u32 {
                return Err(Error::Stale {
                    operation,
                    what: Stale::Generation,
                    held: self.shared.remote.generation.into(),
                    current: 0,
                });
            }
            if state != State::Live as u32 {
                let failure = Failure::new(
                    Some(self.shared.peer.incarnation()),
                    Cause::Exited(None),
                    "its region is marked dead",
                );
                return Err(Error::failed(operation, Outcome::NotApplied, failure));
            }
        }
        Ok(way)
    }

    pub(super) fn check_range(&self, operation: &'static str, offset: u64, size: u64) -> Result<()> {
        let limit = self.size();
        if size <= limit && offset <= limit - size {
            Ok(())
        } else {
            Err(Error::OutOfRange { operation, offset, size, limit })
        }
    }

    pub(super) fn check_signal(&self, operation: &'static str, signal: Option<(u32, u64)>) -> Result<()> {
        let Some((id, _)) = signal else { return Ok(()) };
        let remote = &self.shared.remote;
        if !remote.access.contains(Access::SIGNAL) {
            return Err(Error::Access { operation, needed: Access::SIGNAL, granted: remote.access });
        }
        if id >= remote.signals {
            return Err(Error::invalid(
                operation,
                format!("signal {id} does not exist, the region has {}", remote.signals),
            ));
        }
        Ok(())
    }

    /// Refuses an operation on a region of our own whose two sides overlap in it, over any transport.
    pub(super) fn check_not_own(
        &self,
        operation: &'static str,
        slice: &Slice,
        parts: &[(u64, u64)],
    ) -> Result<()> {
        let remote = &self.shared.remote;
        if !slice.region().is_named_by(remote) {
            return Ok(());
        }
        for &(offset, size) in parts {
            let theirs = (remote.offset as usize + offset as usize, size as usize);
            check_apart(operation, (slice.offset(), slice.size()), theirs)?;
        }
        Ok(())
    }

    /// Refuses an operation whose two sides overlap in other ways: seen where both are in this address space.
    pub(super) fn check_apart(
        &self,
        operation: &'static str,
        target: &Exposed,
        offset: u64,
        slice: &Slice,
    ) -> Result<()> {
        let theirs = target.as_ptr().addr() + offset as usize;
        check_apart(operation, (slice.as_ptr().addr(), slice.size()), (theirs, slice.size()))
    }

    /// Refuses to begin what would be waited for where nothing may block.
    pub(super) fn may_wait(&self, operation: &'static str) -> Result<()> {
        if self.shared.mapped {
            return Ok(());
        }
        self.shared.peer.0.context.progress.check_may_block(operation)
    }
}
