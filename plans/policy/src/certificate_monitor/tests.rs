mod clusters;
mod next_plan;

use super::*;
use crate::plan::{
    Band, Certificate, CertifiedCascade, Edge, Exit, ExpectedStage, Gear, Guarantee, LoadRange, Plan, Wiring,
};

const SAMPLES: u64 = 1_000;

/// A list from `large` alone; each further cascade asks `small` first and differs in that many of a thousand samples.
pub(crate) fn list(differs: &[u64]) -> CertifiedList {
    let cascades = differs
        .iter()
        .enumerate()
        .map(|(index, differs)| cascade(index, *differs));
    CertifiedList {
        texts: None,
        samples: None,
        cascade_of_gear: vec![differs.len() as u32 - 1],
        cascades: cascades.collect(),
    }
}

fn cascade(index: usize, differs: u64) -> CertifiedCascade {
    let mut stages = vec![stage("large", Exit::Reply)];
    let mut expected = vec![expected("large", 300, 0)];
    if index > 0 {
        let bands = vec![Band::forward(0.0, Edge::to("large")), Band::reply(0.5)];
        stages.insert(0, stage("small", Exit::Bands { bands }));
        expected.insert(0, self::expected("small", SAMPLES, 300));
    }
    CertifiedCascade {
        gear: Gear {
            name: format!("c{index}"),
            load: LoadRange::ALL,
            expected: None,
            wiring: Wiring {
                entry: Edge::to(stages[0].name.clone()),
                ensemble: Vec::new(),
                stages,
            },
        },
        certificate: Certificate {
            guarantee: Guarantee::MaxLoss {
                loss: 0.02,
                against: "large".to_owned(),
            },
            confidence: 0.95,
            samples: SAMPLES,
            right: 950,
            judge: None,
            lost: Some(differs / 2),
            gained: Some(differs / 4),
            p_value: 0.01,
        },
        differs: Some(differs),
        stages: expected,
    }
}

fn stage(name: &str, exit: Exit) -> crate::plan::Stage {
    crate::plan::Stage::new(name, name, exit, crate::plan::Batching::default())
}

fn expected(stage: &str, samples: u64, deferred: u64) -> ExpectedStage {
    let exits = samples - deferred;
    ExpectedStage {
        stage: stage.to_owned(),
        samples,
        deferred,
        edges: vec![0.7, 0.9],
        exits: vec![exits / 2, exits / 4, exits - exits / 2 - exits / 4],
    }
}

/// A plan of one gear, which runs the last cascade of the list.
pub(crate) fn plan(list: CertifiedList) -> Plan {
    let calibration = crate::confidence::Calibration::uncalibrated(crate::confidence::Estimator::MaxSquared);
    let variant = |name: &str| crate::plan::PlannedVariant {
        name: name.to_owned(),
        calibration: Some(calibration),
    };
    let replica = |name: &str| crate::plan::Replica::whole(format!("{name}-0"), name, "local", "cpu");
    let cheapest = list.cascades.last().unwrap().clone();
    Plan {
        certificate: Some(cheapest.certificate),
        certified: Some(list),
        ..Plan::one_gear(
            "a",
            vec![variant("small"), variant("large")],
            vec![replica("small"), replica("large")],
            cheapest.gear.wiring,
        )
    }
}

/// A live stream: how often the cascades differ from the largest variant, and how often `small` defers.
struct Live {
    draws: BernoulliSampler,
    differ: [f64; 4],
    defer: f64,
}

impl Live {
    fn usual(seed: u64) -> Self {
        Self {
            draws: BernoulliSampler::new(seed),
            differ: [0.0, 0.01, 0.015, 0.02],
            defer: 0.3,
        }
    }

