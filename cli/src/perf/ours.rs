//! Our side: a window of two ranks, through the calls that any user has.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use transom::{
    Context, Error, Host, List, MemoryRegion, PeerRegion, Reduce, Request, Result, Secret, Signal, Store,
    StoreServer, Team, Window,
};

use super::baseline::copy::Segment;
use super::baseline::memory::{Source, Span};
use super::baseline::{LIMIT, Wait};
use super::subject::{Setup, Subject};

/// How many gets are on their way at once.
const FLYING: usize = 4;
/// How many signals the tests use.
const SIGNALS: u32 = 2;

/// A window of two ranks.
#[derive(Debug)]
pub(crate) struct Ours {
    window: Window,
    source: MemoryRegion,
    target: Option<PeerRegion>,
    /// Resolved once, as whoever waits often does.
    signals: Vec<Signal>,
    setup: Setup,
    secret: Secret,
}

impl Ours {
    fn span(region: &MemoryRegion) -> Span<'_> {
        span(region.exposed().as_ptr(), region.size())
    }

    fn own(&self, at: *const u8, size: usize) -> Option<transom::Slice> {
        let start = at.addr().checked_sub(self.source.exposed().as_ptr().addr())?;
        self.source.slice(start..start + size).ok()
    }
}

fn span<'a>(at: *mut u8, size: usize) -> Span<'a> {
    let base = NonNull::new(at).unwrap_or(NonNull::dangling());
    // SAFETY: the memory of a region, own or mapped, is there as long as the subject that the span borrows from.
    unsafe { Span::new(base, size) }
}

fn secret_of(invitation: &str) -> Result<(&str, Secret)> {
    let (address, secret) = invitation
        .split_once(' ')
        .ok_or_else(|| Error::invalid("perf", "the invitation is not an address and a secret"))?;
    Ok((address, Secret::from_hex(secret)?))
}

impl Subject for Ours {
    type Meeting = StoreServer;
    type List = List;

    fn meet(_: &Setup) -> Result<(StoreServer, String)> {
        let secret = Secret::random()?;
        let server = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &secret)?;
        let invitation = format!("{} {}", server.address(), *secret.to_hex());
        Ok((server, invitation))
    }

    fn open(setup: &Setup, invitation: &str) -> Result<Self> {
        let (address, secret) = secret_of(invitation)?;
        let team = Team::builder()
            .store(Store::connect(address, &secret, LIMIT)?)
            .secret(secret.clone())
            .rank(setup.rank)
            .size(2)
            .transports(&setup.transport)
            .wait(match setup.wait {
                Wait::Spin => transom::Wait::Spin,
                Wait::Sleep => transom::Wait::Sleep,
            })
            .timeout(LIMIT)
            .build()?;
        let size = setup.size.max(8);
        let source = team.context().register(Host::new(size)?, 0)?;
        let window = Window::allocate(&team, size)?;
        let part = window.part(1 - setup.rank)?;
        let name = setup.transport.split(':').next().unwrap_or_default();
        if !part.explain().starts_with(name) {
            return Err(Error::Unusable { transport: name.into(), why: part.explain() });
        }
        let target = part.mapped().is_some().then(|| part.clone());
        let signals = (0..SIGNALS).map(|id| window.signal(id)).collect::<Result<_>>()?;
        Ok(Self { window, source, target, signals, setup: setup.clone(), secret })
    }

    fn target(&self) -> Option<Span<'_>> {
        let mapped = self.target.as_ref()?.mapped()?;
        Some(span(mapped.as_ptr(), mapped.size()))
    }

    fn local(&self) -> Span<'_> {
        Self::span(self.window.local())
    }

    fn source(&self) -> Option<Source<'_>> {
        // SAFETY: the region was registered for this alone, and no peer was told of it.
        Some(unsafe { Source::new(Self::span(&self.source)) })
    }

    #[inline]
    fn put(&self, rank: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        self.window.put(rank, offset, bytes)
    }

    #[inline]
    fn get(&self, rank: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.target.is_none()
            && into.len() > 4096
            && let Some(slice) = self.own(into.as_ptr(), into.len())
        {
            return self.window.get_into(rank, offset, slice)?.wait().map(drop);
        }
        self.window.get(rank, offset, into)
    }

    #[inline]
    fn get_stream(&self, rank: u32, offset: u64, into: &mut [u8], count: u64) -> Result<()> {
        if self.target.is_some() {
            for _ in 0..count {
                self.window.get(rank, offset, into)?;
            }
            return Ok(());
        }
        // As a user of requests does: the next ones are asked for while one arrives.
        let slice = self.own(into.as_ptr(), into.len());
        let slice = slice.ok_or_else(|| Error::invalid("perf", "the buffer is not the registered one"))?;
        let mut flying = VecDeque::with_capacity(FLYING);
        for _ in 0..count {
            if flying.len() == FLYING {
                flying.pop_front().map_or(Ok(0), |first: Request| first.wait())?;
            }
            flying.push_back(self.window.get_into(rank, offset, slice.clone())?);
        }
        flying.into_iter().try_for_each(|request| request.wait().map(drop))
    }

    #[inline]
    fn flush(&self, rank: u32) -> Result<()> {
        self.window.flush(rank)
    }

    #[inline]
    fn put_signal(&self, rank: u32, offset: u64, bytes: &[u8], signal: u32) -> Result<()> {
        self.window.put_signal(rank, offset, bytes, signal, 1)
    }

    #[inline]
    fn wait_signal(&self, signal: u32, value: u64) -> Result<()> {
        match self.signals.get(signal as usize) {
            Some(signal) => signal.wait_at_least(value, LIMIT).map(drop),
            None => Err(Error::invalid(
                "perf",
                format!("signal {signal} is not among the {SIGNALS} of the tests"),
            )),
        }
    }

    #[inline]
    fn load(&self, offset: u64) -> Result<u64> {
        self.window.local().load(offset as usize)
    }

    #[inline]
    fn fetch_add(&self, rank: u32, offset: u64, value: u64) -> Result<u64> {
        self.window.fetch_add(rank, offset, value)
    }

    #[inline]
    fn accumulate(&self, rank: u32, offset: u64, values: &[f32]) -> Result<()> {
        self.window.accumulate(rank, offset, values, Reduce::Sum)
    }

    fn list(&self, _: u32, segments: &[Segment]) -> Result<List> {
        List::new(segments.iter().map(|s| (s.to as u64, s.size as u64)))
    }

    fn post(&self, list: &List) -> Result<()> {
        let from = self.source.slice(0..list.size() as usize)?;
        self.window.put_list_from(1 - self.setup.rank, list, from).map(drop)
    }

    fn reconnect(&self, rank: u32) -> Result<()> {
        let context = Context::builder()
            .transports(&self.setup.transport)
            .secret(self.secret.clone())
            .timeout(LIMIT)
            .build()?;
        let remote = self.window.part(rank)?.remote().clone();
        let part = context.connect(&remote)?.open(&remote)?;
        part.put(0, &[1; 8])?;
        part.flush()
    }

    fn wait_failure(&self, rank: u32, limit: Duration) -> Result<()> {
        let began = Instant::now();
        while self.window.team().failure(rank).is_none() {
            if began.elapsed() > limit {
                return Err(Error::invalid("perf", "the failure of the peer was not told"));
            }
            std::thread::park_timeout(Duration::from_micros(200));
        }
        Ok(())
    }
}
