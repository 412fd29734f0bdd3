//! The socket by which same-host peers find a process: a file in a directory that is ours alone.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use transom_registry::{Error, Incarnation, Result};

/// Longest path of a socket, in bytes (`sun_path` without its final zero).
const LONGEST: usize = 107;
/// Most files that are looked at when the leftovers of dead processes are cleaned.
const MOST_CLEANED: usize = 1000;
const ENDING: &str = "sock";
/// Before it listens, a socket has another name, so that nobody takes it for a dead process's.
const UNBORN: &str = "temp";

pub(super) fn unusable(why: impl Into<String>) -> Error {
    Error::Unusable { transport: "shm".into(), why: why.into() }
}

/// A listening socket; its file goes with it.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Makes the socket of this incarnation in the user's runtime directory, and cleans what dead processes left there.
    pub(super) fn listen(incarnation: Incarnation) -> Result<(Self, UnixListener)> {
        Self::listen_in(&crate::secret::runtime_directory()?, incarnation)
    }

    fn listen_in(directory: &Path, incarnation: Incarnation) -> Result<(Self, UnixListener)> {
        let path = directory.join(format!("{incarnation}.{ENDING}"));
        let size = path.as_os_str().as_bytes().len();
        if size > LONGEST {
            return Err(unusable(format!(
                "the path of its socket, {}, has {size} bytes, at most {LONGEST} are possible (set XDG_RUNTIME_DIR \
                 to a shorter directory)",
                path.display()
            )));
        }
        clean(directory);
        let unborn = path.with_extension(UNBORN);
        let fault =
            |what: &str, e: std::io::Error| unusable(format!("cannot {what} {}: {e}", path.display()));
        let listener = UnixListener::bind(&unborn).map_err(|e| fault("make the socket", e))?;
        let born = std::fs::set_permissions(&unborn, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::rename(&unborn, &path))
            .and_then(|()| listener.set_nonblocking(true));
        if let Err(e) = born {
            let _ = std::fs::remove_file(&unborn);
            return Err(fault("name the socket", e));
        }
        Ok((Self { path }, listener))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where another process of ours has its socket.
    pub(super) fn of_neighbour(&self, incarnation: Incarnation) -> PathBuf {
        self.path.with_file_name(format!("{incarnation}.{ENDING}"))
    }

    /// Takes the file away: nobody new comes. Not in a forked child, whose parent still listens.
    pub(super) fn unlink(&self) {
        if !crate::fork::is_child() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.unlink();
    }
}

/// Removes the sockets of processes that are dead: those that refuse to be connected to.
fn clean(directory: &Path) {
    let me = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.take(MOST_CLEANED).flatten() {
        let path = entry.path();
        let ours = |name: &str| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
        if !path.file_stem().and_then(|n| n.to_str()).is_some_and(ours) {
            continue;
        }
        let Ok(about) = std::fs::symlink_metadata(&path) else { continue };
        if !about.file_type().is_socket() || about.uid() != me {
            continue;
        }
        let dead = match path.extension().and_then(|e| e.to_str()) {
            Some(ENDING) => is_dead(&path),
            Some(UNBORN) => {
                let age = about.modified().ok().and_then(|at| at.elapsed().ok());
                age.is_some_and(|age| age > Duration::from_secs(60)) && is_dead(&path)
            }
            _ => false,
        };
        if dead {
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn is_dead(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (Ok(socket), Ok(address)) = (
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None),
        SocketAddrUnix::new(path),
    ) else {
        return false;
    };
    rustix::net::connect(&socket, &address) == Err(Errno::CONNREFUSED)
}

/// The path in an address.
pub(super) fn path_of(address: &str) -> Result<PathBuf> {
    let path = address.strip_prefix("shm:").unwrap_or_default();
    if !path.starts_with('/') || path.len() > LONGEST || path.contains('\0') {
        return Err(Error::Malformed {
            what: "address",
            why: format!("{address:?} is not shm: and an absolute path of at most {LONGEST} bytes"),
        });
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> PathBuf {
        let path = std::env::temp_dir().join(format!("transom-socket-{}", Incarnation::random().unwrap()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_socket_is_private_and_goes_with_its_value_and_the_leftovers_of_the_dead_go_at_the_next_open() {
        let directory = scratch();
        let (living, listener) = Socket::listen_in(&directory, Incarnation::from_u64(1).unwrap()).unwrap();
        let about = std::fs::symlink_metadata(living.path()).unwrap();
        assert_eq!(about.mode() & 0o777, 0o600);
        let dead = directory.join("00000000000000ff.sock");
        drop(UnixListener::bind(&dead).unwrap());
        let unborn = directory.join("00000000000000fe.temp");
        drop(UnixListener::bind(&unborn).unwrap());
        let other = directory.join("somebody.sock");
        drop(UnixListener::bind(&other).unwrap());
        std::fs::write(directory.join("00000000000000fd.sock"), "a file").unwrap();
        let (second, _listener) = Socket::listen_in(&directory, Incarnation::from_u64(2).unwrap()).unwrap();
        assert!(!dead.exists(), "a dead process's");
        assert!(unborn.exists(), "it may be about to listen");
        assert!(other.exists() && directory.join("00000000000000fd.sock").exists(), "not ours");
        assert!(living.path().exists());
        assert!(listener.accept().is_ok(), "it was asked whether it lives");
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_an_error_that_says_what_to_do() {
        let directory = scratch().join("x".repeat(100));
        let error = Socket::listen_in(&directory, Incarnation::from_u64(1).unwrap()).unwrap_err().to_string();
        assert!(error.contains("at most 107") && error.contains("XDG_RUNTIME_DIR"), "{error}");
        std::fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(path_of("shm:/a/b").unwrap(), PathBuf::from("/a/b"));
        for bad in ["", "shm:", "shm:a", "tcp:/a", "shm:\0abstract", &format!("shm:/{}", "a".repeat(107))] {
            assert!(path_of(bad).is_err(), "{bad}");
        }
    }
}
