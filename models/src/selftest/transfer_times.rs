//! Measures transfers between host and device with burn.
//!
//! Sends each size from pageable memory and from memory staged by burn (pinned, on a GPU), and compares the returned
//! bytes with those sent.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};

use super::random::Uniform;
use super::throughput::median;
use super::transfers::{Direction, Transfer};

/// Transfer sizes, bytes: from latency-bound to bandwidth-bound.
pub(super) const SIZES: &[usize] = &[4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
const RUNS: usize = 7;

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
            "{} bytes were returned changed ({:?})",
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
        // The first transfer allocates and is not timed.
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

    /// On the CPU the transfers are copies, but use the same code of burn.
    #[test]
    fn transferred_bytes_return_unchanged() {
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
