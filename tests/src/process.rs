//! Tests of several processes: a test runs its own binary again, once for each rank.
//!
//! The test function is entered in every process. It asks [`rank`] first: a rank does its part and returns; the test
//! itself starts the ranks and tells them, by lines of text, what to do when.
//!
//! ```no_run
//! use transom_tests::process::{self, Ranks};
//! # fn test() {
//! if let Some(mut me) = process::rank() {
//!     me.say("ready");
//!     assert_eq!(me.hear(), "go");
//!     return;
//! }
//! let mut ranks = Ranks::start("test", 2);
//! assert_eq!(ranks[0].hear(), "ready");
//! ranks[0].kill();
//! assert_eq!(ranks[1].hear(), "ready");
//! ranks[1].say("go");
//! ranks[1].ends_well();
//! # }
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Index, IndexMut};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const RANK: &str = "TRANSOM_TEST_RANK";
const RANKS: &str = "TRANSOM_TEST_RANKS";
/// Begins a line that is meant for the test; the test harness prints others between them.
const MARK: &str = "\u{1}";
/// Longest wait for a line or an end, unless another is given.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a rank knows of itself.
#[derive(Debug)]
pub struct Me {
    rank: u32,
    size: u32,
    lines: Receiver<String>,
}

/// Whether this process is a rank.
#[must_use]
pub fn is_rank() -> bool {
    std::env::var_os(RANK).is_some()
}

/// This process as a rank; `None` in the test itself. Asked once in a process.
#[must_use]
pub fn rank() -> Option<Me> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let (rank, size) = (number(RANK)?, number(RANKS)?);
    // It ends with the test, however that ends; a test that was gone before closed our input.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Some(Me { rank, size, lines })
}

impl Me {
    /// Its rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Tells the test one line.
    pub fn say(&self, line: &str) {
        assert!(!line.contains('\n'), "one line");
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{MARK}{line}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }

    /// The next line from the test. Panics when none comes.
    #[must_use]
    pub fn hear(&mut self) -> String {
        self.hear_within(PATIENCE)
    }

    /// The next line from the test, if it is there.
    #[must_use]
    pub fn heard(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// As [`Me::hear`], within this time.
    #[must_use]
    pub fn hear_within(&mut self, time: Duration) -> String {
        match self.lines.recv_timeout(time) {
            Ok(line) => line,
            Err(error) => panic!("rank {}: no line from the test: {error}", self.rank),
        }
    }
}

/// How one rank is started.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// The program and its arguments under which it runs, such as `nsenter`: it has to become the rank, or to end with it.
    pub under: Vec<String>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
}

/// The ranks of a test, each a process. Those that still live are killed when it is dropped.
#[derive(Debug)]
pub struct Ranks(Vec<Rank>);

impl Ranks {
    /// Starts `size` ranks of the test with this name (`module::function`, as the harness prints it).
    #[must_use]
    pub fn start(test: &str, size: u32) -> Self {
        Self::start_with(test, size, &[])
    }

    /// As [`Ranks::start`], with these environment variables.
    #[must_use]
    pub fn start_with(test: &str, size: u32, variables: &[(&str, &str)]) -> Self {
        assert!(!is_rank(), "a rank starts no ranks: it has to ask rank() first");
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let start = Start { under: Vec::new(), variables: variables.iter().map(own).collect() };
        Self((0..size).map(|rank| Rank::start(test, rank, size, &start)).collect())
    }