    /// One batch of ten audited requests under the monitor's limit.
    fn batch(&mut self, monitor: &CertificateMonitor) -> Counts {
        let mut counts = Counts::default();
        let limit = monitor.limit();
        for _ in 0..10 {
            let differs = self.draws.draw(self.differ[limit]);
            let audits = &mut counts.at(limit).unwrap().audits;
            *if differs {
                &mut audits.differ
            } else {
                &mut audits.agree
            } += 1;
            if limit < monitor.cheapest() {
                let differs = self.draws.draw(self.differ[limit + 1]);
                let probes = &mut counts.at(limit + 1).unwrap().probes;
                *if differs {
                    &mut probes.differ
                } else {
                    &mut probes.agree
                } += 1;
            }
            let deferred = self.draws.draw(self.defer);
            let confidence = [0.6, 0.6, 0.8, 0.95]
                [usize::from(self.draws.draw(0.5)) * 2 + usize::from(self.draws.draw(0.5))];
            let expected = expected("small", SAMPLES, 300);
            let category = expected.category(deferred, confidence);
            if limit > 0 {
                counts.at(limit).unwrap().count(0, category);
            }
        }
        counts
    }

    /// Runs batches until the monitor finds something that counts; returns it with the requests that it took.
    fn until(
        &mut self,
        monitor: &mut CertificateMonitor,
        batches: usize,
        counts: impl Fn(&Finding) -> bool,
    ) -> Option<(usize, Finding)> {
        (1..=batches).find_map(|batch| {
            let found = self.batch(monitor);
            let finding = monitor.take(&found).into_iter().find(&counts)?;
            Some((10 * batch, finding))
        })
    }
}

fn monitor() -> CertificateMonitor {
    CertificateMonitor::new(&list(&[0, 10, 15, 20]), MonitorConfig::default())
}

fn is_move(finding: &Finding) -> bool {
    matches!(finding, Finding::Safer { .. } | Finding::Cheaper { .. })
}

#[test]
fn the_plan_of_these_tests_is_sound() {
    let plan = plan(list(&[0, 10, 15, 20]));
    plan.validate().unwrap();
    assert_eq!(plan.clamp_gear(0, 1), 2);
    assert_eq!(plan.clamp_gear(0, 3), 0);
    assert_eq!(plan.all_gears().count(), 5);
}

#[test]
fn usual_inputs_move_and_report_nothing_in_most_streams() {
    let mut alarms = 0;
    for seed in 0..60 {
        let mut monitor = monitor();
        alarms += usize::from(Live::usual(seed).until(&mut monitor, 500, |_| true).is_some());
    }
    // Alarms and drifts have probability 0.05 each, and these rates are the profiled ones, inside their ranges.
    assert!(alarms <= 6, "{alarms} of 60");
}

/// The bound of the share of differing answers had the certificate's confidence: with one of 50 %, it was below the rate of one cascade in
/// a dozen, whose usual answers refuted it.
#[test]
fn a_low_confidence_of_the_certificate_raises_no_more_false_alarms() {
    let (mut draws, mut alarms) = (BernoulliSampler::new(5), 0);
    for _ in 0..200 {
        let profiled = (0..SAMPLES).filter(|_| draws.draw(0.1)).count() as u64;
        let mut list = list(&[0, profiled]);
        list.cascades[1].certificate.confidence = 0.5;
        let mut monitor = CertificateMonitor::new(&list, MonitorConfig::default());
        let found = (0..50).find_map(|_| {
            let mut counts = Counts::default();
            let differ = (0..1_000).filter(|_| draws.draw(0.1)).count() as u64;
            let audits = &mut counts.at(1).unwrap().audits;
            (audits.agree, audits.differ) = (1_000 - differ, differ);
            monitor.take(&counts).pop()
        });
        alarms += u32::from(found.is_some());
    }
    assert!(alarms <= 10, "{alarms} of 200");
}

