//! A fixed number of threads that do what is queued.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// The threads end when it is dropped, after all that was queued.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let mut pool = Self { queue: Arc::default(), threads: Vec::new() };
        for number in 0..threads {
            let queue = pool.queue.clone();
            let builder = thread::Builder::new().name(format!("disk-{number}"));
            pool.threads.push(builder.spawn(move || queue.serve())?);
        }
        Ok(pool)
    }

    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.queue.state.lock().jobs.push_back(Box::new(job));
        self.queue.changed.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.changed.notify_all();
        let this = thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != this) {
            // What panicked was told where it happened.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn serve(&self) {
        while let Some(job) = self.next() {
            // A callback of the caller's that panics ends its own job, and not the thread that others count on.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}
