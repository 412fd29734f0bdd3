//! The pass phrase at the sender: typed without echo, or from a file that only we can read.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use transom::{Error, Result, Secret};
use zeroize::Zeroizing;

/// Longest phrase that is read, in bytes: several times what one has.
const LONGEST: usize = 256;

/// Reads the secret of a pass phrase from a file that only we can read.
///
/// # Errors
/// [`Error::Config`] when the file is not ours, others can read it, or it is no file; [`Error::Malformed`];
/// [`Error::Io`].
pub(super) fn from_file(path: &Path) -> Result<Secret> {
    let fault = |why: String| Error::Config {
        name: "pass phrase file".into(),
        value: path.display().to_string(),
        why,
    };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
        .open(path)
        .map_err(|e| fault(e.to_string()))?;
    let about = file.metadata().map_err(|e| Error::io("look at the pass phrase file", e))?;
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
    let mut text = Zeroizing::new(String::with_capacity(LONGEST));
    file.take(LONGEST as u64)
        .read_to_string(&mut text)
        .map_err(|e| Error::io("read the pass phrase file", e))?;
    Secret::from_passphrase(&text)
}

/// Asks for the pass phrase on the terminal, without echo.
///
/// # Errors
/// [`Error::Invalid`] without a terminal, and when the user gives up; [`Error::Malformed`]; [`Error::Io`].
pub(super) fn from_terminal() -> Result<Secret> {
    let terminal = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits() as i32)
        .open("/dev/tty")
        .map_err(|e| {
            Error::invalid(
                "ask for the pass phrase",
                format!("there is no terminal: {e} (--passphrase-file)"),
            )
        })?;
    let silent = Silent::begin(&terminal)?;
    let mut screen = &terminal;
    let asked = write!(screen, "pass phrase: ").and_then(|()| screen.flush());
    let typed = asked
        .map_err(|e| Error::io("write to the terminal", e))
        .and_then(|()| read_line(&mut &terminal, silent.erases()));
    let _ = writeln!(screen);
    drop(silent);
    Secret::from_passphrase(&typed?)
}

/// A terminal that shows nothing of what is typed, until this is dropped. It gives keys one by one, so that Ctrl-C
/// comes as one of them and finds nobody who would leave it silent.
struct Silent<'a> {
    terminal: &'a std::fs::File,
    before: Termios,
}

impl<'a> Silent<'a> {
    fn begin(terminal: &'a std::fs::File) -> Result<Silent<'a>> {
        let before = tcgetattr(terminal).map_err(|e| Error::io("read the terminal's modes", e))?;
        let mut modes = before.clone();
        modes.local_modes &= !(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Flush: what was typed ahead was shown.
        tcsetattr(terminal, OptionalActions::Flush, &modes)
            .map_err(|e| Error::io("switch the terminal's echo off", e))?;
        Ok(Self { terminal, before })
    }

    /// What the user's key to erase sends.
    fn erases(&self) -> u8 {
        self.before.special_codes[SpecialCodeIndex::VERASE]
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Reads keys until the line ends.
///
/// # Errors
/// [`Error::Invalid`] when it ends by Ctrl-C or Ctrl-D, or is too long; [`Error::Io`].
fn read_line(keys: &mut impl Read, erases: u8) -> Result<Zeroizing<String>> {
    const OPERATION: &str = "read the pass phrase";
    let mut line = Zeroizing::new(String::with_capacity(LONGEST));
    let mut key = Zeroizing::new([0_u8]);
    loop {
        match keys.read(&mut *key) {
            Ok(1) => {}
            Ok(_) => return Err(Error::invalid(OPERATION, "the terminal is gone")),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Error::io(OPERATION, e)),
        }
        match key[0] {
            b'\r' | b'\n' => return Ok(line),
            0x03 | 0x04 | 0x1c => return Err(Error::invalid(OPERATION, "given up")),
            0x08 | 0x7f => drop(line.pop()),
            erase if erase == erases && erase != 0 => drop(line.pop()),
            // Ctrl-U: begin again.
            0x15 => line.clear(),
            _ if line.len() == LONGEST => return Err(Error::invalid(OPERATION, "the line is too long")),
            // What is not ASCII is in no phrase; the check of the phrase says so.
            other => line.push(if other.is_ascii() { char::from(other) } else { '?' }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::scratch::Scratch;
    use super::*;

    fn typed(keys: &[u8]) -> Result<Zeroizing<String>> {
        read_line(&mut &keys[..], 0x7f)
    }

    #[test]
    fn a_line_can_be_corrected_while_it_is_typed() {
        assert_eq!(*typed(b"abcd-efgh\r").unwrap(), "abcd-efgh");
        assert_eq!(*typed(b"abx\x7f\x08bc\n").unwrap(), "abc");
        assert_eq!(*typed(b"\x7fwrong\x15right\nrest").unwrap(), "right");
        assert_eq!(*typed("a\u{fc}\n".as_bytes()).unwrap(), "a??");
    }

    #[test]
    fn ctrl_c_an_end_and_endless_lines_are_errors_that_show_nothing() {
        for keys in [&b"secret\x03"[..], b"secret\x04", b"secret", &[b's'; 2 * LONGEST]] {
            let error = typed(keys).unwrap_err().to_string();
            assert!(!error.contains("sss") && !error.contains("secret\u{3}"), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = Scratch::new();
        let path = folder.path().join("phrase");
        let (phrase, secret) = Secret::passphrase().unwrap();
        std::fs::write(&path, format!("{}\n", *phrase)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = from_file(&path).unwrap_err().to_string();
        assert!(
            error.contains("0640") && error.contains("chmod 600") && !error.contains(&*phrase),
            "{error}"
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(*from_file(&path).unwrap().to_hex(), *secret.to_hex());
        std::fs::write(&path, "hunter2").unwrap();
        let error = from_file(&path).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(from_file(folder.path()).is_err());
        assert!(from_file(&folder.path().join("none")).is_err());
    }
}
