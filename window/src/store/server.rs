use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use transom_registry::{Cause, Error, Failure, Result};
use transom_transport::Secret;

use super::Call;
use super::auth::{self, Unmet};
use super::channel::{self, GATHER, Opener, Sealer};
use super::doorstep::Doorstep;
use super::rules::{MOST_WAITING, Refusal};
use super::table::Table;
use super::wire::{MOST_NAMED, Reply, Request};

/// How long a connection may take to prove the secret.
const PROOF: Duration = Duration::from_secs(2);
/// How long a drop waits for the server's thread.
const STOP: Duration = Duration::from_secs(2);
/// Replies that a connection may have waiting to be written; its requests are read no further while they do.
const MOST_UNSENT: usize = 64;
/// Connections that the kernel keeps for us until they are accepted.
const BACKLOG: u32 = 4096;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The server of a TCP store: one thread, which ends when this is dropped.
///
/// Every connection proves the job secret within two seconds before anything it says is believed; at most 256 may be
/// without proof at a time, 16 from one address. Dropping the server ends all connections: the calls of their clients fail
/// with [`Cause::ConnectionLost`](transom_registry::Cause::ConnectionLost).
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    stopped: parking_lot::Mutex<std_mpsc::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl StoreServer {
    /// Listens at this address (port 0: any free port) and serves who has this secret.
    ///
    /// # Errors
    /// [`Error::Io`] when the address cannot be listened at, or a thread cannot be started.
    pub fn bind(address: SocketAddr, secret: &Secret) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::io("start the store server's runtime", e))?;
        let listener = {
            let _inside = runtime.enter();
            listen(address).map_err(|e| Error::io(format!("listen at {address}"), e))?
        };
        let address = listener.local_addr().map_err(|e| Error::io(format!("listen at {address}"), e))?;
        let server =
            Arc::new(Server { table: Table::new(), secret: secret.clone(), doorstep: Mutex::default() });
        let (stop, stopping) = oneshot::channel();
        let (say_stopped, stopped) = std_mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("transom-store".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(&server, &listener) => {}
                        _ = stopping => {}
                    }
                });
                drop(listener);
                runtime.shutdown_background();
                let _ = say_stopped.send(());
            })
            .map_err(|e| Error::io("start the store server's thread", e))?;
        Ok(Self {
            address,
            stop: Some(stop),
            stopped: stopped.into(),
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    /// Where it listens, with the port that it was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if self.process != std::process::id() {
            std::mem::forget(self.stop.take());
            return;
        }
        self.stop = None;
        match self.stopped.lock().recv_timeout(STOP) {
            Err(std_mpsc::RecvTimeoutError::Timeout) => {
                tracing::warn!(address = %self.address, "the store server's thread does not end, it is left behind");
            }
            _ => {
                if let Some(thread) = self.thread.take() {
                    let _ = thread.join();
                }
            }
        }
    }
}

