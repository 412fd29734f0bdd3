//! What waits to be sent: two queues of frames, written one frame after the other.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::frame::{self, Header, Opcode};
use super::protect::{Check, Seal};
use super::socket::Socket;
use super::transfer::Transfer;

/// Small frames of a queue are put together up to this size.
const TOGETHER: usize = 64 << 10;
/// A header and payload of at most this size are sent as one piece.
const ONE_PIECE: usize = 256;
/// Most bytes that one call writes.
const TURN: usize = 2 << 20;

/// Whose frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Our operations, numbered.
    Requests,
    /// Answers to theirs, and everything that has no number.
    Replies,
}

/// The unsent frames of one connection.
#[derive(Debug)]
pub(crate) struct Queue {
    socket: Arc<Socket>,
    seal: Seal,
    check: Check,
    requests: VecDeque<Chunk>,
    replies: VecDeque<Chunk>,
    /// What is being written, and how far.
    current: Vec<u8>,
    at: usize,
    /// A large buffer that is not in use.
    spare: Vec<u8>,
    replied: bool,
    /// Bytes of the queues that are copies.
    copied: usize,
    /// The number of the next request.
    next: u64,
    /// The last request of which a byte may have left.
    begun: u64,
    /// How many of their requests are applied.
    applied: u64,
    /// What the last header said of that.
    told: u64,
    /// Somebody waits for an acknowledgement.
    wants_ack: bool,
    broken: Option<i32>,
    wrote: bool,
    /// An unneeded connection's goodbye, sent when there is nothing else.
    goodbye: bool,
}

#[derive(Debug)]
struct Chunk {
    /// The first reply in it, or `u64::MAX`: acknowledgements must not overtake it.
    first_reply: u64,
    /// The last request in it, or 0.
    last_request: u64,
    /// What its last header acknowledges.
    told: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Bytes(Vec<u8>),
    Transfer(Box<Transfer>),
}

impl Queue {
    pub(crate) fn new(socket: Arc<Socket>, seal: Seal, check: Check) -> Self {
        Self {
            socket,
            seal,
            check,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            current: Vec::new(),
            at: 0,
            spare: Vec::new(),
            replied: false,
            copied: 0,
            next: 1,
            begun: 0,
            applied: 0,
            told: 0,
            wants_ack: false,
            broken: None,
            wrote: false,
            goodbye: false,
        }
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.current.len() && self.requests.is_empty() && self.replies.is_empty() && !self.goodbye
    }

    /// How many bytes wait that were copied.
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// The number of the last request that was queued.
    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// The last request of which a byte may have left.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// How many frames wait in the replies' lane.
    pub(crate) fn replies(&self) -> usize {
        self.replies.len()
    }

    /// The error that ended the writing.
    pub(crate) fn broken(&self) -> Option<i32> {
        self.broken
    }

