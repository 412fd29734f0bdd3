//! Everything that the ranks of a fabric share: who there is, what is under way, and what happens next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use transom_registry::Grant;
use transom_registry::exposed::Locker;
use transom_registry::{Cause, Error, Failure, Incarnation, Outcome, Result};

use super::Adversary;
use super::lane::{Arrived, Lane, Next};
use super::random::Random;
use super::time::Time;
use crate::backend::{Action, Host, Op, Posted, Source};
use crate::token::{Completion, Token};

/// After how long a rank that does not move is told as frozen.
pub(super) const FROZEN_AFTER: Duration = Duration::from_millis(2500);
/// How many latencies a lost acknowledgement takes to be sent again.
const RESEND: u32 = 20;
/// How many steps are kept to be shown.
const KEPT: usize = 256;

/// Ranks, connections, operations and events of one fabric.
#[derive(Debug)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) adversary: Adversary,
    time: Arc<Time>,
    ranks: Vec<Rank>,
    links: Vec<Link>,
    lanes: BTreeMap<u64, Lane>,
    next_lane: u64,
    events: BTreeMap<(Duration, u64, u64), Event>,
    scheduled: u64,
    freezes: u64,
    /// Ranks at which something changed: their progress has to look.
    touched: BTreeSet<usize>,
    trace: VecDeque<Step>,
    fingerprint: u64,
}

/// One context of the fabric, numbered in the order of opening.
#[derive(Debug)]
struct Rank {
    host: Host,
    state: State,
    done: Vec<(Token, Result<u64>)>,
    /// Something was applied here since the last poll.
    changed: bool,
    /// What happens once it moves again.
    held: Vec<Event>,
    watchers: Vec<Waker>,
}

/// Whether a rank moves.
#[derive(Debug, Clone)]
pub(super) enum State {
    Alive,
    /// Not at the moment; which freeze it is.
    Frozen(u64),
    /// Never again.
    Dead(Arc<Failure>),
    /// It closed its context.
    Left(Arc<Failure>),
}

#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    failure: Option<Arc<Failure>>,
    full: bool,
    /// The next operation is taken: there was room, or it belongs to one that was taken.
    promised: bool,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
enum Event {
    Depart { lane: u64, op: u64 },
    Arrive { lane: u64, op: u64, part: usize },
    Back { lane: u64, op: u64, part: usize, bytes: Vec<u8> },
    Add { lane: u64, op: u64 },
    Land { lane: u64, op: u64 },
    Room { link: usize },
    Tell { who: usize, of: usize, freeze: Option<u64> },
}

impl Event {
    fn lane(&self) -> Option<u64> {
        match self {
            Self::Depart { lane, .. }
            | Self::Arrive { lane, .. }
            | Self::Back { lane, .. }
            | Self::Add { lane, .. }
            | Self::Land { lane, .. } => Some(*lane),
            Self::Room { .. } | Self::Tell { .. } => None,
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone, Copy)]
struct Step {
    at: Duration,
    what: &'static str,
    numbers: [u64; 3],
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.numbers;
        write!(f, "{:>12} ns {} {a} {b} {c}", self.at.as_nanos(), self.what)
    }
}

/// What has to be done about an event once nothing is locked.
#[derive(Default)]
pub(super) struct Outside {
    wake: Vec<Waker>,
    lost: Option<(Host, Incarnation, Arc<Failure>)>,
}

impl Outside {
    pub(super) fn run(self) {
        if let Some((host, incarnation, failure)) = self.lost {
            (host.lost)(incarnation, failure);
        }
        for waker in self.wake {
            waker.wake();
        }
    }
}

impl World {
    pub(super) fn new(seed: u64, adversary: Adversary, time: Arc<Time>) -> Self {
        Self {
            random: Random::new(seed),
            adversary,
            time,
            ranks: Vec::new(),
            links: Vec::new(),
            lanes: BTreeMap::new(),
            next_lane: 1,
            events: BTreeMap::new(),
            scheduled: 0,
            freezes: 0,
            touched: BTreeSet::new(),
            trace: VecDeque::with_capacity(KEPT),
            fingerprint: 0xCBF2_9CE4_8422_2325,
        }
    }

