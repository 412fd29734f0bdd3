//! Memory of another process, mapped here.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FileType, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::limits::{self, MOST};
use super::mapping::Mapping;
use crate::{Error, Result};

/// Another process's memory, mapped into this one from a descriptor that it sent.
///
/// The bytes belong to somebody else: they change at any time, so they are read and written through raw pointers, never
/// through references.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    size: usize,
    writable: bool,
}

const OPERATION: &str = "map a peer's memory";

impl Mapped {
    /// Maps `size` bytes of `fd` from `offset` on, and closes `fd`.
    ///
    /// Everything is checked before it is mapped. With `sealed`, the file has to be sealed against shrinking, so that
    /// the mapping stays valid whatever its owner does; without it, nobody may truncate the file while this lives.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a size of 0, [`Error::Misaligned`] for an offset that is not at a page;
    /// - [`Error::Malformed`] for a descriptor of anything but a file, and for one that is not sealed but should be;
    /// - [`Error::OutOfRange`] where the file is smaller than that;
    /// - [`Error::TooLarge`], [`Error::Limit`] and [`Error::Io`] where the operating system refuses.
    pub fn new(fd: OwnedFd, offset: u64, size: usize, writable: bool, sealed: bool) -> Result<Self> {
        if size == 0 {
            return Err(Error::invalid(OPERATION, "size is 0, expected 1 byte or more"));
        }
        if sealed {
            check_sealed(&fd)?;
        }
        let stat = rustix::fs::fstat(&fd).map_err(|e| Error::io("read the size of a peer's memory", e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(malformed("the descriptor is not a file"));
        }
        let limit = u64::try_from(stat.st_size).unwrap_or(0);
        let page = page_size(&fd);
        if !offset.is_multiple_of(page) {
            return Err(Error::Misaligned { operation: OPERATION, offset, align: page });
        }
        if offset.checked_add(size as u64).is_none_or(|end| end > limit) {
            return Err(Error::OutOfRange { operation: OPERATION, offset, size: size as u64, limit });
        }
        if size as u64 > MOST {
            let limit = "address space".into();
            return Err(Error::TooLarge { requested: size as u64, available: MOST, limit });
        }
        let whole = (size as u64).next_multiple_of(page) as usize;
        let mapping = Mapping::new(fd.as_fd(), offset, whole, writable)
            .map_err(|errno| limits::diagnose(OPERATION, errno, whole as u64))?;
        Ok(Self { mapping, size, writable })
    }

    /// Its first byte in this process.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether it may be written here.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "a peer's memory descriptor", why: why.into() }
}

fn check_sealed(fd: &OwnedFd) -> Result<()> {
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Ok(()),
        Ok(_) => Err(malformed("it is not sealed against shrinking")),
        Err(Errno::INVAL) => Err(malformed("its kind of file cannot be sealed")),
        Err(errno) => Err(Error::io("read the seals of a peer's memory", errno)),
    }
}

/// The size of the pages that a file is mapped in: huge ones on hugetlbfs.
fn page_size(fd: &OwnedFd) -> u64 {
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let usual = rustix::param::page_size() as u64;
    match rustix::fs::fstatfs(fd) {
        Ok(fs) if fs.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC => {
            u64::try_from(fs.f_bsize).ok().filter(|page| page.is_power_of_two()).unwrap_or(usual)
        }
        _ => usual,
    }
}

