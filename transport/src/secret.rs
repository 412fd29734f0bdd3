//! The job's secret: what every connection proves.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use transom_registry::{Error, Result};
use zeroize::{Zeroize, Zeroizing};

use crate::hidden::{self, Hidden, scrubbed};

/// Size of a secret in bytes.
pub const SIZE: usize = hidden::SIZE;
/// The file that holds the job's secret.
pub const FILE_VARIABLE: &str = "TRANSOM_SECRET_FILE";
/// The inherited descriptor that gives the job's secret: set by the launcher.
pub const FD_VARIABLE: &str = "TRANSOM_SECRET_FD";

/// The job's secret: 32 random bytes. Never printed, kept out of core dumps, wiped when its last handle goes.
///
/// A handle: clones are the same bytes.
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

struct Inner {
    bytes: Hidden,
    job: OnceLock<[u8; 4]>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| {
        Error::io("read random bytes", std::io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(0)))
    })
}

/// BLAKE2s of these parts, one after the other.
pub(crate) fn hash(parts: &[&[u8]]) -> Result<[u8; SIZE]> {
    let mut hash = DefaultResolver
        .resolve_hash(&HashChoice::Blake2s)
        .ok_or_else(|| Error::invalid("hash", "BLAKE2s is not built in"))?;
    for part in parts {
        hash.input(part);
    }
    let mut out = [0; SIZE];
    hash.result(&mut out);
    // What it has taken in stays in its buffer until something else does.
    hash.reset();
    hash.input(&[0; 2 * 64]);
    Ok(out)
}

