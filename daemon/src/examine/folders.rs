//! What is found of the folders that the daemon writes to, and of the disk below them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access, statvfs};
use sluice_checkpoint::file_bandwidth;
use sluice_proto::v1::Finding;
use sluice_report::findings::{ok, problem, warning};
use sluice_shared::units;

use crate::config::Config;

/// Free space that a small model takes.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// A disk that is slower makes streaming hopeless: 100 MB/s.
const READ_BYTES_PER_S_MIN: f64 = 1e8;
/// Entries of the models' folder that are looked at for a file to measure with.
const ENTRIES_MAX: usize = 10_000;
/// Folders below the models' own in which files of models are: OWNER/NAME, and a folder in that.
const DEPTH_MAX: usize = 3;

pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let models = config.models.value.0.as_deref();
    let limit = config.weight_cache_limit.value.bytes();
    vec![
        folder(
            "models",
            models,
            "nothing can be downloaded: set `models`, or HOME",
        ),
        folder(
            "converted weights",
            config.weight_cache.value.0.as_deref(),
            &match limit {
                Some(bytes) => format!(
                    "weights are converted again at each load: set `weight_cache`, which takes at most {}",
                    units::bytes(bytes)
                ),
                None => "weights are converted again at each load: set `weight_cache`".to_owned(),
            },
        ),
        disk(models),
    ]
}

/// Whether a folder can be written to, and how much room there is. It is made when it is needed.
fn folder(subject: &str, path: Option<&Path>, without: &str) -> Finding {
    let Some(path) = path else {
        return warning(subject, "there is no folder", without);
    };
    let shown = path.display();
    let Some(present) = path.ancestors().find(|path| path.exists()) else {
        return problem(subject, format!("{shown} cannot be made"), without);
    };
    if !present.is_dir() {
        let found = format!("{} is not a folder", present.display());
        return problem(subject, found, "name another, or move it away");
    }
    // The system's own answer, which knows of mounts and sandboxes.
    if let Err(error) = access(present, Access::WRITE_OK | Access::EXEC_OK) {
        let error = io::Error::from(error);
        let found = format!("{} cannot be written to: {error}", present.display());
        let advice = "give it to the daemon's user (`chown`), or name another folder; in a service's sandbox only what \
                      StateDirectory= and CacheDirectory= name can be written to";
        return problem(subject, found, advice);
    }
    let is_there = if present == path {
        ""
    } else {
        ", which is made when it is needed"
    };
    let Ok(system) = statvfs(present) else {
        return ok(subject, format!("{shown}{is_there}"));
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let found = format!("{shown}{is_there}; {} free", units::bytes(free));
    match free < FREE_BYTES_MIN {
        true => warning(
            subject,
            found,
            "free space, or name a folder on another disk",
        ),
        false => ok(subject, found),
    }
}

/// How fast the disk with the models is, by a file that lies on it.
fn disk(models: Option<&Path>) -> Finding {
    const SUBJECT: &str = "disk";
    let Some((path, direct)) = models.and_then(measured) else {
        let found = "not measured: no file of a model, of 1 MiB or more, lies there";
        return ok(SUBJECT, found);
    };
    let rate = format!("{}/s", units::bytes(direct as u64));
    let found = format!("reads {rate}, by {}", path.display());
    match direct < READ_BYTES_PER_S_MIN {
        true => warning(
            SUBJECT,
            found,
            "weights that don't fit the memory are read in every pass: keep models on a faster disk, or choose a smaller level",
        ),
        false => ok(SUBJECT, found),
    }
}

/// The file that was read, and its bytes per second past the page cache. The largest of the models' files, else this program's
/// own file if it is on the same disk.
fn measured(models: &Path) -> Option<(PathBuf, f64)> {
    let own = || {
        let own = std::env::current_exe().ok()?;
        let device = |path: &Path| Some(fs::metadata(path).ok()?.dev());
        let present = models.ancestors().find(|path| path.exists())?;
        (device(&own) == device(present)).then_some(own)
    };
    let path = largest_file(models).or_else(own)?;
    let rate = file_bandwidth(&path).direct_bytes_per_s?;
    Some((path, rate))
}

/// The largest file in a folder and the folders below, as far as it is looked at.
fn largest_file(folder: &Path) -> Option<PathBuf> {
    let mut largest = None;
    let mut folders = vec![(folder.to_owned(), 0)];
    let mut left = ENTRIES_MAX;
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten().take(left) {
            left -= 1;
            // Not what a link leads to, which may lie on another disk.
            let Ok(facts) = entry.metadata() else {
                continue;
            };
            if facts.is_dir() && depth < DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            } else if facts.is_file() && largest.as_ref().is_none_or(|(len, _)| *len < facts.len())
            {
                largest = Some((facts.len(), entry.path()));
            }
        }
    }
    let (len, path) = largest?;
    (len >= sluice_checkpoint::MEASURED_BYTES_MIN).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sluice_proto::v1::FindingState::{Ok as Fine, Problem, Warning};

    use super::*;

    #[test]
    fn a_folder_is_there_or_can_be_made_or_is_a_problem() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let found = folder("models", Some(&path), "");
        assert_eq!(found.state(), Fine);
        assert!(found.found.contains("made when it is needed"), "{found:?}");
        fs::create_dir_all(&path).unwrap();
        let found = folder("models", Some(&path), "");
        assert!(
            found.found.starts_with(&format!("{}; ", path.display())),
            "{found:?}"
        );
        assert_eq!(folder("models", None, "set it").state(), Warning);
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(folder("models", Some(&file), "").state(), Problem);
        assert_eq!(folder("models", Some(&file.join("c")), "").state(), Problem);
        if rustix::process::geteuid().is_root() {
            testkit::not_run("root may write everywhere");
            return;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).unwrap();
        let found = folder("models", Some(&path), "");
        assert_eq!(found.state(), Problem);
        assert!(
            found
                .found
                .contains("cannot be written to: Permission denied"),
            "{found:?}"
        );
    }

    #[test]
    fn the_largest_file_is_read_if_it_is_large_enough_to_tell() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(largest_file(place.path()), None);
        fs::create_dir_all(place.path().join("owner/name")).unwrap();
        fs::write(place.path().join("small"), [0; 99]).unwrap();
        assert_eq!(largest_file(place.path()), None);
        let large = place.path().join("owner/name/model.gguf");
        fs::write(&large, vec![1; 2 << 20]).unwrap();
        assert_eq!(largest_file(place.path()), Some(large.clone()));
        let Some((read, rate)) = measured(place.path()) else {
            return testkit::not_run("the temporary folder has no direct reads");
        };
        assert_eq!(read, large);
        assert!(rate > 0.0);
        let found = disk(Some(place.path()));
        assert!(found.found.contains("/s, by "), "{found:?}");
    }
}
