//! Host memory that this library allocates.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;

use super::limits::{self, MOST};
use super::mapping::Mapping;
use super::{Kind, Memory, Shared};
use crate::{Error, Result};

/// Shared host memory: a memfd that cannot be shrunk or grown, mapped and filled with zeros.
///
/// Its file is private (mode 0600, close-on-exec), and is sealed before anybody else can see it: a process that maps
/// it cannot be ended by somebody else's truncation.
///
/// # Examples
/// ```
/// use transom_registry::{Host, Memory};
///
/// let memory = Host::new(4096)?;
/// assert_eq!(memory.size(), 4096);
/// # Ok::<(), transom_registry::Error>(())
/// ```
#[derive(Debug)]
pub struct Host {
    mapping: Mapping,
    fd: OwnedFd,
    size: usize,
    huge_pages: bool,
    only_ours: bool,
}

/// Whether memory is made of huge pages (hugetlb, of the default huge page size).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HugePages {
    /// Pages of the usual size.
    #[default]
    Never,
    /// Huge pages where enough are reserved and free, otherwise pages of the usual size.
    Try,
    /// Huge pages, or an error.
    Required,
}

/// Builds [`Host`] memory.
#[derive(Debug, Clone)]
#[must_use]
pub struct HostBuilder {
    size: usize,
    sparse: bool,
    huge_pages: HugePages,
    read_only_to_peers: bool,
}

impl Host {
    /// Allocates `size` bytes, every page of them present.
    ///
    /// # Errors
    /// As [`HostBuilder::build`].
    pub fn new(size: usize) -> Result<Self> {
        Self::builder(size).build()
    }

    /// Describes `size` bytes of memory, to be allocated by [`HostBuilder::build`].
    pub fn builder(size: usize) -> HostBuilder {
        HostBuilder { size, sparse: false, huge_pages: HugePages::Never, read_only_to_peers: false }
    }

    /// Whether it is made of huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }
}

impl HostBuilder {
    /// Leaves the pages to their first use. No amount is checked beforehand, so that using more of it than there is
    /// memory ends in the kernel's hands. Huge pages are always present.
    pub fn sparse(mut self, sparse: bool) -> Self {
        self.sparse = sparse;
        self
    }

    /// Asks for huge pages.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Seals it against every writer but this process's own mapping, before anybody else can see it: no process, not even
    /// one of the same user, makes a writable mapping from its descriptor, writes to it, or punches holes into it. It can be
    /// exported without the rights to write and to its atomics only. Its signals are in memory of the library's.
    pub fn read_only_to_peers(mut self, read_only: bool) -> Self {
        self.read_only_to_peers = read_only;
        self
    }

    /// Allocates it.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a size of 0;
    /// - [`Error::TooLarge`] where the machine, a control group or the address space has less than that;
    /// - [`Error::Limit`] for too many files or mappings, and where required huge pages are missing;
    /// - [`Error::Io`] for anything else that the operating system refuses.
    pub fn build(self) -> Result<Host> {
        let Self { size, sparse, huge_pages, read_only_to_peers: only_ours } = self;
        if size == 0 {
            return Err(Error::invalid("allocate memory", "size is 0, expected 1 byte or more"));
        }
        if size as u64 > MOST {
            let limit = "address space".into();
            return Err(Error::TooLarge { requested: size as u64, available: MOST, limit });
        }
        match huge_pages {
            HugePages::Never => small(size, sparse, only_ours),
            HugePages::Required => huge(size, only_ours),
            HugePages::Try => huge(size, only_ours).or_else(|_| small(size, sparse, only_ours)),
        }
    }
}

