//! A Python interpreter with a NATS client, for tests that run Python programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::cache::{build_once, cache_dir, run};

/// Installed packages, pinned so that tests are reproducible.
const PACKAGES: [&str; 2] = ["nats-py==2.16.0", "msgpack==1.2.4"];
const IMPORTS: &str = "import nats, msgpack";

/// A Python interpreter that has `nats-py` and `msgpack`.
///
/// In this order: the environment variable `KASKADE_PYTHON`; a virtual environment under cargo's target directory, made
/// once with `python3 -m venv` and pip; the `python3` on the `PATH` if it happens to have both modules.
///
/// # Panics
/// When none is found; the message says what was tried and what to install.
pub fn python() -> PathBuf {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(find) {
        Ok(path) => path.clone(),
        Err(message) => panic!("{message}"),
    }
}

fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("KASKADE_PYTHON") {
        let path = PathBuf::from(named);
        return usable(&path).map_err(|e| format!("KASKADE_PYTHON={}: {e}", path.display()));
    }
    environment().or_else(|venv| {
        usable(Path::new("python3")).map_err(|system| {
            format!(
                "no Python with nats-py and msgpack to test with.\n  a virtual environment: {venv}\n  on the PATH: \
                 {system}\nInstall python3 with venv and pip (Debian: apt-get install python3-venv), or name an \
                 interpreter that has both modules in KASKADE_PYTHON."
            )
        })
    })
}

fn usable(interpreter: &Path) -> Result<PathBuf, String> {
    run(Command::new(interpreter).args(["-c", IMPORTS]))?;
    Ok(interpreter.to_path_buf())
}

fn environment() -> Result<PathBuf, String> {
    with_packages("python", &PACKAGES, IMPORTS)
}

/// A Python interpreter that has what the package of `sdk/python` needs: `nats-py`, `msgpack` and `numpy`.
///
/// In this order: the environment variable `KASKADE_PYTHON`; a virtual environment under cargo's target directory, made once; the
/// `python3` on the `PATH`. The error says why there is none, for a test that is skipped then.
///
/// # Errors
/// What Python or pip says.
pub fn sdk_python() -> Result<PathBuf, String> {
    const IMPORTS: &str = "import nats, msgpack, numpy";
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let has = |interpreter: &Path| {
        run(Command::new(interpreter).args(["-c", IMPORTS])).map(|_| interpreter.to_path_buf())
    };
    let find = || {
        if let Some(named) = std::env::var_os("KASKADE_PYTHON") {
            return has(Path::new(&named));
        }
        let [nats, msgpack] = PACKAGES;
        with_packages("sdk", &[nats, msgpack, "numpy"], IMPORTS)
            .or_else(|venv| has(Path::new("python3")).map_err(|system| format!("{venv}; {system}")))
    };
    FOUND.get_or_init(find).clone()
}

/// A Python interpreter that has `numpy`, `onnx` and `onnxruntime`, in a virtual environment under cargo's target
/// directory that is made once. The error says why there is none: such packages cannot be had everywhere, so a test
/// that needs them is skipped with that reason on standard error.
///
/// # Errors
/// What Python or pip says.
pub fn onnx_python() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let packages = ["numpy", "onnx", "onnxruntime"];
    let found = FOUND.get_or_init(|| with_packages("onnx", &packages, "import numpy, onnx, onnxruntime"));
    found.clone()
}

/// Makes a virtual environment with packages from `PyPI`, once, and returns its interpreter.
fn with_packages(prefix: &str, packages: &[&str], imports: &str) -> Result<PathBuf, String> {
    // The name holds the pins, so that a changed pin makes a new environment.
    let name = packages.join("-").replace("==", "-").replace('.', "_");
    let dir = cache_dir()?.join(format!("{prefix}-{name}"));
    build_once(&dir, |scratch| {
        run(Command::new("python3").args(["-m", "venv"]).arg(scratch))?;
        run(Command::new(scratch.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(packages))?;
        eprintln!(
            "kaskade-testkit: {} installed from PyPI into {}",
            packages.join(" and "),
            dir.display()
        );
        Ok(())
    })?;
    // The environment was renamed: its interpreter still finds its modules, its scripts (such as pip) do not work, and
    // nothing here uses them.
    let interpreter = dir.join("bin/python");
    run(Command::new(&interpreter).args(["-c", imports]))?;
    Ok(interpreter)
}
