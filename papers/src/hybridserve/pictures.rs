//! Figures 4 to 7 drawn again, Table III, the connections of the eight models, and the placements.

use std::path::Path;

use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::charts::{deployment, graph};
use kaskade_app::planning::cascade;
use kaskade_app::planning::placement::picture;
use kaskade_app::report;

use super::eight::Connected;
use super::field::Mode;
use super::paper::Paper;
use super::planning::Grown;
use super::served::{Reached, Served};
use super::took::Took;
use crate::charts::bars::{self, Bars};
use crate::reproduction::Reproduction;

/// Draws everything.
///
/// # Errors
/// When a picture cannot be drawn or written.
pub(super) fn draw(
    served: &[(Served, Paper)],
    eight: &[Connected],
    grown: &[Grown],
    out: &Path,
    found: &mut Reproduction,
) -> anyhow::Result<()> {
    let mut write = |name: &str, svg: String| {
        let file = out.join(format!("hybridserve-{name}.svg"));
        report::write_file(&file, &svg)?;
        found.files.push(file);
        anyhow::Ok(())
    };
    let families: Vec<&Served> = served.iter().map(|(served, _)| served).collect();
    let percent = "% of the largest model alone";
    let compared: [(&str, &str, &str, Figure); 4] = [
        (
            "latency",
            "average latency, under the same load (Figure 4a)",
            percent,
            |base, reached| 100.0 * reached.mean_s() / base.mean_s(),
        ),
        (
            "tail",
            "99.9 % latency, under the same load (Figure 4b)",
            percent,
            |base, reached| 100.0 * reached.tail_s() / base.tail_s(),
        ),
        (
            "throughput",
            "sustained throughput (Figure 5)",
            "times the largest model alone",
            |base, reached| reached.sustained_qps / base.sustained_qps,
        ),
        (
            "energy",
            "energy per request, idle devices included (Table V)",
            percent,
            |base, reached| 100.0 * reached.full_j() / base.full_j(),
        ),
    ];
    for (name, title, axis, figure) in compared {
        write(name, bars::svg(&by_family(&families, title, axis, figure)?)?)?;
    }
    for (served, paper) in served {
        let family = &served.field.family.name;
        write(
            &format!("distribution-{family}"),
            bars::svg(&distribution(served, paper)?)?,
        )?;
        let ap = served.mode(Mode::Ap)?;
        let batch = served
            .field
            .cascade_options(kaskade_planners::cascade::Objective::Ap)
            .batch;
        let curve = cascade::graph(&served.field.profile, &ap.constructed.planned, batch);
        write(&format!("energy-{family}"), graph::svg(&curve)?)?;
        let placed = picture::of(&ap.deployed.placed);
        write(&format!("placement-{family}"), deployment::svg(&placed)?)?;
    }
    write("planning", bars::svg(&planning_times(&families)?)?)?;
    if !grown.is_empty() {
        write("growth", panels::svg(&growth(grown))?)?;
    }
    if let Some(skipping) = eight.get(1) {
        let placed = picture::of(&skipping.deployed.placed);
        write("placement-skips", deployment::svg(&placed)?)?;
    }
    write("skips", bars::svg(&connections(eight))?)
}

/// The bars of a mode, beside the largest model alone.
type Figure = fn(&Reached, &Reached) -> f64;

/// A figure of every mode, by family.
fn by_family(families: &[&Served], title: &str, axis: &str, figure: Figure) -> anyhow::Result<Bars> {
    let mut groups = Vec::new();
    for served in families {
        let base = served.mode(Mode::Largest)?;
        let heights = served.reached.iter().map(|reached| figure(base, reached));
        groups.push((served.field.family.name.clone(), heights.collect()));
    }
    Ok(Bars {
        title: title.to_owned(),
        axis: axis.to_owned(),
        names: Mode::ALL.map(|mode| mode.name().to_owned()).to_vec(),
        groups,
    })
}

/// Shares of answers by model, beside the paper's Table III.
fn distribution(served: &Served, paper: &Paper) -> anyhow::Result<Bars> {
    let (ap, eo) = (served.mode(Mode::Ap)?, served.mode(Mode::Eo)?);
    let groups = served.field.family.models.iter().map(|model| {
        let name = model.name.as_str();
        let shares = [
            ap.answered(name),
            Paper::answered(paper.ap, name),
            eo.answered(name),
            Paper::answered(paper.eo, name),
        ];
        (model.name.clone(), shares.map(|share| 100.0 * share).to_vec())
    });
    Ok(Bars {
        title: format!("{}: shares of answers (Table III)", served.field.family.name),
        axis: "requests (%)".to_owned(),
        names: ["AP", "AP, the paper", "EO", "EO, the paper"]
            .map(str::to_owned)
            .to_vec(),
        groups: groups.collect(),
    })
}

/// Seconds to construct and to place.
fn planning_times(families: &[&Served]) -> anyhow::Result<Bars> {
    let mut groups = Vec::new();
    for served in families {
        for mode in [Mode::Ap, Mode::Eo] {
            let reached = served.mode(mode)?;
            let times = [reached.constructed.took, reached.deployed.took];
            groups.push((
                format!("{} {}", served.field.family.name, mode.name()),
                times.map(Took::seconds).to_vec(),
            ));
        }
    }
    Ok(Bars {
        title: "processor time to construct and to place (Figure 7; the paper: 45 to 437 s)".to_owned(),
        axis: "seconds".to_owned(),
        names: ["construction", "placement"].map(str::to_owned).to_vec(),
        groups,
    })
}

/// Seconds to place by devices, for each number of models.
fn growth(grown: &[Grown]) -> Panels {
    let mut models: Vec<usize> = grown.iter().map(|grown| grown.models).collect();
    models.sort_unstable();
    models.dedup();
    let series = models.into_iter().map(|models| Series {
        name: format!("{models} models"),
        points: grown
            .iter()
            .filter(|grown| grown.models == models)
            .map(|grown| (grown.devices as f64, grown.took.seconds()))
            .collect(),
        shape: Shape::Marked,
    });
    Panels {
        title: "processor time to place, by devices".to_owned(),
        axis: "devices".to_owned(),
        rows: vec![Panel {
            axis: "seconds".to_owned(),
            series: series.collect(),
            ..Panel::default()
        }],
    }
}

/// Hops, latency and energy of the wirings of eight models.
fn connections(eight: &[Connected]) -> Bars {
    let of = |figure: fn(&Connected) -> f64| {
        let base = eight.first().map_or(f64::NAN, figure);
        eight.iter().map(|one| 100.0 * figure(one) / base).collect()
    };
    Bars {
        title: "eight models of GPT, connected in three ways".to_owned(),
        axis: "% of the chain of all".to_owned(),
        names: eight.iter().map(|one| one.name.to_owned()).collect(),
        groups: vec![
            ("models run".to_owned(), of(Connected::hops)),
            ("average latency".to_owned(), of(|one| one.latency_s()[0])),
            ("99.9 % latency".to_owned(), of(|one| one.latency_s()[1])),
            ("energy per request".to_owned(), of(Connected::joules)),
        ],
    }
}
