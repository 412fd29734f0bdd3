//! The harness for tests of several processes, tried on nothing but its pipes.

use std::time::Duration;

use transom_tests::process::{self, Ranks};

#[test]
fn ranks_hear_are_stopped_killed_and_none_is_left() {
    if let Some(mut me) = process::rank() {
        me.say(&format!("rank {} of {}, {}", me.rank(), me.size(), std::env::var("EXTRA").unwrap()));
        loop {
            match me.hear().as_str() {
                "end" => return,
                "fail" => panic!("told to fail"),
                line => me.say(&format!("{line} from {}", me.rank())),
            }
        }
    }
    let mut ranks =
        Ranks::start_with("ranks_hear_are_stopped_killed_and_none_is_left", 4, &[("EXTRA", "a word")]);
    let pids: Vec<_> = ranks.iter_mut().map(|rank| rank.pid()).collect();
    let hello = ranks.hear();
    assert_eq!(hello[2], "rank 2 of 4, a word");
    ranks.say("hello");
    assert_eq!(ranks.hear(), [0, 1, 2, 3].map(|rank| format!("hello from {rank}")));

    ranks[1].stop();
    ranks[1].say("late");
    assert!(ranks[1].hears_nothing_for(Duration::from_millis(50)), "a stopped rank is silent");
    assert!(ranks[1].wait(Duration::ZERO).is_none(), "and lives");
    ranks[1].go_on();
    assert_eq!(ranks[1].hear(), "late from 1");

    ranks[3].kill();
    assert!(!ranks[3].wait(Duration::ZERO).unwrap().success());
    ranks[0].say("end");
    ranks[0].ends_well();
    ranks[2].say("fail");
    let ended = ranks[2].wait(process::PATIENCE).unwrap();
    assert!(!ended.success());

    drop(ranks);
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} is gone");
    }
}

#[test]
fn a_test_can_run_in_a_process_of_its_own() {
    let outside = std::process::id();
    let test = concat!(module_path!(), "::a_test_can_run_in_a_process_of_its_own");
    let mut here = false;
    process::alone(test, Duration::from_secs(30), || here = true);
    assert_eq!(here, process::is_rank(), "the body runs in the other process only");
    assert_eq!(outside, std::process::id());
}
