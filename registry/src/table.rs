//! The table of what a process has registered.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::exposed::{Bell, Exposed, Parts};
use crate::header::{Layout, State};
use crate::region::{Inner, MemoryRegion};
use crate::remote::RemoteRegion;
use crate::{Access, Error, Incarnation, Memory, Result, Stale};

/// What a process has registered, by slot and generation: what peers ask for is looked up here.
pub struct Registry {
    incarnation: Incarnation,
    process: u32,
    bell: Arc<dyn Bell>,
    addresses: RwLock<Vec<String>>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    region: Weak<Inner>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("incarnation", &self.incarnation)
            .field("regions", &self.regions())
            .finish_non_exhaustive()
    }
}

/// Most signals that one region can have.
pub const MOST_SIGNALS: u32 = 1 << 20;

impl Registry {
    /// An empty registry of the process with this identity, which is woken by this bell.
    #[must_use]
    pub fn new(incarnation: Incarnation, bell: Arc<dyn Bell>) -> Arc<Self> {
        Arc::new(Self {
            incarnation,
            process: std::process::id(),
            bell,
            addresses: RwLock::default(),
            slots: Mutex::default(),
        })
    }

    /// Whether this process is a fork of the one that made it: what is shared is not its to end.
    pub(crate) fn is_a_forks(&self) -> bool {
        std::process::id() != self.process
    }

    /// Whose registry it is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The addresses at which peers reach the process, best first: they go into every descriptor.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.read().clone()
    }

    /// Sets the addresses.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        *self.addresses.write() = addresses;
    }

    /// How many regions are registered.
    #[must_use]
    pub fn regions(&self) -> usize {
        let slots = self.slots.lock();
        slots.slots.len() - slots.free.len()
    }

    /// Registers memory, with `signals` signals beside it.
    ///
    /// Takes a few hundred bytes of the process and no system call; the library's memory for signals and locks is made
    /// when the first of them is used or a peer maps the region.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`MOST_SIGNALS`] signals.
    pub fn register(self: &Arc<Self>, memory: impl Memory + 'static, signals: u32) -> Result<MemoryRegion> {
        self.register_shared(Arc::new(memory), signals)
    }

    /// As [`Registry::register`], for memory that others hold too.
    ///
    /// # Errors
    /// As for [`Registry::register`].
    pub fn register_shared(self: &Arc<Self>, memory: Arc<dyn Memory>, signals: u32) -> Result<MemoryRegion> {
        if signals > MOST_SIGNALS {
            return Err(Error::invalid(
                "register",
                format!("{signals} signals are more than {MOST_SIGNALS}"),
            ));
        }
        let layout = Layout::new(memory.size(), signals);
        // SAFETY: the contract of `Memory` is what `Exposed` asks for, and `keep` holds the memory.
        let exposed = unsafe {
            Exposed::new(Parts {
                base: memory.as_ptr(),
                size: memory.size(),
                kind: memory.kind(),
                writable: !memory.is_read_only(),
                start: 0,
                layout,
                header: None,
                bell: self.bell.clone(),
                keep: Arc::new(memory.clone()),
            })
        };
        let mut slots = self.slots.lock();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(slots.slots.len()).map_err(|_| Error::Limit {
                    what: "4294967295 regions in one process".into(),
                    next: "register larger regions, and export parts of them".into(),
                })?;
                slots.slots.push(Slot { generation: 0, region: Weak::new() });
                slot
            }
        };
        let entry = &mut slots.slots[slot as usize];
        entry.generation += 1;
        let inner = Arc::new(Inner {
            registry: self.clone(),
            slot,
            generation: entry.generation,
            layout,
            exposed,
            memory,
            exports: Mutex::default(),
            ended: Arc::new(AtomicU32::new(State::Live as u32)),
        });
        entry.region = Arc::downgrade(&inner);
        Ok(MemoryRegion(inner))
    }

    pub(crate) fn release(&self, slot: u32) {
        let mut slots = self.slots.lock();
        let entry = &mut slots.slots[slot as usize];
        entry.region = Weak::new();
        // A slot whose generations are used up is never used again: no old descriptor can name a new region.
        if entry.generation < u32::MAX {
            slots.free.push(slot);
        }
    }

    /// What this descriptor, sent by a peer, gives it: checked against what was exported.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is of another life, of a freed region or of another epoch; [`Error::Access`] when it asks
    /// for more than was exported; [`Error::OutOfRange`].
    pub fn grant(&self, asked: &RemoteRegion) -> Result<Grant> {
        const OPERATION: &str = "attach";
        if asked.incarnation != self.incarnation {
            return Err(Error::Stale {
                operation: OPERATION,
                what: Stale::Incarnation,
                held: asked.incarnation.as_u64(),
                current: self.incarnation.as_u64(),
            });
        }
        let (generation, region) = {
            let slots = self.slots.lock();
            match slots.slots.get(asked.slot as usize) {
                Some(slot) => (slot.generation, slot.region.upgrade()),
                None => (0, None),
            }
        };
        let region = match region {
            Some(region) if region.generation == asked.generation => region,
            other => {
                return Err(Error::Stale {
                    operation: OPERATION,
                    what: Stale::Generation,
                    held: asked.generation.into(),
                    current: if other.is_some() { generation.into() } else { 0 },
                });
            }
        };
        let mut nearest = Access::NONE;
        let mut epoch = None;
        let exports = region.exports.lock();
        let covered = exports.iter().any(|export| {
            let inside = export.offset <= asked.offset
                && asked.size <= export.size
                && asked.offset - export.offset <= export.size - asked.size;
            if inside && export.epoch == asked.epoch {
                nearest = nearest | export.access;
            } else if inside {
                epoch = Some(export.epoch);
            }
            inside && export.epoch == asked.epoch && export.access.contains(asked.access)
        });
        drop(exports);
        if !covered {
            return Err(match epoch {
                Some(current) if nearest == Access::NONE => {
                    Error::Stale { operation: OPERATION, what: Stale::Epoch, held: asked.epoch, current }
                }
                _ => Error::Access { operation: OPERATION, needed: asked.access, granted: nearest },
            });
        }
        let exposed = region.exposed.part(OPERATION, asked.offset, asked.size)?;
        Ok(Grant {
            exposed,
            access: asked.access,
            region_size: region.exposed.size() as u64,
            signals: region.layout.signals(),
            generation,
            ended: region.ended.clone(),
            memory: region.memory.clone(),
        })
    }
}

/// What one peer may do with one range: kept by the transport that serves it, keeps the memory and not the region.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The range's bytes and words.
    pub exposed: Exposed,
    /// The rights.
    pub access: Access,
    /// Size of the whole region, in bytes.
    pub region_size: u64,
    /// How many signals the region has.
    pub signals: u32,
    generation: u32,
    ended: Arc<AtomicU32>,
    memory: Arc<dyn Memory>,
}

impl Grant {
    /// The memory, for its descriptor.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Checks that the region lives and that this right was granted: what a target does before each operation.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Access`].
    #[inline]
    pub fn check(&self, operation: &'static str, needed: Access) -> Result<()> {
        if self.ended.load(Ordering::Acquire) != State::Live as u32 {
            return Err(Error::Stale {
                operation,
                what: Stale::Generation,
                held: self.generation.into(),
                current: 0,
            });
        }
        if !self.access.contains(needed) {
            return Err(Error::Access { operation, needed, granted: self.access });
        }
        Ok(())
    }
}
