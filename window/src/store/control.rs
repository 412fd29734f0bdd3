//! The one thread of a process that runs the stores, started by the first call that needs it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;
use transom_registry::{Error, Result};

struct Control {
    runtime: Handle,
    process: u32,
}

static CONTROL: Mutex<Option<Control>> = Mutex::new(None);

/// The runtime of the control thread. A forked child gets a thread of its own.
fn runtime() -> Result<Handle> {
    let process = std::process::id();
    let mut control = CONTROL.lock();
    if let Some(control) = control.as_ref().filter(|c| c.process == process) {
        return Ok(control.runtime.clone());
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(16)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|e| Error::io("start the store's control runtime", e))?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("transom-control".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(|e| Error::io("start the store's control thread", e))?;
    // The parent's handle is of no use in a child, and what it points to must not be touched: it is never dropped.
    std::mem::forget(control.replace(Control { runtime: handle.clone(), process }));
    Ok(handle)
}

/// Runs a future on the control thread; its result can be waited for by a thread or awaited by any executor.
pub(super) fn run<T: Send + 'static>(
    operation: &'static str,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<Waiter<T>> {
    let slot =
        Arc::new(Slot { state: Mutex::new(State { result: None, waker: None }), ready: Condvar::new() });
    let fill = Fill { slot: Some(Arc::clone(&slot)), operation };
    let task = runtime()?.spawn(async move { fill.with(future.await) }).abort_handle();
    Ok(Waiter { slot, task })
}

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

#[derive(Debug)]
struct State<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

impl<T> Slot<T> {
    fn put(&self, result: Result<T>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The duty to fill a slot: a task that panics or is dropped fills it with an error.
struct Fill<T> {
    slot: Option<Arc<Slot<T>>>,
    operation: &'static str,
}

impl<T> Fill<T> {
    fn with(mut self, result: Result<T>) {
        if let Some(slot) = self.slot.take() {
            slot.put(result);
        }
    }
}

impl<T> Drop for Fill<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.put(Err(Error::Closed { operation: self.operation, what: "control task of the store" }));
        }
    }
}

/// A result on its way from the control thread. Dropping it drops the future that makes it.
#[derive(Debug)]
pub(super) struct Waiter<T> {
    slot: Arc<Slot<T>>,
    task: AbortHandle,
}

impl<T> Waiter<T> {
    /// Blocks this thread until the result is there, or until the moment has passed.
    pub(super) fn wait_until(&self, moment: Instant) -> Option<Result<T>> {
        let mut state = self.slot.state.lock();
        while state.result.is_none() {
            if self.slot.ready.wait_until(&mut state, moment).timed_out() {
                break;
            }
        }
        state.result.take()
    }
}

impl<T> Future for Waiter<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Waiter<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
