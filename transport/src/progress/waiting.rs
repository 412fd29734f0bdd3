//! Who waits for signals: looked at after everything that may have added to one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// What somebody waits for.
pub(crate) trait Condition: Send + Sync {
    /// Whether the wait is over, well or not.
    fn is_over(&self) -> bool;
}

/// The list of waits.
#[derive(Default)]
pub(crate) struct Waiting {
    count: AtomicUsize,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    list: Vec<Entry>,
}

struct Entry {
    id: u64,
    condition: Arc<dyn Condition>,
    waker: Waker,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("count", &self.count.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

impl Waiting {
    /// Adds a wait, or changes the waker of the one with this number. Returns its number.
    pub(crate) fn add(&self, id: Option<u64>, condition: &Arc<dyn Condition>, waker: &Waker) -> u64 {
        let mut entries = self.entries.lock();
        if let Some(entry) = id.and_then(|id| entries.list.iter_mut().find(|e| e.id == id)) {
            entry.waker.clone_from(waker);
            return entry.id;
        }
        let id = id.unwrap_or_else(|| {
            entries.next += 1;
            entries.next
        });
        entries.list.push(Entry { id, condition: condition.clone(), waker: waker.clone() });
        self.count.store(entries.list.len(), Ordering::SeqCst);
        id
    }

    /// Takes a wait off.
    pub(crate) fn remove(&self, id: u64) {
        let mut entries = self.entries.lock();
        entries.list.retain(|e| e.id != id);
        self.count.store(entries.list.len(), Ordering::SeqCst);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Wakes whose wait is over. Returns whether any is not.
    pub(crate) fn scan(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut over = Vec::new();
        let mut entries = self.entries.lock();
        entries.list.retain(|entry| {
            let is_over = entry.condition.is_over();
            if is_over {
                over.push(entry.waker.clone());
            }
            !is_over
        });
        let left = !entries.list.is_empty();
        self.count.store(entries.list.len(), Ordering::SeqCst);
        drop(entries);
        for waker in over {
            waker.wake();
        }
        left
    }
}
