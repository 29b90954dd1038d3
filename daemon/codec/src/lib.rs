//! Weights coded without loss or to a chosen rate, and the container they are kept in.
