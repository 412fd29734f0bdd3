//! Transports by name: `"shm"`, `"tcp:0.0.0.0:0"`, and those that a program registers under a name of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use transom_registry::{Error, Result};

use crate::backend::{Host, Transport};

/// Opens a transport: what follows its name in the specification, and the context that opens it.
pub type Open = Arc<dyn Fn(&str, &Host) -> Result<Arc<dyn Transport>> + Send + Sync>;

/// The variable that names the transports of a context that names none.
pub const VARIABLE: &str = "TRANSOM_TRANSPORTS";
const DEFAULT: &str = "shm,tcp";
/// Names that are the library's own.
const BUILTIN: [&str; 3] = ["local", "shm", "tcp"];

static REGISTERED: RwLock<BTreeMap<String, Open>> = RwLock::new(BTreeMap::new());

/// Registers a transport under a name, so that `"NAME"` and `"NAME:ARGUMENTS"` open it.
///
/// # Errors
/// [`Error::Config`] when the name is taken, or is not made of lower-case letters, digits and `-`.
pub fn register_transport(name: &str, open: Open) -> Result<()> {
    let fault =
        |why: &str| Error::Config { name: "transport name".into(), value: name.into(), why: why.into() };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
        return Err(fault("lower-case letters, digits and '-' are expected, at most 32"));
    }
    let mut registered = REGISTERED.write();
    if BUILTIN.contains(&name) || registered.contains_key(name) {
        return Err(fault("the name is taken"));
    }
    registered.insert(name.to_owned(), open);
    Ok(())
}

fn builtin(name: &str) -> Option<Open> {
    match name {
        "local" => Some(Arc::new(|_, host| Ok(crate::local::Local::open(host)))),
        "shm" => Some(Arc::new(|arguments, host| Ok(crate::shm::Shm::open(arguments, host)?))),
        "tcp" => Some(Arc::new(crate::tcp::Tcp::open)),
        _ => None,
    }
}

/// The names that can be opened.
#[must_use]
pub fn transport_names() -> Vec<String> {
    let mut names = BUILTIN.map(str::to_owned).to_vec();
    names.extend(REGISTERED.read().keys().cloned());
    names
}

/// Splits a list of specifications; without one, the variable's or the default.
pub(crate) fn parse(specs: Option<String>) -> Result<Vec<(String, String)>> {
    let (name, specs) = match specs {
        Some(specs) => ("transports".to_owned(), specs),
        None => match std::env::var(VARIABLE) {
            Ok(specs) => (VARIABLE.to_owned(), specs),
            Err(std::env::VarError::NotPresent) => (VARIABLE.to_owned(), DEFAULT.to_owned()),
            Err(std::env::VarError::NotUnicode(value)) => {
                return Err(Error::Config {
                    name: VARIABLE.into(),
                    value: value.to_string_lossy().into_owned(),
                    why: "it is not text".into(),
                });
            }
        },
    };
    let known = transport_names();
    let mut out: Vec<(String, String)> = Vec::new();
    // An argument may hold commas after its colon (`verbs:mlx5_0,gid=3`): a piece without a known name continues the
    // one before it.
    for piece in specs.split(',') {
        let piece = piece.trim();
        let transport = piece.split(':').next().unwrap_or_default();
        if known.iter().any(|k| k == transport) {
            if out.iter().any(|(name, _)| name == transport) {
                return Err(Error::Config {
                    name,
                    value: specs.clone(),
                    why: format!("{transport} is named twice"),
                });
            }
            out.push((transport.to_owned(), piece.to_owned()));
        } else if piece.contains('=')
            && let Some((_, last)) = out.last_mut()
        {
            last.push(',');
            last.push_str(piece);
        } else {
            return Err(Error::Config {
                name,
                value: specs.clone(),
                why: format!("transport {transport:?} is not known, these are: {}", known.join(", ")),
            });
        }
    }
    Ok(out)
}

/// Opens one specification.
pub(crate) fn open(spec: &str, host: &Host) -> Result<Arc<dyn Transport>> {
    let (name, arguments) = spec.split_once(':').unwrap_or((spec, ""));
    if let Some(open) = builtin(name) {
        return open(arguments, host);
    }
    let registered = REGISTERED.read().get(name).cloned();
    match registered {
        Some(open) => open(arguments, host),
        None => Err(Error::Config {
            name: "transport".into(),
            value: spec.into(),
            why: format!("it is not known, these are: {}", transport_names().join(", ")),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_are_split_and_nonsense_is_named() {
        let ok = parse(Some("shm, tcp:[::1]:0".into())).unwrap();
        assert_eq!(ok, [("shm".into(), "shm".into()), ("tcp".into(), "tcp:[::1]:0".into())]);
        let with = parse(Some("tcp:0.0.0.0:0,crc=off,shm".into())).unwrap();
        assert_eq!(with[0].1, "tcp:0.0.0.0:0,crc=off");
        for bad in ["", "-1", "shm,shm", "infiniband", "1e9", "\u{0}", "tcp,,shm"] {
            let error = parse(Some(bad.into())).unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{bad}: {error}");
        }
    }
}
