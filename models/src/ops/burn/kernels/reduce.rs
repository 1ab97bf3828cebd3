//! Sum and maximum over the threads of a cube.

use cubecl::prelude::*;

/// Returns the sum of the values of all `units` threads, a power of two, in each thread.
#[cube]
pub(super) fn sum_of_units(value: f32, shared: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS_X as usize;
    shared[unit] = value;
    // Unrolled, because software drivers do not support barriers in loops.
    #[unroll]
    for step in 1..comptime!(units.ilog2() as usize + 1) {
        let half = comptime!(units >> step);
        sync_cube();
        if unit < half {
            let both = shared[unit] + shared[unit + half];
            shared[unit] = both;
        }
    }
    sync_cube();
    let sum = shared[0];
    // From here on, the memory may be overwritten.
    sync_cube();
    sum
}

/// Returns the maximum of the values of all `units` threads, a power of two, in each thread.
#[cube]
pub(super) fn largest_of_units(value: f32, shared: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS_X as usize;
    shared[unit] = value;
    #[unroll]
    for step in 1..comptime!(units.ilog2() as usize + 1) {
        let half = comptime!(units >> step);
        sync_cube();
        if unit < half {
            let larger = f32::max(shared[unit], shared[unit + half]);
            shared[unit] = larger;
        }
    }
    sync_cube();
    let largest = shared[0];
    sync_cube();
    largest
}
