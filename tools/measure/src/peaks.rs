//! What the processor can do at most, measured on the spot: how many operations a second an instruction makes between
//! registers, and how fast threads read memory together.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use sluice_formats::Format;
use sluice_machine::{InstructionSet, Instructions};
use sluice_ops::Ops;

/// How often each is measured. The fastest counts: other programs hinder some, seldom all where each is short.
const TRIES: usize = 64;
/// Independent sums: more than an instruction takes cycles times how many begin in one, and few enough for 16 registers.
#[cfg(target_arch = "x86_64")]
const CHAINS: usize = 12;
/// Steps of every chain: some 2 ms.
const STEPS: usize = 1 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 32 << 20;

/// An instruction that kernels multiply and add with, by the bits of its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProductInstruction {
    /// `f32`.
    Fma256,
    /// `f32`.
    Fma512,
    /// Bytes, of which pairs are added in 16 bits; a second instruction adds those up.
    Maddubs256,
    /// Bytes, of which four are added in 32 bits.
    Dpbusd256,
    /// The same.
    Dpbusd512,
    /// `bf16`, of which pairs are added in `f32`.
    Dpbf16512,
    /// The same in AMX's tiles.
    Tdpbf16,
}

impl ProductInstruction {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Fma256,
        Self::Fma512,
        Self::Maddubs256,
        Self::Dpbusd256,
        Self::Dpbusd512,
        Self::Dpbf16512,
        Self::Tdpbf16,
    ];

    /// The best one that matmuls with weights of this format can use; `None` where kernels are the compiler's.
    #[must_use]
    pub fn of(ops: &Ops, format: Format) -> Option<Self> {
        let instructions = ops.device().instructions();
        let candidates: &[Self] = match (ops.rounds_rows(format), format.block_len()) {
            (true, 1) => &[Self::Tdpbf16, Self::Dpbf16512, Self::Fma512, Self::Fma256],
            (true, _) => &[Self::Dpbusd512, Self::Dpbusd256, Self::Maddubs256],
            (false, _) => &[Self::Fma512, Self::Fma256],
        };
        let mut candidates = candidates.iter().copied();
        candidates.find(|instruction| instructions.has(instruction.set()))
    }

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fma256 => "fma 256",
            Self::Fma512 => "fma 512",
            Self::Maddubs256 => "maddubs 256",
            Self::Dpbusd256 => "dpbusd 256",
            Self::Dpbusd512 => "dpbusd 512",
            Self::Dpbf16512 => "dpbf16 512",
            Self::Tdpbf16 => "tdpbf16",
        }
    }

    /// The set that it belongs to.
    fn set(self) -> InstructionSet {
        match self {
            Self::Fma256 | Self::Maddubs256 => InstructionSet::Avx2,
            Self::Fma512 => InstructionSet::Avx512,
            Self::Dpbusd256 => InstructionSet::AvxVnni,
            Self::Dpbusd512 => InstructionSet::Avx512Vnni,
            Self::Dpbf16512 => InstructionSet::Avx512Bf16,
            Self::Tdpbf16 => InstructionSet::Amx,
        }
    }

    /// Most operations a second of so many threads at once: a product and its addition are two. `None` where the CPU lacks the
    /// instruction.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn peak(self, threads: usize) -> Option<f64> {
        Instructions::of(self.set())?;
        let (chains, operations): (unsafe fn(usize), usize) = match self {
            Self::Fma256 => (x86::fma_256, 2 * 8),
            Self::Fma512 => (x86::fma_512, 2 * 16),
            Self::Maddubs256 => (x86::maddubs_256, 2 * 32),
            Self::Dpbusd256 => (x86::dpbusd_256, 2 * 32),
            Self::Dpbusd512 => (x86::dpbusd_512, 2 * 64),
            Self::Dpbf16512 => (x86::dpbf16_512, 2 * 32),
            // Of a product of whole tiles, what each of its cycles makes.
            Self::Tdpbf16 => (x86::tdpbf16, 2 * 16 * 16 * 32 / x86::TILE_STEPS),
        };
        // SAFETY: the CPU has the instruction.
        let seconds = fastest(threads, |_, _| unsafe { chains(STEPS) });
        Some((threads * STEPS * CHAINS * operations) as f64 / seconds)
    }

    /// `None`: other architectures have none of them.
    #[cfg(not(target_arch = "x86_64"))]
    #[must_use]
    pub fn peak(self, _threads: usize) -> Option<f64> {
        None
    }
}

