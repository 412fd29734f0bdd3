//! The target's side: what a peer's frames may do here, looked up by handle and checked before any byte is written.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use transom_registry::Grant;
use transom_registry::element::{Atomic, Dtype, Reduce};
use transom_registry::exposed::{Exposed, Locker};
use transom_registry::{Access, Cause, Error, Failure, Kind, Outcome, Registry, Result};

use super::control::{Attach, Refusal, decode_parts};
use super::frame::{Header, MOST_PARTS, Opcode, PART, flag};
use super::transfer::{From, Parts, Transfer};

/// How long an accumulate of a peer waits for a lock.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most handles of one peer.
const MOST_HANDLES: usize = 1 << 20;
/// Data of at most this size is answered in one copy.
const SMALL: u64 = 16 << 10;

/// What one peer may reach.
#[derive(Debug)]
pub(crate) struct Target {
    registry: Arc<Registry>,
    handles: Vec<Option<Reached>>,
    free: Vec<u32>,
    /// A request of a longer operation was refused: so is the rest of it, without a word.
    skipping: bool,
    /// What was given back: dropped outside of the seat, since the memory may go with it.
    dropped: Vec<Grant>,
}

#[derive(Debug)]
struct Reached {
    grant: Grant,
    /// A silent operation was refused: so is everything until `Resume`.
    poisoned: bool,
}

/// Where the payload of a frame goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Into memory, from this offset on.
    Memory(Exposed, u64),
    /// Into parts of memory, once the table of them is complete.
    List(Box<Scatter>),
    /// To whoever finishes the frame.
    Whole,
    /// Nowhere.
    Refused(Box<Error>),
}

/// The parts of a list on their way into memory.
#[derive(Debug)]
pub(crate) struct Scatter {
    exposed: Exposed,
    /// Bytes of the table that are missing.
    missing: usize,
    table: Vec<u8>,
    parts: Option<Parts>,
    data: u64,
}

/// What the target answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The acknowledgement is enough.
    None,
    /// A frame, with these bytes.
    Frame(Header, Vec<u8>),
    /// Bytes of a region.
    Data(Transfer),
}

impl Sink {
    /// Memory of one piece that the next bytes go to: the first of them, and how many.
    pub(crate) fn place(&mut self, left: u64) -> Option<(&Exposed, u64, u64)> {
        match self {
            Self::Memory(exposed, offset) => Some((exposed, *offset, left)),
            Self::List(scatter) => {
                let Scatter { exposed, parts, .. } = &mut **scatter;
                let (offset, size) = parts.as_mut()?.peek(left)?;
                Some((exposed, offset, size))
            }
            Self::Whole | Self::Refused(_) => None,
        }
    }

    /// So many bytes have been written to the place.
    pub(crate) fn advance(&mut self, size: u64) {
        match self {
            Self::Memory(_, offset) => *offset += size,
            Self::List(scatter) => {
                if let Some(parts) = &mut scatter.parts {
                    parts.advance(size);
                }
            }
            Self::Whole | Self::Refused(_) => {}
        }
    }

    /// Takes bytes of the payload.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        if let Self::List(scatter) = self
            && scatter.parts.is_none()
        {
            let (table, rest) = bytes.split_at(scatter.missing.min(bytes.len()));
            scatter.table.extend_from_slice(table);
            scatter.missing -= table.len();
            bytes = rest;
            if scatter.missing > 0 {
                return;
            }
            if let Err(error) = scatter.begin() {
                *self = Self::Refused(Box::new(error));
                return;
            }
        }
        while !bytes.is_empty() {
            let Some((exposed, offset, size)) = self.place(bytes.len() as u64) else { return };
            let (now, later) = bytes.split_at(size as usize);
            if let Err(error) = exposed.write(offset, now) {
                *self = Self::Refused(Box::new(error));
                return;
            }
            self.advance(size);
            bytes = later;
        }
    }

    /// Whether a list waits for nothing.
    fn settle(&mut self) {
        if matches!(self, Self::List(scatter) if scatter.parts.is_none() && scatter.missing == 0) {
            self.write(&[]);
        }
    }
}

impl Scatter {
    fn begin(&mut self) -> Result<()> {
        let (parts, total) = decode_parts(&std::mem::take(&mut self.table))?;
        if total != self.data {
            return Err(Error::invalid("put_list", format!("{} bytes for parts of {total}", self.data)));
        }
        for (offset, size) in &parts {
            check_range("put_list", &self.exposed, *offset, *size)?;
        }
        self.parts = Some(Parts::new(parts));
        Ok(())
    }
}

fn check_range(operation: &'static str, exposed: &Exposed, offset: u64, size: u64) -> Result<()> {
    let limit = exposed.size() as u64;
    if size <= limit && offset <= limit - size {
        Ok(())
    } else {
        Err(Error::OutOfRange { operation, offset, size, limit })
    }
}

/// Adds to the signal of a request that is applied.
fn signal(exposed: &Exposed, header: &Header) -> Result<()> {
    if header.has(flag::SIGNAL) { exposed.signal_add(header.count, header.operand) } else { Ok(()) }
}

