//! The classes as a GPU's kernels have them: `daemon/cuda/kernels/columns_classes.cuh`, which this writes.
//!
//! A GPU finds a code's bits by where the codes of each length end, so that a lookup in memory isn't waited for, and a
//! class takes some hundred bytes instead of a table of 2048 entries.

use std::fmt::Write;

use super::{
    classes::{Class, ENTRIES, ESCAPED, class},
    spreads::CLASSES,
    spreads::SPREADS,
};
use crate::{
    huffman::BITS_MAX,
    trellis::{MEANS, MIDDLE},
};

/// The file's first lines.
const HEAD: &str = "\
// The classes of columns, which are part of the format: `columns/classes.rs` of the codec says what they follow from.
// Printed by `cargo test -p sluice-codec kernel_tables -- --ignored --nocapture`; a test holds it to the codec's.

#pragma once

#include \"cuda_device.cuh\"

struct ColumnClass {
    // For lengths from 1 on, where their codes end in eleven bits; longer codes are the rest.
    u16 limits[10];
    // The first code of the escape in eleven bits, and how many begin with it.
    u32 escape_first, escape_count;
    // Symbols of a word.
    u32 together;
    // For each length, what added to a code gives the place of its word.
    int starts[12];
};

";

/// A class's words by their codes, and what a kernel finds their places by.
struct KernelClass {
    limits: [u16; BITS_MAX],
    escape: (usize, usize),
    starts: [i32; BITS_MAX + 1],
    words: Vec<u32>,
}

impl KernelClass {
    /// `first` is the place of its first word.
    fn new(class: &Class, first: usize) -> Self {
        let mut found = Self {
            limits: [0; BITS_MAX],
            escape: (0, 0),
            starts: [0; BITS_MAX + 1],
            words: Vec::new(),
        };
        let (mut code, mut length) = (0, 0);
        while code < ENTRIES {
            // Streams have a code's first bit lowest.
            let window = code.reverse_bits() >> (usize::BITS as usize - BITS_MAX);
            let entry = class.singles[window];
            let bits = (entry & 0xffff) as usize;
            assert!(bits >= length, "codes become longer");
            found.limits[length..bits].fill(code as u16);
            if bits > length {
                let place = first + found.words.len();
                found.starts[bits] = place as i32 - (code >> (BITS_MAX - bits)) as i32;
            }
            length = bits;
            let symbols = (entry >> 32) as u32;
            if symbols as u8 == ESCAPED {
                found.escape = (code, 1 << (BITS_MAX - bits));
            }
            found.words.push(symbols);
            code += 1 << (BITS_MAX - bits);
        }
        found.limits[length..].fill(ENTRIES as u16);
        found
    }
}

/// The file's text.
fn header() -> String {
    let mut classes = Vec::new();
    let mut words = Vec::new();
    for index in 0..CLASSES as u8 {
        let class = class(index);
        let found = KernelClass::new(class, words.len());
        words.extend_from_slice(&found.words);
        classes.push(format!(
            "{{{{{}}}, {}, {}, {}, {{{}}}}}",
            list(&found.limits[1..]),
            found.escape.0,
            found.escape.1,
            class.together,
            list(found.starts)
        ));
    }
    let means = SPREADS.iter().flat_map(|spread| {
        let mean = |symbol: usize| {
            let at = symbol.checked_sub(spread.first);
            at.and_then(|at| spread.means.get(at)).copied().unwrap_or(0)
        };
        MIDDLE.map(mean).collect::<Vec<_>>()
    });
    let mut out = HEAD.to_owned();
    let mut table = |kind: &str, name: &str, size: usize, remark: &str, rows: Vec<String>| {
        let rows = rows.join(",\n    ");
        write!(
            out,
            "// {remark}\n__device__ constexpr {kind} {name}[{size}] = {{\n    {rows}}};\n"
        )
        .expect("text can be written to");
    };
    table(
        "ColumnClass",
        "COLUMN_CLASSES",
        CLASSES,
        "By class.",
        classes,
    );
    table(
        "u32",
        "COLUMN_WORDS",
        words.len(),
        "The symbols of words, a byte each; 0x80 is an escaped one.",
        rows(&words),
    );
    table(
        "signed char",
        "COLUMN_MEANS",
        CLASSES * MEANS,
        "How far the middle symbols' levels are moved, in parts of a step: 64 a class.",
        rows(&means.collect::<Vec<_>>()),
    );
    out
}

fn list<T: ToString>(numbers: impl IntoIterator<Item = T>) -> String {
    let each: Vec<String> = numbers.into_iter().map(|n| n.to_string()).collect();
    each.join(", ")
}

fn rows<T: ToString + Copy>(numbers: &[T]) -> Vec<String> {
    let each = numbers.chunks(10);
    each.map(|some| list(some.iter().copied())).collect()
}

#[test]
fn kernels_have_the_same_classes() {
    let found = include_str!("../../../cuda/kernels/columns_classes.cuh");
    assert!(found == header(), "print it anew: kernel_tables is a test");
}

#[test]
#[ignore = "prints a file"]
fn kernel_tables() {
    print!("{}", header());
}