fn small(size: usize, sparse: bool, only_ours: bool) -> Result<Host> {
    let whole = size.next_multiple_of(rustix::param::page_size());
    if !sparse {
        limits::check_available(whole as u64)?;
    }
    let told = |action| move |errno| limits::diagnose(action, errno, whole as u64);
    let fd = create(MemfdFlags::empty()).map_err(told("create shared memory"))?;
    prepare(&fd, whole)?;
    let mapping =
        if sparse { Mapping::new(fd.as_fd(), 0, whole, true) } else { Mapping::populated(fd.as_fd(), whole) };
    let mapping = mapping.map_err(told("map shared memory"))?;
    seal(&fd, only_ours)?;
    Ok(Host { mapping, fd, size, huge_pages: false, only_ours })
}

fn huge(size: usize, only_ours: bool) -> Result<Host> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let page = limits::meminfo(&text, "Hugepagesize").and_then(|page| usize::try_from(page).ok());
    let Some(page) = page.filter(|page| page.is_power_of_two()) else {
        return Err(Error::Limit {
            what: "huge pages: this kernel has none (/proc/meminfo has no Hugepagesize)".into(),
            next: "use pages of the usual size".into(),
        });
    };
    let whole = size.next_multiple_of(page);
    let missing = || {
        let count = |name| limits::meminfo(&text, name).unwrap_or(0);
        let free = count("HugePages_Free").saturating_sub(count("HugePages_Rsvd"));
        Error::Limit {
            what: format!(
                "huge pages: {} of {page} bytes are needed, {free} are free, {} are reserved \
                 (/proc/sys/vm/nr_hugepages)",
                whole / page,
                count("HugePages_Total"),
            ),
            next: "reserve more with sysctl vm.nr_hugepages, or do not require huge pages".into(),
        }
    };
    let told = |action| {
        move |errno| match errno {
            Errno::NOMEM | Errno::NOSPC | Errno::FAULT => missing(),
            other => limits::diagnose(action, other, whole as u64),
        }
    };
    let fd = create(MemfdFlags::HUGETLB).map_err(told("create shared memory of huge pages"))?;
    prepare(&fd, whole)?;
    // Mapping reserves the pages; populating takes them, within the limits of the control group.
    let mapping = Mapping::populated(fd.as_fd(), whole).map_err(told("map huge pages"))?;
    seal(&fd, only_ours)?;
    Ok(Host { mapping, fd, size, huge_pages: true, only_ours })
}

/// A memfd that cannot be made executable, where the kernel knows how (6.3); some kernels refuse any other.
fn create(more: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more;
    match rustix::fs::memfd_create(c"transom", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"transom", flags),
        other => other,
    }
}

/// Sets mode and size.
fn prepare(fd: &OwnedFd, whole: usize) -> Result<()> {
    let whole = whole as u64;
    limits::check_file_size(whole)?;
    rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR)
        .map_err(|e| Error::io("set the mode of shared memory", e))?;
    rustix::fs::ftruncate(fd, whole).map_err(|e| limits::diagnose("size shared memory", e, whole))
}

/// Seals: from here on the file is what it will always be. Mappings that are there stay writable.
fn seal(fd: &OwnedFd, only_ours: bool) -> Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if only_ours {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(fd, seals).map_err(|e| Error::io("seal shared memory", e))
}

// SAFETY: the mapping lives as long as the value, has `size` bytes or more, is readable and writable, and lies inside a
// file that cannot be shrunk; no reference to its bytes is ever made here; the descriptor is the one that was mapped.
unsafe impl Memory for Host {
    fn as_ptr(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    fn size(&self) -> usize {
        self.size
    }

    fn kind(&self) -> Kind {
        Kind::Host
    }

    fn share(&self) -> Option<Shared<'_>> {
        Some(Shared { fd: self.fd.as_fd(), offset: 0, sealed: true })
    }

