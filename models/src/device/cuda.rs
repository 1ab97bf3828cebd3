//! Opens a GPU: checks the device list and the kernel compiler, then runs one kernel.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use burn::tensor::{Device, DeviceType, Tensor};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};
use nvml_wrapper::Nvml;

use super::{DeviceChoice, DeviceError, panic_message};

/// A kernel that includes the headers of most generated kernels, except the barrier header, which alone takes two
/// seconds to compile.
const PROBE: &str = "#include <cuda_fp16.h>
#include <mma.h>
extern \"C\" __global__ void probe(float *x) { x[threadIdx.x] += 1.0f; }
";

/// One header of each package that generated kernels include (half precision, matrix instructions, barriers of
/// Hopper's bulk copies), the folders to search, and the name of the package on `PyPI`.
const HEADERS: [(&str, &[&str], &str); 3] = [
    ("cuda_fp16.h", &["include"], "nvidia-cuda-runtime"),
    ("crt/mma.h", &["include"], "nvidia-cuda-crt"),
    ("cuda/barrier", &["include/cccl", "include"], "nvidia-cuda-cccl"),
];

const INSTALL_HINT: &str = "install the CUDA toolkit and set CUDA_PATH to it, or install the packages nvidia-cuda-nvrtc, \
                                 nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl from PyPI, set CUDA_PATH to \
                                 site-packages/nvidia/cu13 and add its lib folder to LD_LIBRARY_PATH";

/// Set once NVRTC has compiled the probe, which takes a second.
static COMPILER_WORKS: OnceLock<()> = OnceLock::new();

pub(super) fn open(choice: DeviceChoice, index: u16) -> Result<Device, DeviceError> {
    let devices = catch_panic(|| Device::enumerate(DeviceType::Cuda).into_vec())
        .map_err(|reason| DeviceError::Unusable { choice, reason })?;
    let count = devices.len();
    if count == 0 {
        return Err(DeviceError::NoneFound {
            choice,
            found: driver_state(),
        });
    }
    let Some(device) = devices.into_iter().nth(usize::from(index)) else {
        return Err(DeviceError::OutOfRange { choice, count });
    };
    check_compiler(toolkit_root().as_deref()).map_err(|reason| DeviceError::NoCompiler { choice, reason })?;
    let probe = device.clone();
    catch_panic(move || run_once(&probe))
        .and_then(|outcome| outcome)
        .map_err(|reason| DeviceError::Unusable { choice, reason })?;
    Ok(device)
}

/// Returns the GPU's name and bus address from the driver.
pub(super) fn identity(device: &Device) -> (Option<String>, Option<String>) {
    let device = device.clone();
    let Ok(Some(identity)) = catch_panic(move || device.identity()) else {
        return (None, None);
    };
    let address = identity
        .physical
        .and_then(|physical| physical.pci_address)
        .map(|address| address.to_string());
    (Some(identity.name), address)
}

fn run_once(device: &Device) -> Result<(), String> {
    let sum = Tensor::<1>::from_floats([1.0, 2.0, 4.0], device)
        .add_scalar(1.0)
        .sum();
    let data = sum.try_into_data().map_err(|error| error.to_string())?;
    match data.try_to_vec::<f32>().ok().as_deref() {
        Some([10.0]) => Ok(()),
        other => Err(format!("a sum of 10 was computed as {other:?}")),
    }
}

/// Describes why there is no GPU. NVML comes with every driver and does not panic, so it distinguishes a machine
/// without a driver from a driver that hides its GPUs.
fn driver_state() -> String {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            return format!(
                "no working NVIDIA driver ({error}); install one, or start the container with GPUs (`--gpus all`)"
            );
        }
    };
    let driver = nvml
        .sys_driver_version()
        .unwrap_or_else(|_| "of unknown version".into());
    match nvml.device_count() {
        Ok(0) | Err(_) => format!("driver {driver} is installed but lists no GPU"),
        Ok(count) => format!(
            "driver {driver} lists {count} GPU(s), but CUDA can use none: look at CUDA_VISIBLE_DEVICES, at the permissions of \
             /dev/nvidia*, and whether libcuda.so.1 is there"
        ),
    }
}

