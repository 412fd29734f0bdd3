//! The writer's end of one trainer's ring.

use std::time::Duration;

use transom::{Rank, Slice};

use super::message::{Header, Kind};
use super::ring::{Received, Receiver};
use super::{Note, Role, Staging};
use crate::plan::Plan;
use crate::{Error, Layout, Result};

/// What came from a trainer.
#[derive(Debug)]
pub enum Event {
    /// A save begins. One that had begun before and is not whole is given up.
    Begin {
        /// Its step.
        step: u64,
        /// What the trainer wants kept with it.
        note: Note,
    },
    /// A block of the save that has begun; they come in the order of the plan.
    Block {
        /// The number of its file in the plan.
        file: usize,
        /// Its number in the file.
        index: usize,
        /// Its bytes, in staging memory, which are the writer's until it frees them.
        bytes: Slice,
        /// Whether it is the last one.
        last: bool,
    },
    /// Nothing more will come.
    End,
}

/// The messages of one trainer.
#[derive(Debug)]
pub struct Inbox {
    trainer: u32,
    plan: Plan,
    /// File, number and size of each block.
    blocks: Vec<(usize, usize, usize)>,
    receiver: Receiver,
    /// The step that has begun and the block that comes next.
    open: Option<(u64, usize)>,
}

impl Inbox {
    /// Makes this writer's end of a trainer's ring.
    ///
    /// # Errors
    /// [`Error::Invalid`] where this rank does not write for that trainer.
    pub fn new(staging: &Staging, layout: &Layout, trainer: u32) -> Result<Self> {
        let roles = staging.roles;
        let rank = staging.team().rank();
        let Role::Writer(writer) = roles.role(rank) else {
            return Err(Error::invalid("rank", format!("rank {rank} is a trainer: nobody stages with it")));
        };
        if !roles.trainers_of(writer).contains(&trainer) {
            return Err(Error::invalid(
                "trainer",
                format!("writer {writer} does not write for trainer {trainer}"),
            ));
        }
        let plan = staging.plan(layout, trainer)?;
        let blocks = plan.blocks().map(|block| (block.file, block.index, block.size)).collect();
        let receiver = Receiver::new(staging.window.clone(), trainer, staging.ring(writer, trainer))?;
        Ok(Self { trainer, plan, blocks, receiver, open: None })
    }

    /// The trainer.
    #[must_use]
    pub fn trainer(&self) -> Rank {
        self.trainer
    }

    /// The files and blocks of its shard.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether something has come.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.receiver.is_ready()
    }

    /// Waits for the next message. With it comes the place of the stream behind it, for [`Inbox::free`].
    ///
    /// # Errors
    /// [`transom::Error::Expired`]; [`transom::Error::Failed`] when the trainer failed; [`Error::Protocol`] for what no
    /// trainer of this layout sends.
    pub fn next(&mut self, timeout: Duration) -> Result<(Event, u64)> {
        let received = self.receiver.receive(timeout)?;
        self.take(&received)
    }

    /// The async form of [`Inbox::next`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next_async(&mut self, timeout: Duration) -> Result<(Event, u64)> {
        let received = self.receiver.receive_async(timeout).await?;
        self.take(&received)
    }

    fn take(&mut self, received: &Received) -> Result<(Event, u64)> {
        let header = Header::from_bytes(&received.header, received.payload.size() as u64)?;
        let payload = received.payload.slice(0..header.size as usize)?;
        let event = match header.kind {
            Kind::Begin => {
                let mut note = vec![0; payload.size()];
                payload.read(0, &mut note)?;
                let note = serde_json::from_slice(&note).map_err(|e| {
                    Error::Protocol(format!("trainer {} sent a note that is none: {e}", self.trainer))
                })?;
                self.open = Some((header.step, 0));
                Event::Begin { step: header.step, note }
            }
            Kind::Block => {
                let index = header.index as usize;
                let expected = self.open.filter(|open| *open == (header.step, index));
                let block = expected
                    .and_then(|_| self.blocks.get(index))
                    .filter(|(.., size)| *size == payload.size());
                let Some((file, number, _)) = block.copied() else {
                    return Err(Error::Protocol(format!(
                        "trainer {} sent block {index} of {} bytes for step {}, expected was {:?}",
                        self.trainer, header.size, header.step, self.open
                    )));
                };
                let last = index + 1 == self.blocks.len();
                self.open = (!last).then_some((header.step, index + 1));
                Event::Block { file, index: number, bytes: payload, last }
            }
            Kind::End => Event::End,
        };
        let end = received.end(header.size);
        self.receiver.advance(end);
        Ok((event, end))
    }

    /// Gives everything before `end` back to the trainer: its bytes may be overwritten from now on. A trainer that is gone
    /// has no use for it.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn free(&mut self, end: u64) -> Result<()> {
        gone_is_free(self.receiver.free(end))
    }

    /// The async form of [`Inbox::free`].
    ///
    /// # Errors
    /// As there.
    pub async fn free_async(&mut self, end: u64) -> Result<()> {
        gone_is_free(self.receiver.free_async(end).await)
    }
}

fn gone_is_free(freed: transom::Result<()>) -> Result<()> {
    match freed {
        Err(transom::Error::Failed(_) | transom::Error::Stale { .. }) => Ok(()),
        freed => Ok(freed?),
    }
}
