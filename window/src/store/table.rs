//! Keys and values in this process: the store of one process, and what a server keeps.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use transom_registry::Result;

use super::rules::{self, MOST_KEYS, Refusal};
use super::{Answer, Backend, Call, Deadline, control};

#[derive(Debug)]
pub(super) struct Table {
    state: Mutex<State>,
    most_keys: usize,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<String, Arc<[u8]>>,
    waiting: HashMap<String, watch::Sender<Option<Arc<[u8]>>>>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), most_keys: MOST_KEYS }
    }

    pub(super) fn set(&self, key: String, value: &[u8]) -> Result<(), Refusal> {
        self.put(&mut self.state.lock(), key, value.into())
    }

    pub(super) fn value(&self, key: &str) -> Option<Arc<[u8]>> {
        self.state.lock().values.get(key).cloned()
    }

    /// The values of all keys, or `None` when one of them is not set.
    pub(super) fn all(&self, keys: &[String]) -> Option<Vec<Arc<[u8]>>> {
        let state = self.state.lock();
        keys.iter().map(|key| state.values.get(key).cloned()).collect()
    }

    pub(super) fn add(&self, key: String, delta: i64) -> Result<i64, Refusal> {
        let mut state = self.state.lock();
        let sum = rules::sum(state.values.get(&key).map(AsRef::as_ref), delta)?;
        self.put(&mut state, key, sum.to_string().into_bytes().into())?;
        Ok(sum)
    }

    pub(super) fn compare_set(
        &self,
        key: String,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Arc<[u8]>, Refusal> {
        let mut state = self.state.lock();
        let current = state.values.get(&key);
        if rules::replaces(current.map(AsRef::as_ref), expected)? {
            let new: Arc<[u8]> = new.into();
            self.put(&mut state, key, Arc::clone(&new))?;
            return Ok(new);
        }
        current.cloned().ok_or(Refusal::NotSet)
    }

    pub(super) fn delete(&self, key: &str) -> bool {
        self.state.lock().values.remove(key).is_some()
    }

    /// Waits until the key is set. A value that is deleted right after it was set is still seen.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub(super) async fn wait(&self, key: &str) -> Arc<[u8]> {
        loop {
            let mut place = {
                let mut state = self.state.lock();
                if let Some(value) = state.values.get(key) {
                    return Arc::clone(value);
                }
                let receiver =
                    state.waiting.entry(key.to_owned()).or_insert_with(|| watch::channel(None).0).subscribe();
                Place { table: self, key, receiver: Some(receiver) }
            };
            let Some(receiver) = place.receiver.as_mut() else { continue };
            if let Ok(value) = receiver.wait_for(Option::is_some).await
                && let Some(value) = value.as_ref()
            {
                return Arc::clone(value);
            }
        }
    }

    /// Which of the keys are not set: the positions of the first ones, and how many.
    pub(super) fn missing(&self, keys: &[String], most: usize) -> (Vec<usize>, usize) {
        let state = self.state.lock();
        let mut first = Vec::new();
        let mut count = 0;
        for (position, _) in keys.iter().enumerate().filter(|(_, key)| !state.values.contains_key(*key)) {
            count += 1;
            if first.len() < most {
                first.push(position);
            }
        }
        (first, count)
    }

    fn put(&self, state: &mut State, key: String, value: Arc<[u8]>) -> Result<(), Refusal> {
        if state.values.len() >= self.most_keys && !state.values.contains_key(&key) {
            return Err(Refusal::TooManyKeys);
        }
        if let Some(waiting) = state.waiting.remove(&key) {
            waiting.send_replace(Some(Arc::clone(&value)));
        }
        state.values.insert(key, value);
        Ok(())
    }
}

/// One wait for one key; the last one to leave takes the key's entry with it.
struct Place<'a> {
    table: &'a Table,
    key: &'a str,
    receiver: Option<watch::Receiver<Option<Arc<[u8]>>>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.table.state.lock();
        self.receiver = None;
        if state.waiting.get(self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            state.waiting.remove(self.key);
        }
    }
}

impl Table {
    /// Does a call on the caller's thread, whoever runs it: no other thread takes part but for the clock of a get that waits.
    pub(super) async fn call_here(&self, call: Call, deadline: Deadline) -> Result<Answer> {
        self.answer(call, deadline, async || {
            control::run("store get", super::deadline::passed(deadline))?.await
        })
        .await
    }

    /// Answers a call; `passed` ends at the deadline.
    async fn answer(
        &self,
        call: Call,
        deadline: Deadline,
        passed: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Answer> {
        let operation = call.operation();
        let named = call.key().to_owned();
        let answer = match call {
            Call::Set { key, value } => self.set(key, &value).map(|()| Answer::Done),
            Call::TryGet { key } => Ok(Answer::Value(self.value(&key).map(|v| v.to_vec()))),
            Call::Add { key, delta } => self.add(key, delta).map(Answer::Number),
            Call::CompareSet { key, expected, new } => {
                self.compare_set(key, expected.as_deref(), &new).map(|v| Answer::Value(Some(v.to_vec())))
            }
            Call::Delete { key } => Ok(Answer::Deleted(self.delete(&key))),
            Call::Get { keys } => {
                let all = async {
                    let mut values = Vec::with_capacity(keys.len());
                    for key in &keys {
                        values.push(self.wait(key).await.to_vec());
                    }
                    values
                };
                tokio::select! {
                    biased;
                    values = all => return Ok(Answer::Values(values)),
                    passed = passed() => passed?,
                }
                let (first, count) = self.missing(&keys, 16);
                let names = first.iter().map(|&position| keys[position].as_str());
                return Err(deadline.expired(operation, rules::not_set(names, count, keys.len()), None));
            }
        };
        answer.map_err(|refusal| refusal.error(operation, &named))
    }
}

impl Backend for Table {
    fn call(
        self: Arc<Self>,
        call: Call,
        deadline: Deadline,
    ) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>> {
        Box::pin(async move {
            self.answer(call, deadline, async || super::deadline::passed(deadline).await).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn one_key_too_many_is_refused_and_an_old_key_still_changes() {
        let table = Table { state: Mutex::default(), most_keys: 2 };
        table.set("a".into(), b"1").unwrap();
        table.add("b".into(), 1).unwrap();
        assert_eq!(table.set("c".into(), b"1"), Err(Refusal::TooManyKeys));
        assert_eq!(table.add("c".into(), 1), Err(Refusal::TooManyKeys));
        assert_eq!(table.compare_set("c".into(), None, b"1"), Err(Refusal::TooManyKeys));
        table.set("a".into(), b"2").unwrap();
        assert!(table.delete("a"));
        table.set("c".into(), b"1").unwrap();
    }

    #[test]
    fn a_wait_sees_a_value_that_was_deleted_at_once_and_leaves_nothing_behind() {
        let table = Table::new();
        block_on(async {
            let mut wait = Box::pin(table.wait("k"));
            tokio::select! { biased; _ = &mut wait => panic!("not set yet"), () = std::future::ready(()) => {} }
            table.set("k".into(), b"v").unwrap();
            assert!(table.delete("k"));
            assert_eq!(&*wait.await, b"v");
            let mut wait = Box::pin(table.wait("k"));
            tokio::select! { biased; _ = &mut wait => panic!("not set yet"), () = std::future::ready(()) => {} }
        });
        assert!(table.state.lock().waiting.is_empty());
    }
}
