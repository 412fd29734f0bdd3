//! Keys and values as files in a directory that all ranks see.

use std::fs::{DirBuilder, File, OpenOptions};
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use transom_registry::{Error, Incarnation, Outcome, Result};

use super::key::LARGEST_VALUE;
use super::rules::{self, Refusal};
use super::{Answer, Backend, Call, Deadline};

const LOCK: &str = "lock";
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a key in one component of its path: twice as many digits, and one character, stay below 255.
const PART: usize = 120;

/// A directory with one file for each key, its name in hexadecimal digits.
///
/// A value appears whole: it is written beside its place and renamed. Whatever changes a key holds the lock file, which
/// the kernel releases when its process ends.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    /// Tells the temporary files of this store from those of every other one.
    writer: Incarnation,
    written: AtomicU64,
}

impl Files {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let io = |what: &str, error: io::Error| {
            Error::io(format!("{what} the store's directory {}", directory.display()), error)
        };
        if let Err(error) = DirBuilder::new().mode(0o700).recursive(true).create(directory) {
            return Err(io("create", error));
        }
        let about = std::fs::metadata(directory).map_err(|e| io("look at", e))?;
        let (owner, user, mode) = (about.uid(), rustix::process::geteuid().as_raw(), about.mode() & 0o777);
        if owner != user || mode & 0o022 != 0 {
            return Err(Error::Config {
                name: "store directory".into(),
                value: directory.display().to_string(),
                why: format!(
                    "owner {owner} and mode {mode:o} let others write keys, expected owner {user} (chmod 700 it)"
                ),
            });
        }
        let directory = directory.canonicalize().map_err(|e| io("look at", e))?;
        Ok(Self { directory, writer: Incarnation::random()?, written: AtomicU64::new(0) })
    }

    /// Where a key's value is. Every part but the last ends with '+', so that no key's file is another key's directory.
    fn path(&self, key: &str) -> PathBuf {
        let mut path = self.directory.clone();
        let mut parts = key.as_bytes().chunks(PART).peekable();
        while let Some(part) = parts.next() {
            let mut name: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
            if parts.peek().is_some() {
                name.push('+');
            }
            path.push(name);
        }
        path
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        let io = |error: io::Error| Error::io(format!("read key {key:?} in {}", path.display()), error);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        if !file.metadata().map_err(io)?.is_file() {
            return Err(malformed(&path, "not a regular file".into()));
        }
        let mut value = Vec::new();
        file.take(LARGEST_VALUE as u64 + 1).read_to_end(&mut value).map_err(io)?;
        if value.len() > LARGEST_VALUE {
            return Err(malformed(&path, format!("more than {LARGEST_VALUE} bytes")));
        }
        Ok(Some(value))
    }

    fn write(&self, key: &str, value: &[u8]) -> Result<()> {
        let path = self.path(key);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let temporary = self.directory.join(format!("new-{}-{number}", self.writer));
        let written = || -> io::Result<()> {
            if let Some(parent) = path.parent().filter(|parent| *parent != self.directory) {
                DirBuilder::new().mode(0o700).recursive(true).create(parent)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(value)?;
            // A network file system tells of a full disk here, not in the write.
            file.sync_data()?;
            std::fs::rename(&temporary, &path)
        };
        written().map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            Error::io(format!("write key {key:?} to {}", path.display()), error)
        })
    }

    fn remove(&self, key: &str) -> Result<bool> {
        let path = self.path(key);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(format!("delete key {key:?} in {}", path.display()), error)),
        }
    }

    /// The lock, or `None` while somebody else holds it.
    fn lock(&self) -> Result<Option<File>> {
        let path = self.directory.join(LOCK);
        let io = |error: io::Error| Error::io(format!("lock {}", path.display()), error);
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(&path)
            .map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(io(error.into())),
        }
    }

    /// One look at what is there: an answer, or `None` when it has to be looked again.
    fn step(&self, call: &Call, found: &mut Vec<Vec<u8>>) -> Result<Option<Answer>> {
        let _lock = match call {
            Call::Get { keys } => {
                for key in &keys[found.len()..] {
                    let Some(value) = self.read(key)? else { return Ok(None) };
                    found.push(value);
                }
                return Ok(Some(Answer::Values(std::mem::take(found))));
            }
            Call::TryGet { key } => return Ok(Some(Answer::Value(self.read(key)?))),
            _ => match self.lock()? {
                Some(lock) => lock,
                None => return Ok(None),
            },
        };
        let refused = |refusal: Refusal| refusal.error(call.operation(), call.key());
        Ok(Some(match call {
            Call::Set { key, value } => {
                self.write(key, value)?;
                Answer::Done
            }
            Call::Add { key, delta } => {
                let sum = rules::sum(self.read(key)?.as_deref(), *delta).map_err(refused)?;
                self.write(key, sum.to_string().as_bytes())?;
                Answer::Number(sum)
            }
            Call::CompareSet { key, expected, new } => {
                let current = self.read(key)?;
                if rules::replaces(current.as_deref(), expected.as_deref()).map_err(refused)? {
                    self.write(key, new)?;
                    Answer::Value(Some(new.clone()))
                } else {
                    Answer::Value(current)
                }
            }
            Call::Delete { key } => Answer::Deleted(self.remove(key)?),
            Call::Get { .. } | Call::TryGet { .. } => return Ok(None),
        }))
    }

    fn expired(&self, call: &Call, deadline: Deadline) -> Error {
        let Call::Get { keys } = call else {
            let detail = format!("{} is held by another process", self.directory.join(LOCK).display());
            return deadline.expired(call.operation(), detail, Some(Outcome::NotApplied));
        };
        let missing: Vec<&str> =
            keys.iter().map(String::as_str).filter(|key| !self.path(key).exists()).collect();
        let detail = rules::not_set(missing.iter().copied(), missing.len(), keys.len());
        deadline.expired(call.operation(), detail, None)
    }
}

