//! The addresses of this machine, for peers of a listener on all of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of the interfaces that are up, loopback last. Link-local ones are left out: they mean nothing to a peer.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let mut out = Vec::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is valid for a write.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return out;
    }
    let mut next = list;
    // SAFETY: each entry is valid until the list is freed, and so is its address, of the size that its family says.
    while let Some(entry) = unsafe { next.cast_const().as_ref() } {
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
        if !up || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null; every address begins with its family.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        let ip = if family == libc::AF_INET {
            // SAFETY: the family says that it is one.
            let found = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            IpAddr::from(Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr)))
        } else if family == libc::AF_INET6 {
            // SAFETY: as above.
            let found = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            IpAddr::from(Ipv6Addr::from(found.sin6_addr.s6_addr))
        } else {
            continue;
        };
        let local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if !local && !ip.is_unspecified() && !out.contains(&ip) {
            out.push(ip);
        }
    }
    // SAFETY: the list that was given out above, freed once.
    unsafe { libc::freeifaddrs(list) };
    out.sort_by_key(IpAddr::is_loopback);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_comes_last() {
        let found = addresses();
        let first = found.iter().position(IpAddr::is_loopback);
        assert!(first.is_none_or(|at| found[at..].iter().all(IpAddr::is_loopback)), "{found:?}");
    }
}
