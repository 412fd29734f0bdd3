//! Operations become frames.
#![forbid(unsafe_code)]

use transom_registry::{Error, Slice};

use super::Out;
use crate::backend::{Action, Op, Posted, Source};
use crate::tcp::control::encode_parts;
use crate::tcp::flights::Expects;
use crate::tcp::frame::{self, Header, Opcode, flag};
use crate::tcp::send::Lane;
use crate::tcp::transfer::{From, Parts, Transfer};
use crate::token::Token;

/// Most bytes of borrowed sources that wait to be sent.
const MOST_COPIED: usize = 1 << 20;
/// Registered memory of at most this size is copied at once.
const SMALL: usize = 16 << 10;
/// Most bytes of a list in one operation.
const MOST_LIST: usize = 16 << 20;
/// Bytes of a get that a queue with room takes.
const MOST_PIECE: u64 = 1 << 20;

impl Out {
    /// Whether any operation but a large get is taken.
    pub(super) fn has_room(&self) -> bool {
        self.flights.has_room_for_get(MOST_PIECE)
            && self.queue.copied() + Source::MOST_BORROWED <= MOST_COPIED
    }

    pub(super) fn post(&mut self, op: Op<'_>, token: Token) -> Posted {
        let operation = token.operation();
        let too_large =
            |size: usize| Error::invalid(operation, format!("a list of {size} bytes is too large"));
        let device = |slice: &Slice| slice.region().kind() == transom_registry::Kind::Device;
        let source = match &op.action {
            Action::Put(source) | Action::PutList(_, source) | Action::Accumulate { source, .. } => {
                Some(source)
            }
            _ => None,
        };
        let (slice, borrowed) = match (source, &op.action) {
            (Some(Source::Owned(slice)), _) | (None, Action::Get(slice) | Action::GetList(_, slice)) => {
                (Some(slice), 0)
            }
            (Some(Source::Borrowed(bytes)), _) => (None, bytes.len()),
            _ => (None, 0),
        };
        if slice.is_some_and(device) {
            let error = Error::invalid(operation, "tcp cannot reach a device's memory");
            return Posted::Done(token, Err(error));
        }
        let room = match &op.action {
            Action::Get(slice) | Action::GetList(_, slice) => {
                self.flights.has_room_for_get(slice.size() as u64)
            }
            _ => self.flights.has_room(),
        };
        let copied = self.queue.copied();
        if !room || copied >= MOST_COPIED || borrowed > 0 && copied + borrowed > MOST_COPIED {
            return Posted::Full(token);
        }
        let key = op.key as u32;
        let awaited = if op.silent { flag::SILENT } else { flag::ACK_NOW };
        let mut header = Header { handle: key, offset: op.offset, ..Header::new(Opcode::Put) };
        header.flags = flag::LAST | awaited;
        if matches!(op.action, Action::Put(_)) && op.signal.is_none() && self.flights.is_empty() {
            // A lone put is often flushed next: asked for now, its acknowledgement is on its way by then.
            header.flags |= flag::ACK_NOW;
        }
        let signalled = |mut header: Header| {
            if let Some((id, add)) = op.signal {
                header.flags |= flag::SIGNAL;
                header.count = id;
                header.operand = add;
            }
            header
        };
        let flying = match op.action {
            Action::Flush => {
                if self.flights.is_empty() {
                    return Posted::Done(token, Ok(0));
                }
                let last = self.queue.last();
                if self.asked == last {
                    self.flights.add(last, last, Expects::Ack(Some(token)));
                    return Posted::Pending;
                }
                header.opcode = Opcode::Flush;
                header.flags = flag::ACK_NOW;
                (self.whole(header, &[]), Expects::Ack(Some(token)))
            }
            Action::Resume => {
                header.opcode = Opcode::Resume;
                (self.whole(header, &[]), Expects::Ack(Some(token)))
            }
            Action::Signal if op.signal.is_none() => return Posted::Done(token, Ok(0)),
            Action::Signal => {
                header.opcode = Opcode::Signal;
                (self.whole(signalled(header), &[]), Expects::Ack(Some(token)))
            }
            Action::Put(source) => {
                let (sent, token) = self.bytes(signalled(header), source, token);
                (sent, Expects::Ack(Some(token)))
            }
            Action::PutList(parts, source) => {
                if source.size() > MOST_LIST {
                    return Posted::Done(token, Err(too_large(source.size())));
                }
                header.opcode = Opcode::PutList;
                let (sent, token) = self.list(signalled(header), parts, source, token);
                (sent, Expects::Ack(Some(token)))
            }
            Action::Accumulate { dtype, reduce, source } => {
                header.opcode = Opcode::Accumulate;
                header.count = u32::from(dtype as u8) | u32::from(reduce as u8) << 8;
                let (sent, token) = self.bytes(header, source, token);
                (sent, Expects::Ack(Some(token)))
            }
            Action::Get(slice) => {
                header.opcode = Opcode::Get;
                header.operand = slice.size() as u64;
                (self.whole(header, &[]), Expects::Data(token, slice, 0))
            }
            Action::GetList(parts, slice) => {
                if parts.len() as u64 > frame::MOST_PARTS {
                    return Posted::Done(token, Err(too_large(slice.size())));
                }
                header.opcode = Opcode::GetList;
                header.offset = parts.len() as u64;
                let table = table(parts, op.offset);
                (self.whole(header, &table), Expects::Data(token, slice, 0))
            }
            Action::Atomic { atomic, width, operand, compare } => {
                header.opcode = Opcode::Atomic;
                header.count = u32::from(atomic as u8) | u32::from(width) << 8;
                header.operand = operand;
                (self.whole(header, &compare.to_le_bytes()), Expects::Value(token))
            }
        };
        let ((first, last), expects) = flying;
        let carries = matches!(expects, Expects::Ack(_)) && header.opcode != Opcode::Accumulate;
        self.flights.add(first, last, expects);
        if header.has(flag::ACK_NOW) {
            self.asked = last;
        }
        if op.signal.is_some() && !carries {
            // These frames carry no signal: it follows in one of its own.
            header = Header { handle: key, ..Header::new(Opcode::Signal) };
            header.flags = flag::LAST | awaited;
            let (first, last) = self.whole(signalled(header), &[]);
            self.flights.add(first, last, Expects::Ack(None));
            if awaited == flag::ACK_NOW {
                self.asked = last;
            }
        }
        Posted::Pending
    }

