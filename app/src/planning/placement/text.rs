//! Formats a placement as tables.

use std::time::Duration;

use kaskade_planners::placement::{DeviceLoad, PlacedModel, Placement};

use crate::report::table::{Align, table};
use crate::report::units;

/// Number of devices shown individually, busiest first.
const SHOWN: usize = 24;

/// Number of instances of a device shown by name.
const NAMED: usize = 5;

/// Formats a placement as text.
pub fn of(placed: &Placement, planning: Duration) -> String {
    let devices = placed.devices.len();
    let parts = [
        format!(
            "{}: {:.1} requests/s on {} of {devices} devices\n{}",
            placed.plan.app,
            placed.qps,
            placed.used(),
            models(placed)
        ),
        format!("{}\n{}", shown(placed), table_of_devices(placed)),
        format!(
            "transfers: {} per request, {} per period of {} requests; {}",
            units::seconds(placed.overhead_per_request_s()),
            units::seconds(placed.overhead_s),
            placed.batch,
            super::proof(placed)
        ),
        examined(placed) + &not_audited(placed),
        format!("planned in {}", units::seconds(planning.as_secs_f64())),
    ];
    parts.join("\n")
}

/// Returns a line break and the note that the plan has no certified list and cannot be audited, if so.
fn not_audited(placed: &Placement) -> String {
    if placed.unaudited.is_empty() {
        return String::new();
    }
    let names: Vec<String> = placed.unaudited.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "\nnot audited when it serves, and without safer cascades to run: no whole replica of {} is placed, which they need; `plan gears` \
         places one, or give the devices more memory if it is split",
        names.join(", ")
    )
}

/// Formats the cost of a batch by device, and the numbers of replicas and partitions.
fn models(placed: &Placement) -> String {
    let rows = placed.models.iter().map(|model| {
        [
            model.variant.clone(),
            units::percent(model.reach),
            model.replicas.to_string(),
            model.partitions.to_string(),
            model.max_batch.to_string(),
            units::percent(model.utilisation),
            bytes(model.memory_bytes),
            units::seconds(model.share_s),
            fits(model),
        ]
    });
    table(
        [
            ("model", Align::Left),
            ("reach", Align::Right),
            ("copies R", Align::Right),
            ("partitions S", Align::Right),
            ("batch", Align::Right),
            ("u of each", Align::Right),
            ("w of each", Align::Right),
            ("share", Align::Right),
            ("R\u{b2} of l, u l, w, T", Align::Left),
        ],
        rows,
    )
}

/// Describes how well the fitted lines match their samples; a dash for lines that were given.
fn fits(model: &PlacedModel) -> String {
    let curves = &model.curves;
    let lines = [
        &curves.latency,
        &curves.kernel,
        &curves.memory,
        &curves.forward.network,
    ];
    let cells = lines.map(|fitted| {
        if fitted.samples.len() < 2 {
            "-".to_owned()
        } else {
            format!("{:.3}", fitted.line.r2)
        }
    });
    cells.join(" / ")
}

fn shown(placed: &Placement) -> String {
    if placed.devices.len() > SHOWN {
        format!("\nthe {SHOWN} busiest of {} devices", placed.devices.len())
    } else {
        String::new()
    }
}

fn table_of_devices(placed: &Placement) -> String {
    let mut devices: Vec<&DeviceLoad> = placed.devices.iter().collect();
    if devices.len() > SHOWN {
        devices.sort_by(|a, b| b.utilisation.total_cmp(&a.utilisation));
        devices.truncate(SHOWN);
    }
    let rows = devices.into_iter().map(|device| {
        [
            format!("{} {}", device.worker, device.device),
            instances(placed, device),
            format!(
                "{} of {}",
                bytes(device.memory_bytes),
                bytes(device.capacity_bytes as f64)
            ),
            units::percent(device.utilisation),
        ]
    });
    table(
        [
            ("device", Align::Left),
            ("instances", Align::Left),
            ("memory", Align::Right),
            ("utilisation", Align::Right),
        ],
        rows,
    )
}

/// Lists the instances by name, or the number of instances per model if there are many.
fn instances(placed: &Placement, device: &DeviceLoad) -> String {
    if device.instances.len() <= NAMED {
        return device.instances.join(" ");
    }
    let variant = |id: &String| {
        let mut replicas = placed.plan.placement.iter();
        replicas
            .find(|replica| replica.id == *id)
            .map(|replica| replica.variant.as_str())
    };
    let counted = placed.models.iter().filter_map(|model| {
        let here = device.instances.iter();
        let count = here
            .filter(|id| variant(id) == Some(model.variant.as_str()))
            .count();
        (count > 0).then(|| format!("{count} \u{d7} {}", model.variant))
    });
    counted.collect::<Vec<_>>().join(", ")
}

fn examined(placed: &Placement) -> String {
    let shapes = &placed.shapes;
    let rest = if shapes.all {
        "exhaustive"
    } else {
        "more exist, with more replicas or partitions"
    };
    format!(
        "{} combinations of replicas and partitions examined ({rest}): infeasible by memory {}, by utilisation {}; {} placed, {} refined by \
         simulated annealing, {} solved as integer programs",
        units::count(shapes.examined),
        units::count(shapes.memory),
        units::count(shapes.utilisation),
        units::count(shapes.tried),
        units::count(shapes.annealed),
        units::count(shapes.programs)
    )
}

/// Formats bytes with decimal prefixes and three digits.
pub fn bytes(count: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let unit = UNITS.into_iter().find(|(size, _)| count >= size * 0.9995);
    let Some((size, name)) = unit else {
        return format!("{count:.0} B");
    };
    let scaled = count / size;
    let digits = if scaled >= 99.95 {
        0
    } else if scaled >= 9.995 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_three_digits() {
        for (count, text) in [
            (12.0, "12 B"),
            (2_440.0, "2.44 kB"),
            (999_999.0, "1.00 MB"),
            (15e9, "15.0 GB"),
            (180e9, "180 GB"),
            (1.8e12, "1.80 TB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
