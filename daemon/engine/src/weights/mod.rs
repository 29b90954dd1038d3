//! The vocabulary of everything that has to do with weights: which tensors a model has, in which groups they live, stream and
//! change, and the numbers that they are described by.

mod limits;
mod rope;
mod shape;
mod unit;

pub use self::{
    limits::{CONTEXT_MAX, END_TOKENS_MAX, HEAD_DIM_MAX, WIDTH_MAX},
    rope::{Llama3Scaling, Rope},
    shape::{Naming, Shape},
    unit::{Part, TensorSpec, Unit},
};
