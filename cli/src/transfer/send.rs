//! The side that has the file.

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use transom::{
    Access, Context, Error, File, Incarnation, MemoryRegion, PeerRegion, RemoteRegion, Request, Result,
};

use super::control::{self, ANSWER, VERDICT};
use super::offer::{Offer, check_name};
use super::reply::Reply;
use super::{Arrived, HEAR, begin, checksum, patience};

/// Puts in flight at once.
const FLYING: usize = 4;
/// Smallest, first and largest put, in bytes: a slow way gets small ones, so that there is progress to see.
const SMALLEST: usize = 64 << 10;
const FIRST: usize = 1 << 20;
const LARGEST: usize = 8 << 20;
/// Shortest and longest pause between two looks for a reply.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// A file to send.
#[derive(Debug)]
pub(super) struct Source {
    name: String,
    /// `None`: it is empty.
    file: Option<File>,
}

impl Source {
    /// Maps the file, to be read.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no regular file, or has a name that no receiver takes; as for [`File::open`].
    pub(super) fn open(path: &Path) -> Result<Self> {
        let invalid = |why: &str| Error::invalid("send", format!("{} {why}", path.display()));
        let about = std::fs::metadata(path).map_err(|e| Error::io(format!("open {}", path.display()), e))?;
        if !about.is_file() {
            return Err(invalid("is not a regular file"));
        }
        let name = path.file_name().ok_or_else(|| invalid("has no name"))?;
        let name =
            name.to_str().ok_or_else(|| invalid("has a name that is not UTF-8 (send a link to it)"))?;
        check_name(name)?;
        let file = if about.len() == 0 { None } else { Some(File::open(path)?) };
        Ok(Self { name: name.to_owned(), file })
    }
}

/// Sends a file into the region of the receiver that `address` describes. Returns when the receiver has kept it.
///
/// # Errors
/// [`Error::Auth`] for another pass phrase; [`Error::Refused`] with the receiver's reason; [`Error::Expired`] without
/// progress for `timeout`; [`Error::Failed`] when the receiver is gone.
pub(super) fn send(
    context: &Context,
    address: &RemoteRegion,
    source: Source,
    timeout: Duration,
    bar: &ProgressBar,
) -> Result<Arrived> {
    let sending = Sending::connect(context, address, timeout, bar)?;
    let Source { name, file } = source;
    let region = file.map(|file| context.register(file, 0)).transpose()?;
    let size = region.as_ref().map_or(0, |r| r.size() as u64);

    // All of it before any of it is sent: whatever changes from now on is found by the receiver.
    begin(bar, "reading", &name, size);
    let checksum = checksum(region.as_ref(), |done| {
        bar.set_position(done);
        Ok(())
    })?;
    let offer = Offer { name, size, checksum };
    let sent = sending.send(context.incarnation(), &offer, region.as_ref());
    bar.finish_and_clear();
    sent.map(|()| Arrived { name: offer.name, size, checksum })
}

/// A connection to a receiver's control region.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    control: PeerRegion,
    timeout: Duration,
    bar: &'a ProgressBar,
    /// The receiver is ours, and waits for what we do.
    held: Cell<bool>,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.held.get() {
            self.tell(control::GIVEN_UP);
        }
    }
}

impl<'a> Sending<'a> {
    /// Connects, which proves the pass phrase.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address is not of a receiver; as for [`Context::connect`].
    pub(super) fn connect(
        context: &Context,
        address: &RemoteRegion,
        timeout: Duration,
        bar: &'a ProgressBar,
    ) -> Result<Self> {
        if address.size != control::SIZE as u64
            || address.signals != control::SIGNALS
            || address.access != Access::ALL
        {
            return Err(Error::invalid("send", "the address is not one of `transom recv`"));
        }
        let control = context.connect(address)?.open(address)?.with_timeout(timeout);
        Ok(Self { control, timeout, bar, held: Cell::new(false) })
    }

    /// Takes the receiver for us alone, and puts the offer there.
    ///
    /// # Errors
    /// [`Error::Invalid`] when another sender has it; as for [`PeerRegion::put`].
    pub(super) fn offer(&self, us: Incarnation, offer: &Offer) -> Result<()> {
        if self.control.compare_swap(control::CLAIM as u64, 0, us.as_u64())? != 0 {
            return Err(Error::invalid("send", "another sender was here first (start `transom recv` again)"));
        }
        self.held.set(true);
        self.control.put_signal(control::OFFER as u64, &offer.to_bytes(), control::OFFERED, 1)
    }

    /// Offers and sends what the region holds. Returns when the receiver has kept it.
    ///
    /// # Errors
    /// As for [`send`].
    pub(super) fn send(&self, us: Incarnation, offer: &Offer, region: Option<&MemoryRegion>) -> Result<()> {
        self.offer(us, offer)?;
        let agreed = self.answer(offer.size)?;
        if let Some(region) = region {
            begin(self.bar, "sending", &offer.name, offer.size);
            if let Err(error) = self.put(region, &agreed) {
                // The receiver may have said why before it let go of the memory.
                return Err(self
                    .look(VERDICT)
                    .ok()
                    .flatten()
                    .and_then(|r| r.agreed().err())
                    .unwrap_or(error));
            }
        }
        self.control.signal(control::COMPLETE, 1)?;
        self.verdict(offer)
    }

