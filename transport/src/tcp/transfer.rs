//! Registered memory on its way out: frame by frame, each copied and summed when its turn comes.
#![forbid(unsafe_code)]

use transom_registry::exposed::Exposed;

use super::control;
use super::frame::{self, Header, Opcode, flag};
use super::protect::{Check, Sum};

/// Payload bytes of a frame that comes from registered memory.
const FRAME: u64 = 512 << 10;
/// Payload bytes of a frame of a list.
const LIST_FRAME: u64 = 256 << 10;
/// Bytes that are copied before they are summed.
const BLOCK: usize = 16 << 10;

/// Bytes of registered memory that go out frame by frame. They are copied before they are summed: whoever changes them
/// meanwhile changes what arrives, and not whether it arrives.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The last frame's header, but for what each frame has of its own.
    pub(crate) header: Header,
    /// Where the bytes are.
    pub(crate) from: From,
    /// How many bytes are left.
    pub(crate) left: u64,
}

/// Where the bytes of a transfer are.
#[derive(Debug)]
pub(crate) enum From {
    /// One after the other, from this offset.
    Range(Exposed, u64),
    /// In these parts of the memory.
    Parts(Exposed, Parts),
    /// One after the other from this offset, for these parts of the target.
    List(Exposed, u64, Parts),
}

/// A walk over (offset, size) pairs.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: Vec<(u64, u64)>,
    index: usize,
    within: u64,
}

impl Parts {
    pub(crate) fn new(parts: Vec<(u64, u64)>) -> Self {
        Self { parts, index: 0, within: 0 }
    }

    /// Where the next bytes are, at most this many of them, without going there.
    pub(crate) fn peek(&mut self, most: u64) -> Option<(u64, u64)> {
        loop {
            let (offset, size) = self.parts.get(self.index)?;
            if self.within < *size {
                return Some((offset + self.within, most.min(size - self.within)));
            }
            self.index += 1;
            self.within = 0;
        }
    }

    pub(crate) fn advance(&mut self, size: u64) {
        self.within += size;
    }

    /// Walks over the parts of the next frame of a list. Returns them, and how many bytes they are.
    pub(crate) fn frame(&mut self, left: u64) -> (Vec<(u64, u64)>, u64) {
        let most = LIST_FRAME.min(left);
        let (mut table, mut size) = (Vec::new(), 0);
        while size < most && (table.len() as u64) < frame::MOST_PARTS {
            let Some((offset, part)) = self.peek(most - size) else { break };
            table.push((offset, part));
            self.advance(part);
            size += part;
        }
        (table, size)
    }
}

impl Transfer {
    /// How many frames it is.
    pub(crate) fn frames(&self) -> u64 {
        match &self.from {
            From::List(_, _, parts) => {
                // A frame ends at its most bytes or its most parts.
                let mut walk = Parts::new(parts.parts.clone());
                let (mut frames, mut left) = (0, self.left);
                while left > 0 {
                    let (_, size) = walk.frame(left);
                    // A list that is shorter than its bytes is refused above; it must not hold us up here.
                    left -= if size == 0 { left } else { size };
                    frames += 1;
                }
                frames.max(1)
            }
            _ => self.left.div_ceil(self.most()).max(1),
        }
    }

    fn most(&self) -> u64 {
        if self.header.opcode == Opcode::Accumulate { frame::MOST_ACCUMULATE } else { FRAME }
    }

    /// Makes the next frame, with no MAC yet. Returns whether it is the last.
    pub(crate) fn frame(&mut self, into: &mut Vec<u8>, ack: u64, check: &Check) -> bool {
        let mut header = self.header;
        let most = self.most();
        let mut sum = check.begin();
        let (table, size) = match &mut self.from {
            From::List(_, _, parts) => {
                let (table, size) = parts.frame(self.left);
                header.offset = table.len() as u64;
                let mut bytes = Vec::with_capacity(table.len() * frame::PART as usize);
                control::encode_parts(&table, &mut bytes);
                (bytes, if size == 0 { self.left } else { size })
            }
            _ => (Vec::new(), self.left.min(most)),
        };
        let start = frame::SIZE + table.len();
        into.resize(start + size as usize, 0);
        into[frame::SIZE..start].copy_from_slice(&table);
        sum.add(&table);
        let mut rest = &mut into[start..];
        match &mut self.from {
            From::List(exposed, at, _) | From::Range(exposed, at) => {
                read(&mut sum, exposed, *at, rest);
                *at += size;
            }
            From::Parts(exposed, parts) => {
                while let Some((offset, part)) = parts.peek(rest.len() as u64).filter(|(_, part)| *part > 0) {
                    let (now, later) = rest.split_at_mut(part as usize);
                    read(&mut sum, exposed, offset, now);
                    parts.advance(part);
                    rest = later;
                }
            }
        }
        self.left -= size;
        let last = self.left == 0;
        if !last {
            header.flags &= !(flag::LAST | flag::SIGNAL | flag::ACK_NOW);
        }
        if header.opcode.is_request() {
            self.header.sequence += 1;
        }
        if !matches!(self.from, From::List(..)) {
            self.header.offset += size;
        }
        header.ack = ack;
        sum.seal(&mut header, size + table.len() as u64);
        let head = header.encode();
        into[..frame::SIZE].copy_from_slice(&head);
        last
    }
}

/// Copies exposed memory, block by block, so that the sum finds each in the nearest cache.
fn read(sum: &mut Sum, exposed: &Exposed, mut offset: u64, into: &mut [u8]) {
    for block in into.chunks_mut(BLOCK) {
        // The range was checked when the slice was made, or the operation taken.
        let _ = exposed.read(offset, block);
        sum.add(block);
        offset += block.len() as u64;
    }
}
