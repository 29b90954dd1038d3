//! The Debian package, from the archive's tree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Purpose, epoch, run_checked, succeeded};
use crate::system::{TemporaryFolder, root};

/// Folders of the archive, and where a package has them.
const PLACES: [(&str, &str); 12] = [
    ("bin", "usr/bin"),
    ("share/man", "usr/share/man"),
    ("share/bash-completion", "usr/share/bash-completion"),
    (
        "share/zsh/site-functions",
        "usr/share/zsh/vendor-completions",
    ),
    ("share/fish", "usr/share/fish"),
    ("share/doc", "usr/share/doc"),
    ("lib/systemd/system", "usr/lib/systemd/system"),
    ("lib/systemd/user", "usr/lib/systemd/user"),
    (
        "lib/systemd/examples",
        "usr/share/doc/sluice/examples/sluice.service.d",
    ),
    ("lib/sysusers.d", "usr/lib/sysusers.d"),
    ("lib/tmpfiles.d", "usr/lib/tmpfiles.d"),
    ("etc/sluice", "etc/sluice"),
];

/// Makes the package in a folder; its path. `glibc` is the least minor version that the programs need.
pub(super) fn make(
    tree: &Path,
    version: &str,
    glibc: u32,
    purpose: Purpose,
    out: &Path,
) -> io::Result<PathBuf> {
    let folder = TemporaryFolder::new("deb")?;
    let package = folder.path().join("sluice");
    for (from, to) in PLACES {
        let to = package.join(to);
        fs::create_dir_all(to.parent().expect("it has one"))?;
        run_checked(Command::new("cp").arg("-a").arg(tree.join(from)).arg(to))?;
    }
    // The folder itself is private.
    run_checked(
        Command::new("chmod")
            .args(["-R", "u+rwX,go+rX,go-w"])
            .arg(&package),
    )?;
    let source = root().join("packaging/debian");
    let doc = package.join("usr/share/doc/sluice");
    fs::copy(source.join("copyright"), doc.join("copyright"))?;
    changelog(version, &doc)?;
    let overrides = package.join("usr/share/lintian/overrides");
    fs::create_dir_all(&overrides)?;
    fs::copy(source.join("lintian-overrides"), overrides.join("sluice"))?;
    let architecture = architecture();
    let control = package.join("DEBIAN");
    fs::create_dir(&control)?;
    let text = fs::read_to_string(source.join("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", &kibibytes(&package)?.to_string())
        .replace("@GLIBC@", &format!("2.{glibc}"));
    fs::write(control.join("control"), text)?;
    fs::write(control.join("conffiles"), "/etc/sluice/sluiced.toml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        fs::copy(source.join(script), control.join(script))?;
    }
    checksums(&package)?;
    let deb = out.join(format!("sluice_{version}_{architecture}.deb"));
    run_checked(
        Command::new("dpkg-deb")
            .args([
                "--root-owner-group",
                "-Zxz",
                &format!("-z{}", purpose.level()),
                "--build",
            ])
            .arg(&package)
            .arg(&deb)
            .env("SOURCE_DATE_EPOCH", epoch().to_string()),
    )?;
    Ok(deb)
}

/// As Debian names this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Packages have a log of their own, which names the project's.
fn changelog(version: &str, doc: &Path) -> io::Result<()> {
    let date = Command::new("date")
        .args(["-R", "-u", "-d", &format!("@{}", epoch())])
        .env("LC_ALL", "C")
        .output()?;
    succeeded("date", date.status.success())?;
    let date = String::from_utf8_lossy(&date.stdout);
    let text = format!(
        "sluice ({version}) unstable; urgency=medium\n\n  * See /usr/share/doc/sluice/CHANGELOG.md.gz.\n\n \
         -- Sluice developers <sluice@localhost>  {date}"
    );
    let path = doc.join("changelog");
    fs::write(&path, text)?;
    for file in [path, doc.join("CHANGELOG.md"), doc.join("THIRD-PARTY.txt")] {
        run_checked(Command::new("gzip").arg("-9n").arg(file))?;
    }
    Ok(())
}

fn kibibytes(folder: &Path) -> io::Result<u64> {
    let size = Command::new("du")
        .args(["-s", "-k", "--apparent-size"])
        .arg(folder)
        .output()?;
    let text = String::from_utf8_lossy(&size.stdout);
    let first = text.split_whitespace().next();
    first
        .and_then(|first| first.parse().ok())
        .ok_or_else(|| io::Error::other("du gives no size"))
}

/// By which `dpkg --verify` knows what was changed.
fn checksums(package: &Path) -> io::Result<()> {
    let sums = Command::new("sh")
        .args([
            "-c",
            "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum",
        ])
        .current_dir(package)
        .output()?;
    succeeded("md5sum", sums.status.success())?;
    fs::write(package.join("DEBIAN/md5sums"), sums.stdout)
}
