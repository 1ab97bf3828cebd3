//! The planner itself: its time, how that grows, and how good it is (§V-D, §VI-D).

use std::time::Duration;

use kaskade_app::report::progress::Progress;
use kaskade_app::report::units;
use kaskade_planners::lp::Solver;
use kaskade_planners::placement::{
    Placement, PlacementError, PlacementObjective, PlacementOptions, Proof, plan_placement,
};
use kaskade_planners::reference::solve_exactly;
use kaskade_policy::plan::Plan;

use super::field::{Field, Mode};
use super::paper::Paper;
use super::served::Served;
use super::synthetic::{self, SyntheticFamily};
use super::took::Took;
use crate::reproduction::{Claim, Reproduction};

/// Longest that construction and placement of a family may take, seconds.
const ENOUGH_S: f64 = 5.0;

/// Longest that placing may take at the largest size, seconds.
const MAX_S: f64 = 60.0;

/// Models and devices at which planning is timed.
pub(super) const SIZES: [(usize, usize); 8] = [
    (4, 16),
    (4, 64),
    (4, 250),
    (4, 1_000),
    (10, 16),
    (10, 64),
    (10, 250),
    (10, 1_000),
];

/// Two transfers are equal up to this share.
const SAME: f64 = 1e-6;

/// Devices on which placements are compared with exact optima.
const FEW: [usize; 4] = [2, 3, 4, 6];

/// Nodes of the embedded solver's tree where it is the judge.
const NODES: u64 = 5_000;

/// Longest that HiGHS may take for one program.
const JUDGE: Duration = Duration::from_mins(1);

/// Planning time at one size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grown {
    /// Models of the cascade.
    pub(super) models: usize,
    /// Devices.
    pub(super) devices: usize,
    /// Time to place: the longer of a given load and of the most that can be carried.
    pub(super) took: Took,
}

/// Construction and placement of the paper's families, and the time of both.
pub(super) fn families(served: &[(Served, Paper)], found: &mut Reproduction) -> anyhow::Result<()> {
    for (served, paper) in served {
        let (mut worst, mut figures) = (Took::default(), Vec::new());
        for mode in [Mode::Ap, Mode::Eo] {
            let reached = served.mode(mode)?;
            let placement = reached.deployed.took;
            let both = reached.constructed.took.and(placement);
            worst = worst.max(both);
            figures.push(format!(
                "{}: {}, {} of it placing",
                mode.name(),
                both.text(),
                units::seconds(placement.seconds())
            ));
        }
        let met = worst.seconds() < ENOUGH_S.min(paper.planning_s);
        found.claims.push(Claim {
            name: format!("{}: time to construct and to place", served.field.family.name),
            paper: format!("{:.0} s", paper.planning_s),
            ours: figures.join(", "),
            met,
            note: if met {
                "time of the processor, of which there is one at a time; answers are profiled already"
                    .to_owned()
            } else {
                format!("more than {ENOUGH_S} s; the machine may be busy")
            },
        });
    }
    Ok(())
}

/// How planning grows with models and devices.
///
/// # Errors
/// When something cannot be placed.
pub(super) fn growth(
    most_devices: usize,
    quiet: bool,
    found: &mut Reproduction,
) -> anyhow::Result<Vec<Grown>> {
    let sizes: Vec<_> = SIZES
        .into_iter()
        .filter(|(_, devices)| *devices <= most_devices)
        .collect();
    let mut progress = Progress::begin("growth of planning", sizes.len() as u64, quiet);
    let mut grown = Vec::new();
    for (models, devices) in sizes {
        let made = SyntheticFamily::new(models)?;
        let mut options = made.options(devices, 8, PlacementObjective::Most);
        let qps = made.load(&options, 0.65);
        let mut longest = Took::default();
        for goal in [PlacementObjective::Carry { qps }, PlacementObjective::Most] {
            options.goal = goal;
            let (placed, took) = Took::by(|| plan_placement(&made.profile, &made.cascade, &options));
            placed?;
            longest = longest.max(took);
        }
        grown.push(Grown {
            models,
            devices,
            took: longest,
        });
        progress.advance(1);
    }
    progress.end("placed");
    found.claims.push(growth_claim(&grown));
    Ok(grown)
}

fn growth_claim(grown: &[Grown]) -> Claim {
    let worst = grown.iter().map(|grown| grown.took.seconds()).fold(0.0, f64::max);
    let most = |of: fn(&Grown) -> usize| grown.iter().map(of).max().unwrap_or(0);
    let met = worst < MAX_S;
    let each = grown.iter().map(|grown| {
        format!(
            "{} models on {} devices {}",
            grown.models,
            grown.devices,
            units::seconds(grown.took.seconds())
        )
    });
    Claim {
        name: format!(
            "planning grows to {} models and {} devices",
            most(|grown| grown.models),
            most(|grown| grown.devices)
        ),
        paper: "a bound of 10^8 steps for tens of models and thousands of devices (\u{a7}V-D)".to_owned(),
        ours: each.collect::<Vec<_>>().join(", "),
        met,
        note: if met {
            format!(
                "under {MAX_S} s of the processor; the longer of a given load and of the most that can be carried"
            )
        } else {
            format!("{} where {MAX_S} s are wanted", units::seconds(worst))
        },
    }
}

