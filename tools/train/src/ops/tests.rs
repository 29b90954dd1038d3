//! Each fused operation and its gradients against the same thing written with candle's elementary operations.

use candle_core::{Device, Result, Tensor, Var};
use sluice_weights::RopePairs;

use super::{
    Activation, Pack, Rotation, activate, attention, bonus, cross_attention, cross_entropy,
    divergence, elementary, gated, group_norm, linear, normed_key, rated_key, recurrence, rms_norm,
    rotate, span::Span, token_shift, windowed_attention,
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

fn rotation(positions: impl IntoIterator<Item = usize>, pairs: RopePairs) -> Rotation {
    Rotation {
        positions: positions.into_iter().collect(),
        heads: HEADS,
        theta: 100.0,
        pairs,
    }
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
    let rotation = rotation(pack().positions(), RopePairs::HalfSplit);
    assert_same(
        &[&x],
        || rotate(&x, &rotation),
        || elementary::rotate(&x, &rotation),
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
            || {
                elementary::attention(
                    &query,
                    &key,
                    &value,
                    [&pack(), &pack()],
                    HEADS,
                    if causal {
                        Span::Before(usize::MAX)
                    } else {
                        Span::All
                    },
                )
            },
        );
    }
}

#[test]
fn attention_sees_a_window_or_another_sequence() {
    let shape = [pack().rows(), WIDTH];
    let [query, key, value] = [1, 2, 3].map(|stream| variable(stream, &shape));
    let windowed = Span::Before(7);
    assert_same(
        &[&query, &key, &value],
        || windowed_attention(&query, &key, &value, &pack(), HEADS, 7),
        || elementary::attention(&query, &key, &value, [&pack(), &pack()], HEADS, windowed),
    );
    let slots = Pack::new([3, 3, 3]);
    let [key, value] = [2, 3].map(|stream| variable(stream, &[9, WIDTH]));
    assert_same(
        &[&query, &key, &value],
        || cross_attention(&query, &key, &value, &pack(), &slots, HEADS),
        || elementary::attention(&query, &key, &value, [&pack(), &slots], HEADS, Span::All),
    );
}

#[test]
fn rotation_of_pairs_takes_any_positions() {
    let x = variable(1, &[5, WIDTH]);
    let rotation = rotation([0, 7, 3, 7, 100], RopePairs::Interleaved);
    assert_same(
        &[&x],
        || rotate(&x, &rotation),
        || elementary::rotate(&x, &rotation),
    );
}

#[test]
fn a_group_is_normed_by_mean_and_variance() {
    let x = variable(1, &[5, WIDTH]);
    let [weight, bias] = [2, 3].map(|stream| variable(stream, &[WIDTH]));
    for groups in [1, HEADS] {
        assert_same(
            &[&x, &weight, &bias],
            || group_norm(&x, &weight, &bias, groups, 1e-3),
            || elementary::group_norm(&x, &weight, &bias, groups, 1e-3),
        );
    }
}

#[test]
fn a_token_shift_stays_in_its_sequence() {
    let x = variable(1, &[pack().rows(), WIDTH]);
    let mix = variable(2, &[1, 1, WIDTH]);
    assert_same(
        &[&x, &mix],
        || token_shift(&x, &mix, &pack()),
        || elementary::token_shift(&x, &mix, &pack()),
    );
}

#[test]
fn activations_have_their_slopes() {
    let (x, bias) = (variable(1, &[5, WIDTH]), variable(2, &[WIDTH]));
    for activation in [
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Identity,
        Activation::SquaredRelu,
    ] {
        assert_same(
            &[&x, &bias],
            || activate(&x, Some(&bias), activation),
            || elementary::activate(&x, Some(&bias), activation),
        );
        assert_same(
            &[&x],
            || activate(&x, None, activation),
            || elementary::activate(&x, None, activation),
        );
    }
}

#[test]
fn keys_and_the_bonus_are_those_of_their_heads() {
    let [key, rate] = [1, 2].map(|stream| variable(stream, &[5, WIDTH]));
    let weight = variable(3, &[WIDTH]);
    assert_same(
        &[&key, &weight],
        || normed_key(&key, &weight, HEADS),
        || elementary::normed_key(&key, &weight, HEADS),
    );
    assert_same(
        &[&key, &rate, &weight],
        || rated_key(&key, &rate, &weight),
        || elementary::rated_key(&key, &rate, &weight),
    );
    let (inputs, weight) = (
        variable(4, &[3, 5, WIDTH]),
        variable(5, &[HEADS, HEAD_WIDTH]),
    );
    assert_same(
        &[&inputs, &weight],
        || bonus(&inputs, &weight),
        || elementary::bonus(&inputs, &weight),
    );
}

#[test]
fn the_recurrence_begins_anew_with_each_sequence() {
    let pack = Pack::new([7, 1, 12]);
    // As the network makes them: unit keys, rates below one.
    let raw = variable(1, &[6, pack.rows(), 128]);
    let inputs = || {
        let part = |index: usize| raw.get(index);
        let rate = part(5)?.tanh()?.sqr()?;
        let unit = normed_key(
            &part(4)?,
            &Tensor::ones(128, candle_core::DType::F32, &Device::Cpu)?,
            2,
        )?;
        Tensor::stack(&[part(0)?, part(1)?, part(2)?, part(3)?, unit, rate], 0)
    };
    assert_same(
        &[&raw],
        || recurrence(&inputs()?, &pack),
        || elementary::recurrence(&inputs()?, &pack),
    );
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
