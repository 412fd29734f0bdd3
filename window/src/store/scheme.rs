//! Which way of opening a store a URL names.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use transom_registry::{Error, Result};
use transom_transport::Secret;

use super::Store;
use super::table::Table;

const BUILT_IN: [&str; 3] = ["file", "inproc", "tcp"];

static REGISTERED: Mutex<BTreeMap<String, Arc<dyn Open>>> = Mutex::new(BTreeMap::new());
static NAMED: Mutex<Option<HashMap<String, Weak<Table>>>> = Mutex::new(None);

/// Opens the store at a URL.
pub(super) trait Open: Send + Sync {
    fn open(&self, url: &str, secret: &Secret, timeout: Duration) -> Result<Store>;
}

impl<F: Fn(&str, &Secret, Duration) -> Result<Store> + Send + Sync> Open for F {
    fn open(&self, url: &str, secret: &Secret, timeout: Duration) -> Result<Store> {
        self(url, secret, timeout)
    }
}

pub(super) fn open(url: &str, secret: &Secret, timeout: Duration) -> Result<Store> {
    let config = |why: String| Error::Config { name: "store url".into(), value: url.into(), why };
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(config(format!("expected SCHEME://..., with one of the schemes {}", known())));
    };
    match scheme {
        "tcp" => Store::connect(rest, secret, timeout),
        "file" if Path::new(rest).is_absolute() => Store::file(rest),
        "file" => Err(config("expected an absolute path, such as file:///shared/job-17".into())),
        "inproc" if rest.is_empty() => Err(config("expected a name, such as inproc://job".into())),
        "inproc" => Ok(named(rest)),
        _ => {
            let registered = REGISTERED.lock().get(scheme).cloned();
            match registered {
                Some(open) => open.open(url, secret, timeout),
                None => Err(config(format!("the scheme {scheme:?} is not known, only {} are", known()))),
            }
        }
    }
}

pub(super) fn register(name: &str, open: Arc<dyn Open>) -> Result<()> {
    let operation = "register a store scheme";
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    if name.is_empty() || !name.bytes().all(letter) {
        return Err(Error::invalid(operation, format!("{name:?} is not a name of lower-case letters")));
    }
    let mut registered = REGISTERED.lock();
    if BUILT_IN.contains(&name) || registered.contains_key(name) {
        return Err(Error::invalid(operation, format!("{name:?} is taken")));
    }
    registered.insert(name.into(), open);
    Ok(())
}

fn known() -> String {
    let registered = REGISTERED.lock();
    let mut names: Vec<&str> = BUILT_IN.into_iter().chain(registered.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.join(", ")
}

fn named(name: &str) -> Store {
    let mut named = NAMED.lock();
    let named = named.get_or_insert_default();
    named.retain(|_, table| table.strong_count() > 0);
    if let Some(table) = named.get(name).and_then(Weak::upgrade) {
        return Store::over(table);
    }
    let table = Arc::new(Table::new());
    named.insert(name.into(), Arc::downgrade(&table));
    Store::over(table)
}
