//! Every kernel against plain loops, in shapes that tiles don't divide. Memory around a kernel's arguments holds NaN,
//! so that a read outside shows in the result; a write outside shows there.

mod compressed;
mod formats;
mod support;

mod attention;
mod backward;
mod decompress;
mod dequantize;
mod dictionary;
mod elements;
mod lm_head;
mod matmul;
mod rwkv7;
mod salience;
