//! Rows in groups, each with a matrix of its own, against each row alone.

use sluice_formats::interleaved;
use sluice_weights::InterleavedRows;

use super::*;

const WIDTH: usize = 512;
const EXPERTS: usize = 6;

/// How many rows each expert has.
const GROUPS: [[usize; EXPERTS]; 5] = [
    // Some without rows, some with few, one with many.
    [3, 0, 1, 70, 0, 4],
    [0, 1, 0, 0, 0, 0],
    // All rows with one expert, the first or the last.
    [200, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 9],
    [5, 5, 5, 5, 5, 5],
];

fn offsets(groups: [usize; EXPERTS]) -> Vec<usize> {
    let mut end = 0;
    let ends = groups.into_iter().map(|rows| {
        end += rows;
        end
    });
    std::iter::once(0).chain(ends).collect()
}

pub(super) fn check_grouped(device: Device, format: Format, outputs: usize, is_interleaved: bool) {
    let ops = Ops::new(device, Ledger::default()).unwrap();
    let rows = EXPERTS * outputs;
    let mut words = stored(rows * WIDTH, format);
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..format.bytes(rows * WIDTH)];
    if is_interleaved {
        interleaved::interleave(format, WIDTH, bytes, &mut Vec::new());
    }
    let all = Weight {
        format,
        rows,
        width: WIDTH,
        data: match is_interleaved {
            true => WeightData::Interleaved(InterleavedRows {
                bytes,
                first_row: 0,
            }),
            false => WeightData::Host(bytes),
        },
        weights_version: 0,
    };
    let experts: [_; EXPERTS] =
        std::array::from_fn(|expert| all.rows(expert * outputs, (expert + 1) * outputs));
    for groups in GROUPS {
        let offsets = offsets(groups);
        let count = offsets[EXPERTS];
        let values = numbers(count * WIDTH, 1);
        let x = ops.matrix(count, WIDTH, &values, DType::F32).unwrap();
        let out = ops.grouped_linear(&x, &experts, &offsets, x.len()).unwrap();
        for (expert, weight) in experts.iter().enumerate() {
            for row in offsets[expert]..offsets[expert + 1] {
                let alone = ops.matrix(1, WIDTH, x.row(row), DType::F32).unwrap();
                let alone = ops.linear(&alone, weight).unwrap();
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(
                    bits(out.row(row)) == bits(alone.values()),
                    "{format:?} of {outputs} outputs, row {row} of {groups:?}, expert {expert}"
                );
            }
        }
    }
}

#[test]
fn grouped_rows_are_the_bits_of_each_row_alone() {
    for threads in 1..=3 {
        for format in Format::ALL {
            // Whole panels, and experts that begin in the midst of 16 rows.
            for outputs in [64, 37] {
                for is_interleaved in [false, format.interleaves(WIDTH)] {
                    let device = Device::cpu(threads).unwrap();
                    check_grouped(device, format, outputs, is_interleaved);
                }
            }
        }
    }
}

#[test]
fn grouped_rows_are_those_bits_with_other_instructions() {
    for set in [InstructionSet::Avx2, InstructionSet::AvxVnni] {
        let Some(instructions) = Instructions::of(set) else {
            continue;
        };
        for format in [Format::Bf16, Format::Q8_0, Format::Q4K] {
            let device = Device::cpu(2).unwrap().with_instructions(instructions);
            check_grouped(device, format, 64, true);
        }
    }
}

/// All tiles together are every row's products, each once, whichever expert has how many rows.
#[test]
fn tiles_of_a_large_group_have_fewer_weight_rows() {
    const OUTPUTS: usize = 1024;
    const THREADS: usize = 8;
    let weight = Weight {
        format: Format::F32,
        rows: OUTPUTS,
        width: 1,
        data: WeightData::None,
        weights_version: 0,
    };
    let kernel = Microkernel::of(Instructions::best());
    let groups = [0..500, 500..501, 501..512];
    let tiles = groups.map(|rows| {
        let panels = RowPanels::new(rows.clone(), kernel.rows);
        let grid = Grid::new(&panels, &weight, 512 * OUTPUTS, THREADS, kernel);
        let mut elements = 0;
        for number in 0..grid.len() {
            let (panels, columns) = grid.tile(number);
            let tile = panels.rows();
            assert!(rows.start <= tile.start && tile.end <= rows.end);
            elements += tile.len() * columns.len();
        }
        assert_eq!(elements, rows.len() * OUTPUTS);
        grid.len()
    });
    // The first expert has nearly all the work, and every thread takes part in it.
    assert!(tiles[0] >= THREADS, "{tiles:?}");
    assert_eq!(tiles[1..], [1, 1]);
}

#[test]
fn grouped_matmuls_without_rows_are_empty() {
    let ops = ops();
    let words = stored(8 * WIDTH, Format::F32);
    let weight = weight(&words, 8, WIDTH, Format::F32);
    let x = ops.pool.take(0, WIDTH, DType::F32).unwrap();
    let out = ops
        .grouped_linear(&x, &[weight; 3], &[0; 4], x.len())
        .unwrap();
    assert_eq!((out.len(), out.width()), (0, 8));
}

#[test]
fn a_dry_run_takes_the_memory_of_a_grouped_matmul() {
    let ledger = Ledger::dry_run();
    let device = Device::cpu(1).unwrap();
    let ops = Ops::new(device, ledger.clone()).unwrap();
    let words = stored(8 * WIDTH, Format::F32);
    let weight = weight(&words, 8, WIDTH, Format::F32);
    let x = ops.matrix(5, WIDTH, &[], DType::F32).unwrap();
    let before = ledger.used_bytes();
    let grouped = ops
        .grouped_linear(&x, &[weight; 2], &[0, 2, 5], x.len())
        .unwrap();
    let taken = ledger.used_bytes() - before;
    drop(grouped);
    let _plain = ops.linear(&x, &weight).unwrap();
    assert_eq!(ledger.used_bytes() - before, taken);
}

#[test]
#[should_panic(expected = "offsets")]
fn offsets_that_leave_rows_out_are_refused() {
    let ops = ops();
    let words = stored(8 * WIDTH, Format::F32);
    let weight = weight(&words, 8, WIDTH, Format::F32);
    let x = ops.pool.take(5, WIDTH, DType::F32).unwrap();
    drop(ops.grouped_linear(&x, &[weight; 2], &[0, 2, 4], x.len()));
}
