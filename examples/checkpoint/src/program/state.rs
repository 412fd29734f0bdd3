//! What is saved: a network that trains, a model file, or a pattern.

use std::time::Duration;

use transom_checkpoint::{Layout, Part, Target};

use super::pattern;
use crate::Failed;
use crate::train::{Step, Training};

/// A trainer's state.
pub(crate) trait State {
    /// The bytes of each part of this trainer's shard, in the order of [`Layout::shard`].
    fn parts(&self) -> Result<Vec<&[u8]>, Failed>;

    /// Goes one step further. Tells how, where it trains.
    fn step(&mut self) -> Result<Option<Step>, Failed>;

    /// Takes the state of a saved step: `fill` loads the parts of this trainer's shard.
    fn load(&mut self, step: u64, fill: &mut Fill<'_>) -> Result<(), Failed>;

    /// How good it is, from 0 to 1, where that can be said.
    fn accuracy(&self) -> Result<Option<f32>, Failed> {
        Ok(None)
    }

    /// Ends it, together with the other trainers.
    fn close(self: Box<Self>) -> Result<(), Failed> {
        Ok(())
    }
}

/// Loads parts, each into its memory.
pub(crate) type Fill<'a> = dyn FnMut(Vec<(Part, Target<'_>)>) -> Result<(), Failed> + 'a;

impl State for Training {
    fn parts(&self) -> Result<Vec<&[u8]>, Failed> {
        Training::parts(self).iter().map(|part| Ok(self.part(part)?)).collect()
    }

    fn step(&mut self) -> Result<Option<Step>, Failed> {
        Ok(Some(Training::step(self)?))
    }

    fn load(&mut self, step: u64, fill: &mut Fill<'_>) -> Result<(), Failed> {
        Training::load(self, step, |parts| {
            fill(parts.into_iter().map(|(part, into)| (part, into.into())).collect())
        })
    }

    fn accuracy(&self) -> Result<Option<f32>, Failed> {
        Ok(Some(Training::accuracy(self)?))
    }

    fn close(self: Box<Self>) -> Result<(), Failed> {
        Ok(Training::close(*self)?)
    }
}

/// Bytes that were read from somewhere and stay as they are, but for the number of the step if they are a pattern.
pub(crate) struct Fixed {
    layout: Layout,
    parts: Vec<(Part, Vec<u8>)>,
    pattern: bool,
    step: u64,
}

impl Fixed {
    /// Room for a trainer's shard of a model.
    pub(crate) fn zeroed(layout: Layout, shard: usize, shards: usize) -> Self {
        let parts =
            layout.shard(shard, shards).into_iter().map(|part| (part.clone(), vec![0; layout.size(&part)]));
        Self { parts: parts.collect(), layout, pattern: false, step: 0 }
    }

    /// A trainer's shard of a pattern that is another one at each step: see [`pattern::fill`].
    pub(crate) fn pattern(layout: Layout, shard: usize, shards: usize) -> Self {
        let mut fixed = Self { pattern: true, ..Self::zeroed(layout, shard, shards) };
        fixed.draw();
        fixed
    }

    /// Its memory, to be loaded.
    pub(crate) fn targets(&mut self) -> Vec<(Part, Target<'_>)> {
        self.parts.iter_mut().map(|(part, bytes)| (part.clone(), Target::Bytes(bytes))).collect()
    }

    fn draw(&mut self) {
        for (part, bytes) in &mut self.parts {
            pattern::fill(&self.layout, part, self.step, bytes);
        }
    }
}

impl State for Fixed {
    fn parts(&self) -> Result<Vec<&[u8]>, Failed> {
        Ok(self.parts.iter().map(|(_, bytes)| bytes.as_slice()).collect())
    }

    fn step(&mut self) -> Result<Option<Step>, Failed> {
        self.step += 1;
        if self.pattern {
            self.draw();
        } else {
            // What a training step would take: a save has somewhere to hide.
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(None)
    }

    fn load(&mut self, step: u64, fill: &mut Fill<'_>) -> Result<(), Failed> {
        fill(self.targets())?;
        self.step = step;
        Ok(())
    }
}
