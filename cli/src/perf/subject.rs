//! Our side, as the harness sees it: the one place where the library is plugged in.

use std::time::Duration;

use transom_registry::Result;

use super::baseline::Wait;
use super::baseline::copy::Segment;
use super::baseline::memory::{Source, Span};

pub(crate) use super::ours::Ours;

/// What both ranks are opened with.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Setup {
    /// The transport, as the user named it.
    pub(crate) transport: String,
    /// This rank: 0 measures, 1 is its peer.
    pub(crate) rank: u32,
    /// Size of each rank's part of the window, in bytes.
    pub(crate) size: usize,
    /// How waits are done.
    pub(crate) wait: Wait,
}

/// A window of two ranks.
///
/// The loops around these methods are generic, so that `#[inline]` methods are inlined into them. A method checks
/// what it would check for any user. `rank` is always the peer's; the loop hides it from the optimiser.
pub(crate) trait Subject: Sized {
    /// Keeps the meeting place open for as long as it lives.
    type Meeting;
    /// A list of segments, built and checked once.
    type List;

    /// Rank 0, first: opens a place to meet. Returns what rank 1 needs to find it.
    fn meet(setup: &Setup) -> Result<(Self::Meeting, String)>;

    /// Both ranks, at the same time: opens the window. Returns when the peer's part can be reached.
    fn open(setup: &Setup, invitation: &str) -> Result<Self>;

    /// The peer's part, where it is mapped into this process: the baselines use the same addresses.
    fn target(&self) -> Option<Span<'_>>;

    /// This rank's own part, where the peer's puts arrive.
    fn local(&self) -> Span<'_>;

    /// The registered buffer that puts are read from and gets written to; at least as large as the window. The slices
    /// given to `put` and `get` lie in it, except for those of 8 bytes and fewer. `None`: any memory will do.
    ///
    /// Called once.
    fn source(&self) -> Option<Source<'_>>;

    /// Writes; returns when `bytes` may be reused.
    fn put(&self, rank: u32, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reads; returns when the data is there.
    fn get(&self, rank: u32, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Reads the same bytes `count` times, several at once where that helps; returns when the data is there.
    #[inline]
    fn get_stream(&self, rank: u32, offset: u64, into: &mut [u8], count: u64) -> Result<()> {
        for _ in 0..count {
            self.get(rank, offset, into)?;
        }
        Ok(())
    }

    /// Waits until everything is delivered.
    fn flush(&self, rank: u32) -> Result<()>;

    /// Writes, then adds 1 to a signal.
    fn put_signal(&self, rank: u32, offset: u64, bytes: &[u8], signal: u32) -> Result<()>;

    /// Waits, as `Setup::wait` says, until a signal of this rank is at least `value`.
    fn wait_signal(&self, signal: u32, value: u64) -> Result<()>;

    /// Reads the word at `offset` of this rank's own part.
    fn load(&self, offset: u64) -> Result<u64>;

    /// Adds; returns the value before.
    fn fetch_add(&self, rank: u32, offset: u64, value: u64) -> Result<u64>;

    /// Adds numbers, element by element.
    fn accumulate(&self, rank: u32, offset: u64, values: &[f32]) -> Result<()>;

    /// Builds a list of puts out of the source buffer.
    fn list(&self, rank: u32, segments: &[Segment]) -> Result<Self::List>;

    /// Posts every part of a list; returns when all are posted. A flush follows.
    fn post(&self, list: &Self::List) -> Result<()>;

    /// Connects to the peer once more, from nothing to the first delivered byte, and lets go of that connection.
    /// The time of this call is what `connect` measures.
    fn reconnect(&self, rank: u32) -> Result<()>;

    /// Waits until the failure of the peer is known, at most for `limit`.
    fn wait_failure(&self, rank: u32, limit: Duration) -> Result<()>;
}
