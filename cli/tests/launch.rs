//! `transom launch`, run as a user runs it. The ranks are this test binary itself, or a shell.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it cannot go on, and its ranks speak by their output"
)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use transom::{Team, Window};

const PART: &str = "TRANSOM_TEST_PART";
const SOON: Duration = Duration::from_secs(30);

fn launch(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.arg("launch").args(options).arg("--").args(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn shell(options: &[&str], script: &str) -> Output {
    launch(options, &["sh", "-c", script]).output().unwrap()
}

/// Launches this binary, whose test `a_rank` then plays this part.
fn ranks(options: &[&str], part: &str) -> Command {
    let me = std::env::current_exe().unwrap();
    let mut command = launch(options, &[me.to_str().unwrap(), "a_rank", "--exact", "--nocapture"]);
    command.env(PART, part).env("RUST_BACKTRACE", "0");
    command
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Kills the launcher when the test fails, and with it its ranks.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parts that ranks play. Without one, it is a test that does nothing.
#[test]
fn a_rank() {
    let Ok(part) = std::env::var(PART) else { return };
    // Its line is whole, and no other thread writes.
    let say = |text: String| println!("\n#{text}");
    let team = match Team::builder_from_env().and_then(|builder| builder.timeout(SOON).build()) {
        Ok(team) => team,
        Err(error) => panic!("{error}"),
    };
    let window = Window::allocate(&team, 4096).unwrap();
    let next = (team.rank() + 1) % team.size();
    match part.as_str() {
        "ring" => {
            window.put_signal(next, 0, &[team.rank() as u8 + 1], 0, 1).unwrap();
            window.signal(0).unwrap().wait_at_least(1, SOON).unwrap();
            let mut seen = [0];
            window.local().read(0, &mut seen).unwrap();
            say(format!("rank {} of {} got {}", team.rank(), team.size(), seen[0]));
            window.close().unwrap();
        }
        "die" => {
            // Who dies while others stand in the last barrier of the allocation fails that.
            if team.rank() == 1 {
                window.signal(8).unwrap().wait_at_least(u64::from(team.size()) - 1, SOON).unwrap();
                kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            }
            window.send_signal(1, 8, 1).unwrap();
            window.flush(1).unwrap();
            let error = window.signals_from(&[1]).unwrap().wait_any(&[(9, 1)], SOON).unwrap_err();
            say(format!("{}: {error}", team.rank()));
            let error = window.put(1, 0, &[1]).and_then(|()| window.flush(1)).unwrap_err();
            say(format!("{}: {error}", team.rank()));
        }
        "wait" => {
            say(format!("pid {}", std::process::id()));
            let _ = window.signal(9).unwrap().wait_at_least(1, Duration::from_secs(600));
        }
        part => panic!("{part}"),
    }
}

#[test]
fn every_line_has_its_rank_and_a_job_that_ends_well_exits_with_0() {
    let out = shell(
        &["-n", "3"],
        "echo out $TRANSOM_RANK of $TRANSOM_SIZE; echo err $TRANSOM_RANK >&2; printf last",
    );
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let expected: Vec<_> =
        (0..3).flat_map(|r| [format!("[{r}] last"), format!("[{r}] out {r} of 3")]).collect();
    assert_eq!(lines(&out.stdout), expected);
    assert_eq!(lines(&out.stderr), ["[0] err 0", "[1] err 1", "[2] err 2"]);
    let raw = shell(&["-n", "2", "--raw"], "echo $TRANSOM_RANK");
    assert_eq!(lines(&raw.stdout), ["0", "1"]);
    let wide = shell(&["-n", "11"], ":; echo x");
    assert!(
        lines(&wide.stdout).contains(&"[10] x".to_owned())
            && lines(&wide.stdout).contains(&"[ 0] x".to_owned())
    );
}

#[test]
fn ranks_meet_in_a_team_over_each_transport() {
    for transports in ["shm", "tcp", "shm,tcp"] {
        let out = ranks(&["-n", "3", "--transports", transports], "ring").output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{out:?}");
        let said: Vec<_> = lines(&out.stdout).into_iter().filter(|line| line.contains('#')).collect();
        assert_eq!(said, ["[0] #rank 0 of 3 got 3", "[1] #rank 1 of 3 got 1", "[2] #rank 2 of 3 got 2"]);
    }
}

#[test]
fn the_first_rank_that_fails_gives_the_code_and_ends_the_others() {
    let since = Instant::now();
    let out = shell(&["-n", "3"], "if [ $TRANSOM_RANK = 1 ]; then exit 7; fi; exec sleep 600");
    assert_eq!(out.status.code(), Some(7), "{out:?}");
    assert!(since.elapsed() < SOON);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("rank 1 exited with code 7") && said.contains("ending 2 other ranks"), "{said}");
    let out = shell(&["-n", "2"], "if [ $TRANSOM_RANK = 1 ]; then kill -9 $$; fi; exec sleep 600");
    assert_eq!(out.status.code(), Some(128 + 9), "{out:?}");
    // One that does not obey SIGTERM is killed.
    let out = shell(
        &["-n", "2"],
        "trap '' TERM; if [ $TRANSOM_RANK = 1 ]; then exit 3; fi; while :; do sleep 1; done",
    );
    assert_eq!(out.status.code(), Some(3), "{out:?}");
    let out = launch(&["-n", "2"], &["/nowhere/program"]).output().unwrap();
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere/program"), "{out:?}");
}

#[test]
fn keep_going_lets_the_others_end_by_themselves() {
    let out =
        shell(&["-n", "3", "--keep-going"], "if [ $TRANSOM_RANK = 0 ]; then exit 5; fi; sleep 2; echo done");
    assert_eq!(out.status.code(), Some(5), "{out:?}");
    assert_eq!(lines(&out.stdout), ["[1] done", "[2] done"]);
}

#[test]
fn a_survivor_is_told_how_a_rank_ended() {
    for transports in ["shm", "tcp"] {
        let out = ranks(&["-n", "3", "--transports", transports, "--keep-going"], "die").output().unwrap();
        assert_eq!(out.status.code(), Some(128 + 9), "{out:?}");
        let said: Vec<_> = lines(&out.stdout).into_iter().filter(|line| line.contains('#')).collect();
        assert_eq!(said.len(), 4, "{out:?}");
        for line in said {
            assert!(line.contains("rank 1") && line.contains("killed by signal 9"), "{transports}: {line}");
        }
    }
}

/// Starts three ranks that wait, and returns their process numbers.
fn waiting() -> (Running, Vec<i32>) {
    let mut launcher = Running(ranks(&["-n", "3"], "wait").spawn().unwrap());
    let mut out = BufReader::new(launcher.0.stdout.take().unwrap());
    let mut pids = Vec::new();
    let mut line = String::new();
    while pids.len() < 3 {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the ranks ended early");
        if let Some((_, pid)) = line.split_once("#pid ") {
            pids.push(pid.trim().parse().unwrap());
        }
    }
    // Nobody stands in the way of what the ranks still say.
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    (launcher, pids)
}

/// Waits for the ends of processes that are not our children.
fn all_end(pids: &[i32], by: impl FnOnce()) {
    let fds: Vec<_> = pids
        .iter()
        .map(|pid| pidfd_open(Pid::from_raw(*pid).unwrap(), PidfdFlags::empty()).unwrap())
        .collect();
    by();
    for (fd, pid) in fds.iter().zip(pids) {
        let timeout = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap(), 1, "{pid} lives on");
    }
}

#[test]
fn a_signal_to_the_launcher_ends_all_and_so_does_its_death() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let (mut launcher, pids) = waiting();
        let pid = Pid::from_child(&launcher.0);
        all_end(&pids, || kill_process(pid, signal).unwrap());
        let ended = launcher.0.wait().unwrap();
        match signal {
            Signal::KILL => assert_eq!(ended.signal(), Some(9)),
            other => assert_eq!(ended.code(), Some(128 + other.as_raw())),
        }
    }
}

