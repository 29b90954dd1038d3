//! Each fused operation and its gradients against the same thing written with candle's elementary operations.

use candle_core::{Device, Result, Tensor, Var};

use super::{
    Pack, attention, cross_entropy, divergence, elementary, gated, linear, rms_norm, rotate,
};
use crate::random::Random;

/// Largest difference allowed between sums taken in different orders, for values of size one.
const TOLERANCE: f32 = 2e-5;

// Large enough for the kernels that work on sixteen elements at a time, and odd enough to leave a rest.
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

/// Three sequences of different lengths.
fn pack() -> Pack {
    Pack::new([LENGTH, 5, LENGTH + 12])
}

#[test]
fn linear_is_a_product_with_the_transpose() {
    let (x, weight) = (variable(1, &[5, WIDTH]), variable(2, &[6, WIDTH]));
    assert_same(
        &[&x, &weight],
        || linear(&x, &weight),
        || elementary::linear(&x, &weight),
    );
}

#[test]
fn the_norm_divides_by_the_root_mean_square() {
    let (x, weight) = (variable(1, &[5, WIDTH]), variable(2, &[WIDTH]));
    assert_same(
        &[&x, &weight],
        || rms_norm(&x, &weight, 1e-5),
        || elementary::rms_norm(&x, &weight, 1e-5),
    );
}

#[test]
fn rotation_turns_pairs_of_half_a_head_apart() {
    let x = variable(1, &[pack().rows(), WIDTH]);
    assert_same(
        &[&x],
        || rotate(&x, &pack(), HEADS, 100.0),
        || elementary::rotate(&x, &pack(), HEADS, 100.0),
    );
}

#[test]
fn the_gate_goes_through_silu() {
    let (gate, up) = (variable(1, &[5, WIDTH]), variable(2, &[5, WIDTH]));
    assert_same(
        &[&gate, &up],
        || gated(&gate, &up),
        || elementary::gated(&gate, &up),
    );
}

#[test]
fn attention_sees_its_own_sequence_and_no_other() {
    let shape = [pack().rows(), WIDTH];
    let [query, key, value] = [1, 2, 3].map(|stream| variable(stream, &shape));
    for causal in [false, true] {
        assert_same(
            &[&query, &key, &value],
            || attention(&query, &key, &value, &pack(), HEADS, causal),
            || elementary::attention(&query, &key, &value, &pack(), HEADS, causal),
        );
    }
}

#[test]
fn the_loss_is_weighted_cross_entropy() {
    let logits = variable(1, &[4, 41]);
    let (targets, weights) = (vec![3, 0, 40, 3], vec![0.5, 1.0, 0.0, 20.0]);
    assert_same(
        &[&logits],
        || cross_entropy(&logits, targets.clone(), weights.clone()),
        || elementary::cross_entropy(&logits, &targets, &weights),
    );
}

#[test]
fn the_divergence_is_weighted_and_zero_where_both_are_alike() {
    let (logits, reference) = (variable(1, &[3, 41]), variable(2, &[3, 41]));
    let weights = vec![0.5, 0.0, 20.0];
    assert_same(
        &[&logits],
        || divergence(&logits, &reference, weights.clone()),
        || elementary::divergence(&logits, &reference, &weights),
    );
    // A constant on all logits of a row changes no probability.
    let alike = (logits.as_tensor() + 3.0).expect("add");
    let none = divergence(&logits, &alike, weights).and_then(|sum| sum.to_scalar::<f32>());
    let none = none.expect("divergence");
    assert!(none.abs() < 1e-5, "{none}");
}
