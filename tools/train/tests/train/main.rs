//! The training program and what it is made of.

mod judge;
mod kill;
mod training;
