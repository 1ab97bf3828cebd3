//! How fast data reaches a device and comes back, by size.
//!
//! Every size is sent from ordinary memory and from memory that burn prepared for it (pinned, on a GPU), and what comes
//! back is compared with what was sent.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;

use super::random::Uniform;
use super::throughput::median;

/// Bytes per transfer: from one that only pays latency to one that fills the bus.
pub(super) const SIZES: &[usize] = &[4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
const RUNS: usize = 7;

/// Transfers of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Transfer {
    /// Which way, and from which memory.
    pub direction: Direction,
    /// Bytes per transfer.
    pub bytes: usize,
    /// Median time, seconds.
    pub median_s: f64,
    /// Bytes over the median time.
    pub bytes_per_s: f64,
    /// Whether every byte came back as it was sent.
    pub intact: bool,
}

/// Which way, and from which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Ordinary host memory to the device.
    HostToDevicePageable,
    /// Host memory prepared by burn (`Device::staging`) to the device; the preparing is not timed.
    HostToDeviceStaged,
    /// The device to host memory.
    DeviceToHost,
}

pub(super) fn measure(
    device: &Device,
    sizes: &[usize],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Transfer>, String> {
    let mut transfers = Vec::new();
    for bytes in sizes.iter().copied() {
        progress(&format!("transferring {} KiB", bytes >> 10));
        let values: Vec<f32> = Uniform::new(1, bytes as u64).take(bytes / 4).collect();
        transfers.extend(one_size(device, &values)?);
    }
    if let Some(broken) = transfers.iter().find(|transfer| !transfer.intact) {
        return Err(format!(
            "{} bytes came back changed ({:?})",
            broken.bytes, broken.direction
        ));
    }
    Ok(transfers)
}

fn one_size(device: &Device, values: &[f32]) -> Result<Vec<Transfer>, String> {
    let mut transfers = Vec::new();
    let mut back = Vec::new();
    let mut back_is_intact = true;
    for (direction, staged) in [
        (Direction::HostToDevicePageable, false),
        (Direction::HostToDeviceStaged, true),
    ] {
        let mut there = Vec::new();
        let mut intact = true;
        // The first one allocates and is not counted.
        for run in 0..=RUNS {
            let mut data = TensorData::new(values.to_vec(), [values.len()]);
            if staged {
                device.staging(std::iter::once(&mut data));
            }
            synced(device)?;
            let begun = Instant::now();
            let tensor = Tensor::<1>::from_data(data, device);
            synced(device)?;
            let sent = begun.elapsed().as_secs_f64();

            let begun = Instant::now();
            let data = tensor.try_into_data().map_err(|error| error.to_string())?;
            let returned = begun.elapsed().as_secs_f64();
            let received = data.as_slice::<f32>().map_err(|error| format!("{error:?}"))?;
            intact &= received == values;
            if run > 0 {
                there.push(sent);
                back.push(returned);
            }
        }
        back_is_intact &= intact;
        transfers.push(transfer(direction, values.len() * 4, &mut there, intact)?);
    }
    transfers.push(transfer(
        Direction::DeviceToHost,
        values.len() * 4,
        &mut back,
        back_is_intact,
    )?);
    Ok(transfers)
}

fn transfer(
    direction: Direction,
    bytes: usize,
    seconds: &mut [f64],
    intact: bool,
) -> Result<Transfer, String> {
    let median_s = median(seconds).ok_or("nothing was timed")?;
    Ok(Transfer {
        direction,
        bytes,
        median_s,
        bytes_per_s: bytes as f64 / median_s.max(1e-9),
        intact,
    })
}

fn synced(device: &Device) -> Result<(), String> {
    device.sync().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the processor nothing moves far, but every byte goes the same way through burn.
    #[test]
    fn what_is_sent_comes_back_by_every_way() {
        let transfers = measure(&Device::flex(), &[4096, 1 << 20], &mut |_| ()).unwrap();
        assert_eq!(transfers.len(), 6);
        for transfer in transfers {
            assert!(transfer.intact);
            assert!(
                transfer.median_s >= 0.0 && transfer.bytes_per_s > 0.0,
                "{transfer:?}"
            );
        }
    }
}
