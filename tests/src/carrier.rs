//! A transport of somebody else: between contexts of one process, nothing mapped, every operation carried by a queue.
//!
//! It is what a third party would write, as small as it can be, so that the paths above a transport that posts are
//! tried without any network.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use transom_registry::exposed::Locker;
use transom_registry::{Error, Failure, Grant, Stale};
use transom_transport::backend::{
    Action, Attached, Caps, Endpoint, Host, Op, Pending, Posted, Source, Transport,
};
use transom_transport::token::{Completion, Token};
use transom_transport::{
    Access, Atomic, Cause, Dtype, Incarnation, Open, Outcome, Reduce, RemoteRegion, Result, Slice,
};

/// How many operations one connection holds.
const DEPTH: usize = 64;
/// How many operations of one connection one look carries over, before others have their turn.
const BURST: usize = 256;

/// Opens it under this name.
#[must_use]
pub fn opener(name: &'static str) -> Open {
    Arc::new(move |_, host| Ok(Carrier::open(name, host)))
}

/// One context's side.
pub struct Carrier {
    name: &'static str,
    host: Host,
    /// The connections that begin here.
    links: Mutex<Vec<Weak<Link>>>,
    /// The connections that lead here.
    incoming: Mutex<Vec<Weak<Link>>>,
}

static PROCESS: Mutex<BTreeMap<Incarnation, Weak<Carrier>>> = Mutex::new(BTreeMap::new());

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.host.registry.incarnation())
    }
}

impl Carrier {
    /// The transport for a context.
    pub fn open(name: &'static str, host: &Host) -> Arc<dyn Transport> {
        let (links, incoming) = (Mutex::default(), Mutex::default());
        let carrier = Arc::new(Self { name, host: host.clone(), links, incoming });
        PROCESS.lock().insert(host.registry.incarnation(), Arc::downgrade(&carrier));
        carrier
    }

    fn reach(&self, address: &str, peer: Option<Incarnation>) -> Result<Arc<dyn Endpoint>> {
        let (_, text) = address.split_once(':').unwrap_or_default();
        let named = u64::from_str_radix(text, 16).ok().and_then(Incarnation::from_u64);
        let named = named.ok_or_else(|| Error::Malformed { what: "address", why: format!("{address:?}") })?;
        let peer = peer.unwrap_or(named);
        if peer != named {
            return Err(Error::Stale {
                operation: "connect",
                what: Stale::Incarnation,
                held: peer.as_u64(),
                current: named.as_u64(),
            });
        }
        let target = PROCESS.lock().get(&named).and_then(Weak::upgrade);
        let target = target.ok_or_else(|| Error::Unusable {
            transport: self.name.into(),
            why: "it is not in this process".into(),
        })?;
        let link = Arc::new(Link {
            name: self.name,
            peer,
            target: Arc::downgrade(&target),
            home: self.host.clone(),
            keys: Mutex::default(),
            next_key: AtomicU64::new(1),
            queue: Mutex::default(),
            failure: OnceLock::new(),
        });
        self.links.lock().push(Arc::downgrade(&link));
        target.incoming.lock().push(Arc::downgrade(&link));
        Ok(link)
    }
}

fn living(links: &Mutex<Vec<Weak<Link>>>) -> Vec<Arc<Link>> {
    let mut links = links.lock();
    links.retain(|link| link.strong_count() > 0);
    links.iter().filter_map(Weak::upgrade).collect()
}

impl Transport for Carrier {
    fn name(&self) -> &str {
        self.name
    }

    fn caps(&self) -> Caps {
        Caps { mapped: false, remote: false, polled: true }
    }

    fn addresses(&self) -> Vec<String> {
        vec![format!("{}:{}", self.name, self.host.registry.incarnation())]
    }

    fn connect(&self, address: &str, peer: Option<Incarnation>, _: Instant) -> Pending<Arc<dyn Endpoint>> {
        Box::pin(std::future::ready(self.reach(address, peer)))
    }

    fn poll(&self, done: &mut Vec<Completion>) -> usize {
        living(&self.links).iter().map(|link| link.carry(done)).sum()
    }

