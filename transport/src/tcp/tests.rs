//! What the transport promises, over loopback.
