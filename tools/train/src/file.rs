//! Files that are replaced as a whole, so that a kill leaves the old one or the new one.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// Writes under a temporary name beside the file, then renames.
pub fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let temporary = path.with_extension("partial");
    fs::write(&temporary, bytes).with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("rename to {}", path.display()))
}
