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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{Rlimit, setrlimit};

    use super::super::scratch::{Scratch, in_child, skip};
    use super::super::{File, Host, Mapped, Memory};
    use super::*;

    const MEMINFO: &str = "MemTotal:       4000 kB\nMemAvailable:   2000 kB\nHugePages_Total:       3\n";

    fn refused(size: u64, root: &Scratch) -> (u64, String) {
        match check(size, root.path()) {
            Err(Error::TooLarge { requested, available, limit }) if requested == size => (available, limit),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn meminfo_values_are_bytes_or_counts() {
        assert_eq!(meminfo(MEMINFO, "MemAvailable"), Some(2000 * 1024));
        assert_eq!(meminfo(MEMINFO, "HugePages_Total"), Some(3));
        assert_eq!(meminfo(MEMINFO, "Mem"), None);
    }

    #[test]
    fn the_machine_is_the_limit_where_no_control_group_is_tighter() {
        let root = Scratch::new();
        root.write("proc/meminfo", MEMINFO);
        check(2_048_000, root.path()).unwrap();
        let (available, limit) = refused(2_048_001, &root);
        assert_eq!((available, limit.as_str()), (2_048_000, "MemAvailable of the machine"));
    }

    #[test]
    fn a_unified_group_and_all_its_parents_count_and_file_cache_is_free() {
        let root = Scratch::new();
        root.write("proc/meminfo", MEMINFO);
        root.write("proc/self/cgroup", "0::/pod/app\n");
        root.write(
            "proc/self/mountinfo",
            "41 31 0:38 / /sys/group\\040s rw,relatime shared:9 - cgroup2 cgroup2 rw\n",
        );
        root.write("sys/group s/pod/app/memory.max", "max\n");
        root.write("sys/group s/pod/app/memory.current", "1\n");
        root.write("sys/group s/pod/memory.max", "1000\n");
        root.write("sys/group s/pod/memory.current", "900\n");
        root.write("sys/group s/pod/memory.stat", "anon 5\ninactive_file 200\nactive_file 50\n");
        check(350, root.path()).unwrap();
        let (available, limit) = refused(351, &root);
        assert_eq!((available, limit.as_str()), (350, "memory.max of the control group is 1000, 900 in use"));
    }

    #[test]
    fn a_legacy_group_counts_also_where_only_its_own_part_of_the_tree_is_mounted() {
        let root = Scratch::new();
        root.write("proc/meminfo", MEMINFO);
        root.write("proc/self/cgroup", "5:cpu:/other\n4:memory:/docker/abc/inner\n0::/\n");
        root.write(
            "proc/self/mountinfo",
            "35 31 0:32 /docker/abc /sys/memory rw - cgroup cgroup rw,memory\n\
             32 31 0:29 / /sys/cpu rw,relatime - cgroup cgroup rw,cpu\n\
             31 23 0:28 / /sys rw,relatime - tmpfs tmpfs rw,mode=755\nnonsense\n",
        );
        root.write("sys/memory/memory.limit_in_bytes", "5000\n");
        root.write("sys/memory/memory.usage_in_bytes", "1000\n");
        root.write("sys/memory/inner/memory.limit_in_bytes", "9223372036854771712\n");
        root.write("sys/memory/inner/memory.usage_in_bytes", "1000\n");
        assert_eq!(refused(4001, &root).0, 4000);
        root.write("sys/memory/inner/memory.limit_in_bytes", "1500\n");
        assert_eq!(refused(501, &root).0, 500);
        root.write("proc/self/cgroup", "4:memory:/../elsewhere\n");
        assert_eq!(refused(4001, &root).0, 4000);
    }

    #[test]
    fn nothing_readable_refuses_nothing() {
        check(u64::MAX, Scratch::new().path()).unwrap();
    }

    fn lower(resource: Resource, current: u64) {
        let maximum = getrlimit(resource).maximum;
        setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
    }

    #[test]
    fn too_many_open_files_name_the_limit_and_its_value() {
        in_child("memory::limits::tests::too_many_open_files_name_the_limit_and_its_value", || {
            lower(Resource::Nofile, 3);
            let text = Host::new(1).unwrap_err().to_string();
            assert!(text.contains("3 open files (RLIMIT_NOFILE)"), "{text}");
        });
    }

    #[test]
    fn the_limit_on_file_sizes_is_an_error_and_no_signal() {
        in_child("memory::limits::tests::the_limit_on_file_sizes_is_an_error_and_no_signal", || {
            let folder = Scratch::new();
            lower(Resource::Fsize, 1 << 20);
            Host::new(1 << 20).unwrap();
            let memory = Host::builder(2 << 20).sparse(true).build();
            let file = File::create(folder.path().join("file"), 2 << 20);
            for error in [memory.unwrap_err(), file.unwrap_err()] {
                let text = error.to_string();
                assert!(
                    text.contains("2097152") && text.contains("1048576") && text.contains("RLIMIT_FSIZE")
                );
            }
        });
    }

    #[test]
    fn too_little_address_space_names_the_limit_and_its_value() {
        in_child("memory::limits::tests::too_little_address_space_names_the_limit_and_its_value", || {
            lower(Resource::As, 8 << 30);
            let text = Host::builder(9 << 30).sparse(true).build().unwrap_err().to_string();
            assert!(text.contains("8589934592 bytes of address space (RLIMIT_AS)"), "{text}");
        });
    }

    #[test]
    fn too_many_mappings_name_the_limit_and_its_value() {
        let most = sysctl("vm/max_map_count");
        if most.parse::<usize>().is_ok_and(|most| most > 100_000) {
            return skip("vm.max_map_count is larger than 100000");
        }
        in_child("memory::limits::tests::too_many_mappings_name_the_limit_and_its_value", || {
            let memory = Host::new(1).unwrap();
            let mut mapped = Vec::with_capacity(100_000);
            let error = loop {
                let fd = memory.share().unwrap().fd.as_fd().try_clone_to_owned().unwrap();
                match Mapped::new(fd, 0, 1, true, true) {
                    Ok(one) => mapped.push(one),
                    Err(error) => break error,
                }
            };
            let one_more = Host::new(1).unwrap_err();
            drop(mapped);
            for text in [error.to_string(), one_more.to_string()] {
                assert!(text.contains("vm.max_map_count") && text.contains(&most), "{text}");
            }
        });
    }
}