    fn is_read_only_to_peers(&self) -> bool {
        self.only_ours
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn page() -> usize {
        rustix::param::page_size()
    }

    #[test]
    fn shared_memory_is_sealed_private_and_closed_on_exec_before_anyone_sees_it() {
        let memory = Host::new(3 * page()).unwrap();
        let shared = memory.share().unwrap();
        assert!(shared.sealed && shared.offset == 0);
        let seals = rustix::fs::fcntl_get_seals(shared.fd).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        for size in [0, page(), 4 * page()] {
            assert_eq!(rustix::fs::ftruncate(shared.fd, size as u64), Err(Errno::PERM));
        }
        assert_eq!(rustix::fs::fcntl_add_seals(shared.fd, SealFlags::WRITE), Err(Errno::PERM));
        let stat = rustix::fs::fstat(shared.fd).unwrap();
        assert_eq!(stat.st_mode & 0o7777, 0o600);
        assert_eq!(stat.st_size, 3 * page() as i64);
        let flags = rustix::io::fcntl_getfd(shared.fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn memory_that_is_read_only_to_peers_is_written_by_its_owner_and_by_nobody_who_has_its_descriptor() {
        use rustix::fs::FallocateFlags;
        use rustix::mm::{MapFlags, ProtFlags};

        for sparse in [false, true] {
            let memory = Host::builder(2 * page()).sparse(sparse).read_only_to_peers(true).build().unwrap();
            assert!(memory.is_read_only_to_peers() && !memory.is_read_only());
            let write = |byte| {
                // SAFETY: the first byte of memory that nobody else uses.
                unsafe { memory.as_ptr().write_volatile(byte) }
            };
            write(5);
            let shared = memory.share().unwrap().fd;
            // The very descriptor, and what the same user can make of a read-only one.
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&shared));
            let again = rustix::fs::open(path, rustix::fs::OFlags::RDWR, Mode::empty()).unwrap();
            let duplicate = shared.try_clone_to_owned().unwrap();
            for fd in [duplicate, again] {
                let refused = crate::Mapped::new(fd.try_clone().unwrap(), 0, page(), true, true);
                assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
                assert_eq!(rustix::io::pwrite(&fd, &[9], 0), Err(Errno::PERM));
                let punched = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                assert_eq!(rustix::fs::fallocate(&fd, punched, 0, page() as u64), Err(Errno::PERM));
                assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
                // A mapping for reading cannot be made writable afterwards.
                // SAFETY: addresses that are free; nothing is made of the mapping but what fails.
                unsafe {
                    let (prot, none) = (ProtFlags::READ, std::ptr::null_mut());
                    let at = rustix::mm::mmap(none, page(), prot, MapFlags::SHARED, &fd, 0).unwrap();
                    let writable = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
                    assert_eq!(rustix::mm::mprotect(at, page(), writable), Err(Errno::ACCESS));
                    rustix::mm::munmap(at, page()).unwrap();
                }
                let mapped = crate::Mapped::new(fd, 0, page(), false, true).unwrap();
                write(6);
                // SAFETY: the first byte of the mapping.
                assert_eq!(unsafe { mapped.as_ptr().read_volatile() }, 6, "the owner writes on");
            }
        }
    }

    #[test]
    fn sizes_that_are_no_whole_pages_are_usable_to_their_last_byte_and_zero() {
        for size in [1, page() - 1, page(), page() + 1] {
            for sparse in [false, true] {
                let memory = Host::builder(size).sparse(sparse).build().unwrap();
                assert_eq!((memory.size(), memory.kind(), memory.huge_pages()), (size, Kind::Host, false));
                assert!(!memory.is_read_only());
                let last = memory.as_ptr().as_ptr().wrapping_add(size - 1);
                // SAFETY: the last byte of `memory`, which nobody else uses.
                unsafe {
                    assert_eq!(last.read_volatile(), 0);
                    last.write_volatile(9);
                    assert_eq!(last.read_volatile(), 9);
                }
            }
        }
    }

    #[test]
    fn only_sparse_memory_leaves_its_pages_to_their_first_use() {
        let blocks = |memory: &Host| rustix::fs::fstat(memory.share().unwrap().fd).unwrap().st_blocks;
        let memory = Host::builder(64 * page()).sparse(true).build().unwrap();
        assert_eq!(blocks(&memory), 0);
        let memory = Host::new(64 * page()).unwrap();
        assert!(blocks(&memory) as usize * 512 >= 64 * page());
    }

    #[test]
    fn a_size_of_zero_is_invalid() {
        for huge_pages in [HugePages::Never, HugePages::Try, HugePages::Required] {
            let refused = Host::builder(0).huge_pages(huge_pages).build();
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
    }

    #[test]
    fn sizes_beyond_the_address_space_are_too_large_and_overflow_nothing() {
        for size in [1 << 47, (1 << 47) + 1, usize::MAX - page(), usize::MAX] {
            for sparse in [false, true] {
                for huge_pages in [HugePages::Never, HugePages::Try] {
                    let refused = Host::builder(size).sparse(sparse).huge_pages(huge_pages).build();
                    // A limit of this process may be the first to say no to 2^47.
                    let limited = size == 1 << 47 && matches!(refused, Err(Error::Limit { .. }));
                    assert!(limited || matches!(refused, Err(Error::TooLarge { .. })), "{size}: {refused:?}");
                }
            }
        }
    }

    #[test]
    fn more_than_the_machine_has_names_both_numbers_and_the_limit() {
        let error = Host::new(1 << 46).unwrap_err();
        let Error::TooLarge { requested, available, limit } = &error else { panic!("{error:?}") };
        assert_eq!(*requested, 1 << 46);
        assert!(*available > 0 && *available < 1 << 46 && !limit.is_empty());
        let text = error.to_string();
        assert!(text.contains(&requested.to_string()) && text.contains(&available.to_string()), "{text}");
    }

    #[test]
    fn huge_pages_are_there_or_their_lack_is_told() {
        match Host::builder(1).huge_pages(HugePages::Required).build() {
            Ok(memory) => {
                assert!(memory.huge_pages() && memory.size() == 1);
                let fd = memory.share().unwrap().fd.try_clone_to_owned().unwrap();
                let mapped = crate::Mapped::new(fd, 0, 1, true, true).unwrap();
                // SAFETY: the only byte of each mapping; nobody else uses it.
                unsafe {
                    memory.as_ptr().write_volatile(3);
                    assert_eq!(mapped.as_ptr().read_volatile(), 3);
                }
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("/proc/sys/vm/nr_hugepages") || text.contains("has none"), "{text}");
            }
        }
        Host::builder(1).huge_pages(HugePages::Try).build().unwrap();
        // More huge pages than any machine has reserved.
        let error = Host::builder(1 << 46).huge_pages(HugePages::Required).build().unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{error:?}");
    }

    #[test]
    fn a_thousand_memories_leave_no_descriptor_and_no_mapping_behind() {
        // Other tests open and close their own meanwhile, so these are known by their inodes.
        let inode = |memory: &Host| rustix::fs::fstat(memory.share().unwrap().fd).unwrap().st_ino;
        let open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            links
                .filter_map(|link| Some(link.ok()?.path().metadata().ok()?.ino()))
                .chain(mapped())
                .collect::<HashSet<u64>>()
        };
        let kept = Host::new(1).unwrap();
        let gone: Vec<u64> = (0..1000).map(|_| inode(&Host::new(page()).unwrap())).collect();
        let open = open();
        assert!(open.contains(&inode(&kept)), "the test can see what is open");
        let left = gone.iter().filter(|inode| open.contains(inode)).count();
        assert_eq!(left, 0);
    }

    /// The inodes of mapped memfds.
    fn mapped() -> Vec<u64> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ours = maps.lines().filter(|line| line.contains("memfd:transom"));
        ours.filter_map(|line| line.split_ascii_whitespace().nth(4)?.parse().ok()).collect()
    }
}
