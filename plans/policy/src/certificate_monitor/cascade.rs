//! The tests of one cascade of a certified list.
//!
//! # Audits that fail
//!
//! Of an audited request let `Y` be 1 if the cascade's answer differs from the largest variant's, else 0, and `S` be 1 if the audit ended,
//! else 0. The hypothesis of the audits is `E[Y] <= m`, given all that was observed before.
//!
//! **A failed audit counts as agreement.** The test takes `S Y`. `S Y <= Y`, so `E[S Y] <= E[Y] <= m`: under the hypothesis the wealth is
//! a supermartingale, and the probability of a false alarm keeps its bound, whatever failures depend on: the length of a prompt, the load,
//! the answers themselves. The price is power: where the audits end with probability `s`, the test sees `s D` of a true share `D`.
//!
//! **Leaving failed audits out needs an assumption.** That test takes `Y` where `S = 1`, and holds if `E[Y | S = 1] <= E[Y]`. Let `P` be
//! the share of requests that the largest variant answers itself: they agree and never fail. If failures of the others are independent
//! of `Y`, `E[Y | S = 1] = s D / (P + s (1 - P))`, which is at most `D` because `P + s (1 - P) >= s`. But they are not: an audit has a time
//! limit, so requests with long answers fail first, and nothing bounds how differently often short ones differ. If only audits that agree fail,
//! `E[Y | S = 1]` is `D` over the share that ended, which is above `D`.
//!
//! **A failed probe counts as a difference**, for the same reason: the hypothesis is `E[Y] >= m`, the test takes `S (1 - Y)`, and
//! `E[S (1 - Y)] <= 1 - m`.
//!
//! **Labels need the assumption.** A paired loss is known only where a label arrives and the audit has ended. The test assumes that both
//! are independent of the loss `L` among the requests that the largest variant did not answer itself. Then the mean of the known losses
//! is `s L / (P + s (1 - P))`, which is at most the larger of `L` and 0.

use super::counts::{AuditCounts, CascadeCounts, LabelCounts};
use super::design_effect::DesignEffect;
use super::finding::{CascadeStatus, Evidence, Finding};
use super::mean_test::{DesignEffects, MeanTest, WeightedValue, log_mean, mean_interval};
use super::profiled_rate::rate_range;
use super::sample_test::{Drawn, SampleTest, Traffic};
use crate::plan::{Certificate, CertifiedCascade, ExpectedStage, Guarantee};

/// Probability with which each end of the range of a profiled rate misses it.
const RANGE_ALPHA: f64 = 1e-3;

/// Part of the probability of a false alarm by audits or labels that the range of the profiled share of differing answers gets; the tests
/// get the rest.
const RANGE_PART: f64 = 0.5;

/// Confidence of the reported intervals is one less this.
const SHOWN_ALPHA: f64 = 0.05;

/// Least number of requests after which a drift is over if it was not found again.
const SETTLED_AFTER: u64 = 2_000;

/// The tests of one cascade.
#[derive(Debug, Clone)]
pub(super) struct CascadeMonitor {
    /// Probability of a false alarm of each kind.
    alpha: f64,
    certificate: Certificate,
    is_largest_alone: bool,
    /// Certification samples in which it differs from the largest variant, if the list says.
    profiled_differs: Option<u64>,
    may_differ: Option<f64>,
    /// Whether answers that agree have the same accuracy, so that differing bounds the loss.
    bounds_loss: bool,
    /// By what it was refuted, while it may not run.
    refuted_by: Option<Evidence>,
    expected: Vec<ExpectedStage>,
    /// One test more or less for each category of each stage.
    rates: Vec<RateTest>,
    /// How similar requests of each stage that follow each other are. It is of the traffic, so it survives a restart of the tests.
    effects: Vec<DesignEffect>,
    /// How often the tests of the stages began.
    rates_begun: u32,
    /// The requests since the tests of the stages began.
    requests: u64,
    /// The requests that the last drift took to be found, while it lasts.
    drift_found_after: Option<u64>,
    /// "It differs at most as often as it may."
    differs: Option<SampleTest>,
    /// "It loses at most what it may", by labels.
    loses: SampleTest,
    /// "It differs at least as often as it may", by probes; `None` if probes cannot restore it.
    differs_still: Option<SampleTest>,
    /// How often these three began.
    begun: u32,
    /// The requests since these three began.
    requests_since_begun: u64,
    audits: AuditCounts,
    probes: AuditCounts,
    labels: LabelCounts,
}

