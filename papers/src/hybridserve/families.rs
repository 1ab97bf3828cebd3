//! The paper's claims on its three families (§VI-A to §VI-C): shares of answers, accuracy, latency and joules.

use kaskade_app::report::units;
use kaskade_stated::families::StatedModel;

use super::field::{Mode, SERVERS, joules, network_s};
use super::paper::Paper;
use super::served::{Reached, Served};
use crate::reproduction::{Claim, Reproduction};

/// Tolerance of the largest model's share of the answers, against the paper's.
const NEAR: f64 = 0.05;

/// Joules of a milliwatt-hour.
const MWH: f64 = 3.6;

/// Adds the claims on one family.
///
/// # Errors
/// When a mode was not deployed.
pub(super) fn compare(served: &Served, paper: &Paper, found: &mut Reproduction) -> anyhow::Result<()> {
    let [largest, ap, eo] = [
        served.mode(Mode::Largest)?,
        served.mode(Mode::Ap)?,
        served.mode(Mode::Eo)?,
    ];
    let compared = Compared {
        served,
        paper,
        largest,
    };
    found.claims.extend([
        compared.distribution(ap, paper.ap),
        compared.distribution(eo, paper.eo),
        compared.preserved(ap),
        compared.bounded(eo),
        compared.average(ap, eo),
        compared.tail(ap),
        compared.throughput(ap),
        compared.throughput(eo),
        compared.energy(ap, paper.energy[0]),
        compared.energy(eo, paper.energy[1]),
        compared.same_load(ap, eo),
    ]);
    Ok(())
}

/// A family beside the paper's figures of it.
struct Compared<'a> {
    served: &'a Served,
    paper: &'a Paper,
    largest: &'a Reached,
}

