//! The alive lock: a robust futex in the control page, held by the driver thread for the life of the context. The kernel
//! marks it when the thread ends for whatever reason, before the process's memory is torn down, so that same-host peers
//! see a death within their next look, however large the process was.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Page;

/// Set by the kernel in the futex word of a thread that died.
const OWNER_DIED: u32 = 0x4000_0000;

/// The kernel's list of a thread's robust locks (`struct robust_list_head`), with the one entry that we have.
#[repr(C)]
struct List {
    head: *mut Entry,
    futex_offset: libc::c_long,
    pending: *mut Entry,
}

#[repr(C)]
struct Entry {
    next: *mut Entry,
}

/// What a thread must keep as long as it holds the lock.
pub(crate) struct Lock {
    page: Arc<Page>,
    _list: Box<List>,
    _entry: Box<Entry>,
}

impl Lock {
    /// Takes the lock for this thread, whose robust list becomes ours: no other robust lock may be used on it.
    pub(crate) fn hold(page: &Arc<Page>) -> Self {
        let mut entry = Box::new(Entry { next: std::ptr::null_mut() });
        let entry_at: *mut Entry = &raw mut *entry;
        let mut list = Box::new(List { head: entry_at, futex_offset: 0, pending: std::ptr::null_mut() });
        // The list is circular: its last entry points back to the head.
        entry.next = (&raw mut *list).cast();
        // The word is found by adding the offset to the entry's address.
        list.futex_offset =
            (page.alive().as_ptr().addr() as libc::c_long).wrapping_sub(entry_at.addr() as libc::c_long);
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() } as u32;
        page.alive().store(thread, Ordering::SeqCst);
        // SAFETY: the list lives in `self` until the thread is done with the lock; its layout is the kernel's.
        unsafe {
            libc::syscall(libc::SYS_set_robust_list, &raw const *list, std::mem::size_of::<List>());
        }
        Self { page: page.clone(), _list: list, _entry: entry }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: an empty list takes ours off the thread.
        unsafe {
            libc::syscall(libc::SYS_set_robust_list, std::ptr::null::<List>(), std::mem::size_of::<List>())
        };
        self.page.alive().store(LEFT, Ordering::SeqCst);
    }
}

/// The word after a context was closed in good order.
const LEFT: u32 = 0x2000_0000;

/// What a process's alive word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alive {
    /// Its driver holds the lock.
    Yes,
    /// It closed its context.
    Left,
    /// It died.
    Died,
}

impl Page {
    /// Whether the process of this page lives.
    #[must_use]
    pub fn look(&self) -> Alive {
        match self.alive().load(Ordering::Acquire) {
            word if word & OWNER_DIED != 0 => Alive::Died,
            LEFT => Alive::Left,
            _ => Alive::Yes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_without_letting_go_is_seen_as_dead() {
        let page = Arc::new(Page::new().unwrap());
        let theirs = page.clone();
        std::thread::spawn(move || std::mem::forget(Lock::hold(&theirs))).join().unwrap();
        // The thread's join may come before the kernel's walk of the list: it is the same exit, bounded.
        while page.look() == Alive::Yes {
            std::thread::yield_now();
        }
        assert_eq!(page.look(), Alive::Died);
    }

    #[test]
    fn a_lock_that_was_let_go_says_left() {
        let page = Arc::new(Page::new().unwrap());
        let theirs = page.clone();
        std::thread::spawn(move || drop(Lock::hold(&theirs))).join().unwrap();
        assert_eq!(page.look(), Alive::Left);
    }
}
