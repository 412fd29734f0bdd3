//! What is promised across hosts, on hosts that are network namespaces: lost packets, pulled cables, slow and stopped
//! peers, strangers at the door.
//!
//! Waits are bounded by ten times what is promised. Only root can run them.

#![allow(clippy::unwrap_used, reason = "a case fails by a panic that says where")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard};
use transom::{Cause, Error, Failure, MemoryRegion, Outcome, Request, Team, Window};
use transom_tests::network::Network;
use transom_tests::pattern;
use transom_tests::process::{self, Me};

/// Ten times the 2.5 s in which a silent host or a frozen process is told.
const SILENT: Duration = Duration::from_secs(25);
/// Ten times the 0.5 s in which a death is told.
const DEAD: Duration = Duration::from_secs(5);
const MIB: usize = 1 << 20;

/// Tests that compare rates run alone, the others beside each other.
static RATES: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    RATES.read()
}

/// A rank's team, from its environment, and a window with a part of this size at each rank.
fn meet(size: usize) -> (Team, Window) {
    let team = Team::from_env().unwrap();
    let window = Window::allocate(&team, size).unwrap();
    (team, window)
}

fn memory(team: &Team, bytes: &[u8]) -> MemoryRegion {
    let region = team.context().allocate(bytes.len(), 0).unwrap();
    region.write(0, bytes).unwrap();
    region
}

/// Waits until the failure of a rank is known.
fn failure(team: &Team, rank: u32) -> Arc<Failure> {
    let since = Instant::now();
    loop {
        if let Some(failure) = team.failure(rank) {
            return failure;
        }
        assert!(since.elapsed() < SILENT, "rank {rank} has not failed after {SILENT:?}");
        // There is no event: whoever asks for it drives.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// The outcomes and the causes of requests, each of which ends within this time from now.
fn ends(requests: &[Request], within: Duration) -> Vec<Result<(), (Outcome, Cause)>> {
    let until = Instant::now() + within;
    let end = |request: &Request| match request.wait_timeout(until.saturating_duration_since(Instant::now()))
    {
        Ok(_) => Ok(()),
        Err(Error::Failed(failed)) => Err((failed.outcome, failed.failure.cause.clone())),
        Err(error) => panic!("{error}"),
    };
    requests.iter().map(end).collect()
}

/// Some were done, and then none: in doubt those that were on their way, not applied those behind.
fn check_ends(ends: &[Result<(), (Outcome, Cause)>], causes: &[Cause]) {
    let done = ends.iter().take_while(|end| end.is_ok()).count();
    let lost: Vec<_> =
        ends[done..].iter().map(|end| end.clone().expect_err("done behind one that was lost")).collect();
    assert!(!lost.is_empty(), "{done} were done, none was lost");
    let mut not_applied = false;
    for (outcome, cause) in lost {
        assert!(causes.contains(&cause), "{cause:?} is none of {causes:?}");
        not_applied |= outcome == Outcome::NotApplied;
        let expected = if not_applied { Outcome::NotApplied } else { Outcome::InDoubt };
        assert_eq!(outcome, expected, "{ends:?}");
    }
}

/// Rank 0 sends, rank 1 waits for a signal that does not come. Both say "ready", and how it ended.
fn send_to_somebody_lost(mut me: Me, causes: &[Cause]) {
    let (team, window) = meet(8 * MIB);
    if me.rank() == 0 {
        let source = memory(&team, &pattern::bytes(8 * MIB, 1));
        window.put_signal(1, 0, b"begun", 0, 1).unwrap();
        window.flush(1).unwrap();
        assert_eq!(me.hear(), "send");
        let puts: Vec<_> = (0..16).map(|_| window.put_from(1, 0, source.all()).unwrap()).collect();
        me.say("ready");
        let ends = ends(&puts, SILENT);
        check_ends(&ends, causes);
        let failure = failure(&team, 1);
        assert!(causes.contains(&failure.cause), "{failure}");
        let error = window.put(1, 0, b"late").unwrap_err();
        assert_eq!(error.outcome(), Some(Outcome::NotApplied), "{error}");
        me.say(&format!("{ends:?}; {failure}"));
    } else {
        window.signal(0).unwrap().wait_at_least(1, process::PATIENCE).unwrap();
        me.say("ready");
        let error = window.signal(0).unwrap().wait_at_least(2, 2 * SILENT).unwrap_err();
        let Error::Failed(failed) = &error else { panic!("{error}") };
        assert!(causes.contains(&failed.failure.cause), "{error}");
        me.say(&error.to_string());
    }
}

#[test]
fn operations_to_a_host_that_is_cut_off_end_with_their_outcomes() {
    if let Some(me) = process::rank() {
        return send_to_somebody_lost(me, &[Cause::HostUnreachable]);
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let mut ranks = network.start("operations_to_a_host_that_is_cut_off_end_with_their_outcomes");
    assert_eq!(ranks[1].hear(), "ready");
    // So slow that most is on its way when the host is lost.
    network.slow(1, "80mbit");
    ranks[0].say("send");
    assert_eq!(ranks[0].hear(), "ready");
    network.cut(1);
    for rank in ranks.iter_mut() {
        eprintln!("{}", rank.hear_within(3 * SILENT));
    }
    ranks.end_well();
}

#[test]
fn a_host_that_is_cut_off_is_noticed_on_an_idle_connection() {
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(4096);
        team.barrier().unwrap();
        me.say("ready");
        let error = window.signal(0).unwrap().wait_at_least(1, 2 * SILENT).unwrap_err();
        let Error::Failed(failed) = &error else { panic!("{error}") };
        assert_eq!(failed.failure.cause, Cause::HostUnreachable, "{error}");
        let other = 1 - me.rank();
        assert_eq!(failure(&team, other).cause, Cause::HostUnreachable);
        let peer = window.part(other).unwrap().put(0, b"late").unwrap_err();
        assert_eq!(peer.outcome(), Some(Outcome::NotApplied), "{peer}");
        return me.say(&error.to_string());
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let mut ranks = network.start("a_host_that_is_cut_off_is_noticed_on_an_idle_connection");
    assert_eq!(ranks.hear(), ["ready", "ready"]);
    network.cut(1);
    let cut = Instant::now();
    for rank in ranks.iter_mut() {
        eprintln!("{}", rank.hear_within(SILENT));
    }
    assert!(cut.elapsed() < SILENT, "{:?}", cut.elapsed());
    ranks.end_well();
}
