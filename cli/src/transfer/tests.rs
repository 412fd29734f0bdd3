//! Both sides in one process, with a context each.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use transom::{Context, Error, RemoteRegion, Result, Secret};

use super::offer::Offer;
use super::part::Place;
use super::recv::Receiver;
use super::scratch::Scratch;
use super::send::{Sending, Source, send};
use super::{Arrived, checksum, reachable, transports_of};

/// Longer than any machine takes; what is expected to expire has its own.
const LONG: Duration = Duration::from_secs(60);

fn context(transports: &str, secret: &Secret) -> Context {
    Context::builder().transports(transports).secret(secret.clone()).timeout(LONG).build().unwrap()
}

/// A receiver, and a sender that does to it what a test is about.
fn meet<S: Send>(
    transports: &str,
    place: &Place,
    timeout: Duration,
    sender: impl FnOnce(&Context, &RemoteRegion, &ProgressBar) -> S + Send,
) -> (Result<Arrived>, S) {
    let secret = Secret::random().unwrap();
    let context_here = context(transports, &secret);
    let receiver = Receiver::new(&context_here).unwrap();
    let mut address = receiver.address().unwrap();
    if transports != "local" {
        address = reachable(address, transports).unwrap();
    }
    std::thread::scope(|scope| {
        let there = scope.spawn(move || {
            let context = context(transports, &secret);
            let done = sender(&context, &address, &ProgressBar::hidden());
            context.close();
            done
        });
        let received = receiver.receive(place, LONG, timeout, &ProgressBar::hidden());
        (received, there.join().unwrap())
    })
}

/// A folder to send from, one to receive into, and a file.
struct Folders {
    from: Scratch,
    into: Scratch,
    place: Place,
}

impl Folders {
    fn new() -> Self {
        let into = Scratch::new();
        let place = Place::directory(into.path()).unwrap();
        Self { from: Scratch::new(), into, place }
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.from.path().join("a file");
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn bytes(size: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    (0..size)
        .map(|_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word as u8
        })
        .collect()
}

#[test]
fn files_of_any_size_arrive_whole_over_any_transport() {
    for transports in ["local", "shm", "tcp"] {
        for size in [0, 1, (20 << 20) + 3] {
            let folders = Folders::new();
            let content = bytes(size);
            let path = folders.file(&content);
            let (received, sent) = meet(transports, &folders.place, LONG, |context, address, bar| {
                send(context, address, Source::open(&path).unwrap(), LONG, bar)
            });
            let (received, sent) = (received.unwrap(), sent.unwrap());
            assert_eq!(received, sent);
            assert_eq!((sent.name.as_str(), sent.size), ("a file", size as u64));
            assert_eq!(sent.checksum, crc_fast::crc32_iscsi(&content));
            assert_eq!(folders.into.names(), ["a file"]);
            assert!(fs::read(folders.into.path().join("a file")).unwrap() == content, "{transports} {size}");
        }
    }
}

#[test]
fn a_name_that_leaves_the_directory_is_refused_at_both_ends() {
    for name in ["../escape", "..", "", "a\nb"] {
        let folders = Folders::new();
        let (received, sent) = meet("local", &folders.place, LONG, |context, address, bar| {
            let offer = Offer { name: name.into(), size: 0, checksum: 0 };
            Sending::connect(context, address, LONG, bar)?.send(context.incarnation(), &offer, None)
        });
        assert!(matches!(received, Err(Error::Invalid { .. })), "{name:?}: {received:?}");
        let text = sent.unwrap_err().to_string();
        assert!(text.contains("refused by the target") && text.contains("no file name"), "{text}");
        assert_eq!(folders.into.names(), [""; 0]);
    }
}

#[test]
fn a_file_that_exists_is_not_overwritten_and_both_ends_are_told() {
    let folders = Folders::new();
    fs::write(folders.into.path().join("a file"), "precious").unwrap();
    let path = folders.file(b"new");
    let (received, sent) = meet("local", &folders.place, LONG, |context, address, bar| {
        send(context, address, Source::open(&path).unwrap(), LONG, bar)
    });
    for error in [received.unwrap_err(), sent.unwrap_err()] {
        assert!(error.to_string().contains("nothing is overwritten"), "{error}");
    }
    assert_eq!(folders.into.names(), ["a file"]);
    assert_eq!(fs::read(folders.into.path().join("a file")).unwrap(), b"precious");
}

#[test]
fn a_file_that_changes_after_it_was_read_is_dropped_and_both_ends_are_told() {
    let folders = Folders::new();
    let path = folders.file(&bytes(3 << 20));
    let (received, sent) = meet("local", &folders.place, LONG, |context, address, bar| {
        let region = context.register(transom::File::open(&path).unwrap(), 0).unwrap();
        let checksum = checksum(Some(&region), |_| Ok(())).unwrap();
        // Same size, so that nobody loses its mapping.
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 2 << 20).unwrap();
        let offer = Offer { name: "name".into(), size: 3 << 20, checksum };
        Sending::connect(context, address, LONG, bar)?.send(context.incarnation(), &offer, Some(&region))
    });
    for error in [received.unwrap_err(), sent.unwrap_err()] {
        assert!(error.to_string().contains("changed while it was sent"), "{error}");
    }
    assert_eq!(folders.into.names(), [""; 0]);
}

