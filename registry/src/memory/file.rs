/// A file.
#[derive(Debug)]
pub struct File;
