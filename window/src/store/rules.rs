//! What `add` and `compare_set` make of one value, and why a store says no: the same in each backend.

use transom_registry::{Error, Result};

/// The number of keys that one table holds.
pub(super) const MOST_KEYS: usize = 1_000_000;
/// The number of gets that one connection may have waiting at the server.
pub(super) const MOST_WAITING: usize = 16_384;

/// Why the store did not do what was asked; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Refusal {
    TooManyKeys = 1,
    TooManyWaiting = 2,
    NotANumber = 3,
    Overflow = 4,
    NotSet = 5,
}

impl Refusal {
    pub(super) const ALL: [Self; 5] =
        [Self::TooManyKeys, Self::TooManyWaiting, Self::NotANumber, Self::Overflow, Self::NotSet];

    pub(super) fn error(self, operation: &'static str, key: &str) -> Error {
        match self {
            Self::TooManyKeys => Error::Limit {
                what: format!("store keys: all {MOST_KEYS} are in use, {key:?} is one too many"),
                next: "delete keys that nobody needs any more".into(),
            },
            Self::TooManyWaiting => Error::Limit {
                what: format!(
                    "store waits: {MOST_WAITING} gets of this process are waiting, {key:?} is one too many"
                ),
                next: "wait for several keys with one get_many".into(),
            },
            Self::NotANumber => Error::invalid(
                operation,
                format!("the value of key {key:?} is not a decimal number of 64 bits"),
            ),
            Self::Overflow => Error::invalid(
                operation,
                format!("the value of key {key:?} would be outside a signed 64-bit number"),
            ),
            Self::NotSet => Error::invalid(
                operation,
                format!(
                    "key {key:?} is not set, so it has no value to compare (expect None to set an absent key)"
                ),
            ),
        }
    }
}

/// The number after `delta` has been added to a value in decimal text; an absent one counts as zero.
pub(super) fn sum(current: Option<&[u8]>, delta: i64) -> Result<i64, Refusal> {
    let number = match current {
        None => 0,
        Some(text) => {
            std::str::from_utf8(text).ok().and_then(|t| t.parse::<i64>().ok()).ok_or(Refusal::NotANumber)?
        }
    };
    number.checked_add(delta).ok_or(Refusal::Overflow)
}

/// Whether the new value takes the place of the current one.
pub(super) fn replaces(current: Option<&[u8]>, expected: Option<&[u8]>) -> Result<bool, Refusal> {
    match (current, expected) {
        (None, Some(_)) => Err(Refusal::NotSet),
        (current, expected) => Ok(current == expected),
    }
}

/// The keys that a wait is missing, in words: at most 16 names.
pub(super) fn not_set<'a>(first: impl Iterator<Item = &'a str>, missing: usize, of: usize) -> String {
    let names: Vec<&str> = first.take(16).collect();
    match (of, missing) {
        (_, 0) => "all keys are set, but their values were still on the way".into(),
        (1, _) => format!("key {} is not set", names.join(", ")),
        _ => {
            let more = missing - names.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{missing} of {of} keys are not set: {}{more}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_checked_and_an_absent_value_is_zero() {
        assert_eq!(sum(None, -3), Ok(-3));
        assert_eq!(sum(Some(b"40"), 2), Ok(42));
        assert_eq!(sum(Some(b"9223372036854775807"), 1), Err(Refusal::Overflow));
        assert_eq!(sum(Some(b"4x"), 1), Err(Refusal::NotANumber));
        assert_eq!(sum(Some(b""), 1), Err(Refusal::NotANumber));
        assert_eq!(sum(Some(b"\xff"), 1), Err(Refusal::NotANumber));
    }

    #[test]
    fn missing_keys_are_named_up_to_sixteen() {
        assert_eq!(not_set(["a"].into_iter(), 1, 1), "key a is not set");
        assert_eq!(not_set(["a", "b"].into_iter(), 2, 5), "2 of 5 keys are not set: a, b");
        let text = not_set(std::iter::repeat_n("k", 64), 70, 100);
        assert!(text.ends_with(" and 54 more"), "{text}");
    }
}
