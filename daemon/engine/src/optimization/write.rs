//! Writing mixes: every matrix of every group, quantized to the group's rate.

use std::sync::{Arc, atomic::AtomicBool};

use rayon::ThreadPool;
use sluice_checkpoint::{
    Checkpoint,
    calibration::Calibration,
    quantize::MatrixQuantizer,
    weight_cache::{MixMatrix, MixRecord, Mixes, OpenMix},
};
use sluice_codec::Scheme;
use sluice_shared::mix::MixId;
use sluice_weights::SourceTensor;

use super::{Form, MatrixGroup, OptimizeError, OptimizeProgress};

/// Changed when the same choice leads to other bytes, so that no mix consists of two versions.
const REVISION: u32 = 3;

/// What mixes are written from.
pub(super) struct MixWriter<'a> {
    pub(super) checkpoint: &'a Arc<Checkpoint>,
    pub(super) calibration: Option<&'a Calibration>,
    pub(super) sources: &'a [SourceTensor],
    pub(super) groups: &'a [MatrixGroup],
    pub(super) pool: &'a ThreadPool,
    pub(super) stop: &'a AtomicBool,
}

impl MixWriter<'_> {
    /// Writes the mix in which each group has its form, unless it is there. What stays as it is has no place in it.
    pub(super) fn write(
        &self,
        mixes: &Mixes,
        forms: &[Form],
        record: &MixRecord,
        is_final: bool,
        report: &mut dyn FnMut(OptimizeProgress),
    ) -> Result<OpenMix, OptimizeError> {
        let id = self.name(forms);
        if let Some(mix) = mixes.open(id, self.stop, &mut |_, _| {})? {
            return Ok(mix);
        }
        let each = self.groups.iter().zip(forms);
        let rates: Vec<(usize, f64)> = each
            .filter_map(|(group, form)| Some((group, form.bits()?)))
            .flat_map(|(group, bits)| group.tensors.iter().map(move |&tensor| (tensor, bits)))
            .collect();
        let matrices: Vec<MixMatrix> = rates
            .iter()
            .map(|&(tensor, _)| MixMatrix {
                name: self.sources[tensor].spec.name.clone(),
                size: self.sources[tensor].spec.size(),
                scheme: Scheme::Columns,
            })
            .collect();
        let weights = |matrix: &MixMatrix| (matrix.size.0 * matrix.size.1) as u64;
        let total = matrices.iter().map(weights).sum();
        let mut quantizer = MatrixQuantizer::new(self.checkpoint, self.calibration, self.stop);
        let mix = mixes.write(id, (&matrices, record), self.stop, &mut |index, writer| {
            report(OptimizeProgress::Quantizing {
                tensor: matrices[index].name.clone(),
                done: matrices[..index].iter().map(weights).sum(),
                total,
                is_final,
            });
            let (tensor, bits) = rates[index];
            let spec = &self.sources[tensor].spec;
            let quantized = self
                .pool
                .install(|| quantizer.quantize(spec, bits, &mut |chunk| writer.chunk(chunk)))?;
            Ok::<_, OptimizeError>(quantized.original_hash)
        })?;
        mix.ok_or(OptimizeError::Cancelled)
    }

    /// The name of a choice: the same for the same calibration and forms.
    fn name(&self, forms: &[Form]) -> MixId {
        let mut text = format!("{REVISION} {}", self.calibration_name());
        for form in forms {
            match form {
                Form::Quantized(bits) => text.push_str(&format!(" {bits:.4}")),
                Form::Original => text.push_str(" original"),
            }
        }
        MixId::of_text(&text)
    }

    /// What the calibration was made of, by which it is told from others; empty: there is none.
    pub(super) fn calibration_name(&self) -> String {
        self.calibration.map_or_else(String::new, |calibration| {
            let origin = calibration.origin();
            format!(
                "{:016x}-{}-{}-{}",
                origin.text_hash,
                origin.seed,
                origin.positions,
                if origin.is_full { "full" } else { "diagonal" }
            )
        })
    }
}
