//! The executor: tasks of all ranks on one thread, in an order that the seed decides.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use parking_lot::Mutex;
use transom_registry::{Error, Result};

use super::Fabric;

/// How often tasks that wake themselves are polled before time moves on.
const BUSY: usize = 1000;
/// How many of the last steps an error shows.
const SHOWN: usize = 12;

/// The tasks that want to be polled.
#[derive(Debug, Default)]
struct Ready(Mutex<BTreeSet<usize>>);

struct TaskWaker {
    index: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.0.lock().insert(self.index);
    }
}

/// A rank's program.
pub(super) type Program<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs the tasks to their ends.
pub(super) fn run<T>(fabric: &Fabric, tasks: Vec<Program<'_, T>>) -> Result<Vec<T>> {
    let ready = Arc::new(Ready::default());
    ready.0.lock().extend(0..tasks.len());
    let wakers: Vec<Waker> = (0..tasks.len())
        .map(|index| Waker::from(Arc::new(TaskWaker { index, ready: ready.clone() })))
        .collect();
    let mut outputs: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    let mut tasks: Vec<Option<Program<'_, T>>> = tasks.into_iter().map(Some).collect();
    let (mut steps, mut here) = (0_u64, 0);
    let most = fabric.0.world.lock().adversary.most_steps;
    while tasks.iter().any(Option::is_some) {
        steps += 1;
        if steps > most {
            return Err(Error::Limit {
                what: format!("{most} steps of simulation, {} wait", waiting(&tasks)),
                next: "raise Adversary::most_steps, or look for a loop that never ends".into(),
            });
        }
        if here < BUSY
            && let Some(index) = pick(fabric, &ready)
        {
            here += 1;
            poll(&mut tasks[index], &mut outputs[index], &wakers[index]);
            kick(fabric);
            continue;
        }
        here = 0;
        if !turn(fabric) && ready.0.lock().is_empty() {
            let trace = fabric.trace();
            let last = trace[trace.len().saturating_sub(SHOWN)..].join("; ");
            return Err(Error::Deadlock {
                waiting: format!(
                    "{} wait after {} ns, and nothing is under way (last: {last})",
                    waiting(&tasks),
                    fabric.elapsed().as_nanos()
                ),
            });
        }
    }
    Ok(outputs.into_iter().flatten().collect())
}

/// One of the ready tasks, by chance.
fn pick(fabric: &Fabric, ready: &Ready) -> Option<usize> {
    let mut ready = ready.0.lock();
    if ready.is_empty() {
        return None;
    }
    let mut world = fabric.0.world.lock();
    let nth = world.random.below(ready.len());
    let index = ready.iter().nth(nth).copied()?;
    ready.remove(&index);
    world.note("task", [index as u64, 0, 0]);
    Some(index)
}

fn poll<T>(task: &mut Option<Program<'_, T>>, output: &mut Option<T>, waker: &Waker) {
    let Some(program) = task else { return };
    if let Poll::Ready(done) = program.as_mut().poll(&mut TaskContext::from_waker(waker)) {
        *output = Some(done);
        *task = None;
    }
}

/// Moves time to what is due next, and lets it happen. `false`: nothing ever will.
fn turn(fabric: &Fabric) -> bool {
    let event = fabric.0.world.lock().next_event();
    let timer = fabric.0.time.next_timer();
    let Some(next) = event.into_iter().chain(timer).min() else { return false };
    fabric.0.time.advance(next);
    if event == Some(next) {
        let outside = fabric.0.world.lock().happen();
        outside.run();
        kick(fabric);
    } else {
        fabric.0.time.wake_due();
    }
    true
}

/// Makes every rank look at which something changed.
fn kick(fabric: &Fabric) {
    let kicks = fabric.0.world.lock().kicks();
    for kick in kicks {
        kick();
    }
}

fn waiting<T>(tasks: &[Option<Program<'_, T>>]) -> String {
    let waiting: Vec<String> =
        tasks.iter().enumerate().filter(|(_, t)| t.is_some()).map(|(index, _)| index.to_string()).collect();
    format!("tasks {} of {}", waiting.join(", "), tasks.len())
}
