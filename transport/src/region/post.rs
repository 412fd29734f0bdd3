//! Handing operations to an endpoint, and waiting for them.

use super::*;

impl PeerRegion {
    /// What is left of the deadline of a call that began then; of one that begins now, all.
    fn left(&self, since: Option<Instant>) -> Duration {
        since.map_or(self.timeout, |since| self.timeout.saturating_sub(since.elapsed()))
    }

    /// Waits for a request of a borrowed call that began then.
    pub(super) fn wait(&self, request: Request, since: Option<Instant>) -> Result<u64> {
        match request.wait_timeout(self.left(since)) {
            Err(Error::Expired { operation, rank, .. }) => Err(Error::Expired {
                operation,
                rank,
                after: self.timeout,
                detail: "a borrowed call cannot be awaited again".into(),
                outcome: Some(Outcome::InDoubt),
            }),
            other => other,
        }
    }

    /// A request for an operation that ended inside the call. A failure is told at once, so that none is late.
    pub(super) fn resolved(&self, operation: &'static str, result: Result<u64>) -> Result<Request> {
        let flight = Flight::new(operation, 1, &self.shared.late);
        flight.complete(Ok(result?));
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
    }

    /// Posts one operation whose outcome a request tells.
    pub(super) fn request<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        make: impl FnMut() -> Op<'a>,
    ) -> Result<Request> {
        let flight = Flight::new(operation, 1, &self.shared.late);
        self.post_flight(endpoint, &flight, None, make)?;
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
    }

    pub(super) fn post_flight<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        flight: &Arc<Flight>,
        since: Option<Instant>,
        make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        self.post_token(endpoint, flight.operation(), Token::flight(flight.clone()), since, make)
    }

    /// Posts one operation whose outcome its token tells to somebody, for a call that began then.
    pub(super) fn post_token<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        token: Token,
        since: Option<Instant>,
        mut make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        let mut token = Some(token);
        let posted = self.until_posted(operation, since, || match endpoint.post(make(), token.take()?) {
            Posted::Done(token, result) => {
                token.complete(result);
                Some(Ok(()))
            }
            Posted::Pending => Some(Ok(())),
            Posted::Full(back) => {
                token = Some(back);
                None
            }
        });
        if let Some(token) = token {
            token.cancel();
        }
        posted
    }

    /// Posts one operation that nobody awaits, for a call that began then.
    pub(super) fn post<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        token: Token,
        since: Option<Instant>,
        mut make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        let mut token = Some(token);
        let posted = self.until_posted(operation, since, || match endpoint.post(make(), token.take()?) {
            Posted::Done(token, result) => {
                token.cancel();
                Some(result.map(drop))
            }
            Posted::Pending => Some(Ok(())),
            Posted::Full(back) => {
                token = Some(back);
                None
            }
        });
        if let Some(token) = token {
            token.cancel();
        }
        posted
    }

    fn until_posted(
        &self,
        operation: &'static str,
        since: Option<Instant>,
        post: impl FnMut() -> Option<Result<()>>,
    ) -> Result<()> {
        let progress = &self.shared.peer.0.context.progress;
        progress.drive_in_begin();
        match progress.block_until(operation, self.left(since), post)? {
            Some(result) => result,
            None => Err(Error::Expired {
                operation,
                rank: None,
                after: self.timeout,
                detail: "the queue to the peer stayed full".into(),
                outcome: Some(Outcome::NotApplied),
            }),
        }
    }

    /// Posts borrowed bytes in pieces that nobody awaits.
    pub(super) fn pieces<'a>(
        &self,
        operation: &'static str,
        endpoint: &Arc<dyn Endpoint>,
        from: &'a [u8],
        mut make: impl FnMut(u64, &'a [u8], bool) -> Op<'a>,
    ) -> Result<()> {
        let count = from.len().div_ceil(Source::MOST_BORROWED);
        let since = (count > 1).then(Instant::now);
        for (index, piece) in from.chunks(Source::MOST_BORROWED).enumerate() {
            let at = (index * Source::MOST_BORROWED) as u64;
            let token = Token::late(self.shared.late.clone(), operation);
            self.post(endpoint, operation, token, since, || make(at, piece, index + 1 == count))
                .map_err(|e| partly(e, index > 0))?;
        }
        Ok(())
    }
}
