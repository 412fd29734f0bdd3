//! `transom send` and `transom recv` as their users run them: two processes, an address and a pass phrase.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const TCP: &str = "tcp:127.0.0.1:0";

/// A folder that goes with everything in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let mut random = [0; 8];
        getrandom::fill(&mut random).unwrap();
        let path = std::env::temp_dir().join(format!("transom-transfer-{:016x}", u64::from_le_bytes(random)));
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join("into")).unwrap();
        Self(path)
    }

    fn inbox(&self) -> PathBuf {
        self.0.join("into")
    }

    fn received(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.inbox())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn write(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).unwrap();
        file.write_all(content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn transom() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A receiver that has shown its address and its pass phrase.
struct Receiver {
    process: Child,
    out: BufReader<ChildStdout>,
    address: String,
    phrase: String,
}

impl Receiver {
    fn start(listen: &str, arguments: &[&str], directory: &Path) -> Self {
        let mut process = transom()
            .args(["recv", "--listen", listen])
            .args(arguments)
            .current_dir(directory)
            .spawn()
            .unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        let mut shown = |label: &str| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            let value = line.strip_prefix(label).map(|v| v.trim().to_owned());
            value.unwrap_or_else(|| {
                let mut errors = String::new();
                process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                panic!("{label:?} is not in {line:?}: {errors}")
            })
        };
        let (address, phrase) = (shown("address: "), shown("pass phrase: "));
        Self { process, out, address, phrase }
    }

    fn sender(&self, folder: &Folder, file: &Path) -> Command {
        let phrase = folder.0.join("phrase");
        if !phrase.exists() {
            folder.write("phrase", self.phrase.as_bytes(), 0o600);
        }
        let mut command = transom();
        command.arg("send").arg(file).args(["--to", &self.address, "--passphrase-file"]).arg(phrase);
        command
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// How it ended, the rest of its output, and its errors.
    fn end(mut self) -> (ExitStatus, String, String) {
        let (mut out, mut errors) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.process.wait().unwrap(), out, errors)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

#[test]
fn a_file_arrives_and_both_ends_say_the_same_of_it() {
    for listen in [TCP, "shm"] {
        for size in [0, 1, (9 << 20) + 1] {
            let folder = Folder::new();
            let bytes = content(size);
            let file = folder.write("data.bin", &bytes, 0o644);
            let receiver = Receiver::start(listen, &[], &folder.inbox());
            let sent = succeeded(&receiver.sender(&folder, &file).output().unwrap());
            let (status, received, errors) = receiver.end();
            assert!(status.success(), "{errors}");
            let line = format!("data.bin, {size} bytes, crc32c {:08x}\n", crc_fast::crc32_iscsi(&bytes));
            assert_eq!((sent, received), (format!("sent {line}"), format!("received {line}")));
            assert_eq!(folder.received(), ["data.bin"]);
            assert!(fs::read(folder.inbox().join("data.bin")).unwrap() == bytes, "{listen} {size}");
        }
    }
}

#[test]
fn the_receiver_chooses_the_name_or_the_directory() {
    let folder = Folder::new();
    let file = folder.write("theirs", b"content", 0o644);
    let receiver = Receiver::start(TCP, &["--output", "into/mine"], &folder.0);
    assert!(succeeded(&receiver.sender(&folder, &file).output().unwrap()).starts_with("sent theirs,"));
    assert!(receiver.end().0.success());
    assert_eq!(folder.received(), ["mine"]);

    fs::remove_file(folder.0.join("phrase")).unwrap();
    let receiver = Receiver::start(TCP, &["--directory", "into"], &folder.0);
    succeeded(&receiver.sender(&folder, &file).output().unwrap());
    assert!(receiver.end().0.success());
    assert_eq!(folder.received(), ["mine", "theirs"]);
}

#[test]
fn a_file_that_exists_stays_and_both_ends_fail() {
    let folder = Folder::new();
    let file = folder.write("name", b"new", 0o644);
    folder.write("into/name", b"precious", 0o644);
    let receiver = Receiver::start(TCP, &[], &folder.inbox());
    let sent = receiver.sender(&folder, &file).output().unwrap();
    let (status, out, errors) = receiver.end();
    assert_eq!((sent.status.code(), status.code(), out.as_str()), (Some(1), Some(1), ""));
    assert!(
        errors.contains("nothing is overwritten") && text(&sent.stderr).contains("nothing is overwritten")
    );
    assert_eq!(fs::read(folder.inbox().join("name")).unwrap(), b"precious");
}

#[test]
fn another_pass_phrase_opens_nothing_and_the_receiver_goes_on_waiting() {
    let folder = Folder::new();
    let file = folder.write("name", b"content", 0o644);
    let receiver = Receiver::start(TCP, &[], &folder.inbox());
    let wrong = folder.write("wrong", b"aaaa-bbbb-cccc-dddd-eeee-ffff", 0o600);
    let stranger = transom()
        .arg("send")
        .arg(&file)
        .args(["--to", &receiver.address, "--passphrase-file"])
        .arg(wrong)
        .output()
        .unwrap();
    assert_eq!(stranger.status.code(), Some(1));
    assert!(text(&stranger.stderr).contains("authentication"), "{}", text(&stranger.stderr));
    succeeded(&receiver.sender(&folder, &file).output().unwrap());
    assert!(receiver.end().0.success());
}

#[test]
fn a_pass_phrase_file_that_others_can_read_is_refused_before_anything_is_sent() {
    let folder = Folder::new();
    let file = folder.write("name", b"content", 0o644);
    let receiver = Receiver::start(TCP, &[], &folder.inbox());
    folder.write("phrase", receiver.phrase.as_bytes(), 0o644);
    let sent = receiver.sender(&folder, &file).output().unwrap();
    assert_eq!(sent.status.code(), Some(1));
    let errors = text(&sent.stderr);
    assert!(errors.contains("chmod 600") && !errors.contains(&receiver.phrase), "{errors}");
    assert_eq!(folder.received(), [""; 0]);
}

/// Waits until the receiver has made its file, under the name that it has until it is complete.
fn wait_for_part(folder: &Folder) {
    let since = Instant::now();
    while folder.received().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(60), "no part was made");
        std::thread::yield_now();
    }
}

