//! Who am I: rank, size and store from what the launcher left in the environment.

use std::ffi::OsString;

use transom_registry::{Error, Result};

/// Where the store is: an URL as for `Store::open`, set by `transom launch`.
pub const STORE: &str = "TRANSOM_STORE";
/// This process's rank.
pub const RANK: &str = "TRANSOM_RANK";
/// How many ranks there are.
pub const SIZE: &str = "TRANSOM_SIZE";
/// How many of them are on this host.
pub const LOCAL_SIZE: &str = "TRANSOM_LOCAL_SIZE";
/// Most ranks of a team.
pub(crate) const MOST_RANKS: u32 = 1 << 20;

/// What the environment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) local_size: Option<u32>,
    /// `transom launch` started it, and tells in the store how ranks end.
    pub(crate) launched: bool,
    pub(crate) meeting: Meeting,
}

/// Where the ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// There is only one.
    Alone,
    /// At this URL.
    Url(String),
    /// At a server of rank 0 at this address.
    RankZero(String),
}

/// Whether a launcher started this process as one of several ranks.
///
/// # Errors
/// [`Error::Config`] that names the variable, as for [`Team::from_env`](crate::Team::from_env).
pub fn is_rank() -> Result<bool> {
    Place::from_env().map(|place| place.meeting != Meeting::Alone)
}

/// Variables of the launchers that we know: name, rank, size, ranks on this host.
const LAUNCHERS: [(&str, &str, &str, &[&str]); 5] = [
    ("transom launch", RANK, SIZE, &[LOCAL_SIZE]),
    ("torchrun", "RANK", "WORLD_SIZE", &["LOCAL_WORLD_SIZE"]),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &["OMPI_COMM_WORLD_LOCAL_SIZE"]),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", &["SLURM_NTASKS_PER_NODE"]),
    ("PMI", "PMI_RANK", "PMI_SIZE", &["MPI_LOCALNRANKS"]),
];

impl Place {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`Error::Config`] that names the variable, its value and what is expected.
    pub(crate) fn from_env() -> Result<Self> {
        Self::read(&|name| std::env::var_os(name))
    }

    fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let text = |name: &str| -> Result<Option<String>> {
            variable(name)
                .map(|value| {
                    value.into_string().map_err(|v| fault(name, &v.to_string_lossy(), "it is not text"))
                })
                .transpose()
        };
        let number = |name: &str| -> Result<Option<u32>> {
            let Some(value) = text(name)? else { return Ok(None) };
            let plain = value.bytes().all(|b| b.is_ascii_digit());
            let number = value.parse().ok().filter(|n| plain && *n <= MOST_RANKS);
            number
                .map(Some)
                .ok_or_else(|| fault(name, &value, &format!("a number from 0 to {MOST_RANKS} is expected")))
        };
        let store = text(STORE)?.map(|url| {
            if url.contains("://") {
                Ok(url)
            } else {
                Err(fault(STORE, &url, "an URL like tcp://HOST:PORT is expected"))
            }
        });
        let store = store.transpose()?;
        for (launcher, rank_name, size_name, local_names) in LAUNCHERS {
            let (rank, size) = (number(rank_name)?, number(size_name)?);
            let (rank, size) = match (rank, size) {
                (Some(rank), Some(size)) => (rank, size),
                (None, None) => continue,
                // Programs leave a lone RANK behind for reasons of their own: only ours must come in pairs.
                _ if launcher != "transom launch" => continue,
                (Some(rank), None) => {
                    return Err(fault(rank_name, &rank.to_string(), &format!("{size_name} is missing")));
                }
                (None, Some(size)) => {
                    return Err(fault(size_name, &size.to_string(), &format!("{rank_name} is missing")));
                }
            };
            if size == 0 {
                return Err(fault(size_name, "0", "a team has at least one rank"));
            }
            if rank >= size {
                return Err(fault(rank_name, &rank.to_string(), &format!("ranks are 0 to {}", size - 1)));
            }
            let mut local_size = None;
            for name in local_names {
                local_size = local_size.or(number(name)?.filter(|n| *n > 0));
            }
            let meeting = match (store, size) {
                (Some(url), _) => Meeting::Url(url),
                (None, 1) => Meeting::Alone,
                (None, _) => match (text("MASTER_ADDR")?, number_u16(&text, "MASTER_PORT")?) {
                    // The port itself is the launcher's own store's: ours is at the next one.
                    (Some(host), Some(port)) if port < u16::MAX => {
                        let host = if host.contains(':') && !host.starts_with('[') {
                            format!("[{host}]")
                        } else {
                            host
                        };
                        Meeting::RankZero(format!("{host}:{}", port + 1))
                    }
                    _ => {
                        return Err(fault(
                            STORE,
                            "",
                            &format!(
                                "{launcher} gave {size} ranks and no place to meet: set it to tcp://HOST:PORT of a \
                                      store, or to file://DIRECTORY on a file system that all ranks share"
                            ),
                        ));
                    }
                },
            };
            return Ok(Self { rank, size, local_size, launched: launcher == LAUNCHERS[0].0, meeting });
        }
        match store {
            Some(url) => Err(fault(STORE, &url, &format!("{RANK} and {SIZE} are missing"))),
            None => {
                Ok(Self { rank: 0, size: 1, local_size: Some(1), launched: false, meeting: Meeting::Alone })
            }
        }
    }
}

