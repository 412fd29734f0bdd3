//! The side of a connection that connected: attaches regions of its peer, and carries the operations on those that
//! cannot be mapped.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use transom_registry::element::{Dtype, Reduce};
use transom_registry::exposed::{Bell, signal_is_full};
use transom_registry::header::{Header, State};
use transom_registry::{
    Access, Cause, Error, Failure, Incarnation, Kind, Outcome, RemoteRegion, Result, Slice, Stale, word,
};

use super::map::{self, Told};
use super::meet::Met;
use super::message::{Fault, How, Message, OPERANDS, malformed};
use super::socket::unusable;
use super::vm::{Place, Reach};
use super::watch::{self, Seen};
use super::{Hub, Party, frame};
use crate::backend::{Action, Attached, Endpoint, Op, Pending, Posted, Source};
use crate::progress::Page;
use crate::token::Token;

/// Most operands, in bytes, and most operations that wait for the owner.
const MOST_QUEUED: usize = 1 << 20;
const MOST_WAITING: usize = 4096;
/// How long a connection that is being closed takes to say goodbye.
const GOODBYE: Duration = Duration::from_millis(200);

/// A connection to one process of this host.
pub(super) struct Link {
    me: Weak<Self>,
    hub: Weak<Hub>,
    peer: Incarnation,
    page: Arc<Page>,
    pid: Option<i32>,
    /// What the task sends. `None`: closed.
    out: Mutex<Option<UnboundedSender<Out>>>,
    queued: Arc<AtomicUsize>,
    closing: Arc<Notify>,
    failure: OnceLock<Arc<Failure>>,
    /// Held by whoever is inside of a copy: the owner keeps the memory until nobody is.
    inside: RwLock<()>,
    waiting: Mutex<Waiting>,
    regions: Mutex<HashMap<u64, Arc<Copied>>>,
}

#[derive(Default)]
struct Waiting {
    last_id: u64,
    attaches: HashMap<u64, oneshot::Sender<Result<Answer>>>,
    operations: HashMap<u64, Waits>,
}

/// An operation that the owner executes.
struct Waits {
    token: Token,
    region: Arc<Copied>,
    silent: bool,
    /// How many answers are missing: a large one is split.
    left: usize,
    result: Result<u64>,
}

/// A region that is reached by the kernel's copies.
///
/// Its key is given back when the last operation on it has ended.
struct Copied {
    link: Weak<Link>,
    key: u64,
    reach: Reach,
    access: Access,
    generation: u32,
    header: Header,
    /// How many operations the owner has not answered yet: until then, nothing may overtake them.
    in_flight: AtomicUsize,
    /// A silent operation failed, and nobody was told yet.
    refusing: AtomicBool,
}

/// What the task sends.
enum Out {
    Message(Message),
    /// Cut into messages when its turn comes.
    Accumulate {
        id: u64,
        key: u64,
        silent: bool,
        offset: u64,
        dtype: Dtype,
        reduce: Reduce,
        from: Operands,
    },
}

enum Operands {
    Copied(Vec<u8>),
    Kept(Slice),
}

impl Operands {
    fn size(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Kept(slice) => slice.size(),
        }
    }

    /// Bytes that are held for it only.
    fn held(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Kept(_) => 0,
        }
    }

    fn piece(&self, at: usize) -> Result<Vec<u8>> {
        let size = OPERANDS.min(self.size() - at);
        match self {
            Self::Copied(bytes) => Ok(bytes[at..at + size].to_vec()),
            Self::Kept(slice) => {
                let mut piece = vec![0; size];
                slice.read(at, &mut piece)?;
                Ok(piece)
            }
        }
    }
}

