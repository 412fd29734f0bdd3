//! Reaches a peer: again and again while nobody listens there yet, if it may start later.
#![forbid(unsafe_code)]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use transom_registry::{Error, Incarnation, Result};

use super::connection::Link;
use super::{Shared, listen, options};
use crate::backend::{Endpoint, Pending};
use crate::handshake::{self, Hello, Purpose};

/// Pauses between attempts.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(200);
/// How long a refusal of a peer that is known by its incarnation may last: it listened before anybody could know that, so
/// it is gone, or its host is short of room for a moment.
const KNOWN: Duration = Duration::from_secs(1);
/// How long hang-ups during the handshake are taken for the other side's crowd of strangers.
const CROWD: Duration = Duration::from_secs(5);

/// How long the one of two with the higher incarnation waits for the other to connect.
const HEAD_START: Duration = Duration::from_millis(20);

/// Ends its task when it is dropped.
struct Task(JoinHandle<Result<Link>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Future for Task {
    type Output = Result<Arc<dyn Endpoint>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|joined| match joined {
            Ok(link) => link.map(|link| Arc::new(link) as Arc<dyn Endpoint>),
            Err(_) => Err(Error::Closed { operation: "connect", what: "context" }),
        })
    }
}

/// Connects to this address.
pub(super) fn begin(
    shared: &Arc<Shared>,
    address: String,
    peer: Option<Incarnation>,
    deadline: Instant,
) -> Pending<Arc<dyn Endpoint>> {
    let task = shared.tasks.spawn(connect(shared.clone(), address, peer, deadline));
    Box::pin(Task(task))
}

async fn connect(
    shared: Arc<Shared>,
    address: String,
    peer: Option<Incarnation>,
    deadline: Instant,
) -> Result<Link> {
    let place = address.strip_prefix("tcp:").unwrap_or(&address);
    let (host, port) = options::split(place).ok_or_else(|| Error::Malformed {
        what: "address",
        why: format!("{address:?} is not tcp:HOST:PORT"),
    })?;
    if let Some(link) = let_begin(&shared, peer).await {
        return Ok(link);
    }
    let until = tokio::time::Instant::from_std(deadline);
    let begun = tokio::time::Instant::now();
    let mut pause = SHORTEST;
    loop {
        let attempt = tokio::time::timeout_at(until, attempt(&shared, host, port, peer)).await;
        let error = match attempt {
            Ok(Ok(link)) => return Ok(link),
            Ok(Err(error)) => error,
            Err(_) => return Err(silent(&address)),
        };
        let patient = match &error {
            Error::Io { errno, .. } if is_passing(*errno) && peer.is_none() => until,
            Error::Io { errno, .. } if is_passing(*errno) => until.min(begun + KNOWN),
            error if handshake::is_hang_up(error) => until.min(begun + CROWD),
            Error::Expired { .. } => until,
            _ => return Err(error),
        };
        if tokio::time::Instant::now() + pause >= patient {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Where both are about to connect, the one with the higher incarnation waits a moment: two connections would carry one
/// direction each, and acknowledge in packets of their own.
async fn let_begin(shared: &Shared, peer: Option<Incarnation>) -> Option<Link> {
    let peer = peer?;
    if !shared.around.host.mutual || shared.around.host.registry.incarnation() < peer {
        return None;
    }
    let met = async {
        loop {
            let next = shared.met.notified();
            if let Some(link) = shared.existing(peer) {
                return link;
            }
            next.await;
        }
    };
    tokio::time::timeout(HEAD_START, met).await.ok()
}

fn silent(address: &str) -> Error {
    Error::Expired {
        operation: "connect",
        rank: None,
        after: listen::PATIENCE,
        detail: format!("{address} does not answer"),
        outcome: None,
    }
}

/// Whether an error may go by itself: nobody listens there yet.
fn is_passing(errno: i32) -> bool {
    use rustix::io::Errno;
    [Errno::CONNREFUSED, Errno::CONNRESET, Errno::INTR, Errno::AGAIN]
        .iter()
        .any(|e| e.raw_os_error() == errno)
}

async fn attempt(shared: &Shared, host: &str, port: u16, peer: Option<Incarnation>) -> Result<Link> {
    let fail = |e| Error::io(format!("connect to {host}:{port}"), e);
    let mut stream = TcpStream::connect((host, port)).await.map_err(fail)?;
    let _ = stream.set_nodelay(true);
    let hello = shared.hello();
    let secret = &shared.around.host.secret;
    let right = |theirs: &Hello| shared.identify(theirs, peer).map(drop);
    let meet = handshake::initiate_if(&mut stream, secret, Purpose::Tcp, &hello, right);
    let (session, theirs) = match tokio::time::timeout(listen::PATIENCE, meet).await {
        Ok(met) => met?,
        Err(_) => return Err(silent(&format!("{host}:{port}"))),
    };
    let found = shared.identify(&theirs, peer)?;
    let connection = shared.adopt(stream, &session, found)?;
    connection.take_up().ok_or_else(|| match connection.failure() {
        Some(failure) => Error::failed("connect", transom_registry::Outcome::NotApplied, failure.clone()),
        None => Error::Closed { operation: "connect", what: "connection" },
    })
}
