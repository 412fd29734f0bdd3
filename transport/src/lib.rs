//! Moves bytes between registered regions: [`Peer`] and its [`PeerRegion`]s, over shared memory, TCP, or a transport of
//! your own.
//!
//! | what | means |
//! |---|---|
//! | *completed* | the source buffer may be reused |
//! | *delivered* | the bytes are in the target's memory, visible to whoever synchronises with it |
//! | *signalled* | the target can know |
//! | *fence* | orders, never waits |
//! | *flush* | waits until delivered |
//!
//! A [`Context`] is one process's opened transports. One side registers memory and hands out its [`RemoteRegion`], as text
//! if need be; the other connects, opens it, and puts and gets. Both sides in one process:
//! ```
//! use std::time::Duration;
//! use transom_transport::{Access, Context, RemoteRegion};
//!
//! let owner = Context::builder().transports("shm").build()?;
//! let region = owner.allocate(4096, 1)?;
//! let text = region.remote(Access::ALL)?.to_string();
//!
//! let other = Context::builder().transports("shm").build()?;
//! let remote: RemoteRegion = text.parse()?;
//! let part = other.connect(&remote)?.open(&remote)?;
//! part.put(0, b"hello")?;
//! part.signal(0, 1)?;
//!
//! // Whoever sees the signal sees every put before it.
//! owner.signals(&region).signal(0)?.wait_at_least(1, Duration::from_secs(10))?;
//! let mut seen = [0; 5];
//! region.read(0, &mut seen)?;
//! assert_eq!(&seen, b"hello");
//! # Ok::<(), transom_transport::Error>(())
//! ```
//!
//! Where to read on:
//! - [`PeerRegion`]: the contract of each call; [`Request`]: those that are awaited;
//! - [`Context`]: which transports, which secret, which deadline;
//! - [`backend`]: to write a transport; [`sim`]: to try a program against everything that the contract leaves open;
//! - ranks, windows and teams are in the crate `transom`.

pub mod backend;
pub mod clock;
mod context;
mod fork;
pub mod handshake;
mod hidden;
mod late;
mod list;
mod local;
mod peer;
pub mod progress;
mod region;
mod request;
pub mod route;
pub mod secret;
mod shm;
mod signal;
pub mod sim;
mod spec;
mod sync;
#[doc(hidden)]
pub mod tcp;
pub mod token;

pub use context::{Context, ContextBuilder, DEFAULT_TIMEOUT, Opener};
pub use list::List;
pub use peer::Peer;
pub use progress::{ProgressMode, Wait};
pub use region::PeerRegion;
pub use request::Request;
pub use secret::Secret;
#[doc(hidden)]
pub use shm::fuzz_shm_message;
pub use signal::{Producers, Signal, Signals};
pub use spec::{Open, VARIABLE, register_transport, transport_names};
#[doc(hidden)]
pub use tcp::{fuzz_control as fuzz_tcp_control, fuzz_frame as fuzz_tcp_frame};
pub use transom_registry::element::{Atomic, Dtype, Element, Reduce};
pub use transom_registry::{
    Access, Cause, Error, Failure, File, Foreign, Host, HostBuilder, Incarnation, Kind, Memory, MemoryRegion,
    Outcome, RemoteRegion, Result, Slice, Stale,
};
