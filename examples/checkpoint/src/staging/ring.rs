//! A stream of messages from one rank into another's part of a window: a ring of bytes with credits.
//!
//! The sender puts messages one behind the other and *announces* them with one signal, so that the receiver is woken once
//! for many. The receiver *frees* what it no longer needs with a signal back. Both signals count bytes of the stream, for
//! ever; where a byte lies follows from its number alone.

use std::sync::Arc;
use std::time::Duration;

use transom::{Rank, Result, Signal, Slice, Window};

use super::message::{Header, PAGE};

/// Where a ring lies, and which signals belong to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    /// Its place in the receiver's part, in bytes.
    pub(super) offset: u64,
    /// Its size in bytes: at least that of two of the largest messages.
    pub(super) size: u64,
    /// The largest payload of a message, in bytes.
    pub(super) block: u64,
    /// The receiver's signal that counts announced bytes.
    pub(super) announced: u32,
    /// The sender's signal that counts freed bytes.
    pub(super) freed: u32,
}

impl Ring {
    /// Where a message begins when the stream has come to `position`: there, or at the ring's start where less than a whole
    /// message is left before its end. So no message wraps, and the receiver need not know how large the next one is.
    fn next(&self, position: u64) -> u64 {
        let left = self.size - position % self.size;
        if left < PAGE as u64 + self.block { position + left } else { position }
    }

    fn place(&self, position: u64) -> u64 {
        self.offset + position % self.size
    }
}

/// The bytes of a message that is sent by async code.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    /// A few bytes, copied in the call.
    Borrowed(&'a [u8]),
    /// Any number of bytes, in pieces.
    Registered(Vec<Slice>),
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender {
    window: Arc<Window>,
    to: Rank,
    ring: Ring,
    freed: Signal,
    /// What was put.
    position: u64,
    /// What was announced of it.
    announced: u64,
}

impl Sender {
    pub(super) fn new(window: Arc<Window>, to: Rank, ring: Ring) -> Result<Self> {
        let freed = window.signals_from(&[to])?.signal(ring.freed)?;
        Ok(Self { window, to, ring, freed, position: 0, announced: 0 })
    }

    pub(super) fn to(&self) -> Rank {
        self.to
    }

    /// Where the next message goes: its place in the receiver's part, where the stream is behind it, and how much has to be
    /// freed before.
    fn claim(&self, header: Header) -> Claim {
        let start = self.ring.next(self.position);
        let end = start + PAGE as u64 + u64::from(header.size).next_multiple_of(PAGE as u64);
        Claim { place: self.ring.place(start), end, freed: end.saturating_sub(self.ring.size) }
    }

    /// Puts a message, its payload in pieces. Returns when its bytes may be changed; waits for the receiver where the ring is
    /// full.
    ///
    /// # Errors
    /// Those of the transport; [`transom::Error::Expired`] when the receiver frees nothing for so long. The message was not
    /// sent then, and the next one takes its place.
    pub(super) fn send<'a>(
        &mut self,
        header: Header,
        payload: impl IntoIterator<Item = &'a [u8]>,
        timeout: Duration,
    ) -> Result<()> {
        let claim = self.claim(header);
        if claim.freed > self.freed.value() {
            // The receiver has to know of what is there before it can free it.
            self.announce()?;
            self.freed.wait_at_least(claim.freed, timeout)?;
        }
        let mut at = claim.place + PAGE as u64;
        for bytes in payload {
            self.window.put(self.to, at, bytes)?;
            at += bytes.len() as u64;
        }
        self.window.put(self.to, claim.place, &header.to_bytes())?;
        self.position = claim.end;
        Ok(())
    }

    /// The async form of [`Sender::send`], from registered memory: no byte is copied on this side.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// A message whose future was dropped was not sent.
    pub(super) async fn send_async(
        &mut self,
        header: Header,
        payload: Payload<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let claim = self.claim(header);
        if claim.freed > self.freed.value() {
            self.announce_async().await?;
            self.freed.wait_at_least_async(claim.freed, timeout).await?;
        }
        let part = self.window.part(self.to)?;
        let mut at = claim.place + PAGE as u64;
        let mut under_way = Vec::new();
        match payload {
            Payload::Borrowed(bytes) => part.with_room(|| self.window.put(self.to, at, bytes)).await?,
            Payload::Registered(slices) => {
                for slice in slices {
                    let size = slice.size() as u64;
                    let put = || self.window.put_from(self.to, at, slice.clone());
                    under_way.push(part.with_room(put).await?);
                    at += size;
                }
            }
        }
        part.with_room(|| self.window.put(self.to, claim.place, &header.to_bytes())).await?;
        for request in under_way {
            request.await?;
        }
        self.position = claim.end;
        Ok(())
    }

    /// Tells the receiver of everything that was put.
    pub(super) fn announce(&mut self) -> Result<()> {
        if self.announced < self.position {
            self.window.send_signal(self.to, self.ring.announced, self.position - self.announced)?;
            self.announced = self.position;
        }
        Ok(())
    }

    /// The async form of [`Sender::announce`].
    pub(super) async fn announce_async(&mut self) -> Result<()> {
        let window = self.window.clone();
        window.part(self.to)?.with_room(|| self.announce()).await
    }
}

