//! Draws a placement: the dataflow above, the devices with their replicas below, grouped by host.

mod flow;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ChartError;
use super::drawing::{Area, Drawn, colour, palette, text, title, with_dark_mode};

/// Description of a placement to draw.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Deployment {
    /// Title.
    pub title: String,
    /// Summary lines.
    pub says: String,
    /// The models in the order of the cascade; each has a colour.
    pub models: Vec<Model>,
    /// Edges between boxes.
    pub edges: Vec<Edge>,
    /// The devices by host.
    pub hosts: Vec<Host>,
}

/// A model of the dataflow.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name of the model.
    pub name: String,
    /// Details, line by line.
    pub says: Vec<String>,
}

/// An edge of the dataflow.
#[derive(Debug, Clone, PartialEq)]
pub struct Edge {
    /// Index of the source model.
    pub from: usize,
    /// Index of the target model, larger than `from`.
    pub to: usize,
    /// Share of the requests that take the edge, as text.
    pub says: String,
}

impl Edge {
    fn is_skip(&self) -> bool {
        self.to != self.from + 1
    }
}

/// The devices of one host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Host {
    /// Name of the host.
    pub name: String,
    /// Devices of the host.
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Device {
    /// Name of the device on its host.
    pub name: String,
    /// Utilisation, in [0, 1].
    pub utilisation: f64,
    /// Replicas on the device.
    pub instances: Vec<Instance>,
}

/// A replica on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// Name of the replica.
    pub name: String,
    /// Index of the model.
    pub model: usize,
    /// Share of the device's memory that the replica takes, in [0, 1].
    pub memory: f64,
}

/// Number of devices that are drawn; the others are counted.
const DRAWN: usize = 48;

/// Width of the chart and of its margins, pixels.
const WIDTH: i32 = 960;
const MARGIN: i32 = 20;

/// Dataflow: top of its boxes without skips, height of the boxes, and height that each skip adds above them, pixels.
const FLOW: i32 = 70;
const BOX: i32 = 72;
const SKIP: i32 = 15;

/// Device: width and height, gap to the next one, and height of the memory, pixels.
const DEVICE: (i32, i32) = (132, 110);
const GAP: i32 = 8;
const MEMORY: i32 = 74;

/// Number of devices side by side in a host.
const ABREAST: usize = 6;

/// Height of the host's name, pixels.
const HOST_HEAD: i32 = 18;

/// Minimum height of a visible strip, and of a strip with text, pixels.
const THIN: f64 = 4.0;
const WORDY: i32 = 11;

/// Draws the placement.
///
/// # Errors
/// [`ChartError::Empty`] if there is no model or no device.
pub fn svg(deployment: &Deployment) -> Result<String, ChartError> {
    let devices: usize = deployment.hosts.iter().map(|host| host.devices.len()).sum();
    if devices == 0 || deployment.models.is_empty() {
        return Err(ChartError::Empty {
            what: "placement",
            title: deployment.title.clone(),
            missing: "models or devices",
        });
    }
    let (hosts, left_out) = first_devices(&deployment.hosts);
    let skips = deployment.edges.iter().filter(|edge| edge.is_skip()).count();
    let top =
        FLOW + i32::try_from(skips).map_err(|error| ChartError::backend("placement")(error.into()))? * SKIP;
    let places = host_places(&hosts, top + BOX + 24);
    let foot = places.iter().map(|at| at.1 + at.3).max().unwrap_or(top) + 34;
    let mut drawn = String::new();
    draw(deployment, &hosts, &places, [top, foot], left_out, &mut drawn)
        .map_err(ChartError::backend("placement"))?;
    Ok(with_dark_mode(&drawn))
}

/// Returns the hosts with the devices that are drawn, and the number of devices left out.
fn first_devices(hosts: &[Host]) -> (Vec<Host>, usize) {
    let mut room = DRAWN;
    let mut kept = Vec::new();
    let mut left_out = 0;
    for host in hosts {
        let mut host = host.clone();
        left_out += host.devices.len().saturating_sub(room);
        host.devices.truncate(room);
        room -= host.devices.len();
        if !host.devices.is_empty() {
            kept.push(host);
        }
    }
    (kept, left_out)
}

