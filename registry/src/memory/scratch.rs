//! What tests of this folder need from the outside: a folder of their own, and a process of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder that is removed at the end.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("transom-memory-{}-{next}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and the folders above it.
    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` in a process of its own, for what changes the whole process: `test` is the full name of the calling test,
/// which is started again there.
pub(super) fn in_child(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "TRANSOM_TEST_CHILD";
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        body();
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let ran = text.contains("1 passed");
    assert!(output.status.success() && ran, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Says why a test does nothing here.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
pub(super) fn skip(why: &str) {
    eprintln!("skipped: {why}");
}
