//! Which model a request is about.

use std::path::PathBuf;

use super::{InvalidField, invalid};
use crate::v1::{self, model_ref::By};

/// Longest name or path: the system's limit for a path.
const BYTES_MAX: usize = 4096;

/// A checked [`v1::ModelRef`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// The one that is loaded.
    Loaded,
    /// The one that the daemon's list calls so; never empty.
    Name(String),
    /// The one at this absolute path.
    Path(PathBuf),
    /// A published shape without weights, by its name.
    Shape(String),
}

impl TryFrom<Option<v1::ModelRef>> for ModelRef {
    type Error = InvalidField;

    fn try_from(wire: Option<v1::ModelRef>) -> Result<Self, InvalidField> {
        match wire.map(|model| model.by) {
            // Unset means the loaded model. Requests that must name one go on with `named` or `name`.
            None => Ok(Self::Loaded),
            Some(None) => Err(invalid("model", "has neither a name nor a path")),
            Some(Some(By::Name(name))) => Ok(Self::Name(bounded("model", name)?)),
            Some(Some(By::Path(path))) => Ok(Self::Path(absolute("model", path)?)),
            Some(Some(By::Shape(name))) => Ok(Self::Shape(bounded("model", name)?)),
        }
    }
}

/// A request's model: the field is never left out where one is said.
impl From<By> for Option<v1::ModelRef> {
    fn from(by: By) -> Self {
        Some(v1::ModelRef { by: Some(by) })
    }
}

impl ModelRef {
    /// The model that a request for text names; empty: the loaded one.
    ///
    /// # Errors
    /// When the name is longer than any.
    pub fn of_request(name: String) -> Result<Self, InvalidField> {
        match name.is_empty() {
            true => Ok(Self::Loaded),
            false => Ok(Self::Name(bounded("model", name)?)),
        }
    }

    /// A model with weights that the request itself names.
    ///
    /// # Errors
    /// When it names none, or a shape.
    pub fn named(self) -> Result<Self, InvalidField> {
        match self {
            Self::Loaded => Err(invalid("model", "is missing")),
            model => model.with_weights(),
        }
    }

    /// A model with weights.
    ///
    /// # Errors
    /// When it is a shape.
    pub fn with_weights(self) -> Result<Self, InvalidField> {
        match self {
            Self::Shape(name) => {
                let problem = format!("the shape {name} has no weights; it can only be planned");
                Err(invalid("model", problem))
            }
            model => Ok(model),
        }
    }

    /// The name, for requests that take nothing else.
    ///
    /// # Errors
    /// When there is none.
    pub fn name(self) -> Result<String, InvalidField> {
        match self {
            Self::Name(name) => Ok(name),
            Self::Loaded => Err(invalid("model", "is missing")),
            Self::Path(_) | Self::Shape(_) => Err(invalid("model", "must be given by its name")),
        }
    }
}

fn bounded(field: &'static str, text: String) -> Result<String, InvalidField> {
    match text.len() {
        0 => Err(invalid(field, "is missing")),
        1..=BYTES_MAX => Ok(text),
        bytes => {
            let problem = format!("has {bytes} bytes; the limit is {BYTES_MAX}");
            Err(invalid(field, problem))
        }
    }
}

/// The daemon has a current folder of its own.
pub(super) fn absolute(field: &'static str, path: String) -> Result<PathBuf, InvalidField> {
    let path = bounded(field, path)?;
    if !path.starts_with('/') {
        return Err(invalid(field, format!("must be absolute, not '{path}'")));
    }
    if path.contains('\0') {
        return Err(invalid(field, "has a zero byte, which no path has"));
    }
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(by: By) -> Result<ModelRef, String> {
        ModelRef::try_from(Option::from(by)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_is_meant_in_one_of_four_ways() {
        assert_eq!(ModelRef::try_from(None), Ok(ModelRef::Loaded));
        let name = || ModelRef::Name("o/m".to_owned());
        assert_eq!(read(By::Name("o/m".to_owned())), Ok(name()));
        let path = || ModelRef::Path("/m".into());
        assert_eq!(read(By::Path("/m".to_owned())), Ok(path()));
        let shape = || ModelRef::Shape("llada-8b".to_owned());
        assert_eq!(read(By::Shape("llada-8b".to_owned())), Ok(shape()));

        assert_eq!(ModelRef::of_request(String::new()), Ok(ModelRef::Loaded));
        assert_eq!(ModelRef::of_request("o/m".to_owned()), Ok(name()));
        assert!(ModelRef::of_request("n".repeat(4097)).is_err());

        assert_eq!(path().named(), Ok(path()));
        assert_eq!(ModelRef::Loaded.with_weights(), Ok(ModelRef::Loaded));
        for wrong in [ModelRef::Loaded.named(), shape().named()] {
            assert_eq!(wrong.unwrap_err().field, "model");
        }
        assert_eq!(name().name(), Ok("o/m".to_owned()));
        for wrong in [ModelRef::Loaded, path(), shape()] {
            assert_eq!(wrong.name().unwrap_err().field, "model");
        }
    }

    #[test]
    fn names_and_paths_that_lead_nowhere_are_refused() {
        let nothing = ModelRef::try_from(Some(v1::ModelRef::default()));
        assert_eq!(
            nothing.unwrap_err().to_string(),
            "model: has neither a name nor a path"
        );
        for (by, problem) in [
            (By::Name(String::new()), "model: is missing"),
            (
                By::Name("n".repeat(4097)),
                "model: has 4097 bytes; the limit is 4096",
            ),
            (By::Path("m".to_owned()), "model: must be absolute, not 'm'"),
            (
                By::Path("/m\0".to_owned()),
                "model: has a zero byte, which no path has",
            ),
        ] {
            assert_eq!(read(by).unwrap_err(), problem);
        }
    }
}
