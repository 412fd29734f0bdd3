//! Who lives: the control pages of the peers, looked at with every tick.

use std::time::{Duration, Instant};

use std::sync::atomic::Ordering;

use transom_registry::{Cause, Failure, Incarnation};

use crate::progress::{Alive, Page};

/// A beat that stands still for this long is a frozen process's.
pub(super) const FROZEN: Duration = Duration::from_millis(2500);
/// Ticks of ours that are late by this much say that it is us who stood still.
const LATE: Duration = Duration::from_millis(500);
/// How long a connection that ended waits for the page to say why.
const VERDICT: Duration = Duration::from_millis(100);

/// What a page says of a peer that is no longer well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The kernel released its alive lock.
    Died,
    /// It closed its context.
    Left,
    /// Its beat stands still.
    Frozen,
}

impl Seen {
    pub(super) fn failure(self, peer: Incarnation) -> std::sync::Arc<Failure> {
        let (cause, observed) = match self {
            Self::Died => (Cause::Exited(None), "its alive lock was released by the kernel".to_owned()),
            Self::Left => (Cause::Left, "its alive lock was given back in good order".to_owned()),
            Self::Frozen => {
                (Cause::Frozen, format!("its heartbeat stood still for {} ms", FROZEN.as_millis()))
            }
        };
        Failure::new(Some(peer), cause, observed)
    }
}

/// What a page says of its process now.
pub(super) fn gone(page: &Page) -> Option<Seen> {
    match page.look() {
        Alive::Yes => None,
        Alive::Left => Some(Seen::Left),
        Alive::Died => Some(Seen::Died),
    }
}

/// What a page says of its process, whose connection ended just now: the word may come a little later.
pub(super) async fn verdict(page: &Page) -> Option<Seen> {
    let until = tokio::time::Instant::now() + VERDICT;
    loop {
        match gone(page) {
            None if tokio::time::Instant::now() < until => tokio::time::sleep(Duration::from_millis(5)).await,
            said => return said,
        }
    }
}

/// The heartbeat of one peer, as it was seen.
#[derive(Debug)]
pub(super) struct Beat {
    last: u64,
    moved: Instant,
    frozen: bool,
}

impl Beat {
    pub(super) fn new(page: &Page, now: Instant) -> Self {
        Self { last: page.beat().load(Ordering::Relaxed), moved: now, frozen: false }
    }

    /// Looks at the page. A frozen process is told of once, a dead one or one that left each time.
    pub(super) fn look(&mut self, page: &Page, now: Instant, we_were_late: bool) -> Option<Seen> {
        if let Some(seen) = gone(page) {
            return Some(seen);
        }
        let beat = page.beat().load(Ordering::Relaxed);
        if beat != self.last || we_were_late {
            self.last = beat;
            self.moved = now;
            return None;
        }
        let still = now.saturating_duration_since(self.moved) >= FROZEN;
        (still && !std::mem::replace(&mut self.frozen, true)).then_some(Seen::Frozen)
    }
}

/// When we ticked: whether we stood still ourselves.
#[derive(Debug, Default)]
pub(super) struct Ticks(Option<Instant>);

impl Ticks {
    /// Whether this tick is so late that peers may have moved unseen.
    pub(super) fn is_late(&mut self, now: Instant) -> bool {
        self.0.replace(now).is_some_and(|last| now.saturating_duration_since(last) > LATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_that_stands_still_is_told_once_and_not_while_we_stood_still_ourselves() {
        let page = Page::new().unwrap();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut beat = Beat::new(&page, start);
        let mut ticks = Ticks::default();
        assert!(!ticks.is_late(at(0)));
        assert_eq!(beat.look(&page, at(2400), false), None);
        page.beat().fetch_add(1, Ordering::Relaxed);
        assert_eq!(beat.look(&page, at(2600), false), None);
        assert!(ticks.is_late(at(9000)));
        assert_eq!(beat.look(&page, at(9000), true), None, "we were stopped");
        assert!(!ticks.is_late(at(9400)));
        assert_eq!(beat.look(&page, at(11_400), false), None);
        assert_eq!(beat.look(&page, at(11_500), false), Some(Seen::Frozen));
        assert_eq!(beat.look(&page, at(11_520), false), None, "told");
    }
}
