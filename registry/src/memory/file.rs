//! A file as memory.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::limits::{self, MOST};
use super::mapping::Mapping;
use super::{Kind, Memory, Shared};
use crate::{Error, Result};

/// A file as memory: whole, mapped, shared with everybody who maps it.
///
/// A file that can be written has all of its blocks before it is mapped, so that a full disk is an error at once and
/// not a signal later. Two things are outside this promise: the file must not be truncated while it is mapped, by this
/// process or any other, and its disk must not fail. Either ends a process that touches the missing bytes with SIGBUS.
#[derive(Debug)]
pub struct File {
    mapping: Mapping,
    fd: OwnedFd,
    size: usize,
    read_only: bool,
    path: PathBuf,
}

impl File {
    /// Opens a file that is only read.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for an empty file and for what is not a file;
    /// - [`Error::TooLarge`] for a file that does not fit into the address space;
    /// - [`Error::Limit`] for too many files or mappings, [`Error::Io`] for anything else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fd = open(path, OFlags::RDONLY)?;
        let size = size(path, &fd)?;
        Self::map(path, fd, size, false)
    }

    /// Opens a file that is read and written, at the size that it has. Its holes are filled with zeros.
    ///
    /// # Errors
    /// As [`File::open`], and [`Error::TooLarge`] where the disk has no room for the holes.
    pub fn open_rw(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fd = open(path, OFlags::RDWR)?;
        let size = size(path, &fd)?;
        allocate(path, &fd, size)?;
        Self::map(path, fd, size, true)
    }

    /// Creates a file of `size` zeros that is read and written. What exists is left alone: truncating it might end a
    /// process that has it mapped.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a size of 0;
    /// - [`Error::TooLarge`] where the disk, the address space or RLIMIT_FSIZE has less than that;
    /// - [`Error::Io`] where the path exists (`EEXIST`), and for anything else.
    ///
    /// After an error the file is removed again.
    pub fn create(path: impl AsRef<Path>, size: usize) -> Result<Self> {
        let path = path.as_ref();
        if size == 0 {
            return Err(Error::invalid("create a file", "size is 0, expected 1 byte or more"));
        }
        check_addressable(size as u64)?;
        limits::check_file_size(size as u64)?;
        let fd = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        let file = allocate(path, &fd, size).and_then(|()| Self::map(path, fd, size, true));
        if file.is_err() {
            // Made by the open above, and of no use; the first error is the one to tell.
            let _ = rustix::fs::unlink(path);
        }
        file
    }

    /// Writes every changed byte back and waits until the disk has it.
    ///
    /// # Errors
    /// [`Error::Io`] where the disk fails; what was written since the last success is then in doubt.
    pub fn flush(&self) -> Result<()> {
        self.flush_range(0..self.size)
    }

    /// Writes the changed bytes of a range back and waits until the disk has them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a range outside the file, [`Error::Io`] as [`File::flush`].
    pub fn flush_range(&self, range: Range<usize>) -> Result<()> {
        if range.start > range.end || range.end > self.size {
            return Err(Error::OutOfRange {
                operation: "flush a file",
                offset: range.start as u64,
                size: range.end.saturating_sub(range.start) as u64,
                limit: self.size as u64,
            });
        }
        if range.is_empty() {
            return Ok(());
        }
        let start = range.start - range.start % rustix::param::page_size();
        rustix::io::retry_on_intr(|| self.mapping.sync(start, range.end - start))
            .map_err(|e| Error::io(format!("flush {}", self.path.display()), e))
    }

    /// As [`File::flush`], and the file's metadata too.
    ///
    /// # Errors
    /// As [`File::flush`].
    pub fn sync_all(&self) -> Result<()> {
        self.flush()?;
        rustix::io::retry_on_intr(|| rustix::fs::fsync(&self.fd))
            .map_err(|e| Error::io(format!("sync {}", self.path.display()), e))
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn map(path: &Path, fd: OwnedFd, size: usize, writable: bool) -> Result<Self> {
        let action = format!("map {}", path.display());
        let mapping = Mapping::new(fd.as_fd(), 0, size, writable)
            .map_err(|errno| limits::diagnose(&action, errno, size as u64))?;
        Ok(Self { mapping, fd, size, read_only: !writable, path: path.to_path_buf() })
    }
}

/// Never waits, not even for the other end of a named pipe.
fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, mode)).map_err(|errno| {
        let action = if flags.contains(OFlags::CREATE) { "create" } else { "open" };
        limits::diagnose(&format!("{action} {}", path.display()), errno, 0)
    })
}

