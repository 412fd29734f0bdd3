//! Registered memory, and checked ranges of it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::exposed::Exposed;
use crate::header::{Layout, State};
use crate::remote::RemoteRegion;
use crate::table::Registry;
use crate::{Access, Error, Kind, Memory, Result};

/// Memory that has been registered: peers that were given a [`RemoteRegion`] of it reach it until it is dropped.
///
/// A handle: clones are the same region, which ends when the last of them and the last [`Slice`] are gone. Then peers
/// are refused with a stale generation, and the memory itself stays until each peer that mapped it has let go.
#[derive(Clone)]
pub struct MemoryRegion(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) registry: Arc<Registry>,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) layout: Layout,
    pub(crate) exposed: Exposed,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) exports: Mutex<Vec<Export>>,
    /// Shared with every grant: 0 while the region lives.
    pub(crate) ended: Arc<std::sync::atomic::AtomicU32>,
}

/// A range that was handed out, with its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) access: Access,
    pub(crate) epoch: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.registry.is_a_forks() {
            return;
        }
        self.ended.store(State::Gone as u32, Ordering::Release);
        if let Some(header) = self.exposed.header_if_made() {
            header.end(State::Gone);
        }
        self.registry.release(self.slot);
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("slot", &self.0.slot)
            .field("generation", &self.0.generation)
            .field("size", &self.size())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl MemoryRegion {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.exposed.size()
    }

    /// What memory it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.exposed.kind()
    }

    /// How many signals it has.
    #[must_use]
    pub fn signals(&self) -> u32 {
        self.0.layout.signals()
    }

    /// Whether a descriptor names this very region, or a part of it.
    #[must_use]
    pub fn is_named_by(&self, remote: &RemoteRegion) -> bool {
        self.0.slot == remote.slot
            && self.0.generation == remote.generation
            && self.0.registry.incarnation() == remote.incarnation
    }

    /// Its bytes as peers see them.
    #[must_use]
    pub fn exposed(&self) -> &Exposed {
        &self.0.exposed
    }

    /// A range of it, in bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: Range<usize>) -> Result<Slice> {
        let size = range.end.checked_sub(range.start).unwrap_or(usize::MAX);
        let limit = self.size();
        if size <= limit && range.start <= limit - size {
            Ok(Slice { region: self.clone(), offset: range.start, size })
        } else {
            Err(Error::OutOfRange {
                operation: "slice",
                offset: range.start as u64,
                size: size as u64,
                limit: limit as u64,
            })
        }
    }

    /// All of it.
    #[must_use]
    pub fn all(&self) -> Slice {
        Slice { region: self.clone(), offset: 0, size: self.size() }
    }

    /// What a peer needs to reach all of it with these rights.
    ///
    /// # Errors
    /// [`Error::Access`] when the memory is read-only, or is to peers, and a right to change it is asked for; as for the library's own
    /// memory beside it, which is made at the first need.
    pub fn remote(&self, access: Access) -> Result<RemoteRegion> {
        self.export(0..self.size(), access)
    }

    /// What a peer needs to reach a part of it with these rights. A part is a region of its own to the peer: its
    /// offsets begin at 0.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; as for [`MemoryRegion::remote`].
    pub fn export(&self, range: Range<usize>, access: Access) -> Result<RemoteRegion> {
        self.export_for_epoch(range, access, 0)
    }

    /// As [`MemoryRegion::export`], for the members of one epoch of a team.
    ///
    /// # Errors
    /// As for [`MemoryRegion::export`].
    pub fn export_for_epoch(&self, range: Range<usize>, access: Access, epoch: u64) -> Result<RemoteRegion> {
        let slice = self.slice(range)?;
        let change = Access::WRITE | Access::ATOMIC;
        if self.0.memory.is_read_only_to_peers() && (access & change) != Access::NONE {
            return Err(Error::Access {
                operation: "export",
                needed: access & change,
                granted: Access::READ,
            });
        }
        let export = Export { offset: slice.offset as u64, size: slice.size as u64, access, epoch };
        let mut exports = self.0.exports.lock();
        if !exports.contains(&export) {
            exports.push(export);
        }
        drop(exports);
        Ok(RemoteRegion {
            incarnation: self.0.registry.incarnation(),
            slot: self.0.slot,
            generation: self.0.generation,
            epoch,
            offset: export.offset,
            size: export.size,
            kind: self.kind(),
            access,
            signals: if access.contains(Access::SIGNAL) { self.signals() } else { 0 },
            addresses: self.0.registry.addresses(),
        })
    }

    /// Reads bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Invalid`] on device memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.0.exposed.read(offset as u64, into)
    }

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Access`] when it is read-only; [`Error::Invalid`] on device memory.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.0.exposed.write(offset as u64, from)
    }

    /// Loads the 64-bit word at `offset` (acquire).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]; [`Error::Invalid`] on device memory.
    pub fn load(&self, offset: usize) -> Result<u64> {
        self.0.exposed.load(offset as u64)
    }

    /// Stores the 64-bit word at `offset` (release).
    ///
    /// # Errors
    /// As for [`MemoryRegion::load`]; [`Error::Access`] when it is read-only.
    pub fn store(&self, offset: usize, value: u64) -> Result<()> {
        self.0.exposed.word64("store", offset as u64)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to the 64-bit word at `offset` and returns what was there (sequentially consistent, atomic against every
    /// peer).
    ///
    /// # Errors
    /// As for [`MemoryRegion::store`].
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64> {
        Ok(self.0.exposed.word64("fetch_add", offset as u64)?.fetch_add(add, Ordering::SeqCst))
    }

    /// The counter of a signal; only the library adds to it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such signal.
    pub fn signal(&self, id: u32) -> Result<u64> {
        Ok(self.signal_word(id)?.load(Ordering::Acquire))
    }

    /// The word of a signal.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such signal.
    pub fn signal_word(&self, id: u32) -> Result<&AtomicU64> {
        self.0.exposed.signal(id)
    }

    /// Its bytes.
    ///
    /// # Safety
    /// While the slice is alive no peer and no other thread writes to the region: for instance between a wait for the
    /// signal that says "all is here" and the answer that allows the next put.
    ///
    /// # Errors
    /// [`Error::Invalid`] on device memory.
    pub unsafe fn as_slice(&self) -> Result<&[u8]> {
        if self.kind() == Kind::Device {
            return Err(Error::invalid(
                "as_slice",
                "the memory is a device's: no host instruction may touch it",
            ));
        }
        // SAFETY: valid for `size` bytes while the region lives (the contract of `Memory`); no writer: the caller's
        // promise.
        Ok(unsafe { std::slice::from_raw_parts(self.0.exposed.as_ptr(), self.size()) })
    }

    /// The memory that was registered.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.0.memory
    }
}

/// A checked range of a region, which it keeps alive.
#[derive(Clone)]
pub struct Slice {
    region: MemoryRegion,
    offset: usize,
    size: usize,
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}..{}]", self.region, self.offset, self.offset + self.size)
    }
}

impl Slice {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where in its region it begins, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its region.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Its first byte, valid for `size` bytes while the slice lives; peers may write it at any time.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `offset` is at most the region's size (checked when the slice was made).
        unsafe { self.region.0.exposed.as_ptr().add(self.offset) }
    }

    /// A range of it, in bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let size = range.end.checked_sub(range.start).unwrap_or(usize::MAX);
        if size <= self.size && range.start <= self.size - size {
            Ok(Self { region: self.region.clone(), offset: self.offset + range.start, size })
        } else {
            Err(Error::OutOfRange {
                operation: "slice",
                offset: range.start as u64,
                size: size as u64,
                limit: self.size as u64,
            })
        }
    }

    /// Reads bytes at `offset` of it.
    ///
    /// # Errors
    /// As for [`MemoryRegion::read`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.slice(offset..offset.saturating_add(into.len()))?;
        self.region.read(self.offset + offset, into)
    }

    /// Writes bytes at `offset` of it.
    ///
    /// # Errors
    /// As for [`MemoryRegion::write`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.slice(offset..offset.saturating_add(from.len()))?;
        self.region.write(self.offset + offset, from)
    }

    /// Writes its bytes to a file at `file_offset`, straight from the memory, and returns how many the file took: fewer than
    /// [`Slice::size`] where the disk is full, or a limit was reached. An interrupted call is made again.
    ///
    /// The kernel copies, so a peer that puts at the same time gives mixed bytes and nothing worse. A file that was opened
    /// for direct I/O takes the bytes without any copy, if address, size and `file_offset` are multiples of its alignment
    /// (memory that this library allocates begins at a page).
    ///
    /// # Errors
    /// What the operating system says; [`io::ErrorKind::Unsupported`] on device memory; [`io::ErrorKind::InvalidInput`] for
    /// an offset that no file has.
    pub fn write_at(&self, file: impl AsFd, file_offset: u64) -> io::Result<usize> {
        self.check_file_io("write to a file", false)?;
        let (fd, offset) = (file.as_fd(), offset_of(file_offset)?);
        retry(|| {
            // SAFETY: `as_ptr` is valid for `size` bytes while `self` lives, which is until the call has returned. Only the
            // kernel reads them, and no reference is made, so what peers do meanwhile is no race of this program.
            unsafe { libc::pwrite64(fd.as_raw_fd(), self.as_ptr().cast(), self.size, offset) }
        })
    }

    /// Reads from a file at `file_offset`, straight into the memory, and returns how many bytes came: fewer than
    /// [`Slice::size`] at the end of the file, 0 beyond it. An interrupted call is made again.
    ///
    /// As for [`Slice::write_at`], the kernel copies, and files that were opened for direct I/O want aligned addresses,
    /// sizes and offsets.
    ///
    /// # Errors
    /// As for [`Slice::write_at`]; [`io::ErrorKind::PermissionDenied`] when the memory is read-only.
    pub fn read_at(&self, file: impl AsFd, file_offset: u64) -> io::Result<usize> {
        self.check_file_io("read from a file", true)?;
        let (fd, offset) = (file.as_fd(), offset_of(file_offset)?);
        retry(|| {
            // SAFETY: as in `write_at`; the memory is writable (checked above), and only the kernel writes to it.
            unsafe { libc::pread64(fd.as_raw_fd(), self.as_ptr().cast(), self.size, offset) }
        })
    }

    fn check_file_io(&self, action: &str, changes: bool) -> io::Result<()> {
        if self.region.kind() == Kind::Device {
            let why = format!("{action}: the memory is a device's, which the kernel cannot copy");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        if changes && !self.region.exposed().is_writable() {
            let why = format!("{action}: the memory is read-only");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(())
    }
}

fn offset_of(file_offset: u64) -> io::Result<i64> {
    i64::try_from(file_offset).map_err(|_| {
        let why = format!("offset {file_offset} is beyond the largest of any file, {}", i64::MAX);
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// Makes a system call until it is not interrupted; below 0, `errno` says why.
fn retry(call: impl Fn() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::exposed::Bell;
    use crate::{Host, Incarnation};

    struct Nobody(AtomicU32);

    impl Bell for Nobody {
        fn asleep(&self) -> &AtomicU32 {
            &self.0
        }
        fn ring(&self) {}
    }

    fn registry() -> Arc<Registry> {
        Registry::new(Incarnation::random().unwrap(), Arc::new(Nobody(AtomicU32::new(0))))
    }

    fn region(size: usize) -> MemoryRegion {
        registry().register(Host::new(size).unwrap(), 0).unwrap()
    }

    /// A file without a name.
    fn file() -> File {
        File::from(rustix::fs::memfd_create(c"region", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
    }

    #[test]
    fn slices_go_to_files_and_come_back_at_any_offset() {
        let region = region(10_000);
        let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        region.write(0, &bytes).unwrap();
        let file = file();
        assert_eq!(region.slice(17..9_000).unwrap().write_at(&file, 5_000_000_003).unwrap(), 8_983);
        let mut seen = vec![0; 8_983];
        file.read_exact_at(&mut seen, 5_000_000_003).unwrap();
        assert_eq!(seen, bytes[17..9_000]);

        let back = super::tests::region(9_000);
        assert_eq!(
            back.slice(1..9_000).unwrap().read_at(&file, 5_000_000_003).unwrap(),
            8_983,
            "a short count"
        );
        let mut seen = vec![0; 9_000];
        back.read(0, &mut seen).unwrap();
        assert_eq!((seen[0], &seen[1..8_984], &seen[8_984..]), (0, &bytes[17..9_000], &[0; 16][..]));
        assert_eq!(back.all().read_at(&file, 1 << 40).unwrap(), 0, "beyond the end");
    }

    #[test]
    fn what_the_operating_system_refuses_is_an_error_and_so_are_offsets_of_no_file() {
        let region = region(4096);
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let error = region.all().write_at(&read, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
        for error in [region.all().write_at(file(), 1 << 63), region.all().read_at(file(), u64::MAX)] {
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn read_only_memory_is_written_to_files_and_never_read_into() {
        let (file, kept) = (file(), file());
        file.write_all_at(b"0123456789", 0).unwrap();
        kept.write_all_at(&[3; 4096], 0).unwrap();
        let memory = crate::File::open(format!("/proc/self/fd/{}", kept.as_raw_fd())).unwrap();
        let region = registry().register(memory, 0).unwrap();
        assert_eq!(region.all().read_at(&file, 0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let mut seen = [0; 10];
        kept.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [3; 10]);
        assert_eq!(region.all().write_at(&file, 0).unwrap(), 4096);
    }

    #[test]
    fn aligned_slices_are_fit_for_direct_io() {
        use rustix::fs::{Mode, OFlags};
        let path = std::env::temp_dir().join(format!("transom-direct-{}", std::process::id()));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let direct = match rustix::fs::open(&path, flags | OFlags::DIRECT, Mode::RUSR | Mode::WUSR) {
            Ok(direct) => direct,
            // Not every file system has it.
            Err(rustix::io::Errno::INVAL) => return drop(std::fs::remove_file(&path)),
            Err(error) => panic!("{error}"),
        };
        std::fs::remove_file(&path).unwrap();
        let region = region(3 << 12);
        region.write(1 << 12, &[7; 1 << 12]).unwrap();
        assert_eq!(region.slice(1 << 12..2 << 12).unwrap().write_at(&direct, 1 << 12).unwrap(), 1 << 12);
        assert_eq!(region.slice(2 << 12..3 << 12).unwrap().read_at(&direct, 1 << 12).unwrap(), 1 << 12);
        let mut seen = vec![0; 1 << 12];
        region.read(2 << 12, &mut seen).unwrap();
        assert_eq!(seen, [7; 1 << 12]);
    }
}
