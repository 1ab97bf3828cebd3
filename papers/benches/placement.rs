//! How long placing takes, how it grows, and how good it is:
//! `cargo bench -p kaskade-papers --bench placement -- [families|growth|small|highs]`.
//!
//! `highs` needs the feature of that name; it gives HiGHS a minute (or the seconds of the second argument) per case.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::{Duration, Instant};

use kaskade_papers::hybridserve::synthetic::{SyntheticFamily, busy_load, options};
use kaskade_planners::cascade::{CascadeOptions, Objective, plan_cascade};
use kaskade_planners::lp::Solver;
use kaskade_planners::placement::{
    Fleet, Placement, PlacementObjective, PlacementOptions, Proof, plan_placement,
};
use kaskade_planners::reference::solve_exactly;
use kaskade_planners::thresholds::NonInferiorityTest;
use kaskade_policy::profile::Profile;
use kaskade_stated::families::{gpt, gpt_of_eight, t5, vit};

/// Nodes of the embedded solver's tree where it is the judge.
const NODES: u64 = 5_000;

/// Twelve servers with one device each (§VI).
const SERVERS: usize = 12;

fn proof(placed: &Placement) -> String {
    match placed.proof {
        Proof::Optimal => "optimal".to_owned(),
        Proof::Gap { gap, .. } => format!("gap {:.1} %", gap * 100.0),
        Proof::NoBound => "no bound".to_owned(),
    }
}

/// Construction of the cascade and placement, for each of the paper's families.
fn families() {
    for family in [t5(), gpt(), vit(), gpt_of_eight()] {
        let profile = family.profile();
        for objective in [Objective::Ap, Objective::Eo] {
            let start = Instant::now();
            let cascade = CascadeOptions {
                objective: objective.clone(),
                safety_margin: NonInferiorityTest::None,
                ..CascadeOptions::default()
            };
            let Ok(planned) = plan_cascade(&profile, &cascade) else {
                continue;
            };
            let constructed = start.elapsed().as_secs_f64();
            let options = options(&family, SERVERS, 1, PlacementObjective::Most);
            let placed = plan_placement(&profile, &planned.plan, &options);
            let both = start.elapsed().as_secs_f64();
            let name = format!("{} {}", family.name, objective.name());
            match placed {
                Ok(placed) => println!(
                    "{name:<10} construction {constructed:>6.2} s, with placement {both:>6.2} s: {:>8.1} requests/s, {:>3} instances, {:.3} ms of transfer \
                     per request, {}",
                    placed.qps,
                    placed.plan.placement.len(),
                    placed.overhead_per_request_s() * 1e3,
                    proof(&placed),
                ),
                Err(error) => println!("{name:<10} {error}"),
            }
        }
    }
}

/// Planning time by models and devices, eight devices on a host, at 65 % of what the devices can do at all.
fn growth() {
    for models in [2, 4, 6, 8, 10] {
        let Ok(SyntheticFamily {
            family,
            profile,
            cascade: plan,
        }) = SyntheticFamily::new(models)
        else {
            continue;
        };
        for devices in [16, 64, 250, 1_000] {
            let mut options = options(&family, devices, 8, PlacementObjective::Most);
            let qps = busy_load(&profile, &plan, &options, 0.65);
            for goal in [PlacementObjective::Carry { qps }, PlacementObjective::Most] {
                options.goal = goal;
                let start = Instant::now();
                let placed = plan_placement(&profile, &plan, &options);
                let seconds = start.elapsed().as_secs_f64();
                let what = match goal {
                    PlacementObjective::Carry { .. } => "carry",
                    PlacementObjective::Most => "most",
                };
                print!("{models:>2} models, {devices:>5} devices, {what:<5} {seconds:>7.2} s  ");
                match placed {
                    Ok(placed) => println!(
                        "{:>9.1} requests/s, {:>5} instances on {:>4} devices, {:>6} combinations of {:>10.0}+, {:.4} ms per request, {}",
                        placed.qps,
                        placed.plan.placement.len(),
                        placed.used(),
                        placed.shapes.examined,
                        placed.shapes.cuts,
                        placed.overhead_per_request_s() * 1e3,
                        proof(&placed),
                    ),
                    Err(error) => println!("{error}"),
                }
            }
        }
    }
}

