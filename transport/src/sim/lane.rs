//! The order of one key: what may move, what is held back, and what a refusal does to what follows.

use std::collections::BTreeMap;
use std::time::Duration;

use transom_registry::Grant;
use transom_registry::element::{Atomic, Dtype, Reduce};
use transom_registry::{Access, Cause, Error, Failure, Outcome, Result, Slice};

use super::Adversary;
use super::random::Random;
use crate::backend::{Action, Op, Source};
use crate::token::Token;

/// One key: the operations of one initiator on one range of one target, by number in the order of posting.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) link: usize,
    pub(super) grant: Grant,
    pub(super) ops: BTreeMap<u64, Flying>,
    next: u64,
    /// What is posted from now on waits until everything below this number is delivered.
    fence: u64,
    /// The silent operation that was refused: what has a larger number is refused too.
    poison: Option<u64>,
    pub(super) detached: bool,
    /// Without reordering nothing comes before this time.
    pub(super) last: Duration,
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) work: Work,
    pub(super) parts: Vec<Part>,
    pub(super) token: Option<Token>,
    pub(super) result: Result<u64>,
    name: &'static str,
    signal: Option<(u32, u64)>,
    silent: bool,
    fence: u64,
    released: bool,
    /// Something of it has left its process.
    pub(super) sent: bool,
    arrived: usize,
    back: usize,
    adding: bool,
    delivered: bool,
    landing: bool,
}

/// What is left of an [`Action`] once it was posted.
#[derive(Debug)]
pub(super) enum Work {
    Put(Bytes),
    Get(Slice),
    Atomic { atomic: Atomic, width: u8, operand: u64, compare: u64 },
    Accumulate { dtype: Dtype, reduce: Reduce, bytes: Bytes },
    Signal,
    Flush,
    Resume,
}

/// The source of an operation under way: owned memory is read as late as can be.
#[derive(Debug)]
pub(super) enum Bytes {
    Copied(Vec<u8>),
    Owned(Slice),
}

impl Bytes {
    fn new(source: Source<'_>) -> Self {
        match source {
            Source::Borrowed(bytes) => Self::Copied(bytes.to_vec()),
            Source::Owned(slice) => Self::Owned(slice),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Owned(slice) => slice.size(),
        }
    }

    fn read(&self, part: Part) -> Result<Vec<u8>> {
        let mut out = vec![0; part.size];
        match self {
            Self::Copied(bytes) => out.copy_from_slice(&bytes[part.here..part.here + part.size]),
            Self::Owned(slice) => slice.read(part.here, &mut out)?,
        }
        Ok(out)
    }
}

/// Bytes that travel together: where on this side, where in the region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    here: usize,
    there: u64,
    size: usize,
    pub(super) last: bool,
}

/// What may happen next to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It leaves.
    Depart(u64),
    /// Everything before it is delivered: its signal is added, or refusing ends.
    Add(u64),
    /// Its outcome travels back.
    Land(u64),
}

/// What an arriving part brought about.
#[derive(Debug)]
pub(super) enum Arrived {
    /// Nothing to see: the operation had ended.
    Nothing,
    Applied,
    /// Bytes that travel back.
    Read(Vec<u8>),
}

impl Lane {
    pub(super) fn new(link: usize, grant: Grant) -> Self {
        Self {
            link,
            grant,
            ops: BTreeMap::new(),
            next: 1,
            fence: 0,
            poison: None,
            detached: false,
            last: Duration::ZERO,
        }
    }

