//! Which rank does what.

use transom::Rank;

/// How many ranks of a team do what: trainers first, then writers, then standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Ranks that train, each with a shard of the state.
    pub trainers: u32,
    /// Ranks that write what trainers stage: trainer `t` stages with writer `t % writers`.
    pub writers: u32,
    /// Ranks that take the place of a writer that failed.
    pub standbys: u32,
}

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It trains; its number among the trainers is that of its shard.
    Trainer(u32),
    /// It writes; its number among writers and standbys.
    Writer(u32),
}

impl Roles {
    /// How many ranks that makes.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.trainers + self.writers + self.standbys
    }

    /// What a rank does.
    #[must_use]
    pub fn role(&self, rank: Rank) -> Role {
        if rank < self.trainers { Role::Trainer(rank) } else { Role::Writer(rank - self.trainers) }
    }

    /// The ranks that may write a trainer's shard, its own writer first.
    pub(crate) fn writers_of(&self, trainer: u32) -> impl Iterator<Item = Rank> + use<> {
        let first = self.trainers + self.writers;
        std::iter::once(self.trainers + trainer % self.writers).chain(first..self.ranks())
    }

    /// The trainers that may stage with a writer.
    pub(crate) fn trainers_of(&self, writer: u32) -> Vec<u32> {
        let of = *self;
        (0..self.trainers)
            .filter(move |t| of.writers_of(*t).any(|rank| rank == of.trainers + writer))
            .collect()
    }

    /// The place of a trainer's ring among those in a writer's part.
    pub(crate) fn place(&self, writer: u32, trainer: u32) -> u64 {
        if writer < self.writers { u64::from(trainer / self.writers) } else { u64::from(trainer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trainer_has_a_ring_of_its_own_at_its_writer_and_at_every_standby() {
        for (trainers, writers, standbys) in [(1, 1, 0), (2, 1, 1), (5, 2, 1), (3, 3, 2)] {
            let roles = Roles { trainers, writers, standbys };
            for writer in 0..writers + standbys {
                let places: Vec<_> =
                    roles.trainers_of(writer).iter().map(|t| roles.place(writer, *t)).collect();
                assert_eq!(places, (0..places.len() as u64).collect::<Vec<_>>(), "{roles:?} {writer}");
            }
            for trainer in 0..trainers {
                assert_eq!(roles.writers_of(trainer).count() as u32, 1 + standbys);
            }
        }
    }
}
