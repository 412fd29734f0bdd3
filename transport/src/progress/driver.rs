//! The driver: one thread per context, asleep on its descriptors. It also runs control tasks and timers, counts the
//! heartbeat up, and holds the alive lock; in the modes without a driver the thread does nothing but these.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use transom_registry::{Error, Result};

use super::{Page, Progress, ProgressMode, alive};

/// How often the driver counts its heartbeat up and lets the transports look who lives.
const BEAT: Duration = Duration::from_millis(20);

/// The driver's thread; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// Starts the driver of this progress, on this runtime. Returns once the alive lock is held.
    pub(crate) fn start(
        runtime: tokio::runtime::Runtime,
        progress: &Arc<Progress>,
        page: &Arc<Page>,
    ) -> Result<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let drives = progress.mode == ProgressMode::Thread;
        let progress = Arc::downgrade(progress);
        let page = page.clone();
        let thread = std::thread::Builder::new()
            .name("transom-driver".into())
            .spawn(move || {
                let alive = alive::Lock::hold(&page);
                let _ = ready.send(());
                runtime.block_on(async {
                    tokio::select! {
                        _ = stopped.wait_for(|stop| *stop) => {}
                        () = drive(&progress), if drives => {}
                        () = tick(&progress, &page) => {}
                        () = keep_open(&progress), if drives => {}
                    }
                });
                runtime.shutdown_background();
                drop(alive);
            })
            .map_err(|e| Error::io("start the driver thread", e))?;
        let _ = is_ready.recv();
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(&self) {
        let _ = self.stop.send(true);
        if crate::fork::is_child() {
            return;
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn drive(progress: &Weak<Progress>) {
    let Some(Ok(fd)) = progress.upgrade().map(|p| p.sleeper.driver_fd().try_clone_to_owned()) else { return };
    // SAFETY: an owned descriptor stays open, and the same, until the `AsyncFd` drops it.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    let Ok(watched) = watched else { return };
    loop {
        let Ok(mut ready) = watched.readable().await else { return };
        ready.clear_ready();
        let Some(progress) = progress.upgrade() else { return };
        progress.drive();
        progress.sleeper.driver_looked();
    }
}

/// The sleeper is kept by the progress: it is asked again each time.
async fn keep_open(progress: &Weak<Progress>) {
    let Some(progress) = progress.upgrade() else { return };
    progress.sleeper.keep_open(|| progress.arm()).await;
}

async fn tick(progress: &Weak<Progress>, page: &Page) {
    let mut interval = tokio::time::interval(BEAT);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        page.beat().fetch_add(1, Ordering::Relaxed);
        let Some(progress) = progress.upgrade() else { return };
        let now = Instant::now();
        for transport in progress.transports() {
            transport.tick(now);
        }
        progress.scan();
    }
}