/// A test of a category's rate against one end of its profiled range.
#[derive(Debug, Clone)]
struct RateTest {
    stage: usize,
    category: usize,
    /// Whether it tests that the category is too frequent, else too rare.
    more: bool,
    test: MeanTest,
}

/// A change in what the stages do.
pub(super) enum Change {
    InputsDrifted { stage: usize },
    Settled,
}

impl Change {
    pub(super) fn finding(self, cascade: usize) -> Finding {
        match self {
            Self::InputsDrifted { stage } => Finding::InputsDrifted { cascade, stage },
            Self::Settled => Finding::Settled { cascade },
        }
    }
}

impl CascadeMonitor {
    pub(super) fn new(
        cascade: &CertifiedCascade,
        is_largest_alone: bool,
        bounds_loss: bool,
        alpha: f64,
    ) -> Self {
        let certificate = &cascade.certificate;
        let may_differ = cascade.differs.map(|differs| {
            // Not at the certificate's confidence: a low one would put the bound below the rate too often, and every such cascade raises
            // a false alarm.
            let [_, high] = rate_range(differs, certificate.samples, RANGE_PART * alpha);
            match &certificate.guarantee {
                // A cascade that differs less often than it may lose keeps its guarantee.
                Guarantee::MaxLoss { loss, .. } => high.max(*loss),
                Guarantee::MinAccuracy { .. } => high,
            }
        });
        let mut monitor = Self {
            alpha,
            certificate: certificate.clone(),
            is_largest_alone,
            profiled_differs: cascade.differs,
            may_differ,
            bounds_loss,
            refuted_by: None,
            expected: cascade.stages.clone(),
            rates: Vec::new(),
            effects: vec![DesignEffect::default(); cascade.stages.len()],
            rates_begun: 0,
            requests: 0,
            drift_found_after: None,
            differs: None,
            loses: SampleTest::at_most(0.5, Drawn::Somehow),
            differs_still: None,
            begun: 0,
            requests_since_begun: 0,
            audits: AuditCounts::default(),
            probes: AuditCounts::default(),
            labels: LabelCounts::default(),
        };
        monitor.restart();
        monitor
    }

    /// Returns whether both are proven on as many samples, as many of which were answered rightly.
    pub(super) fn has_sample_counts_of(&self, other: &Self) -> bool {
        let counts = |monitor: &Self| (monitor.certificate.samples, monitor.certificate.right);
        counts(self) == counts(other)
    }

