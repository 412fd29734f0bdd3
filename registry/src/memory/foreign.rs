/// Foreign memory.
#[derive(Debug)]
pub struct Foreign;