    /// As [`Ranks::start`], each rank in a way of its own.
    #[must_use]
    pub fn start_each(test: &str, starts: &[Start]) -> Self {
        assert!(!is_rank(), "a rank starts no ranks: it has to ask rank() first");
        let size = starts.len() as u32;
        Self((0..size).zip(starts).map(|(rank, start)| Rank::start(test, rank, size, start)).collect())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Rank> {
        self.0.iter_mut()
    }

    /// Tells all of them one line.
    pub fn say(&mut self, line: &str) {
        self.iter_mut().for_each(|rank| rank.say(line));
    }

    /// The next line of each.
    pub fn hear(&mut self) -> Vec<String> {
        self.iter_mut().map(Rank::hear).collect()
    }

    /// Waits until all have ended well.
    pub fn end_well(&mut self) {
        self.iter_mut().for_each(Rank::ends_well);
    }
}

impl Index<usize> for Ranks {
    type Output = Rank;
    fn index(&self, rank: usize) -> &Rank {
        &self.0[rank]
    }
}

impl IndexMut<usize> for Ranks {
    fn index_mut(&mut self, rank: usize) -> &mut Rank {
        &mut self.0[rank]
    }
}

/// One rank, seen from the test.
#[derive(Debug)]
pub struct Rank {
    rank: u32,
    process: std::process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    ended: Option<ExitStatus>,
    /// What it and its harness printed besides: shown when it fails.
    printed: Receiver<String>,
}

impl Rank {
    fn start(test: &str, rank: u32, size: u32, start: &Start) -> Self {
        let test_binary = std::env::current_exe().unwrap();
        let mut command = match start.under.split_first() {
            None => Command::new(test_binary),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(test_binary);
                command
            }
        };
        let mut process = command
            .args([test, "--exact", "--nocapture", "--include-ignored"])
            .env(RANK, rank.to_string())
            .env(RANKS, size.to_string())
            .env("RUST_BACKTRACE", "0")
            .envs(start.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, lines) = channel();
        let (print, printed) = channel();
        let out = process.stdout.take().unwrap();
        let err = process.stderr.take().unwrap();
        let print_out = print.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The harness may have begun the line, with the test's name.
                let sent = match line.split_once(MARK) {
                    Some((_, line)) => said.send(line.to_owned()),
                    None => print_out.send(line),
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            let mut text = String::new();
            // What is no text is left out.
            let _ = BufReader::new(err).read_to_string(&mut text);
            let _ = print.send(text);
        });
        let input = process.stdin.take();
        Self { rank, process, input, lines, ended: None, printed }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Tells it one line. A rank that has ended hears nothing.
    pub fn say(&mut self, line: &str) {
        assert!(!line.contains('\n'), "one line");
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
        }
    }

    /// Its next line. Panics when none comes.
    pub fn hear(&mut self) -> String {
        self.hear_within(PATIENCE)
    }

    /// As [`Rank::hear`], within this time.
    pub fn hear_within(&mut self, time: Duration) -> String {
        match self.lines.recv_timeout(time) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("rank {} says nothing for {time:?}", self.rank),
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.wait(PATIENCE);
                panic!("rank {} ended ({ended:?}) without a word{}", self.rank, self.printed());
            }
        }
    }

    /// Its next line if it comes within this time.
    pub fn hears_nothing_for(&mut self, time: Duration) -> bool {
        self.lines.recv_timeout(time).is_err()
    }

    fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "rank {} has ended", self.rank);
        // Its number is its own until it was waited for.
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Kills it, as by `kill -9`, and waits for its end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let ended = self.wait(PATIENCE).expect("a killed process ends");
        assert_eq!(ended.signal(), Some(9), "rank {}{}", self.rank, self.printed());
    }

    /// Kills it, as by `kill -9`, and does not wait.
    pub fn kill_now(&self) {
        self.signal(Signal::KILL);
    }

    /// Stops it, as by `kill -STOP`. Returns when it stands.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let since = Instant::now();
        // There is no descriptor that tells of it.
        while self.state() != Some('T') {
            assert!(since.elapsed() < PATIENCE, "rank {} does not stop", self.rank);
            std::thread::yield_now();
        }
    }

    /// Lets it go on, as by `kill -CONT`.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// Waits for its end; `None` when it does not come within this time.
    pub fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        if self.ended.is_none() {
            let fd = pidfd_open(Pid::from_child(&self.process), PidfdFlags::empty()).unwrap();
            let until = Instant::now() + time;
            while self.ended.is_none() {
                let left = until.saturating_duration_since(Instant::now());
                let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                // An interrupted wait is begun again.
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
                self.ended = self.process.try_wait().unwrap();
                if left.is_zero() {
                    break;
                }
            }
        }
        self.ended
    }

    /// Waits until it has ended well, and panics with what it printed when it does not.
    pub fn ends_well(&mut self) {
        let ended = self.wait(PATIENCE);
        let well = ended.is_some_and(|status| status.success());
        assert!(well, "rank {} ended with {ended:?}{}", self.rank, self.printed());
    }

    fn printed(&self) -> String {
        let mut text = String::new();
        while let Ok(line) = self.printed.recv_timeout(Duration::from_millis(100)) {
            text.push('\n');
            text.push_str(&line);
        }
        text
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // It may have ended by itself just now.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Runs a test in a process of its own: `body` is called there, and this process waits for its end.
pub fn alone(test: &str, at_most: Duration, body: impl FnOnce()) {
    let test = test.split_once("::").map_or(test, |(_, path)| path);
    if rank().is_some() {
        return body();
    }
    let mut ranks = Ranks::start(test, 1);
    let ended = ranks[0].wait(at_most);
    let printed = ranks[0].printed();
    assert!(ended.is_some_and(|status| status.success()), "{test} ended with {ended:?}{printed}");
}