/// Returns the directory in which cubecl searches for headers, by its own rules; without one, cubecl panics at the
/// first kernel.
fn toolkit_root() -> Option<PathBuf> {
    if let Some(root) = std::env::var_os("CUDA_PATH") {
        return Some(root.into());
    }
    [
        ("/usr/local/cuda", "/usr/local/cuda"),
        ("/opt/cuda", "/opt/cuda"),
        ("/usr/bin/nvcc", "/usr"),
    ]
    .into_iter()
    .find(|(sign, _)| Path::new(sign).exists())
    .map(|(_, root)| root.into())
}

fn check_compiler(root: Option<&Path>) -> Result<(), String> {
    if COMPILER_WORKS.get().is_some() {
        return Ok(());
    }
    let Some(root) = root else {
        return Err(format!(
            "CUDA's headers were not found in CUDA_PATH, /usr/local/cuda or /opt/cuda; {INSTALL_HINT}"
        ));
    };
    check_headers(root)?;
    compile_probe(root).map_err(|reason| format!("{reason}; {INSTALL_HINT}"))?;
    COMPILER_WORKS.get_or_init(|| ());
    Ok(())
}

fn check_headers(root: &Path) -> Result<(), String> {
    for (header, folders, package) in HEADERS {
        if !folders
            .iter()
            .any(|folder| root.join(folder).join(header).is_file())
        {
            return Err(format!(
                "the header {header} (PyPI: {package}) is not in {}; {INSTALL_HINT}",
                root.join("include").display()
            ));
        }
    }
    Ok(())
}

fn compile_probe(root: &Path) -> Result<(), String> {
    let options = CompileOptions {
        include_paths: vec![root.join("include").display().to_string()],
        arch: Some("compute_80"),
        ..CompileOptions::default()
    };
    match catch_panic(move || compile_ptx_with_opts(PROBE, options)) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(CompileError::CompileError { log, .. })) => {
            Err(format!("NVRTC failed: {}", log.to_string_lossy().trim()))
        }
        Ok(Err(error)) => Err(format!("NVRTC failed: {error}")),
        Err(reason) => Err(format!("NVRTC cannot be loaded: {reason}")),
    }
}

fn catch_panic<T>(call: impl FnOnce() -> T + std::panic::UnwindSafe) -> Result<T, String> {
    catch_unwind(call).map_err(|payload| panic_message(payload.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, header: &str) {
        let file = root.join(header);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }

    #[test]
    fn a_missing_header_is_named_with_its_package() {
        let root = tempfile::tempdir().unwrap();
        let rejection = || check_headers(root.path()).unwrap_err();
        assert!(
            rejection().contains("cuda_fp16.h (PyPI: nvidia-cuda-runtime)"),
            "{}",
            rejection()
        );
        touch(root.path(), "include/cuda_fp16.h");
        assert!(rejection().contains("nvidia-cuda-crt"), "{}", rejection());
        touch(root.path(), "include/crt/mma.h");
        assert!(rejection().contains("nvidia-cuda-cccl"), "{}", rejection());
        touch(root.path(), "include/cccl/cuda/barrier");
        assert_eq!(check_headers(root.path()), Ok(()));
    }

    /// Expects an error that names the missing header, or NVRTC if that is missing too.
    #[test]
    fn a_probe_that_does_not_compile_gives_a_reason() {
        let root = tempfile::tempdir().unwrap();
        let reason = compile_probe(root.path()).unwrap_err();
        assert!(
            reason.contains("cuda_fp16.h") || reason.contains("NVRTC"),
            "{reason}"
        );
    }

    /// Expects a compiled probe if the toolkit or its packages are installed, else an error that names what to
    /// install.
    #[test]
    fn the_compiler_works_or_the_error_names_what_to_install() {
        if let Err(rejection) = check_compiler(toolkit_root().as_deref()) {
            assert!(
                rejection.contains("CUDA_PATH") && rejection.contains("nvidia-cuda-nvrtc"),
                "{rejection}"
            );
        }
    }
}