#[test]
fn a_sender_that_is_killed_in_the_middle_leaves_no_file() {
    for listen in [TCP, "shm"] {
        let folder = Folder::new();
        let file = folder.write("large", b"", 0o644);
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(256 << 20).unwrap();
        let receiver = Receiver::start(listen, &[], &folder.inbox());
        let mut sender = receiver.sender(&folder, &file).spawn().unwrap();
        wait_for_part(&folder);
        sender.kill().unwrap();
        sender.wait().unwrap();
        let (status, out, errors) = receiver.end();
        assert_eq!((status.code(), out.as_str()), (Some(1), ""), "{listen}: {errors}");
        assert!(errors.starts_with("transom: receive"), "{errors}");
        assert_eq!(folder.received(), [""; 0], "{listen}");
    }
}

#[test]
fn a_receiver_that_is_told_to_end_leaves_no_file_and_the_sender_is_told() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let file = folder.write("large", b"", 0o644);
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(256 << 20).unwrap();
        let receiver = Receiver::start(TCP, &[], &folder.inbox());
        let sender = receiver.sender(&folder, &file).spawn().unwrap();
        wait_for_part(&folder);
        receiver.signal(signal);
        let (status, ..) = receiver.end();
        assert_eq!((status.code(), status.signal()), (Some(128 + signal.as_raw()), None));
        assert_eq!(folder.received(), [""; 0]);
        let sent = sender.wait_with_output().unwrap();
        assert_eq!(sent.status.code(), Some(1), "{}", text(&sent.stdout));
    }
}

#[test]
fn nonsense_is_refused_with_the_next_step() {
    let folder = Folder::new();
    let file = folder.write("name", b"content", 0o644);
    let fails = |command: &mut Command| {
        let output = command.current_dir(&folder.0).output().unwrap();
        assert!(!output.status.success(), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    assert!(fails(transom().args(["recv", "--listen", "local"])).contains("no other process can reach this"));
    assert!(fails(transom().args(["recv", "--listen", "pigeon"])).contains("not known"));
    assert!(fails(transom().args(["recv", "--listen", TCP, "--directory", "none"])).contains("none"));
    assert!(fails(transom().args(["recv", "--listen", TCP, "--output", "name"])).contains("overwritten"));
    assert!(
        fails(transom().args(["recv", "--output", "a", "--directory", "into"])).contains("cannot be used")
    );
    assert!(fails(transom().args(["recv", "--timeout", "0"])).contains("--timeout"));
    assert!(fails(transom().arg("send").arg(&file).args(["--to", "somewhere"])).contains("transom1-"));
}
