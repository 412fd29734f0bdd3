//! The tests: what one batch of ours does, generic over our side, and which baselines it is measured beside.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use transom_registry::{Error, Result};

use super::baseline::connect::{connect_tcp, connect_unix, unused_name, wait_readable};
use super::baseline::copy::{Copy, Segment, copy_segments, segments};
use super::baseline::memory::{Board, Source};
use super::baseline::store::{self, Fence};
use super::baseline::{LIMIT, Wait, add, atomic, wrong_payload};
use super::batch::{Contest, Unit, Variant, WARM_UPS};
use super::options::Test;
use super::pair::{Family, Pair, Plan};
use super::rank::{Order, WAKE};
use super::subject::Subject;

/// The rank that is measured against.
const PEER: u32 = 1;
/// The signal that answers put_signal, on both ranks.
const PING: u32 = 0;
/// The signal that ends an attendance, on rank 1, and that says that it has begun, on rank 0.
const ATTEND: u32 = 1;

/// One test at one size, about to be measured.
pub(crate) struct Case<'a, S: Subject> {
    pub(crate) pair: &'a Pair<S>,
    pub(crate) source: &'a RefCell<Source<'a>>,
    pub(crate) test: Test,
    pub(crate) size: usize,
    /// Where puts and gets go in the window.
    pub(crate) misalign: usize,
    pub(crate) quick: bool,
}

impl<'a, S: Subject> Clone for Case<'a, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'a, S: Subject> std::marker::Copy for Case<'a, S> {}

