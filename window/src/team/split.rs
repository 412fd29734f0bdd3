//! Teams of a part of the ranks.

use super::*;

impl Team {
    /// Splits the team: ranks with the same color form a new one, in the order of their keys, then of their ranks.
    /// Collective; `None` as color takes part and gets no team.
    ///
    /// # Errors
    /// As for [`TeamBuilder::build`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        self.block_on("split", self.split_async(color, key))?
    }

    /// The async form of [`Team::split`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// None: the other members wait for this one.
    pub async fn split_async(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        const OPERATION: &str = "split";
        let until = self.until();
        let number = self.0.splits.fetch_add(1, Ordering::Relaxed);
        let store = self.0.store.prefix(&format!("split/{number}"));
        let mine = match color {
            Some(color) => format!("{color} {key}"),
            None => "none".into(),
        };
        store.set_async(&format!("{}", self.rank()), mine.as_bytes()).await?;
        let said = self.all_say(OPERATION, &store, until).await?;
        let Some(color) = color else { return Ok(None) };
        let mut members = Vec::new();
        for (rank, said) in said.iter().enumerate() {
            let said = String::from_utf8_lossy(said);
            let Some((theirs, key)) = said.split_once(' ') else { continue };
            let malformed =
                |_| Error::Malformed { what: "split record", why: format!("rank {rank} wrote {said:?}") };
            let (theirs, key): (u32, u32) =
                (theirs.parse().map_err(malformed)?, key.parse().map_err(malformed)?);
            if theirs == color {
                members.push((key, rank as Rank));
            }
        }
        members.sort_unstable();
        let rank = members
            .iter()
            .position(|(_, rank)| *rank == self.rank())
            .ok_or_else(|| Error::invalid(OPERATION, "this rank is not among its own color"))?;
        let meet = Meet {
            context: self.0.context.clone(),
            store: store.prefix(&format!("color/{color}")),
            launch: self
                .0
                .launch
                .as_ref()
                .and_then(|(store, ranks)| Some((store.clone(), *ranks.get(self.rank() as usize)?))),
            server: None,
            rank: rank as Rank,
            size: members.len() as u32,
            epoch: self.epoch(),
            timeout: self.timeout(),
        };
        let place = |rank| members.iter().position(|(_, member)| *member == rank);
        let key = |rank| place(rank).map(|place| format!("rank/{place}"));
        let there = meet.store.clone();
        self.unless_lost(OPERATION, &there, key, until, meet.meet_until(until)).await.map(Some)
    }
}
