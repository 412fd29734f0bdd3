//! The side that has room.

use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use transom::{
    Access, Cause, Context, Error, Failure, Host, Incarnation, MemoryRegion, Outcome, Producers,
    RemoteRegion, Result,
};

use super::control::{self, ANSWER, VERDICT};
use super::offer::{self, Offer};
use super::part::{Part, Place};
use super::reply::Reply;
use super::{Arrived, HEAR, begin, checksum};

/// Waits for one sender.
#[derive(Debug)]
pub(super) struct Receiver {
    context: Context,
    control: MemoryRegion,
}

impl Receiver {
    /// Registers the control region.
    ///
    /// # Errors
    /// As for [`Host::new`] and [`Context::register`].
    pub(super) fn new(context: &Context) -> Result<Self> {
        let control = context.register(Host::new(control::SIZE)?, control::SIGNALS)?;
        Ok(Self { context: context.clone(), control })
    }

    /// What the sender needs, beside the pass phrase.
    ///
    /// # Errors
    /// As for [`MemoryRegion::remote`].
    pub(super) fn address(&self) -> Result<RemoteRegion> {
        self.control.remote(Access::ALL)
    }

    /// Receives one file: waits at most `wait` for a sender, and at most `timeout` without progress.
    ///
    /// # Errors
    /// [`Error::Expired`]; [`Error::Failed`] when the sender is gone; [`Error::Malformed`] for an offer that makes no
    /// sense and a file with another checksum; as for [`Place::create`] and [`Part::keep`]. Nothing of the file is left.
    pub(super) fn receive(
        &self,
        place: &Place,
        wait: Duration,
        timeout: Duration,
        bar: &ProgressBar,
    ) -> Result<Arrived> {
        self.wait(&[(control::OFFERED, 1)], wait)?;
        let mut bytes = [0; offer::SIZE];
        self.control.read(control::OFFER, &mut bytes)?;
        let (offer, part, region) = match self.prepare(&bytes, place) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.refuse(ANSWER, error, timeout)),
        };
        let taken = self.take(&offer, part, region, timeout, bar);
        bar.finish_and_clear();
        match taken {
            Ok(()) => self.tell(VERDICT, &Reply::Yes(Vec::new()), timeout)?,
            Err(error) => return Err(self.refuse(VERDICT, error, timeout)),
        }
        Ok(Arrived { name: offer.name, size: offer.size, checksum: offer.checksum })
    }

    /// Makes and registers the file that is offered.
    fn prepare(
        &self,
        bytes: &[u8; offer::SIZE],
        place: &Place,
    ) -> Result<(Offer, Part, Option<MemoryRegion>)> {
        let offer = Offer::from_bytes(bytes)?;
        let (part, file) = place.create(&offer.name, offer.size)?;
        let region = file.map(|file| self.context.register(file, 0)).transpose()?;
        Ok((offer, part, region))
    }

    /// Takes all of the bytes, checks them and keeps the file.
    fn take(
        &self,
        offer: &Offer,
        part: Part,
        region: Option<MemoryRegion>,
        timeout: Duration,
        bar: &ProgressBar,
    ) -> Result<()> {
        let agreed = match &region {
            Some(region) => region.remote(Access::WRITE)?.to_bytes(),
            None => Vec::new(),
        };
        self.write(ANSWER, &Reply::Yes(agreed))?;
        begin(bar, "receiving", &offer.name, offer.size);
        let mut delivered = 0;
        while self.wait(&[(control::COMPLETE, 1), (control::DELIVERED, delivered + 1)], timeout)? != 0 {
            delivered = self.delivered();
            bar.set_position(delivered);
        }
        begin(bar, "checking", &offer.name, offer.size);
        let found = checksum(region.as_ref(), |done| {
            bar.set_position(done);
            self.control.store(control::CHECKED, done)
        })?;
        if found != offer.checksum {
            return Err(Error::Malformed {
                what: "file",
                why: format!(
                    "crc32c {found:08x} was received, {:08x} was offered: it changed while it was sent (send it again)",
                    offer.checksum
                ),
            });
        }
        part.keep()
    }

    /// Waits until a signal has its value. Returns which.
    ///
    /// # Errors
    /// [`Error::Failed`] when the sender is gone or has given up; [`Error::Expired`].
    fn wait(&self, wanted: &[(u32, u64)], timeout: Duration) -> Result<usize> {
        let (context, control) = (self.context.clone(), self.control.clone());
        let sender = move || control.load(control::CLAIM).ok().and_then(Incarnation::from_u64);
        let producers: Producers = Arc::new({
            let sender = sender.clone();
            move || context.failure_of(sender()?)
        });
        // Last: what has arrived wins.
        let wanted: Vec<_> = wanted.iter().copied().chain([(control::GIVEN_UP, 1)]).collect();
        let signals = self.context.signals(&self.control).with_producers(producers);
        // The numbers of our signals mean nothing to who reads the error.
        let first = signals.wait_any(&wanted, timeout).map_err(|error| match error {
            Error::Failed(failed) => Error::failed("receive", Outcome::NotApplied, failed.failure),
            Error::Expired { after, .. } => Error::Expired {
                operation: "receive",
                rank: None,
                after,
                detail: match sender() {
                    None => "no sender has come".into(),
                    Some(_) => format!("the sender stands still after {} bytes", self.delivered()),
                },
                outcome: None,
            },
            other => other,
        })?;
        if first + 1 < wanted.len() {
            return Ok(first);
        }
        let failure = Failure::new(sender(), Cause::Left, "the sender gave up");
        Err(Error::failed("receive", Outcome::NotApplied, failure))
    }

    /// How many bytes the sender says are here.
    fn delivered(&self) -> u64 {
        self.control.signal(control::DELIVERED).unwrap_or(0)
    }

    fn write(&self, place: control::Place, reply: &Reply) -> Result<()> {
        self.control.write(place.at, &reply.to_bytes(place.size)?)?;
        self.control.store(place.word, 1)
    }

    /// Writes a last reply, and waits until the sender knows it or can no longer hear it.
    fn tell(&self, place: control::Place, reply: &Reply, timeout: Duration) -> Result<()> {
        self.write(place, reply)?;
        let _ = self.wait(&[(control::KNOWN, 1)], HEAR.min(timeout));
        Ok(())
    }

    /// Tells the sender of an error, and gives it back.
    fn refuse(&self, place: control::Place, error: Error, timeout: Duration) -> Error {
        let _ = self.tell(place, &Reply::no(&error), timeout);
        error
    }
}