/// An owner's answer to an attach. Dropped without being taken, its key is given back.
struct Answer {
    link: Weak<Link>,
    key: u64,
    told: Told,
    how: How,
    fds: Vec<OwnedFd>,
    taken: bool,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.taken
            && let Some(link) = self.link.upgrade()
        {
            link.give_back(self.key);
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("failure", &self.failure.get())
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Takes a connection over. Called on the runtime.
    pub(super) fn start(met: Met, hub: &Arc<Hub>) -> Result<Arc<Self>> {
        let (out, queue) = unbounded_channel();
        let link = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            hub: Arc::downgrade(hub),
            peer: met.peer,
            page: met.page,
            pid: met.pid,
            out: Mutex::new(Some(out)),
            queued: Arc::default(),
            closing: Arc::default(),
            failure: OnceLock::new(),
            inside: RwLock::default(),
            waiting: Mutex::default(),
            regions: Mutex::default(),
        });
        if !hub.watch(link.clone()) {
            return Err(Error::Closed { operation: "connect", what: "context" });
        }
        tokio::spawn(carry(
            met.stream,
            queue,
            Arc::downgrade(&link),
            link.page.clone(),
            link.queued.clone(),
            link.closing.clone(),
        ));
        Ok(link)
    }

    fn give_back(&self, key: u64) {
        if !crate::fork::is_child() {
            self.send(Out::Message(Message::Detach { key }));
        }
    }

    fn send(&self, out: Out) {
        // A closed link's peer forgets everything anyway.
        if let Some(sender) = &*self.out.lock() {
            let _ = sender.send(out);
        }
    }

    /// Ends everything that is in flight, and tells the context.
    fn fail(&self, failure: Arc<Failure>, tell: bool) {
        if self.failure.set(failure.clone()).is_err() {
            return;
        }
        let hub = self.hub.upgrade();
        // First the peer, then its operations: who sees one fail finds the peer failed.
        if let Some(hub) = &hub
            && tell
        {
            (hub.host.lost)(self.peer, failure.clone());
        }
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for (_, attach) in waiting.attaches {
            let _ = attach.send(Err(Error::failed("open", Outcome::NotApplied, failure.clone())));
        }
        for (_, waits) in waiting.operations {
            waits.token.fail(Outcome::InDoubt, &failure);
        }
        if let Some(hub) = hub {
            (hub.host.kick)();
        }
    }

    /// Stops sending; the task says goodbye and ends. The connection has failed before, so that no copy begins.
    fn hang_up(&self) {
        let out = self.out.lock().take();
        if crate::fork::is_child() {
            // The task is the parent's.
            std::mem::forget(out);
        } else if out.is_some() {
            drop(out);
            self.closing.notify_one();
        }
    }

    fn receive(&self, message: Message, fds: Vec<OwnedFd>) -> Result<()> {
        match message {
            Message::Attached { id, key, region_size, signals, how } => {
                let told = Told { region_size, signals };
                let answer = Answer { link: self.me.clone(), key, told, how, fds, taken: false };
                let attach = self.waiting.lock().attaches.remove(&id);
                let attach = attach.ok_or_else(|| unasked(id))?;
                // Who gave up gives the key back by dropping the answer.
                let _ = attach.send(Ok(answer));
                Ok(())
            }
            Message::Refused { id, fault } => {
                let attach = self.waiting.lock().attaches.remove(&id);
                match attach {
                    Some(attach) => {
                        let _ = attach.send(Err(fault.of_attach()));
                        Ok(())
                    }
                    None => self.answered(id, Err(fault)),
                }
            }
            Message::Done { id, value } => self.answered(id, Ok(value)),
            other => Err(malformed(format!("{other:?} is not for the side that connected"))),
        }
    }

    fn answered(&self, id: u64, answer: Result<u64, Fault>) -> Result<()> {
        let mut waiting = self.waiting.lock();
        let waits = waiting.operations.get_mut(&id).ok_or_else(|| unasked(id))?;
        match answer {
            Ok(value) => {
                if let Ok(kept) = &mut waits.result {
                    *kept = value;
                }
            }
            Err(fault) => {
                if waits.result.is_ok() {
                    waits.result = Err(fault.of_operation(waits.token.operation()));
                }
            }
        }
        waits.left -= 1;
        if waits.left > 0 {
            return Ok(());
        }
        let waits = waiting.operations.remove(&id).ok_or_else(|| unasked(id))?;
        drop(waiting);
        let failed = matches!(&waits.result, Err(error) if !matches!(error, Error::Torn { .. }));
        if waits.silent && failed {
            waits.region.refusing.store(true, Ordering::SeqCst);
        }
        waits.token.complete(waits.result);
        // Only now may a signal go past it.
        waits.region.in_flight.fetch_sub(1, Ordering::SeqCst);
        if let Some(hub) = self.hub.upgrade() {
            (hub.host.kick)();
        }
        Ok(())
    }

    fn ask(&self, region: &RemoteRegion) -> Result<oneshot::Receiver<Result<Answer>>> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if let Some(failure) = self.failure.get() {
            return Err(Error::failed("open", Outcome::NotApplied, failure.clone()));
        }
        waiting.last_id += 1;
        let id = waiting.last_id;
        waiting.attaches.insert(id, answer);
        drop(waiting);
        self.send(Out::Message(Message::Attach { id, region: region.clone() }));
        Ok(answered)
    }

    fn take(&self, mut answer: Answer, region: &RemoteRegion) -> Result<Attached> {
        let fds = std::mem::take(&mut answer.fds);
        let attached = match answer.how {
            How::Mapped { file_offset, writable } => {
                let [data, header] = frame::exactly(fds)?;
                if map::writes(region.access) && !writable {
                    return Err(malformed("it cannot be written, its rights say that it can"));
                }
                let header = map::header(header, answer.told, region.access)?;
                let page = self.page.clone();
                let exposed = map::exposed(region, answer.told, file_offset, writable, data, header, page)?;
                Attached { key: answer.key, mapped: Some(exposed) }
            }
            How::Copied { address, nonce_address, nonce } => {
                let [header] = frame::exactly(fds)?;
                let place = Place { address, size: region.size, nonce_address, nonce };
                let copied = Copied {
                    link: self.me.clone(),
                    key: answer.key,
                    reach: Reach::prove(self.peer, self.pid, place)?,
                    access: region.access,
                    generation: region.generation,
                    header: map::header(header, answer.told, region.access)?,
                    in_flight: AtomicUsize::new(0),
                    refusing: AtomicBool::new(false),
                };
                self.regions.lock().insert(answer.key, Arc::new(copied));
                Attached { key: answer.key, mapped: None }
            }
        };
        answer.taken = true;
        Ok(attached)
    }

    /// A piece of the operands; `None` when the operation has ended. Under the lock: a slice is not touched after its
    /// operation's outcome is known.
    fn piece(&self, id: u64, from: &Operands, at: usize) -> Option<Result<Vec<u8>>> {
        let waiting = self.waiting.lock();
        waiting.operations.contains_key(&id).then(|| from.piece(at))
    }

    /// Whether the peer lives, as far as can be told without waiting.
    fn check_alive(&self, operation: &'static str) -> Result<()> {
        let failure = match (self.failure.get(), watch::gone(&self.page)) {
            (Some(failure), _) => failure.clone(),
            // The next tick tells everybody.
            (None, Some(seen)) => seen.failure(self.peer),
            (None, None) => return Ok(()),
        };
        Err(Error::failed(operation, Outcome::NotApplied, failure))
    }

    /// Has the owner execute an operation, after everything that it was sent before.
    fn hand_over(
        &self,
        region: &Arc<Copied>,
        silent: bool,
        token: Token,
        parts: usize,
        make: impl FnOnce(u64) -> Vec<Out>,
    ) -> Posted {
        let mut waiting = self.waiting.lock();
        if let Some(failure) = self.failure.get() {
            let error = Error::failed(token.operation(), Outcome::NotApplied, failure.clone());
            drop(waiting);
            return Posted::Done(token, Err(error));
        }
        if waiting.operations.len() >= MOST_WAITING || self.queued.load(Ordering::Relaxed) >= MOST_QUEUED {
            return Posted::Full(token);
        }
        waiting.last_id += 1;
        let id = waiting.last_id;
        region.in_flight.fetch_add(1, Ordering::SeqCst);
        let waits = Waits { token, region: region.clone(), silent, left: parts, result: Ok(0) };
        waiting.operations.insert(id, waits);
        // Under the lock: what is sent has the order of the numbers.
        for out in make(id) {
            if let Out::Accumulate { from, .. } = &out {
                self.queued.fetch_add(from.held(), Ordering::Relaxed);
            }
            self.send(out);
        }
        Posted::Pending
    }

    /// The kernel's copy, inside the call.
    fn copy(&self, region: &Copied, operation: &'static str, op: &Op<'_>) -> Result<u64> {
        region.check(operation)?;
        match &op.action {
            Action::Put(from) => region.reach.put(operation, &[(op.offset, from.size() as u64)], from)?,
            Action::Get(into) => region.reach.get(operation, &[(op.offset, into.size() as u64)], into)?,
            Action::PutList(parts, from) => region.reach.put(operation, parts, from)?,
            Action::GetList(parts, into) => region.reach.get(operation, parts, into)?,
            _ => {}
        }
        match op.signal {
            Some((signal, add)) => self.signal(region, operation, signal, add),
            None => Ok(0),
        }
    }

    fn signal(&self, region: &Copied, operation: &'static str, id: u32, add: u64) -> Result<u64> {
        let words = &region.header;
        let signal =
            words.signal(id).filter(|_| region.access.contains(Access::SIGNAL)).ok_or_else(|| {
                Error::invalid(
                    operation,
                    format!("signal {id} does not exist, the region has {}", words.signals()),
                )
            })?;
        match word::signal_add(signal, self.page.asleep(), add) {
            Some(true) => self.page.ring(),
            Some(false) => {}
            None => return Err(signal_is_full(id, add)),
        }
        Ok(0)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.give_back(self.key);
        }
    }
}

