//! How much memory there is, and which limit an error of the operating system means.

use std::fs::read_to_string;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::{Error, Result};

/// The largest size that is even tried: the user half of the address space of x86-64.
pub(super) const MOST: u64 = 1 << 47;

/// Fails when `size` bytes are more than the machine or a control group of this process has left.
pub(super) fn check_available(size: u64) -> Result<()> {
    check(size, Path::new("/"))
}

/// Fails where a file of `size` bytes would break the limit on file sizes, of which the kernel tells with a signal.
pub(super) fn check_file_size(size: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if size > limit => Err(Error::TooLarge {
            requested: size,
            available: limit,
            limit: "RLIMIT_FSIZE counts for shared memory too, raise it with ulimit -f".into(),
        }),
        _ => Ok(()),
    }
}

/// What an error of the operating system means for `size` bytes of memory.
pub(super) fn diagnose(action: &str, errno: Errno, size: u64) -> Error {
    match errno {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile).current;
            Error::Limit {
                what: format!("cannot {action}: {} open files (RLIMIT_NOFILE)", number(limit)),
                next: "raise it with ulimit -n".into(),
            }
        }
        Errno::NFILE => Error::Limit {
            what: format!(
                "cannot {action}: {} open files in the system (fs.file-max)",
                sysctl("fs/file-max")
            ),
            next: "raise it with sysctl fs.file-max".into(),
        },
        Errno::NOMEM => out_of_memory(action, size),
        other => Error::io(action, other),
    }
}

fn out_of_memory(action: &str, size: u64) -> Error {
    let mappings = mappings();
    let most = sysctl("vm/max_map_count");
    if most.parse::<usize>().is_ok_and(|most| mappings + 2 >= most) {
        return Error::Limit {
            what: format!("cannot {action}: {mappings} of {most} mappings are in use (vm.max_map_count)"),
            next: "raise it with sysctl vm.max_map_count, or use fewer and larger regions".into(),
        };
    }
    if let Some(limit) = getrlimit(Resource::As).current {
        return Error::Limit {
            what: format!("cannot {action} of {size} bytes: {limit} bytes of address space (RLIMIT_AS)"),
            next: "raise it with ulimit -v".into(),
        };
    }
    if size >= MOST / 2 {
        return Error::TooLarge { requested: size, available: MOST, limit: "address space".into() };
    }
    match check_available(size) {
        Err(error) => error,
        Ok(()) => Error::Limit {
            what: format!(
                "cannot {action} of {size} bytes: the kernel has no memory for it (vm.overcommit_memory is {})",
                sysctl("vm/overcommit_memory")
            ),
            next: "ask for less, or allow more with sysctl vm.overcommit_memory".into(),
        },
    }
}

/// How many mappings the process has, counted without a large allocation: that might need one more.
fn mappings() -> usize {
    let mut buffer = [0; 4096];
    let mut lines = 0;
    let Ok(mut maps) = std::fs::File::open("/proc/self/maps") else { return 0 };
    while let Ok(size @ 1..) = maps.read(&mut buffer) {
        lines += buffer[..size].iter().filter(|byte| **byte == b'\n').count();
    }
    lines
}

fn sysctl(name: &str) -> String {
    read_to_string(Path::new("/proc/sys").join(name))
        .map_or_else(|_| "unknown".into(), |text| text.trim().into())
}

fn number(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string())
}

/// A value of `/proc/meminfo`: bytes, or a count of pages where the line has no unit.
pub(super) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let mut words =
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.split_ascii_whitespace();
    let value = words.next()?.parse::<u64>().ok()?;
    if words.next() == Some("kB") { value.checked_mul(1024) } else { Some(value) }
}

/// What is left under one limit.
#[derive(Debug)]
struct Left {
    bytes: u64,
    limit: String,
}

/// `root` is where `proc` and the control groups are looked for: `/`, except in tests.
fn check(size: u64, root: &Path) -> Result<()> {
    let machine = read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
        let bytes = meminfo(&text, "MemAvailable")?;
        Some(Left { bytes, limit: "MemAvailable of the machine".into() })
    });
    match groups(root).into_iter().chain(machine).min_by_key(|left| left.bytes) {
        Some(left) if size > left.bytes => {
            Err(Error::TooLarge { requested: size, available: left.bytes, limit: left.limit })
        }
        _ => Ok(()),
    }
}

/// The memory limits of this process's control groups, from its own group up to the mount point.
fn groups(root: &Path) -> Vec<Left> {
    let of_process = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for line in of_process.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        for mount in mounts.lines().filter_map(Mount::parse) {
            if mount.unified != unified || !(unified || mount.has_memory) {
                continue;
            }
            let top = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
            let mut group = top.join(mount.below(path));
            loop {
                found.extend(if unified { left_v2(&group) } else { left_v1(&group) });
                if group == top || !group.pop() {
                    break;
                }
            }
        }
    }
    found
}

/// A mount of a control group hierarchy.
#[derive(Debug)]
struct Mount {
    root: PathBuf,
    point: PathBuf,
    unified: bool,
    has_memory: bool,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (unescape(before.next()?), unescape(before.next()?));
        let mut after = after.split(' ');
        let unified = match after.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let has_memory = after.nth(1).unwrap_or("").split(',').any(|option| option == "memory");
        Some(Self { root: root.into(), point: point.into(), unified, has_memory })
    }

    /// Where a group lies below the mount point; a group that is not below it is seen only as the mount point.
    fn below(&self, path: &str) -> PathBuf {
        let below = Path::new(path).strip_prefix(&self.root).unwrap_or(Path::new(""));
        let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if inside { below.to_path_buf() } else { PathBuf::new() }
    }
}

/// Undoes the octal escapes of mountinfo: space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn left_v2(group: &Path) -> Option<Left> {
    left(group, "memory.max", "memory.current", ["inactive_file", "active_file"])
}

fn left_v1(group: &Path) -> Option<Left> {
    left(
        group,
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ["total_inactive_file", "total_active_file"],
    )
}

/// The cache of files counts as free: the kernel takes it back before it runs out.
fn left(group: &Path, limit: &str, usage: &str, cache: [&str; 2]) -> Option<Left> {
    let value = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let most = value(limit)?;
    let used = value(usage)?;
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| cache.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add);
    let bytes = most.saturating_sub(used.saturating_sub(cached));
    Some(Left { bytes, limit: format!("{limit} of the control group is {most}, {used} in use") })
}