impl Backend for Files {
    fn call(
        self: Arc<Self>,
        call: Call,
        deadline: Deadline,
    ) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>> {
        Box::pin(async move {
            let operation = call.operation();
            let call = Arc::new(call);
            let mut found = Vec::new();
            let mut pause = FIRST_PAUSE;
            loop {
                let (files, asked) = (Arc::clone(&self), Arc::clone(&call));
                let before = found.len();
                let over = deadline.remaining().is_zero();
                // A network file system may hang: not on the control thread.
                let looked = tokio::task::spawn_blocking(move || {
                    let answer = files.step(&asked, &mut found);
                    let answer = match answer {
                        Ok(None) if over => Err(files.expired(&asked, deadline)),
                        answer => answer,
                    };
                    (answer, found)
                });
                let (answer, so_far) = looked
                    .await
                    .map_err(|_| Error::Closed { operation, what: "control thread of the store" })?;
                found = so_far;
                if let Some(answer) = answer? {
                    return Ok(answer);
                }
                pause = if found.len() > before { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                tokio::time::sleep(pause.min(deadline.remaining())).await;
            }
        })
    }
}

fn malformed(path: &Path, why: String) -> Error {
    Error::Malformed { what: "value in the store's directory", why: format!("{}: {why}", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_own_path_with_short_names() {
        let files = Files {
            directory: "/d".into(),
            writer: Incarnation::from_u64(1).unwrap(),
            written: AtomicU64::new(0),
        };
        assert_eq!(files.path("a/b"), Path::new("/d/612f62"));
        let (long, longer) = ("k".repeat(PART), "k".repeat(PART + 1));
        assert!(!files.path(&longer).starts_with(files.path(&long)));
        for part in files.path(&"z".repeat(256)).components() {
            assert!(part.as_os_str().len() < 255);
        }
    }
}