impl Copied {
    /// Whether the region lives still.
    fn check(&self, operation: &'static str) -> Result<()> {
        if self.header.state().load(Ordering::Acquire) == State::Live as u32 {
            return Ok(());
        }
        Err(Error::Stale { operation, what: Stale::Generation, held: self.generation.into(), current: 0 })
    }
}

impl Endpoint for Link {
    fn peer(&self) -> Incarnation {
        self.peer
    }

    fn transport(&self) -> &str {
        "shm"
    }

    fn attach(&self, region: &RemoteRegion, _: Instant) -> Pending<Attached> {
        let Some(link) = self.me.upgrade() else {
            return Box::pin(std::future::ready(Err(Error::Closed {
                operation: "open",
                what: "connection",
            })));
        };
        let region = region.clone();
        Box::pin(async move {
            if region.kind == Kind::Device {
                return Err(unusable("the memory is a device's: the host cannot map it"));
            }
            match link.ask(&region)?.await {
                Ok(answer) => link.take(answer?, &region),
                Err(_) => Err(Error::Closed { operation: "open", what: "connection" }),
            }
        })
    }

    fn detach(&self, key: u64) {
        if crate::fork::is_child() {
            return;
        }
        let copied = self.regions.lock().remove(&key);
        if copied.is_none() {
            self.give_back(key);
        }
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        let operation = op.action.name(op.signal.is_some());
        let region = self.regions.lock().get(&op.key).cloned();
        let Some(region) = region else {
            let why = format!("key {} is of no region that is copied to", op.key);
            return Posted::Done(token, Err(Error::invalid(operation, why)));
        };
        let _inside = self.inside.read();
        if let Err(error) = self.check_alive(operation) {
            return Posted::Done(token, Err(error));
        }
        let waits = region.in_flight.load(Ordering::SeqCst) > 0;
        if region.refusing.load(Ordering::SeqCst) && !matches!(op.action, Action::Resume | Action::Flush) {
            let observed = "an accumulate was refused; flush to be told, and to go on";
            let failure = Failure::new(Some(self.peer), Cause::Earlier, observed);
            return Posted::Done(token, Err(Error::failed(operation, Outcome::NotApplied, failure)));
        }
        let (key, silent, offset) = (op.key, op.silent, op.offset);
        match op.action {
            // Held back, so that a fence before them holds.
            Action::Put(_) | Action::Get(_) | Action::PutList(..) | Action::GetList(..) if waits => {
                Posted::Full(token)
            }
            Action::Put(_) | Action::Get(_) | Action::PutList(..) | Action::GetList(..) => {
                let done = self.copy(&region, operation, &op);
                Posted::Done(token, done)
            }
            Action::Signal | Action::Flush if !waits => {
                std::sync::atomic::fence(Ordering::SeqCst);
                let done = if matches!(op.action, Action::Signal) {
                    self.copy(&region, operation, &op)
                } else {
                    Ok(0)
                };
                Posted::Done(token, done)
            }
            Action::Signal => {
                let (signal, add) = op.signal.unwrap_or_default();
                self.hand_over(&region, silent, token, 1, |id| {
                    vec![Out::Message(Message::Signal { id, key, silent, signal, add })]
                })
            }
            Action::Flush => {
                self.hand_over(&region, silent, token, 1, |id| vec![Out::Message(Message::Flush { id, key })])
            }
            Action::Resume => {
                region.refusing.store(false, Ordering::SeqCst);
                self.hand_over(&region, silent, token, 1, |id| {
                    vec![Out::Message(Message::Resume { id, key })]
                })
            }
            Action::Atomic { atomic, width, operand, compare } => {
                self.hand_over(&region, silent, token, 1, |id| {
                    vec![Out::Message(Message::Atomic {
                        id,
                        key,
                        silent,
                        offset,
                        atomic,
                        width,
                        operand,
                        compare,
                    })]
                })
            }
            Action::Accumulate { dtype, reduce, source } => {
                let from = match source {
                    Source::Borrowed(bytes) => Operands::Copied(bytes.to_vec()),
                    Source::Owned(slice) if slice.region().kind() == Kind::Device => {
                        let error = Error::invalid(operation, "the operands are in a device's memory");
                        return Posted::Done(token, Err(error));
                    }
                    Source::Owned(slice) => Operands::Kept(slice),
                };
                let parts = from.size().div_ceil(OPERANDS) + usize::from(op.signal.is_some());
                if parts == 0 {
                    return Posted::Done(token, Ok(0));
                }
                self.hand_over(&region, silent, token, parts, |id| {
                    let mut all = vec![Out::Accumulate { id, key, silent, offset, dtype, reduce, from }];
                    if let Some((signal, add)) = op.signal {
                        all.push(Out::Message(Message::Signal { id, key, silent, signal, add }));
                    }
                    all
                })
            }
        }
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.failure.get().cloned()
    }

