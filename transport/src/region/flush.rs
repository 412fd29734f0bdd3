//! Order, completion and the end of use.

use super::*;

impl PeerRegion {
    /// Orders: everything before it on this region is delivered before anything after it. Never waits.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn fence(&self) -> Result<()> {
        if self.route().is_some_and(Route::flush) {
            return Ok(());
        }
        if let Way::Posted(endpoint, key) = self.way("fence", Access::NONE)? {
            endpoint.fence(key);
        }
        Ok(())
    }

    /// Waits until the way to the peer takes another operation: at once, unless its queue is full.
    ///
    /// For async code under a virtual clock, where a call that meets a full queue is [`Error::Blocking`] with nothing
    /// applied: await this, and call again.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`], [`Error::Forked`]; [`Error::Expired`] when it stays full until the deadline.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait, and nothing else.
    pub async fn ready(&self) -> Result<()> {
        const OPERATION: &str = "ready";
        let Way::Posted(endpoint, _) = self.way(OPERATION, Access::NONE)? else { return Ok(()) };
        let room =
            std::future::poll_fn(
                |cx| {
                    if endpoint.room(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
                },
            );
        match self.shared.peer.0.context.clock().timeout(self.timeout, room).await {
            Some(()) => self.way(OPERATION, Access::NONE).map(drop),
            None => Err(Error::Expired {
                operation: OPERATION,
                rank: None,
                after: self.timeout,
                detail: "the queue to the peer stayed full".into(),
                outcome: None,
            }),
        }
    }

    /// Makes a call that issues an operation, once the way to the peer takes one; makes it again where it met a full queue
    /// under a virtual clock.
    ///
    /// # Errors
    /// Those of [`PeerRegion::ready`] and of the call.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready drops the call with nothing issued.
    pub async fn with_room<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            self.ready().await?;
            match call() {
                Err(Error::Blocking { .. }) => {}
                called => return called,
            }
        }
    }

    /// Waits until everything that was begun on this region before, by any thread, is delivered.
    ///
    /// # Errors
    /// The first late failure since the last flush, with the count; [`Error::Failed`]; [`Error::Expired`]: flush again.
    #[inline]
    pub fn flush(&self) -> Result<()> {
        if self.route().is_some_and(Route::flush) { Ok(()) } else { self.flush_slow() }
    }

    /// The async form of [`PeerRegion::flush`], under the same deadline.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait, and nothing else.
    pub async fn flush_async(&self) -> Result<()> {
        let request = match self.begin_flush()? {
            Some(request) => request,
            None => return Ok(()),
        };
        let waited = self.shared.peer.0.context.clock().timeout(self.timeout, request).await;
        self.end_flush(waited)
    }

    /// Ends the use of the region: flushes, then gives the key back. Later calls are [`Error::Closed`].
    ///
    /// # Errors
    /// As for [`PeerRegion::flush`]; the region is closed in any case.
    pub fn close(&self) -> Result<()> {
        crate::fork::check("close")?;
        let flushed =
            if matches!(*self.shared.way.read(), Way::Closed) { return Ok(()) } else { self.flush() };
        self.shared.close();
        flushed
    }

    #[cold]
    #[inline(never)]
    pub(super) fn flush_slow(&self) -> Result<()> {
        self.may_wait("flush")?;
        let Some(request) = self.begin_flush()? else { return Ok(()) };
        let context = &self.shared.peer.0.context;
        let waited = context.progress.block_on("flush", self.timeout, request)?;
        self.end_flush(waited)
    }

    /// `None`: all is delivered already.
    pub(super) fn begin_flush(&self) -> Result<Option<Request>> {
        const OPERATION: &str = "flush";
        crate::fork::check(OPERATION)?;
        let way = self.shared.way.read().clone();
        match way {
            Way::Closed => Err(closed(OPERATION)),
            Way::Mapped(..) => {
                fence(Ordering::SeqCst);
                match self.shared.peer.failure() {
                    Some(failure) => Err(self
                        .shared
                        .late
                        .take()
                        .unwrap_or_else(|| Error::failed(OPERATION, Outcome::InDoubt, failure))),
                    None => self.shared.late.take().map_or(Ok(None), Err),
                }
            }
            Way::Posted(endpoint, key) => {
                if let Some(failure) = self.shared.peer.failure() {
                    return Err(self
                        .shared
                        .late
                        .take()
                        .unwrap_or_else(|| Error::failed(OPERATION, Outcome::InDoubt, failure)));
                }
                self.request(&endpoint, OPERATION, || Op {
                    key,
                    offset: 0,
                    action: Action::Flush,
                    signal: None,
                    silent: false,
                })
                .map(Some)
            }
        }
    }

    pub(super) fn end_flush(&self, waited: Option<Result<u64>>) -> Result<()> {
        let Some(flushed) = waited else {
            self.shared.peer.0.context.progress.check_open("flush")?;
            return Err(Error::Expired {
                operation: "flush",
                rank: None,
                after: self.timeout,
                detail: "not everything is delivered; flush again".into(),
                outcome: None,
            });
        };
        let Some(first) = self.shared.late.take() else { return flushed.map(drop) };
        // Told: the target may take operations again.
        if let Way::Posted(endpoint, key) = &*self.shared.way.read()
            && endpoint.failure().is_none()
        {
            let token = Token::late(self.shared.late.clone(), "resume");
            let op = Op { key: *key, offset: 0, action: Action::Resume, signal: None, silent: false };
            match endpoint.post(op, token) {
                Posted::Done(token, result) => token.complete(result),
                Posted::Pending => {}
                // The next flush finds the refusals, and tries again.
                Posted::Full(token) => token.cancel(),
            }
        }
        Err(first)
    }
}
