//! What is promised across hosts, on hosts that are network namespaces: lost packets, pulled cables, slow and stopped
//! peers, strangers at the door.
//!
//! Waits are bounded by ten times what is promised. Only root can run them.

#![allow(clippy::unwrap_used, reason = "a case fails by a panic that says where")]
#![allow(clippy::print_stderr, reason = "what was seen, for whoever reads the output of a test")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard};
use transom::{
    Access, Cause, Context, Error, Failure, MemoryRegion, Outcome, Reduce, RemoteRegion, Request, Team,
    Window,
};
use transom_tests::network::{self, Family, Network};
use transom_tests::process::{self, Me};
use transom_tests::{pattern, usage};

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
    let team = network::team().unwrap().build().unwrap();
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
fn a_host_that_only_hears_nothing_any_more_is_lost_to_both_sides() {
    if let Some(me) = process::rank() {
        // Whoever hears nothing gives up, and is heard doing so.
        return send_to_somebody_lost(me, &[Cause::HostUnreachable, Cause::ConnectionLost]);
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let mut ranks = network.start("a_host_that_only_hears_nothing_any_more_is_lost_to_both_sides");
    assert_eq!(ranks[1].hear(), "ready");
    network.slow(1, "80mbit");
    ranks[0].say("send");
    assert_eq!(ranks[0].hear(), "ready");
    network.deafen(1);
    for rank in ranks.iter_mut() {
        eprintln!("{}", rank.hear_within(3 * SILENT));
    }
    ranks.end_well();
}

#[test]
fn a_host_that_is_cut_off_is_noticed_on_an_idle_connection() {
    if let Some(me) = process::rank() {
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

#[test]
fn a_process_that_is_killed_on_another_host_is_told_at_once() {
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(8 * MIB);
        team.barrier().unwrap();
        if me.rank() == 0 {
            let source = memory(&team, &pattern::bytes(8 * MIB, 1));
            assert_eq!(me.hear(), "send");
            let puts: Vec<_> = (0..16).map(|_| window.put_from(2, 0, source.all()).unwrap()).collect();
            me.say("ready");
            assert_eq!(me.hear(), "killed");
            let since = Instant::now();
            let ends = ends(&puts, DEAD);
            check_ends(&ends, &[Cause::ConnectionLost]);
            let failure = failure(&team, 2);
            assert_eq!(failure.cause, Cause::ConnectionLost);
            assert!(since.elapsed() < DEAD);
            assert_eq!(window.put(2, 0, b"late").unwrap_err().outcome(), Some(Outcome::NotApplied));
            // The others are not touched by it.
            window.put_signal(1, 0, b"alive", 0, 1).unwrap();
            window.flush(1).unwrap();
            me.say(&failure.to_string());
        } else {
            me.say("ready");
            // Idle, with no operation that could notice it.
            assert_eq!(me.hear(), "killed");
            let since = Instant::now();
            assert_eq!(failure(&team, 2).cause, Cause::ConnectionLost);
            assert!(since.elapsed() < DEAD);
            window.signal(0).unwrap().wait_at_least(1, process::PATIENCE).unwrap();
            assert!(team.failure(0).is_none());
            me.say("alive");
        }
        assert_eq!(me.hear(), "end");
        return;
    }
    let _beside = beside_others();
    let Some(network) = Network::of(3) else { return };
    let mut ranks = network.start("a_process_that_is_killed_on_another_host_is_told_at_once");
    assert_eq!([ranks[1].hear(), ranks[2].hear()], ["ready", "ready"]);
    network.slow(2, "80mbit");
    ranks[0].say("send");
    assert_eq!(ranks[0].hear(), "ready");
    ranks[2].kill();
    for rank in 0..2 {
        ranks[rank].say("killed");
    }
    for rank in 0..2 {
        eprintln!("{}", ranks[rank].hear());
    }
    for rank in 0..2 {
        ranks[rank].say("end");
        ranks[rank].ends_well();
    }
}

#[test]
fn a_cable_that_is_out_for_less_than_a_second_is_not_noticed() {
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 16;
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(BLOCK * BLOCKS as usize);
        let other = 1 - me.rank();
        team.barrier().unwrap();
        // Both send for as long as they are told to, and count.
        let mut sent = 0;
        while me.heard().is_none() {
            let bytes = pattern::bytes(BLOCK, sent);
            window.put_signal(other, sent % BLOCKS * BLOCK as u64, &bytes, 0, 1).unwrap();
            window.fetch_add(other, 0, 0).unwrap();
            sent += 1;
            if sent == 10 {
                me.say("ready");
            }
        }
        window.flush(other).unwrap();
        assert!(team.failure(other).is_none());
        me.say(&sent.to_string());
        let expected: u64 = me.hear().parse().unwrap();
        assert_eq!(window.signal(0).unwrap().value(), expected);
        // The last round of the other's blocks is here.
        for number in expected.saturating_sub(BLOCKS)..expected {
            let mut bytes = vec![0; BLOCK];
            window.local().read((number % BLOCKS) as usize * BLOCK, &mut bytes).unwrap();
            assert_eq!(pattern::differs(&bytes, number), None, "block {number}");
        }
        team.barrier().unwrap();
        return;
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let mut ranks = network.start("a_cable_that_is_out_for_less_than_a_second_is_not_noticed");
    assert_eq!(ranks.hear(), ["ready", "ready"]);
    for _ in 0..2 {
        let out = Instant::now();
        network.unplug(1);
        // This is the outage.
        std::thread::sleep(Duration::from_millis(800));
        network.plug(1);
        eprintln!("the cable was out for {:?}", out.elapsed());
        std::thread::sleep(Duration::from_millis(800));
    }
    ranks.say("stop");
    let sent = ranks.hear();
    eprintln!("sent: {sent:?}");
    ranks[0].say(&sent[1]);
    ranks[1].say(&sent[0]);
    ranks.end_well();
}

#[test]
fn a_stopped_process_and_a_host_without_a_cable_are_told_apart() {
    // Which ranks are lost, how, and whether something is on its way to them then.
    const LOST: [(u32, Cause, bool); 4] = [
        (1, Cause::Frozen, true),
        (2, Cause::HostUnreachable, true),
        (3, Cause::Frozen, false),
        (4, Cause::HostUnreachable, false),
    ];
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(8 * MIB);
        team.barrier().unwrap();
        if me.rank() != 0 {
            me.say("ready");
            assert_eq!(me.hear_within(5 * SILENT), "end");
            return;
        }
        let source = memory(&team, &pattern::bytes(8 * MIB, 1));
        assert_eq!(me.hear(), "send");
        let send = |rank| (0..8).map(|_| window.put_from(rank, 0, source.all()).unwrap()).collect::<Vec<_>>();
        let puts: Vec<_> = LOST.iter().filter(|lost| lost.2).map(|(rank, ..)| send(*rank)).collect();
        me.say("ready");
        for (rank, cause, _) in &LOST {
            let failure = failure(&team, *rank);
            assert_eq!(failure.cause, *cause, "rank {rank}: {failure}");
            me.say(&format!("rank {rank}: {failure}"));
        }
        for ((_, cause, _), puts) in LOST.iter().zip(&puts) {
            check_ends(&ends(puts, SILENT), std::slice::from_ref(cause));
        }
        return;
    }
    let _beside = beside_others();
    let Some(network) = Network::of(5) else { return };
    let mut ranks = network.start("a_stopped_process_and_a_host_without_a_cable_are_told_apart");
    for rank in 1..5 {
        assert_eq!(ranks[rank].hear(), "ready");
    }
    for (rank, _, busy) in LOST {
        if busy {
            network.slow(rank as usize, "80mbit");
        }
    }
    ranks[0].say("send");
    assert_eq!(ranks[0].hear(), "ready");
    for (rank, cause, _) in LOST {
        match cause {
            Cause::Frozen => ranks[rank as usize].stop(),
            _ => network.unplug(rank as usize),
        }
    }
    for _ in LOST {
        eprintln!("{}", ranks[0].hear_within(2 * SILENT));
    }
    ranks[0].ends_well();
}

#[test]
fn a_peer_that_reads_nothing_holds_no_deadline_up() {
    const DEADLINE: Duration = Duration::from_millis(500);
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(64 * MIB);
        team.barrier().unwrap();
        if me.rank() != 0 {
            me.say("ready");
            let _ = me.hear_within(5 * SILENT);
            return;
        }
        let part = window.part(1).unwrap().clone().with_timeout(DEADLINE);
        let source = memory(&team, &pattern::bytes(64 * MIB, 1));
        let own = memory(&team, &[0; 4096]);
        let bytes = pattern::bytes(64 * MIB, 2);
        me.say("ready");
        assert_eq!(me.hear(), "stopped");
        // Each returns within its deadline, with what is known: it waits, or the peer is frozen.
        let timely = |what: &str, call: &mut dyn FnMut() -> Result<u64, Error>| {
            let since = Instant::now();
            let error = call().expect_err(what);
            let took = since.elapsed();
            assert!(took < 10 * DEADLINE, "{what} returned after {took:?}");
            match &error {
                Error::Expired { .. } => {}
                Error::Failed(failed) if failed.failure.cause == Cause::Frozen => {}
                _ => panic!("{what}: {error}"),
            }
            me.say(&format!("{what}: {} ms: {error} ({:?})", took.as_millis(), error.outcome()));
            error
        };
        let request = part.put_from(0, source.all()).unwrap();
        let get = part.get_into(0, own.all()).unwrap();
        timely("put_from", &mut || request.wait_timeout(DEADLINE));
        timely("get_into", &mut || get.wait_timeout(DEADLINE));
        let put = timely("put", &mut || part.put(0, &bytes).map(|()| 0));
        assert!(matches!(put.outcome(), Some(Outcome::InDoubt | Outcome::NotApplied)), "{put}");
        timely("fetch_add", &mut || part.fetch_add(0, 1));
        timely("flush", &mut || part.flush().map(|()| 0));
        for request in [&request, &get] {
            let error = request.wait_timeout(SILENT).unwrap_err();
            let Error::Failed(failed) = &error else { panic!("{error}") };
            assert_eq!(failed.failure.cause, Cause::Frozen, "{error}");
        }
        assert_eq!(failure(&team, 1).cause, Cause::Frozen);
        return me.say("end");
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let mut ranks = network.start("a_peer_that_reads_nothing_holds_no_deadline_up");
    assert_eq!(ranks.hear(), ["ready", "ready"]);
    ranks[1].stop();
    ranks[0].say("stopped");
    loop {
        let line = ranks[0].hear_within(2 * SILENT);
        eprintln!("{line}");
        if line == "end" {
            break;
        }
    }
    ranks[0].ends_well();
}

/// Sends signalled blocks to a rank for this long, and returns how many bytes of them are delivered each second.
fn rate_to(window: &Window, rank: u32, bytes: &[u8], time: Duration) -> f64 {
    let since = Instant::now();
    let mut sent = 0;
    while since.elapsed() < time {
        window.put_signal(rank, 0, bytes, 0, 1).unwrap();
        sent += bytes.len();
    }
    window.flush(rank).unwrap();
    sent as f64 / since.elapsed().as_secs_f64()
}

#[test]
fn a_slow_peer_slows_no_other_and_takes_no_memory() {
    const QUEUED: usize = 64 * MIB;
    const TIME: Duration = Duration::from_millis(1500);
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(QUEUED);
        team.barrier().unwrap();
        if me.rank() == 0 {
            let queued = memory(&team, &pattern::bytes(QUEUED, 1));
            let block = pattern::bytes(256 << 10, 2);
            let before = [(); 3].map(|()| rate_to(&window, 2, &block, TIME / 3));
            me.say("ready");
            assert_eq!(me.hear(), "slow");
            let resident = usage::resident();
            let piece = QUEUED / 16;
            let puts: Vec<_> = (0..16)
                .map(|i| {
                    window.put_from(1, (i * piece) as u64, queued.slice(i * piece..(i + 1) * piece).unwrap())
                })
                .collect::<Result<_, _>>()
                .unwrap();
            // And as much as the queue takes of what has to be copied.
            let mut copied = 0;
            let part = window.part(1).unwrap().clone().with_timeout(Duration::from_millis(1));
            let full = loop {
                match part.signal(0, 1) {
                    Ok(()) => copied += 1,
                    Err(error) => break error,
                }
                assert!(copied < 100 * MIB, "the queue has no end");
            };
            assert!(matches!(full, Error::Expired { .. }), "{full}");
            let beside = [(); 3].map(|()| rate_to(&window, 2, &block, TIME / 3));
            assert!(puts.iter().any(|put| !put.is_done()), "the slow peer is not slow");
            let grown = usage::resident().saturating_sub(resident);
            let median = |mut rates: [f64; 3]| {
                rates.sort_by(f64::total_cmp);
                rates[1]
            };
            let ratio = median(beside) / median(before);
            me.say(&format!(
                "{:.0} MB/s alone, {:.2} of it beside the slow peer, whose queue took {copied} signals and {} KiB",
                median(before) / 1e6,
                ratio,
                grown >> 10,
            ));
            // A rate on a machine that others use too: what must not happen is that the slow one stops it.
            assert!(ratio >= 0.1, "the fast peer is slowed to {ratio:.2}: {before:?}, {beside:?}");
            assert!(grown < 128 * MIB, "{grown} bytes more are present");
            assert_eq!(me.hear(), "fast");
            for end in ends(&puts, process::PATIENCE) {
                end.unwrap();
            }
            let _ = window.flush(1);
            window.put_signal(1, 0, &[], 1, 1).unwrap();
            window.flush(1).unwrap();
            me.say(&copied.to_string());
        } else {
            if me.rank() == 1 {
                window.signal(1).unwrap().wait_at_least(1, 2 * process::PATIENCE).unwrap();
                let mut bytes = vec![0; QUEUED];
                window.local().read(0, &mut bytes).unwrap();
                assert_eq!(pattern::differs(&bytes, 1), None);
                let expected: u64 = me.hear().parse().unwrap();
                assert_eq!(window.signal(0).unwrap().value(), expected);
            }
            assert_eq!(me.hear(), "end");
        }
        let failures: Vec<_> = (0..3).filter_map(|rank| team.failure(rank)).collect();
        assert!(failures.is_empty(), "{failures:?}");
        team.barrier().unwrap();
        return;
    }
    let _alone = RATES.write();
    let Some(network) = Network::of(3) else { return };
    let mut ranks = network.start("a_slow_peer_slows_no_other_and_takes_no_memory");
    assert_eq!(ranks[0].hear(), "ready");
    network.slow(1, "1mbit");
    ranks[0].say("slow");
    eprintln!("{}", ranks[0].hear());
    network.mend(1);
    ranks[0].say("fast");
    let copied = ranks[0].hear_within(2 * process::PATIENCE);
    ranks[1].say(&copied);
    ranks[1].say("end");
    ranks[2].say("end");
    ranks.end_well();
}