    fn close(&self) {
        if !crate::fork::is_child() {
            let failure =
                Failure::new(Some(self.peer), Cause::ConnectionLost, "this side closed the connection");
            self.fail(failure, false);
            drop(self.inside.write());
        }
        self.hang_up();
    }
}

impl Party for Link {
    fn page(&self) -> &Page {
        &self.page
    }

    fn is_over(&self) -> bool {
        self.failure.get().is_some()
    }

    fn seen(&self, seen: Seen) {
        if let Some(hub) = self.hub.upgrade() {
            hub.bury(self.peer, seen);
        }
        self.fail(seen.failure(self.peer), true);
    }

    fn close(&self) {
        Endpoint::close(self);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Carries the messages of a link until either side hangs up.
async fn carry(
    stream: UnixStream,
    queue: UnboundedReceiver<Out>,
    link: Weak<Link>,
    page: Arc<Page>,
    queued: Arc<AtomicUsize>,
    closing: Arc<Notify>,
) {
    let ended = tokio::select! {
        ended = listen(&stream, &link) => ended,
        ended = speak(&stream, queue, &link, &queued) => match ended {
            // It was asked to.
            Ok(()) => return,
            Err(error) => Err(error),
        },
        // The peer takes nothing any more.
        () = async { closing.notified().await; tokio::time::sleep(GOODBYE).await } => return,
    };
    let said = watch::verdict(&page).await;
    let Some(link) = link.upgrade() else { return };
    let lost = |cause, observed: &str| link.fail(Failure::new(Some(link.peer), cause, observed), true);
    match (said, ended) {
        (Some(seen), _) => link.seen(seen),
        (None, Err(Error::Malformed { what, why })) => {
            lost(Cause::ProtocolError(format!("{what}: {why}")), "on the control socket");
        }
        (None, Err(error)) => lost(Cause::ConnectionLost, &error.to_string()),
        (None, Ok(())) => lost(Cause::ConnectionLost, "it closed the control socket, and lives"),
    }
    // The socket closes when nobody is inside of a copy, which is how the owner knows.
    while link.inside.try_write().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    link.hang_up();
}

async fn listen(stream: &UnixStream, link: &Weak<Link>) -> Result<()> {
    while let Some((message, fds)) = frame::receive(stream).await? {
        let Some(link) = link.upgrade() else { return Ok(()) };
        link.receive(message, fds)?;
    }
    Ok(())
}

async fn speak(
    stream: &UnixStream,
    mut queue: UnboundedReceiver<Out>,
    link: &Weak<Link>,
    queued: &AtomicUsize,
) -> Result<()> {
    while let Some(out) = queue.recv().await {
        match out {
            Out::Message(message) => {
                // Operations that were told to be in doubt are not begun.
                if message.operation().is_none_or(|id| is_awaited(link, id)) {
                    frame::send(stream, &message, &[]).await?;
                }
            }
            Out::Accumulate { id, key, silent, offset, dtype, reduce, from } => {
                for at in (0..from.size()).step_by(OPERANDS) {
                    let Some(operands) = link.upgrade().and_then(|link| link.piece(id, &from, at)) else {
                        break;
                    };
                    let offset = offset + at as u64;
                    let operands = operands?;
                    let message = Message::Accumulate { id, key, silent, offset, dtype, reduce, operands };
                    frame::send(stream, &message, &[]).await?;
                }
                queued.fetch_sub(from.held(), Ordering::Relaxed);
            }
        }
    }
    frame::send(stream, &Message::Bye, &[]).await
}

fn is_awaited(link: &Weak<Link>, id: u64) -> bool {
    link.upgrade().is_some_and(|link| link.waiting.lock().operations.contains_key(&id))
}

fn unasked(id: u64) -> Error {
    malformed(format!("nobody asked for answer {id}"))
}