struct Claim {
    place: u64,
    end: u64,
    freed: u64,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Receiver {
    window: Arc<Window>,
    from: Rank,
    ring: Ring,
    announced: Signal,
    /// What was received.
    position: u64,
    /// What was freed of it.
    freed: u64,
}

/// A received message. Its bytes stay where they are until [`Receiver::free`] is told its end.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) header: [u8; Header::SIZE],
    /// Room for the largest payload.
    pub(super) payload: Slice,
    start: u64,
}

impl Received {
    /// Where the stream has come to behind this message, of which `size` bytes are payload.
    pub(super) fn end(&self, size: u32) -> u64 {
        self.start + PAGE as u64 + u64::from(size).next_multiple_of(PAGE as u64)
    }
}

impl Receiver {
    pub(super) fn new(window: Arc<Window>, from: Rank, ring: Ring) -> Result<Self> {
        let announced = window.signals_from(&[from])?.signal(ring.announced)?;
        Ok(Self { window, from, ring, announced, position: 0, freed: 0 })
    }

    /// Whether a message is there.
    pub(super) fn is_ready(&self) -> bool {
        self.announced.value() > self.position
    }

    /// Waits for a message and looks at it; [`Receiver::advance`] goes past it.
    ///
    /// # Errors
    /// [`transom::Error::Expired`]; [`transom::Error::Failed`] when the sender failed and everything that it had announced
    /// was received.
    pub(super) fn receive(&self, timeout: Duration) -> Result<Received> {
        self.announced.wait_at_least(self.position + 1, timeout)?;
        self.look()
    }

    /// The async form of [`Receiver::receive`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn receive_async(&self, timeout: Duration) -> Result<Received> {
        self.announced.wait_at_least_async(self.position + 1, timeout).await?;
        self.look()
    }

    fn look(&self) -> Result<Received> {
        let start = self.ring.next(self.position);
        let place = self.ring.place(start) as usize;
        let mut header = [0; Header::SIZE];
        self.window.local().read(place, &mut header)?;
        let payload = place + PAGE;
        let payload = self.window.local().slice(payload..payload + self.ring.block as usize)?;
        Ok(Received { header, payload, start })
    }

    /// Goes on behind a message that ends at `end`.
    pub(super) fn advance(&mut self, end: u64) {
        self.position = end;
    }

    /// The async form of [`Receiver::free`].
    pub(super) async fn free_async(&mut self, end: u64) -> Result<()> {
        let window = self.window.clone();
        window.part(self.from)?.with_room(|| self.free(end)).await
    }

    /// Gives everything before `end` back to the sender.
    pub(super) fn free(&mut self, end: u64) -> Result<()> {
        self.window.send_signal(self.from, self.ring.freed, end - self.freed)?;
        self.freed = end;
        Ok(())
    }
}
