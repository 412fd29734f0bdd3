//! The trainer's end: puts a shard into a writer's staging ring and goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use transom::{Rank, Signal, Slice};

use super::message::{Header, Kind};
use super::ring::{Payload, Sender};
use super::{Note, Role, Staging, Told};
use crate::plan::{Block, Plan};
use crate::{Error, Layout, Result};

/// How often a wait looks whether it is still worth waiting for.
const GLANCE: Duration = Duration::from_millis(50);

/// A save whose bytes were staged: they may be changed.
#[derive(Debug, Clone)]
pub struct Staged {
    /// The writer that has them.
    pub writer: Rank,
    /// The writers that failed meanwhile, and how: this one took their place.
    pub lost: Vec<(Rank, Arc<transom::Error>)>,
    /// How long the call took.
    pub blocked: Duration,
}

/// Saves one trainer's shard, step after step.
#[derive(Debug)]
pub struct Saver {
    staging: Staging,
    plan: Plan,
    /// The ways to the writers that are left, the one in use first.
    senders: std::collections::VecDeque<Sender>,
    changed: Signal,
    timeout: Duration,
}

impl Saver {
    /// Makes the trainer's end of the staging window, for its shard of a layout.
    ///
    /// # Errors
    /// [`Error::Invalid`] on a rank that is no trainer, and for a layout that cannot be saved.
    pub fn new(staging: &Staging, layout: &Layout) -> Result<Self> {
        let roles = staging.roles;
        let Role::Trainer(trainer) = roles.role(staging.team().rank()) else {
            let why = format!("rank {} is a writer, only trainers save", staging.team().rank());
            return Err(Error::invalid("rank", why));
        };
        let plan = staging.plan(layout, trainer)?;
        let senders = roles
            .writers_of(trainer)
            .map(|rank| {
                Sender::new(staging.window.clone(), rank, staging.ring(rank - roles.trainers, trainer))
            })
            .collect::<transom::Result<_>>()?;
        let writers: Vec<Rank> = (roles.trainers..roles.ranks()).collect();
        let changed = staging.window.signals_from(&writers)?.signal(staging.changed())?;
        let timeout = staging.team().timeout();
        Ok(Self { staging: staging.clone(), plan, senders, changed, timeout })
    }

