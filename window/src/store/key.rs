//! What a key and a value may be, the same in each backend.

use transom_registry::{Error, Result};

/// The longest key in bytes, prefixes included.
pub(super) const LONGEST_KEY: usize = 256;
/// The largest value in bytes.
pub(super) const LARGEST_VALUE: usize = 1 << 20;

/// What is wrong with a key, if anything is.
pub(super) fn fault(key: &[u8]) -> Option<&'static str> {
    if key.is_empty() {
        return Some("it is empty");
    }
    if key.len() > LONGEST_KEY {
        return Some("it is longer than 256 bytes");
    }
    if !key.iter().all(u8::is_ascii_graphic) {
        return Some("only printable ascii without spaces is allowed");
    }
    if key[0] == b'/' {
        return Some("it starts with '/'");
    }
    if key.windows(2).any(|pair| pair == b"..") {
        return Some("it contains '..'");
    }
    None
}

pub(super) fn check(operation: &'static str, key: &str) -> Result<()> {
    match fault(key.as_bytes()) {
        None => Ok(()),
        Some(why) => {
            let shown: String = key.chars().take(40).collect();
            Err(Error::invalid(operation, format!("key {shown:?} of {} bytes: {why}", key.len())))
        }
    }
}

pub(super) fn check_value(operation: &'static str, key: &str, size: usize) -> Result<()> {
    if size <= LARGEST_VALUE {
        return Ok(());
    }
    Err(Error::invalid(
        operation,
        format!(
            "value of key {key:?} is {size} bytes, at most {LARGEST_VALUE} fit (split it over several keys)"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_printable_and_cannot_climb() {
        for good in ["a", "team/0/rank.3", "a.b", "~!@#$%^&*()", &"k".repeat(256), "ends/"] {
            assert!(check("set", good).is_ok(), "{good}");
        }
        for bad in
            ["", "/a", "a/../b", "..", "a b", "tab\t", "nul\0", "umlaut\u{e4}", "\u{7f}", &"k".repeat(257)]
        {
            let error = check("set", bad).unwrap_err();
            assert!(matches!(error, Error::Invalid { operation: "set", .. }), "{bad:?}: {error}");
        }
    }

    #[test]
    fn a_value_over_the_limit_is_refused_with_both_sizes() {
        assert!(check_value("set", "k", LARGEST_VALUE).is_ok());
        let error = check_value("set", "k", LARGEST_VALUE + 1).unwrap_err().to_string();
        assert!(error.contains("1048577") && error.contains("1048576"), "{error}");
    }
}