/// Bytes a second that so many threads read together from memory that is several times as large as the caches.
#[must_use]
pub fn read_bytes_per_s(memory: &[u64], threads: usize) -> f64 {
    let words = READ_BYTES / size_of::<u64>();
    let pieces = memory.len() / words;
    let seconds = fastest(threads, |try_number, thread| {
        let piece = &memory[try_number % pieces * words..][..words];
        let mine = piece.chunks(words.div_ceil(threads)).nth(thread);
        let sum = |sum: u64, word: &u64| sum.wrapping_add(*word);
        black_box(mine.unwrap_or_default().iter().fold(0, sum));
    });
    READ_BYTES as f64 / seconds
}

/// Seconds that `work` takes on so many threads, which begin together, until the last has ended. It is told the number of
/// the try and of the thread.
fn fastest(threads: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let start = Barrier::new(threads);
    let seconds = |thread: usize| {
        let tries = (0..TRIES).map(|try_number| {
            start.wait();
            let begun = Instant::now();
            work(try_number, thread);
            begun.elapsed().as_secs_f64()
        });
        tries.collect()
    };
    let all: Vec<Vec<f64>> = thread::scope(|scope| {
        let seconds = &seconds;
        let all = (0..threads).map(|thread| scope.spawn(move || seconds(thread)));
        let all: Vec<_> = all.collect();
        let all = all.into_iter();
        all.map(|thread| thread.join().expect("it only computes"))
            .collect()
    });
    let slowest = |try_number: usize| {
        all.iter()
            .map(|tries| tries[try_number])
            .fold(0.0, f64::max)
    };
    (0..TRIES).map(slowest).fold(f64::INFINITY, f64::min)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Loops that do nothing but multiply and add, in chains that don't wait for each other.

    use std::{
        arch::{
            asm,
            x86_64::{__m256i, __m512i},
        },
        hint::black_box,
        mem,
    };

    use sluice_machine::tiles::{Amx, ROWS, Shapes, Tiles};
    use sluice_ops::measure::FILL_BYTE;

    use super::CHAINS;

    macro_rules! chains {
        ($name:ident, $features:literal, $register:ident, $vector:ty, [$($line:literal),+] $($spare:tt)*) => {
            /// # Safety
            /// The CPU has the instruction.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(steps: usize) {
                const BYTES: usize = size_of::<$vector>();
                // SAFETY: any bits are a vector.
                let factor: $vector = unsafe { mem::transmute([FILL_BYTE; BYTES]) };
                let mut sums = [factor; CHAINS];
                for _ in 0..steps {
                    for sum in &mut sums {
                        // Assembly, since the compiler would take products of what stays the same out of the loop.
                        // SAFETY: it only computes between these registers.
                        unsafe {
                            asm!(
                                $($line),+,
                                sum = inout($register) *sum,
                                factor = in($register) factor,
                                $($spare)*
                                options(nomem, nostack, preserves_flags),
                            );
                        }
                    }
                }
                black_box(sums);
            }
        };
    }

    chains! { fma_256, "avx2,fma", ymm_reg, __m256i, ["vfmadd231ps {sum}, {factor}, {factor}"] }
    chains! { fma_512, "avx512f", zmm_reg, __m512i, ["vfmadd231ps {sum}, {factor}, {factor}"] }
    chains! {
        maddubs_256, "avx2", ymm_reg, __m256i,
        ["vpmaddubsw {pairs}, {factor}, {factor}", "vpaddw {sum}, {sum}, {pairs}"]
        pairs = out(ymm_reg) _,
    }
    chains! { dpbusd_256, "avx2", ymm_reg, __m256i, ["{{vex}} vpdpbusd {sum}, {factor}, {factor}"] }
    chains! { dpbusd_512, "avx512f", zmm_reg, __m512i, ["vpdpbusd {sum}, {factor}, {factor}"] }
    chains! { dpbf16_512, "avx512f", zmm_reg, __m512i, ["vdpbf16ps {sum}, {factor}, {factor}"] }

    /// Steps that a product of whole tiles is counted as: it takes 16 cycles, where a vector's takes one or less.
    pub(super) const TILE_STEPS: usize = 16;

    /// Products of tiles in four sums, which are as many as there is room for beside their factors.
    ///
    /// # Safety
    /// The CPU has AMX.
    pub(super) unsafe fn tdpbf16(steps: usize) {
        // SAFETY: as the caller says; all tiles are of the same shape.
        unsafe {
            Amx::configure(&Shapes::new(ROWS));
            for _ in 0..steps / TILE_STEPS * (CHAINS / 4) {
                Amx::add_products::<0, 4, 6>();
                Amx::add_products::<1, 4, 7>();
                Amx::add_products::<2, 5, 6>();
                Amx::add_products::<3, 5, 7>();
            }
            Amx::release();
        }
    }
}
