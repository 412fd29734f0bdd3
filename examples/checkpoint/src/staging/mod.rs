//! The staging window: trainers put their shards there and go on; writers take them out at their own pace.
//!
//! Each trainer has a ring of bytes in the part of each writer that may write for it, and sends a stream of messages through
//! it: a save begins, its blocks, the next save. The size of the rings bounds the memory of staging whatever the sizes of
//! the shards are; a ring that holds a whole shard lets its trainer go on without waiting for any disk.
//!
//! | file | what |
//! |---|---|
//! | `roles.rs` | which rank does what |
//! | `ring.rs` | a stream of messages with credits |
//! | `message.rs` | the headers |
//! | `saver.rs` | the trainer's end |
//! | `inbox.rs` | the writer's end |

mod inbox;
mod message;
mod ring;
mod roles;
mod saver;

use std::sync::Arc;
use std::time::Duration;

use transom::{Atomic, Host, Rank, Team, Window};

pub use self::inbox::{Event, Inbox};
use self::message::PAGE;
use self::ring::Ring;
pub use self::roles::{Role, Roles};
pub use self::saver::{Saver, Staged};
use crate::plan::Plan;
use crate::{Error, Layout, Result};

/// What a trainer wants kept with a checkpoint, beside its bytes.
pub type Note = serde_json::Map<String, serde_json::Value>;

/// What may have become of a save. Its value is where a trainer keeps the newest step of which that is so, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Its checkpoint is durable.
    Durable = 0,
    /// There will be no checkpoint of it: its writer says why.
    Abandoned = 8,
}

/// The staging window of a team. A handle: clones are the same window.
#[derive(Debug, Clone)]
pub struct Staging {
    window: Arc<Window>,
    roles: Roles,
    ring: u64,
    block: u64,
}

impl Staging {
    /// Makes the staging window; collective. `ring` is the memory in bytes that a writer keeps for each of its trainers, and
    /// `block` the largest payload of a message: all ranks say the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] for roles that do not make up the team, or a ring too small for two blocks; those of
    /// [`transom::WindowBuilder::build`].
    pub async fn build_async(team: &Team, roles: Roles, ring: u64, block: usize) -> Result<Self> {
        if roles.ranks() != team.size() || roles.trainers == 0 || roles.writers == 0 {
            let why = format!(
                "{} trainers, {} writers and {} standbys in a team of {} ranks: at least one of each of the first two, and the \
                 sum, is expected",
                roles.trainers,
                roles.writers,
                roles.standbys,
                team.size()
            );
            return Err(Error::invalid("roles", why));
        }
        let message = block.next_multiple_of(PAGE) + PAGE;
        let ring = ring.next_multiple_of(PAGE as u64);
        if ring < 2 * message as u64 {
            let why = format!("{ring} bytes, two blocks with their headers are {} bytes", 2 * message);
            return Err(Error::invalid("staging ring", why));
        }
        let builder = Window::builder(team);
        let builder = match roles.role(team.rank()) {
            Role::Trainer(_) => builder.size(PAGE).signals(roles.writers + roles.standbys + 1),
            Role::Writer(writer) => {
                let size = roles.trainers_of(writer).len().max(1) as u64 * ring;
                // What a standby never needs, it never takes.
                let host = Host::builder(size as usize).sparse(writer >= roles.writers).build()?;
                builder.region(&team.context().register(host, roles.trainers)?)
            }
        };
        let window = Arc::new(builder.build_async().await?);
        Ok(Self { window, roles, ring, block: block as u64 })
    }

    /// The blocking form of [`Staging::build_async`].
    ///
    /// # Errors
    /// As there.
    pub fn build(team: &Team, roles: Roles, ring: u64, block: usize) -> Result<Self> {
        let build = Self::build_async(team, roles, ring, block);
        // Its parts have deadlines of their own.
        team.context().block_on("build the staging window", Duration::MAX, build)?
    }

    /// Who does what.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// The team that it is a window of.
    #[must_use]
    pub fn team(&self) -> &Team {
        self.window.team()
    }

    /// The trainers that may stage with this rank, a writer or a standby.
    #[must_use]
    pub fn trainers(&self) -> Vec<u32> {
        match self.roles.role(self.team().rank()) {
            Role::Trainer(_) => Vec::new(),
            Role::Writer(writer) => self.roles.trainers_of(writer),
        }
    }

    /// The memory in bytes with which a whole shard can be staged, whichever it is: for [`Staging::build`].
    ///
    /// # Errors
    /// As for [`Plan::new`].
    pub fn ring_for(layout: &Layout, roles: Roles, block: usize) -> Result<u64> {
        let mut largest = 0;
        for trainer in 0..roles.trainers as usize {
            let plan = Plan::new(layout, &layout.shard(trainer, roles.trainers as usize), block)?;
            largest = largest.max(plan.blocks().map(|b| (PAGE + b.size.next_multiple_of(PAGE)) as u64).sum());
        }
        // The message that begins the save, and the end of the ring, where no message may wrap.
        let room = 2 * (block.next_multiple_of(PAGE) + PAGE) as u64;
        Ok(largest + room)
    }

    fn plan(&self, layout: &Layout, trainer: u32) -> Result<Plan> {
        let shard = layout.shard(trainer as usize, self.roles.trainers as usize);
        Plan::new(layout, &shard, self.block as usize)
    }

    fn ring(&self, writer: u32, trainer: u32) -> Ring {
        Ring {
            offset: self.roles.place(writer, trainer) * self.ring,
            size: self.ring,
            block: self.block.next_multiple_of(PAGE as u64),
            announced: trainer,
            freed: writer,
        }
    }

    /// Tells a trainer what has become of the save of a step.
    ///
    /// # Errors
    /// Those of the transport: the trainer may have failed.
    pub fn tell(&self, trainer: Rank, told: Told, step: u64) -> Result<()> {
        // Not put: a writer that was given up may still come with an older one.
        self.window.atomic(trainer, Atomic::Max, 8, told as u64, step.saturating_add(1), 0)?;
        Ok(self.window.send_signal(trainer, self.changed(), 1)?)
    }

    /// The newest step of which this trainer was told so. Kept as one more, so that step 0 is told from none.
    fn told(&self, told: Told) -> Result<Option<u64>> {
        Ok(self.window.local().load(told as usize)?.checked_sub(1))
    }

    /// The signal of a trainer that counts what it was told.
    fn changed(&self) -> u32 {
        self.roles.writers + self.roles.standbys
    }
}