#[test]
fn lost_packets_are_not_a_lost_peer_and_change_no_byte() {
    const BLOCK: usize = 64 << 10;
    const SLOTS: u64 = 8;
    if let Some(mut me) = process::rank() {
        let (team, window) = meet(SLOTS as usize * BLOCK);
        team.barrier().unwrap();
        let other = 1 - me.rank();
        me.say("ready");
        assert_eq!(me.hear(), "go");
        let size = |number: u64| [1, 8, 1000, 1448, 4096, BLOCK][number as usize % 6];
        let at = |number: u64| number % SLOTS * BLOCK as u64;
        let time = if transom_tests::is_long() { Duration::from_secs(600) } else { Duration::from_secs(8) };
        let since = Instant::now();
        let mut number = 0_u64;
        if me.rank() == 0 {
            while since.elapsed() < time {
                // A slot is used again once the other side has looked at it.
                if number >= SLOTS {
                    window.signal(1).unwrap().wait_at_least(number - SLOTS + 1, SILENT).unwrap();
                }
                window.put_signal(other, at(number), &pattern::bytes(size(number), number), 0, 1).unwrap();
                number += 1;
            }
            window.signal(1).unwrap().wait_at_least(number, SILENT).unwrap();
            window.put_signal(other, 0, &[], 2, 1).unwrap();
            window.flush(other).unwrap();
        } else {
            let signals = window.signals();
            while signals.wait_any(&[(0, number + 1), (2, 1)], SILENT).unwrap() == 0 {
                let mut bytes = vec![0; size(number)];
                window.local().read(at(number) as usize, &mut bytes).unwrap();
                assert_eq!(pattern::differs(&bytes, number), None, "block {number}");
                window.send_signal(other, 1, 1).unwrap();
                number += 1;
            }
        }
        assert!(team.failure(other).is_none());
        me.say(&number.to_string());
        assert_eq!(me.hear(), "end");
        team.barrier().unwrap();
        return;
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let mut ranks = network.start("lost_packets_are_not_a_lost_peer_and_change_no_byte");
    assert_eq!(ranks.hear(), ["ready", "ready"]);
    network.lose(1, 50);
    ranks.say("go");
    let checked = ranks.iter_mut().map(|rank| rank.hear_within(Duration::from_secs(700))).collect::<Vec<_>>();
    let again = [network.sent_again(0), network.sent_again(1)];
    eprintln!("checked: {checked:?}, packets sent again: {again:?}");
    assert!(again.iter().all(|count| *count > 0), "nothing was lost");
    assert_eq!(checked[0], checked[1]);
    network.mend(1);
    ranks.say("end");
    ranks.end_well();
}

/// Each rank puts, adds and accumulates at the other, and says the ways it goes.
fn exchange(me: &Me) {
    let (team, window) = meet(64 << 10);
    let other = 1 - me.rank();
    let bytes = pattern::bytes(32 << 10, u64::from(me.rank()));
    for _ in 0..100 {
        window.fetch_add(other, 40 << 10, 1).unwrap();
        window.accumulate(other, 48 << 10, &[1_u64; 64], Reduce::Sum).unwrap();
    }
    window.put_signal(other, 0, &bytes, 0, 1).unwrap();
    window.signal(0).unwrap().wait_at_least(1, process::PATIENCE).unwrap();
    let mut seen = vec![0; 32 << 10];
    window.local().read(0, &mut seen).unwrap();
    assert_eq!(pattern::differs(&seen, u64::from(other)), None);
    window.flush(other).unwrap();
    team.barrier().unwrap();
    assert_eq!(window.local().load(40 << 10).unwrap(), 100);
    assert!((0..64).all(|i| window.local().load((48 << 10) + i * 8).unwrap() == 100));
    let way = window.part(other).unwrap().explain();
    for rank in 0..2 {
        assert!(team.failure(rank).is_none(), "rank {rank}: {}", team.failure(rank).unwrap());
    }
    team.barrier().unwrap();
    me.say(&way);
}

#[test]
fn processes_in_other_namespaces_of_one_machine_find_a_way() {
    if let Some(me) = process::rank() {
        return exchange(&me);
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let test = "processes_in_other_namespaces_of_one_machine_find_a_way";
    for apart in
        [&["unshare", "--pid", "--ipc", "--fork", "--kill-child"][..], &["unshare", "--mount", "--ipc"]]
    {
        let start = |rank| {
            let mut start = network.rank(rank, rank, 2, "shm,tcp:HERE");
            start.under.extend(apart.iter().map(|word| (*word).to_owned()));
            start
        };
        let mut ranks = network.start_each(test, vec![start(0), start(1)]);
        let ways = ranks.hear();
        eprintln!("{apart:?}: {ways:?}");
        assert!(ways.iter().all(|way| way.starts_with("shm") || way.starts_with("tcp")), "{ways:?}");
        ranks.end_well();
    }
}

#[test]
fn listeners_of_either_family_and_of_both_are_reached() {
    if let Some(me) = process::rank() {
        return exchange(&me);
    }
    let _beside = beside_others();
    let Some(network) = Network::of_families(&[Family::V4, Family::V6, Family::Both, Family::Both]) else {
        return;
    };
    let test = "listeners_of_either_family_and_of_both_are_reached";
    for [(host, specs), (other_host, other_specs)] in [
        [(1, "tcp:HERE"), (3, "tcp:[::]:0")],
        [(1, "tcp:[::]:0"), (2, "tcp:[fd77::3]:0")],
        [(0, "tcp:HERE"), (2, "tcp:[::]:0")],
        [(0, "tcp:0.0.0.0:0"), (3, "tcp:0.0.0.0:0")],
        [(2, "tcp:[::]:0"), (3, "tcp:[::]:0")],
    ] {
        let starts = [network.rank(host, 0, 2, specs), network.rank(other_host, 1, 2, other_specs)];
        let mut ranks = network.start_each(test, starts.into());
        let ways = ranks.hear();
        eprintln!("{specs} and {other_specs}: {ways:?}");
        ranks.end_well();
    }
}

#[test]
fn an_address_that_both_hosts_have_misleads_nobody() {
    if let Some(me) = process::rank() {
        return exchange(&me);
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let test = "an_address_that_both_hosts_have_misleads_nobody";
    let mut starts = Vec::new();
    for host in 0..2 {
        // As balancers and container networks have it: one address on every host, found before all others.
        network.ip(host, "addr add 10.88.0.1/32 dev lo");
        starts.push(network.rank(host, host, 2, "tcp:0.0.0.0:4711"));
    }
    let mut ranks = network.start_each(test, starts);
    eprintln!("{:?}", ranks.hear());
    ranks.end_well();
}

#[test]
fn strangers_in_crowds_keep_no_rank_out() {
    const RANKS: usize = 3;
    if let Some(mut me) = process::rank() {
        // It listens before it meets anybody, and the strangers are there first.
        let context = Context::builder().build().unwrap();
        let address = context.addresses().into_iter().find_map(|a| Some(a.strip_prefix("tcp:")?.to_owned()));
        me.say(&address.unwrap());
        assert_eq!(me.hear(), "meet");
        let team = network::team().unwrap().context(context).build().unwrap();
        let window = Window::allocate(&team, 4096).unwrap();
        window.put_signal((me.rank() + 1) % RANKS as u32, 0, b"in", 0, 1).unwrap();
        window.signal(0).unwrap().wait_at_least(1, process::PATIENCE).unwrap();
        team.barrier().unwrap();
        me.say("met");
        // The last strangers are gone by then, or turned away.
        assert_eq!(me.hear_within(4 * process::PATIENCE), "end");
        team.barrier().unwrap();
        let descriptors = usage::descriptors();
        assert!(descriptors < 500, "{descriptors} descriptors are open");
        return me.say(&format!("{descriptors} descriptors"));
    }
    let _beside = beside_others();
    let Some(network) = Network::of(RANKS + 1) else { return };
    let starts = (0..RANKS).map(|host| network.rank(host, host, RANKS, "tcp:HERE")).collect();
    let mut ranks = network.start_each("strangers_in_crowds_keep_no_rank_out", starts);
    let mut doors: Vec<SocketAddr> = ranks.hear().iter().map(|address| address.parse().unwrap()).collect();
    doors.push(network.store(Family::V4));
    let crowd = if transom_tests::is_long() { 10_000 } else { 2000 };
    let (enough, came) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        // One crowd comes from a host of its own, one from a host that has a rank too.
        for host in [RANKS, 1] {
            let (network, doors, enough, came) = (&network, &doors, &enough, &came);
            scope.spawn(move || network.inside(host, || knock(doors, crowd, enough, came)));
        }
        let since = Instant::now();
        while came.load(Ordering::Relaxed) < crowd / 4 {
            assert!(since.elapsed() < process::PATIENCE, "the strangers do not get to the door");
            std::thread::yield_now();
        }
        ranks.say("meet");
        let joined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ranks.hear()));
        enough.store(true, Ordering::Relaxed);
        assert_eq!(joined.unwrap(), ["met"; RANKS]);
        eprintln!("met after {:?}", since.elapsed());
    });
    let came = came.into_inner();
    ranks.say("end");
    eprintln!("{:?}, {came} strangers came", ranks.hear());
    assert!(came >= crowd, "of {crowd} strangers {came} got to the door");
    ranks.end_well();
}

