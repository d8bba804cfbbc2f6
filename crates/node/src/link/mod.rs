//! Connections between nodes: bytes in, events out; messages in, bytes out.