/// A second descriptor of the same memory that can be mapped for reading only.
///
/// It keeps a peer that plays by the rules from writing by mistake. It is no wall: a process of the same user can open
/// `/proc/self/fd/N` for writing again, as this function opens it for reading, unless the memory is
/// [sealed against that](super::HostBuilder::read_only_to_peers). Needs `/proc`.
///
/// # Errors
/// [`Error::Limit`] with too many files open, [`Error::Io`] where `/proc` is missing or refuses.
pub fn read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| limits::diagnose("open shared memory read-only", errno, 0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;

    use super::super::{Host, Memory};
    use super::*;

    fn page() -> usize {
        rustix::param::page_size()
    }

    fn descriptor(memory: &Host) -> OwnedFd {
        memory.share().unwrap().fd.try_clone_to_owned().unwrap()
    }

    fn unsealed(size: usize) -> OwnedFd {
        let fd = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, size as u64).unwrap();
        fd
    }

    #[test]
    fn two_mappings_see_each_others_bytes_also_from_an_offset_and_after_the_owner_is_gone() {
        let memory = Host::new(2 * page()).unwrap();
        let mapped = Mapped::new(descriptor(&memory), page() as u64, page(), true, true).unwrap();
        assert_eq!((mapped.size(), mapped.is_writable()), (page(), true));
        // SAFETY: all offsets are inside the two pages, which only this test uses.
        unsafe {
            let second = memory.as_ptr().add(page());
            second.add(5).write_volatile(11);
            assert_eq!(mapped.as_ptr().add(5).read_volatile(), 11);
            mapped.as_ptr().add(page() - 1).write_volatile(12);
            assert_eq!(second.add(page() - 1).read_volatile(), 12);
            drop(memory);
            assert_eq!(mapped.as_ptr().add(5).read_volatile(), 11);
        }
    }

    #[test]
    fn memory_that_could_be_truncated_is_refused_unless_that_is_accepted() {
        let refused = Mapped::new(unsealed(page()), 0, page(), true, true);
        assert!(matches!(refused, Err(Error::Malformed { .. })), "{refused:?}");
        Mapped::new(unsealed(page()), 0, page(), true, false).unwrap();
        let fd = unsealed(page());
        rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW).unwrap();
        assert!(matches!(Mapped::new(fd, 0, page(), true, true), Err(Error::Malformed { .. })));
    }

    #[test]
    fn descriptors_of_other_things_are_refused() {
        for sealed in [true, false] {
            let (pipe, _writer) = rustix::pipe::pipe().unwrap();
            let null = std::fs::File::open("/dev/null").unwrap();
            let folder = std::fs::File::open("/").unwrap();
            for fd in [pipe, null.into(), folder.into()] {
                let refused = Mapped::new(fd, 0, page(), false, sealed);
                assert!(matches!(refused, Err(Error::Malformed { .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn ranges_outside_the_memory_are_refused_before_they_are_mapped() {
        let memory = Host::new(2 * page()).unwrap();
        let page = page();
        let last = u64::MAX - u64::MAX % page as u64;
        for (offset, size) in [
            (0, 2 * page + 1),
            (page as u64, page + 1),
            (2 * page as u64, 1),
            (0, usize::MAX),
            (page as u64, usize::MAX),
            (last, page),
            (last, usize::MAX),
        ] {
            for sealed in [true, false] {
                let refused = Mapped::new(descriptor(&memory), offset, size, true, sealed);
                assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{offset} {size}: {refused:?}");
            }
        }
    }

    #[test]
    fn offsets_inside_a_page_and_empty_ranges_are_refused() {
        let memory = Host::new(2 * page()).unwrap();
        for offset in [1, page() as u64 - 1, u64::MAX] {
            let refused = Mapped::new(descriptor(&memory), offset, 1, true, true);
            assert!(matches!(refused, Err(Error::Misaligned { .. })), "{offset}: {refused:?}");
        }
        assert!(matches!(Mapped::new(descriptor(&memory), 0, 0, true, true), Err(Error::Invalid { .. })));
    }

    #[test]
    fn a_read_only_descriptor_shows_the_same_bytes_and_cannot_be_mapped_writable() {
        let memory = Host::new(1).unwrap();
        let fd = read_only(memory.share().unwrap().fd).unwrap();
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let refused = Mapped::new(fd.try_clone().unwrap(), 0, 1, true, true);
        assert!(
            matches!(refused, Err(Error::Io { errno, .. }) if errno == Errno::ACCESS.raw_os_error()),
            "{refused:?}"
        );
        assert!(rustix::io::write(fd.as_fd(), &[1]).is_err());
        let mapped = Mapped::new(fd, 0, 1, false, true).unwrap();
        assert!(!mapped.is_writable());
        // SAFETY: the only byte of each mapping, which only this test uses.
        unsafe {
            memory.as_ptr().write_volatile(7);
            assert_eq!(mapped.as_ptr().read_volatile(), 7);
        }
    }
}