/// The certification samples and the live requests are drawn alike, and only audits fail whose answers agree: to leave them out refutes
/// nearly every certificate.
#[test]
fn failed_audits_raise_no_false_alarm_whatever_they_depend_on() {
    const SHARE: f64 = 0.1;
    let (mut draws, mut alarms) = (BernoulliSampler::new(11), [0, 0]);
    for _ in 0..200 {
        let profiled = (0..SAMPLES).filter(|_| draws.draw(SHARE)).count() as u64;
        let new = || CertificateMonitor::new(&list(&[0, profiled]), MonitorConfig::default());
        let mut watches = [new(), new()];
        let mut found = [false, false];
        for _ in 0..20 {
            let mut audits = AuditCounts::default();
            for _ in 0..1_000 {
                *if draws.draw(SHARE) {
                    &mut audits.differ
                } else if draws.draw(0.6) {
                    &mut audits.failed
                } else {
                    &mut audits.agree
                } += 1;
            }
            let ended = AuditCounts { failed: 0, ..audits };
            for ((monitor, found), audits) in watches.iter_mut().zip(&mut found).zip([audits, ended]) {
                let mut counts = Counts::default();
                counts.at(1).unwrap().audits = audits;
                *found |= !monitor.take(&counts).is_empty();
            }
        }
        alarms = [0, 1].map(|test| alarms[test] + u32::from(found[test]));
    }
    let [counted, left_out] = alarms;
    assert!(counted <= 10, "{counted} of 200 with a bound of 5 %");
    assert!(left_out >= 190, "{left_out} of 200");
}

/// Half of the audits that the largest variant must answer fail, whatever they would say.
#[test]
fn a_drift_is_found_although_audits_fail() {
    for seed in 0..20 {
        let (mut draws, mut monitor) = (BernoulliSampler::new(seed), monitor());
        let found = (1..100).find_map(|batch| {
            let mut counts = Counts::default();
            let audits = &mut counts.at(3).unwrap().audits;
            for _ in 0..10 {
                let (by_largest, differs, fails) = (draws.draw(0.3), draws.draw(0.3), draws.draw(0.5));
                *match (by_largest, fails, differs) {
                    (true, ..) | (false, false, false) => &mut audits.agree,
                    (false, true, _) => &mut audits.failed,
                    (false, false, true) => &mut audits.differ,
                } += 1;
            }
            monitor.take(&counts).pop().map(|found| (10 * batch, found))
        });
        let (requests, found) = found.unwrap();
        assert!(
            matches!(found, Finding::Safer { from: 3, to: 2, .. }),
            "{found:?}"
        );
        assert!(requests <= 800, "seed {seed}: {requests}");
    }
}

#[test]
fn a_loss_moves_to_the_safer_cascade_and_its_end_moves_back() {
    for seed in 0..20 {
        let (mut live, mut monitor) = (Live::usual(seed), monitor());
        assert!(live.until(&mut monitor, 200, is_move).is_none());
        live.differ = [0.0, 0.01, 0.2, 0.2];
        let (requests, found) = live.until(&mut monitor, 100, is_move).unwrap();
        assert_eq!(
            found,
            Finding::Safer {
                from: 3,
                to: 2,
                evidence: Evidence::Audits
            }
        );
        assert!(requests <= 300, "seed {seed}: {requests}");
        let (_, found) = live.until(&mut monitor, 100, is_move).unwrap();
        assert!(matches!(found, Finding::Safer { from: 2, to: 1, .. }));
        assert!(monitor.elevates_audits());
        // The next one still differs too often, and the one that runs does not.
        assert!(live.until(&mut monitor, 300, is_move).is_none());
        live.differ = [0.0, 0.002, 0.002, 0.002];
        let (_, found) = live.until(&mut monitor, 1_000, is_move).unwrap();
        assert_eq!(found, Finding::Cheaper { from: 1, to: 2 });
        let (_, found) = live.until(&mut monitor, 1_000, is_move).unwrap();
        assert_eq!(found, Finding::Cheaper { from: 2, to: 3 });
        assert!(live.until(&mut monitor, 300, is_move).is_none());
    }
}

