//! Threads of this process, or processes of their own, as the ranks of a team.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use transom::store::{Answer, Backend, Call, Deadline};
use transom::{Rank, RemoteRegion, Result, Secret, Store, StoreServer, Team, TeamBuilder};

use crate::process::{Me, Ranks};

/// Deadline of the teams' calls: nothing that works comes near it.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Transports by which threads reach each other.
pub const TRANSPORTS: [&str; 3] = ["local", "shm", "tcp:127.0.0.1:0"];

/// The secret of all teams of the tests.
#[must_use]
pub fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

/// Builds the team of `size` ranks over one transport, each rank a thread, and runs `part` in each.
///
/// Panics when one of them does.
pub fn threads<T: Send>(transport: &str, size: u32, part: impl Fn(Team) -> T + Sync) -> Vec<T> {
    let store = Only::store(transport);
    each(size, |rank| part(builder(transport, &store, rank, size).build().unwrap()))
}

/// Runs `part` in a thread for each rank.
pub fn each<T: Send>(size: u32, part: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let part = &part;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || part(rank))).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Begins to build the team of a thread.
#[must_use]
pub fn builder(transport: &str, store: &Store, rank: Rank, size: u32) -> TeamBuilder {
    let team = Team::builder().store(store.clone()).rank(rank).size(size);
    team.transports(transport).secret(secret()).timeout(TIMEOUT)
}

const STORE: &str = "TRANSOM_TEST_STORE";
const TRANSPORT: &str = "TRANSOM_TEST_TRANSPORT";

/// Processes that are the ranks of a team; the test keeps their store.
#[derive(Debug)]
pub struct Processes {
    /// The processes.
    pub ranks: Ranks,
    /// Their store, as the test sees it.
    pub store: Store,
    address: String,
    _server: StoreServer,
}

impl Processes {
    /// Starts the ranks of a test, which meet over this transport.
    #[must_use]
    pub fn start(test: &str, transport: &str, size: u32) -> Self {
        Self::start_with(test, transport, size, &[])
    }

    /// As [`Processes::start`], with these environment variables.
    #[must_use]
    pub fn start_with(test: &str, transport: &str, size: u32, variables: &[(&str, &str)]) -> Self {
        let server = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &secret()).unwrap();
        let address = server.address().to_string();
        let store = Store::connect(&address, &secret(), TIMEOUT).unwrap();
        let variables = [variables, &[(STORE, address.as_str()), (TRANSPORT, transport)]].concat();
        Self { ranks: Ranks::start_with(test, size, &variables), store, address, _server: server }
    }

    /// Starts other processes of the test, with the same store.
    #[must_use]
    pub fn start_more(&self, test: &str, transport: &str, size: u32) -> Ranks {
        Ranks::start_with(test, size, &[(STORE, &self.address), (TRANSPORT, transport)])
    }
}

/// The store of this rank's test.
#[must_use]
pub fn store_of_test() -> Store {
    Store::connect(&std::env::var(STORE).unwrap(), &secret(), TIMEOUT).unwrap()
}

/// The transport of this rank's test.
#[must_use]
pub fn transport_of_test() -> String {
    std::env::var(TRANSPORT).unwrap()
}

/// Begins to build the team of a process that is a rank.
#[must_use]
pub fn builder_of(me: &Me) -> TeamBuilder {
    builder(&transport_of_test(), &store_of_test(), me.rank(), me.size())
}

/// A store inside of this process, in which regions have the addresses of one transport only: otherwise threads would
/// always find the way inside of their process.
#[derive(Debug)]
pub struct Only {
    inner: Store,
    transport: String,
}

impl Only {
    /// The store for this transport, by its name or specification.
    #[must_use]
    pub fn store(transport: &str) -> Store {
        let transport = transport.split(':').next().unwrap_or(transport).to_owned();
        Store::new(Self { inner: Store::in_process(), transport })
    }

    /// The record with fewer addresses, when it ends with a region.
    fn cut(&self, record: Vec<u8>) -> Vec<u8> {
        // A published region, a window's, a team's.
        for start in [0, 1, 8] {
            if let Some((head, region)) = record.split_at_checked(start)
                && let Ok(mut region) = RemoteRegion::from_bytes(region)
            {
                region.addresses.retain(|address| address.split(':').next() == Some(&self.transport));
                assert!(!region.addresses.is_empty(), "{} has an address", self.transport);
                return [head, &region.to_bytes()].concat();
            }
        }
        record
    }
}

impl Backend for Only {
    fn call(
        self: Arc<Self>,
        call: Call,
        deadline: Deadline,
    ) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>> {
        Box::pin(async move {
            let store = &self.inner;
            Ok(match call {
                Call::Set { key, value } => {
                    store.set_async(&key, &self.cut(value)).await?;
                    Answer::Done
                }
                Call::Get { keys } => {
                    Answer::Values(store.get_many_async(&keys, deadline.remaining()).await?)
                }
                Call::TryGet { key } => Answer::Value(store.try_get_async(&key).await?),
                Call::Add { key, delta } => Answer::Number(store.add_async(&key, delta).await?),
                Call::CompareSet { key, expected, new } => {
                    let wanted = self.cut(new.clone());
                    let there = store.compare_set_async(&key, expected.as_deref(), &wanted).await?;
                    // Who set it sees what it gave.
                    Answer::Value(Some(if there == wanted { new } else { there }))
                }
                Call::Delete { key } => Answer::Deleted(store.delete_async(&key).await?),
            })
        })
    }
}