fn earlier() -> Error {
    let failure = Failure::new(None, Cause::Earlier, "the target refused an operation that nobody awaits");
    Error::failed("operation", Outcome::NotApplied, failure)
}

fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Put => "put",
        Opcode::PutList => "put_list",
        Opcode::Get => "get",
        Opcode::GetList => "get_list",
        Opcode::Atomic => "atomic",
        Opcode::Accumulate => "accumulate",
        Opcode::Signal => "signal",
        _ => "operation",
    }
}

impl Target {
    pub(crate) fn new(registry: &Arc<Registry>) -> Self {
        Self {
            registry: registry.clone(),
            handles: Vec::new(),
            free: Vec::new(),
            skipping: false,
            dropped: Vec::new(),
        }
    }

    /// What was given back since the last call, to be dropped outside of the seat.
    pub(crate) fn dropped(&mut self) -> Vec<Grant> {
        std::mem::take(&mut self.dropped)
    }

    /// Everything that the peer could reach, to be dropped outside of the seat.
    pub(crate) fn take(&mut self) -> Vec<Grant> {
        self.handles.drain(..).flatten().map(|r| r.grant).collect()
    }

    fn reached(&mut self, header: &Header) -> Result<&mut Reached> {
        self.handles.get_mut(header.handle as usize).and_then(Option::as_mut).ok_or_else(|| {
            Error::invalid(name(header.opcode), format!("handle {} does not exist", header.handle))
        })
    }

    /// Looks at a request before its payload: where that goes.
    pub(crate) fn begin(&mut self, header: &Header) -> Sink {
        if self.skipping {
            return Sink::Refused(Box::new(earlier()));
        }
        self.check(header).unwrap_or_else(|error| Sink::Refused(Box::new(error)))
    }

    fn check(&mut self, header: &Header) -> Result<Sink> {
        let operation = name(header.opcode);
        let needed = match header.opcode {
            Opcode::Put | Opcode::PutList => Access::WRITE,
            Opcode::Get | Opcode::GetList => Access::READ,
            Opcode::Atomic | Opcode::Accumulate => Access::ATOMIC,
            Opcode::Signal => Access::SIGNAL,
            Opcode::Flush | Opcode::Attach | Opcode::Detach | Opcode::Resume => return Ok(Sink::Whole),
            _ => return Err(Error::invalid(operation, "it is no request")),
        };
        let grant = self.allowed(header, operation, needed)?;
        Ok(match header.opcode {
            Opcode::Put => {
                check_range(operation, &grant.exposed, header.offset, header.size)?;
                Sink::Memory(grant.exposed.clone(), header.offset)
            }
            Opcode::PutList => {
                let missing = (header.offset.min(MOST_PARTS) * PART) as usize;
                let mut sink = Sink::List(Box::new(Scatter {
                    exposed: grant.exposed.clone(),
                    missing,
                    table: Vec::new(),
                    parts: None,
                    data: header.size - missing as u64,
                }));
                sink.settle();
                sink
            }
            Opcode::Get => {
                check_range(operation, &grant.exposed, header.offset, header.operand)?;
                Sink::Whole
            }
            _ => Sink::Whole,
        })
    }

    /// A put whose payload is complete: begun and ended in one.
    pub(crate) fn put(&mut self, header: &Header, payload: &[u8]) -> Reply {
        let written = if self.skipping {
            Err(earlier())
        } else {
            self.allowed(header, "put", Access::WRITE).and_then(|grant| {
                grant.exposed.write(header.offset, payload)?;
                signal(&grant.exposed, header)
            })
        };
        self.close(header, written.map(|()| Reply::None))
    }

    /// The grant of a request, if it allows this.
    fn allowed(&mut self, header: &Header, operation: &'static str, needed: Access) -> Result<&Grant> {
        let reached = self.reached(header)?;
        if reached.poisoned {
            return Err(earlier());
        }
        let grant = &reached.grant;
        grant.check(operation, needed)?;
        if header.has(flag::SIGNAL) {
            grant.check(operation, Access::SIGNAL)?;
            if header.count >= grant.signals {
                return Err(Error::invalid(
                    operation,
                    format!("signal {} does not exist, the region has {}", header.count, grant.signals),
                ));
            }
        }
        Ok(grant)
    }

    /// Ends a request whose payload is complete: signals and answers.
    pub(crate) fn finish(&mut self, header: &Header, sink: Sink, payload: &[u8]) -> Reply {
        let result = match sink {
            Sink::Refused(error) => Err(*error),
            _ => self.apply(header, payload),
        };
        self.close(header, result)
    }

