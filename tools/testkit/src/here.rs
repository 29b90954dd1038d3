//! Tests in this very process, with the stand-in loaded: all of them see the same GPU. With `SLUICE_TEST_GPU=1` they
//! see the machine's own.

use std::{env, sync::OnceLock};

use libloading::os::unix::{Library, RTLD_NOW};

use crate::stand_in;

/// The libraries that are replaced; the others need the first one.
const LIBRARIES: [&str; 3] = ["libcuda.so.1", "libcublas.so.12", "libnvidia-ml.so.1"];

/// Has the stand-in found wherever this process opens NVIDIA's libraries from now on.
///
/// A library that is loaded is known by the name it gives itself, and no other is looked for under that name.
pub fn open_stand_in() {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        if env::var_os("SLUICE_TEST_GPU").is_some_and(|value| value == "1") {
            return;
        }
        let folder = stand_in::build();
        for name in LIBRARIES {
            // SAFETY: the libraries' initializers only set their own variables.
            let library = unsafe { Library::open(Some(folder.join(name)), RTLD_NOW) };
            // It stays loaded for as long as the process runs.
            std::mem::forget(library.unwrap_or_else(|cause| panic!("open the stand-in: {cause}")));
        }
    });
}
