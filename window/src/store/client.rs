//! The store behind a TCP connection.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout, timeout_at};
use transom_registry::{Cause, Error, Failure, Outcome, Result};
use transom_transport::Secret;

use super::auth::{self, Unmet};
use super::channel::{self, GATHER, Opener, Sealer};
use super::wire::{self, Reply, Request};
use super::{Answer, Backend, CONNECT, Call, Deadline, GRACE, rules, silent};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long one attempt to connect and to prove the secret may take.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Connects, again and again until the deadline while the server is not there or has no time.
///
/// Runs on the control thread, which then carries the connection.
pub(super) async fn connect(address: String, secret: Secret, deadline: Deadline) -> Result<Client> {
    check_address(&address)?;
    let mut pause = FIRST_PAUSE;
    let mut tries = 0_u32;
    let mut last = "no try was finished".to_owned();
    while !deadline.remaining().is_zero() {
        tries += 1;
        match timeout(deadline.remaining().min(ATTEMPT), attempt(&address, &secret)).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(Unmet::Refused(why))) => {
                return Err(Error::Auth { peer: format!("the store at {address}"), why });
            }
            Ok(Err(Unmet::Lost(why))) => last = why,
            Err(_) => last = "no answer".into(),
        }
        // Ranks that were turned away together come back apart.
        let jitter = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
        sleep(pause.mul_f64(0.5 + jitter).min(deadline.remaining())).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
    let detail = format!("{address}: {last}, tried {tries} times (is the server running there?)");
    Err(deadline.expired(CONNECT, detail, Some(Outcome::NotApplied)))
}

