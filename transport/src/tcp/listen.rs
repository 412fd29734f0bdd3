//! Takes connections on: bounded strangers, of whom the silent and the oldest go first, so that a peer always gets in.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use transom_registry::{Error, Result};

use super::Shared;
use crate::handshake::{self, Purpose};

/// Most connections that have not proven the secret, of all sources and of one.
const MOST: usize = 256;
const MOST_OF_ONE: usize = 16;
/// How long the proof may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait when no more can be taken on.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(500);

/// Binds a listener.
pub(super) fn bind(place: SocketAddr) -> std::io::Result<(std::net::TcpListener, SocketAddr)> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(place),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    if place.is_ipv6() {
        socket.set_only_v6(!place.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&place.into())?;
    socket.listen(1024)?;
    let listener = std::net::TcpListener::from(socket);
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Starts the task that accepts.
pub(super) fn start(shared: &Arc<Shared>, listener: std::net::TcpListener) -> Result<AbortHandle> {
    let _entered = shared.tasks.enter();
    let listener = TcpListener::from_std(listener).map_err(|e| Error::io("listen", e))?;
    Ok(shared.tasks.spawn(accept(Arc::downgrade(shared), listener)).abort_handle())
}

/// Who has connected and has proven nothing yet, oldest first.
#[derive(Debug, Default)]
struct Strangers(VecDeque<Stranger>);

#[derive(Debug)]
struct Stranger {
    source: IpAddr,
    /// Has said something that takes the secret, though it may be an old recording.
    spoke: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Strangers {
    /// Makes room for one more from there.
    fn make_room(&mut self, source: IpAddr) {
        self.0.retain(|s| !s.task.is_finished());
        let of_one = self.0.iter().filter(|s| s.source == source).count();
        if of_one < MOST_OF_ONE && self.0.len() < MOST {
            return;
        }
        let candidates =
            self.0.iter().enumerate().filter(|(_, s)| of_one < MOST_OF_ONE || s.source == source);
        let first = candidates.min_by_key(|(at, s)| (s.spoke.load(Ordering::Relaxed), *at)).map(|(at, _)| at);
        if let Some(stranger) = first.and_then(|at| self.0.remove(at)) {
            stranger.task.abort();
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        for stranger in &self.0 {
            stranger.task.abort();
        }
    }
}

async fn accept(shared: Weak<Shared>, listener: TcpListener) {
    let mut strangers = Strangers::default();
    let mut pause = SHORTEST;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or of memory: others may give some back.
                tracing::warn!(%error, "tcp cannot take a connection on");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST);
                continue;
            }
        };
        pause = SHORTEST;
        let source = from.ip().to_canonical();
        strangers.make_room(source);
        let shared = shared.clone();
        let spoke = Arc::new(AtomicBool::new(false));
        let says = spoke.clone();
        let task = tokio::spawn(async move {
            let met = tokio::time::timeout(PATIENCE, meet(&shared, stream, &says)).await;
            match met {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%from, %error, "tcp turned a connection down"),
                Err(_) => tracing::debug!(%from, "tcp turned a connection down: it was silent"),
            }
        });
        strangers.0.push_back(Stranger { source, spoke, task: task.abort_handle() });
        // It may have spoken already: it is heard before the next one takes its place.
        tokio::task::yield_now().await;
    }
}

async fn meet(shared: &Weak<Shared>, mut stream: TcpStream, spoke: &AtomicBool) -> Result<()> {
    let closed = || Error::Closed { operation: "accept", what: "context" };
    let (secret, hello) = {
        let shared = shared.upgrade().ok_or_else(closed)?;
        (shared.around.host.secret.clone(), shared.hello())
    };
    let _ = stream.set_nodelay(true);
    let spoke = || spoke.store(true, Ordering::Relaxed);
    let met = handshake::respond_noting(&mut stream, &secret, Purpose::Tcp, &hello, spoke).await;
    let (session, theirs) = met?;
    let shared = shared.upgrade().ok_or_else(closed)?;
    let peer = shared.identify(&theirs, None)?;
    shared.adopt(stream, &session, peer).map(drop)
}