#[derive(Debug)]
struct Server {
    table: Table,
    secret: Secret,
    doorstep: Mutex<Doorstep>,
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(server: &Arc<Server>, listener: &TcpListener) {
    let mut pause = FIRST_PAUSE;
    loop {
        match listener.accept().await {
            Ok((stream, source)) => {
                pause = FIRST_PAUSE;
                let source = source.ip().to_canonical();
                let ticket = server.doorstep.lock().ticket(source);
                let task = tokio::spawn(meet(Arc::clone(server), stream, ticket)).abort_handle();
                server.doorstep.lock().enter(ticket, source, task);
                // Those who are at the door speak before the next one comes.
                tokio::task::yield_now().await;
            }
            Err(error) if gone(&error) => {}
            Err(error) => {
                tracing::warn!(%error, pause_ms = pause.as_millis(), "the store server cannot accept, it pauses");
                server.doorstep.lock().turn_away(None);
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Whether only the connection failed that was to be accepted, and the next one can be tried at once.
fn gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
        )
    )
}

/// One connection, from its proof to its end.
async fn meet(server: Arc<Server>, mut stream: TcpStream, ticket: u64) {
    channel::tune(&stream);
    let spoke = || server.doorstep.lock().spoke(ticket);
    let met = timeout(PROOF, auth::respond(&mut stream, &server.secret, spoke)).await;
    server.doorstep.lock().leave(ticket);
    let cipher = match met {
        Ok(Ok(cipher)) => cipher,
        Ok(Err(Unmet::Refused(why) | Unmet::Lost(why))) => {
            tracing::debug!(%why, "a connection to the store was refused");
            return;
        }
        Err(_) => {
            tracing::debug!("a connection to the store was closed: no proof after {} ms", PROOF.as_millis());
            return;
        }
    };
    if auth::welcome(&mut stream, &server.secret, &cipher).await.is_err() {
        return;
    }
    let (opener, sealer) = channel::split(stream, cipher);
    let (out, queue) = mpsc::channel(MOST_UNSENT);
    let failure = tokio::select! {
        failure = converse(&server, opener, out) => failure,
        failure = send(queue, sealer) => failure,
    };
    tracing::debug!(%failure, "a connection to the store has ended");
}

/// Reads requests and does them until the connection ends.
async fn converse(server: &Arc<Server>, mut opener: Opener, out: mpsc::Sender<(u64, Reply)>) -> Arc<Failure> {
    let waiting = Arc::new(Waiting::default());
    let mut tasks = JoinSet::new();
    loop {
        let (id, request) = match opener.frame().await.map(Request::decode) {
            Ok(Ok(request)) => request,
            Ok(Err(error)) => return Failure::new(None, Cause::ProtocolError(error.to_string()), ""),
            Err(failure) => return failure,
        };
        while tasks.try_join_next().is_some() {}
        let reply = match request {
            Request::Cancel => cancel(&server.table, &waiting, id),
            Request::Call(Call::Get { keys }) => {
                if let Some(values) = server.table.all(&keys) {
                    if !give(&out, id, values).await {
                        return closed();
                    }
                    None
                } else if waiting.0.lock().len() >= MOST_WAITING {
                    Some(Reply::Refused(Refusal::TooManyWaiting))
                } else {
                    let keys: Arc<[String]> = keys.into();
                    let wait =
                        wait(Arc::clone(server), id, Arc::clone(&keys), out.clone(), Arc::clone(&waiting));
                    let task = tasks.spawn(wait);
                    waiting.0.lock().insert(id, Wait { task, keys });
                    None
                }
            }
            Request::Call(call) => Some(answer(&server.table, call)),
        };
        if let Some(reply) = reply
            && out.send((id, reply)).await.is_err()
        {
            return closed();
        }
    }
}

/// The gets of one connection that wait.
#[derive(Default)]
struct Waiting(Mutex<HashMap<u64, Wait>>);

struct Wait {
    task: AbortHandle,
    keys: Arc<[String]>,
}

async fn wait(
    server: Arc<Server>,
    id: u64,
    keys: Arc<[String]>,
    out: mpsc::Sender<(u64, Reply)>,
    waiting: Arc<Waiting>,
) {
    let mut values = Vec::with_capacity(keys.len());
    for key in keys.iter() {
        values.push(server.table.wait(key).await);
    }
    waiting.0.lock().remove(&id);
    give(&out, id, values).await;
}

/// Queues the values of a get, as fast as the client reads; false when the connection has ended.
async fn give(out: &mpsc::Sender<(u64, Reply)>, id: u64, values: Vec<Arc<[u8]>>) -> bool {
    for value in values {
        if out.send((id, Reply::Value(value))).await.is_err() {
            return false;
        }
    }
    true
}

/// What a get that has waited long enough is missing; nothing when its values are on their way.
fn cancel(table: &Table, waiting: &Waiting, id: u64) -> Option<Reply> {
    let mut waiting = waiting.0.lock();
    let Wait { task, keys } = waiting.get(&id)?;
    let (first, count) = table.missing(keys, MOST_NAMED);
    if count == 0 {
        return None;
    }
    task.abort();
    waiting.remove(&id);
    Some(Reply::Missing {
        count: count as u32,
        first: first.into_iter().map(|position| position as u32).collect(),
    })
}

/// Does what needs no waiting.
fn answer(table: &Table, call: Call) -> Reply {
    let done = match call {
        Call::Set { key, value } => table.set(key, &value).map(|()| Reply::Done),
        Call::TryGet { key } => Ok(table.value(&key).map_or(Reply::Absent, Reply::Value)),
        Call::Add { key, delta } => table.add(key, delta).map(Reply::Number),
        Call::CompareSet { key, expected, new } => {
            table.compare_set(key, expected.as_deref(), &new).map(Reply::Value)
        }
        Call::Delete { key } => Ok(Reply::Deleted(table.delete(&key))),
        Call::Get { .. } => Ok(Reply::Absent),
    };
    done.unwrap_or_else(Reply::Refused)
}

async fn send(mut queue: mpsc::Receiver<(u64, Reply)>, mut sealer: Sealer) -> Arc<Failure> {
    let mut frames = Vec::new();
    while let Some((id, reply)) = queue.recv().await {
        frames.clear();
        reply.encode(id, &mut frames);
        while frames.len() < GATHER
            && let Ok((id, reply)) = queue.try_recv()
        {
            reply.encode(id, &mut frames);
        }
        if let Err(failure) = sealer.send(&frames).await {
            return failure;
        }
        frames.shrink_to(GATHER);
    }
    closed()
}

fn closed() -> Arc<Failure> {
    Failure::new(None, Cause::ConnectionLost, "its writer has ended")
}
