//! The operations of RWKV-7 from candle's elementary ones.

use candle_core::{D, Result, Tensor};

use crate::ops::{
    Pack,
    activation::Activation,
    rwkv7::{FASTEST_DECAY, WIDTH},
};

/// [`crate::ops::group_norm`], from candle's elementary operations.
pub(crate) fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    epsilon: f32,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let x = x.reshape((rows, groups, width / groups))?;
    let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(epsilon))?;
    let normed = x.broadcast_div(&variance.sqrt()?)?.reshape((rows, width))?;
    normed.broadcast_mul(weight)?.broadcast_add(bias)
}

/// [`crate::ops::token_shift`], from candle's elementary operations.
pub(crate) fn token_shift(x: &Tensor, mix: &Tensor, pack: &Pack) -> Result<Tensor> {
    let width = x.dim(1)?;
    let first = Tensor::zeros((1, width), x.dtype(), x.device())?;
    let mut before = Vec::new();
    for rows in pack.sequences() {
        before.push(first.clone());
        before.push(x.narrow(0, rows.start, rows.len() - 1)?);
    }
    let before = Tensor::cat(&before, 0)?;
    x + (before - x)?.broadcast_mul(&mix.flatten_all()?)?
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

/// [`crate::ops::activate`], from candle's elementary operations.
pub(crate) fn activate(
    x: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let x = match bias {
        Some(bias) => x.broadcast_add(bias)?,
        None => x.clone(),
    };
    match activation {
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(&x),
        Activation::Identity => Ok(x),
        Activation::SquaredRelu => x.relu()?.sqr(),
    }
}

/// [`crate::ops::normed_key`], from candle's elementary operations.
pub(crate) fn normed_key(key: &Tensor, weight: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, width) = key.dims2()?;
    let key = key
        .broadcast_mul(weight)?
        .reshape((rows, heads, width / heads))?;
    let length = key.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    key.broadcast_div(&length)?.reshape((rows, width))
}

/// [`crate::ops::rated_key`], from candle's elementary operations.
pub(crate) fn rated_key(key: &Tensor, rate: &Tensor, weight: &Tensor) -> Result<Tensor> {
    key * ((rate - 1.0)?.broadcast_mul(weight)? + 1.0)?
}

/// [`crate::ops::bonus`], from candle's elementary operations.
pub(crate) fn bonus(inputs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (_, rows, width) = inputs.dims3()?;
    let (heads, size) = weight.dims2()?;
    let split = |index| inputs.get(index)?.reshape((rows, heads, size));
    let (query, key, value) = (split(0)?, split(1)?, split(2)?);
    let factor = (query * key)?
        .broadcast_mul(weight)?
        .sum_keepdim(D::Minus1)?;
    value.broadcast_mul(&factor)?.reshape((rows, width))
}

/// [`crate::ops::recurrence`], one token after another.
pub(crate) fn recurrence(inputs: &Tensor, pack: &Pack) -> Result<Tensor> {
    let (_, rows, width) = inputs.dims3()?;
    let heads = width / WIDTH;
    let split = |index| inputs.get(index)?.reshape((rows, heads, WIDTH));
    let (query, decay, key, value, forgotten, rate) = (
        split(0)?,
        split(1)?,
        split(2)?,
        split(3)?,
        split(4)?,
        split(5)?,
    );
    let decay = (sigmoid(&decay)? * -f64::from(FASTEST_DECAY))?.exp()?;
    let replaced = (&forgotten * rate)?;
    let mut answers = Vec::with_capacity(rows);
    for sequence in pack.sequences() {
        let mut state = Tensor::zeros((heads, WIDTH, WIDTH), inputs.dtype(), inputs.device())?;
        for row in sequence {
            let column = |x: &Tensor| x.get(row)?.unsqueeze(2);
            let across = |x: &Tensor| x.get(row)?.unsqueeze(1);
            let lost = state.matmul(&column(&forgotten)?)?;
            state = (state.broadcast_mul(&across(&decay)?)? - lost.matmul(&across(&replaced)?)?)?;
            state = (state + column(&value)?.matmul(&across(&key)?)?)?;
            answers.push(state.matmul(&column(&query)?)?.reshape((1, width))?);
        }
    }
    Tensor::cat(&answers, 0)
}