impl Compared<'_> {
    fn name(&self, what: &str) -> String {
        format!("{}: {what}", self.served.field.family.name)
    }

    /// Shares of answers by model (Table III).
    fn distribution(&self, reached: &Reached, shares: &[(&str, f64)]) -> Claim {
        let largest_model = self.served.largest_model();
        let in_words = |share: &dyn Fn(&str) -> f64| {
            let each = shares
                .iter()
                .map(|(model, _)| format!("{model} {:.1}", 100.0 * share(model)));
            format!("{} %", each.collect::<Vec<_>>().join(", "))
        };
        let ours = |model: &str| reached.answered(model);
        let theirs = |model: &str| Paper::answered(shares, model);
        let apart = ours(largest_model) - theirs(largest_model);
        let moved: f64 = shares
            .iter()
            .map(|(model, share)| (ours(model) - share).abs() / 2.0)
            .sum();
        let met = apart.abs() <= NEAR;
        Claim {
            name: self.name(&format!("{}: shares of answers", reached.mode.name())),
            paper: in_words(&theirs),
            ours: in_words(&ours),
            met,
            note: if met {
                format!(
                    "the largest model's share is within {:.0} points; {:.0} % of the answers come from another model than in the paper",
                    100.0 * NEAR,
                    100.0 * moved
                )
            } else {
                format!(
                    "the largest model answers {:+.1} points more than in the paper: the answers are drawn from a model of difficulty, set by AP alone, and \
                     where the knee of the curve lies follows from that",
                    100.0 * apart
                )
            },
        }
    }

    /// AP is as accurate as the largest model (Table IV), on the second draw.
    fn preserved(&self, ap: &Reached) -> Claim {
        let (estimates, judged) = (&ap.constructed.planned.estimates, &ap.judged);
        let met = judged.accuracy >= judged.largest_accuracy;
        let [largest_model, preserved, _] = self.paper.accuracy;
        Claim {
            name: self.name("AP: accuracy equal to the largest model's"),
            paper: format!("{:.1} % and {:.1} %", 100.0 * preserved, 100.0 * largest_model),
            ours: format!(
                "{} and {} on a second draw of answers; {} and {} on the draw that it was chosen on",
                units::percent(judged.accuracy),
                units::percent(judged.largest_accuracy),
                units::percent(estimates.accuracy),
                units::percent(estimates.largest_accuracy),
            ),
            met,
            note: if met {
                String::new()
            } else {
                format!(
                    "{:.2} points are lost on samples that the thresholds were not chosen on; the standard error of an accuracy there is {:.2} points. \
                     The paper's rule is without a safety margin",
                    judged.lost_points(),
                    judged.error_points()
                )
            },
        }
    }

    /// EO is at least as accurate as the second largest model (§VI-C), on the second draw.
    fn bounded(&self, eo: &Reached) -> Claim {
        let (estimates, judged) = (&eo.constructed.planned.estimates, &eo.judged);
        let family = &self.served.field.family;
        let second = family.models.iter().rev().nth(1);
        let second_accuracy = second.map_or(0.0, |model: &StatedModel| model.accuracy);
        let met = judged.accuracy >= second_accuracy;
        let [largest_model, _, optimised] = self.paper.accuracy;
        Claim {
            name: self.name("EO: always better than the second largest"),
            paper: format!("{:.1} points lost", 100.0 * (largest_model - optimised)),
            ours: format!(
                "{:.1} points lost on a second draw of answers: {}, the second largest {}; {} on the draw that it was chosen on",
                judged.lost_points(),
                units::percent(judged.accuracy),
                units::percent(second_accuracy),
                units::percent(estimates.accuracy)
            ),
            met,
            note: if met {
                String::new()
            } else {
                "the point on the curve is below its bound".to_owned()
            },
        }
    }

    /// Average latency under the same load (Figure 4a).
    fn average(&self, ap: &Reached, eo: &Reached) -> Claim {
        let times = [ap, eo].map(|reached| self.largest.mean_s() / reached.mean_s());
        let wanted = self.paper.latency.unwrap_or([1.0, 1.0]);
        let met = times.iter().zip(&wanted).all(|(times, wanted)| times >= wanted);
        Claim {
            name: self.name("average latency, over the largest model alone"),
            paper: self.paper.latency.map_or_else(
                || "lower (Figure 4a; no figures)".to_owned(),
                |[ap, eo]| format!("{ap:.1}x lower with AP, {eo:.1}x with EO"),
            ),
            ours: format!(
                "{:.2}x with AP, {:.2}x with EO: {}, {} and {} at {:.1} requests/s",
                times[0],
                times[1],
                units::seconds(self.largest.mean_s()),
                units::seconds(ap.mean_s()),
                units::seconds(eo.mean_s()),
                self.served.equal_qps
            ),
            met,
            note: if met { String::new() } else { self.bound(ap, eo) },
        }
    }

    /// The 99.9 % latency under the same load (Figure 4b).
    fn tail(&self, ap: &Reached) -> Claim {
        let more = ap.tail_s() / self.largest.tail_s() - 1.0;
        let met = more <= self.paper.tail;
        let placed = &ap.deployed.placed;
        let alone: f64 = placed
            .models
            .iter()
            .map(|model| model.curves.latency.of_batch(1.0))
            .sum();
        let largest_model = self.largest.deployed.placed.models.first();
        let largest_alone = largest_model.map_or(f64::NAN, |model| model.curves.latency.of_batch(1.0));
        Claim {
            name: self.name("AP: 99.9 % latency, over the largest model alone"),
            paper: format!("within {:.1} %", 100.0 * self.paper.tail),
            ours: format!(
                "{:+.1} %: {} and {}",
                100.0 * more,
                units::seconds(ap.tail_s()),
                units::seconds(self.largest.tail_s())
            ),
            met,
            note: if met {
                "fewer requests wait for the largest model, which outweighs the models before it".to_owned()
            } else {
                format!(
                    "a request that reaches the largest model ran the models before it: alone and one at a time that takes {}, {:.0} % more than the largest model by itself ({}), \
                     and {:+.0} % at 99.9 % under a twenty-fifth of the load; the rest is waiting, for fewer copies of the largest model that share their devices",
                    units::seconds(alone),
                    100.0 * (alone / largest_alone - 1.0),
                    units::seconds(largest_alone),
                    100.0 * (ap.quiet_tail_s() / self.largest.quiet_tail_s() - 1.0)
                )
            },
        }
    }

    /// Sustained load (Figure 5).
    fn throughput(&self, reached: &Reached) -> Claim {
        let times = reached.sustained_qps / self.largest.sustained_qps;
        let met = times >= self.paper.throughput;
        Claim {
            name: self.name(&format!(
                "{}: throughput, over the largest model alone",
                reached.mode.name()
            )),
            paper: format!("{:.1}x; mode not stated", self.paper.throughput),
            ours: format!(
                "{times:.1}x: {:.1} and {:.1} requests/s sustained, {:.1} and {:.1} planned",
                reached.sustained_qps,
                self.largest.sustained_qps,
                reached.deployed.placed.qps,
                self.largest.deployed.placed.qps
            ),
            met,
            note: if met {
                String::new()
            } else {
                self.limit(reached, self.paper.throughput)
            },
        }
    }

    /// Joules per request under most of the load that each mode sustains (Table V).
    fn energy(&self, reached: &Reached, wanted: f64) -> Claim {
        let times = self.largest.full_j() / reached.full_j();
        let met = times >= wanted;
        Claim {
            name: self.name(&format!(
                "{}: energy per request, over the largest model alone",
                reached.mode.name()
            )),
            paper: format!("{wanted:.1}x less"),
            ours: format!(
                "{times:.1}x less: {} and {} ({:.2} and {:.2} mWh), idle devices included, each at 80 % of what it sustains",
                units::joules(Some(reached.full_j())),
                units::joules(Some(self.largest.full_j())),
                reached.full_j() / MWH,
                self.largest.full_j() / MWH
            ),
            met,
            note: if met {
                String::new()
            } else {
                self.limit(reached, wanted)
            },
        }
    }

    /// Joules per request under the common load, where idle power has a larger share.
    fn same_load(&self, ap: &Reached, eo: &Reached) -> Claim {
        let base = joules(&self.largest.few);
        let times = [ap, eo].map(|reached| base / joules(&reached.few));
        let met = times.iter().all(|times| *times > 1.0);
        Claim {
            name: self.name("energy per request under the same load, on the fewest servers"),
            paper: "-".to_owned(),
            ours: format!(
                "{:.1}x less with AP on {} servers, {:.1}x with EO on {}, the largest model alone on {}; at {:.1} requests/s, with {SERVERS} servers counted",
                times[0],
                ap.few_servers,
                times[1],
                eo.few_servers,
                self.largest.few_servers,
                self.served.equal_qps
            ),
            met,
            note: if met {
                "servers that host nothing draw their power too, so less is saved than at full load"
                    .to_owned()
            } else {
                "what the cascade saves in kernels does not pay for the power of loaded devices".to_owned()
            },
        }
    }

    /// Upper bounds of the saving: by the kernels of this cascade, and by the shares of answers that the paper states.
    fn limit(&self, reached: &Reached, wanted: f64) -> String {
        let largest_model = self.served.largest_model();
        let (reach, work) = (
            reached.reach(largest_model),
            self.largest.work_s() / reached.work_s(),
        );
        let shares = match reached.mode {
            Mode::Eo => self.paper.eo,
            _ => self.paper.ap,
        };
        let theirs = Paper::answered(shares, largest_model);
        let allowed = 1.0 / theirs;
        let verdict = if allowed < wanted {
            format!(
                "less than it claims, so its baseline must serve the largest model worse; {}",
                self.baseline()
            )
        } else {
            "if the smaller models cost nothing".to_owned()
        };
        format!(
            "{:.1} % of the requests reach {largest_model}, and a request keeps devices busy for {} instead of {}: kernels allow {work:.1}x over the same \
             largest model placed by the same planner. The paper's own share of Table III, {:.1} %, would allow {allowed:.1}x, {verdict}",
            100.0 * reach,
            units::seconds(reached.work_s()),
            units::seconds(self.largest.work_s()),
            100.0 * theirs,
        )
    }

    fn bound(&self, ap: &Reached, eo: &Reached) -> String {
        let largest_model = self.served.largest_model();
        format!(
            "{:.1} % of the requests reach {largest_model} with AP and {:.1} % with EO, and wait as long for it as without a cascade; {}",
            100.0 * ap.reach(largest_model),
            100.0 * eo.reach(largest_model),
            self.baseline()
        )
    }

    /// Cost of slicing every layer of the largest model over the servers, as the paper's baseline does with parallel models.
    fn baseline(&self) -> String {
        let family = &self.served.field.family;
        let Some(largest_model) = family.models.last() else {
            return String::new();
        };
        let hidden = family
            .hidden_bytes()
            .get(&largest_model.name)
            .copied()
            .unwrap_or(0.0);
        // Two sums per layer; in a ring each server sends about twice the activation, in pieces, to the next and to the next.
        let steps = 2.0 * (SERVERS as f64 - 1.0);
        let sums = 2.0 * f64::from(largest_model.layers);
        let each = sums * steps * network_s(hidden / SERVERS as f64);
        format!(
            "a large model whose layers are sliced over {SERVERS} servers sends for {} per request where its kernels take {}",
            units::seconds(each),
            units::seconds(self.largest.work_s())
        )
    }
}
