//! Every kernel against plain loops, in shapes that tiles don't divide. Memory around what a kernel is given holds no numbers,
//! so that a read outside shows in the result; a write outside shows there.

mod coded;
mod formats;
mod support;

mod attention;
mod decode;
mod dequantize;
mod elements;
mod head;
mod multiply;
mod palette;
mod salience;