    // Who there is.

    pub(super) fn add_rank(&mut self, host: Host) -> usize {
        let rank = Rank {
            host,
            state: State::Alive,
            done: Vec::new(),
            changed: false,
            held: Vec::new(),
            watchers: Vec::new(),
        };
        self.ranks.push(rank);
        self.ranks.len() - 1
    }

    pub(super) fn find(&self, incarnation: Incarnation) -> Option<usize> {
        self.ranks.iter().position(|rank| rank.host.registry.incarnation() == incarnation)
    }

    pub(super) fn incarnation(&self, rank: usize) -> Incarnation {
        self.ranks[rank].host.registry.incarnation()
    }

    pub(super) fn host(&self, rank: usize) -> &Host {
        &self.ranks[rank].host
    }

    pub(super) fn state(&self, rank: usize) -> &State {
        &self.ranks[rank].state
    }

    /// Wakes `waker` once the state of the rank has changed.
    pub(super) fn watch(&mut self, rank: usize, waker: &Waker) {
        let watchers = &mut self.ranks[rank].watchers;
        if !watchers.iter().any(|known| known.will_wake(waker)) {
            watchers.push(waker.clone());
        }
    }

    // Connections and keys.

    pub(super) fn add_link(&mut self, from: usize, to: usize) -> usize {
        self.links.push(Link { from, to, failure: None, full: false, promised: false, waiting: Vec::new() });
        self.links.len() - 1
    }

    pub(super) fn failure(&self, link: usize) -> Option<Arc<Failure>> {
        self.links[link].failure.clone()
    }

    /// Ends a connection from this side.
    pub(super) fn close_link(&mut self, link: usize) {
        let Link { from, to, .. } = self.links[link];
        let failure =
            Failure::new(Some(self.incarnation(to)), Cause::ConnectionLost, "the connection was closed here");
        self.fail_link(link, &failure);
        self.touched.insert(from);
    }

