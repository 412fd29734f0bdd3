//! Transfers of many parts.

use super::*;
use crate::list::{Batch, overlap};
use crate::token::Scatter;

/// Parts whose bytes follow each other here are moved without a copy where they are as many as this.
const DIRECT: u64 = 64 << 10;

/// Begins one operation of a flight, for a call that began then.
type Begin<'a> = dyn FnMut(&Arc<Flight>, Option<Instant>) -> Result<()> + 'a;

impl PeerRegion {
    /// Writes bytes of `from` to the parts of a list: consecutive ones, or those at its places. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when `from` has not the size of the list, or its places are
    /// not inside.
    pub fn put_list(&self, list: &List, from: &[u8]) -> Result<()> {
        const OPERATION: &str = "put_list";
        let way = self.way(OPERATION, Access::WRITE)?;
        self.check_list(OPERATION, list, from.len())?;
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: `from` has what the list needs (checked); it is valid, and apart from exposed memory, into which no
                // reference exists.
                unsafe { write(&exposed, list, from.as_ptr()) }
            }
            Way::Posted(endpoint, key) => {
                let (mut sent, since) = (false, Some(Instant::now()));
                let mut post = |parts: &[(u64, u64)], bytes: &[u8]| {
                    let token = Token::late(self.shared.late.clone(), OPERATION);
                    let posted = self.post(&endpoint, OPERATION, token, since, || Op {
                        key,
                        offset: 0,
                        action: Action::PutList(parts, Source::Borrowed(bytes)),
                        signal: None,
                        silent: true,
                    });
                    let result = posted.map_err(|e| partly(e, sent));
                    sent = true;
                    result
                };
                let most = Source::MOST_BORROWED as u64;
                if list.places().is_none() {
                    return list.pieces(most, MOST_PARTS, |parts, at, size| post(parts, of(from, at, size)));
                }
                let mut gathered = Vec::new();
                list.batches(DIRECT, most, MOST_PARTS, |batch| match batch {
                    Batch::Run(parts, at, size) => post(parts, of(from, at, size)),
                    Batch::Staged(parts, places, _) => {
                        gathered.clear();
                        places.iter().for_each(|&(at, size)| gathered.extend_from_slice(of(from, at, size)));
                        post(parts, &gathered)
                    }
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// As [`PeerRegion::put_list`], from registered memory: the request resolves when all parts are delivered.
    ///
    /// # Errors
    /// As there.
    pub fn put_list_from(&self, list: &List, from: Slice) -> Result<Request> {
        const OPERATION: &str = "put_list";
        let way = self.way(OPERATION, Access::WRITE)?;
        self.check_list(OPERATION, list, from.size())?;
        self.check_list_not_own(OPERATION, &from, list)?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_list_apart(OPERATION, &exposed, list, &from)?;
                // SAFETY: the slice has what the list needs, and is apart (checked).
                let done = unsafe { write(&exposed, list, from.as_ptr()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(endpoint, key) => {
                if list.places().is_some() {
                    return self.scattered_request(OPERATION, list, |batch, flight, since| match batch {
                        Batch::Run(parts, at, size) => {
                            let piece = from.slice(at as usize..(at + size) as usize)?;
                            self.post_flight(&endpoint, flight, since, || {
                                put(key, parts, Source::Owned(piece.clone()))
                            })
                        }
                        Batch::Staged(parts, places, size) => {
                            let mut bytes = vec![0; size as usize];
                            let mut rest = &mut bytes[..];
                            for &(at, size) in places {
                                let (part, others) = rest.split_at_mut(size as usize);
                                from.read(at as usize, part)?;
                                rest = others;
                            }
                            self.post_flight(&endpoint, flight, since, || {
                                put(key, parts, Source::Borrowed(&bytes))
                            })
                        }
                    });
                }
                self.list_request(OPERATION, &endpoint, list, &from, |parts, slice| {
                    put(key, parts, Source::Owned(slice))
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Reads the parts of a list into `into`: one after the other, or at its places. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get`]; [`Error::Invalid`] when `into` has not the size of the list, its places are
    /// not inside, or overlap.
    pub fn get_list(&self, list: &List, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "get_list";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_list(OPERATION, list, into.len())?;
        list.check_into(OPERATION)?;
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: as in `put_list`.
                unsafe { read(&exposed, list, into.as_mut_ptr()) }
            }
            Way::Posted(endpoint, key) => {
                self.may_wait(OPERATION)?;
                let size = list.size() as usize;
                let bounce = self.shared.peer.0.context.bounce(size)?;
                let slice = bounce.slice(0..size)?;
                let since = Some(Instant::now());
                self.wait(self.get_packed(&endpoint, key, list, &slice)?, since)?;
                let mut at = 0;
                for (place, size) in list.own_parts() {
                    let (place, size) = (place as usize, size as usize);
                    slice.read(at, &mut into[place..place + size])?;
                    at += size;
                }
                self.shared.peer.0.context.give_bounce(bounce);
                Ok(())
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// As [`PeerRegion::get_list`], into registered memory: the request resolves when the bytes are there.
    ///
    /// # Errors
    /// As there.
    pub fn get_list_into(&self, list: &List, into: Slice) -> Result<Request> {
        const OPERATION: &str = "get_list";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_list(OPERATION, list, into.size())?;
        check_writable(OPERATION, &into)?;
        list.check_into(OPERATION)?;
        self.check_list_not_own(OPERATION, &into, list)?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_list_apart(OPERATION, &exposed, list, &into)?;
                // SAFETY: as in `put_list_from`, and the slice may be written (checked).
                let done = unsafe { read(&exposed, list, into.as_ptr()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(endpoint, key) => {
                if list.places().is_none() {
                    return self.get_packed(&endpoint, key, list, &into);
                }
                self.scattered_request(OPERATION, list, |batch, flight, since| match batch {
                    Batch::Run(parts, at, size) => {
                        let piece = into.slice(at as usize..(at + size) as usize)?;
                        self.post_flight(&endpoint, flight, since, || get(key, parts, piece.clone()))
                    }
                    Batch::Staged(parts, places, size) => {
                        let size = size as usize;
                        let from = self.shared.peer.0.context.bounce(size)?.slice(0..size)?;
                        let scatter =
                            Scatter { from: from.clone(), places: places.into(), into: into.clone() };
                        let token = Token::flight(flight.clone()).scatter(scatter);
                        self.post_token(&endpoint, OPERATION, token, since, || get(key, parts, from.clone()))
                    }
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    pub(super) fn check_list(&self, operation: &'static str, list: &List, size: usize) -> Result<()> {
        self.check_range(operation, 0, list.end())?;
        match list.places() {
            None if list.size() != size as u64 => Err(Error::invalid(
                operation,
                format!("{size} bytes are given for a list of {}", list.size()),
            )),
            Some(_) if list.own_end() > size as u64 => Err(Error::invalid(
                operation,
                format!("{size} bytes are given for a list that reaches to {}", list.own_end()),
            )),
            _ => Ok(()),
        }
    }

    /// As [`check_not_own`](Self::check_not_own), for each part on both sides.
    fn check_list_not_own(&self, operation: &'static str, slice: &Slice, list: &List) -> Result<()> {
        let remote = &self.shared.remote;
        if list.places().is_none() || !slice.region().is_named_by(remote) {
            return self.check_not_own(operation, slice, list.parts());
        }
        let ours = list.own_parts().map(|(at, size)| (slice.offset() as u64 + at, size));
        let theirs = list.parts().iter().map(|(at, size)| (remote.offset + at, *size));
        parts_apart(operation, ours, theirs)
    }

    /// Gets a list into consecutive bytes.
    fn get_packed(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        key: u64,
        list: &List,
        into: &Slice,
    ) -> Result<Request> {
        self.list_request("get_list", endpoint, list, into, |parts, slice| get(key, parts, slice))
    }

    /// As [`check_apart`](Self::check_apart), for each part of a list: before the first byte moves.
    pub(super) fn check_list_apart(
        &self,
        operation: &'static str,
        target: &Exposed,
        list: &List,
        slice: &Slice,
    ) -> Result<()> {
        let (ours, theirs) = (slice.as_ptr().addr(), target.as_ptr().addr());
        // Mostly the whole of one is apart from the whole of the other.
        if check_apart(operation, (ours, slice.size()), (theirs, list.end() as usize)).is_ok() {
            return Ok(());
        }
        let ours = list.own_parts().map(|(at, size)| (ours as u64 + at, size));
        parts_apart(operation, ours, list.parts().iter().map(|(at, size)| (theirs as u64 + at, *size)))
    }

    fn list_request(
        &self,
        operation: &'static str,
        endpoint: &Arc<dyn Endpoint>,
        list: &List,
        slice: &Slice,
        make: impl for<'b> Fn(&'b [(u64, u64)], Slice) -> Op<'b>,
    ) -> Result<Request> {
        self.many(operation, |post| {
            list.pieces(BOUNCE as u64, MOST_PARTS, |parts, at, size| {
                let piece = slice.slice(at as usize..(at + size) as usize)?;
                post(&mut |flight, since| {
                    self.post_flight(endpoint, flight, since, || make(parts, piece.clone()))
                })
            })
        })
    }

    /// One request for the operations of a scattered list.
    fn scattered_request(
        &self,
        operation: &'static str,
        list: &List,
        begin: impl Fn(Batch<'_>, &Arc<Flight>, Option<Instant>) -> Result<()>,
    ) -> Result<Request> {
        self.many(operation, |post| {
            list.batches(DIRECT, Source::MOST_BORROWED as u64, MOST_PARTS, |batch| {
                let mut batch = Some(batch);
                post(&mut |flight, since| batch.take().map_or(Ok(()), |batch| begin(batch, flight, since)))
            })
        })
    }

    /// One request for many operations: `all` hands each to its argument, which begins it.
    fn many(
        &self,
        operation: &'static str,
        all: impl FnOnce(&mut dyn FnMut(&mut Begin<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<Request> {
        // One part of the flight is ours, until every piece is posted.
        let flight = Flight::new(operation, 1, &self.shared.late);
        let mut begun = false;
        let since = Some(Instant::now());
        let posted = all(&mut |begin| {
            flight.add_part();
            begin(&flight, since).inspect_err(|e| flight.complete(Err(e.clone())))?;
            begun = true;
            Ok(())
        });
        // Nothing was begun: the call says so, and no request does.
        if !begun && let Err(error) = posted {
            return Err(error);
        }
        flight.complete(posted.map(|()| 0));
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
    }
}

fn put<'a>(key: u64, parts: &'a [(u64, u64)], from: Source<'a>) -> Op<'a> {
    Op { key, offset: 0, action: Action::PutList(parts, from), signal: None, silent: false }
}

fn get(key: u64, parts: &[(u64, u64)], into: Slice) -> Op<'_> {
    Op { key, offset: 0, action: Action::GetList(parts, into), signal: None, silent: false }
}

fn of(bytes: &[u8], at: u64, size: u64) -> &[u8] {
    &bytes[at as usize..(at + size) as usize]
}

fn parts_apart(
    operation: &'static str,
    ours: impl Iterator<Item = (u64, u64)>,
    theirs: impl Iterator<Item = (u64, u64)>,
) -> Result<()> {
    match overlap(ours, theirs) {
        None => Ok(()),
        Some(_) => Err(Error::invalid(operation, "source and target overlap")),
    }
}

/// Writes the parts of a list.
///
/// # Safety
/// `from` is valid for reads of what the list needs, and apart from its parts.
unsafe fn write(to: &Exposed, list: &List, from: *const u8) -> Result<()> {
    let (parts, end, total) = (list.parts(), list.end(), list.size() as usize);
    match list.places() {
        // SAFETY: a list knows its end and its size; the rest is the caller's promise.
        None => unsafe { to.write_parts(parts, end, from, total) },
        // SAFETY: as above, and it has a place for each part, which ends where the list says.
        Some(places) => unsafe { to.write_scattered(parts, places, end, from, total) },
    }
}

/// Reads the parts of a list.
///
/// # Safety
/// `into` is valid for writes of what the list needs, and apart from its parts.
unsafe fn read(from: &Exposed, list: &List, into: *mut u8) -> Result<()> {
    let (parts, end, total) = (list.parts(), list.end(), list.size() as usize);
    match list.places() {
        // SAFETY: as in `write`.
        None => unsafe { from.read_parts(parts, end, into, total) },
        // SAFETY: as in `write`.
        Some(places) => unsafe { from.read_scattered(parts, places, end, into, total) },
    }
}
