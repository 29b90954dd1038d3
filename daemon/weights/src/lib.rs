//! The vocabulary of everything that has to do with weights: which tensors a model has, in which groups they live, stream and
//! change, and the numbers that they are described by.

mod coded;
pub mod compression;
pub mod decoded;
pub mod layout;
mod limits;
mod rope;
mod shape;
mod storage;
mod unit;
mod view;

pub use self::{
    coded::{
        CodeShares, CodedTensor, Damaged, OpenRows, chunk_at, coding_of, number_of, open_rows,
    },
    limits::{CONTEXT_MAX, END_TOKENS_MAX, HEAD_DIM_MAX, WIDTH_MAX},
    rope::{Llama3Scaling, Rope},
    shape::{Naming, Shape},
    storage::{Coding, SourceTensor, Storage, TensorPlan, Tier, UnitPlan, units},
    unit::{Part, TensorSpec, Unit},
    view::{CodedOnCard, CodedRows, Data, OnCard, Weight},
};
