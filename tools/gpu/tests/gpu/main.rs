//! The program as others run it, and the operations that it checks, on the stand-in for NVIDIA's libraries
//! (`daemon/cuda/stand-in`).

mod commands;
mod ends;
mod operations;
mod support;
mod whole;
