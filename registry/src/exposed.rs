//! Memory that other processes touch at the same time: the only way by which bytes enter and leave it.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::element::{self, Atomic, Dtype, Reduce};
use crate::header::{Header, Layout, lock_owner};
use crate::{Access, Error, Incarnation, Kind, Result, copy, word};

/// How a process asks to be woken when a signal in its memory is added to.
pub trait Bell: Send + Sync {
    /// Not zero while somebody sleeps and wants the bell to be rung.
    fn asleep(&self) -> &AtomicU32;
    /// Wakes the process that owns the memory. Called outside of any lock.
    fn ring(&self);
}

/// A range of memory that any number of threads and processes read and write at once: a region's own, or a same-host
/// peer's, mapped. All copies go through one routine, loads and stores are atomic, and no reference into the bytes is
/// ever made, so a race gives stale or mixed bytes and never undefined behaviour.
#[derive(Clone)]
pub struct Exposed {
    base: NonNull<u8>,
    size: usize,
    kind: Kind,
    writable: bool,
    /// Where in its region the range begins: which stripes are its.
    start: usize,
    layout: Layout,
    header: Arc<OnceLock<Header>>,
    bell: Arc<dyn Bell>,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `base` is valid from any thread for as long as `keep` lives (promised to `new`), and all access goes through
// the copy routine and atomics.
unsafe impl Send for Exposed {}
// SAFETY: as above.
unsafe impl Sync for Exposed {}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposed")
            .field("base", &self.base)
            .field("size", &self.size)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// What an [`Exposed`] range is made of.
pub struct Parts {
    /// Its first byte.
    pub base: NonNull<u8>,
    /// Its size in bytes.
    pub size: usize,
    /// What memory it is.
    pub kind: Kind,
    /// Whether it can be written.
    pub writable: bool,
    /// Where in its region it begins, in bytes.
    pub start: usize,
    /// The layout of its region's library memory.
    pub layout: Layout,
    /// Its region's library memory, where it is there already.
    pub header: Option<Header>,
    /// How to wake the owner.
    pub bell: Arc<dyn Bell>,
    /// What keeps the memory mapped.
    pub keep: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("base", &self.base).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Exposed {
    /// Exposed memory of these parts.
    ///
    /// # Safety
    /// - `base` is valid for reads (and for writes, if `writable`) of `size` bytes from any thread while `keep` lives,
    ///   unless the kind is [`Kind::Device`];
    /// - no Rust reference to these bytes exists meanwhile;
    /// - `layout` is that of the whole region of which the range begins at `start`.
    #[must_use]
    pub unsafe fn new(parts: Parts) -> Self {
        let header = OnceLock::new();
        if let Some(h) = parts.header {
            let _ = header.set(h);
        }
        Self {
            base: parts.base,
            size: parts.size,
            kind: parts.kind,
            writable: parts.writable,
            start: parts.start,
            layout: parts.layout,
            header: Arc::new(header),
            bell: parts.bell,
            keep: parts.keep,
        }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(&self, operation: &'static str, offset: u64, size: u64) -> Result<Self> {
        let at = self.check(operation, offset, size)?;
        // SAFETY: inside the range, as checked above.
        let base = unsafe { self.base.add(at) };
        Ok(Self { base, size: size as usize, start: self.start + at, ..self.clone() })
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// What memory it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it can be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Its first byte. What is done with it is the caller's to prove.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// What keeps the memory mapped.
    #[must_use]
    pub fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        self.keep.clone()
    }

    /// How to wake the owner.
    #[must_use]
    pub fn bell(&self) -> &Arc<dyn Bell> {
        &self.bell
    }

    /// The library's memory beside the region, made at the first need.
    ///
    /// # Errors
    /// As for [`Header::create`].
    pub fn header(&self) -> Result<&Header> {
        if let Some(header) = self.header.get() {
            return Ok(header);
        }
        let made = Header::create(self.layout)?;
        Ok(self.header.get_or_init(|| made))
    }

    /// The library's memory beside the region, if there was a need yet.
    #[must_use]
    pub fn header_if_made(&self) -> Option<&Header> {
        self.header.get()
    }

    fn check(&self, operation: &'static str, offset: u64, size: u64) -> Result<usize> {
        let limit = self.size as u64;
        if size <= limit && offset <= limit - size {
            Ok(offset as usize)
        } else {
            Err(Error::OutOfRange { operation, offset, size, limit })
        }
    }

    fn check_host(&self, operation: &'static str, write: bool) -> Result<()> {
        if self.kind == Kind::Device {
            return Err(Error::invalid(
                operation,
                "the memory is a device's: no host instruction may touch it",
            ));
        }
        if write && !self.writable {
            return Err(Error::Access { operation, needed: Access::WRITE, granted: Access::READ });
        }
        Ok(())
    }

    /// Writes `from` at `offset`, as part of a transfer of `total` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Access`].
    ///
    /// # Safety
    /// `from` is valid for reads of `size` bytes and does not overlap the written range.
    pub unsafe fn write_from(&self, offset: u64, from: *const u8, size: usize, total: usize) -> Result<()> {
        self.check_host("put", true)?;
        let at = self.check("put", offset, size as u64)?;
        // SAFETY: `at + size` is inside the range, which is valid while `self.keep` lives; `from` is the caller's
        // promise.
        unsafe { copy::copy_part(self.base.as_ptr().add(at), from, size, total) };
        Ok(())
    }

    /// Reads `size` bytes at `offset` into `into`, as part of a transfer of `total` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    ///
    /// # Safety
    /// `into` is valid for writes of `size` bytes and does not overlap the read range.
    pub unsafe fn read_into(&self, offset: u64, into: *mut u8, size: usize, total: usize) -> Result<()> {
        self.check_host("get", false)?;
        let at = self.check("get", offset, size as u64)?;
        // SAFETY: as in `write_from`.
        unsafe { copy::copy_part(into, self.base.as_ptr().add(at), size, total) };
        Ok(())
    }

    /// Writes consecutive bytes of `from` to these parts, (offset, size) each, none of which ends beyond `end`: the range
    /// and the right are checked once for all of them.
    ///
    /// # Errors
    /// As for [`Exposed::write_from`].
    ///
    /// # Safety
    /// - no part ends beyond `end`, and their sizes add up to `total`;
    /// - `from` is valid for reads of `total` bytes and does not overlap any part.
    pub unsafe fn write_parts(
        &self,
        parts: &[(u64, u64)],
        end: u64,
        mut from: *const u8,
        total: usize,
    ) -> Result<()> {
        self.check_host("put", true)?;
        self.check("put", 0, end)?;
        let base = self.base.as_ptr();
        for &(offset, size) in parts {
            // SAFETY: the part is inside `end`, which is inside the range, and inside what is left of `from`: the caller's
            // promise. The range is valid while `self.keep` lives.
            unsafe {
                copy::copy_part(base.add(offset as usize), from, size as usize, total);
                from = from.add(size as usize);
            }
        }
        Ok(())
    }

    /// Reads these parts, (offset, size) each, none of which ends beyond `end`, into consecutive bytes of `into`: the
    /// range is checked once for all of them.
    ///
    /// # Errors
    /// As for [`Exposed::read_into`].
    ///
    /// # Safety
    /// - no part ends beyond `end`, and their sizes add up to `total`;
    /// - `into` is valid for writes of `total` bytes and does not overlap any part.
    pub unsafe fn read_parts(
        &self,
        parts: &[(u64, u64)],
        end: u64,
        mut into: *mut u8,
        total: usize,
    ) -> Result<()> {
        self.check_host("get", false)?;
        self.check("get", 0, end)?;
        let base = self.base.as_ptr();
        for &(offset, size) in parts {
            // SAFETY: as in `write_parts`.
            unsafe {
                copy::copy_part(into, base.add(offset as usize), size as usize, total);
                into = into.add(size as usize);
            }
        }
        Ok(())
    }

    /// As [`Exposed::write_parts`], from these places behind `from`, one for each part.
    ///
    /// # Errors
    /// As for [`Exposed::write_from`].
    ///
    /// # Safety
    /// - there are as many places as parts; no part ends beyond `end`, and their sizes add up to `total`;
    /// - `from` is valid for reads of every place, as large as its part, none of which overlaps any part.
    pub unsafe fn write_scattered(
        &self,
        parts: &[(u64, u64)],
        places: &[u64],
        end: u64,
        from: *const u8,
        total: usize,
    ) -> Result<()> {
        self.check_host("put", true)?;
        self.check("put", 0, end)?;
        let base = self.base.as_ptr();
        for (&(offset, size), &place) in parts.iter().zip(places) {
            // SAFETY: the part is inside `end`, which is inside the range; the place is readable: the caller's promise. The
            // range is valid while `self.keep` lives.
            unsafe {
                copy::copy_part(base.add(offset as usize), from.add(place as usize), size as usize, total);
            }
        }
        Ok(())
    }

    /// As [`Exposed::read_parts`], to these places behind `into`, one for each part.
    ///
    /// # Errors
    /// As for [`Exposed::read_into`].
    ///
    /// # Safety
    /// - there are as many places as parts; no part ends beyond `end`, and their sizes add up to `total`;
    /// - `into` is valid for writes of every place, as large as its part, none of which overlaps any part.
    pub unsafe fn read_scattered(
        &self,
        parts: &[(u64, u64)],
        places: &[u64],
        end: u64,
        into: *mut u8,
        total: usize,
    ) -> Result<()> {
        self.check_host("get", false)?;
        self.check("get", 0, end)?;
        let base = self.base.as_ptr();
        for (&(offset, size), &place) in parts.iter().zip(places) {
            // SAFETY: as in `write_scattered`.
            unsafe {
                copy::copy_part(into.add(place as usize), base.add(offset as usize), size as usize, total);
            }
        }
        Ok(())
    }

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Access`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        // SAFETY: a reference is valid, and nobody holds one into exposed memory (promised to `new`): no overlap.
        unsafe { self.write_from(offset, from.as_ptr(), from.len(), from.len()) }
    }

    /// Reads bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        // SAFETY: as in `write`.
        unsafe { self.read_into(offset, into.as_mut_ptr(), into.len(), into.len()) }
    }

    fn word_at(&self, operation: &'static str, offset: u64, width: usize, write: bool) -> Result<*mut u8> {
        self.check_host(operation, write)?;
        let at = self.check(operation, offset, width as u64)?;
        // SAFETY: inside the range.
        let ptr = unsafe { self.base.as_ptr().add(at) };
        if ptr.addr() % width != 0 || !offset.is_multiple_of(width as u64) {
            return Err(Error::Misaligned { operation, offset, align: width as u64 });
        }
        Ok(ptr)
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::Access`].
    #[inline]
    pub fn word64(&self, operation: &'static str, offset: u64) -> Result<&AtomicU64> {
        let ptr = self.word_at(operation, offset, 8, true)?;
        // SAFETY: inside the range, aligned, writable; racing byte copies are outside of Rust's view (other processes,
        // or the copy routine's raw accesses), and all our own typed accesses to exposed memory are atomic.
        Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) })
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Errors
    /// As for [`Exposed::word64`].
    #[inline]
    pub fn word32(&self, operation: &'static str, offset: u64) -> Result<&AtomicU32> {
        let ptr = self.word_at(operation, offset, 4, true)?;
        // SAFETY: as in `word64`.
        Ok(unsafe { AtomicU32::from_ptr(ptr.cast()) })
    }

