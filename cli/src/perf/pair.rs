//! Two ranks that are ready to be measured: the partner, the memory, the raw socket, and our side where it takes part.

use std::cell::Cell;
use std::os::fd::AsFd;

use transom_registry::{Error, Result};

use super::baseline::connect::Door;
use super::baseline::line::Line;
use super::baseline::memory::{Shared, Span, memory_file};
use super::baseline::socket::Wire;
use super::pin;
use super::probe;
use super::rank::{Order, Partner};
use super::subject::{Setup, Subject};

/// What kind of baselines a transport has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// The peer's memory is mapped.
    Memory,
    /// Bytes go through a socket.
    Socket,
    /// There is nothing on every machine that could be written by hand.
    Other,
}

impl Family {
    /// Of a transport, as the user names it.
    pub(crate) fn of(transport: &str) -> Self {
        match transport.split(':').next() {
            Some("shm" | "local") => Self::Memory,
            Some("tcp") => Self::Socket,
            _ => Self::Other,
        }
    }
}

/// Where the ranks run.
#[derive(Debug, Clone)]
pub(crate) struct Cores {
    /// All that this process may use.
    pub(crate) all: Vec<usize>,
    /// The core of each rank; nothing when there is only one, or it is forbidden to choose.
    pub(crate) pinned: Option<[usize; 2]>,
}

impl Cores {
    /// Looks at the affinity mask, and tries.
    pub(crate) fn find() -> Result<Self> {
        let all = pin::allowed()?;
        let pinned = match all[..] {
            [first, second, ..] if pin::pin(first).and_then(|()| pin::unpin(&all)).is_ok() => {
                Some([first, second])
            }
            _ => None,
        };
        Ok(Self { all, pinned })
    }

    /// Whether the ranks share a core, so that who waits has to give it away.
    pub(crate) fn shared(&self) -> bool {
        self.all.len() < 2
    }
}

/// What a pair is started with.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) setup: Setup,
    pub(crate) family: Family,
    pub(crate) cores: Cores,
    /// Whether our side takes part.
    pub(crate) ours: bool,
    /// Whether plain copies take our place.
    pub(crate) self_check: bool,
    /// Sizes of the parts that baselines use where ours has none, in multiples of the page size; 0 for no parts.
    pub(crate) parts: [usize; 2],
}

/// Two ranks. The order of the fields is the order in which they end.
pub(crate) struct Pair<S: Subject> {
    pub(crate) subject: Option<S>,
    pub(crate) wire: Option<Wire>,
    pub(crate) partner: Partner,
    /// Keeps the meeting place.
    _meeting: Option<S::Meeting>,
    shared: Shared,
    pub(crate) plan: Plan,
    /// put_signals sent so far.
    pub(crate) pings: Cell<u64>,
    /// Times that the partner attended.
    pub(crate) attended: Cell<u64>,
}

impl<S: Subject> Pair<S> {
    /// Starts the partner, shares the memory, opens our side on both, and pins both last, so that threads of ours stay
    /// free to move.
    pub(crate) fn start(plan: Plan) -> Result<Self> {
        pin::unpin(&plan.cores.all)?;
        let partner = Partner::start(plan.self_check)?;
        let parts = plan.parts;
        let memory = memory_file(Shared::file_size(parts))?;
        let yields = plan.cores.shared();
        let setup = Setup { rank: 1, ..plan.setup.clone() };
        let cores = plan.cores.all.clone();
        partner.order_with(&Order::Start { setup, parts, cores, yields }, Some(memory.as_fd()))?;
        partner.finish()?;
        let shared = Shared::map(&memory, parts)?;
        let (meeting, subject) = if plan.ours {
            let (meeting, invitation) = S::meet(&plan.setup)?;
            partner.order(&Order::Join(invitation.clone()))?;
            let subject = S::open(&plan.setup, &invitation)?;
            partner.finish()?;
            (Some(meeting), Some(subject))
        } else {
            (None, None)
        };
        let wire = if plan.family == Family::Socket {
            let door = Door::tcp()?;
            partner.order(&Order::Dial(door.port()?))?;
            let wire = Wire::new(door.accept()?, plan.setup.wait, yields)?;
            partner.finish()?;
            Some(wire)
        } else {
            None
        };
        if let Some([mine, theirs]) = plan.cores.pinned {
            partner.ask(&Order::Pin(theirs))?;
            pin::pin(mine)?;
        }
        let (pings, attended) = (Cell::new(0), Cell::new(0));
        Ok(Self { subject, wire, partner, _meeting: meeting, shared, plan, pings, attended })
    }

    /// The peer's part as this process sees it.
    pub(crate) fn target(&self) -> Result<Span<'_>> {
        let target = self.subject.as_ref().and_then(S::target).or(self.shared.part(1));
        target.ok_or_else(|| Error::invalid("perf", "the peer's part is not mapped here"))
    }

    /// This side of the line ping-pong.
    pub(crate) fn line(&self, offset: usize, size: usize) -> Result<Line<'_>> {
        let local = self.subject.as_ref().map(S::local).or(self.shared.part(0));
        let local = local.ok_or_else(|| Error::invalid("perf", "there is no local part"))?;
        let (out, into) = (self.target()?.part(offset, size)?, local.part(offset, size)?);
        Line::new(self.shared.board()?, 0, out, into, self.plan.setup.wait, self.plan.cores.shared())
    }

    /// The raw socket.
    pub(crate) fn wire(&self) -> Result<&Wire> {
        self.wire.as_ref().ok_or_else(|| Error::invalid("perf", "there is no raw socket"))
    }

    /// The line ping-pong right now, in nanoseconds one way.
    pub(crate) fn probe(&self) -> Result<f64> {
        self.partner.order(&Order::Probe)?;
        let nanos = probe::play(self.shared.board()?, 0, self.plan.cores.shared())?;
        self.partner.finish()?;
        Ok(nanos)
    }
}
