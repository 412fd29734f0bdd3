//! Gradients and weights between the trainers, through one window.
//!
//! Each trainer owns some rows of each tensor. Its part of the window holds
//!
//! | what | who puts it there | size |
//! |---|---|---|
//! | all weights | each owner its own | as the weights |
//! | for each trainer, its loss and its gradients of the rows that are owned here | that trainer | 8, and as the owned weights |
//!
//! and it has two signals for each trainer: its gradients are here, its weights are here.
//!
//! No put overtakes a reader, and no further signals are needed for that: a trainer puts its next gradients after it
//! has every owner's new weights, and an owner puts the last of those after it has read all gradients; an owner puts
//! new weights after it has every trainer's gradients, and a trainer puts those after it has read the weights before.

use std::ops::Range;
use std::sync::Arc;

use transom::store::Deadline;
use transom::{Error, Rank, Result, Signals, Team, Window};
use zerocopy::IntoBytes;

/// The size of a loss in bytes.
const LOSS: usize = size_of::<f64>();
/// How many weights are summed, changed and put at a time: they stay in the second cache meanwhile.
const CHUNK: usize = 16 << 10;

/// What a signal tells.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Gradients,
    Weights,
}

/// The window between the trainers.
#[derive(Debug)]
pub(crate) struct Exchange {
    window: Window,
    /// Signals of the own part; waits for them fail once any trainer has failed, since each one is needed.
    signals: Signals,
    /// For each trainer, the places of the weights that it owns.
    owned: Vec<Vec<Range<usize>>>,
    /// How many weights there are.
    len: usize,
    /// How often each kind has been waited for.
    waits: [u64; 2],
    /// Room for a chunk: the sum of the gradients, and those of one trainer.
    sum: Vec<f32>,
    one: Vec<f32>,
}

impl Exchange {
    /// Builds the window. Collective.
    ///
    /// # Errors
    /// As for [`transom::WindowBuilder::build`].
    pub(crate) fn new(team: &Team, len: usize, owned: Vec<Vec<Range<usize>>>) -> Result<Self> {
        let size = size_of::<f32>() * len + slot(&owned[team.rank() as usize]) * owned.len();
        let window = Window::builder(team).size(size).signals(2 * team.size()).build()?;
        let trainers = team.clone();
        let any = Arc::new(move || (0..trainers.size()).find_map(|rank| trainers.failure(rank)));
        let signals = window.signals().clone().with_producers(any);
        let room = vec![0.0; CHUNK];
        Ok(Self { window, signals, owned, len, waits: [0; 2], sum: room.clone(), one: room })
    }

    /// This trainer's number.
    pub(crate) fn rank(&self) -> Rank {
        self.window.team().rank()
    }

    /// How many trainers there are.
    pub(crate) fn size(&self) -> u32 {
        self.window.team().size()
    }

    /// The places of the weights that this trainer owns.
    pub(crate) fn owned(&self) -> &[Range<usize>] {
        &self.owned[self.rank() as usize]
    }

    /// The same, cut into pieces that can be summed.
    pub(crate) fn chunks(&self) -> Vec<Range<usize>> {
        let cut = |whole: &Range<usize>| {
            let end = whole.end;
            whole.clone().step_by(CHUNK).map(move |start| start..end.min(start + CHUNK))
        };
        self.owned().iter().flat_map(cut).collect()
    }

    /// Puts the gradients of each weight to its owner and the loss to everybody, and waits for what the others put here.
    pub(crate) fn exchange_gradients(&mut self, gradients: &[f32], loss: f64) -> Result<()> {
        for to in self.others() {
            let mut at = self.slot_of(self.rank(), to);
            self.window.put(to, at, &loss.to_le_bytes())?;
            at += LOSS as u64;
            for range in &self.owned[to as usize] {
                let bytes = gradients[range.clone()].as_bytes();
                self.window.put(to, at, bytes)?;
                at += bytes.len() as u64;
            }
        }
        self.tell(Kind::Gradients)?;
        self.wait(Kind::Gradients)
    }

