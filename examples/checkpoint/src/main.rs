//! The program `checkpoint`.
#![forbid(unsafe_code)]

fn main() {}