/// Prints how small placements compare with proven optima, by solver.
fn small() {
    for family in [t5(), gpt(), vit()] {
        let profile = family.profile();
        for objective in [Objective::Ap, Objective::Eo] {
            let cascade = CascadeOptions {
                objective: objective.clone(),
                ..CascadeOptions::default()
            };
            let Ok(planned) = plan_cascade(&profile, &cascade) else {
                continue;
            };
            for devices in [2, 3, 4, 6] {
                let mut options = options(&family, devices, 1, PlacementObjective::Most);
                options.goal = PlacementObjective::Carry {
                    qps: busy_load(&profile, &planned.plan, &options, 0.5),
                };
                options.fleet = Fleet::All;
                let start = Instant::now();
                let placed = plan_placement(&profile, &planned.plan, &options);
                let seconds = start.elapsed().as_secs_f64();
                let name = format!("{} {}, {devices} devices", family.name, objective.name());
                match placed {
                    Ok(placed) => println!(
                        "{name:<24} {seconds:>6.2} s  {:>3} instances, {:>2} programs, {:.4} ms per request, {}; {}",
                        placed.plan.placement.len(),
                        placed.shapes.programs,
                        placed.overhead_per_request_s() * 1e3,
                        proof(&placed),
                        alone(&profile, &placed, &options),
                    ),
                    Err(error) => println!("{name:<24} {error}"),
                }
            }
        }
    }
}

/// Solves the placed combination with the embedded solver, without a placement to start from.
fn alone(profile: &Profile, placed: &Placement, options: &PlacementOptions) -> String {
    let start = Instant::now();
    let judged = solve_exactly(profile, placed, options, Solver::Embedded, None, Some(NODES));
    let seconds = start.elapsed().as_secs_f64();
    match judged {
        Ok(judged) => match judged.overhead_s {
            Ok(theirs) => format!(
                "ours / the program's {:.6} ({seconds:.1} s, {} variables{})",
                placed.overhead_s / theirs,
                judged.variables,
                if judged.proven { ", to the end" } else { "" }
            ),
            Err(error) => format!("the program alone: {error} ({seconds:.1} s)"),
        },
        Err(error) => error.to_string(),
    }
}

/// The search beside HiGHS with a minute, on the combinations that the search chose: 10 models on 16 devices, and smaller.
fn highs(seconds: u64) {
    for (models, devices, on_each_host) in [(4, 8, 4), (6, 8, 4), (8, 16, 4), (10, 16, 4), (10, 16, 1)] {
        let Ok(SyntheticFamily {
            family,
            profile,
            cascade: plan,
        }) = SyntheticFamily::new(models)
        else {
            continue;
        };
        for busy in [0.4, 0.65] {
            let mut options = options(&family, devices, on_each_host, PlacementObjective::Most);
            options.goal = PlacementObjective::Carry {
                qps: busy_load(&profile, &plan, &options, busy),
            };
            let start = Instant::now();
            let placed = match plan_placement(&profile, &plan, &options) {
                Ok(placed) => placed,
                Err(error) => {
                    println!(
                        "{models} models, {devices} devices, {:.0} % busy: {error}",
                        busy * 100.0
                    );
                    continue;
                }
            };
            let ours_s = start.elapsed().as_secs_f64();
            let limit = Some(Duration::from_secs(seconds));
            let start = Instant::now();
            let judged = solve_exactly(&profile, &placed, &options, Solver::Highs, limit, None);
            let theirs_s = start.elapsed().as_secs_f64();
            print!(
                "{models:>2} models, {devices} devices, {on_each_host} to a host, {:.0} % busy: ours {:.4} ms per request, {} ({ours_s:.2} s)",
                busy * 100.0,
                placed.overhead_per_request_s() * 1e3,
                proof(&placed),
            );
            match judged {
                Ok(judged) => match judged.overhead_s {
                    Ok(overhead_s) => println!(
                        "; HiGHS {:.4} ms ({theirs_s:.1} s, {} instances, {} variables), ours / theirs {:.4}",
                        overhead_s / f64::from(placed.batch) * 1e3,
                        judged.instances,
                        judged.variables,
                        placed.overhead_s / overhead_s,
                    ),
                    Err(error) => println!(
                        "; HiGHS: {error} ({theirs_s:.1} s, {} instances)",
                        judged.instances
                    ),
                },
                Err(error) => println!("; {error}"),
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    match arguments.next().as_deref() {
        Some("growth") => growth(),
        Some("small") => small(),
        Some("highs") => {
            let seconds = arguments.next().and_then(|seconds| seconds.parse().ok());
            highs(seconds.unwrap_or(60));
        }
        _ => families(),
    }
}
