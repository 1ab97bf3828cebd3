//! The handle of an opened device.

/// The device on which a model's tensors are stored and computed; selected at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// Host memory with the kernels of this crate.
    Cpu,
    /// A device of burn.
    #[cfg(feature = "burn")]
    Burn(burn::tensor::Device),
}

impl Device {
    /// Frees memory that the device's allocator has cached.
    pub(crate) fn release_memory(&self) {
        match self {
            Self::Cpu => {}
            #[cfg(feature = "burn")]
            Self::Burn(device) => device.memory_cleanup(),
        }
    }

    /// Memory reserved by the device's allocator, bytes; `None` if unknown, as on the CPU.
    pub(crate) fn reserved_bytes(&self) -> Option<u64> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "burn")]
            Self::Burn(device) => device.memory_pool_usage().map(|usage| usage.bytes_reserved),
        }
    }
}

/// Evaluates an expression with a name bound to the [`Ops`](crate::ops::Ops) of a device.
macro_rules! with_ops {
    ($device:expr, $ops:ident => $body:expr) => {
        match $device {
            $crate::device::Device::Cpu => {
                let $ops = $crate::ops::cpu::Cpu;
                $body
            }
            #[cfg(feature = "burn")]
            $crate::device::Device::Burn(device) => {
                let $ops = $crate::ops::burn::Burn::new(device.clone());
                $body
            }
        }
    };
}
pub(crate) use with_ops;
