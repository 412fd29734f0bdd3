//! The transport `tcp`: one stream to each peer, on which both sides put, get and answer.
//!
//! Control tasks of the driver connect, listen and shake hands; what a connection then carries is moved by whoever polls,
//! on a plain socket. Each frame is a header with a MAC and a payload, which is received straight into the region that it
//! is for. The two sides of a connection are alike: either numbers its operations, and the other
//! acknowledges the last one that it applied, in the header of whatever it sends next.
//!
//! Registered memory is copied and summed before it is sent, so whoever changes it meanwhile changes what arrives, and
//! nothing else. A large payload is received in place and summed there: a program that writes to the same bytes at the
//! same moment makes it look damaged, which closes the connection.

mod connect;
mod connection;
mod control;
mod flights;
mod frame;
mod interfaces;
mod listen;
mod memory;
mod options;
mod protect;
mod receive;
mod send;
mod serve;
mod socket;
#[cfg(test)]
mod tests;
mod transfer;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use connection::{Around, Connection, Link, Remains};
#[doc(hidden)]
pub use control::fuzz_control;
#[doc(hidden)]
pub use frame::fuzz_frame;
use options::Options;
use parking_lot::{Mutex, RwLock};
use protect::Level;
use rustix::event::{Timespec, epoll};
use transom_registry::{Error, Incarnation, Result, Stale};

use crate::backend::{Caps, Endpoint, Host, Pending, Transport};
use crate::handshake::{Hello, Session};
use crate::token::Completion;

/// Up to so many connections are tried one by one: a system call each, instead of one more for all.
const TRIED: usize = 4;
/// Most addresses that peers are told.
const MOST_ADDRESSES: usize = 6;
/// A tick that comes this late says nothing about a peer's silence.
const LATE: Duration = Duration::from_millis(520);

/// The transport `tcp`.
#[derive(Debug)]
pub(crate) struct Tcp {
    shared: Arc<Shared>,
    listening: Mutex<Option<tokio::task::AbortHandle>>,
}

/// What its tasks share.
#[derive(Debug)]
struct Shared {
    around: Arc<Around>,
    tasks: tokio::runtime::Handle,
    crc: bool,
    protect: Level,
    addresses: Vec<String>,
    connections: RwLock<Vec<Arc<Connection>>>,
    /// How many there are.
    living: AtomicUsize,
    /// Told of each connection that is taken on.
    met: tokio::sync::Notify,
    /// Somebody polls all the time: no socket is watched.
    polled: AtomicBool,
    next: AtomicU64,
    closed: AtomicBool,
    ticked: Mutex<Option<Instant>>,
}

impl Tcp {
    /// Opens it: binds, and listens.
    ///
    /// # Errors
    /// [`Error::Config`]; [`Error::Unusable`] when the address cannot be bound, or under a virtual clock.
    pub(crate) fn open(arguments: &str, host: &Host) -> Result<Arc<dyn Transport>> {
        let options = Options::parse(arguments)?;
        let unusable = |why: String| Error::Unusable { transport: "tcp".into(), why };
        let tasks = host.tasks.clone().ok_or_else(|| {
            unusable("a simulation's clock moves no sockets (use the simulated transport)".into())
        })?;
        let (listener, bound) = listen::bind(options.bind).map_err(|e| {
            unusable(format!(
                "cannot listen on {}: {e} (is the address this machine's, the port free?)",
                options.bind
            ))
        })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::io("make an epoll", e))?;
        let around =
            Around { host: host.clone(), epoll, began: Instant::now(), fallen: AtomicBool::new(false) };
        let shared = Arc::new(Shared {
            around: Arc::new(around),
            tasks: tasks.clone(),
            crc: options.crc,
            protect: options.protect,
            addresses: reachable(&options, bound),
            connections: RwLock::default(),
            living: AtomicUsize::new(0),
            met: tokio::sync::Notify::new(),
            polled: AtomicBool::new(false),
            next: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            ticked: Mutex::default(),
        });
        let listening = listen::start(&shared, listener)?;
        Ok(Arc::new(Self { shared, listening: Mutex::new(Some(listening)) }))
    }
}

/// Where peers reach a listener that is bound there.
fn reachable(options: &Options, bound: SocketAddr) -> Vec<String> {
    let text = |ip: IpAddr| format!("tcp:{}", SocketAddr::new(ip, bound.port()));
    if let Some(name) = &options.name {
        return vec![format!("tcp:{name}:{}", bound.port())];
    }
    if !bound.ip().is_unspecified() {
        return vec![text(bound.ip())];
    }
    let mut found = interfaces::addresses();
    found.retain(|ip| ip.is_ipv4() || bound.is_ipv6());
    found.truncate(MOST_ADDRESSES);
    if found.is_empty() {
        found.push(IpAddr::from(std::net::Ipv4Addr::LOCALHOST));
    }
    found.into_iter().map(text).collect()
}

impl Shared {
    fn hello(&self) -> Hello {
        Hello {
            incarnation: Some(self.around.host.registry.incarnation()),
            addresses: self.addresses.clone(),
            features: self.protect.feature(),
        }
    }

    /// Who is there, if it is this peer and protects its frames as we do.
    fn identify(&self, theirs: &Hello, peer: Option<Incarnation>) -> Result<Incarnation> {
        let found = theirs.incarnation.ok_or_else(|| Error::Malformed {
            what: "hello",
            why: "a peer without an incarnation has no regions".into(),
        })?;
        if let Some(peer) = peer.filter(|peer| *peer != found) {
            return Err(Error::Stale {
                operation: "connect",
                what: Stale::Incarnation,
                held: peer.as_u64(),
                current: found.as_u64(),
            });
        }
        self.protect.agree(theirs.features)?;
        Ok(found)
    }

