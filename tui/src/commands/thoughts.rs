//! A latent thought model's thoughts: the file that they are saved in and given back from.
//!
//! The file is a safetensors file with the tensors `mu` and `log_var` in `f32`, each of [layers, latents of a layer, hidden
//! size], so that other programs can read and change it.

use std::{collections::HashMap, fs, io, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sluice_proto::v1::Thoughts;
use sluice_shared::units;

use super::whole_file;
use crate::output::Failure;

/// Names of the tensors: means, and logarithms of variances.
const NAMES: [&str; 2] = ["mu", "log_var"];
/// Largest file: a message to the daemon is smaller.
const BYTES_MAX: u64 = 64 << 20;

/// Reads the thoughts that were saved in a file.
pub(super) fn read(path: &Path) -> Result<Thoughts, Failure> {
    let shown = path.display();
    let failed = |cause: io::Error| Failure::new(format!("read thoughts from {shown}: {cause}"));
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > BYTES_MAX {
        let (bytes, most) = (units::bytes(bytes), units::bytes(BYTES_MAX));
        return Err(Failure::new(format!(
            "{shown} has {bytes}; thoughts take at most {most}"
        )));
    }
    let bytes = fs::read(path).map_err(failed)?;
    parse(&bytes).map_err(|problem| {
        Failure::new(format!(
            "{shown} holds no thoughts: {problem} (give a file that --save-thoughts wrote)"
        ))
    })
}

fn parse(bytes: &[u8]) -> Result<Thoughts, String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    let mut sizes = Vec::new();
    for name in NAMES {
        let tensor = tensors
            .tensor(name)
            .map_err(|_| format!("tensor {name} is missing"))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(format!("tensor {name} is {:?}, not F32", tensor.dtype()));
        }
        let small = |&size: &usize| u32::try_from(size).ok();
        let shape: Option<Vec<u32>> = tensor.shape().iter().map(small).collect();
        let Some([layers, latents, width]) = shape.as_deref() else {
            return Err(format!(
                "tensor {name} has the shape {:?}, not [layers, latents, hidden size]",
                tensor.shape()
            ));
        };
        sizes.push([*layers, *latents, *width]);
        let (elements, _) = tensor.data().as_chunks::<4>();
        found.push(
            elements
                .iter()
                .map(|four| f32::from_le_bytes(*four))
                .collect(),
        );
    }
    if sizes[0] != sizes[1] {
        return Err("its two tensors have different shapes".to_owned());
    }
    let [layers, latents, hidden_size] = sizes[0];
    let mut found = found.into_iter();
    let mut next = || found.next().unwrap_or_default();
    Ok(Thoughts {
        layers,
        latents,
        hidden_size,
        means: next(),
        log_variances: next(),
    })
}

/// Writes thoughts to a file, in the place of one of that name.
pub(super) fn write(path: &Path, thoughts: Option<&Thoughts>) -> Result<(), Failure> {
    let shown = path.display();
    let Some(thoughts) = thoughts else {
        return Err(Failure::new(format!(
            "nothing was written to {shown}: the request inferred no thoughts (--think was 0, or the prompt is one token)"
        )));
    };
    let failed = |cause: io::Error| Failure::new(format!("write thoughts to {shown}: {cause}"));
    let bytes = serialized(thoughts).map_err(|error| Failure::new(error.to_string()))?;
    whole_file::write(path, &bytes).map_err(failed)
}

fn serialized(thoughts: &Thoughts) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let sizes = [thoughts.layers, thoughts.latents, thoughts.hidden_size];
    let shape: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
    let bytes = |values: &[f32]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let all = [bytes(&thoughts.means), bytes(&thoughts.log_variances)];
    let views = NAMES.iter().zip(&all).map(|(name, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes)?;
        Ok((name.to_string(), view))
    });
    let views: Vec<_> = views.collect::<Result<_, safetensors::SafeTensorError>>()?;
    let format = HashMap::from([("format".to_owned(), "sluice thoughts".to_owned())]);
    safetensors::serialize(views, Some(format))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Thoughts {
        Thoughts {
            layers: 2,
            latents: 1,
            hidden_size: 3,
            means: (0..6).map(|at| at as f32).collect(),
            log_variances: vec![-5.0; 6],
        }
    }

    #[test]
    fn what_is_saved_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thoughts.safetensors");
        write(&path, Some(&some())).unwrap();
        assert_eq!(read(&path).unwrap(), some());
        let other = Thoughts {
            means: vec![9.0; 6],
            ..some()
        };
        write(&path, Some(&other)).unwrap();
        assert_eq!(read(&path).unwrap(), other);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&path, None).is_err() && read(&path).unwrap() == other);
    }

    #[test]
    fn other_files_are_refused_with_what_is_wrong() {
        let refused = |names: [&str; 2], shape: &[usize], dtype: Dtype| {
            let count: usize = shape.iter().product();
            let bytes = vec![0; count * dtype.bitsize() / 8];
            let view = |name: &str| {
                let view = TensorView::new(dtype, shape.to_vec(), &bytes).unwrap();
                (name.to_owned(), view)
            };
            parse(&safetensors::serialize(names.map(view), None).unwrap()).unwrap_err()
        };
        assert_eq!(
            refused(["mu", "sigma"], &[2, 1, 3], Dtype::F32),
            "tensor log_var is missing"
        );
        assert_eq!(
            refused(["mu", "log_var"], &[6], Dtype::F32),
            "tensor mu has the shape [6], not [layers, latents, hidden size]"
        );
        assert_eq!(
            refused(["mu", "log_var"], &[2, 1, 3], Dtype::BF16),
            "tensor mu is BF16, not F32"
        );
        assert!(parse(b"no such file").is_err());
    }
}
