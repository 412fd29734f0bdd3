use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::{Cause, Outcome};

const VARIABLE: &str = "TRANSOM_TEST_TCP_SECRET";

/// Another process that owns a region; ends with its handle.
struct Owner(Child, RemoteRegion);

impl Owner {
    fn start(secret: &Secret) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["tcp::tests::processes::owner_for_others", "--exact", "--nocapture", "--include-ignored"])
            .env(VARIABLE, secret.to_hex().as_str())
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.map_while(Result::ok).find_map(|line| {
            let at = line.find("transom1-")?;
            line[at..].parse::<RemoteRegion>().ok()
        });
        let mut remote = found.unwrap();
        remote.addresses.retain(|a| a.starts_with("tcp:"));
        Self(child, remote)
    }

    fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        if signal == rustix::process::Signal::STOP {
            // All of its threads stand still once it can be waited for.
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other process of the tests below"]
#[expect(clippy::print_stdout, reason = "its parent reads the descriptor there")]
fn owner_for_others() {
    let Ok(secret) = std::env::var(VARIABLE) else { return };
    let owner = context(&Secret::from_hex(&secret).unwrap(), "tcp");
    let region = owner.allocate(16 << 20, 1).unwrap();
    println!("{}", region.remote(Access::ALL).unwrap());
    // Until the other end of the pipe goes.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_killed_process_is_noticed_and_each_operation_has_its_outcome() {
    let secret = Secret::random().unwrap();
    let user = context(&secret, "tcp");
    let owner = Owner::start(&secret);
    let part = user.connect(&owner.1).unwrap().open(&owner.1).unwrap();
    part.put(0, b"alive").unwrap();
    part.flush().unwrap();
    let own = user.allocate(16 << 20, 0).unwrap();
    owner.signal(libc::SIGSTOP);
    let puts: Vec<_> = (0..8).map(|_| part.put_from(0, own.all()).unwrap()).collect();
    owner.signal(libc::SIGKILL);
    let outcomes: Vec<_> = puts.iter().map(|put| put.wait().unwrap_err().outcome().unwrap()).collect();
    assert_eq!(outcomes[0], Outcome::InDoubt);
    assert_eq!(outcomes[7], Outcome::NotApplied);
    let failure = faults::wait_for_failure(&user, &part);
    assert_eq!(failure.cause, Cause::ConnectionLost, "{failure}");
    assert_eq!(part.put(0, b"x").unwrap_err().outcome(), Some(Outcome::NotApplied));
}

#[test]
fn a_stopped_process_is_told_as_frozen() {
    let secret = Secret::random().unwrap();
    let user = context(&secret, "tcp");
    let owner = Owner::start(&secret);
    let part = user.connect(&owner.1).unwrap().open(&owner.1).unwrap();
    part.put(0, b"alive").unwrap();
    part.flush().unwrap();
    owner.signal(libc::SIGSTOP);
    let error = part.get(0, &mut [0; 8]).unwrap_err();
    assert_eq!(error.outcome(), Some(Outcome::InDoubt), "{error}");
    let failure = faults::wait_for_failure(&user, &part);
    assert_eq!(failure.cause, Cause::Frozen, "{failure}");
}
