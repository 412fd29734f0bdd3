//! The owner's side of a connection: what it granted to one peer, and what it does for it.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use transom_registry::exposed::Locker;
use transom_registry::header::Header;
use transom_registry::{Access, Error, Grant, Incarnation, Kind, RemoteRegion, Result, read_only};

use super::frame;
use super::map::{self, writes};
use super::meet::Met;
use super::message::{Fault, How, Message, malformed};
use super::socket::unusable;
use super::watch::{Seen, verdict};
use super::{Hub, Party};
use crate::progress::Page;

/// Most regions that one connection may hold.
const MOST_GRANTS: usize = 1 << 16;
/// How long an accumulate for a peer waits for a lock that a thread of ours holds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A peer that was connected to us, and what it holds.
pub(super) struct Served {
    hub: Weak<Hub>,
    peer: Incarnation,
    page: Arc<Page>,
    held: Mutex<Held>,
    /// It is known to be dead, to have left, or to have let go.
    over: AtomicBool,
    stop: Notify,
}

#[derive(Default)]
struct Held {
    last_key: u64,
    grants: HashMap<u64, Given>,
}

/// Kept until the peer lets go or is proven dead: the memory outlives its region for that long.
struct Given {
    grant: Grant,
    header: Header,
    /// The peer has no mapping of its own that would keep the memory: it copies to our addresses.
    by_address: bool,
    /// A silent operation failed: what follows is refused until the peer was told.
    refusing: bool,
}

/// Serves a peer until it hangs up, dies or breaks the protocol.
pub(super) async fn run(met: Met, hub: Arc<Hub>) {
    let served = Arc::new(Served {
        hub: Arc::downgrade(&hub),
        peer: met.peer,
        page: met.page,
        held: Mutex::default(),
        over: AtomicBool::new(false),
        stop: Notify::new(),
    });
    if !hub.watch(served.clone()) {
        return;
    }
    drop(hub);
    let stream = met.stream;
    let said = tokio::select! {
        said = serve(&served, &stream) => said,
        () = served.stop.notified() => return,
    };
    // Whoever lives sees at once that nobody serves it any more.
    drop(stream);
    match said {
        Ok(true) => served.let_go(),
        Ok(false) => {
            if let Some(seen) = verdict(&served.page).await {
                served.seen(seen);
            }
            // Whoever lives hangs up only when it has nothing in its hands.
            served.let_go();
        }
        Err(error) => {
            if let Some(seen) = verdict(&served.page).await {
                served.seen(seen);
            } else {
                tracing::warn!(peer = %served.peer, %error, "shm: a peer is no longer served");
            }
        }
    }
}

/// `true`: the peer said goodbye.
async fn serve(served: &Served, stream: &UnixStream) -> Result<bool> {
    while let Some((message, _)) = frame::receive(stream).await? {
        let (answer, fds) = match message {
            Message::Attach { id, region } => match served.attach(id, &region) {
                Ok(attached) => attached,
                Err(error) => (Message::Refused { id, fault: Fault::of(&error) }, Vec::new()),
            },
            Message::Detach { key } => {
                let given = served.held.lock().grants.remove(&key);
                drop(given);
                continue;
            }
            Message::Bye => return Ok(true),
            other => (served.execute(other)?, Vec::new()),
        };
        frame::send(stream, &answer, &frame::borrow(&fds)).await?;
    }
    Ok(false)
}