    /// The sum of all trainers' losses, in the order of their ranks; this one's is `own`.
    pub(crate) fn loss(&self, own: f64) -> Result<f64> {
        let mut sum = 0.0;
        for from in 0..self.size() {
            let mut bytes = own.to_le_bytes();
            if from != self.rank() {
                self.window.local().read(self.slot_of(from, self.rank()) as usize, &mut bytes)?;
            }
            sum += f64::from_le_bytes(bytes);
        }
        Ok(sum)
    }

    /// The sum of all trainers' gradients in the order of their ranks, of a chunk that begins with the weight `at` of
    /// those that are owned here; this trainer's are `own`.
    pub(crate) fn sum(&mut self, at: usize, own: &[f32]) -> Result<&[f32]> {
        let (rank, size) = (self.rank(), self.size());
        let sum = &mut self.sum[..own.len()];
        for from in 0..size {
            let one = if from == rank {
                own
            } else {
                let one = &mut self.one[..own.len()];
                let slot = slot_of(self.len, &self.owned, from, rank) as usize;
                self.window.local().read(slot + LOSS + size_of::<f32>() * at, one.as_mut_bytes())?;
                one
            };
            match from {
                0 => sum.copy_from_slice(one),
                _ => sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one),
            }
        }
        Ok(sum)
    }

    /// Puts weights that this trainer owns to all others.
    pub(crate) fn put_weights(&self, at: usize, weights: &[f32]) -> Result<()> {
        self.others()
            .try_for_each(|to| self.window.put(to, (size_of::<f32>() * at) as u64, weights.as_bytes()))
    }

    /// Tells the others that all weights are put, waits for theirs, and reads them.
    pub(crate) fn exchange_weights(&mut self, weights: &mut [f32]) -> Result<()> {
        self.tell(Kind::Weights)?;
        self.wait(Kind::Weights)?;
        for from in self.others() {
            for range in &self.owned[from as usize] {
                let bytes = weights[range.clone()].as_mut_bytes();
                self.window.local().read(size_of::<f32>() * range.start, bytes)?;
            }
        }
        Ok(())
    }

    /// Returns when every trainer has called it.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.window.team().barrier()
    }

    /// Ends the window. Collective.
    pub(crate) fn close(self) -> Result<()> {
        self.window.close()
    }

    /// The other trainers; each one begins with another.
    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, size) = (self.rank(), self.size());
        (1..size).map(move |distance| (rank + distance) % size)
    }

    fn tell(&self, kind: Kind) -> Result<()> {
        let signal = self.signal(kind, self.rank());
        self.others().try_for_each(|to| self.window.send_signal(to, signal, 1))
    }

    fn wait(&mut self, kind: Kind) -> Result<()> {
        self.waits[kind as usize] += 1;
        let deadline = Deadline::after(self.window.team().timeout());
        for from in self.others() {
            let signal = self.signals.signal(self.signal(kind, from))?;
            let waited = signal.wait_at_least(self.waits[kind as usize], deadline.remaining());
            waited.map_err(|error| match error {
                Error::Expired { .. } => error.at_rank(from),
                other => other,
            })?;
        }
        Ok(())
    }

    /// The signal of a trainer.
    fn signal(&self, kind: Kind, from: Rank) -> u32 {
        kind as u32 * self.size() + from
    }

    fn slot_of(&self, from: Rank, to: Rank) -> u64 {
        slot_of(self.len, &self.owned, from, to)
    }
}

/// Where a trainer puts its loss and its gradients at another.
fn slot_of(len: usize, owned: &[Vec<Range<usize>>], from: Rank, to: Rank) -> u64 {
    (size_of::<f32>() * len + from as usize * slot(&owned[to as usize])) as u64
}

/// The size of a loss and the gradients of these weights in bytes.
fn slot(owned: &[Range<usize>]) -> usize {
    LOSS + owned.iter().map(|range| size_of::<f32>() * range.len()).sum::<usize>()
}
