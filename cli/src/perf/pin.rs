//! Which cores this process may use, and staying on one of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use transom_registry::{Error, Result};

/// The cores of the affinity mask, in order.
pub(crate) fn allowed() -> Result<Vec<usize>> {
    let mask = sched_getaffinity(None).map_err(|e| Error::io("read the affinity mask", e))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect())
}

/// Keeps the calling thread, and threads that it starts from now on, on `core`.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut mask = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(Error::invalid("pin", format!("core {core} is above {}", CpuSet::MAX_CPU)));
    }
    mask.set(core);
    sched_setaffinity(None, &mask).map_err(|e| Error::io(format!("stay on core {core}"), e))
}

/// Lets the calling thread run on all of these cores again.
pub(crate) fn unpin(cores: &[usize]) -> Result<()> {
    let mut mask = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        mask.set(core);
    }
    sched_setaffinity(None, &mask).map_err(|e| Error::io("leave a core", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_allowed_one_core_and_all_again_when_unpinned() {
        std::thread::spawn(|| {
            let before = allowed().unwrap();
            pin(before[0]).unwrap();
            assert_eq!(allowed().unwrap(), [before[0]]);
            unpin(&before).unwrap();
            assert_eq!(allowed().unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
