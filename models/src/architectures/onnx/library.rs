//! Finds and loads the library of ONNX Runtime, once per process.
//!
//! Search order: the file in `ORT_DYLIB_PATH`; the library in the package `onnxruntime` of the `python3` on the
//! `PATH`; `libonnxruntime.so` in the search path of the system's loader.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ort::environment::{Environment, GlobalThreadPoolOptions};

use crate::checkpoint::LoadError;

/// Environment variable with the path of the library.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// Python program that prints the path of the library in the package, without importing it. The empty path is the
/// current directory.
const FIND: &str = "
import sys
sys.path = [path for path in sys.path if path]
import importlib.util, pathlib
package = importlib.util.find_spec('onnxruntime')
if package and package.origin:
    capi = pathlib.Path(package.origin).parent / 'capi'
    for pattern in ('libonnxruntime.so*', 'libonnxruntime*.dylib', 'onnxruntime.dll'):
        for library in sorted(capi.glob(pattern)):
            print(library)
";

/// Location of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Path in the environment variable.
    Named(PathBuf),
    /// Path in a Python package.
    Python(PathBuf),
    /// Search path of the system's loader.
    System,
}

impl Place {
    fn of(named: Option<OsString>, python: impl FnOnce() -> Option<PathBuf>) -> Self {
        match named.filter(|path| !path.is_empty()) {
            Some(path) => Self::Named(path.into()),
            None => python().map_or(Self::System, Self::Python),
        }
    }

    fn file(&self) -> PathBuf {
        match self {
            Self::Named(path) | Self::Python(path) => path.clone(),
            Self::System => format!(
                "{}onnxruntime{}",
                std::env::consts::DLL_PREFIX,
                std::env::consts::DLL_SUFFIX
            )
            .into(),
        }
    }

    /// Returns why loading from this location failed, and how to fix it.
    fn refusal(&self, error: &str) -> String {
        match self {
            Self::Named(path) => format!(
                "{VARIABLE} names `{}`, which cannot be loaded ({error}); name the library of ONNX Runtime, or unset the variable",
                path.display()
            ),
            Self::Python(path) => format!(
                "`{}`, from the Python package onnxruntime, cannot be loaded ({error}); update the package, or name another \
                 library in {VARIABLE}",
                path.display()
            ),
            Self::System => format!(
                "{VARIABLE} is not set, `python3` has no package onnxruntime, and the system has no such library ({error}); \
                 run `pip install onnxruntime` for that Python, or set {VARIABLE} to a libonnxruntime.so"
            ),
        }
    }
}

/// Returns the environment that all sessions share. Its thread pool runs the operators of all models with as many
/// threads as the CPU kernels use; idle threads sleep.
///
/// # Errors
/// [`LoadError::NoOnnxRuntime`] with how to install the library. The first result of the process is cached.
pub(super) fn environment() -> Result<&'static Environment, LoadError> {
    static LOADED: OnceLock<Result<Environment, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let place = Place::of(std::env::var_os(VARIABLE), in_python);
        let file = place.file();
        let loading = ort::init_from(&file).map_err(|error| place.refusal(&error.to_string()))?;
        tracing::info!(library = %file.display(), "ONNX Runtime loaded");
        let threads = GlobalThreadPoolOptions::default()
            .with_intra_threads(rayon::current_num_threads())
            .and_then(|pool| pool.with_spin_control(false));
        let environment = threads.and_then(|pool| loading.with_global_thread_pool(pool).build());
        environment.map_err(|error| place.refusal(&error.to_string()))
    });
    loaded.as_ref().map_err(|reason| LoadError::NoOnnxRuntime {
        reason: reason.clone(),
    })
}

/// Finds the library in the package of the `python3` on the `PATH`.
fn in_python() -> Option<PathBuf> {
    found_by(&mut Command::new("python3"))
}

/// Finds the library with this Python. Python searches packages in the current directory first, which may contain
/// untrusted files, such as those of a downloaded app, so it runs in the root directory.
fn found_by(python: &mut Command) -> Option<PathBuf> {
    let found = python
        .current_dir("/")
        .args(["-c", FIND])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let printed = String::from_utf8(found.stdout).ok()?;
    printed.lines().next().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_comes_before_python_and_python_before_the_system() {
        let python = || Some(PathBuf::from("/venv/libonnxruntime.so.1"));
        let named = Place::of(Some("/opt/lib.so".into()), python);
        assert_eq!(named, Place::Named("/opt/lib.so".into()));
        assert_eq!(
            Place::of(Some("".into()), python),
            Place::Python("/venv/libonnxruntime.so.1".into())
        );
        assert_eq!(Place::of(None, || None), Place::System);
        assert_eq!(Place::System.file(), PathBuf::from("libonnxruntime.so"));
    }

    #[test]
    fn no_library_of_the_current_directory_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let capi = folder.path().join("onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        std::fs::write(folder.path().join("onnxruntime/__init__.py"), "").unwrap();
        std::fs::write(capi.join("libonnxruntime.so.1"), "").unwrap();
        let find = |paths: &str| {
            let mut python = Command::new("python3");
            found_by(python.current_dir(folder.path()).env("PYTHONPATH", paths))
        };
        let own = folder.path().to_str().unwrap();
        assert!(
            find(own).unwrap().starts_with(folder.path()),
            "a stated path counts"
        );
        // An empty element of the variable means the current directory, too.
        for relative in ["", ".", "other:"] {
            let found = find(relative);
            assert!(
                found.is_none_or(|found| !found.starts_with(folder.path())),
                "{relative}"
            );
        }
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        for place in [
            Place::Named("/a".into()),
            Place::Python("/b".into()),
            Place::System,
        ] {
            let refusal = place.refusal("no such file");
            assert!(
                refusal.contains("no such file") && refusal.contains(VARIABLE),
                "{refusal}"
            );
        }
        assert!(Place::System.refusal("x").contains("pip install onnxruntime"));
    }
}
