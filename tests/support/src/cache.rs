//! The folder under cargo's target directory that keeps what was fetched, and the lock that makes processes take turns.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `testkit` under cargo's target directory; created if absent.
pub(crate) fn cache_dir() -> Result<PathBuf, String> {
    let dir = target_dir().join("testkit");
    fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    Ok(dir)
}

/// Cargo marks its target directory with `CACHEDIR.TAG`, and every test binary lies inside it. That finds it whatever
/// set it (environment, configuration, default) and whatever the working directory is.
fn target_dir() -> PathBuf {
    let marked = std::env::current_exe().ok().and_then(|exe| {
        exe.ancestors()
            .find(|dir| dir.join("CACHEDIR.TAG").is_file())
            .map(Path::to_path_buf)
    });
    marked.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}

/// Makes `dir` exist by calling `build` on a scratch folder that is then renamed, so that `dir` is never seen half made.
/// Processes that want the same folder wait for the first one.
pub(crate) fn build_once(dir: &Path, build: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    if dir.is_dir() {
        return Ok(());
    }
    let _turn = lock(&dir.with_extension("lock"))?;
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

/// Runs a command to its end and gives its standard output; what it wrote to standard error explains a failure.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|e| format!("cannot run {shown}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{shown} ended with {}: {}", output.status, stderr.trim()))
}
