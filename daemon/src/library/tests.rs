//! The library over folders that a test makes.
