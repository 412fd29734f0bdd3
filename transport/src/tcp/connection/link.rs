//! One user of a connection: what an endpoint is here.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Instant;

use tokio::sync::oneshot;
use transom_registry::{Cause, Error, Failure, Incarnation, Outcome, RemoteRegion};

use super::Connection;
use crate::backend::{Attached, Endpoint, Op, Pending, Posted};
use crate::tcp::control::Attach;
use crate::tcp::flights::Expects;
use crate::tcp::frame::{Header, Opcode, flag};
use crate::token::Token;

/// One user of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Arc<Connection>,
    closed: AtomicBool,
}

impl Link {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, closed: AtomicBool::new(false) }
    }

    fn let_go(&self) {
        // A fork shares the stream, and must not end it for its parent.
        if !self.closed.swap(true, Ordering::AcqRel) && !crate::fork::is_child() {
            self.connection.release();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Endpoint for Link {
    fn peer(&self) -> Incarnation {
        self.connection.peer
    }

    fn transport(&self) -> &str {
        "tcp"
    }

    fn attach(&self, region: &RemoteRegion, _: Instant) -> Pending<Attached> {
        let (sender, receiver) = oneshot::channel();
        let mut out = self.connection.out.lock();
        if let Some(failure) = out.over.as_ref().or(self.connection.failure.get()) {
            let error = Error::failed("open", Outcome::NotApplied, failure.clone());
            return Box::pin(std::future::ready(Err(error)));
        }
        let mut header = Header::new(Opcode::Attach);
        header.flags = flag::LAST | flag::ACK_NOW;
        let (first, last) = out.whole(header, &Attach::new(region).encode());
        out.flights.add(first, last, Expects::Handle(sender));
        self.connection.watch(&mut out);
        drop(out);
        let connection = self.connection.clone();
        Box::pin(async move {
            match receiver.await {
                Ok(handle) => Ok(Attached { key: handle?.into(), mapped: None }),
                Err(_) => {
                    let failure = connection.failure.get().cloned();
                    let failure = failure.unwrap_or_else(|| {
                        Failure::new(Some(connection.peer), Cause::ConnectionLost, "the answer was lost")
                    });
                    Err(Error::failed("open", Outcome::NotApplied, failure))
                }
            }
        })
    }

    fn detach(&self, key: u64) {
        if crate::fork::is_child() {
            return;
        }
        let mut out = self.connection.out.lock();
        if out.over.is_none() {
            let header = Header { handle: key as u32, ..Header::new(Opcode::Detach) };
            out.whole(header, &[]);
            self.connection.watch(&mut out);
        }
    }

    fn post(&self, op: Op<'_>, token: Token) -> Posted {
        self.connection.post(op, token)
    }

    fn room(&self, waker: &Waker) -> bool {
        let mut out = self.connection.out.lock();
        let room = out.has_room() || out.over.is_some();
        if !room {
            out.waiting.push(waker.clone());
        }
        room
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.connection.failure.get().cloned()
    }

    fn close(&self) {
        self.let_go();
    }
}