/// A camera that is covered: every request is deferred, from the first one on.
#[test]
fn requests_that_all_give_one_result_are_a_drift() {
    let mut monitor = monitor();
    let found = (1..200).find_map(|batch| {
        let mut counts = Counts::default();
        let cascade = counts.at(3).unwrap();
        cascade.stages = vec![vec![0, 0, 0, 0, 0, 0]];
        cascade.stages[0][expected("small", SAMPLES, 300).category(true, 0.6)] = 40;
        Some((batch * 40, monitor.take(&counts).pop()?))
    });
    let (requests, found) = found.unwrap();
    assert_eq!(found, Finding::InputsDrifted { cascade: 3, stage: 0 });
    assert!(requests < 5_000, "{requests}");
}

/// Every answer differs, and one request of two hundred is audited.
#[test]
fn a_total_loss_needs_few_audits() {
    for seed in 0..10 {
        let (mut live, mut monitor) = (Live::usual(seed), monitor());
        let mut audits = 0;
        let found = (0..2_000).find_map(|batch| {
            let mut counts = live.batch(&monitor);
            let cascade = counts.at(3).unwrap();
            cascade.audits = AuditCounts::default();
            if batch % 20 == 0 {
                audits += 1;
                cascade.audits.differ = 1;
            }
            monitor.take(&counts).into_iter().find(is_move)
        });
        assert!(found.is_some() && audits <= 20, "seed {seed}: {audits}");
    }
}

#[test]
fn the_largest_variant_alone_is_never_refuted() {
    let (mut live, mut monitor) = (Live::usual(1), monitor());
    live.differ = [1.0; 4];
    for _ in 0..200 {
        let counts = live.batch(&monitor);
        monitor.take(&counts);
    }
    assert_eq!(monitor.limit(), 0);
    monitor.follow(9, &[]);
    assert_eq!(monitor.limit(), 3);
}

#[test]
fn a_change_of_deferral_is_reported_once_and_settles() {
    for seed in 0..10 {
        let (mut live, mut monitor) = (Live::usual(seed), monitor());
        assert!(live.until(&mut monitor, 200, |_| true).is_none());
        live.defer = 0.5;
        let (requests, found) = live.until(&mut monitor, 100, |_| true).unwrap();
        assert_eq!(found, Finding::InputsDrifted { cascade: 3, stage: 0 });
        assert!(requests <= 1_000, "seed {seed}: {requests}");
        assert!(monitor.elevates_audits());
        assert!(
            live.until(&mut monitor, 200, |_| true).is_none(),
            "it is reported once"
        );
        live.defer = 0.3;
        let (_, found) = live.until(&mut monitor, 2_000, |_| true).unwrap();
        assert_eq!(found, Finding::Settled { cascade: 3 });
        assert!(!monitor.elevates_audits());
    }
}

#[test]
fn a_process_that_does_not_decide_knows_enough_to_decide_later() {
    let (mut live, mut monitor) = (Live::usual(1), monitor());
    live.differ = [0.0, 0.0, 0.0, 0.5];
    for _ in 0..50 {
        let counts = live.batch(&monitor);
        assert!(monitor.observe(&counts).is_empty());
    }
    assert_eq!(monitor.limit(), 3);
    let found = monitor.take(&Counts::default());
    assert!(
        matches!(found[..], [Finding::Safer { from: 3, to: 2, .. }]),
        "{found:?}"
    );
}

/// Feeds labels of lost answers until they refute the certificate of index 3; returns how many it took.
fn refute_by_labels(monitor: &mut CertificateMonitor, labels: LabelCounts) -> u64 {
    let mut live = Live::usual(7);
    for _ in 0..30 {
        let mut counts = live.batch(monitor);
        counts.at(3).unwrap().audits = AuditCounts::default();
        assert_eq!(monitor.take(&counts), []);
    }
    let mut counts = Counts::default();
    counts.at(3).unwrap().labels = labels;
    let found = (1..100).find_map(|batch| Some((batch * 10, monitor.take(&counts).pop()?)));
    let (labels, found) = found.unwrap();
    assert!(matches!(
        found,
        Finding::Safer {
            from: 3,
            to: 2,
            evidence: Evidence::Labels
        }
    ));
    labels
}

