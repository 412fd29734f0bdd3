//! What comes in: headers and small payloads through a small buffer, large payloads straight into memory.
#![forbid(unsafe_code)]

use std::io;

use transom_registry::{Error, Result};

use super::frame::{self, Header, Opcode, flag};
use super::memory;
use super::protect::{Check, Seal, Sum};
use super::serve::{Reply, Sink, Target};
use super::socket::Socket;

/// Size of the buffer for headers and small payloads.
const STAGING: usize = 16 << 10;
/// Payloads of at most this size are complete and checked before a byte of them is applied.
const SMALL: u64 = (STAGING - frame::SIZE) as u64;
/// Bytes that are received in one call, so that their checksum finds them in the cache.
const PIECE: u64 = 256 << 10;
/// Bytes that one turn receives.
const TURN: usize = 2 << 20;
/// Room behind a large payload: for the next header.
const BEHIND: usize = 4 << 10;
/// Room in a piece of memory below which a payload goes through the buffer.
const DIRECT: u64 = 16 << 10;

/// The incoming half of a connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    seal: Seal,
    check: Check,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    open: Option<Open>,
    /// A payload that is needed whole.
    whole: Vec<u8>,
    /// The last request that was applied.
    applied: u64,
    /// What the peer may reach here.
    pub(crate) target: Target,
}

/// A frame whose payload is not complete.
#[derive(Debug)]
struct Open {
    header: Header,
    left: u64,
    sum: Sum,
    sink: Sink,
}

/// Why nothing more will come.
#[derive(Debug)]
pub(crate) enum End {
    /// The stream ended.
    Closed,
    /// The system refused.
    Io(i32),
    /// The bytes are not what they should be.
    Broken(String),
    /// The peer's context was closed.
    Left,
}

impl std::convert::From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl std::convert::From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error.raw_os_error().unwrap_or(0))
    }
}

/// What the frames of a turn are told to.
pub(crate) trait Sender {
    /// Where the bytes of an answered get go.
    fn data(&mut self, header: &Header) -> Result<Sink>;
    /// An answer is complete.
    fn answer(&mut self, header: &Header, payload: &[u8]) -> Result<()>;
    /// Answers a request, the last of those that are applied.
    fn reply(&mut self, applied: u64, reply: Reply) -> Result<()>;
    /// The peer needs the connection no longer.
    fn idle(&mut self);
}

/// What a turn brought.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Bytes received.
    pub(crate) moved: usize,
    /// The highest acknowledgement.
    pub(crate) ack: u64,
    /// How many of their requests are applied by now.
    pub(crate) applied: u64,
    /// Somebody waits for ours.
    pub(crate) ack_now: bool,
}

impl Incoming {
    pub(crate) fn new(seal: Seal, check: Check, target: Target) -> Self {
        Self {
            seal,
            check,
            staging: vec![0; STAGING].into(),
            start: 0,
            end: 0,
            open: None,
            whole: Vec::new(),
            applied: 0,
            target,
        }
    }

    /// Receives and applies what is there, in bounds.
    pub(crate) fn turn(&mut self, socket: &Socket, to: &mut impl Sender, turn: &mut Turn) -> Result<(), End> {
        let result = self.receive(socket, to, turn);
        turn.applied = self.applied;
        result
    }

