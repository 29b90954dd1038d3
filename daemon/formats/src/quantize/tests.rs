//! Candle's quantizer is the oracle: ours writes the same bytes, whatever vectors the machine has.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

type Quantize = fn(&[f32], &mut [u8]);

/// A format, candle's name for it, and our loops: with this machine's vectors, and portable.
const OURS: [(Format, GgmlDType, [Quantize; 2]); 5] = [
    (Format::Q8_0, GgmlDType::Q8_0, [q8_0::quantize, q8_0::all]),
    (Format::Q6K, GgmlDType::Q6K, [q6_k::quantize, q6_k::all]),
    (Format::Q4K, GgmlDType::Q4K, [q4_k::quantize, q4_k::all]),
    (
        Format::Q5_0,
        GgmlDType::Q5_0,
        [signed::quantize_q5_0, signed::all_q5_0],
    ),
    (
        Format::Q4_0,
        GgmlDType::Q4_0,
        [signed::quantize_q4_0, signed::all_q4_0],
    ),
];

/// Quantizes as candle does.
fn candle(kind: GgmlDType, values: &[f32], bytes: &mut [u8]) {
    let blocks = Tensor::from_slice(values, values.len(), &Device::Cpu)
        .and_then(|tensor| QTensor::quantize(&tensor, kind))
        .expect("whole blocks of f32 on the CPU can be quantized");
    let data = blocks.data().expect("blocks on the CPU can be read");
    bytes.copy_from_slice(&data);
}

fn check(values: &[f32]) {
    for (format, kind, ours) in OURS {
        let mut expected = vec![0; format.bytes(values.len())];
        candle(kind, values, &mut expected);
        if format == Format::Q4K {
            // Which of two zeros is the larger, candle leaves to `f32::max`, which leaves it open.
            for block in expected.chunks_exact_mut(format.block_bytes()) {
                for half in block[..4].as_chunks_mut::<2>().0 {
                    if *half == [0, 0x80] {
                        *half = [0, 0];
                    }
                }
            }
        }
        for (number, ours) in ours.iter().enumerate() {
            // What was there before is no part of the result.
            let mut found = vec![0xa5; expected.len()];
            ours(values, &mut found);
            let differs = (0..found.len()).find(|&place| found[place] != expected[place]);
            if let Some(place) = differs {
                let block = place / format.block_bytes();
                let values = &values[block * format.block_len()..][..format.block_len()];
                panic!(
                    "{} ({number}): byte {} of block {block} is {:#04x}, not {:#04x}: {values:?}",
                    format.name(),
                    place % format.block_bytes(),
                    found[place],
                    expected[place]
                );
            }
        }
    }
}

/// Weights as models have them, and values that must not break a search: zeros, equal weights, ties, the smallest and
/// largest values, and NaN.
fn group() -> impl Strategy<Value = Vec<f32>> {
    let size = select(vec![
        1e-42f32, 1e-38, 1e-20, 1e-3, 0.02, 1.0, 300.0, 7e4, 1e30, 3e38,
    ]);
    let normal = (size.clone(), vec(-1.0f32..1.0, 64)).prop_map(|(size, values)| {
        let sum = |pair: &[f32]| (pair[0] + pair[1] * pair[1] * pair[1]) * 0.5 * size;
        values.chunks(2).map(sum).collect()
    });
    let skewed =
        (size.clone(), -1.0f32..1.0, vec(0.0f32..1.0, 32)).prop_map(|(size, start, values)| {
            let place = |value: f32| (start + value * 0.1) * size;
            values.into_iter().map(place).collect()
        });
    let ties = (size, vec(-31i8..31, 32)).prop_map(|(size, values)| {
        let half = |value: i8| f32::from(value) * 0.5 * size;
        values.into_iter().map(half).collect()
    });
    let equal = any::<f32>().prop_map(|value| vec![value; 32]);
    let sparse = (vec(-1.0f32..1.0, 32), vec(any::<bool>(), 32)).prop_map(|(values, is_set)| {
        let keep = |(value, is_set)| if is_set { value } else { 0.0 };
        values.into_iter().zip(is_set).map(keep).collect()
    });
    let special = select(vec![
        0.0,
        -0.0,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE / 3.0,
        f32::from_bits(1),
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        1.0,
        -1.0,
    ]);
    let odd = vec(prop_oneof![special, -1.0f32..1.0, any::<f32>()], 32);
    prop_oneof![
        6 => normal,
        2 => skewed,
        2 => ties,
        1 => equal,
        1 => Just(vec![0.0; 32]),
        2 => sparse,
        2 => odd,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// From one block to eleven: some are computed beside each other, those left over alone.
    #[test]
    fn bytes_are_those_of_candle(blocks in vec(vec(group(), 8), 1..12)) {
        check(&blocks.concat().concat());
    }

    #[test]
    fn bytes_of_any_floats_are_those_of_candle(values in vec(any::<u32>(), 512)) {
        check(&values.into_iter().map(f32::from_bits).collect::<Vec<_>>());
    }
}

#[test]
fn bytes_of_a_models_weights_are_those_of_candle() {
    let model = include_bytes!("../../../model/model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(model).unwrap();
    let mut checked = 0;
    for (name, tensor) in tensors.iter() {
        let (shape, data) = (tensor.shape(), tensor.data());
        let count: usize = shape.iter().product();
        if shape.len() != 2 || !count.is_multiple_of(256) {
            continue;
        }
        let format = match tensor.dtype() {
            safetensors::Dtype::BF16 => Format::Bf16,
            safetensors::Dtype::F32 => Format::F32,
            other => panic!("{name} is {other:?}"),
        };
        // Some of each matrix: all of it takes candle too long.
        let count = count.min(64 * 256);
        let mut words = vec![0u32; format.bytes(count).div_ceil(4)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..format.bytes(count)];
        bytes.copy_from_slice(&data[..format.bytes(count)]);
        let mut values = vec![0.0; count];
        format.dequantize(bytes, &mut values);
        check(&values);
        checked += 1;
    }
    assert!(checked > 10, "{checked} matrices");
}

#[test]
fn rounding_is_the_standard_librarys() {
    // Every sign and exponent with the mantissas at both ends, and steps through all of them.
    let ends = (0..512u32)
        .flat_map(|head| [0, 1, 0x40_0000, 0x7f_fffe, 0x7f_ffff].map(|low| head << 23 | low));
    let steps = (0..u32::MAX).step_by(4099);
    let halves = (0..4096).flat_map(|half| {
        let value = half as f32 * 0.5;
        [value, value.next_down(), value.next_up(), -value].map(f32::to_bits)
    });
    for bits in ends.chain(steps).chain(halves) {
        let value = f32::from_bits(bits);
        let (found, expected) = (lanes::nearest(value), value.round());
        assert!(
            found == expected || (found.is_nan() && expected.is_nan()),
            "{value:?}: {found} for {expected}"
        );
    }
}
