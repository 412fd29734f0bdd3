//! The file that is being received: under a name of its own until all of it is there and checked.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use transom::{Error, File, Result};

use super::offer::check_name;

/// Where received files go.
#[derive(Debug, Clone)]
pub(super) struct Place {
    directory: PathBuf,
    /// The name that the receiver chose, instead of the sender's.
    name: Option<PathBuf>,
    draft: PathBuf,
}

/// A file that is not complete: gone when dropped, unless [`Part::keep`] has succeeded.
#[derive(Debug)]
pub(super) struct Part {
    draft: PathBuf,
    target: PathBuf,
    directory: PathBuf,
}

impl Place {
    /// Under the sender's name in a directory.
    ///
    /// # Errors
    /// [`Error::Io`] when it is not there, or the kernel gives no random bytes; [`Error::Invalid`] when it is no
    /// directory.
    pub(super) fn directory(directory: &Path) -> Result<Self> {
        let about = fs::metadata(directory)
            .map_err(|e| Error::io(format!("receive into {}", directory.display()), e))?;
        if !about.is_dir() {
            return Err(Error::invalid("receive", format!("{} is not a directory", directory.display())));
        }
        // Not from the sender's name: it must be free, and no longer than names may be.
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| {
            Error::io("read random bytes", std::io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(0)))
        })?;
        let draft = directory.join(format!(".transom-{:016x}.part", u64::from_le_bytes(random)));
        Ok(Self { directory: directory.to_path_buf(), name: None, draft })
    }

    /// As this file.
    ///
    /// # Errors
    /// As for [`Place::directory`]; [`Error::Io`] when the file is there already.
    pub(super) fn file(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(Error::invalid("receive", format!("{} is no file name", path.display())));
        };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        check_free(path)?;
        Ok(Self { name: Some(PathBuf::from(name)), ..Self::directory(directory)? })
    }

    /// The file while it is not complete: what to remove when the process is told to end.
    pub(super) fn draft(&self) -> &Path {
        &self.draft
    }

    /// Makes the file with all of its blocks. `None` beside it: it is empty, and there is nothing to map.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that leaves the directory; [`Error::Io`] when it is there already;
    /// [`Error::TooLarge`] when it does not fit.
    pub(super) fn create(&self, offered: &str, size: u64) -> Result<(Part, Option<File>)> {
        check_name(offered)?;
        let target = match &self.name {
            Some(name) => self.directory.join(name),
            None => self.directory.join(offered),
        };
        check_free(&target)?;
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        let file = if bytes == 0 {
            fs::File::create_new(&self.draft)
                .map_err(|e| Error::io(format!("create {}", self.draft.display()), e))?;
            None
        } else {
            Some(File::create(&self.draft, bytes)?)
        };
        Ok((Part { draft: self.draft.clone(), target, directory: self.directory.clone() }, file))
    }
}

/// An early look, so that nobody sends a file for nothing; [`Part::keep`] decides.
fn check_free(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(_) => Err(exists(target)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(format!("look for {}", target.display()), e)),
    }
}

fn exists(target: &Path) -> Error {
    Error::io(format!("create {} (nothing is overwritten)", target.display()), Errno::EXIST)
}

impl Part {
    /// Waits until the disk has all of it, then gives it its name, unless a file has that by now.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is gone then.
    pub(super) fn keep(self) -> Result<()> {
        let sync = |path: &Path| {
            fs::File::open(path)
                .and_then(|file| file.sync_all())
                .map_err(|e| Error::io(format!("sync {}", path.display()), e))
        };
        sync(&self.draft)?;
        match renameat_with(CWD, &self.draft, CWD, &self.target, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(exists(&self.target)),
            // File systems without that have links, which never replace.
            Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(&self.draft, &self.target)
                .map_err(|e| Error::io(format!("create {}", self.target.display()), e))?,
            Err(e) => return Err(Error::io(format!("create {}", self.target.display()), e)),
        }
        match sync(&self.directory) {
            Err(Error::Io { errno, .. }) if errno == Errno::INVAL.raw_os_error() => Ok(()),
            Err(error) => {
                let _ = fs::remove_file(&self.target);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Its own name only: not there any more once it was renamed.
        let _ = fs::remove_file(&self.draft);
    }
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn a_part_is_gone_unless_it_was_kept() {
        let folder = Scratch::new();
        for size in [0, 1, 5000] {
            let place = Place::directory(folder.path()).unwrap();
            drop(place.create("name", size).unwrap());
            assert_eq!(folder.names(), [""; 0]);
            let (part, file) = place.create("name", size).unwrap();
            assert_eq!(file.is_some(), size > 0);
            assert!(!folder.path().join("name").exists(), "not before it is complete");
            part.keep().unwrap();
            assert_eq!(folder.names(), ["name"]);
            assert_eq!(fs::metadata(folder.path().join("name")).unwrap().len(), size);
            fs::remove_file(folder.path().join("name")).unwrap();
        }
    }

    #[test]
    fn nothing_is_overwritten_early_or_late() {
        let folder = Scratch::new();
        let place = Place::directory(folder.path()).unwrap();
        let (part, _) = place.create("name", 3).unwrap();
        fs::write(folder.path().join("name"), "precious").unwrap();
        assert!(part.keep().unwrap_err().to_string().contains("overwritten"));
        assert!(place.create("name", 3).unwrap_err().to_string().contains("overwritten"));
        assert!(Place::file(&folder.path().join("name")).is_err());
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        assert!(place.create("link", 3).is_err());
        assert_eq!(fs::read(folder.path().join("name")).unwrap(), b"precious");
        assert_eq!(folder.names(), ["link", "name"]);
    }

    #[test]
    fn the_receivers_name_wins_and_the_senders_is_checked_all_the_same() {
        let folder = Scratch::new();
        let place = Place::file(&folder.path().join("mine")).unwrap();
        assert!(place.create("../theirs", 1).is_err());
        place.create("theirs", 1).unwrap().0.keep().unwrap();
        assert_eq!(folder.names(), ["mine"]);
        assert!(Place::directory(&folder.path().join("mine")).is_err());
        assert!(Place::directory(&folder.path().join("none")).is_err());
        assert!(Place::file(Path::new("/")).is_err());
    }

    #[test]
    fn a_file_that_cannot_fit_is_refused_and_leaves_nothing() {
        let folder = Scratch::new();
        let place = Place::directory(folder.path()).unwrap();
        for size in [u64::MAX, 1 << 46] {
            assert!(matches!(place.create("name", size), Err(Error::TooLarge { .. })), "{size}");
        }
        assert_eq!(folder.names(), [""; 0]);
    }
}