/// Whether a number is that of a descriptor that came from the parent: those that are made here are closed on exec.
fn check_inherited(number: i32) -> Result<(), String> {
    // SAFETY: it only asks for the flags of whatever the number names.
    match unsafe { libc::fcntl(number, libc::F_GETFD) } {
        flags if flags < 0 => {
            Err(format!("no such descriptor was inherited: {}", std::io::Error::last_os_error()))
        }
        flags if flags & libc::FD_CLOEXEC != 0 => Err("this descriptor was not inherited".into()),
        _ => Ok(()),
    }
}

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel gives no random bytes.
    pub fn random() -> Result<Self> {
        Self::made_by(fill)
    }

    /// One whose bytes are written in their place.
    fn made_by(make: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let mut bytes = Hidden::new();
        scrubbed(|| make(bytes.get_mut()))?;
        Ok(Self(Arc::new(Inner { bytes, job: OnceLock::new() })))
    }

    /// These bytes.
    #[must_use]
    pub fn from_bytes(mut from: [u8; SIZE]) -> Self {
        let mut bytes = Hidden::new();
        bytes.get_mut().copy_from_slice(&from);
        from.zeroize();
        Self(Arc::new(Inner { bytes, job: OnceLock::new() }))
    }

    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::Malformed`], which does not show them.
    pub fn from_hex(text: &str) -> Result<Self> {
        let text = text.trim();
        let fits = text.len() == 2 * SIZE;
        Self::made_by(|bytes| {
            match fits.then(|| data_encoding::HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), bytes)) {
                Some(Ok(SIZE)) => Ok(()),
                _ => Err(Error::Malformed {
                    what: "secret",
                    why: format!("{} hexadecimal digits are expected", 2 * SIZE),
                }),
            }
        })
    }

    /// Its 64 hexadecimal digits, wiped when they go.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(data_encoding::HEXLOWER.encode(self.as_bytes()))
    }

    /// Reads a file of 64 hexadecimal digits that only we can read.
    ///
    /// # Errors
    /// [`Error::Config`] when the file is not ours or others can read it; [`Error::Malformed`]; [`Error::Io`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fault = |why: String| Error::Config {
            name: "secret file".into(),
            value: path.display().to_string(),
            why,
        };
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
            .map_err(|e| fault(format!("{e} (make it with `transom secret FILE`, or copy the job's)")))?;
        let about = file.metadata().map_err(|e| Error::io("look at the secret file", e))?;
        let me = rustix::process::geteuid().as_raw();
        if !about.is_file() {
            return Err(fault("it is not a regular file".into()));
        }
        if about.uid() != me {
            return Err(fault(format!("it belongs to user {}, we are {me}", about.uid())));
        }
        if about.mode() & 0o077 != 0 {
            return Err(fault(format!("others can read it: mode {:04o} (chmod 600)", about.mode() & 0o7777)));
        }
        Self::read(file)
    }

    fn read(from: impl Read) -> Result<Self> {
        let mut text = Zeroizing::new(String::with_capacity(4 * SIZE));
        from.take(4 * SIZE as u64).read_to_string(&mut text).map_err(|e| Error::io("read the secret", e))?;
        Self::from_hex(&text)
    }

    /// Writes it to a new file that only we can read.
    ///
    /// # Errors
    /// [`Error::Io`]; also when the file is there already.
    pub fn write_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| Error::io(format!("make the secret file {}", path.display()), e))?;
        let text = self.to_hex();
        file.write_all(text.as_bytes())
            .and_then(|()| file.write_all(b"\n"))
            .map_err(|e| Error::io("write the secret", e))
    }

    /// The job's secret as this process was given it: an inherited descriptor (`TRANSOM_SECRET_FD`, from the launcher),
    /// else a file (`TRANSOM_SECRET_FILE`), else the one of this user on this host, made at the first need in the
    /// user's runtime directory.
    ///
    /// # Errors
    /// [`Error::Config`] for variables that make no sense; as for [`Secret::from_file`].
    pub fn from_env() -> Result<Self> {
        if let Some(value) = std::env::var_os(FD_VARIABLE) {
            return Self::from_inherited(&value.to_string_lossy());
        }
        if let Some(path) = std::env::var_os(FILE_VARIABLE) {
            return Self::from_file(PathBuf::from(&path)).map_err(|error| match error {
                Error::Config { value, why, .. } => Error::Config { name: FILE_VARIABLE.into(), value, why },
                Error::Malformed { why, .. } => {
                    Error::Config { name: FILE_VARIABLE.into(), value: path.to_string_lossy().into(), why }
                }
                other => other,
            });
        }
        Self::of_user()
    }

    fn from_inherited(value: &str) -> Result<Self> {
        static READ: parking_lot::Mutex<Option<Secret>> = parking_lot::Mutex::new(None);
        let fault =
            |why: &str| Error::Config { name: FD_VARIABLE.into(), value: value.into(), why: why.into() };
        let mut read = READ.lock();
        if let Some(secret) = &*read {
            return Ok(secret.clone());
        }
        let number: i32 = value
            .parse()
            .ok()
            .filter(|n| *n > 2)
            .ok_or_else(|| fault("the number of a descriptor is expected"))?;
        check_inherited(number).map_err(|why| fault(&why))?;
        // SAFETY: the descriptor is open, and was inherited: nothing in this process has made it. The variable is the
        // launcher's word that it is for us alone; it is taken once, here.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        let secret = Self::read(std::fs::File::from(fd)).map_err(|e| fault(&e.to_string()))?;
        *read = Some(secret.clone());
        Ok(secret)
    }

    /// The secret of this user on this host.
    fn of_user() -> Result<Self> {
        let path = runtime_directory()?.join("secret");
        for _ in 0..3 {
            match Self::from_file(&path) {
                Ok(secret) => return Ok(secret),
                Err(error) if path.exists() => return Err(error),
                Err(_) => {}
            }
            // Written whole under another name, then linked: nobody reads half of it, and the first one wins.
            let secret = Self::random()?;
            let draft = path.with_extension(data_encoding::HEXLOWER.encode(&random::<8>()?));
            secret.write_file(&draft)?;
            let linked = std::fs::hard_link(&draft, &path);
            let _ = std::fs::remove_file(&draft);
            match linked {
                Ok(()) => return Ok(secret),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io(format!("make {}", path.display()), e)),
            }
        }
        Self::from_file(&path)
    }

    /// A one-time pass phrase of 120 random bits and the secret that it stands for.
    ///
    /// # Errors
    /// As for [`Secret::random`].
    pub fn passphrase() -> Result<(Zeroizing<String>, Self)> {
        let digits = Zeroizing::new(data_encoding::BASE32_NOPAD.encode(&random::<15>()?).to_lowercase());
        let groups: Vec<&str> = (0..digits.len()).step_by(4).map(|at| &digits[at..at + 4]).collect();
        let phrase = Zeroizing::new(groups.join("-"));
        let secret = Self::from_passphrase(&phrase)?;
        Ok((phrase, secret))
    }

    /// The secret that a pass phrase stands for: one hash. Only phrases of [`Secret::passphrase`] are strong enough for
    /// that, so shorter ones are refused.
    ///
    /// # Errors
    /// [`Error::Malformed`], which does not show the phrase.
    pub fn from_passphrase(phrase: &str) -> Result<Self> {
        let plain: Zeroizing<String> = Zeroizing::new(
            phrase
                .chars()
                .filter(|c| !c.is_whitespace() && *c != '-')
                .map(|c| c.to_ascii_lowercase())
                .collect(),
        );
        if plain.len() != 24 || !plain.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b)) {
            return Err(Error::Malformed {
                what: "pass phrase",
                why: "6 groups of 4 letters and digits are expected".into(),
            });
        }
        Self::made_by(|bytes| {
            let mut hashed = hash(&[b"transom pass phrase 1", plain.as_bytes()])?;
            bytes.copy_from_slice(&hashed);
            hashed.zeroize();
            Ok(())
        })
    }

    pub(crate) fn as_bytes(&self) -> &[u8; SIZE] {
        self.0.bytes.get()
    }

    /// A public name of the job that tells nothing of the secret: two jobs that meet by accident are told apart.
    pub(crate) fn job(&self) -> Result<[u8; 4]> {
        if let Some(job) = self.0.job.get() {
            return Ok(*job);
        }
        let hash = scrubbed(|| hash(&[b"transom job 1", self.as_bytes()]))?;
        Ok(*self.0.job.get_or_init(|| [hash[0], hash[1], hash[2], hash[3]]))
    }
}

/// The directory for what belongs to this user on this host: 0700, ours.
///
/// # Errors
/// [`Error::Unusable`] with what is wrong with it.
pub(crate) fn runtime_directory() -> Result<PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let path = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(base) if base.is_absolute() && base.is_dir() => base.join("transom"),
        _ => PathBuf::from(format!("/tmp/transom-{me}")),
    };
    let fault = |why: String| Error::Unusable { transport: "shm".into(), why };
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(fault(format!("cannot make {}: {e} (set XDG_RUNTIME_DIR)", path.display()))),
    }
    let about = std::fs::symlink_metadata(&path).map_err(|e| fault(format!("{}: {e}", path.display())))?;
    if !about.is_dir() || about.uid() != me || about.mode() & 0o077 != 0 {
        return Err(fault(format!(
            "{} must be a directory of user {me} with mode 0700 (it is of user {}, mode {:04o}): remove it, or set \
             XDG_RUNTIME_DIR",
            path.display(),
            about.uid(),
            about.mode() & 0o7777
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::random().unwrap();
        assert_eq!(format!("{secret:?}"), "***");
    }

    #[test]
    fn files_that_others_can_read_are_refused_and_never_overwritten() {
        let directory = std::env::temp_dir()
            .join(format!("transom-secret-{}", Secret::random().unwrap().to_hex().as_str()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("secret");
        let secret = Secret::random().unwrap();
        secret.write_file(&path).unwrap();
        assert_eq!(Secret::from_file(&path).unwrap().as_bytes(), secret.as_bytes());
        assert!(secret.write_file(&path).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Secret::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("0640") && error.contains("chmod 600"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn pass_phrases_are_forgiving_in_form_and_strict_in_strength() {
        let (phrase, secret) = Secret::passphrase().unwrap();
        let typed = phrase.to_uppercase().replace('-', " ");
        assert_eq!(Secret::from_passphrase(&typed).unwrap().as_bytes(), secret.as_bytes());
        for weak in ["", "hunter2", "aaaa-bbbb", &"a".repeat(23), &"1".repeat(24)] {
            let error = Secret::from_passphrase(weak).unwrap_err().to_string();
            assert!(weak.is_empty() || !error.contains(weak), "{error}");
        }
    }

    #[test]
    fn hexadecimal_forms_are_checked() {
        let secret = Secret::random().unwrap();
        assert_eq!(Secret::from_hex(&secret.to_hex()).unwrap().as_bytes(), secret.as_bytes());
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert!(Secret::from_hex(bad).is_err(), "{bad}");
        }
    }
}
