/// Host memory.
#[derive(Debug)]
pub struct Host;
/// Builds [`Host`] memory.
#[derive(Debug)]
pub struct HostBuilder;
