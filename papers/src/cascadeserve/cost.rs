//! Devices needed by latency and accuracy (CascadeServe §6.3, Figures 5 to 7).

use std::path::Path;

use crate::charts::grid::{self, Cell, Grid};
use crate::peers::gears::Peer;
use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::report;
use kaskade_planners::pareto::{Place, pareto_front};
use kaskade_policy::plan::Slo;

use super::field::{Contestant, Field, Reached};
use super::work::Work;
use crate::parallel::in_parallel;
use crate::reproduction::Claim;

/// The compared goals: every pair of a latency and an accuracy.
#[derive(Debug, Clone)]
pub(super) struct Goals {
    /// 95th percentiles of latency, microseconds, ascending.
    pub(super) p95_us: Vec<u64>,
    /// Shares of right answers, ascending.
    pub(super) accuracies: Vec<f64>,
    /// Fleets that are tried, ascending.
    pub(super) fleets: Vec<usize>,
}

/// The fewest devices with which each contestant reached a goal; `None` where it did not with any fleet that was tried.
#[derive(Debug, Clone)]
pub(super) struct Needs {
    names: Vec<&'static str>,
    /// Numbers of devices by latency, accuracy and name.
    devices: Vec<Vec<Vec<Option<f64>>>>,
    /// The results of CascadeServe and the peers at the loosest latency, for the frontier.
    frontier: Vec<(&'static str, Vec<Reached>)>,
    /// Upper bound of the savings of cascades.
    work: Work,
}

/// All results of a contestant at one latency, over fleets.
struct Column {
    name: &'static str,
    reached: Vec<Reached>,
}

/// Plans and simulates every contestant with every fleet; the columns of the grid side by side on all cores.
///
/// # Errors
/// When a plan cannot be simulated.
pub(super) fn needs(field: &Field, goals: &Goals, progress: &(dyn Fn(&str) + Sync)) -> anyhow::Result<Needs> {
    let largest = goals.fleets.last().copied().unwrap_or(1);
    let cocktails = field.cocktails(largest)?;
    let columns = in_parallel(&goals.p95_us, |p95_us| {
        let column = column(field, goals, *p95_us);
        progress(&format!(
            "{}: p95 of {} ms done",
            field.profile.app,
            *p95_us as f64 / 1e3
        ));
        column
    });
    let mut all = Vec::new();
    for column in columns {
        let mut column = column?;
        column.push(Column {
            name: "Cocktail+",
            reached: cocktails.clone(),
        });
        all.push(column);
    }
    let mut needs = summed(goals, &all);
    needs.work = work(field, goals);
    Ok(needs)
}

/// The device time that cascades and single variants take. Where there is no plan to take the cascades from, nothing is known.
fn work(field: &Field, goals: &Goals) -> Work {
    let loosest = goals.p95_us.last().copied().unwrap_or(u64::MAX);
    let slo = Slo::Latency { p95_us: loosest };
    let most = goals.fleets.last().copied().unwrap_or(1);
    let planned = field.plan(&Contestant::CascadeServe, most, slo).ok();
    planned.map_or_else(Work::default, |planned| {
        Work::new(&field.profile, &planned.cascades)
    })
}

/// Returns the results of every system with a fixed fleet at one latency.
fn column(field: &Field, goals: &Goals, p95_us: u64) -> anyhow::Result<Vec<Column>> {
    let best = goals.accuracies.last().copied().unwrap_or(1.0);
    let mut columns = Vec::new();
    for contestant in [Contestant::CascadeServe, Contestant::Peer(Peer::MsPlus)] {
        let mut reached = Vec::new();
        for devices in &goals.fleets {
            reached.extend(field.reach(&contestant, *devices, p95_us)?);
            // More devices would not help.
            if reached
                .iter()
                .any(|reached: &Reached| reached.holds(p95_us, best))
            {
                break;
            }
        }
        columns.push(Column {
            name: contestant.name(),
            reached,
        });
    }
    let mut reached = Vec::new();
    for variant in &field.profile.variants {
        let right = variant.validation.correct.iter().filter(|right| **right).count();
        let accuracy = right as f64 / field.profile.samples.max(1) as f64;
        if goals
            .accuracies
            .first()
            .is_some_and(|least| accuracy + 1e-3 < *least)
        {
            continue;
        }
        let contestant = Contestant::Peer(Peer::DynBa {
            variant: Some(variant.name.clone()),
        });
        for devices in &goals.fleets {
            let found = field.reach(&contestant, *devices, p95_us)?;
            reached.extend(found);
            if found.is_some_and(|found| found.p95_us <= p95_us) {
                break;
            }
        }
    }
    columns.push(Column {
        name: "DynBa",
        reached,
    });
    Ok(columns)
}

/// A plan for one latency may reach another: a contestant's objective is one of its settings, and the best
/// setting counts, for every contestant alike.
fn summed(goals: &Goals, columns: &[Vec<Column>]) -> Needs {
    let pooled = |place: usize| {
        let each = columns.iter().filter_map(move |column| column.get(place));
        each.flat_map(|one| one.reached.iter().copied())
            .collect::<Vec<_>>()
    };
    let names = columns
        .first()
        .map_or_else(Vec::new, |column| column.iter().map(|one| one.name).collect());
    let fewest = |reached: &[Reached], p95_us: u64, accuracy: f64| {
        let holding = reached.iter().filter(|reached| reached.holds(p95_us, accuracy));
        holding.map(|reached| reached.devices).min_by(f64::total_cmp)
    };
    let pools: Vec<Vec<Reached>> = (0..names.len()).map(pooled).collect();
    let devices = goals.p95_us.iter().map(|p95_us| {
        let rows = goals.accuracies.iter().map(|accuracy| {
            let each = pools.iter().map(|reached| fewest(reached, *p95_us, *accuracy));
            each.collect()
        });
        rows.collect()
    });
    let loosest = goals.p95_us.last().copied().unwrap_or(u64::MAX);
    let frontier = names.iter().zip(&pools).map(|(name, reached)| {
        let fast = reached.iter().filter(|reached| reached.p95_us <= loosest);
        (*name, fast.copied().collect())
    });
    let frontier = frontier.collect();
    Needs {
        names,
        devices: devices.collect(),
        frontier,
        work: Work::default(),
    }
}

/// One goal: the devices of CascadeServe, and of the best peer.
#[derive(Debug, Clone, Copy)]
struct Compared {
    ours: Option<f64>,
    best_peer: Option<(&'static str, f64)>,
}

impl Compared {
    /// Returns how many times as many devices the best peer needs; infinite where no peer reaches the goal.
    fn ratio(&self) -> Option<f64> {
        Some(self.best_peer.map_or(f64::INFINITY, |(_, devices)| devices) / self.ours?)
    }
}

impl Needs {
    fn compared(&self, latency: usize, accuracy: usize) -> Compared {
        let cell = self.devices.get(latency).and_then(|row| row.get(accuracy));
        let cell = cell.map_or(&[][..], Vec::as_slice);
        let each = self.names.iter().copied().zip(cell.iter().copied());
        let mut compared = Compared {
            ours: None,
            best_peer: None,
        };
        for (name, devices) in each {
            match devices {
                Some(devices) if name == Contestant::CascadeServe.name() => compared.ours = Some(devices),
                Some(devices) if compared.best_peer.is_none_or(|(_, best)| devices < best) => {
                    compared.best_peer = Some((name, devices));
                }
                _ => {}
            }
        }
        compared
    }