    /// Waits until the receiver has kept the file.
    ///
    /// # Errors
    /// [`Error::Refused`]; as for [`send`].
    pub(super) fn verdict(&self, offer: &Offer) -> Result<()> {
        begin(self.bar, "checking", &offer.name, offer.size);
        self.reply("wait for the verdict", VERDICT, offer.size, |checked| self.bar.set_position(checked))
            .map(drop)
    }

    /// Waits for the descriptor of where to put so many bytes.
    ///
    /// # Errors
    /// [`Error::Refused`]; as for [`send`].
    pub(super) fn answer(&self, size: u64) -> Result<Vec<u8>> {
        self.reply("wait for the answer", ANSWER, size, |_| ())
    }

    /// Puts all of the region where the receiver has said.
    fn put(&self, region: &MemoryRegion, agreed: &[u8]) -> Result<()> {
        let remote = RemoteRegion::from_bytes(agreed)?;
        if remote.size != region.size() as u64 {
            return Err(Error::Malformed {
                what: "reply",
                why: format!("it has room for {} bytes, the file has {}", remote.size, region.size()),
            });
        }
        let target = self.control.peer().open(&remote)?.with_timeout(self.timeout);
        let mut flying: VecDeque<(Request, usize, Instant)> = VecDeque::with_capacity(FLYING);
        let (mut at, mut size) = (0, FIRST);
        loop {
            if flying.len() < FLYING && at < region.size() {
                let now = size.min(region.size() - at);
                let begun = Instant::now();
                flying.push_back((target.put_from(at as u64, region.slice(at..at + now)?)?, now, begun));
                at += now;
                continue;
            }
            let Some((request, delivered, begun)) = flying.pop_front() else { return Ok(()) };
            request.wait_timeout(self.timeout)?;
            self.control.signal(control::DELIVERED, delivered as u64)?;
            self.bar.inc(delivered as u64);
            size = next_size(size, begun.elapsed(), self.timeout);
        }
    }

    /// Waits for a reply of the receiver, and tells it that we know. `checked` is told how far it is.
    fn reply(
        &self,
        operation: &'static str,
        place: control::Place,
        size: u64,
        mut checked: impl FnMut(u64),
    ) -> Result<Vec<u8>> {
        let patience = patience(self.timeout, size);
        let [mut pause, longest] = PAUSES;
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            if let Some(reply) = self.look(place)? {
                let agreed = reply.agreed();
                if agreed.is_err() || place.word == VERDICT.word {
                    self.held.set(false);
                    self.tell(control::KNOWN);
                }
                return agreed;
            }
            let now = self.word(control::CHECKED)?;
            if now != seen {
                (seen, since, pause) = (now, Instant::now(), PAUSES[0]);
                checked(now);
            }
            let Some(left) = patience.checked_sub(since.elapsed()) else {
                return Err(Error::Expired {
                    operation,
                    rank: None,
                    after: patience,
                    detail: "the receiver does not reply".into(),
                    outcome: None,
                });
            };
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(longest);
        }
    }

    /// Tells the receiver a last thing. That it may have left already changes nothing.
    fn tell(&self, signal: u32) {
        let control = self.control.clone().with_timeout(HEAR.min(self.timeout));
        let _ = control.signal(signal, 1).and_then(|()| control.flush());
    }

    /// The reply in this place, if it is there.
    fn look(&self, place: control::Place) -> Result<Option<Reply>> {
        if self.word(place.word)? == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; place.size];
        self.control.get(place.at as u64, &mut bytes)?;
        Reply::from_bytes(&bytes).map(Some)
    }

    fn word(&self, at: usize) -> Result<u64> {
        let mut word = [0; 8];
        self.control.get(at as u64, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

/// The size of the next put after one that took so long: small enough that several end within the deadline.
fn next_size(size: usize, took: Duration, timeout: Duration) -> usize {
    if took > timeout / 8 {
        (size / 2).max(SMALLEST)
    } else if took < timeout / 32 {
        (size * 2).min(LARGEST)
    } else {
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_shrink_on_a_slow_way_and_grow_on_a_fast_one_within_their_bounds() {
        let timeout = Duration::from_secs(64);
        let after = |took, steps| (0..steps).fold(FIRST, |size, _| next_size(size, took, timeout));
        assert_eq!(after(Duration::from_secs(1), 3), LARGEST);
        assert_eq!(after(Duration::from_secs(1), 30), LARGEST);
        assert_eq!(after(Duration::from_secs(9), 1), FIRST / 2);
        assert_eq!(after(Duration::from_secs(9), 30), SMALLEST);
        assert_eq!(after(Duration::from_secs(4), 30), FIRST);
    }
}