    /// Whether anything was written since the last time this was asked.
    pub(crate) fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.wrote)
    }

    /// Says how many of their requests are applied. Headers tell it from now on.
    pub(crate) fn set_applied(&mut self, applied: u64) {
        self.applied = applied;
    }

    /// How many applied requests no header has told of.
    pub(crate) fn owed(&self) -> u64 {
        self.ack().saturating_sub(self.told)
    }

    /// Sends goodbye when all else is sent.
    pub(crate) fn say_goodbye(&mut self) {
        self.goodbye = true;
    }

    /// Frees what a large transfer took.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
        if self.at == self.current.len() {
            self.current = Vec::new();
            self.at = 0;
        }
    }

    /// Acknowledges as soon as the queues are empty, if no header does it before.
    pub(crate) fn acknowledge(&mut self) {
        self.wants_ack = true;
        if self.is_empty() {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.wants_ack = false;
        if self.owed() > 0 {
            self.frame(Lane::Replies, Header::new(Opcode::Ack), [&[], &[]]);
        }
    }

    fn ack(&self) -> u64 {
        // Whoever reads a number at or above a refusal's must have read the refusal.
        self.replies.front().map_or(self.applied, |chunk| self.applied.min(chunk.first_reply - 1))
    }

    fn lane(&mut self, lane: Lane) -> &mut VecDeque<Chunk> {
        match lane {
            Lane::Requests => &mut self.requests,
            Lane::Replies => &mut self.replies,
        }
    }

    /// Sends one frame, or queues what does not go out at once. Requests get their number here. Returns it.
    pub(crate) fn frame(&mut self, lane: Lane, mut header: Header, payload: [&[u8]; 2]) -> u64 {
        if lane == Lane::Requests {
            header.sequence = self.next;
            self.next += 1;
        }
        header.ack = self.ack();
        let mut sum = self.check.begin();
        payload.iter().for_each(|part| sum.add(part));
        sum.seal(&mut header, payload.iter().map(|part| part.len() as u64).sum());
        let mut head = header.encode();
        let size = frame::SIZE + header.size as usize;
        let mut sent = 0;
        if self.is_empty() && self.broken.is_none() {
            self.seal.seal(&mut head);
            sent = self.write_through(&head, payload, size);
            if sent > 0 {
                self.seal.advance();
                self.wrote = true;
                self.told = header.ack;
                if lane == Lane::Requests {
                    self.begun = header.sequence;
                }
            }
        }
        if sent == size {
            return header.sequence;
        }
        if sent > 0 {
            self.current.clear();
            self.at = 0;
            append(&mut self.current, &head, payload, sent);
        } else {
            self.queue(lane, &header, &head, payload, size);
        }
        header.sequence
    }

    fn write_through(&mut self, head: &[u8; frame::SIZE], payload: [&[u8]; 2], size: usize) -> usize {
        let sent = if size <= ONE_PIECE {
            let mut whole = [0; ONE_PIECE];
            whole[..frame::SIZE].copy_from_slice(head);
            let mut at = frame::SIZE;
            for part in payload {
                whole[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            self.socket.send_bytes(&whole[..size])
        } else {
            self.socket.send([head, payload[0], payload[1]])
        };
        match sent {
            Ok(sent) => sent,
            Err(error) => {
                self.note(&error);
                0
            }
        }
    }

    fn queue(&mut self, lane: Lane, header: &Header, head: &[u8], payload: [&[u8]; 2], size: usize) {
        self.copied += size;
        let reply = if header.opcode.is_reply() { header.sequence } else { u64::MAX };
        let request = if lane == Lane::Requests { header.sequence } else { 0 };
        let lane = self.lane(lane);
        if let Some(Chunk { first_reply, last_request, told, what: What::Bytes(bytes) }) = lane.back_mut()
            && bytes.len() + size <= TOGETHER
        {
            *first_reply = reply.min(*first_reply);
            *last_request = request.max(*last_request);
            *told = header.ack.max(*told);
            append(bytes, head, payload, 0);
            return;
        }
        let mut bytes = Vec::with_capacity(size);
        append(&mut bytes, head, payload, 0);
        let (told, what) = (header.ack, What::Bytes(bytes));
        lane.push_back(Chunk { first_reply: reply, last_request: request, told, what });
    }

    /// Queues a transfer. Its requests get their numbers here. Returns the first and the last.
    pub(crate) fn transfer(&mut self, lane: Lane, mut transfer: Transfer) -> (u64, u64) {
        if lane == Lane::Requests {
            transfer.header.sequence = self.next;
            self.next += transfer.frames();
        }
        let first = transfer.header.sequence;
        let reply = if lane == Lane::Replies { first } else { u64::MAX };
        let what = What::Transfer(Box::new(transfer));
        self.lane(lane).push_back(Chunk { first_reply: reply, last_request: 0, told: 0, what });
        (first, self.next - 1)
    }

    /// Makes the next frame the current one. `false`: there is none.
    fn load(&mut self) -> bool {
        let lane = match (self.requests.is_empty(), self.replies.is_empty()) {
            (true, true) => return self.load_goodbye(),
            (false, true) => Lane::Requests,
            (true, false) => Lane::Replies,
            (false, false) if self.replied => Lane::Requests,
            (false, false) => Lane::Replies,
        };
        self.replied = lane == Lane::Replies;
        let (ack, check) = (self.ack(), self.check.clone());
        let (mut current, mut spare) = (std::mem::take(&mut self.current), std::mem::take(&mut self.spare));
        self.at = 0;
        let Some(chunk) = self.lane(lane).front_mut() else { return false };
        let (begun, told, over) = match &mut chunk.what {
            What::Bytes(bytes) => {
                if current.capacity() > spare.capacity() {
                    spare = current;
                }
                current = std::mem::take(bytes);
                (chunk.last_request, chunk.told, true)
            }
            What::Transfer(transfer) => {
                if current.capacity() < spare.capacity() {
                    std::mem::swap(&mut current, &mut spare);
                }
                let sequence = transfer.header.sequence;
                let over = transfer.frame(&mut current, ack, &check);
                (if lane == Lane::Requests { sequence } else { 0 }, ack, over)
            }
        };
        if over && let Some(Chunk { what: What::Bytes(_), .. }) = self.lane(lane).pop_front() {
            self.copied -= current.len();
        }
        self.seal(&mut current);
        (self.current, self.spare) = (current, spare);
        self.begun = self.begun.max(begun);
        self.told = self.told.max(told);
        true
    }

    fn load_goodbye(&mut self) -> bool {
        if !std::mem::take(&mut self.goodbye) {
            return false;
        }
        let mut header = Header::new(Opcode::Goodbye);
        header.count = 1;
        header.ack = self.ack();
        self.told = header.ack;
        self.current.clear();
        self.current.extend(header.encode());
        let mut current = std::mem::take(&mut self.current);
        self.seal(&mut current);
        self.current = current;
        self.at = 0;
        true
    }

    /// Gives whole frames their MACs, at the moment when their place in the stream is certain.
    fn seal(&mut self, mut frames: &mut [u8]) {
        while let Some((head, rest)) = frames.split_first_chunk_mut() {
            self.seal.seal(head);
            self.seal.advance();
            frames = rest.split_at_mut(Header::size_of(head).min(rest.len())).1;
        }
    }

    /// Writes what can be written. Returns how many bytes that was.
    pub(crate) fn flush(&mut self) -> usize {
        let mut moved = 0;
        while self.broken.is_none() && moved < TURN {
            if self.at == self.current.len() && !self.load() {
                break;
            }
            let rest = self.current.len() - self.at;
            match self.socket.send_bytes(&self.current[self.at..]) {
                Ok(sent) => {
                    self.at += sent;
                    moved += sent;
                    self.wrote = true;
                    if sent < rest {
                        break;
                    }
                }
                Err(error) => {
                    self.note(&error);
                    break;
                }
            }
        }
        if self.wants_ack && self.is_empty() {
            self.tell();
        }
        moved
    }

    fn note(&mut self, error: &std::io::Error) {
        if error.kind() != std::io::ErrorKind::WouldBlock {
            self.broken = Some(error.raw_os_error().unwrap_or(0));
        }
    }

    /// Gives everything up.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.replies.clear();
        (self.current, self.spare) = (Vec::new(), Vec::new());
        self.at = 0;
        self.copied = 0;
        self.goodbye = false;
    }
}

/// Adds a frame without its first `skip` bytes.
fn append(out: &mut Vec<u8>, head: &[u8], payload: [&[u8]; 2], mut skip: usize) {
    for part in [head, payload[0], payload[1]] {
        let cut = skip.min(part.len());
        out.extend_from_slice(&part[cut..]);
        skip -= cut;
    }
}