    /// Returns whether both are the same cascade with the same proof.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        self.certificate == other.certificate
            && self.expected == other.expected
            && self.is_largest_alone == other.is_largest_alone
            && self.profiled_differs == other.profiled_differs
            && self.bounds_loss == other.bounds_loss
    }

    /// Continues the tests of the same cascade in another list, at the error probability of this one. In a list of another length the share
    /// up to which it may differ is another one, so what is tested against it begins again.
    pub(super) fn continue_tests_of(&mut self, other: &Self) {
        let new = std::mem::replace(self, other.clone());
        self.alpha = new.alpha;
        if self.may_differ != new.may_differ {
            self.may_differ = new.may_differ;
            self.restart();
        }
    }

    /// Restarts all tests, at a stricter level than before.
    pub(super) fn restart(&mut self) {
        self.begun += 1;
        restart(&mut self.differs, self.may_differ, Drawn::AtRandom);
        self.restart_restoring();
        self.loses.restart(self.may_lose_scaled());
        self.requests_since_begun = 0;
        self.audits = AuditCounts::default();
        self.probes = AuditCounts::default();
        self.labels = LabelCounts::default();
        self.drift_found_after = None;
        self.restart_stages();
    }

    /// Returns by what it was refuted, while it may not run.
    pub(super) fn refuted_by(&self) -> Option<Evidence> {
        self.refuted_by
    }

    /// Notes by what it was refuted. Another kind of evidence needs another test of the probes.
    pub(super) fn set_refuted_by(&mut self, evidence: Option<Evidence>) {
        if self.refuted_by != evidence {
            self.refuted_by = evidence;
            self.restart_restoring();
        }
    }

    /// Restarts the test that probes must pass to restore it. After labels have refuted it, differing as often as on the certification
    /// samples shows nothing: more of these answers may be losses. Then it must differ no more often than it may lose.
    fn restart_restoring(&mut self) {
        let max_rate = match (self.refuted_by, &self.certificate.guarantee) {
            (Some(Evidence::Labels), Guarantee::MaxLoss { loss, .. }) => {
                self.may_differ.filter(|_| self.bounds_loss).map(|_| *loss)
            }
            (Some(Evidence::Labels), Guarantee::MinAccuracy { .. }) => None,
            (Some(Evidence::Audits) | None, _) => self.may_differ,
        };
        restart(
            &mut self.differs_still,
            max_rate.map(|max_rate| 1.0 - max_rate),
            Drawn::AtRandom,
        );
    }

    fn restart_stages(&mut self) {
        self.rates_begun += 1;
        self.requests = 0;
        self.rates = self
            .expected
            .iter()
            .enumerate()
            .flat_map(|(stage, expected)| rate_tests(stage, expected))
            .collect();
    }

    pub(super) fn inputs_drifted(&self) -> bool {
        self.drift_found_after.is_some()
    }

    /// Takes what the stages did.
    pub(super) fn stages(&mut self, counts: &CascadeCounts) -> Option<Change> {
        self.requests = self.requests.saturating_add(requests(counts));
        for (stage, (effect, counts)) in self.effects.iter_mut().zip(&counts.stages).enumerate() {
            // By what was seen before. While that tells nothing, neither do the results.
            if let Some(before) = effect.estimate() {
                let of_batch = effect.of_batch(counts);
                for rate in self.rates.iter_mut().filter(|rate| rate.stage == stage) {
                    rate.take(counts, DesignEffects { before, of_batch });
                }
            }
            effect.take(counts);
        }
        let wealth: Vec<f64> = self.rates.iter().map(|rate| rate.test.log_wealth()).collect();
        let level = level(self.alpha, self.rates_begun);
        if !wealth.is_empty() && log_mean(&wealth) >= -level.ln() {
            let strongest = self
                .rates
                .iter()
                .max_by(|a, b| a.test.log_wealth().total_cmp(&b.test.log_wealth()));
            let stage = strongest.map_or(0, |rate| rate.stage);
            let is_new = self.drift_found_after.is_none();
            self.drift_found_after = Some(self.requests);
            self.restart_stages();
            return is_new.then_some(Change::InputsDrifted { stage });
        }
        let took = self.drift_found_after?;
        // The level is stricter than when the drift was found, so finding it again takes somewhat longer.
        if self.requests < SETTLED_AFTER.max(took.saturating_mul(3)) {
            return None;
        }
        self.drift_found_after = None;
        Some(Change::Settled)
    }

    /// Returns the requests of a batch and before it, as the samples of them need it.
    pub(super) fn traffic(&self, counts: &CascadeCounts) -> Traffic {
        Traffic {
            design_effect: self.effects.first().and_then(DesignEffect::estimate),
            requests: self.requests_since_begun.saturating_add(requests(counts)),
        }
    }

    /// Takes what audits, probes and labels say. Audits and labels are of requests that it ran, probes of those that `probed` describes.
    pub(super) fn audits(&mut self, counts: &CascadeCounts, own: Traffic, probed: Traffic) {
        let AuditCounts {
            agree,
            differ,
            failed,
        } = counts.audits;
        if let Some(test) = &mut self.differs {
            // Valid whatever failures depend on; without the failed ones it would not be.
            test.take(&[(1.0, differ), (0.0, agree.saturating_add(failed))], own);
        }
        if let Some(test) = &mut self.differs_still {
            let AuditCounts {
                agree,
                differ,
                failed,
            } = counts.probes;
            // A failed probe does not count as agreement.
            test.take(&[(1.0, agree), (0.0, differ.saturating_add(failed))], probed);
        }
        self.loses.take(&self.losses(&counts.labels), own);
        self.requests_since_begun = own.requests;
        self.probes.add(&counts.probes);
        self.audits.add(&counts.audits);
        self.labels.add(&counts.labels);
    }

    /// Returns by what the certificate is refuted.
    pub(super) fn is_refuted(&self) -> Option<Evidence> {
        if self.is_largest_alone {
            return None;
        }
        let audits = self
            .differs
            .as_ref()
            .map_or(f64::NEG_INFINITY, SampleTest::log_wealth);
        let labels = self.loses.log_wealth();
        let alpha = (1.0 - RANGE_PART) * self.alpha;
        let refuted = log_mean(&[audits, labels]) >= -level(alpha, self.begun).ln();
        let evidence = if labels > audits {
            Evidence::Labels
        } else {
            Evidence::Audits
        };
        refuted.then_some(evidence)
    }

    /// Returns whether probes show that the certificate holds.
    pub(super) fn is_restored(&self) -> bool {
        let still = self.differs_still.as_ref();
        still.is_some_and(|test| test.log_wealth() >= -level(self.alpha, self.begun).ln())
    }

    pub(super) fn status(&self) -> CascadeStatus {
        let AuditCounts { agree, differ, .. } = self.audits;
        let losses = self.losses(&self.labels);
        let interval = mean_interval(&losses, SHOWN_ALPHA);
        CascadeStatus {
            audited: self.audits.ended(),
            differs: mean_interval(&[(1.0, differ), (0.0, agree)], SHOWN_ALPHA),
            may_differ: self.may_differ,
            labelled: losses.iter().map(|(_, count)| count).sum(),
            loss: match &self.certificate.guarantee {
                Guarantee::MaxLoss { .. } => interval.map(|end| 2.0 * end - 1.0),
                Guarantee::MinAccuracy { .. } => interval,
            },
            may_lose: max_loss(&self.certificate.guarantee),
            inputs_drifted: self.inputs_drifted(),
        }
    }

    /// Returns the values in [0, 1] of labels: a paired loss in [-1, 1] becomes `(loss + 1) / 2`.
    fn losses(&self, labels: &LabelCounts) -> Vec<WeightedValue> {
        match &self.certificate.guarantee {
            Guarantee::MaxLoss { .. } => {
                vec![(1.0, labels.lost), (0.5, labels.same), (0.0, labels.gained)]
            }
            Guarantee::MinAccuracy { .. } => vec![(1.0, labels.wrong), (0.0, labels.right)],
        }
    }

    fn may_lose_scaled(&self) -> f64 {
        match &self.certificate.guarantee {
            Guarantee::MaxLoss { loss, .. } => f64::midpoint(*loss, 1.0),
            Guarantee::MinAccuracy { accuracy } => 1.0 - accuracy,
        }
    }
}

