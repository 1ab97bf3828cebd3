//! Policies of early dropping (Loki §6.3, Figure 7), by the headroom of the plans.

use kaskade_app::report::progress::Progress;
use kaskade_app::report::{self, units};
use kaskade_policy::plan::Dropping;

use super::Args;
use super::field::{Contestant, Field, HEADROOM, Run};
use crate::charts::bars::{self, Bars};
use crate::parallel::in_parallel;
use crate::reproduction::{Claim, Reproduction};

/// The mechanisms, in the paper's order, which is that of fewer and fewer violations.
const MECHANISMS: [(&str, Dropping); 4] = [
    ("none", Dropping::None),
    ("last task", Dropping::LastTask),
    ("per task", Dropping::PerTask),
    ("rerouting", Dropping::Rerouting),
];

/// Headrooms, as multiples of the demand; the paper's rule is the first.
const HEADROOMS: [f64; 4] = [1.0, 1.1, 1.2, HEADROOM];

/// Runs every mechanism at every headroom, draws and claims.
///
/// # Errors
/// When something cannot be simulated, or the picture not be written.
pub(super) fn compare(field: &Field, args: &Args, found: &mut Reproduction) -> anyhow::Result<()> {
    let contestants = HEADROOMS.into_iter().flat_map(|headroom| {
        MECHANISMS.map(|(_, dropping)| Contestant {
            dropping,
            headroom,
            // What leaves the queues when its objective has passed is dropped, too.
            expires: false,
            ..Contestant::LOKI
        })
    });
    let contestants: Vec<Contestant> = contestants.collect();
    let progress = Progress::begin("early dropping", contestants.len() as u64, args.json);
    let runs = in_parallel(&contestants, |contestant| field.play(*contestant));
    let runs = runs.into_iter().collect::<anyhow::Result<Vec<Run>>>()?;
    progress.end(&format!("{} days", runs.len()));
    let shares: Vec<Vec<f64>> = runs
        .chunks(MECHANISMS.len())
        .map(|runs| runs.iter().map(Run::violations).collect())
        .collect();
    let rerouted = runs
        .get(MECHANISMS.len() - 1)
        .map_or(0, |run| run.report.rerouted);
    found.claims.push(claim(&shares, rerouted));
    let groups = HEADROOMS.iter().zip(&shares).map(|(headroom, shares)| {
        let heights = shares.iter().map(|share| 100.0 * share);
        (format!("{headroom:.1} times the demand"), heights.collect())
    });
    let picture = Bars {
        title: "requests that miss their objective, by way of dropping early and room".to_owned(),
        axis: "SLO violations (%)".to_owned(),
        names: MECHANISMS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        groups: groups.collect(),
    };
    let file = args.out.join("loki-dropping.svg");
    report::write_file(&file, &bars::svg(&picture)?)?;
    found.files.push(file);
    Ok(())
}

fn claim(shares: &[Vec<f64>], rerouted: u64) -> Claim {
    let paper_rule = shares.first().map_or(&[][..], Vec::as_slice);
    let met = paper_rule
        .windows(2)
        .all(|pair| matches!(pair, [before, after] if after <= before));
    let figures = |shares: &[f64]| {
        let each = MECHANISMS.iter().zip(shares);
        let each = each.map(|((name, _), share)| format!("{name} {}", units::percent(*share)));
        each.collect::<Vec<_>>().join(", ")
    };
    let others = HEADROOMS.iter().zip(shares).skip(1);
    let others = others.map(|(headroom, shares)| format!("{headroom:.1} times: {}", figures(shares)));
    let others = others.collect::<Vec<_>>().join("; ");
    let why = if met {
        String::new()
    } else {
        format!(
            "workers that are busy all the time let queues grow until nearly all requests are late, whatever is dropped where; a backup must \
             make up for the delay within one full batch of its own, which {} branches found. ",
            units::count(rerouted)
        )
    };
    Claim {
        name: "early dropping: violations fall from none over last task and per task to rerouting".to_owned(),
        paper: "they do; rerouting has the most impact".to_owned(),
        ours: format!("planned for the demand itself: {}", figures(paper_rule)),
        met,
        note: format!("{why}planned for {others}"),
    }
}