    /// Sends one frame.
    pub(super) fn whole(&mut self, header: Header, payload: &[u8]) -> (u64, u64) {
        let sequence = self.queue.frame(Lane::Requests, header, [payload, &[]]);
        (sequence, sequence)
    }

    /// Sends the bytes of a put or an accumulate. The token keeps a slice that is still needed.
    fn bytes(&mut self, header: Header, source: Source<'_>, token: Token) -> ((u64, u64), Token) {
        match source {
            Source::Borrowed(bytes) => (self.pieces(header, bytes), token),
            Source::Owned(slice) if slice.size() <= SMALL => {
                let mut bytes = vec![0; slice.size()];
                let _ = slice.read(0, &mut bytes);
                (self.pieces(header, &bytes), token.keep(slice))
            }
            Source::Owned(slice) => {
                let from = From::Range(slice.region().exposed().clone(), slice.offset() as u64);
                let transfer = Transfer { header, from, left: slice.size() as u64 };
                (self.queue_transfer(transfer), token.keep(slice))
            }
        }
    }

    fn pieces(&mut self, header: Header, bytes: &[u8]) -> (u64, u64) {
        let most = if header.opcode == Opcode::Accumulate {
            frame::MOST_ACCUMULATE as usize
        } else {
            frame::MOST_PAYLOAD as usize
        };
        let (mut first, mut last) = (0, 0);
        let mut rest = bytes;
        while first == 0 || !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(most));
            let mut header = Header { offset: header.offset + (bytes.len() - rest.len()) as u64, ..header };
            if !later.is_empty() {
                header.flags &= !(flag::LAST | flag::SIGNAL | flag::ACK_NOW);
            }
            last = self.queue.frame(Lane::Requests, header, [now, &[]]);
            first = if first == 0 { last } else { first };
            rest = later;
        }
        (first, last)
    }

    fn list(
        &mut self,
        header: Header,
        parts: &[(u64, u64)],
        source: Source<'_>,
        token: Token,
    ) -> ((u64, u64), Token) {
        let moved = |parts: &[(u64, u64)]| parts.iter().map(|p| (p.0 + header.offset, p.1)).collect();
        match source {
            Source::Borrowed(bytes) => {
                // Cut where a frame would have too many parts or bytes.
                let (mut first, mut last, mut at) = (0, 0, 0);
                let mut walk = Parts::new(moved(parts));
                while first == 0 || at < bytes.len() {
                    let (table, size) = walk.frame((bytes.len() - at) as u64);
                    let size = if table.is_empty() { bytes.len() - at } else { size as usize };
                    let end = at + size;
                    let mut header = Header { offset: table.len() as u64, ..header };
                    if end < bytes.len() {
                        header.flags &= !(flag::LAST | flag::SIGNAL | flag::ACK_NOW);
                    }
                    let mut wire = Vec::with_capacity(table.len() * frame::PART as usize);
                    encode_parts(&table, &mut wire);
                    last = self.queue.frame(Lane::Requests, header, [&wire, &bytes[at..end]]);
                    first = if first == 0 { last } else { first };
                    at = end;
                }
                ((first, last), token)
            }
            Source::Owned(slice) => {
                let exposed = slice.region().exposed().clone();
                let from = From::List(exposed, slice.offset() as u64, Parts::new(moved(parts)));
                let transfer = Transfer { header, from, left: slice.size() as u64 };
                (self.queue_transfer(transfer), token.keep(slice))
            }
        }
    }

    fn queue_transfer(&mut self, transfer: Transfer) -> (u64, u64) {
        let numbers = self.queue.transfer(Lane::Requests, transfer);
        self.queue.flush();
        numbers
    }
}

fn table(parts: &[(u64, u64)], offset: u64) -> Vec<u8> {
    let moved: Vec<_> = parts.iter().map(|p| (p.0 + offset, p.1)).collect();
    let mut wire = Vec::with_capacity(parts.len() * frame::PART as usize);
    encode_parts(&moved, &mut wire);
    wire
}