/// Strangers that say nothing, something else or the beginning of it, in bursts, until there were enough.
fn knock(doors: &[SocketAddr], crowd: usize, enough: &AtomicBool, came: &AtomicUsize) {
    const SAID: [&[u8]; 4] =
        [b"", b"GET / HTTP/1.1\r\n\r\n", b"transom", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"];
    const BURST: usize = 100;
    let mut known = 0;
    while !enough.load(Ordering::Relaxed) || known < crowd {
        let burst: Vec<TcpStream> = (0..BURST)
            .filter_map(|i| {
                let door = doors[(known + i) % doors.len()];
                let mut stream = TcpStream::connect_timeout(&door, Duration::from_secs(2)).ok()?;
                stream.write_all(SAID[(known + i) / doors.len() % SAID.len()]).ok()?;
                Some(stream)
            })
            .collect();
        known += BURST;
        came.fetch_add(burst.len(), Ordering::Relaxed);
    }
}

#[test]
fn another_job_at_the_address_is_named() {
    if let Some(mut me) = process::rank() {
        if me.rank() == 0 {
            let context = Context::builder().build().unwrap();
            let region = context.allocate(4096, 1).unwrap();
            me.say(&region.remote(Access::ALL).unwrap().to_string());
            assert_eq!(me.hear(), "end");
            assert_eq!(region.signal(0).unwrap(), 0);
        } else {
            // Its store is the other job's too.
            let error = network::team().unwrap_err();
            me.say(&error.to_string());
            let context = Context::builder().build().unwrap();
            let remote: RemoteRegion = me.hear().parse().unwrap();
            me.say(&context.connect(&remote).unwrap_err().to_string());
        }
        return;
    }
    let _beside = beside_others();
    let Some(network) = Network::of(2) else { return };
    let Some(other_job) = Network::of(0) else { return };
    let mut starts = vec![network.rank(0, 0, 2, "tcp:HERE"), network.rank(1, 1, 2, "tcp:HERE")];
    starts[1].variables.push(other_job.secret_variable());
    let mut ranks = network.start_each("another_job_at_the_address_is_named", starts);
    let region = ranks[0].hear();
    let at_the_store = ranks[1].hear();
    eprintln!("{at_the_store}");
    assert!(at_the_store.contains("another job"), "{at_the_store}");
    ranks[1].say(&region);
    let at_the_peer = ranks[1].hear();
    eprintln!("{at_the_peer}");
    assert!(at_the_peer.contains("another job"), "{at_the_peer}");
    ranks[1].ends_well();
    ranks[0].say("end");
    ranks[0].ends_well();
}
