//! The transport between contexts of one process, a context and itself among them: every region is mapped already.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use transom_registry::{Cause, Error, Failure, Incarnation, RemoteRegion, Stale};

use crate::backend::{Attached, Caps, Endpoint, Host, Op, Pending, Posted, Transport};
use crate::token::{Completion, Token};

/// The transport `local`.
#[derive(Debug)]
pub(crate) struct Local {
    host: Host,
    /// The endpoints that lead here: told when the context is closed.
    links: Mutex<Vec<Weak<Link>>>,
}

/// The contexts of this process.
static PROCESS: Mutex<Option<HashMap<Incarnation, Weak<Local>>>> = Mutex::new(None);

impl Local {
    pub(crate) fn open(host: &Host) -> Arc<Self> {
        let local = Arc::new(Self { host: host.clone(), links: Mutex::default() });
        let mut process = PROCESS.lock();
        process.get_or_insert_default().insert(host.registry.incarnation(), Arc::downgrade(&local));
        local
    }

    fn incarnation(&self) -> Incarnation {
        self.host.registry.incarnation()
    }
}

impl Transport for Local {
    fn name(&self) -> &str {
        "local"
    }

    fn caps(&self) -> Caps {
        Caps { mapped: true, remote: false, polled: false }
    }

    fn addresses(&self) -> Vec<String> {
        vec![format!("local:{}", self.incarnation())]
    }

    fn connect(&self, address: &str, peer: Option<Incarnation>, _: Instant) -> Pending<Arc<dyn Endpoint>> {
        let named = address
            .split_once(':')
            .and_then(|(_, id)| u64::from_str_radix(id, 16).ok())
            .and_then(Incarnation::from_u64);
        let result = (|| {
            let named =
                named.ok_or_else(|| Error::Malformed { what: "address", why: format!("{address:?}") })?;
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
            let target = PROCESS.lock().as_ref().and_then(|p| p.get(&named)).and_then(Weak::upgrade);
            let target = target.ok_or_else(|| Error::Unusable {
                transport: "local".into(),
                why: "it is not in this process".into(),
            })?;
            let link = Arc::new(Link {
                target: Arc::downgrade(&target),
                peer: named,
                failure: OnceLock::new(),
                lost: self.host.lost.clone(),
            });
            let mut links = target.links.lock();
            links.retain(|l| l.strong_count() > 0);
            links.push(Arc::downgrade(&link));
            Ok(link as Arc<dyn Endpoint>)
        })();
        Box::pin(std::future::ready(result))
    }

    fn poll(&self, _: &mut Vec<Completion>) -> usize {
        0
    }

    fn close(&self) {
        if let Some(process) = PROCESS.lock().as_mut() {
            process.remove(&self.incarnation());
        }
        let failure = Failure::new(Some(self.incarnation()), Cause::Left, "its context was closed");
        let links: Vec<_> = self.links.lock().drain(..).filter_map(|l| l.upgrade()).collect();
        for link in links {
            let _ = link.failure.set(failure.clone());
            (link.lost)(self.incarnation(), failure.clone());
        }
    }
}

struct Link {
    target: Weak<Local>,
    peer: Incarnation,
    failure: OnceLock<Arc<Failure>>,
    /// Tells the context that made the link.
    lost: Arc<dyn Fn(Incarnation, Arc<Failure>) + Send + Sync>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "local link to {}", self.peer)
    }
}

impl Endpoint for Link {
    fn peer(&self) -> Incarnation {
        self.peer
    }

    fn transport(&self) -> &str {
        "local"
    }

    fn attach(&self, region: &RemoteRegion, _: Instant) -> Pending<Attached> {
        let attached = match self.target.upgrade() {
            Some(target) => target
                .host
                .registry
                .grant(region)
                .map(|grant| Attached { key: 0, mapped: Some(grant.exposed) }),
            None => Err(Error::failed(
                "open",
                transom_registry::Outcome::NotApplied,
                Failure::new(Some(self.peer), Cause::Left, "its context was closed"),
            )),
        };
        Box::pin(std::future::ready(attached))
    }

    fn detach(&self, _: u64) {}

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        // Every region is mapped: only device memory, which no host instruction may touch, comes here.
        let error = Error::invalid(
            op.action.name(op.signal.is_some()),
            "the region cannot be reached by the processor",
        );
        Posted::Done(token, Err(error))
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.failure.get().cloned()
    }

    fn close(&self) {}
}