fn size(path: &Path, fd: &OwnedFd) -> Result<usize> {
    let stat =
        rustix::fs::fstat(fd).map_err(|e| Error::io(format!("read the size of {}", path.display()), e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::invalid("map a file", format!("{} is not a regular file", path.display())));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size == 0 {
        let why =
            format!("{} is empty, expected 1 byte or more (File::create makes a new one)", path.display());
        return Err(Error::invalid("map a file", why));
    }
    check_addressable(size)?;
    Ok(size as usize)
}

fn check_addressable(size: u64) -> Result<()> {
    if size <= MOST {
        return Ok(());
    }
    Err(Error::TooLarge { requested: size, available: MOST, limit: "address space".into() })
}

/// Gives the file all of its blocks, and its size, without changing a byte that is there.
fn allocate(path: &Path, fd: &OwnedFd, size: usize) -> Result<()> {
    let size = size as u64;
    let io = |errno| Error::io(format!("allocate {size} bytes for {}", path.display()), errno);
    check_room(path, fd, size)?;
    match fallocate(fd, size) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC) => check_room(path, fd, size).and(Err(io(Errno::NOSPC))),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => without_fallocate(path, fd, size),
        Err(errno) => Err(io(errno)),
    }
}

/// A signal may interrupt the call, which then starts again from nothing on some file systems: smaller steps get there.
fn fallocate(fd: &OwnedFd, size: u64) -> Result<(), Errno> {
    let mut done = 0;
    let mut step = size;
    while done < size {
        let now = step.min(size - done);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), done, now) {
            Ok(()) => done += now,
            Err(Errno::INTR) => step = (step / 2).max(1 << 20),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Asked first, so that a file that cannot fit does not fill the disk on its way to the error.
fn check_room(path: &Path, fd: &OwnedFd, size: u64) -> Result<()> {
    let (Ok(stat), Ok(fs)) = (rustix::fs::fstat(fd), rustix::fs::fstatvfs(fd)) else { return Ok(()) };
    let has = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let available = fs.f_bavail.saturating_mul(fs.f_frsize).saturating_add(has);
    if fs.f_blocks == 0 || size <= available {
        return Ok(());
    }
    let limit = format!("free space on the file system of {}", path.display());
    Err(Error::TooLarge { requested: size, available, limit })
}

/// A new file is written; one with holes is refused, because filling them could run over what others write.
fn without_fallocate(path: &Path, fd: &OwnedFd, size: u64) -> Result<()> {
    let io = |errno| Error::io(format!("write {}", path.display()), errno);
    let stat = rustix::fs::fstat(fd).map_err(io)?;
    if stat.st_size != 0 {
        let has = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if has >= size {
            return Ok(());
        }
        let why = format!(
            "{} has holes ({has} of {size} bytes are on disk) and its file system cannot fill them (copy it without \
             holes first)",
            path.display()
        );
        return Err(Error::invalid("map a file", why));
    }
    let zeros = vec![0; 1 << 20];
    let mut done = 0;
    while done < size {
        let now = (zeros.len() as u64).min(size - done) as usize;
        match rustix::io::pwrite(fd, &zeros[..now], done) {
            Ok(0) => return Err(io(Errno::NOSPC)),
            Ok(written) => done += written as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io(errno)),
        }
    }
    Ok(())
}