/// Returns left, top, width and height of every host: side by side while there is room, then in the next row.
fn host_places(hosts: &[Host], from: i32) -> Vec<(i32, i32, i32, i32)> {
    let (mut left, mut top, mut highest) = (MARGIN, from, 0);
    let mut found = Vec::with_capacity(hosts.len());
    for host in hosts {
        let columns = host.devices.len().clamp(1, ABREAST);
        let rows = host.devices.len().div_ceil(ABREAST).max(1);
        let width = places(columns) * (DEVICE.0 + GAP) + GAP;
        let height = HOST_HEAD + places(rows) * (DEVICE.1 + GAP) + GAP;
        if left > MARGIN && left + width > WIDTH - MARGIN + GAP {
            (left, top, highest) = (MARGIN, top + highest + GAP, 0);
        }
        found.push((left, top, width, height));
        left += width + GAP;
        highest = highest.max(height);
    }
    found
}

/// Converts a count to a coordinate factor, limited to 1,000.
fn places(count: usize) -> i32 {
    i32::try_from(count.min(1_000)).unwrap_or(1_000)
}

fn draw(
    deployment: &Deployment,
    hosts: &[Host],
    places: &[(i32, i32, i32, i32)],
    [top, foot]: [i32; 2],
    left_out: usize,
    into: &mut String,
) -> Drawn {
    let size = (WIDTH.cast_unsigned(), foot.cast_unsigned());
    let root = SVGBackend::with_string(into, size).into_drawing_area();
    root.fill(&palette::GROUND)?;
    title(&root, &deployment.title)?;
    words(
        &root,
        &deployment.says,
        (MARGIN, 40),
        13,
        palette::FAINT,
        HPos::Left,
    )?;
    flow::draw(&root, deployment, top)?;
    for (host, place) in hosts.iter().zip(places) {
        draw_host(&root, host, *place)?;
    }
    let note = if left_out > 0 {
        format!("strips: memory, by model; bars: utilisation; {left_out} more devices are not drawn")
    } else {
        "strips: memory, by model; bars: utilisation".to_owned()
    };
    words(&root, &note, (MARGIN, foot - 24), 12, palette::FAINT, HPos::Left)?;
    root.present()?;
    Ok(())
}

fn draw_host(root: &Area<'_>, host: &Host, (left, top, width, height): (i32, i32, i32, i32)) -> Drawn {
    let corners = [(left, top), (left + width, top + height)];
    root.draw(&Rectangle::new(corners, palette::GRID.stroke_width(2)))?;
    words(
        root,
        &host.name,
        (left + GAP, top + 4),
        12,
        palette::INK,
        HPos::Left,
    )?;
    for (number, device) in host.devices.iter().enumerate() {
        let (column, row) = (places(number % ABREAST), places(number / ABREAST));
        let at = (
            left + GAP + column * (DEVICE.0 + GAP),
            top + HOST_HEAD + GAP / 2 + row * (DEVICE.1 + GAP),
        );
        draw_device(root, device, at)?;
    }
    Ok(())
}

fn draw_device(root: &Area<'_>, device: &Device, (left, top): (i32, i32)) -> Drawn {
    let (right, ceiling) = (left + DEVICE.0, top + 18);
    words(
        root,
        &device.name,
        (left, top + 2),
        11,
        palette::FAINT,
        HPos::Left,
    )?;
    let floor = ceiling + MEMORY;
    let corners = [(left, ceiling), (right, floor)];
    root.draw(&Rectangle::new(corners, palette::GRID.filled()))?;
    let mut from = f64::from(floor);
    let mut thin = Vec::new();
    for (instance, height) in device.instances.iter().zip(heights(&device.instances)) {
        let (low, high) = (from as i32, (from - height) as i32);
        let strip = [(left, high), (right, (low - 1).max(high + 1))];
        root.draw(&Rectangle::new(strip, colour(instance.model).filled()))?;
        if low - high >= WORDY {
            let size = fitting(&instance.name, DEVICE.0 - 6, 10);
            let at = (left + 4, i32::midpoint(low, high) - 5);
            words(root, &instance.name, at, size, palette::GROUND, HPos::Left)?;
        } else {
            thin.push(instance.name.as_str());
        }
        from -= height;
    }
    if from as i32 - ceiling >= 2 * WORDY && !thin.is_empty() {
        let names = few(&thin);
        let at = (left + 4, ceiling + 4);
        words(
            root,
            &names,
            at,
            fitting(&names, DEVICE.0 - 6, 10),
            palette::FAINT,
            HPos::Left,
        )?;
    }
    let busy = device.utilisation.clamp(0.0, 1.0);
    let bar = [(left, floor + 6), (left + 96, floor + 14)];
    root.draw(&Rectangle::new(bar, palette::GRID.filled()))?;
    let filled = [(left, floor + 6), (left + (busy * 96.0) as i32, floor + 14)];
    root.draw(&Rectangle::new(filled, palette::INK.filled()))?;
    let says = format!("{:.0} %", device.utilisation * 100.0);
    words(root, &says, (right, floor + 3), 12, palette::INK, HPos::Right)
}

