//! Who may stand at the door: connections that have not proven the secret yet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::task::AbortHandle;

/// The most connections without proof.
const MOST: usize = 256;
/// The most of them from one address.
const MOST_OF_ONE: usize = 16;

/// The connections without proof, oldest first.
///
/// When there are too many, one has to go so that the new one can stand there: of the same address when that one has too
/// many, first of those that have not shown that they know the secret, and the oldest of these. So a real peer always gets to the
/// door.
#[derive(Debug, Default)]
pub(super) struct Doorstep {
    next: u64,
    guests: BTreeMap<u64, Guest>,
}

#[derive(Debug)]
struct Guest {
    source: IpAddr,
    spoke: bool,
    task: AbortHandle,
}

impl Doorstep {
    /// The ticket of the next guest, for whom there is room now.
    pub(super) fn ticket(&mut self, source: IpAddr) -> u64 {
        let of_one = self.guests.values().filter(|guest| guest.source == source).count();
        if of_one >= MOST_OF_ONE {
            self.turn_away(Some(source));
        } else if self.guests.len() >= MOST {
            self.turn_away(None);
        }
        self.next += 1;
        self.next
    }

    pub(super) fn enter(&mut self, ticket: u64, source: IpAddr, task: AbortHandle) {
        self.guests.insert(ticket, Guest { source, spoke: false, task });
    }

    /// Notes that a guest has said something that takes the secret, though it may be an old recording.
    pub(super) fn spoke(&mut self, ticket: u64) {
        if let Some(guest) = self.guests.get_mut(&ticket) {
            guest.spoke = true;
        }
    }

    pub(super) fn leave(&mut self, ticket: u64) {
        self.guests.remove(&ticket);
    }

    /// Turns the least promising guest away, to free its descriptor.
    pub(super) fn turn_away(&mut self, source: Option<IpAddr>) {
        let of_source = |guest: &Guest| source.is_none_or(|source| guest.source == source);
        let victim = self
            .guests
            .iter()
            .filter(|(_, guest)| of_source(guest))
            .min_by_key(|(ticket, guest)| (guest.spoke, **ticket))
            .map(|(ticket, _)| *ticket);
        if let Some(guest) = victim.and_then(|ticket| self.guests.remove(&ticket)) {
            tracing::debug!(source = %guest.source, "turned away a connection without proof: too many");
            guest.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn the_silent_and_the_oldest_go_first_and_only_those_of_a_greedy_source() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let task = || runtime.spawn(std::future::pending::<()>()).abort_handle();
        let mut doorstep = Doorstep::default();
        let enter = |doorstep: &mut Doorstep, n| {
            let ticket = doorstep.ticket(source(n));
            doorstep.enter(ticket, source(n), task());
            ticket
        };
        let other = enter(&mut doorstep, 0);
        let first = enter(&mut doorstep, 1);
        doorstep.spoke(first);
        let second = enter(&mut doorstep, 1);
        for _ in 2..MOST_OF_ONE {
            enter(&mut doorstep, 1);
        }
        let last = enter(&mut doorstep, 1);
        assert_eq!(doorstep.guests.len(), MOST_OF_ONE + 1);
        assert!(doorstep.guests.contains_key(&first) && doorstep.guests.contains_key(&other));
        assert!(!doorstep.guests.contains_key(&second) && doorstep.guests.contains_key(&last));
        for n in 0..(MOST * 2) {
            enter(&mut doorstep, (n % 200) as u8 + 2);
        }
        assert_eq!(doorstep.guests.len(), MOST);
        assert!(doorstep.guests.contains_key(&first) && !doorstep.guests.contains_key(&other));
    }
}