    /// Loads the 64-bit word at `offset` (acquire).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn load(&self, offset: u64) -> Result<u64> {
        let ptr = self.word_at("load", offset, 8, false)?;
        // SAFETY: as in `word64`; a load needs no right to write.
        Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) }.load(Ordering::Acquire))
    }

    /// Executes a fetching atomic on a word of `width` (4 or 8) bytes and returns what was there. Sequentially
    /// consistent.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::Access`], [`Error::Invalid`] for another width or for an
    /// operand that does not fit in 4 bytes.
    pub fn atomic(&self, op: Atomic, width: u8, offset: u64, operand: u64, compare: u64) -> Result<u64> {
        const NAME: &str = "atomic";
        match width {
            8 => {
                let word = self.word64(NAME, offset)?;
                let o = Ordering::SeqCst;
                Ok(match op {
                    Atomic::Add => word.fetch_add(operand, o),
                    Atomic::Swap => word.swap(operand, o),
                    Atomic::CompareSwap => {
                        word.compare_exchange(compare, operand, o, o).unwrap_or_else(|current| current)
                    }
                    Atomic::And => word.fetch_and(operand, o),
                    Atomic::Or => word.fetch_or(operand, o),
                    Atomic::Xor => word.fetch_xor(operand, o),
                    Atomic::Min => word.fetch_min(operand, o),
                    Atomic::Max => word.fetch_max(operand, o),
                })
            }
            4 => {
                let word = self.word32(NAME, offset)?;
                let (Ok(operand), Ok(compare)) = (u32::try_from(operand), u32::try_from(compare)) else {
                    return Err(Error::invalid(
                        NAME,
                        format!("operand {operand:#x} does not fit in 4 bytes"),
                    ));
                };
                let o = Ordering::SeqCst;
                Ok(u64::from(match op {
                    Atomic::Add => word.fetch_add(operand, o),
                    Atomic::Swap => word.swap(operand, o),
                    Atomic::CompareSwap => {
                        word.compare_exchange(compare, operand, o, o).unwrap_or_else(|current| current)
                    }
                    Atomic::And => word.fetch_and(operand, o),
                    Atomic::Or => word.fetch_or(operand, o),
                    Atomic::Xor => word.fetch_xor(operand, o),
                    Atomic::Min => word.fetch_min(operand, o),
                    Atomic::Max => word.fetch_max(operand, o),
                }))
            }
            _ => Err(Error::invalid(NAME, format!("words of {width} bytes are not known, 4 and 8 are"))),
        }
    }

    /// Checks the place of an accumulate and returns how many elements it is.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::Access`].
    pub fn check_accumulate(&self, dtype: Dtype, offset: u64, size: usize) -> Result<usize> {
        const NAME: &str = "accumulate";
        self.check_host(NAME, true)?;
        self.check(NAME, offset, size as u64)?;
        let width = dtype.size();
        // Where the range begins counts too: stripes are cut by offsets in the region, and none may cut an element.
        let in_region = self.start as u64 + offset;
        if !offset.is_multiple_of(width as u64) || !in_region.is_multiple_of(width as u64) {
            return Err(Error::Misaligned { operation: NAME, offset: in_region, align: width as u64 });
        }
        if !size.is_multiple_of(width) {
            return Err(Error::invalid(
                NAME,
                format!("{size} bytes are not a whole number of {dtype} elements"),
            ));
        }
        Ok(size / width)
    }

    /// Its accumulate locks, made at the first need; `None` when some of its bytes have none.
    ///
    /// # Errors
    /// As for [`Header::create`].
    pub fn stripes(&self) -> Result<Option<Stripes>> {
        let locks = self.header()?.locks(self.start.saturating_add(self.size));
        Ok(locks.map(|locks| Stripes {
            locks,
            shift: self.layout.stripe().trailing_zeros(),
            start: self.start as u64,
        }))
    }

    /// Reduces the elements at `from` into those at `offset`, atomically, element by element, against every other
    /// accumulate on the region. Takes the locks of its stripes one after the other, in address order.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::Access`]; [`Error::Torn`] when a stripe was left half done
    /// by a process that died: the operation itself is complete, the stripe's former content is in doubt;
    /// [`Error::Expired`] when a stripe is held past the deadline: the stripes before it are done.
    ///
    /// # Safety
    /// `from` is valid for reads of `size` bytes and does not overlap the target.
    pub unsafe fn accumulate(
        &self,
        dtype: Dtype,
        reduce: Reduce,
        offset: u64,
        from: *const u8,
        size: usize,
        mut by: Locker,
    ) -> Result<()> {
        self.check_accumulate(dtype, offset, size)?;
        let header = self.header()?;
        let stripe = self.layout.stripe();
        let first = self.start + offset as usize;
        let mut at = first;
        let mut torn = None;
        while at < first + size {
            let index = at / stripe;
            let end = ((index + 1) * stripe).min(first + size);
            let lock = header.lock(index);
            if self.lock(lock, &mut by)? {
                torn.get_or_insert(index * stripe);
            }
            // SAFETY: `at - self.start` is inside the range (checked above), `at - first` inside `from`; the stripe's
            // lock is held.
            unsafe {
                element::reduce(
                    dtype,
                    reduce,
                    self.base.as_ptr().add(at - self.start),
                    from.add(at - first),
                    (end - at) / dtype.size(),
                );
            }
            word::unlock(lock);
            at = end;
        }
        match torn {
            None => Ok(()),
            Some(offset) => Err(Error::Torn {
                operation: "accumulate",
                offset: offset.saturating_sub(self.start) as u64,
                size: stripe as u64,
            }),
        }
    }

    /// As [`Exposed::accumulate`], from bytes that nobody else writes.
    ///
    /// # Errors
    /// As there.
    pub fn accumulate_bytes(
        &self,
        dtype: Dtype,
        reduce: Reduce,
        offset: u64,
        from: &[u8],
        by: Locker,
    ) -> Result<()> {
        // SAFETY: a reference is valid, and nobody holds one into exposed memory (promised to `new`): no overlap.
        unsafe { self.accumulate(dtype, reduce, offset, from.as_ptr(), from.len(), by) }
    }

    #[inline]
    fn lock(&self, lock: &AtomicU64, by: &mut Locker) -> Result<bool> {
        let me = lock_owner(by.incarnation);
        match word::try_lock(lock, me) {
            Ok(torn) => Ok(torn),
            Err(_) => Self::lock_slow(lock, me, &mut by.patience),
        }
    }

    #[cold]
    fn lock_slow(lock: &AtomicU64, me: u64, patience: &mut Duration) -> Result<bool> {
        let since = Instant::now();
        let mut round = 0_u32;
        loop {
            let holder = match word::try_lock(lock, me) {
                Ok(torn) => {
                    // The next lock of the same accumulate has what is left.
                    *patience = patience.saturating_sub(since.elapsed());
                    return Ok(torn);
                }
                Err(holder) => holder,
            };
            round = round.saturating_add(1);
            if round < 64 {
                std::hint::spin_loop();
                continue;
            }
            let after = since.elapsed();
            if after > *patience {
                return Err(Error::Expired {
                    operation: "accumulate",
                    rank: None,
                    after,
                    detail: format!("its lock is held by incarnation {holder:016x}"),
                    outcome: Some(crate::Outcome::InDoubt),
                });
            }
            if round < 80 {
                std::thread::yield_now();
            } else {
                std::thread::park_timeout(Duration::from_micros(50));
            }
        }
    }

    /// The signal with this number.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is none; as for [`Exposed::header`].
    #[inline]
    pub fn signal(&self, id: u32) -> Result<&AtomicU64> {
        match self.header()?.signal(id) {
            Some(signal) => Ok(signal),
            None => Err(Error::invalid(
                "signal",
                format!("signal {id} does not exist, the region has {}", self.header()?.signals()),
            )),
        }
    }

    /// Adds to a signal, after everything that this thread wrote before, and wakes who sleeps for it.
    ///
    /// # Errors
    /// As for [`Exposed::signal`]; [`Error::Invalid`] when the counter would go past its largest value.
    #[inline]
    pub fn signal_add(&self, id: u32, add: u64) -> Result<()> {
        match word::signal_add(self.signal(id)?, self.bell.asleep(), add) {
            Some(true) => self.bell.ring(),
            Some(false) => {}
            None => return Err(signal_is_full(id, add)),
        }
        Ok(())
    }
}