const LOSSES: LabelCounts = LabelCounts {
    right: 0,
    wrong: 0,
    lost: 1,
    gained: 0,
    same: 9,
};

/// Feeds batches of a hundred probes of index 3 until one moves the limit.
fn probe(monitor: &mut CertificateMonitor, differ: u64, batches: u64) -> Option<Finding> {
    let mut counts = Counts::default();
    counts.at(3).unwrap().probes = AuditCounts {
        agree: 100 - differ,
        differ,
        failed: 0,
    };
    (0..batches).find_map(|_| monitor.take(&counts).into_iter().find(is_move))
}

#[test]
fn labels_alone_refute_a_certificate() {
    let labels = refute_by_labels(&mut monitor(), LOSSES);
    assert!(labels <= 300, "{labels}");
}

/// Probes have no labels: at the profiled rate of differing, they restored a cascade whose answers were now lost.
#[test]
fn probes_at_the_profiled_rate_do_not_restore_what_labels_refuted() {
    // It differs in 5 % of the samples, and may lose 2 %.
    let list = list(&[0, 10, 15, 50]);
    let new = || CertificateMonitor::new(&list, MonitorConfig::default());
    let back = Some(Finding::Cheaper { from: 2, to: 3 });
    let mut by_audits = new();
    by_audits.follow(2, &[]);
    assert_eq!(probe(&mut by_audits, 5, 300), back);
    let mut monitor = new();
    refute_by_labels(&mut monitor, LOSSES);
    assert_eq!(monitor.refuted_by_labels(), [3]);
    // Another process, and another plan from the same samples, know it.
    let mut follower = new();
    follower.follow(2, &monitor.refuted_by_labels());
    let mut next = CertificateMonitor::succeeding(&list, MonitorConfig::default(), &monitor);
    for monitor in [&mut monitor, &mut follower, &mut next] {
        assert_eq!(probe(monitor, 5, 300), None);
        assert_eq!(monitor.refuted_by_labels(), [3]);
        // Differing bounds the loss.
        assert_eq!(probe(monitor, 0, 300), back);
        assert!(monitor.refuted_by_labels().is_empty());
    }
}

#[test]
fn probes_restore_nothing_where_differing_bounds_no_loss() {
    let mut least_accuracy = list(&[0, 10, 15, 20]);
    for cascade in &mut least_accuracy.cascades {
        cascade.certificate.guarantee = Guarantee::MinAccuracy { accuracy: 0.9 };
    }
    let mut metric = list(&[0, 10, 15, 20]);
    metric.texts = Some(crate::text_metrics::TextComparison {
        metric: crate::text_metrics::Metric::F1,
        min_score: 0.5,
    });
    let wrong = LabelCounts {
        right: 5,
        wrong: 5,
        ..LabelCounts::default()
    };
    for (list, labels) in [(least_accuracy, wrong), (metric, LOSSES)] {
        let mut monitor = CertificateMonitor::new(&list, MonitorConfig::default());
        refute_by_labels(&mut monitor, labels);
        assert_eq!(probe(&mut monitor, 0, 300), None);
        let mut by_audits = CertificateMonitor::new(&list, MonitorConfig::default());
        by_audits.follow(2, &[]);
        assert!(probe(&mut by_audits, 0, 300).is_some());
    }
}

#[test]
fn a_standing_shows_the_bounds() {
    let (mut live, mut monitor) = (Live::usual(3), monitor());
    live.until(&mut monitor, 100, |_| false);
    let status = monitor.statuses()[3];
    assert_eq!(status.audited, 1_000);
    let may_differ = status.may_differ.unwrap();
    assert!((0.02..0.05).contains(&may_differ), "{may_differ}");
    assert!(status.differs[0] <= 0.02 && status.differs[1] >= 0.02 && status.differs[1] < 0.06);
    assert_eq!((status.labelled, status.loss), (0, [-1.0, 1.0]));
    assert!((status.may_lose - 0.02).abs() < 1e-12);
}
