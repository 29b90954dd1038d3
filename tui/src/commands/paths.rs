//! Arguments that name models and files, as the daemon takes them.

use std::path::Path;

use sluice_proto::v1::model_ref::By;
use sluice_shared::compression::is_container_path;

use crate::output::Failure;

/// A path if it exists or looks like one, as file names do; else a model's name.
pub(super) fn subject(argument: &Path) -> Result<By, Failure> {
    let text = argument.to_string_lossy();
    let is_file =
        argument.extension().is_some_and(|ending| ending == "gguf") || is_container_path(argument);
    let looks_like_path = is_file || text.starts_with(['/', '.', '~']) || text.ends_with('/');
    match argument.exists() || looks_like_path {
        true => absolute(argument).map(By::Path),
        false => Ok(By::Name(text.into_owned())),
    }
}

/// The path made absolute: the daemon has another working folder.
pub(super) fn absolute(dir: &Path) -> Result<String, Failure> {
    let shown = dir.display();
    let path = std::path::absolute(dir)
        .map_err(|error| Failure::new(format!("make '{shown}' absolute: {error}")))?;
    let path = path.into_os_string().into_string();
    path.map_err(|_| Failure::new(format!("the path '{shown}' is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_path_is_a_name() {
        let name = |text: &str| Ok::<_, ()>(By::Name(text.to_owned()));
        let meant = |text: &str| subject(Path::new(text)).map_err(drop);
        assert_eq!(
            meant("GSAI-ML/LLaDA-8B-Instruct"),
            name("GSAI-ML/LLaDA-8B-Instruct")
        );
        assert_eq!(meant("a/b:Q4_K_M"), name("a/b:Q4_K_M"));
        assert_eq!(meant("/nowhere"), Ok(By::Path("/nowhere".to_owned())));
        for path in ["./nowhere", "src", "nowhere/", "llada.sluice", "m/q4.gguf"] {
            assert!(matches!(meant(path), Ok(By::Path(_))), "{path}");
        }
    }

    #[test]
    fn paths_become_absolute() {
        let path = absolute(Path::new("models/x")).unwrap();
        assert!(
            path.starts_with('/') && path.ends_with("models/x"),
            "{path}"
        );
    }
}