impl<'a, S: Subject> Case<'a, S> {
    /// Ours and the baselines of this test.
    pub(crate) fn contest(self) -> Result<Contest<'a>> {
        let mut contest = Contest {
            ours: None,
            rows: Vec::new(),
            unit: self.unit(),
            count: self.count(),
            size: self.size,
            batches: if self.quick { 15 } else { 41 },
            warm_ups: WARM_UPS,
        };
        if self.size >= 256 << 20 {
            contest.batches = contest.batches.min(9);
        }
        match self.test {
            Test::Detect => {
                (contest.batches, contest.warm_ups) = (if self.quick { 5 } else { 15 }, 1);
            }
            Test::PostList => contest.size = self.size * Test::SEGMENTS,
            _ => {}
        }
        match self.pair.plan.family {
            Family::Memory => self.memory(&mut contest)?,
            Family::Socket => self.socket(&mut contest)?,
            Family::Other => {}
        }
        if let Some(subject) = &self.pair.subject {
            contest.ours = Some(self.ours(subject)?);
        }
        Ok(contest)
    }

    fn unit(self) -> Unit {
        match self.test {
            Test::PutBandwidth | Test::GetBandwidth | Test::Accumulate => Unit::Rate,
            Test::PostList | Test::Connect => Unit::Micros,
            Test::Detect => Unit::Millis,
            _ if self.pair.plan.family == Family::Memory && self.pair.plan.setup.wait == Wait::Spin => {
                Unit::Nanos
            }
            Test::PutFlush | Test::GetFlush | Test::FetchAdd if self.pair.plan.family == Family::Memory => {
                Unit::Nanos
            }
            _ => Unit::Micros,
        }
    }

    /// Operations in a batch: enough for the clock not to matter, and for a batch to end before the machine moves.
    fn count(self) -> u64 {
        let (quick, full) = match (self.test, self.pair.plan.family) {
            (Test::PostList, _) => return 3,
            (Test::Connect, _) => return 10,
            (Test::Detect, _) => return 1,
            (Test::PutBandwidth | Test::GetBandwidth | Test::Accumulate, family) => {
                let bytes = if family == Family::Memory { 16 << 20 } else { 32 << 20 };
                return (bytes / self.size.max(1) as u64).clamp(1, 50_000);
            }
            (Test::PutSignal, Family::Memory) if self.pair.plan.cores.shared() => (100, 300),
            (Test::PutSignal, Family::Memory) if self.pair.plan.setup.wait == Wait::Sleep => (200, 1000),
            (Test::PutSignal, Family::Memory) => (4000, 10_000),
            (_, Family::Memory) => (20_000, 50_000),
            (_, _) => (300, 1000),
        };
        let count = if self.quick { quick } else { full };
        count.min((8 << 20) / self.size.max(1) as u64).max(1)
    }

    /// Ways to do the same by hand where the peer's memory is mapped.
    fn memory(self, contest: &mut Contest<'a>) -> Result<()> {
        let (count, size, at) = (contest.count, self.size, self.misalign);
        let row = match self.test {
            Test::PutFlush | Test::GetFlush if size == 8 => self.small_and_fence(count),
            Test::PutFlush => self.copies(count, true, true),
            Test::PutBandwidth => self.copies(count, true, false),
            Test::GetFlush => self.copies(count, false, true),
            Test::GetBandwidth => self.copies(count, false, false),
            Test::PutSignal => {
                let name = match self.pair.plan.setup.wait {
                    Wait::Spin => "line ping-pong",
                    Wait::Sleep => "futex ping-pong",
                };
                vec![variant(name, move || {
                    self.pair.partner.order(&Order::Line { rounds: WAKE + count, offset: at, size })?;
                    let mut line = self.pair.line(at, size)?;
                    line.drive(WAKE)?;
                    let nanos = timed(|| line.drive(count))?;
                    self.pair.partner.finish()?;
                    Ok(nanos / 2.0)
                })]
            }
            Test::FetchAdd => {
                vec![variant("lock xadd", move || {
                    timed(|| atomic::fetch_add(self.pair.target()?, 0, count).map(drop))
                })]
            }
            Test::Accumulate => {
                vec![variant("avx2 add", move || {
                    timed(|| add::add(self.pair.target()?, 0, &mut self.source.borrow_mut(), size / 4, count))
                })]
            }
            Test::PostList => {
                let list = segments(Test::SEGMENTS, size);
                vec![variant("plain copies", move || {
                    timed(|| copy_segments(self.pair.target()?, &mut self.source.borrow_mut(), &list, count))
                })]
            }
            Test::Connect => self.unix_connect(count)?,
            Test::Detect => {
                vec![variant("kill to pidfd", move || {
                    self.fresh(false, |pair| {
                        let began = Instant::now();
                        pair.partner.kill()?;
                        wait_readable(pair.partner.pidfd(), LIMIT)?;
                        Ok(nanos_since(began))
                    })
                })]
            }
        };
        contest.rows.push(row);
        Ok(())
    }

    fn small_and_fence(self, count: u64) -> Vec<Variant<'a>> {
        let put = self.test == Test::PutFlush;
        let way = move |name, kind| {
            variant(name, move || {
                let target = self.pair.target()?;
                timed(|| match put {
                    true => store::store_fence(target, self.misalign, count, kind),
                    false => store::load_fence(target, self.misalign, count, kind).map(drop),
                })
            })
        };
        vec![
            way(if put { "store + fence" } else { "load + fence" }, Fence::Language),
            #[cfg(target_arch = "x86_64")]
            way(if put { "store + lock or" } else { "load + lock or" }, Fence::Locked),
        ]
    }

    fn copies(self, count: u64, put: bool, fenced: bool) -> Vec<Variant<'a>> {
        let way = |(name, copy): (&'static str, Copy)| {
            variant(name, move || {
                let (target, mut source) = (self.pair.target()?, self.source.borrow_mut());
                timed(|| match put {
                    true => copy.put(target, self.misalign, &mut source, self.size, count, fenced),
                    false => copy.get(target, self.misalign, &mut source, self.size, count, fenced),
                })
            })
        };
        Copy::all().into_iter().map(way).collect()
    }

    fn unix_connect(self, count: u64) -> Result<Vec<Variant<'a>>> {
        let name = unused_name()?;
        self.pair.partner.ask(&Order::Listen(Some(name.clone())))?;
        let offset = Board::SIZE + self.pair.plan.parts[0];
        let size = self.pair.plan.parts[1];
        Ok(vec![variant("unix connect + map", move || {
            self.pair.partner.order(&Order::Visits(count))?;
            let mut nanos = 0.0;
            for _ in 0..count {
                nanos += connect_unix(&name, offset, size)?.as_nanos() as f64;
            }
            self.pair.partner.finish()?;
            Ok(nanos)
        })])
    }

    /// Ways to do the same by hand over a socket.
    fn socket(self, contest: &mut Contest<'a>) -> Result<()> {
        let (count, size, at) = (contest.count, self.size, self.misalign);
        match self.test {
            Test::PutFlush => contest.rows.push(vec![self.frames("socket round trip", count, size, 0, 1.0)]),
            Test::GetFlush => contest.rows.push(vec![self.frames("socket round trip", count, 0, size, 1.0)]),
            Test::FetchAdd => contest.rows.push(vec![self.frames("socket round trip", count, 8, 8, 1.0)]),
            Test::PutSignal => {
                let name = match self.pair.plan.setup.wait {
                    Wait::Spin => "polled ping-pong",
                    Wait::Sleep => "sleeping ping-pong",
                };
                contest.rows.push(vec![self.frames(name, count, size, size, 2.0)]);
            }
            Test::PutBandwidth => {
                contest.rows.push(vec![self.stream_out("send/recv + crc32c", count, at, true)]);
                contest.rows.push(vec![self.stream_out("send/recv", count, at, false)]);
            }
            Test::Accumulate => {
                contest.rows.push(vec![self.stream_out("send/recv + crc32c", count, 0, true)]);
            }
            Test::GetBandwidth => {
                contest.rows.push(vec![self.stream_in("send/recv + crc32c", count, at, true)]);
                contest.rows.push(vec![self.stream_in("send/recv", count, at, false)]);
            }
            Test::PostList => {
                let list = segments(Test::SEGMENTS, size);
                contest.rows.push(vec![variant("writev loop", move || {
                    let (wire, source) = (self.pair.wire()?, self.source.borrow());
                    self.pair.partner.order(&Order::Gather { segments: list.len(), size, count })?;
                    wire.wait_for_nod()?;
                    let nanos = timed(|| {
                        wire.segments_out(source.span(), &list, count)?;
                        wire.wait_for_nod()
                    })?;
                    self.pair.partner.finish()?;
                    Ok(nanos)
                })]);
            }
            Test::Connect => {
                let port = self.pair.partner.ask(&Order::Listen(None))?;
                contest.rows.push(vec![variant("tcp connect + nod", move || {
                    self.pair.partner.order(&Order::Visits(count))?;
                    let mut nanos = 0.0;
                    for _ in 0..count {
                        nanos += connect_tcp(port)?.as_nanos() as f64;
                    }
                    self.pair.partner.finish()?;
                    Ok(nanos)
                })]);
            }
            Test::Detect => contest.rows.push(vec![variant("kill to end of stream", move || {
                self.fresh(false, |pair| {
                    let began = Instant::now();
                    pair.partner.kill()?;
                    pair.wire()?.wait_for_end()?;
                    Ok(nanos_since(began))
                })
            })]),
        }
        Ok(())
    }

    fn frames(self, name: &'static str, count: u64, out: usize, back: usize, ways: f64) -> Variant<'a> {
        variant(name, move || {
            let wire = self.pair.wire()?;
            self.pair.partner.order(&Order::Frames { rounds: count, out, back })?;
            wire.drive(WAKE, out, back)?;
            let nanos = timed(|| wire.drive(count, out, back))?;
            self.pair.partner.finish()?;
            Ok(nanos / ways)
        })
    }

    fn stream_out(self, name: &'static str, count: u64, offset: usize, checked: bool) -> Variant<'a> {
        variant(name, move || {
            let (wire, source, size) = (self.pair.wire()?, self.source.borrow(), self.size);
            self.pair.partner.order(&Order::Take { offset, size, count, checked })?;
            wire.wait_for_nod()?;
            let memory = source.span().part(0, size)?;
            let nanos = timed(|| {
                wire.stream_out(memory, count, checked)?;
                wire.wait_for_nod()
            })?;
            self.pair.partner.finish()?;
            Ok(nanos)
        })
    }

    fn stream_in(self, name: &'static str, count: u64, offset: usize, checked: bool) -> Variant<'a> {
        variant(name, move || {
            let (wire, source, size) = (self.pair.wire()?, self.source.borrow_mut(), self.size);
            self.pair.partner.order(&Order::Give { offset, size, count, checked })?;
            let memory = source.span().part(0, size)?;
            let nanos = timed(|| {
                wire.nod()?;
                wire.stream_in(memory, count, checked)
            })?;
            self.pair.partner.finish()?;
            Ok(nanos)
        })
    }

    /// Runs `measure` on a pair that is started for this batch only.
    fn fresh(self, ours: bool, measure: impl FnOnce(&Pair<S>) -> Result<f64>) -> Result<f64> {
        let mut plan = Plan { ours, ..self.pair.plan.clone() };
        plan.setup.size = self.size;
        plan.parts = if ours { [0, 0] } else { [4096, self.size] };
        measure(&Pair::<S>::start(plan)?)
    }

    /// One batch of ours.
    fn ours(self, subject: &'a S) -> Result<Variant<'a>> {
        let (count, size, offset) = (self.count(), self.size, self.misalign as u64);
        let source = self.source;
        Ok(match self.test {
            Test::PutFlush => self.attended(subject, move || {
                let mut source = source.borrow_mut();
                let nanos = timed(|| put_flush(subject, offset, size, count, &mut source))?;
                arrived(subject, offset, size, count)?;
                Ok(nanos)
            }),
            Test::PutSignal => variant("ours", move || {
                let from = self.pair.pings.get();
                self.pair.pings.set(from + WAKE + count);
                self.pair.partner.order(&Order::Pong { from, rounds: WAKE + count, offset, size })?;
                let mut payload = vec![0; size];
                ping(subject, from, WAKE, offset, &mut payload)?;
                let nanos = timed(|| ping(subject, from + WAKE, count, offset, &mut payload))?;
                self.pair.partner.finish()?;
                Ok(nanos / 2.0)
            }),
            Test::PutBandwidth => self.attended(subject, move || {
                let mut source = source.borrow_mut();
                let nanos = timed(|| put_bandwidth(subject, offset, size, count, &mut source))?;
                arrived(subject, offset, size, count)?;
                Ok(nanos)
            }),
            Test::GetFlush => self.attended(subject, move || {
                timed(|| get_flush(subject, offset, size, count, &mut source.borrow_mut()))
            }),
            Test::GetBandwidth => self.attended(subject, move || {
                timed(|| get_bandwidth(subject, offset, size, count, &mut source.borrow_mut()))
            }),
            Test::FetchAdd => self.attended(subject, move || {
                subject.put(PEER, 0, &0u64.to_ne_bytes())?;
                subject.flush(PEER)?;
                let mut sum = 0;
                let nanos = timed(|| fetch_add(subject, count).map(|s| sum = s))?;
                let expected = count * count.saturating_sub(1) / 2;
                if sum == expected { Ok(nanos) } else { Err(wrong_payload(sum, expected)) }
            }),
            Test::Accumulate => self
                .attended(subject, move || timed(|| accumulate(subject, size / 4, count, &source.borrow()))),
            Test::PostList => {
                let list = subject.list(PEER, &segments(Test::SEGMENTS, size))?;
                let last: Option<Segment> = segments(Test::SEGMENTS, size).first().copied();
                self.attended(subject, move || {
                    let nanos = timed(|| post_list(subject, &list, count, &mut source.borrow_mut()))?;
                    last.map_or(Ok(()), |s| arrived(subject, s.to as u64, s.size, count))?;
                    Ok(nanos)
                })
            }
            Test::Connect => self.attended(subject, move || {
                timed(|| {
                    for _ in 0..count {
                        subject.reconnect(black_box(PEER))?;
                    }
                    Ok(())
                })
            }),
            Test::Detect => variant("ours", move || {
                self.fresh(true, |pair| {
                    let subject = pair
                        .subject
                        .as_ref()
                        .ok_or_else(|| Error::invalid("perf", "our side is not open"))?;
                    subject.put(PEER, 0, &[1; 8])?;
                    subject.flush(PEER)?;
                    let began = Instant::now();
                    pair.partner.kill()?;
                    subject.wait_failure(PEER, LIMIT)?;
                    Ok(nanos_since(began))
                })
            }),
        })
    }

    /// A batch of one-sided operations. Where bytes go through a socket and waits spin, the peer drives its transport
    /// meanwhile, as the peer of the raw socket does.
    fn attended(self, subject: &'a S, mut run: impl FnMut() -> Result<f64> + 'a) -> Variant<'a> {
        let plan = &self.pair.plan;
        if plan.family != Family::Socket || plan.setup.wait != Wait::Spin {
            return variant("ours", run);
        }
        variant("ours", move || {
            let until = self.pair.attended.get() + 1;
            self.pair.attended.set(until);
            self.pair.partner.order(&Order::Attend { until })?;
            subject.wait_signal(ATTEND, until)?;
            let nanos = run()?;
            subject.put_signal(PEER, 0, &[], ATTEND)?;
            self.pair.partner.finish()?;
            Ok(nanos)
        })
    }
}

/// Rank 1: says that it is there, and waits for the end of the batch.
pub(crate) fn attend<S: Subject>(subject: &S, until: u64) -> Result<()> {
    subject.put_signal(0, 0, &[], ATTEND)?;
    subject.wait_signal(ATTEND, until)
}

/// Rank 1: waits for each put_signal, looks at its payload, and answers.
pub(crate) fn pong<S: Subject>(subject: &S, from: u64, rounds: u64, offset: u64, size: usize) -> Result<()> {
    let (rank, offset) = black_box((0, offset));
    let mut payload = vec![0; size];
    for i in from + 1..=from + rounds {
        seen(subject, offset, size, i)?;
        send(subject, rank, offset, &mut payload, i)?;
    }
    Ok(())
}

fn ping<S: Subject>(subject: &S, from: u64, rounds: u64, offset: u64, payload: &mut [u8]) -> Result<()> {
    let (rank, offset) = black_box((PEER, offset));
    for i in from + 1..=from + rounds {
        send(subject, rank, offset, payload, i)?;
        seen(subject, offset, payload.len(), i)?;
    }
    Ok(())
}

#[inline]
fn send<S: Subject>(subject: &S, rank: u32, offset: u64, payload: &mut [u8], i: u64) -> Result<()> {
    if payload.len() == 8 {
        return subject.put_signal(rank, offset, &i.to_ne_bytes(), PING);
    }
    if let Some(first) = payload.first_chunk_mut::<8>() {
        *first = i.to_ne_bytes();
    }
    subject.put_signal(rank, offset, payload, PING)
}

#[inline]
fn seen<S: Subject>(subject: &S, offset: u64, size: usize, i: u64) -> Result<()> {
    subject.wait_signal(PING, i)?;
    if size >= 8 && offset.is_multiple_of(8) {
        let value = subject.load(offset)?;
        if value != i {
            return Err(wrong_payload(value, i));
        }
    }
    Ok(())
}

fn put_flush<S: Subject>(
    subject: &S,
    offset: u64,
    size: usize,
    count: u64,
    source: &mut Source<'_>,
) -> Result<()> {
    let (rank, offset) = black_box((PEER, offset));
    if size == 8 {
        for i in 0..count {
            subject.put(rank, offset, &i.to_ne_bytes())?;
            subject.flush(rank)?;
        }
        return Ok(());
    }
    for i in 0..count {
        source.refresh(i);
        subject.put(rank, offset, source.bytes(0, size)?)?;
        subject.flush(rank)?;
    }
    Ok(())
}

fn put_bandwidth<S: Subject>(
    subject: &S,
    offset: u64,
    size: usize,
    count: u64,
    source: &mut Source<'_>,
) -> Result<()> {
    let (rank, offset) = black_box((PEER, offset));
    for i in 0..count {
        source.refresh(i);
        subject.put(rank, offset, source.bytes(0, size)?)?;
    }
    subject.flush(rank)
}

fn get_flush<S: Subject>(
    subject: &S,
    offset: u64,
    size: usize,
    count: u64,
    source: &mut Source<'_>,
) -> Result<()> {
    let (rank, offset) = black_box((PEER, offset));
    if size == 8 {
        let mut sum = 0u64;
        for _ in 0..count {
            let mut value = [0; 8];
            subject.get(rank, offset, &mut value)?;
            subject.flush(rank)?;
            sum = sum.wrapping_add(u64::from_ne_bytes(value));
        }
        black_box(sum);
        return Ok(());
    }
    for _ in 0..count {
        subject.get(rank, offset, source.bytes_mut(0, size)?)?;
        subject.flush(rank)?;
    }
    Ok(())
}

fn get_bandwidth<S: Subject>(
    subject: &S,
    offset: u64,
    size: usize,
    count: u64,
    source: &mut Source<'_>,
) -> Result<()> {
    let (rank, offset) = black_box((PEER, offset));
    subject.get_stream(rank, offset, source.bytes_mut(0, size)?, count)
}

fn fetch_add<S: Subject>(subject: &S, count: u64) -> Result<u64> {
    let (rank, offset) = black_box((PEER, 0));
    let mut sum = 0u64;
    for _ in 0..count {
        sum = sum.wrapping_add(subject.fetch_add(rank, offset, 1)?);
    }
    Ok(black_box(sum))
}

fn accumulate<S: Subject>(subject: &S, len: usize, count: u64, source: &Source<'_>) -> Result<()> {
    let (rank, offset) = black_box((PEER, 0));
    let values = source.floats(len)?;
    for _ in 0..count {
        subject.accumulate(rank, offset, values)?;
    }
    subject.flush(rank)
}

fn post_list<S: Subject>(subject: &S, list: &S::List, count: u64, source: &mut Source<'_>) -> Result<()> {
    let rank = black_box(PEER);
    for i in 0..count {
        source.refresh(i);
        subject.post(list)?;
        subject.flush(rank)?;
    }
    Ok(())
}

/// Checks that the first word of the last payload is in the peer's memory.
fn arrived<S: Subject>(subject: &S, offset: u64, size: usize, count: u64) -> Result<()> {
    if size < 8 {
        return Ok(());
    }
    let mut value = [0; 8];
    subject.get(PEER, offset, &mut value)?;
    let (value, expected) = (u64::from_ne_bytes(value), count - 1);
    if value == expected { Ok(()) } else { Err(wrong_payload(value, expected)) }
}

fn variant<'a>(name: &'static str, run: impl FnMut() -> Result<f64> + 'a) -> Variant<'a> {
    Variant { name, run: Box::new(run) }
}

fn timed(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    run()?;
    Ok(nanos_since(began))
}

fn nanos_since(began: Instant) -> f64 {
    began.elapsed().as_nanos() as f64
}
