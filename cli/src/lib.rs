//! What the `transom` command does, for programs that do it themselves: a program that starts its own ranks, for one.

pub mod launch;
