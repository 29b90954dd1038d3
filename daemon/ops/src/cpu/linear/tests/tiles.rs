//! The kernel of tiles (AMX) in all that `linear` does, by a model of their instructions: where a processor has them, other tests
//! run it by those.

use super::{
    bf16::{check_rounded, devices},
    grouped::check_grouped,
    layout::{Mode, check_bits},
    *,
};

const FORMATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Beside every kernel that moves words.
#[test]
fn tiles_multiply_what_is_rounded() {
    let _tiles = Computing::new();
    for device in devices() {
        for format in FORMATS {
            for (rows, width, outputs) in [
                (1, 1, 1),
                (3, 77, 33),
                (16, DEPTH + 1, 16),
                (17, 2 * DEPTH + 18, 70),
                (33, 32, 31),
                (MANY, 96, 17),
            ] {
                check_rounded(&device, rows, width, outputs, format);
            }
        }
    }
}

#[test]
fn tiles_take_more_rows_than_are_packed_at_a_time() {
    let _tiles = Computing::new();
    let device = Device::cpu(2).unwrap().with_bf16_products();
    check_rounded(&device, 2 * PACKED_LEN / DEPTH + 1, 600, 20, Format::Bf16);
}

#[test]
fn bits_in_tiles_depend_on_nothing_beside_them() {
    let _tiles = Computing::new();
    let mode = Mode {
        instructions: Instructions::best(),
        is_bf16: true,
    };
    for format in FORMATS {
        for width in [96, 544] {
            for (rows, outputs) in [(1, 3), (3, 1), (2, 40), (13, 70), (40, 33), (129, 64)] {
                check_bits(mode, format, rows, width, outputs);
            }
        }
    }
}

#[test]
fn grouped_rows_in_tiles_are_the_bits_of_each_row_alone() {
    let _tiles = Computing::new();
    for is_interleaved in [false, Device::cpu(1).unwrap().interleaves_weights()] {
        let device = Device::cpu(2).unwrap().with_bf16_products();
        check_grouped(device, Format::Bf16, 37, is_interleaved);
    }
}

/// What is no number stays in its row, whatever the weights behind the depth's end are.
#[test]
fn what_is_no_number_stays_in_its_row() {
    let _tiles = Computing::new();
    let device = Device::cpu(2).unwrap().with_bf16_products();
    let ops = Ops::new(device, Ledger::default()).unwrap();
    let mut values = numbers(18 * 40, 1);
    values[5 * 40 + 39] = f32::INFINITY;
    let x = ops.matrix(18, 40, &values, DType::F32).unwrap();
    let words = stored(33 * 40, Format::Bf16);
    let out = ops
        .linear(&x, &weight(&words, 33, 40, Format::Bf16))
        .unwrap();
    for row in 0..18 {
        let is_finite = out.row(row).iter().all(|value| value.is_finite());
        assert_eq!(is_finite, row != 5);
    }
}
