//! One rank's process.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use tokio::process::Command;
use tokio::sync::mpsc;
use transom::{Error, Result, Secret};

use super::output;

/// A rank that runs.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
}

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl Ended {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signaled(signal),
            (None, None) => Self::Exited(255),
        }
    }

    pub(super) fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The exit code that stands for it, as shells do.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code as u8,
            Self::Signaled(signal) => 128_u8.saturating_add(signal as u8),
        }
    }

    /// As it is told in the store.
    pub(super) fn record(self) -> String {
        match self {
            Self::Exited(code) => format!("exited {code}"),
            Self::Signaled(signal) => format!("signaled {signal}"),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signaled(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

impl Child {
    /// Sends a signal to it and to what it started.
    pub(super) fn signal(&self, signal: Signal) {
        // It has not been waited for as long as it is among the running ones, so the number is still its own.
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }
}

/// Starts a rank. Its secret comes by an inherited pipe, so that it stands in no argument and no variable; it ends when
/// the launcher does.
pub(super) fn start(
    rank: u32,
    program: &[OsString],
    variables: &[(&str, String)],
    secret: &Secret,
    prefix: Option<String>,
    ended: mpsc::Sender<(u32, Ended)>,
) -> Result<Child> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::io("make a pipe", e))?;
    std::fs::File::from(write)
        .write_all(secret.to_hex().as_bytes())
        .map_err(|e| Error::io("hand on the secret", e))?;
    let mut command = std::process::Command::new(&program[0]);
    command.args(&program[1..]).stdin(Stdio::null()).env_remove("TRANSOM_SECRET_FILE");
    // A group of its own, so that what it started ends with it.
    command.process_group(0);
    command.env("TRANSOM_SECRET_FD", read.as_raw_fd().to_string());
    for (name, value) in variables {
        command.env(name, value);
    }
    if prefix.is_some() {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let launcher = rustix::process::getpid();
    inherit(&mut command, read, launcher);
    let mut child = Command::from(command).spawn().map_err(|e| {
        Error::io(format!("start {:?} (is it there, and can it be run?)", program[0].to_string_lossy()), e)
    })?;
    let pid = child
        .id()
        .and_then(|id| Pid::from_raw(id as i32))
        .ok_or_else(|| Error::invalid("launch", "no process"))?;
    let mut readers = Vec::new();
    if let Some(prefix) = &prefix {
        if let Some(stdout) = child.stdout.take() {
            readers.push(tokio::spawn(output::pass(stdout, tokio::io::stdout(), prefix.clone())));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(tokio::spawn(output::pass(stderr, tokio::io::stderr(), prefix.clone())));
        }
    }
    tokio::spawn(async move {
        let how = child.wait().await.map_or(Ended::Exited(255), Ended::of);
        // What it wrote before it ended comes out before its end is told; a grandchild that keeps the pipe is not waited
        // for.
        for reader in readers {
            let _ = tokio::time::timeout(std::time::Duration::from_millis(500), reader).await;
        }
        let _ = ended.send((rank, how)).await;
    });
    Ok(Child { pid })
}

/// Has the child inherit `fd`, and be killed when the launcher goes, however that happens.
fn inherit(command: &mut std::process::Command, fd: OwnedFd, launcher: Pid) {
    let between = move || {
        fcntl_setfd(&fd, FdFlags::empty())?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have gone in between.
        if rustix::process::getppid() != Some(launcher) {
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only three system calls are made: nothing allocates, locks or panics.
    unsafe { command.pre_exec(between) };
}