// SAFETY: the mapping is the whole file, which lives as long as the value, is readable (and writable unless
// `read_only`), and whose blocks are there; that nobody truncates it is the promise the documentation asks for. No
// reference to its bytes is ever made here; the descriptor is the one that was mapped.
unsafe impl Memory for File {
    fn as_ptr(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    fn size(&self) -> usize {
        self.size
    }

    fn kind(&self) -> Kind {
        Kind::File
    }

    fn share(&self) -> Option<Shared<'_>> {
        Some(Shared { fd: self.fd.as_fd(), offset: 0, sealed: false })
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    use super::super::scratch::{Scratch, skip};
    use super::*;

    fn page() -> usize {
        rustix::param::page_size()
    }

    /// Writes one byte; only for files that one test alone uses.
    fn write(file: &File, offset: usize, byte: u8) {
        assert!(offset < file.size() && !file.is_read_only());
        // SAFETY: the offset is inside the mapping, which is writable, and nobody else uses it.
        unsafe { file.as_ptr().add(offset).write_volatile(byte) }
    }

    fn read(file: &File, offset: usize) -> u8 {
        assert!(offset < file.size());
        // SAFETY: the offset is inside the mapping, and nobody writes it meanwhile.
        unsafe { file.as_ptr().add(offset).read_volatile() }
    }

    #[test]
    fn a_created_file_keeps_what_was_written_and_flushed() {
        let folder = Scratch::new();
        let path = folder.path().join("file");
        let file = File::create(&path, page() + 1).unwrap();
        assert_eq!((file.size(), file.kind(), file.is_read_only()), (page() + 1, Kind::File, false));
        assert_eq!(file.path(), path);
        assert!(path.metadata().unwrap().blocks() * 512 > page() as u64, "its blocks are there");
        write(&file, 0, 1);
        file.flush().unwrap();
        write(&file, page(), 2);
        file.flush_range(page()..page() + 1).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[page()]), (page() + 1, 1, 2));
        let file = File::open(&path).unwrap();
        assert!(file.is_read_only());
        assert_eq!((file.size(), read(&file, 0), read(&file, page())), (page() + 1, 1, 2));
        file.flush().unwrap();
        file.sync_all().unwrap();
    }

    #[test]
    fn a_range_to_flush_may_start_anywhere_but_not_leave_the_file() {
        let folder = Scratch::new();
        let file = File::create(folder.path().join("file"), 2 * page() + 3).unwrap();
        let end = file.size();
        for range in [0..1, 1..2, page() - 1..page() + 1, page() + 7..end, end..end, 0..0] {
            file.flush_range(range).unwrap();
        }
        #[expect(clippy::reversed_empty_ranges, reason = "this is what is refused")]
        for range in [0..end + 1, end..end + 1, usize::MAX..usize::MAX, 1..usize::MAX, 2..1] {
            assert!(matches!(file.flush_range(range), Err(Error::OutOfRange { .. })));
        }
    }

    #[test]
    fn what_is_there_is_never_overwritten_by_create() {
        let folder = Scratch::new();
        folder.write("file", "precious");
        let path = folder.path().join("file");
        let refused = File::create(&path, 1);
        assert!(matches!(refused, Err(Error::Io { errno, .. }) if errno == Errno::EXIST.raw_os_error()));
        assert_eq!(std::fs::read(path).unwrap(), b"precious");
    }

    #[test]
    fn empty_files_and_what_is_no_file_are_refused_without_waiting() {
        let folder = Scratch::new();
        folder.write("empty", "");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [folder.path().join("empty"), pipe, "/dev/null".into()] {
            for refused in [File::open(&path), File::open_rw(&path)] {
                assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
            }
        }
        assert!(matches!(File::open(folder.path()), Err(Error::Invalid { .. })));
        let path = folder.path().join("new");
        assert!(matches!(File::create(&path, 0), Err(Error::Invalid { .. })));
        for size in [(1 << 47) + 1, usize::MAX] {
            assert!(matches!(File::create(&path, size), Err(Error::TooLarge { .. })));
        }
        assert!(!path.exists());
        let text = File::open(&path).unwrap_err().to_string();
        assert!(text.contains("cannot open") && text.contains(&path.display().to_string()), "{text}");
    }

    #[test]
    fn holes_are_filled_before_a_file_is_mapped_for_writing() {
        let folder = Scratch::new();
        let path = folder.path().join("sparse");
        folder.write("sparse", "head");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(path.metadata().unwrap().blocks() * 512 < 1 << 20);
        let file = File::open_rw(&path).unwrap();
        assert!(path.metadata().unwrap().blocks() * 512 >= 1 << 20);
        assert_eq!((read(&file, 0), read(&file, 4), read(&file, (1 << 20) - 1)), (b'h', 0, 0));
        let shared = file.share().unwrap();
        assert!(shared.offset == 0 && !shared.sealed);
        let fd = shared.fd.try_clone_to_owned().unwrap();
        let mapped = crate::Mapped::new(fd, 0, 1 << 20, true, false).unwrap();
        write(&file, 4, 9);
        // SAFETY: byte 4 of 1 MiB, which nobody writes meanwhile.
        assert_eq!(unsafe { mapped.as_ptr().add(4).read_volatile() }, 9);
    }

    #[test]
    fn files_without_fallocate_are_written_when_new_and_refused_when_they_have_holes() {
        let folder = Scratch::new();
        let path = folder.path().join("file");
        let fd = open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
        without_fallocate(&path, &fd, (2 << 20) + 1).unwrap();
        assert_eq!(path.metadata().unwrap().len(), (2 << 20) + 1);
        without_fallocate(&path, &fd, (2 << 20) + 1).unwrap();
        rustix::fs::ftruncate(&fd, 64 << 20).unwrap();
        assert!(matches!(without_fallocate(&path, &fd, 64 << 20), Err(Error::Invalid { .. })));
    }

    #[test]
    fn a_full_disk_is_an_error_with_both_numbers_and_never_a_signal() {
        let folder = Scratch::new();
        let path = folder.path().to_path_buf();
        // The mount is seen by this thread alone and goes with it.
        std::thread::spawn(move || {
            if let Err(error) = mount_tmpfs(&path, c"size=1m") {
                return skip(&format!("needs the right to mount a small tmpfs: {error}"));
            }
            let file = path.join("file");
            let error = File::create(&file, 2 << 20).unwrap_err();
            assert!(
                matches!(error, Error::TooLarge { requested: 0x20_0000, available: 0x10_0000, .. }),
                "{error:?}"
            );
            assert!(!file.exists());
            std::fs::File::create(&file).unwrap().set_len(2 << 20).unwrap();
            assert!(matches!(File::open_rw(&file), Err(Error::TooLarge { .. })));
            std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(1 << 19).unwrap();
            let file = File::open_rw(&file).unwrap();
            for offset in (0..1 << 19).step_by(page()) {
                write(&file, offset, 1);
            }
        })
        .join()
        .unwrap();
    }

    fn mount_tmpfs(path: &Path, options: &std::ffi::CStr) -> std::io::Result<()> {
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let done = |rc| if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        // SAFETY: it takes only flags, and changes what this thread alone sees.
        done(unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) })?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let null = std::ptr::null();
        // SAFETY: the strings end in 0 and outlive the call; the others are allowed to be null here.
        done(unsafe { libc::mount(null, c"/".as_ptr(), null, private, null.cast()) })?;
        // SAFETY: as above.
        done(unsafe {
            libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast())
        })
    }
}
