//! The bare cache-line ping-pong between the two ranks: where the machine has put their cores right now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use transom_registry::Result;

use super::baseline::Spin;
use super::baseline::memory::Board;

/// Rounds of one probe: a few milliseconds.
pub(crate) const ROUNDS: u64 = 10_000;

/// Plays [`ROUNDS`] rounds from `rank`'s side; returns the time one way in nanoseconds, the median of five parts.
pub(crate) fn play(board: Board<'_>, rank: usize, yields: bool) -> Result<f64> {
    let (mine, theirs) = (board.probe(rank)?, board.probe(1 - rank)?);
    let from = mine.load(Ordering::Relaxed);
    let mut parts = Vec::with_capacity(5);
    // The first rounds wait for the other rank to wake up.
    rounds(mine, theirs, rank, from, ROUNDS / 20, yields)?;
    let from = from + ROUNDS / 20;
    for part in 0..5 {
        let began = Instant::now();
        rounds(mine, theirs, rank, from + part * (ROUNDS / 5), ROUNDS / 5, yields)?;
        parts.push(began.elapsed().as_nanos() as f64 / (ROUNDS / 5) as f64 / 2.0);
    }
    parts.sort_by(f64::total_cmp);
    Ok(parts[2])
}

fn rounds(
    mine: &AtomicU64,
    theirs: &AtomicU64,
    rank: usize,
    from: u64,
    count: u64,
    yields: bool,
) -> Result<()> {
    for i in from + 1..=from + count {
        if rank == 0 {
            mine.store(i, Ordering::Release);
        }
        let mut spin = Spin::new(yields);
        while theirs.load(Ordering::Acquire) < i {
            spin.pause()?;
        }
        if rank != 0 {
            mine.store(i, Ordering::Release);
        }
    }
    Ok(())
}

/// Whether the placement moved by more than 30 % between two probes.
pub(crate) fn moved(before: f64, after: f64) -> bool {
    (before - after).abs() > 0.3 * before.min(after)
}

#[cfg(test)]
mod tests {
    use super::super::baseline::memory::Mapping;
    use super::*;

    #[test]
    fn two_sides_of_a_probe_end_together_and_see_a_time() {
        let page = Mapping::alone(Board::SIZE).unwrap();
        let board = Board::new(page.span()).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| play(board, 1, true).unwrap());
            assert!(play(board, 0, true).unwrap() > 0.0);
            assert!(other.join().unwrap() > 0.0);
        });
    }

    #[test]
    fn thirty_percent_either_way_is_a_move() {
        assert!(!moved(60.0, 75.0) && !moved(75.0, 60.0));
        assert!(moved(60.0, 80.0) && moved(80.0, 60.0));
    }
}
