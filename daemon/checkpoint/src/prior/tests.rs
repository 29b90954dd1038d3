use std::{collections::HashMap, fs, path::Path};

use ::safetensors::{Dtype, serialize, tensor::TensorView};
use tempfile::TempDir;

use super::*;
use crate::Source;

const SHAPE: PriorShape = PriorShape {
    vectors: 2,
    latent_width: 3,
    width: 4,
    layers: 1,
    heads: 2,
};

type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

fn tensors() -> Tensors {
    let each = SHAPE.tensors().into_iter().map(|(name, shape)| {
        let count = shape.iter().product();
        (name, shape, vec![1.0; count])
    });
    each.collect()
}

fn write(folder: &Path, config: &str, tensors: &Tensors) {
    fs::write(folder.join(CONFIG_NAME), config).unwrap();
    let views = tensors.iter().map(|(name, shape, values)| {
        let bytes = bytemuck::cast_slice(values);
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    let none: Option<HashMap<String, String>> = None;
    fs::write(folder.join(WEIGHTS_NAME), serialize(views, none).unwrap()).unwrap();
}

const CONFIG: &str = r#"{"vectors": 2, "latent_width": 3, "width": 4, "layers": 1, "heads": 2}"#;

/// A folder with a checkpoint of one tensor.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let zeros = [0; 4];
    let view = TensorView::new(Dtype::F32, vec![1], &zeros).unwrap();
    let none: Option<HashMap<String, String>> = None;
    let bytes = serialize([("x", view)], none).unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

fn read(folder: &Path) -> Result<Option<Vec<f32>>, CheckpointError> {
    let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned()))?;
    let Some(file) = checkpoint.prior([2, 3])? else {
        return Ok(None);
    };
    let mut values = vec![0.0; file.elements()];
    file.read(&mut values)?;
    Ok(Some(values))
}

#[test]
fn a_prior_is_read_in_the_order_of_its_shape() {
    let folder = folder();
    assert_eq!(read(folder.path()).unwrap(), None);
    let mut all = tensors();
    for (index, (_, _, values)) in all.iter_mut().enumerate() {
        values.fill(index as f32 + 1.0);
    }
    let expected: Vec<f32> = all
        .iter()
        .flat_map(|(_, _, values)| values.clone())
        .collect();
    write(folder.path(), CONFIG, &all);
    assert_eq!(read(folder.path()).unwrap(), Some(expected));
}

#[test]
fn what_is_no_prior_of_the_model_is_refused_by_name() {
    let folder = folder();
    let refused = |config: &str, change: fn(&mut Tensors)| {
        let mut all = tensors();
        change(&mut all);
        write(folder.path(), config, &all);
        read(folder.path()).unwrap_err().to_string()
    };
    let config = |from: &str, to: &str| CONFIG.replace(from, to);
    let cases = [
        (
            refused(&config("\"vectors\": 2", "\"vectors\": 9"), |_| {}),
            "for 9 latents of 3 elements, and the model has 2 of 3",
        ),
        (
            refused(&config("\"layers\": 1", "\"layers\": 99999999"), |_| {}),
            "layers is 99999999, not from 1 to 64",
        ),
        (
            refused(&config("\"width\": 4", "\"width\": -4"), |_| {}),
            "prior.json",
        ),
        (
            refused(&config("\"heads\": 2", "\"heads\": 3"), |_| {}),
            "a multiple of the 3 heads",
        ),
        (refused("[", |_| {}), "prior.json"),
        (
            refused(CONFIG, |all| drop(all.remove(3))),
            "tensor input.weight is missing",
        ),
        (
            refused(CONFIG, |all| all[2].1 = vec![4, 2]),
            "tensor places has shape [4, 2]; prior.json requires [2, 4]",
        ),
        (
            refused(CONFIG, |all| all[7].2[1] = f32::NAN),
            "tensor time.1.weight has elements that are not finite",
        ),
        (
            refused(CONFIG, |all| all[1].2[5] = 0.0),
            "tensor deviation has elements that are not positive",
        ),
        (
            refused(CONFIG, |all| {
                all.push(("more".to_owned(), vec![1], vec![0.0]));
            }),
            "tensor more is not that of a prior",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}");
    }
    fs::write(folder.path().join(CONFIG_NAME), CONFIG).unwrap();
    fs::write(folder.path().join(WEIGHTS_NAME), b"short").unwrap();
    assert!(read(folder.path()).is_err());
    fs::remove_file(folder.path().join(WEIGHTS_NAME)).unwrap();
    let missing = read(folder.path()).unwrap_err().to_string();
    assert!(
        missing.ends_with("prior.safetensors is missing"),
        "{missing}"
    );
}