#[test]
fn another_pass_phrase_is_refused_and_the_right_sender_still_gets_through() {
    let folders = Folders::new();
    let path = folders.file(b"content");
    let (received, (stranger, sent)) = meet("tcp", &folders.place, LONG, |right, address, bar| {
        let wrong = context("tcp", &Secret::passphrase().unwrap().1);
        let stranger = send(&wrong, address, Source::open(&path).unwrap(), LONG, bar);
        (stranger, send(right, address, Source::open(&path).unwrap(), LONG, bar))
    });
    assert!(matches!(stranger, Err(Error::Auth { .. })), "{stranger:?}");
    assert_eq!(received.unwrap(), sent.unwrap());
    assert_eq!(folders.into.names(), ["a file"]);
}

#[test]
fn a_sender_that_gives_up_in_the_middle_leaves_an_error_and_no_file() {
    for transports in ["local", "shm", "tcp"] {
        for some in [0, 1 << 20] {
            let folders = Folders::new();
            let size = 4 << 20;
            let (received, ()) = meet(transports, &folders.place, LONG, |context, address, bar| {
                let sending = Sending::connect(context, address, LONG, bar).unwrap();
                let offer = Offer { name: "name".into(), size, checksum: 1 };
                sending.offer(context.incarnation(), &offer).unwrap();
                let agreed = sending.answer(size).unwrap();
                assert_eq!(folders.into.names().len(), 1, "the part is there");
                let remote = RemoteRegion::from_bytes(&agreed).unwrap();
                let target = context.connect(address).unwrap().open(&remote).unwrap();
                target.put(0, &vec![1; some]).unwrap();
            });
            let text = received.unwrap_err().to_string();
            assert!(text.contains("the sender gave up"), "{transports}: {text}");
            assert_eq!(folders.into.names(), [""; 0]);
        }
    }
}

#[test]
fn a_sender_that_stands_still_expires_and_is_told() {
    let folders = Folders::new();
    let (received, told) =
        meet("local", &folders.place, Duration::from_millis(50), |context, address, bar| {
            let sending = Sending::connect(context, address, LONG, bar)?;
            sending.offer(context.incarnation(), &Offer { name: "name".into(), size: 100, checksum: 1 })?;
            sending.answer(100)?;
            sending.verdict(&Offer { name: "name".into(), size: 100, checksum: 1 })
        });
    assert!(matches!(received, Err(Error::Expired { .. })), "{received:?}");
    let told = told.unwrap_err().to_string();
    assert!(told.contains("refused by the target") && told.contains("stands still after 0 bytes"), "{told}");
    assert_eq!(folders.into.names(), [""; 0]);
}

#[test]
fn a_receiver_to_which_nobody_comes_expires() {
    let folders = Folders::new();
    let receiver = Receiver::new(&context("local", &Secret::random().unwrap())).unwrap();
    let wait = Duration::from_millis(20);
    let error = receiver.receive(&folders.place, wait, LONG, &ProgressBar::hidden()).unwrap_err();
    assert!(error.to_string().contains("no sender has come"), "{error}");
}

#[test]
fn a_second_sender_is_told_that_it_is_too_late() {
    let folders = Folders::new();
    let path = folders.file(b"content");
    let (received, second) = meet("shm", &folders.place, LONG, |context, address, bar| {
        let first = Sending::connect(context, address, LONG, bar).unwrap();
        first.offer(context.incarnation(), &Offer { name: "name".into(), size: 1, checksum: 1 }).unwrap();
        send(context, address, Source::open(&path).unwrap(), LONG, bar)
    });
    assert!(second.unwrap_err().to_string().contains("another sender was here first"));
    assert!(received.is_err());
    assert_eq!(folders.into.names(), [""; 0]);
}

#[test]
fn only_what_can_be_sent_is_opened() {
    let folder = Scratch::new();
    for path in [folder.path().to_path_buf(), folder.path().join("none"), "/dev/null".into(), "/".into()] {
        assert!(Source::open(&path).is_err(), "{}", path.display());
    }
}

#[test]
fn addresses_keep_only_what_another_process_can_use() {
    let secret = Secret::random().unwrap();
    let here = context("local", &secret);
    let mut address = Receiver::new(&here).unwrap().address().unwrap();
    assert!(reachable(address.clone(), "local").is_err());
    assert!(transports_of(&address).is_err());
    let all = ["local:1", "tcp:h:1", "pigeon:2", "shm:/a", "tcp:h:2"];
    address.addresses = all.map(str::to_owned).to_vec();
    assert_eq!(transports_of(&address).unwrap(), "tcp,shm");
    let kept = reachable(address, "tcp").unwrap().addresses;
    assert_eq!(kept, all[1..]);
}
