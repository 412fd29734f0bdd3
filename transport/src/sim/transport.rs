//! One rank's side of the fabric: the transport and its connections.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use transom_registry::{Error, Failure, Incarnation, Kind, RemoteRegion, Result, Stale};

use super::Fabric;
use super::world::State;
use crate::backend::{Attached, Caps, Endpoint, Host, Op, Pending, Posted, Transport};
use crate::clock::Virtual;
use crate::token::{Completion, Token};

/// How often a call that nobody answers looks whether that has changed.
const LOOK: Duration = Duration::from_millis(10);

/// The transport of one rank.
#[derive(Debug)]
pub(super) struct Sim {
    fabric: Fabric,
    rank: usize,
    address: String,
}

impl Sim {
    pub(super) fn open(fabric: &Fabric, host: &Host) -> Arc<Self> {
        let rank = fabric.0.world.lock().add_rank(host.clone());
        let address = format!("sim:{}/{}", fabric.0.id, host.registry.incarnation());
        Arc::new(Self { fabric: fabric.clone(), rank, address })
    }

    /// Who is meant by an address of this fabric.
    fn find(&self, address: &str, peer: Option<Incarnation>) -> Result<usize> {
        let malformed = || Error::Malformed { what: "address", why: format!("{address:?}") };
        let (fabric, named) =
            address.strip_prefix("sim:").and_then(|a| a.split_once('/')).ok_or_else(malformed)?;
        let named = u64::from_str_radix(named, 16).ok().and_then(Incarnation::from_u64);
        let named = named.ok_or_else(malformed)?;
        if fabric.parse() != Ok(self.fabric.0.id) {
            return Err(Error::Unusable { transport: "sim".into(), why: "it is in another fabric".into() });
        }
        if let Some(peer) = peer
            && peer != named
        {
            return Err(Error::Stale {
                operation: "connect",
                what: Stale::Incarnation,
                held: peer.as_u64(),
                current: named.as_u64(),
            });
        }
        let found = self.fabric.0.world.lock().find(named);
        found.ok_or_else(|| Error::Unusable { transport: "sim".into(), why: "nobody is there".into() })
    }
}

/// Waits until the rank answers: one way there and back, and longer while it is frozen.
async fn answer(fabric: &Fabric, rank: usize, operation: &'static str, deadline: Instant) -> Result<()> {
    let there_and_back = {
        let mut world = fabric.0.world.lock();
        world.latency() + world.latency()
    };
    fabric.0.time.pass(there_and_back).await;
    loop {
        let frozen = {
            let world = fabric.0.world.lock();
            world.state(rank).check()?;
            matches!(world.state(rank), State::Frozen(_))
        };
        if !frozen {
            return Ok(());
        }
        if fabric.0.time.now() >= deadline {
            return Err(Error::Expired {
                operation,
                rank: None,
                after: Duration::ZERO,
                detail: "the peer does not answer".into(),
                outcome: None,
            });
        }
        fabric.0.time.pass(LOOK).await;
    }
}

impl Transport for Sim {
    fn name(&self) -> &str {
        "sim"
    }

    fn caps(&self) -> Caps {
        Caps { mapped: false, remote: true, polled: true }
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.address.clone()]
    }

    fn connect(
        &self,
        address: &str,
        peer: Option<Incarnation>,
        deadline: Instant,
    ) -> Pending<Arc<dyn Endpoint>> {
        let (fabric, from) = (self.fabric.clone(), self.rank);
        let found = self.find(address, peer);
        Box::pin(async move {
            let to = found?;
            answer(&fabric, to, "connect", deadline).await?;
            let (link, peer) = {
                let mut world = fabric.0.world.lock();
                world.state(from).check()?;
                (world.add_link(from, to), world.incarnation(to))
            };
            Ok(Arc::new(Link { fabric, link, to, peer }) as Arc<dyn Endpoint>)
        })
    }

    fn poll(&self, done: &mut Vec<Completion>) -> usize {
        self.fabric.0.world.lock().poll(self.rank, done)
    }

    fn close(&self) {
        let wake = self.fabric.0.world.lock().leave(self.rank);
        wake.into_iter().for_each(Waker::wake);
    }
}

/// A connection from one rank to another.
#[derive(Debug)]
struct Link {
    fabric: Fabric,
    link: usize,
    to: usize,
    peer: Incarnation,
}

impl Endpoint for Link {
    fn peer(&self) -> Incarnation {
        self.peer
    }

    fn transport(&self) -> &str {
        "sim"
    }

    fn attach(&self, region: &RemoteRegion, deadline: Instant) -> Pending<Attached> {
        let (fabric, link, to, region) = (self.fabric.clone(), self.link, self.to, region.clone());
        Box::pin(async move {
            if region.kind == Kind::Device {
                return Err(Error::Unusable {
                    transport: "sim".into(),
                    why: "it does not reach the memory of devices".into(),
                });
            }
            answer(&fabric, to, "open", deadline).await?;
            let registry = fabric.0.world.lock().host(to).registry.clone();
            let grant = registry.grant(&region)?;
            let key = fabric.0.world.lock().attach(link, grant);
            Ok(Attached { key, mapped: None })
        })
    }

    fn detach(&self, key: u64) {
        self.fabric.0.world.lock().detach(key);
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        self.fabric.0.world.lock().post(self.link, op, token)
    }

    fn fence(&self, key: u64) {
        self.fabric.0.world.lock().fence(key);
    }

    fn room(&self, waker: &Waker) -> bool {
        self.fabric.0.world.lock().room(self.link, waker)
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.fabric.0.world.lock().failure(self.link)
    }

    fn close(&self) {
        self.fabric.0.world.lock().close_link(self.link);
    }
}