impl RateTest {
    /// Takes the results of its stage, counted by category.
    fn take(&mut self, counts: &[u64], effects: DesignEffects) {
        let all: u64 = counts.iter().sum();
        let inside = counts.get(self.category).copied().unwrap_or(0);
        let outside = all.saturating_sub(inside);
        let (ones, zeros) = if self.more {
            (inside, outside)
        } else {
            (outside, inside)
        };
        self.test.take_clustered(&[(1.0, ones), (0.0, zeros)], effects);
    }
}

/// Restarts a test with that null hypothesis; `None` ends it.
fn restart(test: &mut Option<SampleTest>, null: Option<f64>, drawn: Drawn) {
    match (test.as_mut(), null) {
        (Some(test), Some(null)) => test.restart(null),
        (None, Some(null)) => *test = Some(SampleTest::at_most(null, drawn)),
        (_, None) => *test = None,
    }
}

/// Returns the requests of a batch: the results of the first stage.
fn requests(counts: &CascadeCounts) -> u64 {
    counts.stages.first().map_or(0, |first| first.iter().sum())
}

/// Returns two tests per category; none against an end that every rate satisfies.
fn rate_tests(stage: usize, expected: &ExpectedStage) -> Vec<RateTest> {
    let mut tests = Vec::new();
    for (category, count) in expected.categories().enumerate() {
        let [low, high] = rate_range(count, expected.samples, RANGE_ALPHA);
        let mut add = |more: bool, null: f64| {
            if null < 1.0 - 1e-9 {
                let test = MeanTest::at_most(null);
                tests.push(RateTest {
                    stage,
                    category,
                    more,
                    test,
                });
            }
        };
        add(true, high);
        add(false, 1.0 - low);
    }
    tests
}

/// Returns the level of the `number`-th repetition of a test, from 1; the levels of all sum to `alpha`.
fn level(alpha: f64, number: u32) -> f64 {
    let number = f64::from(number.max(1));
    alpha / (number * (number + 1.0))
}

/// Returns the loss, or the share of wrong answers, that a guarantee allows.
fn max_loss(guarantee: &Guarantee) -> f64 {
    match guarantee {
        Guarantee::MaxLoss { loss, .. } => *loss,
        Guarantee::MinAccuracy { accuracy } => 1.0 - accuracy,
    }
}
