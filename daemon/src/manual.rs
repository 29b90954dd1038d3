//! `sluiced man`: the manual pages, for packages.

use std::{fs, path::PathBuf};

use clap::{Args, Command};
use sluice_shared::exit;

use crate::config;

/// `sluiced man`.
#[derive(Debug, Args)]
pub struct Manual {
    /// Folder for the pages, which is made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages of the program, of its commands and of the configuration file; the exit code.
#[must_use]
pub fn run(options: &Manual, program: Command) -> u8 {
    let folder = &options.folder;
    let written = fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(program, folder))
        .and_then(|()| fs::write(folder.join("sluiced.toml.5"), config::manual()));
    match written {
        Ok(()) => exit::OK,
        Err(error) => {
            eprintln!(
                "sluiced: cannot write manual pages into {}: {error}",
                folder.display()
            );
            exit::FAILURE
        }
    }
}
