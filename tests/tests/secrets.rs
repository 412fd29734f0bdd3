//! The job's secret is where it has to be, and nowhere that others look: not in a core dump, not in arguments, variables or
//! what is printed.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use transom::{Access, Context, Secret, Store, StoreServer};
use transom_tests::process::{self, Me, PATIENCE, Ranks};
use transom_tests::ranks::TIMEOUT;

const FILE: &str = "TRANSOM_SECRET_FILE";
const DIRECTORY: &str = "TRANSOM_TEST_DIRECTORY";

/// A directory that goes with its value.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let name = format!("transom-test-secrets-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the test looks for to know that it looks in the right place. Not written out here: the binary is in the dump too.
fn marker(pid: u32) -> String {
    format!("{pid} has a {} in its memory {}", "marker".to_uppercase(), pid * 3)
}

/// Everything that a process does with the secret, and then an end that leaves a core dump.
fn rank(mut me: Me) {
    let marked = marker(std::process::id());
    std::env::set_current_dir(std::env::var_os(DIRECTORY).unwrap()).unwrap();
    let most = getrlimit(Resource::Core).maximum;
    let limited = setrlimit(Resource::Core, Rlimit { current: most, maximum: most });
    let secret = Secret::from_env().unwrap();
    let server = StoreServer::bind(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = Store::connect(&server.address().to_string(), &secret, TIMEOUT).unwrap();
    store.set("key", b"value").unwrap();
    let open = |specs| Context::builder().transports(specs).timeout(TIMEOUT).build().unwrap();
    let mut kept = Vec::new();
    for specs in ["shm", "tcp"] {
        let (owner, other) = (open(specs), open(specs));
        let region = owner.allocate(4096, 1).unwrap();
        let mut remote = region.remote(Access::ALL).unwrap();
        remote.addresses.retain(|address| address.starts_with(specs));
        let opened = other.connect(&remote).unwrap().open(&remote).unwrap();
        opened.put_signal(0, &[1; 64], 0, 1).unwrap();
        opened.flush().unwrap();
        me.say(&format!("{owner:?} {:?} {opened:?} {remote} {store:?} {server:?}", owner.secret()));
        kept.push((owner, other, region, opened));
    }
    me.say(if limited.is_ok() && most != Some(0) { "dumps" } else { "dumps nothing" });
    assert_eq!(me.hear(), "end");
    black_box((&marked, &kept, &secret));
    std::process::abort();
}

fn holds(hay: &[u8], needle: &[u8]) -> bool {
    // Mostly the first byte differs.
    hay.windows(needle.len()).any(|window| window[0] == needle[0] && window == needle)
}

/// The core dump that a process left in this directory; `None` where the kernel hands dumps to somebody else.
fn core(directory: &Path) -> Option<Vec<u8>> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/']) {
        return None;
    }
    let mut files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let dump = files.find(|path| path.extension().is_none_or(|end| end != "secret"));
    Some(std::fs::read(dump.expect("the kernel wrote a dump")).unwrap())
}

#[test]
fn the_secret_is_in_no_core_dump_no_argument_no_variable_and_nothing_that_is_printed() {
    if let Some(me) = process::rank() {
        return rank(me);
    }
    let directory = Directory::new();
    let path = directory.0.join("job.secret");
    let secret = Secret::random().unwrap();
    secret.write_file(&path).unwrap();
    let hex = secret.to_hex();
    let raw: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    let shown = |what: &str, bytes: &[u8]| {
        assert!(!holds(bytes, &raw), "{what} holds the secret");
        assert!(!holds(bytes, hex.as_bytes()), "{what} holds the secret's digits");
        assert!(!holds(bytes, hex.to_uppercase().as_bytes()), "{what} holds the secret's digits");
    };
    let variables =
        [(FILE, path.to_str().unwrap()), (DIRECTORY, directory.0.to_str().unwrap()), ("RUST_BACKTRACE", "0")];
    let test = "the_secret_is_in_no_core_dump_no_argument_no_variable_and_nothing_that_is_printed";
    let mut ranks = Ranks::start_with(test, 1, &variables);
    for _ in 0..2 {
        shown("what is printed", ranks[0].hear().as_bytes());
    }
    let dumps = ranks[0].hear() == "dumps";
    let pid = ranks[0].pid();
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
        assert!(!bytes.is_empty());
        shown(file, &bytes);
    }
    ranks[0].say("end");
    let end = ranks[0].wait(PATIENCE).expect("it ends");
    assert_eq!(end.signal(), Some(6), "{end}");
    // Where no dump can be had, the flags of the pages are looked at by a test of their own.
    if dumps && let Some(core) = core(&directory.0) {
        assert!(holds(&core, marker(pid).as_bytes()), "the dump has what the process had");
        shown("the core dump", &core);
    }
}