    /// Takes an operation, cut into parts as the adversary likes.
    pub(super) fn post(&mut self, op: Op<'_>, token: Token, random: &mut Random, adversary: &Adversary) {
        let name = op.action.name(op.signal.is_some());
        let offset = op.offset;
        let whole = |size| vec![(offset, size)];
        let (work, pairs) = match op.action {
            Action::Put(source) => (Work::Put(Bytes::new(source)), None),
            Action::PutList(pairs, source) => (Work::Put(Bytes::new(source)), Some(pairs)),
            Action::Get(slice) => (Work::Get(slice), None),
            Action::GetList(pairs, slice) => (Work::Get(slice), Some(pairs)),
            Action::Atomic { atomic, width, operand, compare } => {
                (Work::Atomic { atomic, width, operand, compare }, None)
            }
            Action::Accumulate { dtype, reduce, source } => {
                (Work::Accumulate { dtype, reduce, bytes: Bytes::new(source) }, None)
            }
            Action::Signal => (Work::Signal, None),
            Action::Flush => (Work::Flush, None),
            Action::Resume => (Work::Resume, None),
        };
        let (pairs, unit) = match (&work, pairs) {
            (_, Some(pairs)) => (pairs.to_vec(), 1),
            (Work::Put(bytes), _) => (whole(bytes.size() as u64), 1),
            (Work::Get(slice), _) => (whole(slice.size() as u64), 1),
            (Work::Atomic { width, .. }, _) => (whole((*width).into()), usize::from(*width)),
            (Work::Accumulate { dtype, bytes, .. }, _) => (whole(bytes.size() as u64), dtype.size()),
            (Work::Signal | Work::Flush | Work::Resume, _) => (Vec::new(), 1),
        };
        // Not always: else whoever polls the last byte would get away with it.
        let late = adversary.late_last_byte && matches!(work, Work::Put(_)) && random.chance(0.5);
        let parts = cut(&pairs, unit, adversary.slices, late, random);
        let number = self.next;
        self.next += 1;
        let is_flush = matches!(work, Work::Flush);
        let flying = Flying {
            parts,
            token: Some(token),
            result: Ok(0),
            name,
            signal: op.signal,
            silent: op.silent,
            fence: self.fence,
            released: is_flush,
            sent: is_flush,
            arrived: 0,
            back: 0,
            adding: false,
            // A flush holds nothing back.
            delivered: is_flush,
            landing: false,
            work,
        };
        if matches!(flying.work, Work::Resume) {
            // What follows must find the refusing ended.
            self.fence = self.next;
        }
        self.ops.insert(number, flying);
    }

    /// Everything posted so far is delivered before what follows.
    pub(super) fn fence(&mut self) {
        self.fence = self.next;
    }

    /// What may happen now that could not before. Each is told once.
    pub(super) fn step(&mut self) -> Vec<Next> {
        let mut next = Vec::new();
        let first = self.ops.keys().next().copied();
        let undelivered = self.ops.iter().find(|(_, op)| !op.delivered).map_or(u64::MAX, |(n, _)| *n);
        for (&number, op) in &mut self.ops {
            if !op.released && op.fence <= undelivered {
                op.released = true;
                next.push(Next::Depart(number));
            }
            if op.sent && !op.delivered && !op.adding && op.is_arrived() && number <= undelivered {
                op.adding = true;
                next.push(Next::Add(number));
            }
            let lands = match op.work {
                // Behind everything that it waits for, whose failures are told by then.
                Work::Flush => first == Some(number),
                Work::Get(_) if op.result.is_ok() => op.delivered && op.back == op.parts.len(),
                _ => op.delivered,
            };
            if lands && !op.landing {
                op.landing = true;
                next.push(Next::Land(number));
            }
        }
        next
    }

    /// It leaves: how many parts does it have?
    pub(super) fn depart(&mut self, number: u64) -> Vec<Part> {
        let Some(op) = self.ops.get_mut(&number) else { return Vec::new() };
        op.sent = true;
        op.parts.clone()
    }

    /// A part arrives at the target, which checks it and applies it.
    pub(super) fn arrive(
        &mut self,
        number: u64,
        part: usize,
        by: transom_registry::exposed::Locker,
    ) -> Arrived {
        let admitted = self.admit(number);
        let Some(op) = self.ops.get_mut(&number) else { return Arrived::Nothing };
        if op.delivered {
            return Arrived::Nothing;
        }
        let part = op.parts[part];
        let exposed = &self.grant.exposed;
        let mut read = None;
        let applied = admitted.and_then(|()| match &op.work {
            Work::Put(bytes) => exposed.write(part.there, &bytes.read(part)?),
            Work::Get(_) => {
                let mut bytes = vec![0; part.size];
                exposed.read(part.there, &mut bytes)?;
                read = Some(bytes);
                Ok(())
            }
            &Work::Atomic { atomic, width, operand, compare } => {
                op.result = exposed.atomic(atomic, width, part.there, operand, compare);
                op.result.clone().map(drop)
            }
            Work::Accumulate { dtype, reduce, bytes } => {
                let bytes = bytes.read(part)?;
                match exposed.accumulate_bytes(*dtype, *reduce, part.there, &bytes, by) {
                    // Complete; what was there before is in doubt.
                    Err(torn @ Error::Torn { .. }) => {
                        op.result = Err(torn);
                        Ok(())
                    }
                    other => other,
                }
            }
            Work::Signal | Work::Flush | Work::Resume => Ok(()),
        });
        match applied {
            Ok(()) => {
                op.arrived += 1;
                if op.is_arrived() && op.signal.is_none() {
                    op.delivered = true;
                }
                read.map_or(Arrived::Applied, Arrived::Read)
            }
            Err(why) => {
                self.refuse(number, why);
                Arrived::Applied
            }
        }
    }