    /// The answer to a request that ended so.
    fn close(&mut self, header: &Header, result: Result<Reply>) -> Reply {
        let told = !self.skipping;
        if header.has(flag::LAST) {
            self.skipping = false;
        }
        let error = match result {
            Ok(reply) => return reply,
            Err(error) => error,
        };
        if !matches!(error, Error::Torn { .. }) {
            if !header.has(flag::LAST) {
                self.skipping = true;
            }
            if header.has(flag::SILENT)
                && let Ok(reached) = self.reached(header)
            {
                reached.poisoned = true;
            }
        }
        if !told {
            return Reply::None;
        }
        let mut reply = Header::new(Opcode::Refused);
        reply.sequence = header.sequence;
        Reply::Frame(reply, Refusal::new(&error).encode())
    }

    fn apply(&mut self, header: &Header, payload: &[u8]) -> Result<Reply> {
        let mut reply = Header { sequence: header.sequence, ..Header::new(Opcode::AtomicReply) };
        match header.opcode {
            Opcode::Attach => {
                reply.opcode = Opcode::Attached;
                reply.handle = self.attach(payload)?;
                return Ok(Reply::Frame(reply, Vec::new()));
            }
            Opcode::Detach => {
                if let Some(reached) = self.handles.get_mut(header.handle as usize).and_then(Option::take) {
                    self.free.push(header.handle);
                    self.dropped.push(reached.grant);
                }
                return Ok(Reply::None);
            }
            Opcode::Resume => {
                self.reached(header)?.poisoned = false;
                return Ok(Reply::None);
            }
            Opcode::Flush => return Ok(Reply::None),
            _ => {}
        }
        let locker = Locker { incarnation: self.registry.incarnation(), patience: PATIENCE };
        let exposed = &self.reached(header)?.grant.exposed;
        match header.opcode {
            Opcode::Atomic => {
                let [kind, width, ..] = header.count.to_le_bytes();
                let atomic = Atomic::from_u8(kind)
                    .ok_or_else(|| Error::invalid("atomic", format!("atomic {kind} is not known")))?;
                let compare = payload.first_chunk().copied().map_or(0, u64::from_le_bytes);
                reply.operand = exposed.atomic(atomic, width, header.offset, header.operand, compare)?;
                return Ok(Reply::Frame(reply, Vec::new()));
            }
            Opcode::Accumulate => {
                let [dtype, reduce, ..] = header.count.to_le_bytes();
                let known = Dtype::from_u8(dtype).zip(Reduce::from_u8(reduce));
                let (dtype, reduce) = known.ok_or_else(|| {
                    Error::invalid("accumulate", format!("type {dtype} with reduction {reduce} is not known"))
                })?;
                super::memory::accumulate(exposed, dtype, reduce, header.offset, payload, locker)?;
            }
            Opcode::Get => return answer(reply, exposed, Wanted::Range(header.offset, header.operand)),
            Opcode::GetList => {
                let (parts, total) = decode_parts(payload)?;
                for (offset, size) in &parts {
                    check_range("get_list", exposed, *offset, *size)?;
                }
                return answer(reply, exposed, Wanted::Parts(parts, total));
            }
            _ => {}
        }
        signal(exposed, header).map(|()| Reply::None)
    }

    fn attach(&mut self, payload: &[u8]) -> Result<u32> {
        let grant = self.registry.grant(&Attach::decode(payload)?.region())?;
        if grant.exposed.kind() == Kind::Device {
            return Err(Error::Unusable {
                transport: "tcp".into(),
                why: "the region is a device's memory, which tcp cannot reach".into(),
            });
        }
        let reached = Some(Reached { grant, poisoned: false });
        if let Some(handle) = self.free.pop() {
            self.handles[handle as usize] = reached;
            return Ok(handle);
        }
        if self.handles.len() >= MOST_HANDLES {
            return Err(Error::Limit {
                what: format!("{MOST_HANDLES} open regions on one connection"),
                next: "close regions that are no longer used".into(),
            });
        }
        self.handles.push(reached);
        Ok(self.handles.len() as u32 - 1)
    }
}

enum Wanted {
    Range(u64, u64),
    Parts(Vec<(u64, u64)>, u64),
}

fn answer(mut header: Header, exposed: &Exposed, wanted: Wanted) -> Result<Reply> {
    header.opcode = Opcode::Data;
    header.flags = flag::LAST;
    let (from, left) = match wanted {
        Wanted::Range(offset, size) => (From::Range(exposed.clone(), offset), size),
        Wanted::Parts(parts, size) => (From::Parts(exposed.clone(), Parts::new(parts)), size),
    };
    if left > SMALL {
        return Ok(Reply::Data(Transfer { header, from, left }));
    }
    let mut bytes = vec![0; left as usize];
    match from {
        From::Parts(exposed, mut parts) => {
            let mut rest = &mut bytes[..];
            while let Some((offset, size)) = parts.peek(rest.len() as u64).filter(|(_, size)| *size > 0) {
                let (now, later) = rest.split_at_mut(size as usize);
                exposed.read(offset, now)?;
                parts.advance(size);
                rest = later;
            }
        }
        From::Range(exposed, offset) | From::List(exposed, offset, _) => exposed.read(offset, &mut bytes)?,
    }
    Ok(Reply::Frame(header, bytes))
}
