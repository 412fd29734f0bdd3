//! The transport between processes of one host: memory is mapped by both sides, so that puts and gets are copies inside
//! the call.
//!
//! Processes meet at a socket (`socket`, `meet`), pass descriptors over it in frames (`frame`, `message`), and map what
//! they were passed (`map`). Memory that has no descriptor is reached by the kernel's copies (`vm`). `link` is the side
//! that connected, `serve` the side that owns the memory; both watch each other's control page (`watch`).

mod frame;
mod link;
mod map;
mod meet;
mod message;
mod serve;
mod socket;
#[cfg(test)]
mod tests;
mod vm;
mod watch;

use std::fmt;
use std::future::Future;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use message::fuzz_shm_message;
use parking_lot::Mutex;
use socket::{Socket, unusable};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinHandle};
use transom_registry::{Error, Incarnation, Result};
use watch::{Beat, Seen, Ticks};

use crate::backend::{Caps, Endpoint, Host, Pending, Transport};
use crate::progress::Page;
use crate::token::Completion;

/// Most connections at once that have not proven the secret yet.
const MOST_STRANGERS: usize = 64;

/// The transport `shm`.
pub(crate) struct Shm {
    hub: Arc<Hub>,
    tasks: tokio::runtime::Handle,
    accept: AbortHandle,
}

/// What the connections of one transport share.
struct Hub {
    host: Host,
    socket: Socket,
    /// By these bytes, at this address, a peer can tell that the kernel's copy reaches this process.
    nonce: Box<[u8; 16]>,
    watched: Mutex<Vec<Watched>>,
    ticks: Mutex<Ticks>,
    closed: AtomicBool,
}

/// One side of a connection whose other side is watched.
trait Party: Send + Sync {
    fn page(&self) -> &Page;
    /// There is nothing left to watch for.
    fn is_over(&self) -> bool;
    /// The other side is no longer well.
    fn seen(&self, seen: Seen);
    /// The transport is being closed.
    fn close(&self);
}

struct Watched {
    party: Weak<dyn Party>,
    beat: Beat,
}

impl fmt::Debug for Shm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shm")
            .field("path", &self.hub.socket.path())
            .field("connections", &self.hub.watched.lock().len())
            .finish_non_exhaustive()
    }
}

impl Shm {
    /// Opens the transport: makes its socket and begins to take connections.
    pub(crate) fn open(arguments: &str, host: &Host) -> Result<Arc<Self>> {
        if !arguments.is_empty() {
            return Err(Error::Config {
                name: "transport".into(),
                value: format!("shm:{arguments}"),
                why: "shm takes no arguments".into(),
            });
        }
        let tasks = host.tasks.clone().ok_or_else(|| {
            unusable(
                "it needs a driver, and there is none under a virtual clock (use transport sim or local)",
            )
        })?;
        let (socket, listener) = Socket::listen(host.registry.incarnation())?;
        let mut nonce = Box::new([0; 16]);
        getrandom::fill(&mut *nonce).map_err(|e| {
            Error::io("read random bytes", std::io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(0)))
        })?;
        let hub = Arc::new(Hub {
            host: host.clone(),
            socket,
            nonce,
            watched: Mutex::default(),
            ticks: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let accept = tasks.spawn(accept(listener, hub.clone())).abort_handle();
        Ok(Arc::new(Self { hub, tasks, accept }))
    }
}

/// Takes connections for as long as the transport is open.
async fn accept(listener: UnixListener, hub: Arc<Hub>) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "shm: cannot listen"),
    };
    let strangers = Arc::new(Semaphore::new(MOST_STRANGERS));
    while let Ok(stranger) = strangers.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let hub = hub.clone();
                tokio::spawn(async move {
                    let met = meet::respond(&hub.host, stream).await;
                    drop(stranger);
                    match met {
                        Ok(met) => serve::run(met, hub).await,
                        Err(error) => tracing::debug!(%error, "shm: a connection was refused"),
                    }
                });
            }
            // Too many files are open, for instance: those who connect wait in the kernel's queue meanwhile.
            Err(error) => {
                tracing::warn!(%error, "shm: cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Hub {
    /// Watches the other side of a connection from now on. `false`: the transport is closed.
    fn watch(&self, party: Arc<dyn Party>) -> bool {
        let beat = Beat::new(party.page(), Instant::now());
        let mut watched = self.watched.lock();
        let open = !self.closed.load(Ordering::Acquire);
        if open {
            watched.push(Watched { party: Arc::downgrade(&party), beat });
        }
        open
    }

    /// Takes the socket file of a dead process away, if it was in our directory.
    fn bury(&self, peer: Incarnation, seen: Seen) {
        if seen == Seen::Died {
            let _ = std::fs::remove_file(self.socket.of_neighbour(peer));
        }
    }

    fn tick(&self, now: Instant) {
        let late = self.ticks.lock().is_late(now);
        let mut seen = Vec::new();
        self.watched.lock().retain_mut(|watched| {
            let Some(party) = watched.party.upgrade() else { return false };
            if party.is_over() {
                return false;
            }
            if let Some(said) = watched.beat.look(party.page(), now, late) {
                seen.push((party, said));
            }
            true
        });
        // Outside of the lock: whoever is told may connect again.
        for (party, said) in seen {
            party.seen(said);
        }
    }
}

impl Transport for Shm {
    fn name(&self) -> &str {
        "shm"
    }

    fn caps(&self) -> Caps {
        Caps { mapped: true, remote: false, polled: false }
    }

    fn addresses(&self) -> Vec<String> {
        // A path that is no text cannot be handed out.
        self.hub.socket.path().to_str().map(|path| format!("shm:{path}")).into_iter().collect()
    }

    fn connect(
        &self,
        address: &str,
        peer: Option<Incarnation>,
        deadline: Instant,
    ) -> Pending<Arc<dyn Endpoint>> {
        let path = match socket::path_of(address) {
            Ok(path) => path,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let hub = self.hub.clone();
        Box::pin(Task(self.tasks.spawn(async move {
            let met = meet::initiate(&hub.host, &path, peer, deadline).await?;
            Ok(link::Link::start(met, &hub)? as Arc<dyn Endpoint>)
        })))
    }

    fn poll(&self, _: &mut Vec<Completion>) -> usize {
        0
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        self.hub.tick(now);
        None
    }

    fn close(&self) {
        if crate::fork::is_child() || self.hub.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.hub.socket.unlink();
        self.accept.abort();
        let watched = std::mem::take(&mut *self.hub.watched.lock());
        for party in watched.iter().filter_map(|watched| watched.party.upgrade()) {
            party.close();
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.close();
    }
}

/// A task that is given up when nobody awaits it any more.
struct Task<T>(JoinHandle<Result<T>>);

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|ended| match ended {
            Ok(result) => result,
            Err(_) => Err(Error::Closed { operation: "connect", what: "context" }),
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if !crate::fork::is_child() {
            self.0.abort();
        }
    }
}
