//! Registered memory windows into other processes: put, get, signal, fence, flush.
//!
//! A [`Team`] is an ordered set of ranks that meet in a [`Store`]. A [`Window`] is one region of memory per rank: any rank
//! puts bytes straight into another's part, gets them, adds to its signals, and waits for its own.
//!
//! | what | means | the letter |
//! |---|---|---|
//! | *completed* | the source buffer may be reused | the letter is in the box |
//! | *delivered* | the bytes are in the target's memory | it is in their letter box |
//! | *signalled* | the target can know | the flag is up |
//! | *fence* | orders, never waits | this one before that one |
//! | *flush* | waits until delivered | a receipt |
//!
//! Each rank puts a greeting into the next one's memory. Started by `transom launch -n 2 -- hello` there are two of them;
//! alone it is a team of one, its own neighbour:
//! ```
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! Where to read on:
//! - [`Team`]: how ranks find each other; [`store`]: where they meet;
//! - [`Window`]: the contract of put, get, fence, flush and signals;
//! - [`Request`]: operations that take registered memory without a copy, to wait for or to await;
//! - [`Context`] and [`Peer`]: the same calls for one region of one process, without a team;
//! - [`Error`] and [`Outcome`]: each operation that ended has exactly one outcome;
//! - `docs/design.md` in the repository: why it is as it is.

#![forbid(unsafe_code)]

pub mod environment;
pub mod store;
mod team;
mod window;

/// The number of a process in a team.
pub type Rank = u32;

pub use store::{Store, StoreServer};
pub use team::{Team, TeamBuilder};
pub use transom_registry::element;
pub use transom_transport::{
    Access, Atomic, Cause, Context, ContextBuilder, Dtype, Element, Error, Failure, File, Foreign, Host,
    HostBuilder, Incarnation, Kind, List, Memory, MemoryRegion, Outcome, Peer, PeerRegion, Producers,
    ProgressMode, Reduce, RemoteRegion, Request, Result, Secret, Signal, Signals, Slice, Stale, Wait,
    register_transport, transport_names,
};
pub use window::{DEFAULT_SIGNALS, Slot, Window, WindowBuilder};
