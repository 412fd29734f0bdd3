//! How two processes of one host meet: the kernel says whose process it is, the job's secret is proven, and only then
//! descriptors pass.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::net::UnixStream;
use transom_registry::{Error, Incarnation, Mapped, Result, Stale};

use super::frame;
use super::message::{Message, malformed};
use super::socket::unusable;
use crate::backend::Host;
use crate::handshake::{self, Hello, Purpose};
use crate::progress::Page;

/// How long a meeting may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Who was met.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) stream: UnixStream,
    pub(super) peer: Incarnation,
    pub(super) page: Arc<Page>,
    /// Its number in our process namespace, where it has one.
    pub(super) pid: Option<i32>,
}

/// Connects to whoever listens at `path`.
pub(super) async fn initiate(
    host: &Host,
    path: &Path,
    wanted: Option<Incarnation>,
    deadline: Instant,
) -> Result<Met> {
    let mut stream = connect(path, deadline).await?;
    let pid = check_user(&stream)?;
    let left = deadline.saturating_duration_since(Instant::now()).min(PATIENCE);
    let meeting = async {
        let (_, theirs) = handshake::initiate(&mut stream, &host.secret, Purpose::Shm, &hello(host)).await?;
        let peer = known(&theirs)?;
        if let Some(wanted) = wanted
            && wanted != peer
        {
            return Err(Error::Stale {
                operation: "connect",
                what: Stale::Incarnation,
                held: wanted.as_u64(),
                current: peer.as_u64(),
            });
        }
        show_page(&stream, host).await?;
        Ok((peer, see_page(&stream).await?))
    };
    match tokio::time::timeout(left, meeting).await {
        Ok(met) => met.map(|(peer, page)| Met { stream, peer, page, pid }),
        Err(_) => Err(Error::Expired {
            operation: "connect",
            rank: None,
            after: left,
            detail: format!("{} does not answer (is its process stopped?)", path.display()),
            outcome: None,
        }),
    }
}

/// Meets whoever connected. Takes at most [`PATIENCE`].
pub(super) async fn respond(host: &Host, mut stream: UnixStream) -> Result<Met> {
    let pid = check_user(&stream)?;
    let meeting = async {
        let (_, theirs) = handshake::respond(&mut stream, &host.secret, Purpose::Shm, &hello(host)).await?;
        let peer = known(&theirs)?;
        let page = see_page(&stream).await?;
        show_page(&stream, host).await?;
        Ok((peer, page))
    };
    match tokio::time::timeout(PATIENCE, meeting).await {
        Ok(met) => met.map(|(peer, page)| Met { stream, peer, page, pid }),
        Err(_) => Err(Error::Auth {
            peer: "whoever connected".into(),
            why: format!("it said nothing that proves the secret for {} ms", PATIENCE.as_millis()),
        }),
    }
}

async fn connect(path: &Path, deadline: Instant) -> Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            // Its queue of connections is full.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(e) if is_ours(&e) => return Err(Error::io(format!("connect to {}", path.display()), e)),
            Err(e) => {
                return Err(unusable(format!(
                    "{}: {e} (its process is not on this host, or gone, or in another mount namespace)",
                    path.display()
                )));
            }
        }
    }
}

/// Whether it was us who could not connect, whoever is there.
fn is_ours(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Checks that the other side is a process of ours, or root's; returns its number.
fn check_user(stream: &UnixStream) -> Result<Option<i32>> {
    let peer = stream.peer_cred().map_err(|e| Error::io("see who is at the other end of a socket", e))?;
    let me = rustix::process::geteuid().as_raw();
    if peer.uid() != me && peer.uid() != 0 {
        return Err(unusable(format!("a process of user {} is there, we are {me}", peer.uid())));
    }
    Ok(peer.pid().filter(|pid| *pid > 0))
}

fn hello(host: &Host) -> Hello {
    Hello { incarnation: Some(host.registry.incarnation()), addresses: Vec::new(), features: 0 }
}

fn known(hello: &Hello) -> Result<Incarnation> {
    hello.incarnation.ok_or_else(|| malformed("it has no incarnation"))
}

async fn show_page(stream: &UnixStream, host: &Host) -> Result<()> {
    let shared = host.page.share().filter(|shared| shared.offset == 0);
    let shared = shared.ok_or_else(|| unusable("the control page cannot be shared"))?;
    frame::send(stream, &Message::Page, &[shared.fd, host.page.bell_fd()]).await
}

async fn see_page(stream: &UnixStream) -> Result<Arc<Page>> {
    match frame::receive(stream).await? {
        Some((Message::Page, fds)) => {
            let [page, bell] = frame::exactly(fds)?;
            // Ringing never blocks.
            let flags = rustix::fs::fcntl_getfl(&bell).map_err(|e| Error::io("look at a peer's bell", e))?;
            if !flags.contains(OFlags::NONBLOCK) {
                return Err(malformed("its bell could block"));
            }
            Ok(Arc::new(Page::map(Mapped::new(page, 0, Page::SIZE, true, true)?, bell)?))
        }
        Some(_) => Err(malformed("its first message is not its page")),
        None => Err(Error::Auth {
            peer: "the peer".into(),
            why: "it hung up after the handshake (is the secret the same on both sides?)".into(),
        }),
    }
}