    fn receive(&mut self, socket: &Socket, to: &mut impl Sender, turn: &mut Turn) -> Result<(), End> {
        while turn.moved < TURN {
            let (got, asked) = match self.fill(socket) {
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if got == 0 {
                return Err(End::Closed);
            }
            turn.moved += got;
            while self.step(to, turn)? {}
            if got < asked {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Receives once. Returns how much came and how much there was room for.
    fn fill(&mut self, socket: &Socket) -> io::Result<(usize, usize)> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if let Some(Open { left, sum, sink, .. }) = &mut self.open
                && let Some((exposed, offset, size)) = sink.place((*left).min(PIECE))
                && size >= DIRECT
            {
                let got =
                    memory::receive(socket, exposed, offset, size as usize, &mut self.staging[..BEHIND])?;
                let here = (got as u64).min(size);
                memory::sum(sum, exposed, offset, here as usize)?;
                sink.advance(here);
                *left -= here;
                self.end = got - here as usize;
                // A payload whose rest came short may be all there is for now; what is behind it never is waited for.
                let asked = if here == size { got } else { size as usize };
                return Ok((got, asked));
            }
        } else if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.staging[self.end..];
        let asked = room.len();
        let got = socket.receive(room)?;
        self.end += got;
        Ok((got, asked))
    }

    /// Takes one step with what is in the buffer. `false`: more has to come.
    fn step(&mut self, to: &mut impl Sender, turn: &mut Turn) -> Result<bool, End> {
        let Some(open) = &mut self.open else { return self.begin(to, turn) };
        let taken = open.left.min((self.end - self.start) as u64) as usize;
        let bytes = &self.staging[self.start..self.start + taken];
        if taken > 0 {
            open.sum.add(bytes);
            if matches!(open.sink, Sink::Whole) {
                self.whole.extend_from_slice(bytes);
            } else {
                open.sink.write(bytes);
            }
            open.left -= taken as u64;
            self.start += taken;
        }
        if open.left > 0 {
            return Ok(false);
        }
        let Some(Open { header, sum, sink, .. }) = self.open.take() else { return Ok(false) };
        sum.check(&header)?;
        let mut whole = std::mem::take(&mut self.whole);
        self.finish(header, sink, &whole, to, turn)?;
        whole.clear();
        self.whole = whole;
        Ok(true)
    }

    fn begin(&mut self, to: &mut impl Sender, turn: &mut Turn) -> Result<bool, End> {
        let Some(head) = self.staging[self.start..self.end].first_chunk::<{ frame::SIZE }>() else {
            return Ok(false);
        };
        self.seal.check(head)?;
        let header = Header::decode(head)?;
        let mut sum = self.check.expect(&header)?;
        let payload = self.start + frame::SIZE;
        if header.size <= SMALL {
            let after = payload + header.size as usize;
            if self.end < after {
                return Ok(false);
            }
            sum.add(&self.staging[payload..after]);
            sum.check(&header)?;
            self.seal.advance();
            self.start = after;
            if header.opcode == Opcode::Put {
                self.check_order(&header)?;
                let reply = self.target.put(&header, &self.staging[payload..after]);
                self.applied(&header, reply, to, turn)?;
                return Ok(true);
            }
            let mut sink = self.sink(&header, to)?;
            let staging = std::mem::take(&mut self.staging);
            let bytes = &staging[payload..after];
            if !matches!(sink, Sink::Whole) {
                sink.write(bytes);
            }
            let finished = self.finish(header, sink, bytes, to, turn);
            self.staging = staging;
            finished?;
        } else {
            let sink = self.sink(&header, to)?;
            self.seal.advance();
            self.start = payload;
            self.open = Some(Open { header, left: header.size, sum, sink });
        }
        Ok(true)
    }

    fn sink(&mut self, header: &Header, to: &mut impl Sender) -> Result<Sink, End> {
        if header.opcode.is_request() {
            self.check_order(header)?;
            return Ok(self.target.begin(header));
        }
        if header.opcode == Opcode::Data { Ok(to.data(header)?) } else { Ok(Sink::Whole) }
    }

    fn check_order(&self, header: &Header) -> Result<(), End> {
        let due = self.applied + 1;
        if header.sequence != due {
            return Err(End::Broken(format!("request {} came where {due} was due", header.sequence)));
        }
        Ok(())
    }

    /// A request has been applied, or refused.
    fn applied(
        &mut self,
        header: &Header,
        reply: Reply,
        to: &mut impl Sender,
        turn: &mut Turn,
    ) -> Result<(), End> {
        turn.ack = turn.ack.max(header.ack);
        turn.ack_now |= header.has(flag::ACK_NOW);
        self.applied = header.sequence;
        if !matches!(reply, Reply::None) {
            to.reply(self.applied, reply)?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        header: Header,
        sink: Sink,
        payload: &[u8],
        to: &mut impl Sender,
        turn: &mut Turn,
    ) -> Result<(), End> {
        if header.opcode.is_request() {
            let reply = self.target.finish(&header, sink, payload);
            return self.applied(&header, reply, to, turn);
        }
        turn.ack = turn.ack.max(header.ack);
        if header.opcode.is_reply() {
            to.answer(&header, payload)?;
        } else if header.opcode == Opcode::Goodbye {
            if header.count == 0 {
                return Err(End::Left);
            }
            to.idle();
        }
        Ok(())
    }
}
