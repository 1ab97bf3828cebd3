//! The folder under cargo's target directory for downloads, and a lock between processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `testkit` under cargo's target directory; created if missing.
pub(crate) fn cache_dir() -> Result<PathBuf, String> {
    let dir = target_dir().join("testkit");
    fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    Ok(dir)
}

/// Cargo marks its target directory with `CACHEDIR.TAG`, and every test binary lies inside it. So this finds the directory
/// however it was configured, and from any working directory.
fn target_dir() -> PathBuf {
    let marked = std::env::current_exe().ok().and_then(|exe| {
        exe.ancestors()
            .find(|dir| dir.join("CACHEDIR.TAG").is_file())
            .map(Path::to_path_buf)
    });
    marked.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}

/// Creates `dir` by calling `build` on a scratch folder and renaming that, so that `dir` is never incomplete. Other
/// processes that need the same folder wait.
pub(crate) fn build_once(dir: &Path, build: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    if dir.is_dir() {
        return Ok(());
    }
    let _lock = lock(&dir.with_extension("lock"))?;
    if dir.is_dir() {
        return Ok(());
    }
    let scratch = dir.with_extension("partial");
    // Left behind by a process that died while it held the lock.
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).map_err(|e| format!("cannot create {}: {e}", scratch.display()))?;
    build(&scratch)?;
    fs::rename(&scratch, dir)
        .map_err(|e| format!("cannot rename {} to {}: {e}", scratch.display(), dir.display()))
}

/// An exclusive lock on `path`, held until the file is dropped; the system frees it when the process dies.
fn lock(path: &Path) -> Result<File, String> {
    let file = File::create(path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
    file.lock()
        .map_err(|e| format!("cannot lock {}: {e}", path.display()))?;
    Ok(file)
}

/// Runs a command to its end and returns its standard output; the error of a failure holds its standard error.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|e| format!("cannot run {shown}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{shown} ended with {}: {}", output.status, stderr.trim()))
}
