//! `transom info`: what this machine can do: each transport, usable or why not and what to do; cores, limits, pages.

use std::fmt::Write as _;
use std::fs::read_to_string;

use clap::Args;
use transom::{Context, Result};

/// Say what this machine can do
#[derive(Debug, Args)]
pub(crate) struct Options {}

/// Says it.
pub(crate) fn run(_: &Options) -> Result<String> {
    let mut out = String::new();
    line(&mut out, "transom", env!("CARGO_PKG_VERSION"));
    out.push_str("\ntransports\n");
    for name in transom::transport_names() {
        let said = match Context::builder().transports(&name).build() {
            Ok(context) => {
                let prefix = format!("{name}:");
                let at: Vec<_> = context.addresses().into_iter().filter(|a| a.starts_with(&prefix)).collect();
                let reached =
                    if at.is_empty() { String::new() } else { format!(", for instance at {}", at.join(" ")) };
                match (name.as_str(), context.unusable().first()) {
                    (_, Some((_, why))) => format!("not usable: {why}"),
                    ("local", _) => "usable (between threads of one process)".into(),
                    _ => format!("usable{reached}"),
                }
            }
            Err(error) => format!("not usable: {error}"),
        };
        line(&mut out, &format!("  {name}"), &said);
    }
    for (name, next) in [("verbs", "comes with a later version"), ("cuda", "comes with a later version")] {
        line(&mut out, &format!("  {name}"), &format!("not built in ({next})"));
    }
    out.push_str("\nmachine\n");
    let cores = std::thread::available_parallelism().map_or_else(|e| e.to_string(), |n| n.to_string());
    line(&mut out, "  cores for this process", &cores);
    line(&mut out, "  kernel", first_line("/proc/sys/kernel/osrelease").as_deref().unwrap_or("unknown"));
    line(&mut out, "  memory available", &meminfo("MemAvailable:"));
    line(
        &mut out,
        "  huge pages reserved",
        first_line("/proc/sys/vm/nr_hugepages").as_deref().unwrap_or("unknown"),
    );
    line(
        &mut out,
        "  shared memory in huge pages",
        first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled").as_deref().unwrap_or("unknown"),
    );
    for (name, what, next) in [
        ("Max locked memory", "locked memory", "verbs registers memory under it: ulimit -l unlimited"),
        ("Max open files", "open files", "a window takes three for each rank of this host: ulimit -n 65536"),
    ] {
        line(&mut out, &format!("  limit of {what}"), &format!("{} ({next})", limit(name)));
    }
    let scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
    let foreign = match scope.as_deref() {
        None | Some("0") => "yes".to_owned(),
        Some(other) => {
            format!("only by tcp (kernel.yama.ptrace_scope is {other}; 0 allows process_vm_writev)")
        }
    };
    line(&mut out, "  memory of others' making", &foreign);
    Ok(out)
}

fn line(out: &mut String, what: &str, said: &str) {
    let _ = writeln!(out, "{what:<30} {said}");
}

fn first_line(path: &str) -> Option<String> {
    Some(read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

fn meminfo(name: &str) -> String {
    let text = read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines().find_map(|l| l.strip_prefix(name)).map_or_else(|| "unknown".into(), |v| v.trim().to_owned())
}

fn limit(name: &str) -> String {
    let text = read_to_string("/proc/self/limits").unwrap_or_default();
    let found = text.lines().find_map(|l| l.strip_prefix(name));
    found.map_or_else(|| "unknown".into(), |l| l.split_whitespace().take(1).collect::<String>())
}