#[test]
fn the_secret_stands_in_no_argument_and_no_variable() {
    // A rank that reads its secret as a program would, and shows it only to the test.
    let script = "secret=$(cat <&$TRANSOM_SECRET_FD); echo \"#$secret\"; tr '\\0' '\\n' </proc/$PPID/cmdline; \
                  tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' '\\n' </proc/$$/environ; echo args; \
                  tr '\\0' '\\n' </proc/$$/cmdline";
    let out = launch(&["-n", "1", "--raw"], &["bash", "-c", script]).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let said = String::from_utf8(out.stdout).unwrap();
    let (secret, rest) = said.strip_prefix('#').unwrap().split_once('\n').unwrap();
    assert_eq!(secret.len(), 64, "64 hexadecimal digits");
    assert!(rest.contains("TRANSOM_SECRET_FD=") && rest.contains("args"), "{rest}");
    assert!(!rest.contains(secret) && !String::from_utf8_lossy(&out.stderr).contains(secret));
    // Nor in those of ranks that have read it.
    let (_launcher, pids) = waiting();
    for pid in pids {
        for name in ["environ", "cmdline"] {
            let mut text = Vec::new();
            std::fs::File::open(format!("/proc/{pid}/{name}")).unwrap().read_to_end(&mut text).unwrap();
            let longest = text.split(|b| !b.is_ascii_hexdigit()).map(<[u8]>::len).max();
            assert!(longest < Some(64), "{name} of {pid} has {longest:?} hexadecimal digits in a row");
        }
    }
}
