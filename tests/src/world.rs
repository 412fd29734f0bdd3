//! What a case works with: three contexts, and regions that are opened by the transport under test only.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use transom_transport::{
    Access, Atomic, Context, Dtype, Error, Foreign, Host, List, MemoryRegion, PeerRegion, Reduce,
    RemoteRegion, Request, Result, Signal, Slice,
};

use crate::fabric::Fabric;

/// Longest wait of a case for something that comes.
pub const SOON: Duration = Duration::from_secs(20);

/// Three contexts of one fabric.
#[derive(Debug)]
pub struct World {
    /// Registers the regions.
    pub owner: Context,
    /// Begins the operations.
    pub initiator: Context,
    /// Begins others, where two are needed.
    pub second: Context,
    transport: String,
}

impl World {
    /// Contexts of this fabric.
    pub fn of(fabric: &impl Fabric) -> Self {
        let [owner, initiator, second] = fabric.contexts(3).try_into().unwrap();
        Self { owner, initiator, second, transport: fabric.transport().to_owned() }
    }

    /// The transport under test.
    #[must_use]
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// Shared memory of the owner, zeroed.
    #[must_use]
    pub fn region(&self, size: usize, signals: u32) -> MemoryRegion {
        self.owner.register(Host::new(size).unwrap(), signals).unwrap()
    }

    /// The descriptor of a region with all of its rights.
    #[must_use]
    pub fn remote(&self, region: &MemoryRegion) -> RemoteRegion {
        region.remote(Access::ALL).unwrap()
    }

    /// The descriptor without the ways of other transports.
    #[must_use]
    pub fn only(&self, remote: &RemoteRegion) -> RemoteRegion {
        let mut remote = remote.clone();
        remote.addresses.retain(|address| address.split(':').next() == Some(&self.transport));
        assert!(!remote.addresses.is_empty(), "{} has an address", self.transport);
        remote
    }

    /// Opens a region of the owner with all rights, by the initiator.
    pub async fn open(&self, region: &MemoryRegion) -> Target {
        self.try_open(&self.initiator, &self.remote(region)).await.unwrap()
    }

    /// Opens what a descriptor names, by a context, over the transport under test.
    ///
    /// # Errors
    /// What connecting and opening say.
    pub async fn try_open(&self, context: &Context, remote: &RemoteRegion) -> Result<Target> {
        let remote = self.only(remote);
        let region = context.connect_async(&remote).await?.open_async(&remote).await?;
        self.check_way(&region);
        Ok(Target { region, context: context.clone() })
    }

    /// As [`World::open`], blocking.
    #[must_use]
    pub fn open_now(&self, context: &Context, region: &MemoryRegion) -> PeerRegion {
        let remote = self.only(&self.remote(region));
        let region = context.connect(&remote).unwrap().open(&remote).unwrap();
        self.check_way(&region);
        region
    }

    fn check_way(&self, region: &PeerRegion) {
        let way = region.explain();
        let name = way.split([' ', ',', ';']).next();
        assert_eq!(name, Some(self.transport.as_str()), "the region is reached by {way}");
    }

    /// A signal of a region of the owner.
    #[must_use]
    pub fn signal(&self, region: &MemoryRegion, id: u32) -> Signal {
        self.owner.signals(region).signal(id).unwrap()
    }

