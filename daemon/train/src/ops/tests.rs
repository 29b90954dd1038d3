//! Each operation and its gradients against the same thing written with candle's elementary operations.

use candle_core::{D, DType, Device, Result, Tensor, Var};

use super::{attention, cross_entropy, gated, linear, rms_norm, rotate};
use crate::random::Random;

/// Largest difference allowed between sums taken in different orders, for values of size one.
const TOLERANCE: f32 = 2e-5;

// Large enough for the kernels that work on sixteen numbers at a time, and odd enough to leave a rest.
const LENGTH: usize = 37;
const HEADS: usize = 2;
const HEAD_WIDTH: usize = 20;
const WIDTH: usize = HEADS * HEAD_WIDTH;

fn variable(stream: u64, shape: &[usize]) -> Var {
    let mut random = Random::new(11, stream);
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| random.normal() as f32)
        .collect();
    Var::from_vec(values, shape, &Device::Cpu).expect("shape fits")
}

fn assert_close(left: &Tensor, right: &Tensor, what: &str) {
    let difference = (left - right)
        .and_then(|d| d.abs()?.max_all()?.to_scalar::<f32>())
        .expect("same shape");
    let size = right
        .abs()
        .and_then(|r| r.max_all()?.to_scalar::<f32>())
        .expect("numbers");
    assert!(
        difference <= TOLERANCE * size.max(1.0),
        "{what} differs by {difference}"
    );
}

/// Compares results, and the gradients of a sum in which every result has another weight.
fn assert_same(
    inputs: &[&Var],
    ours: impl Fn() -> Result<Tensor>,
    plain: impl Fn() -> Result<Tensor>,
) {
    let (ours, plain) = (ours().expect("ours"), plain().expect("plain"));
    assert_close(&ours, &plain, "result");
    let weights = variable(99, ours.dims());
    let gradients = |result: &Tensor| (result * weights.as_tensor())?.sum_all()?.backward();
    let (ours, plain) = (
        gradients(&ours).expect("ours"),
        gradients(&plain).expect("plain"),
    );
    for (index, input) in inputs.iter().enumerate() {
        let (ours, plain) = (
            ours.get(input).expect("gradient"),
            plain.get(input).expect("gradient"),
        );
        assert_close(ours, plain, &format!("gradient {index}"));
    }
}

#[test]
fn linear_is_a_product_with_the_transpose() {
    let (x, weight) = (variable(1, &[5, WIDTH]), variable(2, &[6, WIDTH]));
    assert_same(
        &[&x, &weight],
        || linear(&x, &weight),
        || x.matmul(&weight.t()?),
    );
}

#[test]
fn the_norm_divides_by_the_root_mean_square() {
    let (x, weight) = (variable(1, &[5, WIDTH]), variable(2, &[WIDTH]));
    let plain = || {
        let mean_square = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?;
        x.broadcast_div(&mean_square.sqrt()?)?
            .broadcast_mul(&weight)
    };
    assert_same(&[&x, &weight], || rms_norm(&x, &weight, 1e-5), plain);
}

#[test]
fn rotation_turns_pairs_of_half_a_head_apart() {
    let x = variable(1, &[3 * LENGTH, WIDTH]);
    let plain = || {
        let mut cos = Vec::new();
        let mut sin = Vec::new();
        for position in 0..LENGTH {
            for index in 0..HEAD_WIDTH {
                let half = HEAD_WIDTH / 2;
                let frequency = 100f64.powf(-((index % half) as f64) / half as f64);
                let angle = position as f64 * frequency;
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
        let cos = Tensor::from_vec(cos, (1, LENGTH, 1, HEAD_WIDTH), &Device::Cpu)?;
        let sin = Tensor::from_vec(sin, (1, LENGTH, 1, HEAD_WIDTH), &Device::Cpu)?;
        let heads = x.reshape((3, LENGTH, HEADS, HEAD_WIDTH))?;
        let halves = heads.chunk(2, D::Minus1)?;
        let crossed = Tensor::cat(&[&halves[1].neg()?, &halves[0]], D::Minus1)?;
        (heads.broadcast_mul(&cos)? + crossed.broadcast_mul(&sin)?)?.reshape((3 * LENGTH, WIDTH))
    };
    assert_same(&[&x], || rotate(&x, LENGTH, HEADS, 100.0), plain);
}

#[test]
fn the_gate_goes_through_silu() {
    let (gate, up) = (variable(1, &[5, WIDTH]), variable(2, &[5, WIDTH]));
    assert_same(
        &[&gate, &up],
        || gated(&gate, &up),
        || gate.silu()? * up.as_tensor(),
    );
}

#[test]
fn attention_sees_the_whole_sequence_and_no_other() {
    let [query, key, value] = [1, 2, 3].map(|stream| variable(stream, &[3 * LENGTH, WIDTH]));
    let split = |x: &Tensor| {
        x.reshape((3, LENGTH, HEADS, HEAD_WIDTH))?
            .transpose(1, 2)?
            .contiguous()
    };
    let plain = || {
        let (query, key, value) = (split(&query)?, split(&key)?, split(&value)?);
        let scores = (query.matmul(&key.t()?)? / (HEAD_WIDTH as f64).sqrt())?;
        let scores = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let probabilities = scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)?;
        probabilities
            .matmul(&value)?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((3 * LENGTH, WIDTH))
    };
    assert_same(
        &[&query, &key, &value],
        || attention(&query, &key, &value, LENGTH, HEADS),
        plain,
    );
}

#[test]
fn the_loss_is_weighted_cross_entropy() {
    let logits = variable(1, &[4, 41]);
    let (targets, weights) = (vec![3, 0, 40, 3], vec![0.5, 1.0, 0.0, 20.0]);
    let plain = || {
        let exponentials = logits.exp()?;
        let log_sum = exponentials.sum_keepdim(D::Minus1)?.log()?;
        let targets = Tensor::from_slice(&targets, (4, 1), &Device::Cpu)?.to_dtype(DType::U32)?;
        let losses = (log_sum - logits.gather(&targets, 1)?)?;
        (losses.squeeze(1)? * Tensor::from_slice(&weights, 4, &Device::Cpu)?)?.sum_all()
    };
    assert_same(
        &[&logits],
        || cross_entropy(&logits, targets.clone(), weights.clone()),
        plain,
    );
}