    /// The claim of Figure 7: two to three times fewer devices over most of the grid.
    pub(super) fn claim(&self, name: String, goals: &Goals) -> Claim {
        let cells = (0..goals.p95_us.len())
            .flat_map(|latency| (0..goals.accuracies.len()).map(move |accuracy| (latency, accuracy)));
        let compared: Vec<((usize, usize), f64)> = cells
            .filter_map(|(latency, accuracy)| {
                Some(((latency, accuracy), self.compared(latency, accuracy).ratio()?))
            })
            .collect();
        let twice = compared.iter().filter(|(_, ratio)| *ratio >= 2.0 - 1e-9).count();
        let mut ratios: Vec<f64> = compared.iter().map(|(_, ratio)| *ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let median = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
        let below: Vec<String> = compared
            .iter()
            .filter(|(_, ratio)| *ratio < 2.0 - 1e-9)
            .map(|((latency, accuracy), ratio)| self.explain(goals, *latency, *accuracy, *ratio))
            .collect();
        let shown = if median.is_finite() {
            format!("median {median:.1}x fewer")
        } else {
            "in the median no peer gets there at all".to_owned()
        };
        Claim {
            name,
            paper: "2-3x fewer devices than the best baseline at most latencies and accuracies".to_owned(),
            ours: format!(
                "{shown}; 2x or more in {twice} of {} goals that are reached",
                compared.len()
            ),
            met: !compared.is_empty() && 2 * twice > compared.len(),
            note: if below.is_empty() {
                String::new()
            } else {
                format!("less than 2x: {}", below.join("; "))
            },
        }
    }

    fn explain(&self, goals: &Goals, latency: usize, accuracy: usize, ratio: f64) -> String {
        let compared = self.compared(latency, accuracy);
        let goal = format!(
            "p95 {} ms at {:.1} %",
            goals.p95_us.get(latency).map_or(0.0, |us| *us as f64 / 1e3),
            goals.accuracies.get(accuracy).map_or(0.0, |share| share * 100.0)
        );
        let peer = compared.best_peer.map_or("none", |(name, _)| name);
        let share = goals.accuracies.get(accuracy).copied().unwrap_or(f64::NAN);
        let saved = self.work.saved(share);
        let why = match (compared.ours, compared.best_peer) {
            (Some(ours), Some((_, theirs))) if ours <= 1.0 && theirs < 2.0 => {
                "one device is the least there is".to_owned()
            }
            (_, Some(("Cocktail+", _))) => "an autoscaled service pays for devices by the second".to_owned(),
            _ => saved.filter(|saved| *saved < 2.0).map_or_else(
                || {
                    "by device time cascades could save more; whole devices and the objective take it"
                        .to_owned()
                },
                |saved| format!("cascades save {saved:.1}x of the device time at this accuracy, and no more"),
            ),
        };
        format!("{goal}: {ratio:.1}x ({peer}; {why})")
    }

    /// The grid (Figure 7) and the frontier (Figure 5) as pictures; gives their files.
    ///
    /// # Errors
    /// When a picture cannot be drawn or written.
    pub(super) fn draw(
        &self,
        workload: &str,
        goals: &Goals,
        folder: &Path,
    ) -> anyhow::Result<Vec<std::path::PathBuf>> {
        let rows = goals
            .accuracies
            .iter()
            .enumerate()
            .rev()
            .map(|(accuracy, share)| {
                let cells = (0..goals.p95_us.len()).map(|latency| cell(&self.compared(latency, accuracy)));
                (format!("{:.1} %", share * 100.0), cells.collect())
            });
        let picture = Grid {
            title: format!("{workload}: devices, CascadeServe / best peer"),
            column_axis: "p95 at most (ms)".to_owned(),
            columns: goals
                .p95_us
                .iter()
                .map(|us| format!("{}", *us as f64 / 1e3))
                .collect(),
            row_axis: "accuracy at least".to_owned(),
            rows: rows.collect(),
        };
        let grid_file = folder.join(format!("cost-{workload}.svg"));
        report::write_file(&grid_file, &grid::svg(&picture)?)?;
        let frontier = self.frontier.iter().filter(|(_, reached)| !reached.is_empty());
        let series = frontier.map(|(name, reached)| Series {
            name: (*name).to_owned(),
            points: front(reached),
            shape: Shape::Marked,
        });
        let limit = goals.p95_us.last().map_or(0.0, |us| *us as f64 / 1e3);
        let picture = Panels {
            title: format!("{workload}: accuracy by devices, p95 at most {limit} ms"),
            axis: "devices".to_owned(),
            rows: vec![Panel {
                axis: "accuracy (%)".to_owned(),
                series: series.collect(),
                ..Panel::default()
            }],
        };
        let frontier_file = folder.join(format!("frontier-{workload}.svg"));
        report::write_file(&frontier_file, &panels::svg(&picture)?)?;
        Ok(vec![grid_file, frontier_file])
    }
}

fn cell(compared: &Compared) -> Cell {
    let devices = |devices: Option<f64>| match devices {
        Some(devices) if devices.fract() < 0.05 => format!("{devices:.0}"),
        Some(devices) => format!("{devices:.1}"),
        None => "-".to_owned(),
    };
    Cell {
        says: format!(
            "{} / {}",
            devices(compared.ours),
            devices(compared.best_peer.map(|(_, theirs)| theirs))
        ),
        strong: compared.ratio().is_some_and(|ratio| ratio >= 2.0 - 1e-9),
    }
}

/// Returns devices and accuracy in per cent of the points that no point with fewer devices beats in accuracy.
fn front(reached: &[Reached]) -> Vec<(f64, f64)> {
    let front = pareto_front(reached.to_vec(), |one| Place {
        cost: one.devices,
        gain: one.accuracy,
    });
    front
        .into_iter()
        .map(|one| (one.devices, one.accuracy * 100.0))
        .collect()
}
