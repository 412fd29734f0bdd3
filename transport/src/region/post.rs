//! Handing operations to an endpoint, and waiting for them.

use super::*;

impl PeerRegion {
    pub(super) fn wait(&self, request: Request) -> Result<u64> {
        match request.wait_timeout(self.timeout) {
            Err(Error::Expired { operation, rank, after, .. }) => Err(Error::Expired {
                operation,
                rank,
                after,
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
        self.post_flight(endpoint, &flight, make)?;
        Ok(Request::new(flight, self.shared.peer.0.context.progress.clone()))
    }

    pub(super) fn post_flight<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        flight: &Arc<Flight>,
        make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        self.post_token(endpoint, flight.operation(), Token::flight(flight.clone()), make)
    }

    /// Posts one operation whose outcome its token tells to somebody.
    pub(super) fn post_token<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        token: Token,
        mut make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        let mut token = Some(token);
        let posted = self.until_posted(operation, || match endpoint.post(make(), token.take()?) {
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

    /// Posts one operation that nobody awaits.
    pub(super) fn post<'a>(
        &self,
        endpoint: &Arc<dyn Endpoint>,
        operation: &'static str,
        token: Token,
        mut make: impl FnMut() -> Op<'a>,
    ) -> Result<()> {
        let mut token = Some(token);
        let posted = self.until_posted(operation, || match endpoint.post(make(), token.take()?) {
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

    pub(super) fn until_posted(
        &self,
        operation: &'static str,
        post: impl FnMut() -> Option<Result<()>>,
    ) -> Result<()> {
        let progress = &self.shared.peer.0.context.progress;
        progress.drive_in_begin();
        match progress.block_until(operation, self.timeout, post)? {
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
        for (index, piece) in from.chunks(Source::MOST_BORROWED).enumerate() {
            let at = (index * Source::MOST_BORROWED) as u64;
            let token = Token::late(self.shared.late.clone(), operation);
            self.post(endpoint, operation, token, || make(at, piece, index + 1 == count))
                .map_err(|e| partly(e, index > 0))?;
        }
        Ok(())
    }
}