impl Served {
    fn attach(&self, id: u64, region: &RemoteRegion) -> Result<(Message, Vec<OwnedFd>)> {
        let hub = self.hub.upgrade().ok_or_else(|| unusable("its context is being closed"))?;
        let grant = hub.host.registry.grant(region)?;
        if grant.exposed.kind() == Kind::Device {
            return Err(unusable("the memory is a device's: the host cannot map it"));
        }
        let copy =
            |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|e| Error::io("copy a descriptor", e));
        let header = grant.exposed.header()?.clone();
        let header_fd = header.share().ok_or_else(|| unusable("its header is not its own"))?.fd;
        let header_fd = if map::marks(grant.access) { copy(header_fd)? } else { read_only(header_fd)? };
        let writable = writes(grant.access) && grant.exposed.is_writable();
        let by_address = grant.memory().share().is_none();
        let (how, fds) = match grant.memory().share() {
            Some(shared) => {
                let data = if writable { copy(shared.fd)? } else { read_only(shared.fd)? };
                (How::Mapped { file_offset: shared.offset, writable }, vec![data, header_fd])
            }
            None => {
                let how = How::Copied {
                    address: grant.exposed.as_ptr().addr() as u64,
                    nonce_address: hub.nonce.as_ptr().addr() as u64,
                    nonce: *hub.nonce,
                };
                (how, vec![header_fd])
            }
        };
        let (region_size, signals) = (grant.region_size, grant.signals);
        let mut held = self.held.lock();
        if held.grants.len() >= MOST_GRANTS {
            return Err(unusable(format!("the peer holds {MOST_GRANTS} regions already")));
        }
        held.last_key += 1;
        let key = held.last_key;
        held.grants.insert(key, Given { grant, header, by_address, refusing: false });
        Ok((Message::Attached { id, key, region_size, signals, how }, fds))
    }

    /// Executes an operation on memory that the peer cannot map.
    fn execute(&self, message: Message) -> Result<Message> {
        let (id, result) = match message {
            Message::Atomic { id, key, silent, offset, atomic, width, operand, compare } => {
                let done = self.with(key, silent, "atomic", Access::ATOMIC, |grant| {
                    grant.exposed.atomic(atomic, width, offset, operand, compare)
                });
                (id, done)
            }
            Message::Accumulate { id, key, silent, offset, dtype, reduce, operands } => {
                let done = self.with(key, silent, "accumulate", Access::ATOMIC, |grant| {
                    let hub = self.hub.upgrade().ok_or_else(|| unusable("its context is being closed"))?;
                    let by = Locker { incarnation: hub.host.registry.incarnation(), patience: PATIENCE };
                    map::accumulate(&grant.exposed, dtype, reduce, offset, &operands, by).map(|()| 0)
                });
                (id, done)
            }
            Message::Signal { id, key, silent, signal, add } => {
                let done = self.with(key, silent, "signal", Access::SIGNAL, |grant| {
                    grant.exposed.signal_add(signal, add).map(|()| 0)
                });
                (id, done)
            }
            // Everything before it was executed in its turn.
            Message::Flush { id, .. } => (id, Ok(0)),
            Message::Resume { id, key } => {
                if let Some(given) = self.held.lock().grants.get_mut(&key) {
                    given.refusing = false;
                }
                (id, Ok(0))
            }
            other => return Err(malformed(format!("{other:?} is not for an owner"))),
        };
        Ok(match result {
            Ok(value) => Message::Done { id, value },
            Err(error) => Message::Refused { id, fault: Fault::of(&error) },
        })
    }

    fn with(
        &self,
        key: u64,
        silent: bool,
        operation: &'static str,
        needed: Access,
        f: impl FnOnce(&Grant) -> Result<u64>,
    ) -> Result<u64> {
        // Not under the lock: an accumulate may wait.
        let grant = {
            let held = self.held.lock();
            let given = held.grants.get(&key);
            let given =
                given.ok_or_else(|| Error::invalid(operation, format!("key {key} was given back")))?;
            if given.refusing {
                return Err(Error::invalid(
                    operation,
                    "an earlier operation failed (flush to be told of it)",
                ));
            }
            given.grant.clone()
        };
        let result = grant.check(operation, needed).and_then(|()| f(&grant));
        let failed = matches!(&result, Err(error) if !matches!(error, Error::Torn { .. }));
        if silent
            && failed
            && let Some(given) = self.held.lock().grants.get_mut(&key)
        {
            given.refusing = true;
        }
        result
    }

    /// Gives the memory back that was kept for the peer.
    fn let_go(&self) {
        self.over.store(true, Ordering::Release);
        let grants = std::mem::take(&mut self.held.lock().grants);
        drop(grants);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // What a living peer may be writing to at this moment must not become somebody else's memory.
        let kept: Vec<Given> =
            self.held.get_mut().grants.drain().map(|(_, given)| given).filter(|g| g.by_address).collect();
        if !kept.is_empty() {
            tracing::debug!(peer = %self.peer, regions = kept.len(), "shm: memory is kept that a peer may write to");
            std::mem::forget(kept);
        }
    }
}

impl Party for Served {
    fn page(&self) -> &Page {
        &self.page
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn seen(&self, seen: Seen) {
        // A frozen peer may come back, and touch what it has mapped.
        if seen != Seen::Frozen && self.over.swap(true, Ordering::AcqRel) {
            return;
        }
        if seen == Seen::Died {
            let headers: Vec<Header> = self.held.lock().grants.values().map(|g| g.header.clone()).collect();
            let broken: usize = headers.iter().map(|header| header.break_locks(self.peer)).sum();
            if broken > 0 {
                tracing::warn!(peer = %self.peer, broken, "shm: locks of a dead process were broken");
            }
        }
        if let Some(hub) = self.hub.upgrade() {
            hub.bury(self.peer, seen);
            (hub.host.lost)(self.peer, seen.failure(self.peer));
        }
        if seen != Seen::Frozen {
            self.let_go();
            self.stop.notify_one();
        }
    }

    fn close(&self) {
        self.stop.notify_one();
    }
}
