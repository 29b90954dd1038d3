//! The processor's own tiles. Each function is one instruction, since the compiler's intrinsics for them are not stable yet.
//!
//! The assembly doesn't name the tiles that it changes: compiled code has none to lose, since the compiler keeps nothing in
//! tiles but what comes from those intrinsics.

use std::{
    arch::{
        asm,
        x86_64::{_MM_HINT_T0, _mm_prefetch},
    },
    ptr,
};

use super::{COLUMNS, Line, Lines, Shapes, Sums, Tiles};

/// The tiles of AMX, with products of bf16. They work where [`InstructionSet::Amx`](crate::InstructionSet::Amx) does.
#[derive(Debug)]
pub struct Amx;

impl Tiles for Amx {
    #[inline]
    unsafe fn configure(shapes: &Shapes) {
        // SAFETY: as the caller says; it reads 64 bytes, which the shapes are.
        unsafe {
            asm!(
                "ldtilecfg [{shapes}]",
                shapes = in(reg) ptr::from_ref(shapes),
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn zero<const TILE: usize>() {
        // SAFETY: as the caller says.
        unsafe {
            asm!("tilezero tmm{tile}", tile = const TILE, options(nomem, nostack, preserves_flags));
        }
    }

    #[inline]
    unsafe fn load<const TILE: usize>(lines: &Lines) {
        // SAFETY: as the caller says.
        unsafe {
            asm!(
                "tileloadd tmm{tile}, [{start} + {stride}*1]",
                tile = const TILE,
                start = in(reg) lines.as_ptr(),
                stride = in(reg) size_of::<Line>(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn add_products<const SUM: usize, const X: usize, const WEIGHT: usize>() {
        // SAFETY: as the caller says.
        unsafe {
            asm!(
                "tdpbf16ps tmm{sum}, tmm{x}, tmm{weight}",
                sum = const SUM,
                x = const X,
                weight = const WEIGHT,
                options(nomem, nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn store<const TILE: usize>(sums: &mut Sums, column: usize) {
        // SAFETY: as the caller says.
        unsafe {
            asm!(
                "tilestored [{start} + {stride}*1], tmm{tile}",
                tile = const TILE,
                start = in(reg) sums.as_mut_ptr().cast::<f32>().wrapping_add(column),
                stride = in(reg) size_of::<[f32; COLUMNS]>(),
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn release() {
        // SAFETY: as the caller says.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }

    #[inline]
    fn prefetch(start: *const Line, count: usize) {
        for line in 0..count {
            // SAFETY: a hint, which reads nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
        }
    }
}
