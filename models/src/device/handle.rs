//! The handle of an opened device.

/// The device that a model's tensors are stored and computed on; selected at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// Host memory and the CPU kernels.
    Cpu,
    /// A device of burn.
    #[cfg(feature = "burn")]
    Burn(burn::tensor::Device),
}

impl Device {
    /// Returns memory that the device keeps for later use.
    pub(crate) fn release_memory(&self) {
        match self {
            Self::Cpu => {}
            #[cfg(feature = "burn")]
            Self::Burn(device) => device.memory_cleanup(),
        }
    }

    /// Memory that the device keeps, bytes; `None` if unknown, as on the CPU.
    pub(crate) fn reserved_bytes(&self) -> Option<u64> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "burn")]
            Self::Burn(device) => device.memory_pool_usage().map(|usage| usage.bytes_reserved),
        }
    }
}

/// Evaluates an expression with the operations of a device bound to a name.
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