    fn close(&self) {
        let me = self.host.registry.incarnation();
        PROCESS.lock().remove(&me);
        let failure = Failure::new(Some(me), Cause::Left, "its context was closed");
        for link in living(&self.incoming) {
            link.fail(&failure);
            (link.home.lost)(me, failure.clone());
        }
        for link in living(&self.links) {
            link.close();
        }
    }
}

/// One connection: the initiator posts, and its polls execute at the target.
struct Link {
    name: &'static str,
    peer: Incarnation,
    target: Weak<Carrier>,
    home: Host,
    keys: Mutex<BTreeMap<u64, Arc<Key>>>,
    next_key: AtomicU64,
    queue: Mutex<VecDeque<Carried>>,
    failure: OnceLock<Arc<Failure>>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.name, self.peer)
    }
}

struct Key {
    grant: Grant,
    /// A silent operation was refused: what follows is too.
    refusing: AtomicBool,
}

enum Bytes {
    Copied(Vec<u8>),
    Slice(Slice),
}

impl Bytes {
    fn of(source: &Source<'_>) -> Self {
        match source {
            Source::Borrowed(bytes) => Self::Copied(bytes.to_vec()),
            Source::Owned(slice) => Self::Slice(slice.clone()),
        }
    }

    fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Copied(bytes) => Ok(bytes.clone()),
            Self::Slice(slice) => {
                let mut bytes = vec![0; slice.size()];
                slice.read(0, &mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

enum What {
    Put(Vec<(u64, u64)>, Bytes),
    Get(Vec<(u64, u64)>, Slice),
    Atomic { atomic: Atomic, width: u8, offset: u64, operand: u64, compare: u64 },
    Accumulate { dtype: Dtype, reduce: Reduce, offset: u64, source: Bytes },
    Signal,
    Flush,
    Resume,
}

impl What {
    fn of(op: &Op<'_>) -> Self {
        let offset = op.offset;
        match &op.action {
            Action::Put(source) => Self::Put(vec![(offset, source.size() as u64)], Bytes::of(source)),
            Action::PutList(parts, source) => Self::Put(parts.to_vec(), Bytes::of(source)),
            Action::Get(into) => Self::Get(vec![(offset, into.size() as u64)], into.clone()),
            Action::GetList(parts, into) => Self::Get(parts.to_vec(), into.clone()),
            &Action::Atomic { atomic, width, operand, compare } => {
                Self::Atomic { atomic, width, offset, operand, compare }
            }
            Action::Accumulate { dtype, reduce, source } => {
                Self::Accumulate { dtype: *dtype, reduce: *reduce, offset, source: Bytes::of(source) }
            }
            Action::Signal => Self::Signal,
            Action::Flush => Self::Flush,
            Action::Resume => Self::Resume,
        }
    }

    fn needs(&self) -> Access {
        match self {
            Self::Put(..) => Access::WRITE,
            Self::Get(..) => Access::READ,
            Self::Atomic { .. } | Self::Accumulate { .. } => Access::ATOMIC,
            Self::Signal | Self::Flush | Self::Resume => Access::NONE,
        }
    }
}

struct Carried {
    key: Arc<Key>,
    what: What,
    signal: Option<(u32, u64)>,
    silent: bool,
    token: Token,
}

impl Link {
    fn fail(&self, failure: &Arc<Failure>) {
        let _ = self.failure.set(failure.clone());
        // Outside of the lock: wakers run here.
        let waiting = std::mem::take(&mut *self.queue.lock());
        for carried in waiting {
            carried.token.fail(Outcome::NotApplied, failure);
        }
    }

    /// Executes what is at the head of the queue.
    fn carry(&self, done: &mut Vec<Completion>) -> usize {
        let mut count = 0;
        while let Some(carried) = self.queue.lock().pop_front() {
            let result = self.execute(&carried);
            done.push(Completion::new(carried.token, result));
            count += 1;
            if count == BURST {
                // Whoever looks next goes on: what is left has no other event.
                (self.home.kick)();
                break;
            }
        }
        count
    }

    fn execute(&self, carried: &Carried) -> Result<u64> {
        let key = &carried.key;
        match carried.what {
            What::Flush => return Ok(0),
            What::Resume => {
                key.refusing.store(false, Ordering::Release);
                return Ok(0);
            }
            _ => {}
        }
        let operation = carried.token.operation();
        if key.refusing.load(Ordering::Acquire) {
            let failure = Failure::new(Some(self.peer), Cause::Earlier, "the target waits for a flush");
            return Err(Error::failed(operation, Outcome::NotApplied, failure));
        }
        let result = self.apply(carried, operation);
        if result.is_err() && carried.silent {
            key.refusing.store(true, Ordering::Release);
        }
        result.map_err(Error::refused)
    }

    fn apply(&self, carried: &Carried, operation: &'static str) -> Result<u64> {
        let grant = &carried.key.grant;
        let signal = if carried.signal.is_some() { Access::SIGNAL } else { Access::NONE };
        grant.check(operation, carried.what.needs() | signal)?;
        if let Some((id, _)) = carried.signal
            && id >= grant.signals
        {
            return Err(Error::invalid(operation, format!("signal {id} of {}", grant.signals)));
        }
        let exposed = &grant.exposed;
        let mut value = 0;
        match &carried.what {
            What::Put(parts, source) => {
                for &(offset, size) in parts {
                    exposed.part(operation, offset, size)?;
                }
                let bytes = source.read()?;
                let mut at = 0;
                for &(offset, size) in parts {
                    exposed.write(offset, &bytes[at..at + size as usize])?;
                    at += size as usize;
                }
            }
            What::Get(parts, into) => {
                let mut at = 0;
                for &(offset, size) in parts {
                    let mut bytes = vec![0; size as usize];
                    exposed.read(offset, &mut bytes)?;
                    into.write(at, &bytes)?;
                    at += size as usize;
                }
            }
            &What::Atomic { atomic, width, offset, operand, compare } => {
                value = exposed.atomic(atomic, width, offset, operand, compare)?;
            }
            What::Accumulate { dtype, reduce, offset, source } => {
                let incarnation = self.home.registry.incarnation();
                let by = Locker { incarnation, patience: Duration::from_secs(10) };
                exposed.accumulate_bytes(*dtype, *reduce, *offset, &source.read()?, by)?;
            }
            What::Signal | What::Flush | What::Resume => {}
        }
        if let Some((id, add)) = carried.signal {
            exposed.signal_add(id, add)?;
        }
        Ok(value)
    }
}

impl Endpoint for Link {
    fn peer(&self) -> Incarnation {
        self.peer
    }

    fn transport(&self) -> &str {
        self.name
    }

    fn attach(&self, region: &RemoteRegion, _: Instant) -> Pending<Attached> {
        let granted = match self.target.upgrade() {
            Some(target) => target.host.registry.grant(region),
            None => {
                let failure = Failure::new(Some(self.peer), Cause::Left, "its context was closed");
                Err(Error::failed("open", Outcome::NotApplied, failure))
            }
        };
        let attached = granted.map(|grant| {
            let key = self.next_key.fetch_add(1, Ordering::Relaxed);
            self.keys.lock().insert(key, Arc::new(Key { grant, refusing: AtomicBool::new(false) }));
            Attached { key, mapped: None }
        });
        Box::pin(std::future::ready(attached))
    }

    fn detach(&self, key: u64) {
        self.keys.lock().remove(&key);
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        let Some(key) = self.keys.lock().get(&op.key).cloned() else {
            let error = Error::Closed { operation: token.operation(), what: "region" };
            return Posted::Done(token, Err(error));
        };
        let mut queue = self.queue.lock();
        // Looked at under the lock: whoever fails the connection empties the queue after that.
        if let Some(failure) = self.failure.get() {
            let error = Error::failed(token.operation(), Outcome::NotApplied, failure.clone());
            return Posted::Done(token, Err(error));
        }
        if queue.len() >= DEPTH {
            return Posted::Full(token);
        }
        queue.push_back(Carried { key, what: What::of(&op), signal: op.signal, silent: op.silent, token });
        drop(queue);
        (self.home.kick)();
        Posted::Pending
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.failure.get().cloned()
    }

    fn close(&self) {
        self.fail(&Failure::new(Some(self.peer), Cause::Left, "this side closed the connection"));
    }
}
