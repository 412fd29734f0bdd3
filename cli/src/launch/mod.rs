//! `transom launch`: starts the ranks of a job on this host, gives them what they need to meet, passes their output
//! through, and ends all of them when one fails.

mod child;
mod output;

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use transom::environment::{LOCAL_SIZE, RANK, SIZE, STORE};
use transom::{Error, Result, Secret, Store, StoreServer};

use child::{Child, Ended};

/// How long the others may take to end by themselves once one has failed: they are told why by then.
const LEARN: Duration = Duration::from_secs(1);
/// How long they may take to end after SIGTERM.
const OBEY: Duration = Duration::from_secs(3);

/// A job on this host: a program that runs as several ranks.
#[derive(Debug, Clone)]
pub struct Job {
    /// How many ranks.
    pub ranks: u32,
    /// The transports that they may use, best first, as in `TRANSOM_TRANSPORTS`; by default what that says.
    pub transports: Option<String>,
    /// Let the others go on when one fails.
    pub keep_going: bool,
    /// Pass output through as it is, without the rank before each line.
    pub raw: bool,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

impl Job {
    /// Runs it to its end, on this thread. Its ranks end with this process, however it ends.
    ///
    /// The exit code is that of the first rank that failed: its own, or 128 and the signal.
    ///
    /// # Errors
    /// [`Error::Io`] when a rank cannot be started: those that were are ended; errors of the store.
    pub fn run(&self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::io("start the launcher", e))?;
        let code = runtime.block_on(launch(self))?;
        // Output threads are done: every child has ended.
        runtime.shutdown_background();
        Ok(code)
    }
}

async fn launch(job: &Job) -> Result<ExitCode> {
    let secret = Secret::random()?;
    let server = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &secret)?;
    let store = Store::connect(&server.address().to_string(), &secret, Duration::from_secs(10))?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(|e| Error::io("watch for SIGINT", e))?;
    let mut terminated = signal(SignalKind::terminate()).map_err(|e| Error::io("watch for SIGTERM", e))?;

    let (ended, mut ends) = mpsc::channel(job.ranks as usize);
    let mut running: HashMap<u32, Child> = HashMap::new();
    for rank in 0..job.ranks {
        let mut variables = vec![
            (RANK, rank.to_string()),
            (SIZE, job.ranks.to_string()),
            (LOCAL_SIZE, job.ranks.to_string()),
            (STORE, format!("tcp://{}", server.address())),
        ];
        if let Some(transports) = &job.transports {
            variables.push(("TRANSOM_TRANSPORTS", transports.clone()));
        }
        let prefix = if job.raw { None } else { Some(prefix(rank, job.ranks)) };
        let started = child::start(rank, &job.program, &variables, &secret, prefix, ended.clone());
        match started {
            Ok(child) => {
                running.insert(rank, child);
            }
            Err(error) => {
                end_all(&mut running, &mut ends, Instant::now()).await;
                return Err(error);
            }
        }
    }
    drop(ended);

    let mut first = None;
    // When the others are asked to end, once one has failed.
    let mut ask_at = None;
    while !running.is_empty() {
        let asking = async {
            match ask_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            end = ends.recv() => {
                let Some((rank, how)) = end else { break };
                if let Some(child) = running.remove(&rank) {
                    // What it started and left behind.
                    child.signal(rustix::process::Signal::KILL);
                }
                // The others look there when their own view of the failure does not say how it came.
                let _ = store.set_async(&format!("exit/{rank}"), how.record().as_bytes()).await;
                if !how.is_success() {
                    say(&format!("rank {rank} {how}"));
                    first.get_or_insert(how);
                    if !job.keep_going && ask_at.is_none() {
                        ask_at = Some(Instant::now() + LEARN);
                    }
                }
            }
            () = asking => {
                say(&format!("ending {} other ranks", running.len()));
                end_all(&mut running, &mut ends, Instant::now()).await;
            }
            _ = interrupted.recv() => {
                end_all(&mut running, &mut ends, Instant::now()).await;
                first.get_or_insert(Ended::Signaled(2));
            }
            _ = terminated.recv() => {
                end_all(&mut running, &mut ends, Instant::now()).await;
                first.get_or_insert(Ended::Signaled(15));
            }
        }
    }
    Ok(first.map_or(ExitCode::SUCCESS, |how| ExitCode::from(how.code())))
}

/// Asks every child to end, then makes it.
async fn end_all(running: &mut HashMap<u32, Child>, ends: &mut mpsc::Receiver<(u32, Ended)>, now: Instant) {
    for child in running.values() {
        child.signal(rustix::process::Signal::TERM);
    }
    let deadline = now + OBEY;
    while !running.is_empty() {
        tokio::select! {
            end = ends.recv() => match end {
                Some((rank, _)) => { running.remove(&rank); }
                None => return,
            },
            () = sleep_until(deadline) => {
                for child in running.values() {
                    child.signal(rustix::process::Signal::KILL);
                }
                while !running.is_empty() {
                    let Some((rank, _)) = ends.recv().await else { return };
                    running.remove(&rank);
                }
            }
        }
    }
}

fn prefix(rank: u32, ranks: u32) -> String {
    let width = (ranks - 1).to_string().len();
    format!("[{rank:>width$}] ")
}

#[expect(clippy::print_stderr, reason = "a command tells its user what happens")]
fn say(what: &str) {
    eprintln!("transom launch: {what}");
}
