//! Transfers of many parts.

use super::*;

impl PeerRegion {
    /// Writes consecutive bytes of `from` to the parts of a list. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::Invalid`] when `from` has not the size of the list.
    pub fn put_list(&self, list: &List, from: &[u8]) -> Result<()> {
        const OPERATION: &str = "put_list";
        let way = self.way(OPERATION, Access::WRITE)?;
        self.check_list(OPERATION, list, from.len())?;
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: a list knows its end and its size, and `from` has this size (checked); it is valid, and apart from
                // exposed memory, into which no reference exists.
                unsafe { exposed.write_parts(list.parts(), list.end(), from.as_ptr(), from.len()) }
            }
            Way::Posted(endpoint, key) => {
                let mut sent = false;
                list.pieces(Source::MOST_BORROWED as u64, MOST_PARTS, |parts, at, size| {
                    let bytes = &from[at as usize..(at + size) as usize];
                    let token = Token::late(self.shared.late.clone(), OPERATION);
                    let posted = self.post(&endpoint, OPERATION, token, || Op {
                        key,
                        offset: 0,
                        action: Action::PutList(parts, Source::Borrowed(bytes)),
                        signal: None,
                        silent: true,
                    });
                    let result = posted.map_err(|e| partly(e, sent));
                    sent = true;
                    result
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
        self.check_not_own(OPERATION, &from, list.parts())?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_list_apart(OPERATION, &exposed, list, &from)?;
                // SAFETY: a list knows its end and its size, and the slice has this size and is apart (checked).
                let done =
                    unsafe { exposed.write_parts(list.parts(), list.end(), from.as_ptr(), from.size()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(endpoint, key) => {
                self.list_request(OPERATION, &endpoint, list, &from, |parts, slice| Op {
                    key,
                    offset: 0,
                    action: Action::PutList(parts, Source::Owned(slice)),
                    signal: None,
                    silent: false,
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    /// Reads the parts of a list into consecutive bytes of `into`. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get`]; [`Error::Invalid`] when `into` has not the size of the list.
    pub fn get_list(&self, list: &List, into: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "get_list";
        let way = self.way(OPERATION, Access::READ)?;
        self.check_list(OPERATION, list, into.len())?;
        match way {
            Way::Mapped(exposed, ..) => {
                // SAFETY: as in `put_list`.
                unsafe { exposed.read_parts(list.parts(), list.end(), into.as_mut_ptr(), into.len()) }
            }
            Way::Posted(..) => {
                self.may_wait(OPERATION)?;
                let bounce = self.shared.peer.0.context.bounce(into.len())?;
                let slice = bounce.slice(0..into.len())?;
                self.wait(self.get_list_into(list, slice.clone())?)?;
                slice.read(0, into)?;
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
        self.check_not_own(OPERATION, &into, list.parts())?;
        match way {
            Way::Mapped(exposed, ..) => {
                self.check_list_apart(OPERATION, &exposed, list, &into)?;
                // SAFETY: as in `put_list_from`, and the slice may be written (checked).
                let done =
                    unsafe { exposed.read_parts(list.parts(), list.end(), into.as_ptr(), into.size()) };
                self.resolved(OPERATION, done.map(|()| 0))
            }
            Way::Posted(endpoint, key) => {
                self.list_request(OPERATION, &endpoint, list, &into, |parts, slice| Op {
                    key,
                    offset: 0,
                    action: Action::GetList(parts, slice),
                    signal: None,
                    silent: false,
                })
            }
            Way::Closed => Err(closed(OPERATION)),
        }
    }

    pub(super) fn check_list(&self, operation: &'static str, list: &List, size: usize) -> Result<()> {
        self.check_range(operation, 0, list.end())?;
        if list.size() != size as u64 {
            return Err(Error::invalid(
                operation,
                format!("{size} bytes are given for a list of {}", list.size()),
            ));
        }
        Ok(())
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
        for &(offset, size) in list.parts() {
            check_apart(operation, (ours, slice.size()), (theirs + offset as usize, size as usize))?;
        }
        Ok(())
    }

    pub(super) fn list_request(
        &self,
        operation: &'static str,
        endpoint: &Arc<dyn Endpoint>,
        list: &List,
        slice: &Slice,
        make: impl Fn(&[(u64, u64)], Slice) -> Op<'_>,
    ) -> Result<Request> {
        // One part of the flight is ours, until every piece is posted.
        let flight = Flight::new(operation, 1, &self.shared.late);
        let mut begun = false;
        let posted = list.pieces(BOUNCE as u64, MOST_PARTS, |parts, at, size| {
            let piece = slice.slice(at as usize..(at + size) as usize)?;
            flight.add_part();
            self.post_flight(endpoint, &flight, || make(parts, piece.clone())).inspect_err(|e| {
                flight.complete(Err(e.clone()));
            })?;
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
