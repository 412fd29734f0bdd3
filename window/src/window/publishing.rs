//! Parts that processes outside of the team open.

use super::*;

impl Window {
    /// Tells this rank's part to processes outside of the team, in the store under this name: late readers, standbys and
    /// restarted programs open it by [`Window::open_published`].
    ///
    /// # Errors
    /// As for [`Store::set`]; [`Error::Access`].
    pub fn publish(&self, store: &Store, name: &str, access: Access) -> Result<()> {
        let remote = self.local.export(0..self.local.size(), access)?;
        store.set(&published(name, self.team.rank()), &remote.to_bytes())
    }

    /// The async form of [`Window::publish`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the part published or not.
    pub async fn publish_async(&self, store: &Store, name: &str, access: Access) -> Result<()> {
        let remote = self.local.export(0..self.local.size(), access)?;
        store.set_async(&published(name, self.team.rank()), &remote.to_bytes()).await
    }

    /// Opens one rank's part of a window that was published under this name, from outside of its team. Waits until it is
    /// there.
    ///
    /// # Errors
    /// [`Error::Expired`]; as for [`Context::connect`] and [`transom_transport::Peer::open`].
    pub fn open_published(
        context: &Context,
        store: &Store,
        name: &str,
        rank: Rank,
        timeout: Duration,
    ) -> Result<PeerRegion> {
        let opening = Self::open_published_async(context, store, name, rank, timeout);
        context.block_on("open_published", timeout.saturating_add(context.timeout()), opening)?
    }

    /// The async form of [`Window::open_published`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up.
    pub async fn open_published_async(
        context: &Context,
        store: &Store,
        name: &str,
        rank: Rank,
        timeout: Duration,
    ) -> Result<PeerRegion> {
        let remote = RemoteRegion::from_bytes(&store.get_async(&published(name, rank), timeout).await?)?;
        context.connect_async(&remote).await?.open_async(&remote).await
    }
}

fn published(name: &str, rank: Rank) -> String {
    format!("published/{name}/{rank}")
}
