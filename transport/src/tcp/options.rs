//! What the specification `tcp`, `tcp:HOST:PORT` or `tcp:HOST:PORT,protect=mac` asks for.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use transom_registry::{Error, Result};

use super::protect::Level;

/// How the transport is to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Where it listens.
    pub(crate) bind: SocketAddr,
    /// The name that was asked for, where it was one: peers are told that.
    pub(crate) name: Option<String>,
    /// Whether payloads carry a checksum.
    pub(crate) crc: bool,
    /// What of a frame is proven to come from the peer.
    pub(crate) protect: Level,
}

fn config(value: &str, why: impl Into<String>) -> Error {
    Error::Config { name: "tcp".into(), value: value.into(), why: why.into() }
}

impl Options {
    /// Reads what follows `tcp:`.
    ///
    /// # Errors
    /// [`Error::Config`]; [`Error::Unusable`] for a name that does not resolve.
    pub(crate) fn parse(arguments: &str) -> Result<Self> {
        let mut pieces = arguments.split(',');
        let place = pieces.next().unwrap_or_default();
        // `tcp:crc=off` names no place.
        let (place, first) = if place.contains('=') { ("", Some(place)) } else { (place, None) };
        let mut options =
            Self { bind: (Ipv4Addr::LOCALHOST, 0).into(), name: None, crc: true, protect: Level::Auth };
        for option in first.into_iter().chain(pieces) {
            match option {
                "crc=on" => options.crc = true,
                "crc=off" => options.crc = false,
                "protect=auth" => options.protect = Level::Auth,
                "protect=mac" => options.protect = Level::Mac,
                _ => {
                    let known = "crc=on, crc=off, protect=auth, protect=mac";
                    return Err(config(arguments, format!("option {option:?} is not known: {known}")));
                }
            }
        }
        if options.protect == Level::Mac && !options.crc {
            return Err(config(
                arguments,
                "crc=off leaves nothing off where protect=mac has payloads signed",
            ));
        }
        if place.is_empty() {
            return Ok(options);
        }
        let (host, port) = split(place).ok_or_else(|| {
            config(arguments, "HOST:PORT is expected, with IPv6 addresses in brackets: 0.0.0.0:0, [::1]:4711")
        })?;
        match host.parse::<IpAddr>() {
            Ok(ip) => options.bind = (ip, port).into(),
            Err(_) => {
                let resolved = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
                options.bind = resolved.ok_or_else(|| Error::Unusable {
                    transport: "tcp".into(),
                    why: format!("the name {host:?} does not resolve (name an address of this machine)"),
                })?;
                options.name = Some(host.to_owned());
            }
        }
        Ok(options)
    }
}

/// Host and port of `HOST:PORT`, with the brackets of an IPv6 address taken off.
pub(crate) fn split(place: &str) -> Option<(&str, u16)> {
    let (host, port) = place.rsplit_once(':')?;
    let port = Some(port).filter(|p| p.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    if let Some(inner) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        inner.split('%').next()?.parse::<std::net::Ipv6Addr>().ok()?;
        return Some((inner, port));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!host.is_empty() && host.len() < 254 && host.chars().all(plain)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_options_are_read_and_nonsense_is_named() {
        let default = Options::parse("").unwrap();
        assert_eq!((default.bind.to_string().as_str(), default.crc), ("127.0.0.1:0", true));
        assert!(!Options::parse("crc=off").unwrap().crc);
        assert!(!Options::parse("0.0.0.0:7,crc=off").unwrap().crc);
        assert_eq!(default.protect, Level::Auth);
        assert_eq!(Options::parse("[::1]:0,protect=mac").unwrap().protect, Level::Mac);
        assert_eq!(Options::parse("[::1]:4711").unwrap().bind.to_string(), "[::1]:4711");
        assert_eq!(Options::parse("localhost:1").unwrap().name.as_deref(), Some("localhost"));
        for bad in [
            "127.0.0.1",
            ":0",
            "::1:0",
            "[::1]",
            "1.2.3.4:65536",
            "1.2.3.4:-1",
            "1.2.3.4:",
            "a b:1",
            "[x]:1",
            "127.0.0.1:0,crc=maybe",
            "127.0.0.1:0,",
            "crc",
            "protect=none",
            "protect=mac,crc=off",
        ] {
            let error = Options::parse(bad).unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{bad}: {error}");
        }
    }
}
