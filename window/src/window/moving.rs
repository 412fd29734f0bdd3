//! Puts, gets and lists, with and without a signal.

use super::*;

impl Window {
    /// Writes `from` at `offset` of a rank's part. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn put(&self, rank: Rank, offset: u64, from: &[u8]) -> Result<()> {
        if self.route(rank).is_some_and(|route| route.put(offset, from)) {
            Ok(())
        } else {
            self.put_slow(rank, offset, from)
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn put_slow(&self, rank: Rank, offset: u64, from: &[u8]) -> Result<()> {
        self.tell(rank, self.find("put", rank)?.put(offset, from))
    }

    /// Reads into `into` from `offset` of a rank's part. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn get(&self, rank: Rank, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.route(rank).is_some_and(|route| route.get(offset, into)) {
            Ok(())
        } else {
            self.get_slow(rank, offset, into)
        }
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, rank: Rank, offset: u64, into: &mut [u8]) -> Result<()> {
        self.tell(rank, self.find("get", rank)?.get(offset, into))
    }

    /// Writes `from`, then adds `add` to a signal of that rank: see [`PeerRegion::put_signal`].
    ///
    /// # Errors
    /// As there; [`Error::NoSuchRank`].
    #[inline]
    pub fn put_signal(&self, rank: Rank, offset: u64, from: &[u8], signal: u32, add: u64) -> Result<()> {
        if let Some(route) = self.route(rank)
            && route.has_signal(signal)
            && route.put(offset, from)
        {
            match route.signal(signal, add) {
                Some(false) => return Ok(()),
                Some(true) => return self.ring(rank),
                None => {}
            }
        }
        self.put_signal_slow(rank, offset, from, signal, add)
    }

    #[cold]
    #[inline(never)]
    fn ring(&self, rank: Rank) -> Result<()> {
        self.find("signal", rank)?.ring();
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn put_signal_slow(&self, rank: Rank, offset: u64, from: &[u8], signal: u32, add: u64) -> Result<()> {
        self.tell(rank, self.find("put_signal", rank)?.put_signal(offset, from, signal, add))
    }

    /// Adds to a signal of a rank, after everything before it to that rank is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::signal`]; [`Error::NoSuchRank`].
    #[inline]
    pub fn send_signal(&self, rank: Rank, signal: u32, add: u64) -> Result<()> {
        match self.route(rank).and_then(|route| route.signal(signal, add)) {
            Some(false) => Ok(()),
            Some(true) => self.ring(rank),
            None => self.tell(rank, self.find("signal", rank)?.signal(signal, add)),
        }
    }

    /// Writes registered memory without a copy on this side. The request resolves when it is delivered.
    ///
    /// # Errors
    /// As for [`PeerRegion::put_from`]; [`Error::NoSuchRank`].
    pub fn put_from(&self, rank: Rank, offset: u64, from: Slice) -> Result<Request> {
        self.request("put", rank, |part| part.put_from(offset, from))
    }

    /// As [`Window::put_from`], then adds to a signal.
    ///
    /// # Errors
    /// As there.
    pub fn put_signal_from(
        &self,
        rank: Rank,
        offset: u64,
        from: Slice,
        signal: u32,
        add: u64,
    ) -> Result<Request> {
        self.request("put_signal", rank, |part| part.put_signal_from(offset, from, signal, add))
    }

    /// Reads into registered memory. The request resolves when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get_into`]; [`Error::NoSuchRank`].
    pub fn get_into(&self, rank: Rank, offset: u64, into: Slice) -> Result<Request> {
        self.request("get", rank, |part| part.get_into(offset, into))
    }

    /// Writes bytes to the parts of a list: consecutive ones, or those at its places. Returns when `from` may be reused.
    ///
    /// # Errors
    /// As for [`PeerRegion::put_list`]; [`Error::NoSuchRank`].
    pub fn put_list(&self, rank: Rank, list: &List, from: &[u8]) -> Result<()> {
        self.tell(rank, self.find("put_list", rank)?.put_list(list, from))
    }

    /// As [`Window::put_list`], from registered memory.
    ///
    /// # Errors
    /// As there.
    pub fn put_list_from(&self, rank: Rank, list: &List, from: Slice) -> Result<Request> {
        self.request("put_list", rank, |part| part.put_list_from(list, from))
    }

    /// Reads the parts of a list into consecutive bytes, or to its places. Returns when the bytes are there.
    ///
    /// # Errors
    /// As for [`PeerRegion::get_list`]; [`Error::NoSuchRank`].
    pub fn get_list(&self, rank: Rank, list: &List, into: &mut [u8]) -> Result<()> {
        self.tell(rank, self.find("get_list", rank)?.get_list(list, into))
    }

    /// As [`Window::get_list`], into registered memory.
    ///
    /// # Errors
    /// As there.
    pub fn get_list_into(&self, rank: Rank, list: &List, into: Slice) -> Result<Request> {
        self.request("get_list", rank, |part| part.get_list_into(list, into))
    }
}