    fn fail_link(&mut self, link: usize, failure: &Arc<Failure>) -> Vec<Waker> {
        self.links[link].failure.get_or_insert_with(|| failure.clone());
        let from = self.links[link].from;
        let keys: Vec<u64> = self.lanes.iter().filter(|(_, l)| l.link == link).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(mut lane) = self.lanes.remove(&key) {
                self.ranks[from].done.extend(lane.fail(failure));
            }
        }
        std::mem::take(&mut self.links[link].waiting)
    }

    pub(super) fn attach(&mut self, link: usize, grant: Grant) -> u64 {
        let key = self.next_lane;
        self.next_lane += 1;
        self.lanes.insert(key, Lane::new(link, grant));
        key
    }

    pub(super) fn detach(&mut self, key: u64) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.detached = true;
            if lane.ops.is_empty() {
                self.lanes.remove(&key);
            }
        }
    }

    pub(super) fn fence(&mut self, key: u64) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.fence();
        }
    }

    // Operations.

    pub(super) fn post(&mut self, link: usize, op: Op<'_>, token: Token) -> Posted {
        let name = op.action.name(op.signal.is_some());
        let state = self.links[link].failure.as_ref().or(self.ranks[self.links[link].from].state.failure());
        if let Some(failure) = state {
            let error = Error::failed(name, Outcome::NotApplied, failure.clone());
            return Posted::Done(token, Err(error));
        }
        if self.lanes.get(&op.key).is_none_or(|lane| lane.link != link) {
            return Posted::Done(token, Err(Error::Closed { operation: name, what: "region" }));
        }
        if !self.take(link, &op) {
            return Posted::Full(token);
        }
        let key = op.key;
        let Self { lanes, random, adversary, .. } = self;
        if let Some(lane) = lanes.get_mut(&key) {
            lane.post(op, token, random, adversary);
        }
        self.step(key);
        Posted::Pending
    }

    /// Whether the queue takes the operation.
    fn take(&mut self, link: usize, op: &Op<'_>) -> bool {
        // What ends waits is always taken, so that a flush needs nothing but time.
        if matches!(op.action, Action::Flush | Action::Resume) {
            return true;
        }
        if !self.has_room(link) {
            return false;
        }
        // A call of many pieces is taken as a whole: a blocking one could not wait in its middle.
        self.links[link].promised = match &op.action {
            Action::Put(source) | Action::Accumulate { source, .. } => {
                matches!(source, Source::Borrowed(_)) && source.size() == Source::MOST_BORROWED
            }
            // How a list is cut is its own affair: any piece may have another behind it.
            Action::PutList(..) | Action::GetList(..) => true,
            _ => false,
        };
        true
    }

    /// Whether the queue has room for the next operation, which keeps it; full by chance.
    fn has_room(&mut self, link: usize) -> bool {
        if self.links[link].promised {
            return true;
        }
        if !self.links[link].full && self.random.chance(self.adversary.full_queue) {
            self.links[link].full = true;
            let after = self.latency();
            self.schedule(after, Event::Room { link });
        }
        self.links[link].promised = !self.links[link].full;
        self.links[link].promised
    }

    pub(super) fn room(&mut self, link: usize, waker: &Waker) -> bool {
        let gone = self.ranks[self.links[link].from].state.failure().is_some();
        if gone || self.links[link].failure.is_some() || self.has_room(link) {
            return true;
        }
        let waiting = &mut self.links[link].waiting;
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        false
    }

    /// Completions of a rank, and how much happened there since it was asked last.
    pub(super) fn poll(&mut self, rank: usize, done: &mut Vec<Completion>) -> usize {
        let rank = &mut self.ranks[rank];
        let work = rank.done.len() + usize::from(std::mem::take(&mut rank.changed));
        done.extend(rank.done.drain(..).map(|(token, result)| Completion::new(token, result)));
        work
    }

    pub(super) fn latency(&mut self) -> Duration {
        self.random.time(&self.adversary.latency)
    }

    /// Lets happen what may happen now on a key.
    fn step(&mut self, key: u64) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        for next in lane.step() {
            let mut after = self.latency();
            let event = match next {
                Next::Depart(op) => Event::Depart { lane: key, op },
                Next::Add(op) => Event::Add { lane: key, op },
                Next::Land(op) => {
                    if self.random.chance(self.adversary.drop_ack) {
                        after += self.adversary.latency.end * RESEND;
                    }
                    Event::Land { lane: key, op }
                }
            };
            self.schedule(after, event);
        }
    }

    // Events.

    fn schedule(&mut self, after: Duration, event: Event) {
        let mut at = self.time.elapsed() + after;
        let tie = if self.adversary.reorder {
            self.random.next()
        } else {
            if let Some(lane) = event.lane().and_then(|lane| self.lanes.get_mut(&lane)) {
                at = at.max(lane.last);
                lane.last = at;
            }
            0
        };
        self.scheduled += 1;
        self.events.insert((at, tie, self.scheduled), event);
    }

    /// When the next event is due.
    pub(super) fn next_event(&self) -> Option<Duration> {
        self.events.keys().next().map(|(at, ..)| *at)
    }

    /// Lets the next event happen.
    pub(super) fn happen(&mut self) -> Outside {
        let Some((_, event)) = self.events.pop_first() else { return Outside::default() };
        // Nothing of a dead rank moves any more, and nothing of a frozen one at the moment.
        for rank in self.concerned(&event) {
            match self.ranks[rank].state {
                State::Alive => {}
                State::Frozen(_) => {
                    self.ranks[rank].held.push(event);
                    return Outside::default();
                }
                State::Dead(_) | State::Left(_) => return Outside::default(),
            }
        }
        match event {
            Event::Depart { lane: key, op } => {
                self.note("depart", [key, op, 0]);
                let Some(lane) = self.lanes.get_mut(&key) else { return Outside::default() };
                let parts = lane.depart(op);
                for (index, part) in parts.into_iter().enumerate() {
                    let mut after = self.latency();
                    if part.last {
                        after += self.latency() * 4;
                    }
                    self.schedule(after, Event::Arrive { lane: key, op, part: index });
                }
                self.step(key);
            }
            Event::Arrive { lane: key, op, part } => {
                self.note("arrive", [key, op, part as u64]);
                let Some((from, to)) = self.ends(key) else { return Outside::default() };
                let by = Locker { incarnation: self.incarnation(from), patience: Duration::from_secs(1) };
                let Some(lane) = self.lanes.get_mut(&key) else { return Outside::default() };
                let arrived = lane.arrive(op, part, by);
                if let Arrived::Read(bytes) = arrived {
                    let after = self.latency();
                    self.schedule(after, Event::Back { lane: key, op, part, bytes });
                }
                self.changed(to);
                self.step(key);
            }
            Event::Back { lane: key, op, part, bytes } => {
                self.note("back", [key, op, part as u64]);
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.back(op, part, &bytes);
                }
                self.step(key);
            }
            Event::Add { lane: key, op } => {
                self.note("add", [key, op, 0]);
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.add(op);
                }
                if let Some((_, to)) = self.ends(key) {
                    self.changed(to);
                }
                self.step(key);
            }
            Event::Land { lane: key, op } => {
                self.note("land", [key, op, 0]);
                let Some((from, _)) = self.ends(key) else { return Outside::default() };
                let Some(lane) = self.lanes.get_mut(&key) else { return Outside::default() };
                if let Some((token, result)) = lane.land(op) {
                    self.ranks[from].done.push((token, result));
                    self.touched.insert(from);
                }
                if lane.detached && lane.ops.is_empty() {
                    self.lanes.remove(&key);
                }
                self.step(key);
            }
            Event::Room { link } => {
                self.note("room", [link as u64, 0, 0]);
                let link = &mut self.links[link];
                link.full = false;
                link.promised = true;
                return Outside { wake: std::mem::take(&mut link.waiting), lost: None };
            }
            Event::Tell { who, of, freeze } => return self.tell(who, of, freeze),
        }
        Outside::default()
    }

    /// Whose movement an event is.
    fn concerned(&self, event: &Event) -> Vec<usize> {
        match event {
            Event::Room { link } => vec![self.links[*link].from],
            Event::Tell { who, .. } => vec![*who],
            _ => match event.lane().and_then(|lane| self.ends(lane)) {
                // Leaving is the initiator's alone.
                Some((from, _)) if matches!(event, Event::Depart { .. }) => vec![from],
                Some((from, to)) => vec![from, to],
                None => Vec::new(),
            },
        }
    }

    fn ends(&self, lane: u64) -> Option<(usize, usize)> {
        let link = &self.links[self.lanes.get(&lane)?.link];
        Some((link.from, link.to))
    }

    fn changed(&mut self, rank: usize) {
        self.ranks[rank].changed = true;
        self.touched.insert(rank);
    }

    /// What makes the touched ranks look, to be called once nothing is locked.
    pub(super) fn kicks(&mut self) -> Vec<Arc<dyn Fn() + Send + Sync>> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().map(|rank| self.ranks[rank].host.kick.clone()).collect()
    }

    // Faults.

    pub(super) fn kill(&mut self, rank: usize) -> Vec<Waker> {
        let failure = Failure::new(
            Some(self.incarnation(rank)),
            Cause::Signaled(9),
            format!("killed by the simulation after {} ns", self.time.elapsed().as_nanos()),
        );
        self.note("kill", [rank as u64, 0, 0]);
        let wake = self.end(rank, State::Dead(failure));
        for who in (0..self.ranks.len()).filter(|who| *who != rank) {
            let after = self.random.time(&self.adversary.detection);
            self.schedule(after, Event::Tell { who, of: rank, freeze: None });
        }
        wake
    }

    pub(super) fn leave(&mut self, rank: usize) -> Vec<Waker> {
        if self.ranks[rank].state.failure().is_some() {
            return Vec::new();
        }
        let failure = Failure::new(Some(self.incarnation(rank)), Cause::Left, "");
        self.note("leave", [rank as u64, 0, 0]);
        let wake = self.end(rank, State::Left(failure));
        for who in (0..self.ranks.len()).filter(|who| *who != rank) {
            let after = self.latency();
            self.schedule(after, Event::Tell { who, of: rank, freeze: None });
        }
        wake
    }

    pub(super) fn freeze(&mut self, rank: usize) {
        if !matches!(self.ranks[rank].state, State::Alive) {
            return;
        }
        self.freezes += 1;
        self.note("freeze", [rank as u64, 0, 0]);
        self.ranks[rank].state = State::Frozen(self.freezes);
        for who in (0..self.ranks.len()).filter(|who| *who != rank) {
            let freeze = Some(self.freezes);
            self.schedule(FROZEN_AFTER, Event::Tell { who, of: rank, freeze });
        }
    }

    pub(super) fn thaw(&mut self, rank: usize) -> Vec<Waker> {
        if !matches!(self.ranks[rank].state, State::Frozen(_)) {
            return Vec::new();
        }
        self.note("thaw", [rank as u64, 0, 0]);
        self.ranks[rank].state = State::Alive;
        for event in std::mem::take(&mut self.ranks[rank].held) {
            let after = self.latency();
            self.schedule(after, event);
        }
        self.changed(rank);
        std::mem::take(&mut self.ranks[rank].watchers)
    }

    /// A rank stops for ever: what it had under way ends.
    fn end(&mut self, rank: usize, state: State) -> Vec<Waker> {
        let Some(failure) = state.failure().cloned() else { return Vec::new() };
        self.ranks[rank].state = state;
        self.ranks[rank].held.clear();
        let mut wake = std::mem::take(&mut self.ranks[rank].watchers);
        for link in 0..self.links.len() {
            if self.links[link].from == rank {
                wake.extend(self.fail_link(link, &failure));
            }
        }
        self.touched.insert(rank);
        wake
    }

    /// A peer learns that a rank is gone.
    fn tell(&mut self, who: usize, of: usize, freeze: Option<u64>) -> Outside {
        let mut wake = Vec::new();
        if let Some(freeze) = freeze {
            match self.ranks[of].state {
                // The first to see it decides for all: who was told as failed never comes back.
                State::Frozen(now) if now == freeze => {
                    let failure = Failure::new(
                        Some(self.incarnation(of)),
                        Cause::Frozen,
                        format!("it did not move for {} ms", FROZEN_AFTER.as_millis()),
                    );
                    wake = self.end(of, State::Dead(failure));
                }
                State::Dead(_) => {}
                _ => return Outside { wake, lost: None },
            }
        }
        let Some(failure) = self.ranks[of].state.failure().cloned() else {
            return Outside { wake, lost: None };
        };
        self.note("tell", [who as u64, of as u64, 0]);
        for link in 0..self.links.len() {
            if self.links[link].from == who && self.links[link].to == of {
                wake.extend(self.fail_link(link, &failure));
            }
        }
        self.changed(who);
        let lost = Some((self.ranks[who].host.clone(), self.incarnation(of), failure));
        Outside { wake, lost }
    }

    // What happened.

    pub(super) fn note(&mut self, what: &'static str, numbers: [u64; 3]) {
        let step = Step { at: self.time.elapsed(), what, numbers };
        let hash = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
        let mut print = hash(self.fingerprint, step.at.as_nanos() as u64);
        print = what.bytes().fold(print, |print, byte| hash(print, byte.into()));
        self.fingerprint = numbers.into_iter().fold(print, hash);
        if self.trace.len() == KEPT {
            self.trace.pop_front();
        }
        self.trace.push_back(step);
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn trace(&self) -> Vec<String> {
        self.trace.iter().map(Step::to_string).collect()
    }
}

impl State {
    pub(super) fn failure(&self) -> Option<&Arc<Failure>> {
        match self {
            Self::Alive | Self::Frozen(_) => None,
            Self::Dead(failure) | Self::Left(failure) => Some(failure),
        }
    }

    /// What a rank that never answers again says to who connects to it.
    pub(super) fn check(&self) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(failure) => Err(Error::Unusable {
                transport: "sim".into(),
                why: format!("nobody answers there: {failure}"),
            }),
        }
    }
}