/// Returns a short list of the names of strips that are too thin for text.
fn few(names: &[&str]) -> String {
    match names {
        [first, second, rest @ ..] if !rest.is_empty() => format!("{first}, {second}, +{}", rest.len()),
        _ => names.join(", "),
    }
}

/// Returns the heights of the strips, pixels: proportional to memory, but at least visible.
fn heights(instances: &[Instance]) -> Vec<f64> {
    let wanted: Vec<f64> = instances
        .iter()
        .map(|instance| (instance.memory * f64::from(MEMORY)).max(THIN))
        .collect();
    let sum: f64 = wanted.iter().sum();
    let scale = (f64::from(MEMORY) / sum.max(f64::MIN_POSITIVE)).min(1.0);
    wanted.into_iter().map(|height| height * scale).collect()
}

/// Returns the largest font size, up to `size`, at which the text fits into `width`.
fn fitting(words: &str, width: i32, size: i32) -> i32 {
    let letters = i32::try_from(words.chars().count()).unwrap_or(i32::MAX).max(1);
    (width * 5 / 3 / letters).clamp(7, size)
}

fn words(root: &Area<'_>, says: &str, at: (i32, i32), size: i32, ink: RGBColor, anchor: HPos) -> Drawn {
    root.draw(&text(says, at, size, ink, anchor, VPos::Top))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::drawing::colours_are_known;

    fn deployment(devices: usize) -> Deployment {
        let device = |number: usize| Device {
            name: format!("cuda:{number}"),
            utilisation: 0.25,
            instances: vec![
                Instance {
                    name: format!("large-{number}"),
                    model: 1,
                    memory: 0.6,
                },
                Instance {
                    name: format!("tiny-{number}"),
                    model: 0,
                    memory: 0.001,
                },
            ],
        };
        Deployment {
            title: "a cascade".to_owned(),
            says: "10 requests/s".to_owned(),
            models: ["tiny", "small", "large"]
                .map(|name| Model {
                    name: name.to_owned(),
                    says: vec!["1 x 1".to_owned()],
                })
                .to_vec(),
            edges: [(0, 1, "30 %"), (0, 2, "12 %")]
                .map(|(from, to, says)| Edge {
                    from,
                    to,
                    says: says.to_owned(),
                })
                .to_vec(),
            hosts: vec![Host {
                name: "w0".to_owned(),
                devices: (0..devices).map(device).collect(),
            }],
        }
    }

    #[test]
    fn everything_with_a_name_is_on_it() {
        let svg = svg(&deployment(2)).unwrap();
        for name in [
            "a cascade",
            "10 requests/s",
            "tiny",
            "large",
            "30 %",
            "12 %",
            "w0",
            "cuda:1",
            "large-1",
            "25 %",
        ] {
            assert!(svg.contains(name), "{name}");
        }
        assert!(!svg.contains("not drawn") && colours_are_known(&svg));
    }

    #[test]
    fn of_many_devices_the_rest_is_counted() {
        let svg = svg(&deployment(DRAWN + 7)).unwrap();
        assert!(svg.contains("7 more devices are not drawn"));
    }

    #[test]
    fn strips_fill_their_device_at_the_most() {
        let crowded: Vec<Instance> = (0..40)
            .map(|number| Instance {
                name: String::new(),
                model: number,
                memory: 0.025,
            })
            .collect();
        let sum: f64 = heights(&crowded).iter().sum();
        assert!((sum - f64::from(MEMORY)).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(svg(&Deployment::default()).is_err());
    }
}