/// Whether this can be `host:port`.
fn check_address(address: &str) -> Result<()> {
    let invalid = |why: &str| {
        Error::invalid(CONNECT, format!("address {address:?}: {why}, expected host:port or [ipv6]:port"))
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(|| invalid("no port"))?;
    match port.parse::<u16>() {
        Ok(1..) if !port.starts_with('+') => {}
        _ => return Err(invalid("the port is not a number from 1 to 65535")),
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(_) if address.parse::<SocketAddr>().is_err() => {
            Err(invalid("not an ipv6 address in the brackets"))
        }
        None if host.is_empty() => Err(invalid("no host")),
        None if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => {
            Err(invalid("an ipv6 address needs brackets"))
        }
        None if host.contains([':', '/', '[', ']', ' ']) => Err(invalid("not a host name")),
        _ => Ok(()),
    }
}

async fn attempt(address: &str, secret: &Secret) -> Result<Client, Unmet> {
    let lost = |error: io::Error| Unmet::Lost(error.to_string());
    let mut last = Unmet::Lost("the name has no address".into());
    for resolved in tokio::net::lookup_host(address).await.map_err(lost)? {
        let mut stream = match TcpStream::connect(resolved).await {
            Ok(stream) => stream,
            Err(error) => {
                last = lost(error);
                continue;
            }
        };
        // A port that nobody listens on can be connected to itself.
        if stream.local_addr().ok() == stream.peer_addr().ok() {
            last = Unmet::Lost("nobody listens".into());
            continue;
        }
        channel::tune(&stream);
        match auth::initiate(&mut stream, secret).await {
            Ok(cipher) => {
                let (opener, sealer) = channel::split(stream, cipher);
                return Ok(Client::start(address, opener, sealer));
            }
            Err(unmet) => last = unmet,
        }
    }
    Err(last)
}

/// One connection to a server. It is never made again: what was lost with it is not known.
#[derive(Debug)]
pub(super) struct Client {
    out: mpsc::UnboundedSender<(u64, Request)>,
    link: Arc<Link>,
}

#[derive(Debug, Default)]
struct Link {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    asked: u64,
    pending: HashMap<u64, Pending>,
    lost: Option<Arc<Failure>>,
}

/// A request whose answer has not come, or not all of it.
#[derive(Debug)]
struct Pending {
    wanted: usize,
    values: Vec<Arc<[u8]>>,
    answer: oneshot::Sender<Result<Got, Arc<Failure>>>,
}

#[derive(Debug)]
enum Got {
    Values(Vec<Arc<[u8]>>),
    Reply(Reply),
}

impl Client {
    fn start(address: &str, opener: Opener, sealer: Sealer) -> Self {
        let link = Arc::new(Link::default());
        let (out, queue) = mpsc::unbounded_channel();
        let (carried, address) = (Arc::clone(&link), address.to_owned());
        tokio::spawn(async move {
            let failure = tokio::select! {
                failure = receive(opener, &carried) => failure,
                end = send(queue, sealer) => match end {
                    Err(failure) => failure,
                    // The last handle of the store is gone, so nobody waits.
                    Ok(()) => return,
                },
            };
            tracing::debug!(store = %address, %failure, "the store's connection is lost");
            let observed = match failure.observed.as_str() {
                "" => format!("the store at {address}; its connection is not made again"),
                observed => format!("the store at {address}: {observed}; its connection is not made again"),
            };
            carried.fail(Failure::new(None, failure.cause.clone(), observed));
        });
        Self { out, link }
    }

    fn ask(self: &Arc<Self>, operation: &'static str, call: Call) -> Result<Ask> {
        let waits = matches!(call, Call::Get { .. });
        let changes = call.changes();
        let wanted = if let Call::Get { keys } = &call { keys.len() } else { 1 };
        let (answer, receiver) = oneshot::channel();
        let mut state = self.link.state.lock();
        if let Some(failure) = &state.lost {
            return Err(Error::failed(operation, Outcome::NotApplied, Arc::clone(failure)));
        }
        state.asked += 1;
        let id = state.asked;
        state.pending.insert(id, Pending { wanted, values: Vec::new(), answer });
        // When the queue is closed the link is about to fail, and this request with it.
        let _ = self.out.send((id, Request::Call(call)));
        Ok(Ask { client: Arc::clone(self), id, operation, waits, changes, receiver })
    }

    async fn get(
        self: Arc<Self>,
        operation: &'static str,
        keys: Vec<String>,
        deadline: Deadline,
    ) -> Result<Answer> {
        let mut asks = Vec::new();
        for batch in batches(&keys) {
            asks.push(self.ask(operation, Call::Get { keys: batch.to_vec() })?);
        }
        let mut values = Vec::with_capacity(keys.len());
        let mut missing = (0, Vec::new());
        let mut heard = 0;
        for (ask, batch) in asks.iter_mut().zip(batches(&keys)) {
            let got = match timeout_at(deadline.at().into(), ask.got()).await {
                Ok(got) => got?,
                Err(_) => {
                    ask.cancel();
                    match timeout_at((deadline.at() + GRACE).into(), ask.got()).await {
                        Ok(got) => got?,
                        Err(_) => continue,
                    }
                }
            };
            match got {
                Got::Values(got) => values.extend(got.iter().map(|value| value.to_vec())),
                Got::Reply(Reply::Missing { count, first }) => {
                    missing.0 += count as usize;
                    missing.1.extend(first.iter().filter_map(|&position| batch.get(position as usize)));
                }
                Got::Reply(reply) => return Err(unexpected(operation, &batch[0], &reply)),
            }
            heard += batch.len();
        }
        if values.len() == keys.len() {
            return Ok(Answer::Values(values));
        }
        let detail = if missing.0 == 0 && heard < keys.len() {
            silent(&keys)
        } else {
            rules::not_set(missing.1.iter().map(|key| key.as_str()), missing.0, keys.len())
        };
        Err(deadline.expired(operation, detail, None))
    }
}

impl Backend for Client {
    fn call(
        self: Arc<Self>,
        call: Call,
        deadline: Deadline,
    ) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>> {
        Box::pin(async move {
            let operation = call.operation();
            let call = match call {
                Call::Get { keys } => return self.get(operation, keys, deadline).await,
                call => call,
            };
            let key = call.key().to_owned();
            let (adds, deletes, sets) = (
                matches!(call, Call::Add { .. }),
                matches!(call, Call::Delete { .. }),
                matches!(call, Call::Set { .. }),
            );
            let outcome = call.changes().then_some(Outcome::InDoubt);
            let mut ask = self.ask(operation, call)?;
            let Ok(got) = timeout_at(deadline.at().into(), ask.got()).await else {
                return Err(deadline.expired(
                    operation,
                    format!("the store says nothing of key {key}"),
                    outcome,
                ));
            };
            match got? {
                Got::Values(mut values) if !adds && !deletes && !sets => {
                    Ok(Answer::Value(values.pop().map(|value| value.to_vec())))
                }
                Got::Reply(Reply::Done) if sets => Ok(Answer::Done),
                Got::Reply(Reply::Number(number)) if adds => Ok(Answer::Number(number)),
                Got::Reply(Reply::Deleted(deleted)) if deletes => Ok(Answer::Deleted(deleted)),
                Got::Reply(Reply::Absent) if outcome.is_none() => Ok(Answer::Value(None)),
                Got::Reply(reply) => Err(unexpected(operation, &key, &reply)),
                Got::Values(_) => Err(unexpected(operation, &key, &Reply::Absent)),
            }
        })
    }
}

/// Keys in parts that fit in one frame each.
fn batches(keys: &[String]) -> impl Iterator<Item = &[String]> {
    let mut rest = keys;
    std::iter::from_fn(move || {
        let mut size = 0;
        let fits = rest.iter().take_while(|key| {
            size += wire::key_size(key);
            size <= wire::ROOM_FOR_KEYS
        });
        let (batch, after) = rest.split_at(fits.count());
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

fn unexpected(operation: &'static str, key: &str, reply: &Reply) -> Error {
    match reply {
        Reply::Refused(refusal) => refusal.error(operation, key),
        reply => {
            let cause = Cause::ProtocolError(format!("the store's answer to {operation} is {reply:?}"));
            Error::failed(operation, Outcome::InDoubt, Failure::new(None, cause, ""))
        }
    }
}

/// A request on its way. Dropped before its answer, it is forgotten at both ends.
struct Ask {
    client: Arc<Client>,
    id: u64,
    operation: &'static str,
    waits: bool,
    changes: bool,
    receiver: oneshot::Receiver<Result<Got, Arc<Failure>>>,
}

impl Ask {
    async fn got(&mut self) -> Result<Got> {
        let outcome = if self.changes { Outcome::InDoubt } else { Outcome::NotApplied };
        match (&mut self.receiver).await {
            Ok(Ok(got)) => Ok(got),
            Ok(Err(failure)) => Err(Error::failed(self.operation, outcome, failure)),
            Err(_) => Err(Error::Closed { operation: self.operation, what: "store" }),
        }
    }

    fn cancel(&self) {
        let _ = self.client.out.send((self.id, Request::Cancel));
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        let pending = self.client.link.state.lock().pending.remove(&self.id);
        if pending.is_some() && self.waits {
            self.cancel();
        }
    }
}

impl Link {
    /// Takes one reply; one that nobody waits for any more is dropped.
    fn take(&self, id: u64, reply: Reply) {
        let mut state = self.state.lock();
        let std::collections::hash_map::Entry::Occupied(mut entry) = state.pending.entry(id) else { return };
        let pending = entry.get_mut();
        let got = match reply {
            Reply::Value(value) => {
                pending.values.push(value);
                if pending.values.len() < pending.wanted {
                    return;
                }
                Got::Values(std::mem::take(&mut pending.values))
            }
            reply => Got::Reply(reply),
        };
        let _ = entry.remove().answer.send(Ok(got));
    }

    fn fail(&self, failure: Arc<Failure>) {
        let mut state = self.state.lock();
        for (_, pending) in state.pending.drain() {
            let _ = pending.answer.send(Err(Arc::clone(&failure)));
        }
        state.lost = Some(failure);
    }
}

async fn receive(mut opener: Opener, link: &Link) -> Arc<Failure> {
    loop {
        match opener.frame().await.map(Reply::decode) {
            Ok(Ok((id, reply))) => link.take(id, reply),
            Ok(Err(error)) => return Failure::new(None, Cause::ProtocolError(error.to_string()), ""),
            Err(failure) => return failure,
        }
    }
}

async fn send(
    mut queue: mpsc::UnboundedReceiver<(u64, Request)>,
    mut sealer: Sealer,
) -> Result<(), Arc<Failure>> {
    let mut frames = Vec::new();
    while let Some((id, request)) = queue.recv().await {
        frames.clear();
        request.encode(id, &mut frames);
        while frames.len() < GATHER
            && let Ok((id, request)) = queue.try_recv()
        {
            request.encode(id, &mut frames);
        }
        sealer.send(&frames).await?;
        frames.shrink_to(GATHER);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for good in ["127.0.0.1:1", "[::1]:65535", "host.example:80", "a-b:7"] {
            assert!(check_address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:65536",
            "host:+8",
            "::1:80",
            "[::1]",
            "[x]:8",
            "[1.2.3.4]:8",
            "a/b:8",
        ] {
            let error = check_address(bad).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{bad}: {error}");
        }
    }

    #[test]
    fn batches_hold_every_key_in_order_and_fit_in_a_frame() {
        let keys: Vec<String> = (0..10_000).map(|n| format!("{n:0>250}")).collect();
        let mut seen = Vec::new();
        for batch in batches(&keys) {
            let mut frame = Vec::new();
            Request::Call(Call::Get { keys: batch.to_vec() }).encode(1, &mut frame);
            assert!(wire::length(*frame.first_chunk().unwrap()).is_ok());
            seen.extend_from_slice(batch);
        }
        assert_eq!(seen, keys);
    }
}