/// That a signal's counter has no room for an add.
#[cold]
#[must_use]
pub fn signal_is_full(id: u32, add: u64) -> Error {
    Error::invalid("signal", format!("signal {id} would go past {}: adding {add} is refused", u64::MAX))
}

/// Where the accumulate locks of a range are, for those who take free ones without asking further.
#[derive(Debug, Clone, Copy)]
pub struct Stripes {
    /// The lock of the region's first stripe; the others follow. Mapped as long as the range is kept.
    pub locks: NonNull<AtomicU64>,
    /// The binary logarithm of a stripe's size in bytes.
    pub shift: u32,
    /// Where in its region the range begins, in bytes: the stripe of a byte is `(start + offset) >> shift`.
    pub start: u64,
}

/// Who takes accumulate locks, and how long it waits for one.
#[derive(Debug, Clone, Copy)]
pub struct Locker {
    /// The process that takes them.
    pub incarnation: Incarnation,
    /// How long it waits for a holder that lives.
    pub patience: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Memory};

    struct Silent(AtomicU32);

    impl Bell for Silent {
        fn asleep(&self) -> &AtomicU32 {
            &self.0
        }
        fn ring(&self) {}
    }

    fn exposed(size: usize, writable: bool) -> Exposed {
        let host = Host::new(size).unwrap();
        let parts = Parts {
            base: host.as_ptr(),
            size,
            kind: Kind::Host,
            writable,
            start: 0,
            layout: Layout::new(size, 0),
            header: None,
            bell: Arc::new(Silent(AtomicU32::new(0))),
            keep: Arc::new(host),
        };
        // SAFETY: memory of `size` bytes, kept, to which no reference exists; the layout is its.
        unsafe { Exposed::new(parts) }
    }

    #[test]
    fn parts_of_every_size_are_scattered_and_gathered_exactly() {
        const SIZE: usize = 200_000;
        let memory = exposed(SIZE, true);
        let (mut parts, mut end) = (Vec::new(), 0);
        for size in (1..=300).chain([511, 512, 513, 20_000, 40_000]) {
            parts.push((end + size % 7, size));
            end += size % 7 + size;
        }
        parts.reverse();
        let total = parts.iter().map(|part| part.1).sum::<u64>() as usize;
        let from: Vec<u8> = (0..total).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
        let mut model = vec![0; SIZE];
        let mut at = 0;
        for &(offset, size) in &parts {
            model[offset as usize..][..size as usize].copy_from_slice(&from[at..at + size as usize]);
            at += size as usize;
        }
        let (mut seen, mut back) = (vec![0; SIZE], vec![0; total]);
        // SAFETY: the end and the total are those of the parts, and both buffers are of this test alone.
        unsafe {
            memory.write_parts(&parts, end, from.as_ptr(), total).unwrap();
            memory.read_parts(&parts, end, back.as_mut_ptr(), total).unwrap();
        }
        memory.read(0, &mut seen).unwrap();
        assert!(seen == model && back == from);
    }

    #[test]
    fn parts_beyond_the_end_or_without_the_right_are_refused_before_the_first() {
        let (memory, frozen) = (exposed(4096, true), exposed(4096, false));
        let (parts, mut buffer) = ([(0, 8), (4090, 8)], [1; 16]);
        // SAFETY: as above.
        let refused = unsafe {
            [
                memory.write_parts(&parts, 4098, buffer.as_ptr(), 16),
                memory.read_parts(&parts, 4098, buffer.as_mut_ptr(), 16),
            ]
        };
        let range = |r: &Result<()>| matches!(r, Err(Error::OutOfRange { size: 4098, limit: 4096, .. }));
        assert!(refused.iter().all(range), "{refused:?}");
        assert_eq!((memory.load(0).unwrap(), buffer), (0, [1; 16]));
        // SAFETY: as above.
        let refused = unsafe { frozen.write_parts(&parts[..1], 8, buffer.as_ptr(), 8) };
        assert!(matches!(refused, Err(Error::Access { .. })), "{refused:?}");
        // SAFETY: as above.
        unsafe { frozen.read_parts(&parts[..1], 8, buffer.as_mut_ptr(), 8) }.unwrap();
        assert_eq!(buffer[..9], [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_range_whose_stripes_have_no_locks_offers_none() {
        let memory = exposed(3 * 4096 + 1, true);
        let all = memory.stripes().unwrap().unwrap();
        assert_eq!((all.shift, all.start), (12, 0));
        let part = memory.part("test", 5000, 100).unwrap().stripes().unwrap().unwrap();
        assert_eq!((part.locks, part.start), (all.locks, 5000));
        let beyond = Exposed { start: 4 * 4096, ..memory.part("test", 0, 1).unwrap() };
        assert!(beyond.stripes().unwrap().is_none());
    }
}
