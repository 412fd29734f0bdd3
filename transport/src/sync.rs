//! The primitives of the protocols that loom runs: the real ones, or loom's.

#[cfg(not(transom_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(transom_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, fence};

#[cfg(transom_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};

/// Loom's, with the form of the real one.
#[cfg(transom_loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(transom_loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