fn number_u16(text: &dyn Fn(&str) -> Result<Option<String>>, name: &str) -> Result<Option<u16>> {
    let Some(value) = text(name)? else { return Ok(None) };
    value.parse().map(Some).map_err(|_| fault(name, &value, "a port from 0 to 65535 is expected"))
}

fn fault(name: &str, value: &str, why: &str) -> Error {
    Error::Config { name: name.into(), value: value.into(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Place> {
        Place::read(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn nothing_set_is_a_team_of_one() {
        let alone = place(&[]).unwrap();
        assert_eq!((alone.rank, alone.size, alone.meeting), (0, 1, Meeting::Alone));
    }

    #[test]
    fn every_launcher_is_understood() {
        let ours =
            place(&[(RANK, "1"), (SIZE, "4"), (LOCAL_SIZE, "4"), (STORE, "tcp://127.0.0.1:7")]).unwrap();
        assert_eq!((ours.rank, ours.size, ours.local_size), (1, 4, Some(4)));
        let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "29500")];
        assert_eq!(place(&torch).unwrap().meeting, Meeting::RankZero("[::1]:29501".into()));
        for (rank, size) in [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS"),
            ("PMI_RANK", "PMI_SIZE"),
        ] {
            assert!(place(&[(rank, "0"), (size, "2")]).unwrap_err().to_string().contains("no place to meet"));
            assert_eq!(place(&[(rank, "1"), (size, "2"), (STORE, "file:///x")]).unwrap().rank, 1);
        }
        assert_eq!(place(&[("RANK", "5")]).unwrap().size, 1, "a lone RANK is somebody else's");
    }

    #[test]
    fn garbage_is_an_error_that_names_the_variable() {
        for bad in ["", "-1", "+1", "1e9", "99999999999999999999", "zwei", " 1", "1 ", "\u{661}"] {
            for name in [RANK, SIZE] {
                let mut variables = vec![(RANK, "0"), (SIZE, "2"), (STORE, "tcp://127.0.0.1:7")];
                variables.iter_mut().filter(|(n, _)| *n == name).for_each(|v| v.1 = bad);
                let error = place(&variables).unwrap_err().to_string();
                assert!(error.contains(name), "{bad:?}: {error}");
            }
        }
        for set in [
            &[(RANK, "2"), (SIZE, "2")][..],
            &[(RANK, "0"), (SIZE, "0")],
            &[(RANK, "0")],
            &[(SIZE, "2")],
            &[(RANK, "0"), (SIZE, "2"), (STORE, "127.0.0.1")],
            &[(STORE, "tcp://127.0.0.1:7")],
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "70000")],
        ] {
            assert!(matches!(place(set), Err(Error::Config { .. })), "{set:?}");
        }
        let raw = Place::read(&|name| (name == RANK).then(|| OsString::from_vec(vec![0xff, 0x30])));
        assert!(raw.unwrap_err().to_string().contains(RANK));
    }
}
