//! A cascade of eight models with and without skip connections (§IV-C): hops, latency and energy.

use kaskade_app::report::units;
use kaskade_planners::cascade::{CascadeOptions, Objective, plan_cascade};
use kaskade_policy::plan::Plan;
use kaskade_simulator::Report;

use super::field::{Deployed, Field, Mode, hops, joules};
use crate::parallel::in_parallel;
use crate::reproduction::{Claim, Reproduction};

/// The common load, as a share of what the largest model alone sustains.
const EQUAL: f64 = 0.5;

/// One wiring of the models.
#[derive(Debug, Clone)]
pub(super) struct Connected {
    /// Name.
    pub(super) name: &'static str,
    /// The placement.
    pub(super) deployed: Deployed,
    /// Share of right answers on the second draw.
    accuracy: f64,
    /// Share of right answers on the draw that it was planned by.
    planned_accuracy: f64,
    /// Simulation under the equal load.
    pub(super) report: Report,
}

impl Connected {
    /// Models that a request runs on.
    pub(super) fn hops(&self) -> f64 {
        hops(&self.report, &self.deployed.placed)
    }

    /// Joules per request.
    pub(super) fn joules(&self) -> f64 {
        joules(&self.report)
    }

    /// Mean and 99.9 % latency, seconds.
    pub(super) fn latency_s(&self) -> [f64; 2] {
        let latency = &self.report.latency;
        [
            latency.mean().unwrap_or(f64::NAN) / 1e6,
            latency.quantile(0.999).map_or(f64::NAN, |us| us as f64 / 1e6),
        ]
    }
}

/// Serves the cascade of AP's thresholds as a chain, with skips, and as the planner makes it of them.
///
/// # Errors
/// When something cannot be planned, placed or simulated.
pub(super) fn compare(field: &Field, found: &mut Reproduction) -> anyhow::Result<Vec<Connected>> {
    let chosen = field.construct(Mode::Ap)?.planned;
    let largest_model = field.place(&field.construct(Mode::Largest)?.planned.plan)?;
    let qps = EQUAL * field.sustained_qps(&largest_model.placed)?;
    // Where a stage forwards everything, so does a threshold of 1.
    let thresholds: Vec<f64> = chosen
        .ap
        .thresholds
        .iter()
        .map(|threshold| threshold.min(1.0))
        .collect();
    let given = |skips: bool| {
        let options = CascadeOptions {
            skips,
            skip_loss: 1.0,
            ..field.cascade_options(Objective::Thresholds(thresholds.clone()))
        };
        plan_cascade(&field.profile, &options)
    };
    let (chain, skipping) = (given(false)?, given(true)?);
    let ways: [(&'static str, &Plan, f64); 3] = [
        ("chain of all", &chain.plan, chain.estimates.accuracy),
        ("with skips", &skipping.plan, skipping.estimates.accuracy),
        ("AP, models dropped", &chosen.plan, chosen.estimates.accuracy),
    ];
    let connected = in_parallel(&ways, |(name, plan, accuracy)| {
        let deployed = field.place(plan)?;
        Ok(Connected {
            name,
            report: field.play(&deployed.placed, qps)?,
            accuracy: field.judge(&deployed.placed.plan)?.accuracy,
            planned_accuracy: *accuracy,
            deployed,
        })
    });
    let connected = connected.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    found.claims.push(skips(&connected, qps));
    found.claims.push(drops(&connected));
    Ok(connected)
}

fn in_words(connected: &Connected) -> String {
    let [mean, tail] = connected.latency_s();
    format!(
        "{}: {:.2} models run, {} on average and {} at 99.9 %, {} per request, {} right",
        connected.name,
        connected.hops(),
        units::seconds(mean),
        units::seconds(tail),
        units::joules(Some(connected.joules())),
        units::percent(connected.accuracy)
    )
}

/// Compares the cascade with and without skip connections, under the same thresholds.
fn skips(connected: &[Connected], qps: f64) -> Claim {
    let [chain, skipping, ..] = connected else {
        return lacking("eight models: skip connections");
    };
    let fewer = skipping.hops() < chain.hops();
    let faster = skipping.latency_s()[0] < chain.latency_s()[0];
    let cheaper = skipping.joules() <= chain.joules();
    let met = fewer && faster && cheaper;
    let lost = 100.0 * (chain.accuracy - skipping.accuracy);
    let planned = 100.0 * (chain.planned_accuracy - skipping.planned_accuracy);
    let mut missing = Vec::new();
    for (holds, what) in [
        (fewer, "fewer models run"),
        (faster, "a lower latency"),
        (cheaper, "less energy"),
    ] {
        if !holds {
            missing.push(what);
        }
    }
    Claim {
        name: "eight models: skip connections run fewer models, sooner, for less energy".to_owned(),
        paper: "almost all requests jump to the largest model; fewer extra hops (\u{a7}IV-C, \u{a7}VI-B)"
            .to_owned(),
        ours: format!(
            "{}; {}; at {qps:.1} requests/s",
            in_words(chain),
            in_words(skipping)
        ),
        met,
        note: if met {
            format!(
                "at the price of {planned:.2} points of accuracy on the draw that it was planned by, {lost:.2} on the second: skipping a model loses the \
                 answers of which it would have been sure. That is why the planner leaves them out of AP here"
            )
        } else {
            format!("no {}", missing.join(", no "))
        },
    }
}

/// Checks that the planner drops models that do not pay (Algorithm 2).
fn drops(connected: &[Connected]) -> Claim {
    let [chain, _, chosen] = connected else {
        return lacking("eight models: dropping");
    };
    let met = chosen.hops() < chain.hops()
        && chosen.accuracy >= chain.accuracy
        && chosen.joules() <= chain.joules();
    Claim {
        name: "eight models: dropping those that do not pay keeps the accuracy for less".to_owned(),
        paper: "models without energy benefit are left out (Algorithm 2)".to_owned(),
        ours: in_words(chosen),
        met,
        note: if met {
            format!(
                "{:.0} % fewer hops than the chain of all, {:.1} % less energy",
                100.0 * (1.0 - chosen.hops() / chain.hops()),
                100.0 * (1.0 - chosen.joules() / chain.joules())
            )
        } else {
            format!(
                "{:+.2} hops, {:+.1} % energy and {:+.2} points of accuracy against the chain of all",
                chosen.hops() - chain.hops(),
                100.0 * (chosen.joules() / chain.joules() - 1.0),
                100.0 * (chosen.accuracy - chain.accuracy)
            )
        },
    }
}

fn lacking(name: &str) -> Claim {
    Claim {
        name: name.to_owned(),
        paper: "-".to_owned(),
        ours: "not all ways of connecting were simulated".to_owned(),
        met: false,
        note: "run it again".to_owned(),
    }
}
