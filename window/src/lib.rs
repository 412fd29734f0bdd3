//! Registered memory windows into other processes.