/// Quality of small placements against the optimum.
#[derive(Debug, Default)]
struct Small {
    /// Placements.
    tried: u32,
    /// Placements that are proven optimal over all combinations.
    optimal: u32,
    /// Combinations that a solver solved to the end.
    solved: u32,
    /// Solved combinations that were placed as well as by the solver.
    equal: u32,
    /// Largest relative excess of transfers over the optimum of the program.
    behind: f64,
}

/// The search against integer programs that are solved to the end, on few devices.
///
/// # Errors
/// When a cascade cannot be constructed.
pub(super) fn exact(fields: &[&Field], quiet: bool, found: &mut Reproduction) -> anyhow::Result<()> {
    let mut progress = Progress::begin("against exact optima", fields.len() as u64, quiet);
    let mut small = Small::default();
    for field in fields {
        for mode in [Mode::Ap, Mode::Eo] {
            let cascade = field.construct(mode)?.planned.plan;
            for devices in FEW {
                small.add(field, &cascade, devices)?;
            }
        }
        progress.advance(1);
    }
    progress.end("solved");
    found.claims.push(small.claim());
    Ok(())
}

impl Small {
    /// Places a cascade on this many devices at half of the load that they carry at all, and solves the program of the combination.
    fn add(&mut self, field: &Field, cascade: &Plan, devices: usize) -> anyhow::Result<()> {
        let mut options = synthetic::options(&field.family, devices, 1, PlacementObjective::Most);
        let qps = synthetic::busy_load(&field.profile, cascade, &options, 0.5);
        options.goal = PlacementObjective::Carry { qps };
        let placed = match plan_placement(&field.profile, cascade, &options) {
            Ok(placed) => placed,
            // Two devices have too little memory for the largest families.
            Err(PlacementError::NoMemory { .. } | PlacementError::TooLarge { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.tried += 1;
        self.optimal += u32::from(placed.proof == Proof::Optimal);
        let judged = solve_exactly(
            &field.profile,
            &placed,
            &options,
            Solver::Embedded,
            None,
            Some(NODES),
        )?;
        if let (true, Ok(least)) = (judged.proven, judged.overhead_s) {
            let more = placed.overhead_s / least.max(f64::MIN_POSITIVE) - 1.0;
            self.solved += 1;
            self.equal += u32::from(more <= SAME);
            self.behind = self.behind.max(more);
        }
        Ok(())
    }

    fn claim(&self) -> Claim {
        let met = self.solved > 0 && self.equal == self.solved;
        let highs = if cfg!(feature = "highs") {
            ""
        } else {
            "; ten models on sixteen devices are compared with HiGHS only where this program is built with the feature `highs`"
        };
        Claim {
            name: "placement against exact optima at small sizes".to_owned(),
            paper: "-".to_owned(),
            ours: format!(
                "equal to the integer program's optimum in {} of {} solved to the end; {} of {} placements are proven over all combinations",
                self.equal, self.solved, self.optimal, self.tried
            ),
            met,
            note: if met {
                format!("AP and EO of the three families on {FEW:?} devices{highs}")
            } else {
                format!(
                    "up to {} more transfer than the optimum{highs}",
                    units::percent(self.behind)
                )
            },
        }
    }
}

/// Ten models on sixteen devices, against `HiGHS` with a minute.
///
/// # Errors
/// When something cannot be placed.
pub(super) fn judged(quiet: bool, found: &mut Reproduction) -> anyhow::Result<()> {
    if !cfg!(feature = "highs") {
        return Ok(());
    }
    let made = SyntheticFamily::new(10)?;
    let cases = [(4, 0.4), (4, 0.65), (1, 0.4), (1, 0.65)];
    let mut progress = Progress::begin("against HiGHS", cases.len() as u64, quiet);
    let (mut figures, mut worst) = (Vec::new(), 0.0_f64);
    for (on_each_host, busy) in cases {
        let mut options = made.options(16, on_each_host, PlacementObjective::Most);
        options.goal = PlacementObjective::Carry {
            qps: made.load(&options, busy),
        };
        let placed = plan_placement(&made.profile, &made.cascade, &options)?;
        let ratio = beside_highs(&made, &placed, &options)?;
        worst = worst.max(ratio.unwrap_or(0.0));
        figures.push(ratio.map_or_else(
            || "HiGHS found none".to_owned(),
            |ratio| format!("{ratio:.4} of what HiGHS moves"),
        ));
        progress.advance(1);
    }
    progress.end("solved");
    let met = worst <= 1.0 + SAME;
    found.claims.push(Claim {
        name: "placement of 10 models on 16 devices, against HiGHS with 60 s".to_owned(),
        paper: "-".to_owned(),
        ours: figures.join(", "),
        met,
        note: if met {
            "on the combination that the search chose, four devices to a host and one, at 40 and 65 % of the load that can be carried".to_owned()
        } else {
            format!("up to {} more transfer", units::percent(worst - 1.0))
        },
    });
    Ok(())
}

/// Our transfers over those of `HiGHS`; `None` where it finds no placement in its time.
fn beside_highs(
    made: &SyntheticFamily,
    placed: &Placement,
    options: &PlacementOptions,
) -> anyhow::Result<Option<f64>> {
    let judged = solve_exactly(&made.profile, placed, options, Solver::Highs, Some(JUDGE), None)?;
    let theirs = judged.overhead_s.ok();
    Ok(theirs.map(|theirs| placed.overhead_s / theirs.max(f64::MIN_POSITIVE)))
}
