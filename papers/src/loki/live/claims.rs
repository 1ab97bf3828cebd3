//! The claims of §6.4 that the live runs are compared with.

use kaskade_app::report::units;

use super::parts::{PARTS, Part, Run};
use crate::reproduction::Claim;

/// The claims that the live runs confirm.
pub(super) fn claims(rerouting: &(Run, Run), per_task: &(Run, Run)) -> Vec<Claim> {
    let (live, simulated) = rerouting;
    let workers = |part: Option<&Part>| part.map_or(f64::NAN, |part| part.workers / part.counted.max(1.0));
    let (off_peak, peak) = (workers(live.parts.first()), workers(live.parts.get(PARTS / 2)));
    let (lost, lost_per_task) = (
        live.total().violation_ratio(),
        per_task.0.total().violation_ratio(),
    );
    let concordance = concordance(&live.parts, &simulated.parts);
    let mut claims = vec![
        Claim {
            name: "live: workers off-peak".to_owned(),
            paper: "fewer than at the peak".to_owned(),
            ours: format!("{off_peak:.1} off-peak, {peak:.1} at the peak"),
            met: off_peak < peak,
            note: String::new(),
        },
        Claim {
            name: "live: accuracy falls and rises as planned".to_owned(),
            paper: "as planned".to_owned(),
            ours: format!(
                "{:.0} % of the parts of the run in the simulated order",
                concordance * 100.0
            ),
            met: concordance >= 0.9,
            note: format!("pairs of {PARTS} parts whose simulated accuracies differ by a point or more"),
        },
        Claim {
            name: "live: violations, rerouting against per-task dropping".to_owned(),
            paper: "fewer".to_owned(),
            ours: format!(
                "{} against {}",
                units::percent(lost),
                units::percent(lost_per_task)
            ),
            met: lost < lost_per_task,
            note: format!(
                "simulated: {} against {}",
                units::percent(simulated.total().violation_ratio()),
                units::percent(per_task.1.total().violation_ratio())
            ),
        },
    ];
    claims.extend(difference(live, simulated));
    claims
}

/// The run by the rules of the app's file, which are Kaskade's defaults unless it says otherwise.
pub(super) fn of_the_app((live, simulated): &(Run, Run)) -> Claim {
    let (lost, expected) = (
        live.total().violation_ratio(),
        simulated.total().violation_ratio(),
    );
    Claim {
        name: "live: violations by the rules of the app, under a load that rises within a minute".to_owned(),
        paper: "-".to_owned(),
        ours: format!(
            "{} at accuracy {}",
            units::percent(lost),
            units::percent(live.total().accuracy())
        ),
        met: lost < 0.05,
        note: format!(
            "wanted: under 5 %; simulated: {} at accuracy {}",
            units::percent(expected),
            units::percent(simulated.total().accuracy())
        ),
    }
}

/// How far the simulator is from the live run (§6.4).
fn difference(live: &Run, simulated: &Run) -> [Claim; 3] {
    let (l, s) = (live.total(), simulated.total());
    let claim =
        |name: &str, paper: &str, live: String, simulated: String, difference: f64, unit: &str| Claim {
            name: format!("simulated against live: {name}"),
            paper: paper.to_owned(),
            ours: format!("{difference:.1} {unit} ({simulated} simulated, {live} live)"),
            met: difference <= 5.0,
            note: "wanted: 5 at most".to_owned(),
        };
    let points = |one: f64, other: f64| (one - other).abs() * 100.0;
    [
        claim(
            "accuracy",
            "1.2 %",
            units::percent(l.accuracy()),
            units::percent(s.accuracy()),
            points(l.accuracy(), s.accuracy()) / l.accuracy(),
            "%",
        ),
        claim(
            "violations",
            "1.8 %",
            units::percent(l.violation_ratio()),
            units::percent(s.violation_ratio()),
            points(l.violation_ratio(), s.violation_ratio()),
            "points",
        ),
        claim(
            "workers",
            "1.5 %",
            format!("{:.2}", live.workers),
            format!("{:.2}", simulated.workers),
            points(live.workers, simulated.workers) / live.workers,
            "%",
        ),
    ]
}

/// Share of the pairs of parts, of those whose simulated accuracies differ by a point or more, that lie in the same order live.
fn concordance(live: &[Part], simulated: &[Part]) -> f64 {
    let parts: Vec<(f64, f64)> = live
        .iter()
        .zip(simulated)
        .map(|(live, simulated)| (live.accuracy(), simulated.accuracy()))
        .collect();
    let (mut same, mut all) = (0_u32, 0_u32);
    for (at, one) in parts.iter().enumerate() {
        for other in parts.iter().skip(at + 1) {
            let planned = one.1 - other.1;
            if planned.abs() >= 0.01 {
                all += 1;
                same += u32::from((one.0 - other.0) * planned > 0.0);
            }
        }
    }
    f64::from(same) / f64::from(all.max(1))
}
