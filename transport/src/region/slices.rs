//! Puts and gets of registered memory, and gets through it.

use super::*;

impl PeerRegion {
    /// Writes registered memory at `offset` without a copy on this side. The request resolves when it is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when source and target overlap.
    pub fn put_from(&self, offset: u64, from: Slice) -> Result<Request> {
        self.put_slice(offset, from, None)
    }

    /// As [`PeerRegion::put_from`], then adds to a signal, as [`PeerRegion::put_signal`].
    ///
    /// # Errors
    /// As there.
    pub fn put_signal_from(&self, offset: u64, from: Slice, signal: u32, add: u64) -> Result<Request> {
        self.put_slice(offset, from, Some((signal, add)))
    }

    pub(super) fn put_slice(&self, offset: u64, from: Slice, signal: Option<(u32, u64)>) -> Result<Request> {
        let operation = if signal.is_some() { "put_signal" } else { "put" };
        let way = self.way(operation, Access::WRITE)?;
        self.check_range(operation, offset, from.size() as u64)?;
        self.check_signal(operation, signal)?;
        self.check_not_own(operation, &from, &[(offset, from.size() as u64)])?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_apart(operation, &exposed, offset, &from)?;
                // SAFETY: the slice is valid, and apart from the target, as checked above.
                let done = unsafe { exposed.write_from(offset, from.as_ptr(), from.size(), from.size()) };
                let done = done.and_then(|()| add_signal(&exposed, signal));
                self.resolved(operation, done.map(|()| 0))
            }
            Way::Posted(_, _) if from.size() == 0 && signal.is_none() => self.resolved(operation, Ok(0)),
            Way::Posted(endpoint, key) => self.request(&endpoint, operation, || Op {
                key,
                offset,
                action: if from.size() == 0 {
                    Action::Signal
                } else {
                    Action::Put(Source::Owned(from.clone()))
                },
                signal,
                silent: false,
            }),
            Way::Closed => Err(closed(operation)),
        }
    }

    /// Reads from `offset` into registered memory. The request resolves when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::put_from`].
    pub fn get_into(&self, offset: u64, into: Slice) -> Result<Request> {
        const OPERATION: &str = "get";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_range(OPERATION, offset, into.size() as u64)?;
        check_writable(OPERATION, &into)?;
        self.check_not_own(OPERATION, &into, &[(offset, into.size() as u64)])?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_apart(OPERATION, &exposed, offset, &into)?;
                // SAFETY: the slice is valid for writes (checked), and apart from the source, as checked above.
                let done = unsafe { exposed.read_into(offset, into.as_ptr(), into.size(), into.size()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(..) if into.size() == 0 => self.resolved(OPERATION, Ok(0)),
            Way::Posted(endpoint, key) => self.request(&endpoint, OPERATION, || Op {
                key,
                offset,
                action: Action::Get(into.clone()),
                signal: None,
                silent: false,
            }),
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// A get through memory of ours, so that a reply that comes after the deadline finds no buffer of the caller's.
    pub(super) fn get_bounced(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let context = &self.shared.peer.0.context;
        let mut flying = std::collections::VecDeque::with_capacity(BOUNCES);
        let mut chunks = into.chunks_mut(BOUNCE);
        let mut at = offset;
        let since = Some(Instant::now());
        loop {
            if flying.len() < BOUNCES
                && let Some(chunk) = chunks.next()
            {
                let bounce = context.bounce(chunk.len())?;
                let request = self.get_into(at, bounce.slice(0..chunk.len())?)?;
                at += chunk.len() as u64;
                flying.push_back((request, bounce, chunk));
                continue;
            }
            let Some((request, bounce, chunk)) = flying.pop_front() else { return Ok(()) };
            self.wait(request, since)?;
            bounce.read(0, chunk)?;
            context.give_bounce(bounce);
        }
    }
}