    /// Everything before it is delivered: adds its signal, or ends the refusing.
    pub(super) fn add(&mut self, number: u64) {
        let admitted = self.admit(number);
        let Some(op) = self.ops.get_mut(&number) else { return };
        if op.delivered {
            return;
        }
        let done = match (&op.work, op.signal) {
            (Work::Resume, _) => {
                self.poison = None;
                Ok(())
            }
            (_, Some((id, add))) => admitted.and_then(|()| self.grant.exposed.signal_add(id, add)),
            (_, None) => Ok(()),
        };
        match done {
            Ok(()) => op.delivered = true,
            Err(why) => self.refuse(number, why),
        }
    }

    /// Bytes of a get are back: they go where they belong.
    pub(super) fn back(&mut self, number: u64, part: usize, bytes: &[u8]) {
        let Some(op) = self.ops.get_mut(&number) else { return };
        if let (Work::Get(into), Some(part)) = (&op.work, op.parts.get(part)) {
            if let Err(error) = into.write(part.here, bytes) {
                op.result = Err(error);
            }
            op.back += 1;
        }
    }

    /// Its outcome is back.
    pub(super) fn land(&mut self, number: u64) -> Option<(Token, Result<u64>)> {
        let op = self.ops.remove(&number)?;
        Some((op.token?, op.result))
    }

    /// Ends everything with a failure of the peer or of the way to it.
    pub(super) fn fail(&mut self, failure: &std::sync::Arc<Failure>) -> Vec<(Token, Result<u64>)> {
        let end = |op: Flying| {
            let outcome = if op.sent { Outcome::InDoubt } else { Outcome::NotApplied };
            let name = op.name;
            op.token.map(|token| (token, Err(Error::failed(name, outcome, failure.clone()))))
        };
        std::mem::take(&mut self.ops).into_values().filter_map(end).collect()
    }

    /// What the target checks before each part.
    fn admit(&self, number: u64) -> Result<()> {
        let Some(op) = self.ops.get(&number) else { return Ok(()) };
        if self.poison.is_some_and(|poison| poison < number) {
            let failure = Failure::new(None, Cause::Earlier, "the target refused an operation before it");
            return Err(Error::failed(op.name, Outcome::NotApplied, failure));
        }
        let mut needed = match op.work {
            Work::Put(_) => Access::WRITE,
            Work::Get(_) => Access::READ,
            Work::Atomic { .. } | Work::Accumulate { .. } => Access::ATOMIC,
            Work::Signal | Work::Flush | Work::Resume => Access::NONE,
        };
        if let Some((id, _)) = op.signal {
            needed = needed | Access::SIGNAL;
            if id >= self.grant.signals {
                return Err(Error::invalid(
                    op.name,
                    format!("signal {id} does not exist, the region has {}", self.grant.signals),
                ));
            }
        }
        self.grant.check(op.name, needed)
    }

    fn refuse(&mut self, number: u64, why: Error) {
        let Some(op) = self.ops.get_mut(&number) else { return };
        op.delivered = true;
        op.result = Err(match why {
            // It follows from another one's failure still.
            Error::Failed(failed) if op.arrived > 0 => {
                Error::failed(op.name, Outcome::InDoubt, failed.failure.clone())
            }
            _ if op.arrived > 0 => {
                let failure = Failure::new(None, Cause::Refused(why.to_string()), "");
                Error::failed(op.name, Outcome::InDoubt, failure)
            }
            Error::Failed(_) => why,
            why => Error::refused(why),
        });
        if op.silent {
            self.poison = Some(self.poison.map_or(number, |poison| poison.min(number)));
        }
    }
}

impl Flying {
    fn is_arrived(&self) -> bool {
        self.arrived == self.parts.len()
    }
}

/// Cuts the pieces of an operation into up to `slices` parts each (those of a list into one or two), at multiples of
/// `unit`; with `late`, the last byte is a part of its own.
fn cut(pairs: &[(u64, u64)], unit: usize, slices: usize, late: bool, random: &mut Random) -> Vec<Part> {
    let mut parts = Vec::new();
    let slices = if pairs.len() > 1 { slices.min(2) } else { slices };
    let mut here = 0;
    for &(there, size) in pairs {
        let size = size as usize;
        let units = size / unit;
        let count = 1 + random.below(slices);
        let mut cuts: Vec<usize> = (1..count).map(|_| unit * random.below(units)).collect();
        cuts.push(0);
        if late {
            cuts.push(size.saturating_sub(1));
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts.push(size);
        for pair in cuts.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let part = Part {
                here: here + from,
                there: there + from as u64,
                size: to - from,
                last: late && to == size,
            };
            if part.size > 0 {
                parts.push(part);
            }
        }
        here += size;
    }
    parts
}