    /// A connection that lives, to this peer.
    fn existing(&self, peer: Incarnation) -> Option<Link> {
        self.connections.read().iter().filter(|c| c.peer() == peer).find_map(Connection::take_up)
    }

    /// Takes a connection on whose both sides have proven the secret.
    fn adopt(
        &self,
        stream: tokio::net::TcpStream,
        session: &Session,
        peer: Incarnation,
    ) -> Result<Arc<Connection>> {
        let stream = stream.into_std().map_err(|e| Error::io("take a connection over", e))?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(&self.around, stream, session, peer, id, self.crc, self.protect)?;
        let mut connections = self.connections.write();
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { operation: "connect", what: "context" });
        }
        if !self.polled.load(Ordering::SeqCst) {
            connection.set_watched(true)?;
        }
        connections.push(connection.clone());
        self.living.store(connections.len(), Ordering::Release);
        drop(connections);
        self.met.notify_waiters();
        // Bytes may be there already.
        (self.around.host.kick)();
        Ok(connection)
    }

    /// Takes the failed connections away.
    fn bury(&self, done: &mut Vec<Completion>) {
        let mut dead = Vec::new();
        {
            let mut connections = self.connections.write();
            connections.retain(|connection| {
                let failed = connection.failure().is_some();
                if failed {
                    dead.push(connection.clone());
                }
                !failed
            });
            self.living.store(connections.len(), Ordering::Release);
        }
        for connection in dead {
            let peer = connection.peer();
            let Some(Remains { failure, quiet, grants }) = connection.bury(done) else { continue };
            let alone = !self.connections.read().iter().any(|c| c.peer() == peer);
            if !quiet && alone {
                // Before anybody can see an operation that ended by it.
                (self.around.host.lost)(peer, failure);
            }
            // Memory may go with them: outside of the seat.
            self.tasks.spawn(async move { drop(grants) });
        }
    }
}

impl Transport for Tcp {
    fn name(&self) -> &str {
        "tcp"
    }

    fn caps(&self) -> Caps {
        Caps { mapped: false, remote: true, polled: true }
    }

    fn addresses(&self) -> Vec<String> {
        self.shared.addresses.clone()
    }

    fn connect(
        &self,
        address: &str,
        peer: Option<Incarnation>,
        deadline: Instant,
    ) -> Pending<Arc<dyn Endpoint>> {
        if let Some(link) = peer.and_then(|peer| self.shared.existing(peer)) {
            return Box::pin(std::future::ready(Ok(Arc::new(link) as Arc<dyn Endpoint>)));
        }
        connect::begin(&self.shared, address.to_owned(), peer, deadline)
    }

    fn needs_poll(&self) -> bool {
        self.shared.living.load(Ordering::Acquire) > 0
    }

    fn poll(&self, done: &mut Vec<Completion>) -> usize {
        let shared = &self.shared;
        let mut moved = 0;
        {
            let connections = shared.connections.read();
            if connections.len() <= TRIED || shared.polled.load(Ordering::SeqCst) {
                moved += connections.iter().map(|c| c.poll(done)).sum::<usize>();
            } else {
                let none =
                    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
                let mut events = [none; 64];
                let found = epoll::wait(&shared.around.epoll, &mut events, Some(&Timespec::default()));
                for event in events.iter().take(found.unwrap_or(0)) {
                    // They are added in the order of their numbers.
                    let id = event.data.u64();
                    if let Ok(at) = connections.binary_search_by_key(&id, |c| c.id()) {
                        moved += connections[at].poll(done);
                    }
                }
            }
        }
        if shared.around.fallen.swap(false, Ordering::AcqRel) {
            shared.bury(done);
            moved += 1;
        }
        moved
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.around.epoll.as_fd())
    }

    fn arm(&self) -> Result<bool> {
        if self.shared.polled.swap(false, Ordering::SeqCst) {
            for connection in self.shared.connections.read().iter() {
                connection.set_watched(true)?;
            }
        }
        Ok(true)
    }

    fn disarm(&self) {
        let connections = self.shared.connections.read();
        // Many are found by what the epoll says.
        if connections.len() <= TRIED && !self.shared.polled.swap(true, Ordering::SeqCst) {
            for connection in connections.iter() {
                // One that stays watched costs a little, and nothing else.
                let _ = connection.set_watched(false);
            }
        }
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        let late = {
            let mut ticked = self.shared.ticked.lock();
            let before = ticked.replace(now);
            before.is_some_and(|before| now.saturating_duration_since(before) > LATE)
        };
        for connection in self.shared.connections.read().iter() {
            connection.tick(late);
        }
        None
    }

    fn close(&self) {
        if crate::fork::is_child() {
            return;
        }
        if let Some(listening) = self.listening.lock().take() {
            listening.abort();
        }
        self.shared.closed.store(true, Ordering::Release);
        let connections = std::mem::take(&mut *self.shared.connections.write());
        self.shared.living.store(0, Ordering::Release);
        let mut done = Vec::new();
        let mut grants = Vec::new();
        for connection in connections {
            connection.leave();
            grants.extend(connection.bury(&mut done).map(|remains| remains.grants));
        }
        drop(grants);
        for completion in done {
            completion.deliver();
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.close();
    }
}