    /// Stages the shard of a step. `part` gives the bytes of a part of the shard, by its place in [`Layout::shard`]; `note`
    /// is kept with the checkpoint.
    ///
    /// Returns when the bytes may be changed: they are in the writer's memory, not yet on its disk. Waits where the ring is
    /// full. When the writer fails, everything is staged again with the next standby.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a note larger than a block; [`Error::NoWriter`] when no writer is left;
    /// [`transom::Error::Expired`] when the writer freed nothing for as long as the team's deadline: the save is given up, and
    /// the next one may be tried.
    pub fn save<'a>(&mut self, step: u64, note: &Note, part: impl Fn(usize) -> &'a [u8]) -> Result<Staged> {
        let note = self.encode(note)?;
        let since = Instant::now();
        let mut lost = Vec::new();
        loop {
            let Some(sender) = self.senders.front_mut() else { return Err(Error::NoWriter { step, lost }) };
            let stage = |sender: &mut Sender| {
                for (header, block) in messages(&self.plan, step, note.len()) {
                    match block {
                        None => sender.send(header, [&note[..]], self.timeout)?,
                        Some(block) => {
                            let payload = block.pieces().map(|piece| &part(piece.part)[piece.bytes]);
                            sender.send(header, payload, self.timeout)?;
                        }
                    }
                }
                sender.announce()
            };
            match stage(sender) {
                Ok(()) => return Ok(Staged { writer: sender.to(), lost, blocked: since.elapsed() }),
                Err(error) => self.give_up(error, &mut lost)?,
            }
        }
    }

    /// The async form of [`Saver::save`], from registered memory.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// A save whose future was dropped is given up when the next one begins.
    pub async fn save_async(
        &mut self,
        step: u64,
        note: &Note,
        part: impl Fn(usize) -> Slice,
    ) -> Result<Staged> {
        let note = self.encode(note)?;
        let since = self.staging.team().context().clock().now();
        let mut lost = Vec::new();
        loop {
            let Some(sender) = self.senders.front_mut() else { return Err(Error::NoWriter { step, lost }) };
            let stage = async {
                for (header, block) in messages(&self.plan, step, note.len()) {
                    let payload = match block {
                        None => Payload::Borrowed(&note),
                        Some(block) => {
                            let slices = block.pieces().map(|piece| part(piece.part).slice(piece.bytes));
                            Payload::Registered(slices.collect::<transom::Result<_>>()?)
                        }
                    };
                    sender.send_async(header, payload, self.timeout).await?;
                }
                sender.announce_async().await
            };
            match stage.await {
                Ok(()) => {
                    let now = self.staging.team().context().clock().now();
                    return Ok(Staged { writer: sender.to(), lost, blocked: now - since });
                }
                Err(error) => self.give_up(error, &mut lost)?,
            }
        }
    }

    /// The text of a note.
    fn encode(&self, note: &Note) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(note).map_err(|e| Error::invalid("note", e.to_string()))?;
        if text.len() as u64 > self.staging.block {
            let why = format!(
                "{} bytes as text, at most a block of {} bytes is kept",
                text.len(),
                self.staging.block
            );
            return Err(Error::invalid("note", why));
        }
        Ok(text)
    }

    /// Goes on to the next writer, if the error says that this one is gone.
    fn give_up(&mut self, error: transom::Error, lost: &mut Vec<(Rank, Arc<transom::Error>)>) -> Result<()> {
        match self.senders.front().map(Sender::to) {
            Some(writer) if self.staging.team().failure(writer).is_some() => {
                lost.push((writer, Arc::new(error)));
                self.senders.pop_front();
                Ok(())
            }
            _ => Err(error.into()),
        }
    }

    /// The newest step whose checkpoint is known to be durable.
    ///
    /// # Errors
    /// None on a window that is open.
    pub fn durable(&self) -> Result<Option<u64>> {
        self.staging.told(Told::Durable)
    }

    /// Waits until the checkpoint of `step`, or of a later one, is durable.
    ///
    /// # Errors
    /// [`Error::Abandoned`] when there will be none; [`Error::WriterLost`] when this trainer's writer fails before: its last
    /// saves may be gone with it; [`Error::NoWriter`]; [`transom::Error::Expired`].
    pub fn wait_durable(&self, step: u64, timeout: Duration) -> Result<u64> {
        let until = Instant::now() + timeout;
        loop {
            let told = self.changed.value();
            if let Some(durable) = self.durable()?.filter(|durable| *durable >= step) {
                return Ok(durable);
            }
            if self.staging.told(Told::Abandoned)?.is_some_and(|abandoned| abandoned >= step) {
                return Err(Error::Abandoned { step });
            }
            let writer = self.senders.front().map(Sender::to);
            match writer {
                Some(writer) if self.staging.team().failure(writer).is_none() => {}
                Some(writer) => return Err(Error::WriterLost { writer, step }),
                None => return Err(Error::NoWriter { step, lost: Vec::new() }),
            }
            // Another writer may be the one that tells, so that the wait itself does not end when this one fails.
            let left = until.saturating_duration_since(Instant::now());
            match self.changed.wait_at_least(told + 1, left.min(GLANCE)) {
                Err(transom::Error::Expired { .. }) if left > GLANCE => {}
                // Every writer has failed: this trainer's is told above.
                Err(transom::Error::Failed(_)) => {}
                changed => drop(changed?),
            }
        }
    }

    /// Tells every writer that nothing more will come, and returns when they can know.
    ///
    /// # Errors
    /// None for writers that failed.
    pub fn end(mut self) -> Result<()> {
        let header = Header { kind: Kind::End, index: 0, size: 0, step: 0 };
        for sender in &mut self.senders {
            let told = sender
                .send(header, [], self.timeout)
                .and_then(|()| sender.announce())
                .and_then(|()| self.staging.window.flush(sender.to()));
            if let Err(error) = told
                && self.staging.team().failure(sender.to()).is_none()
            {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The async form of [`Saver::end`].
    ///
    /// # Errors
    /// As there.
    pub async fn end_async(mut self) -> Result<()> {
        let header = Header { kind: Kind::End, index: 0, size: 0, step: 0 };
        for sender in &mut self.senders {
            let told = async {
                sender.send_async(header, Payload::Borrowed(&[]), self.timeout).await?;
                sender.announce_async().await?;
                self.staging.window.flush_async(sender.to()).await
            };
            if let Err(error) = told.await
                && self.staging.team().failure(sender.to()).is_none()
            {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// The messages of a save: the beginning, whose payload is a note of `note` bytes, and each block.
fn messages(plan: &Plan, step: u64, note: usize) -> impl Iterator<Item = (Header, Option<Block<'_>>)> {
    let begin = Header { kind: Kind::Begin, index: 0, size: note as u32, step };
    let blocks = plan.blocks().enumerate().map(move |(index, block)| {
        let header = Header { kind: Kind::Block, index: index as u32, size: block.size as u32, step };
        (header, Some(block))
    });
    std::iter::once((begin, None)).chain(blocks)
}
