//! Moves bytes between registered regions.
