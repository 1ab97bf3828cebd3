//! A stand-in for `cubecl-llvm` 0.11.3 that holds no LLVM.
//!
//! # Why it exists
//! `cubecl-cuda` has two ways to turn a kernel into something a driver can load: CUDA C++ compiled by NVRTC at run
//! time, and PTX written by LLVM. Its feature `cpp` chooses the first, yet it depends on the second all the same, and
//! the build script of the real `cubecl-llvm` downloads a built LLVM from outside crates.io. Where that download is
//! closed, nothing that depends on `cubecl-cuda` builds. Kaskade uses NVRTC only, so this crate takes the place of the
//! real one through `[patch.crates-io]`: it has the items that `cubecl-cuda` names, and a compiler that always answers
//! with an error.
//!
//! # What it cannot do
//! It compiles no kernel. A CUDA runtime built without `cubecl/cuda-cpp` would reach [`PlironCompiler::compile`], which
//! says so; [`NvptxModule`] cannot even be constructed. `cubecl-cpu` and `cubecl-hip`, which need the real crate, do not
//! type-check against this one.
//!
//! # When it can go
//! As soon as `cubecl-cuda` makes its dependency on `cubecl-llvm` optional, or `cubecl-llvm` builds without a download.
//! On every upgrade of burn: delete the `[patch.crates-io]` entry, try `cargo check --features cuda` with only crates.io
//! reachable, and keep this crate only if that fails.

use core::convert::Infallible;
use core::ffi::c_char;
use core::fmt;

use cubecl_core::ir::nvidia::SmArch;
use cubecl_core::prelude::KernelDefinition;
use cubecl_runtime::compiler::{CompilationError, Compiler};
use cubecl_runtime::kernel::BufferIOAttr;

use nvptx::ptx_version::PtxVersion;

/// What belongs to NVIDIA's virtual instruction set.
pub mod nvptx {
    /// The version of the instruction set.
    pub mod ptx_version {
        use core::fmt;

        /// A PTX version. Only its identity matters here: it names a cache folder of the LLVM path, which is never taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion {
            driver: i32,
        }

        impl PtxVersion {
            /// Always `None`: nothing here emits PTX of any version.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "driver{}", self.driver)
            }
        }
    }
}

/// What the targets share.
pub mod shared {
    /// Narrowing of a device's features to what LLVM lowers.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// A target that features are narrowed for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA.
            Nvptx,
        }

        /// Leaves the properties as they are: nothing is compiled with them.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}

/// A target of the LLVM path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// The host.
    #[default]
    Cpu,
    /// NVIDIA.
    Nvptx,
}

/// The compiler that refuses.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// What it was asked to compile for.
    pub target: LlvmTarget,
}

/// The options that `cubecl-cuda` fills in. None is read.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// AMD architecture; there is none.
    pub arch: Option<Infallible>,
    /// NVIDIA architecture.
    pub sm_arch: Option<SmArch>,
    /// PTX version to emit.
    pub ptx_version: Option<PtxVersion>,
    /// Whether scalars travel in the parameter block.
    pub grid_constants: bool,
    /// Whether the caller spelled out every option; it never does, and ends its list with `..Default::default()`.
    pub complete: bool,
}

/// A compiled module. It cannot be constructed.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// PTX, NUL-terminated.
    pub ptx: Vec<c_char>,
    /// Name of the kernel.
    pub entrypoint: String,
    /// Intermediate form, for logs.
    pub ir: String,
    /// Shared memory of a launch, bytes.
    pub shared_memory_size: usize,
    /// What the kernel does with each buffer.
    pub io: Vec<BufferIOAttr>,
    /// Why it cannot be constructed.
    pub never: Infallible,
}

/// What a compilation would give.
#[derive(Clone, Debug)]
pub enum PlironArtifact {
    /// A module for NVIDIA.
    NvptxCode(NvptxModule),
    /// Anything else.
    Other(Infallible),
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvptxCode(module) => f.write_str(&module.ir),
            Self::Other(never) => match *never {},
        }
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &Self::CompilationOptions,
    ) -> Result<Self::Representation, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this program was built without LLVM: enable the feature `cuda-cpp` of cubecl, which compiles kernels \
                     with NVRTC"
                .into(),
            backtrace: Default::default(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
