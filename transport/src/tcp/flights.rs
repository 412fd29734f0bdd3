//! Our operations that are on their way, in order: each ends once, with the acknowledgement or the answer.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use transom_registry::{Error, Failure, Outcome, Result, Slice};

use super::control::Refusal;
use super::frame::{Header, Opcode, flag};
use crate::token::{Completion, Token};

/// Most operations on their way.
pub(crate) const MOST: usize = 65_536;
/// Most gets that are not answered, and most bytes of them, unless there is only one.
const MOST_GETS: usize = 1024;
const MOST_GET_BYTES: u64 = 64 << 20;

/// The operations on their way to one peer.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    flying: VecDeque<Flying>,
    gets: usize,
    get_bytes: u64,
}

#[derive(Debug)]
struct Flying {
    /// Its first and last request.
    first: u64,
    last: u64,
    expects: Expects,
    /// How it ends, once that is known.
    result: Option<Result<u64>>,
}

/// What ends an operation.
#[derive(Debug)]
pub(crate) enum Expects {
    /// The acknowledgement of its last request.
    Ack(Option<Token>),
    /// A value.
    Value(Token),
    /// Bytes for this slice, of which so many have been asked into it.
    Data(Token, Slice, u64),
    /// A handle.
    Handle(oneshot::Sender<Result<u32>>),
}

fn broken(why: impl Into<String>) -> Error {
    Error::Malformed { what: "reply", why: why.into() }
}

impl Flights {
    /// Whether another operation may be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.flying.len() < MOST
    }

    /// Whether another get of this size may be sent.
    pub(crate) fn has_room_for_get(&self, size: u64) -> bool {
        self.has_room()
            && (self.gets == 0 || self.gets < MOST_GETS && self.get_bytes + size <= MOST_GET_BYTES)
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// An operation has been queued.
    pub(crate) fn add(&mut self, first: u64, last: u64, expects: Expects) {
        if let Expects::Data(_, slice, _) = &expects {
            self.gets += 1;
            self.get_bytes += slice.size() as u64;
        }
        self.flying.push_back(Flying { first, last, expects, result: None });
    }

    fn find(&mut self, sequence: u64) -> Result<&mut Flying> {
        let at = self.flying.partition_point(|f| f.last < sequence);
        self.flying
            .get_mut(at)
            .filter(|f| f.first <= sequence && f.result.is_none())
            .ok_or_else(|| broken(format!("it answers request {sequence}, which is not on its way")))
    }

    /// Where the bytes of a data frame go.
    ///
    /// # Errors
    /// [`Error::Malformed`] when nobody asked for them.
    pub(crate) fn data(&mut self, header: &Header) -> Result<(Slice, u64)> {
        let flying = self.find(header.sequence)?;
        let Expects::Data(_, slice, received) = &mut flying.expects else {
            return Err(broken("data for an operation that is no get"));
        };
        let (at, size) = (*received, slice.size() as u64);
        let last = header.has(flag::LAST);
        if header.offset != at || header.size > size - at || last != (at + header.size == size) {
            return Err(broken(format!(
                "data of {} bytes at {}, where {at} of {size} are there",
                header.size, header.offset
            )));
        }
        *received += header.size;
        Ok((slice.clone(), at))
    }

    /// Takes an answer whose payload is complete.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it answers nothing.
    pub(crate) fn answer(&mut self, header: &Header, payload: &[u8]) -> Result<()> {
        let flying = self.find(header.sequence)?;
        flying.result = Some(match (header.opcode, &flying.expects) {
            (Opcode::Data, Expects::Data(..)) if header.has(flag::LAST) => Ok(0),
            (Opcode::Data, Expects::Data(..)) => return Ok(()),
            (Opcode::AtomicReply, Expects::Value(_)) => Ok(header.operand),
            (Opcode::Attached, Expects::Handle(_)) => Ok(header.handle.into()),
            (Opcode::Refused, expects) => {
                let refusal = Refusal::decode(payload)?;
                Err(match expects {
                    Expects::Ack(token) => {
                        refusal.outcome(token.as_ref().map_or("operation", Token::operation))
                    }
                    Expects::Value(token) | Expects::Data(token, ..) => refusal.outcome(token.operation()),
                    Expects::Handle(_) => refusal.error("open"),
                })
            }
            (opcode, _) => return Err(broken(format!("{opcode:?} for another kind of operation"))),
        });
        Ok(())
    }

    /// Everything up to this request is applied. Handles of attachments that nobody wants any more go to `unwanted`.
    pub(crate) fn acknowledge(&mut self, ack: u64, done: &mut Vec<Completion>, unwanted: &mut Vec<u32>) {
        while let Some(front) = self.flying.front() {
            // An operation whose first request was refused still has requests on their way: those need the number.
            let over = match front.expects {
                Expects::Ack(_) => front.last <= ack,
                _ => front.result.is_some(),
            };
            if !over {
                return;
            }
            let Some(Flying { expects, result, .. }) = self.flying.pop_front() else { return };
            self.end(expects, result.unwrap_or(Ok(0)), done, unwanted);
        }
    }

    fn end(
        &mut self,
        expects: Expects,
        result: Result<u64>,
        done: &mut Vec<Completion>,
        unwanted: &mut Vec<u32>,
    ) {
        match expects {
            Expects::Ack(None) => {}
            Expects::Ack(Some(token)) | Expects::Value(token) => done.push(Completion::new(token, result)),
            Expects::Data(token, slice, _) => {
                self.gets -= 1;
                self.get_bytes -= slice.size() as u64;
                done.push(Completion::new(token.keep(slice), result));
            }
            Expects::Handle(sender) => {
                let handle = result.map(|handle| handle as u32);
                if let Err(Ok(handle)) = sender.send(handle) {
                    unwanted.push(handle);
                }
            }
        }
    }

    /// Ends everything: what has `begun` is in doubt, the rest was not applied.
    pub(crate) fn fail(&mut self, begun: u64, failure: &Arc<Failure>, done: &mut Vec<Completion>) {
        for Flying { first, expects, result, .. } in std::mem::take(&mut self.flying) {
            let outcome = if first <= begun { Outcome::InDoubt } else { Outcome::NotApplied };
            let operation = match &expects {
                Expects::Ack(token) => token.as_ref().map_or("operation", Token::operation),
                Expects::Value(token) | Expects::Data(token, ..) => token.operation(),
                Expects::Handle(_) => "open",
            };
            let result = result.unwrap_or_else(|| Err(Error::failed(operation, outcome, failure.clone())));
            self.end(expects, result, done, &mut Vec::new());
        }
    }
}