    /// Awaits what has no event of its own to wait for. Panics when it does not come.
    pub async fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let clock = self.initiator.clock().clone();
        let since = clock.now();
        while !is_so() {
            assert!(clock.now() - since < SOON, "{what}: not within {SOON:?}");
            clock.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// An opened region. Its forms wait for room in the queue in a way that a virtual clock allows.
#[derive(Debug, Clone)]
pub struct Target {
    region: PeerRegion,
    context: Context,
}

impl Deref for Target {
    type Target = PeerRegion;
    fn deref(&self) -> &PeerRegion {
        &self.region
    }
}

/// Memory of a context with these bytes.
#[must_use]
pub fn memory(context: &Context, bytes: Vec<u8>) -> MemoryRegion {
    context.register(Foreign::from_vec(bytes).unwrap(), 0).unwrap()
}

/// All bytes of a region.
#[must_use]
pub fn contents(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.size()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[expect(missing_docs, clippy::missing_errors_doc, reason = "they are those of PeerRegion")]
impl Target {
    /// Calls until the queue has room: a context with a virtual clock must not wait inside the call.
    pub async fn patiently<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let clock = self.context.clock();
        let since = clock.now();
        loop {
            match call() {
                Err(Error::Blocking { .. }) if clock.now() - since < SOON => self.region.ready().await?,
                other => return other,
            }
        }
    }

    pub async fn put(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.patiently(|| self.region.put(offset, from)).await
    }

    pub async fn put_signal(&self, offset: u64, from: &[u8], signal: u32, add: u64) -> Result<()> {
        self.patiently(|| self.region.put_signal(offset, from, signal, add)).await
    }

    pub async fn signal(&self, signal: u32, add: u64) -> Result<()> {
        self.patiently(|| self.region.signal(signal, add)).await
    }

    pub async fn put_from(&self, offset: u64, from: Slice) -> Result<Request> {
        self.patiently(|| self.region.put_from(offset, from.clone())).await
    }

    pub async fn put_signal_from(&self, offset: u64, from: Slice, signal: u32, add: u64) -> Result<Request> {
        self.patiently(|| self.region.put_signal_from(offset, from.clone(), signal, add)).await
    }

    pub async fn get_into(&self, offset: u64, into: Slice) -> Result<Request> {
        self.patiently(|| self.region.get_into(offset, into.clone())).await
    }

    pub async fn get(&self, offset: u64, size: usize) -> Result<Vec<u8>> {
        // Memory of size 0 cannot be registered.
        let into = memory(&self.context, vec![0xee; size + 1]);
        self.get_into(offset, into.slice(0..size)?).await?.await?;
        let mut bytes = contents(&into);
        assert_eq!(bytes.pop(), Some(0xee), "a get writes nothing past its end");
        Ok(bytes)
    }

    pub async fn put_list(&self, list: &List, from: &[u8]) -> Result<()> {
        self.patiently(|| self.region.put_list(list, from)).await
    }

    pub async fn put_list_from(&self, list: &List, from: Slice) -> Result<Request> {
        self.patiently(|| self.region.put_list_from(list, from.clone())).await
    }

    pub async fn get_list_into(&self, list: &List, into: Slice) -> Result<Request> {
        self.patiently(|| self.region.get_list_into(list, into.clone())).await
    }

    pub async fn begin_atomic(
        &self,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<Request> {
        self.patiently(|| self.region.atomic_request(atomic, width, offset, operand, compare)).await
    }

    pub async fn atomic(
        &self,
        atomic: Atomic,
        width: u8,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<u64> {
        self.begin_atomic(atomic, width, offset, operand, compare).await?.await
    }

    pub async fn accumulate(&self, offset: u64, from: &[u8], dtype: Dtype, reduce: Reduce) -> Result<()> {
        self.patiently(|| self.region.accumulate_bytes(offset, from, dtype, reduce)).await
    }

    pub async fn accumulate_from(
        &self,
        offset: u64,
        from: Slice,
        dtype: Dtype,
        reduce: Reduce,
    ) -> Result<Request> {
        self.patiently(|| self.region.accumulate_from(offset, from.clone(), dtype, reduce)).await
    }

    pub async fn flush(&self) -> Result<()> {
        let clock = self.context.clock();
        let since = clock.now();
        loop {
            match self.region.flush_async().await {
                Err(Error::Blocking { .. }) if clock.now() - since < SOON => self.region.ready().await?,
                other => return other,
            }
        }
    }
}

/// The error below refusals by the target: what was wrong.
#[must_use]
pub fn reason(error: &Error) -> &Error {
    match error {
        Error::Refused { why: inner, .. } | Error::FirstOf { first: inner, .. } => reason(inner),
        other => other,
    }
}

/// Runs futures side by side on this thread.
pub async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut left = false;
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *done = Some(output),
                    Poll::Pending => left = true,
                }
            }
        }
        if left { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Runs two futures side by side on this thread.
pub async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_done, mut b_done) = (None, None);
    std::future::poll_fn(|cx| {
        if a_done.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(cx)
        {
            a_done = Some(output);
        }
        if b_done.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(cx)
        {
            b_done = Some(output);
        }
        match (a_done.is_some(), b_done.is_some()) {
            (true, true) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
    (a_done.unwrap(), b_done.unwrap())
}
