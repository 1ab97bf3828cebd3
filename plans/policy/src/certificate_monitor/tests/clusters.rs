//! Traffic in which requests that follow each other resemble each other: of one user, frames of a video, repetitions. Its shares are as
//! profiled, so every finding is a false alarm.

use super::*;

/// Clustered traffic for the last cascade of the list.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    /// Mean number of requests of a cluster, whose results at the stages are equal.
    stages: f64,
    /// Mean number of requests of a cluster that all differ from the largest variant, or all do not.
    answers: f64,
    /// Requests that are independent, before the clusters begin.
    independent: u64,
    /// Requests of a batch.
    batch: u64,
    /// Share of audited requests.
    audits: f64,
    requests: u64,
}

impl Traffic {
    const USUAL: Self = Self {
        stages: 30.0,
        answers: 30.0,
        independent: 0,
        batch: 40,
        audits: 0.05,
        requests: 40_000,
    };

    /// Returns what a monitor finds in the stream of that seed.
    fn found(self, seed: u64) -> Option<Finding> {
        let (mut draws, mut monitor) = (BernoulliSampler::new(seed), monitor());
        let expected = expected("small", SAMPLES, 300);
        let (mut category, mut differs, mut sent) = (0, false, 0);
        while sent < self.requests {
            let mut counts = Counts::default();
            for _ in 0..self.batch {
                let clustered = sent >= self.independent;
                sent += 1;
                if !clustered || draws.draw(1.0 / self.stages) {
                    category = expected.category(draws.draw(0.3), confidence(&mut draws));
                }
                if !clustered || draws.draw(1.0 / self.answers) {
                    differs = draws.draw(0.02);
                }
                let cascade = counts.at(3).unwrap();
                cascade.count(0, category);
                if draws.draw(self.audits) {
                    note(&mut cascade.audits, differs);
                }
            }
            if let Some(found) = monitor.take(&counts).pop() {
                return Some(found);
            }
        }
        None
    }

    fn false_alarms(self, streams: u64) -> [usize; 2] {
        let found: Vec<Finding> = (0..streams).filter_map(|seed| self.found(seed)).collect();
        let moves = found.iter().filter(|finding| is_move(finding)).count();
        [moves, found.len() - moves]
    }
}

fn confidence(draws: &mut BernoulliSampler) -> f64 {
    [0.6, 0.6, 0.8, 0.95][usize::from(draws.draw(0.5)) * 2 + usize::from(draws.draw(0.5))]
}

fn note(counts: &mut AuditCounts, differs: bool) {
    *if differs {
        &mut counts.differ
    } else {
        &mut counts.agree
    } += 1;
}

fn scenarios() -> Vec<(&'static str, Traffic)> {
    let usual = Traffic::USUAL;
    let of = |mean: f64| Traffic {
        stages: mean,
        answers: mean,
        ..usual
    };
    let wide = |traffic: Traffic, batch: u64| Traffic {
        batch,
        requests: 40 * batch.max(1_000),
        ..traffic
    };
    vec![
        ("independent requests", of(1.0)),
        ("clusters of 4", of(4.0)),
        ("clusters of 30", of(30.0)),
        ("clusters of 100", of(100.0)),
        ("clusters of 30, 1,000 requests per batch", wide(of(30.0), 1_000)),
        (
            "clusters of 100, 1,000 requests per batch",
            wide(of(100.0), 1_000),
        ),
        (
            "clusters of 100, 3,000 requests per batch",
            wide(of(100.0), 3_000),
        ),
        (
            "clusters of 100, 1,000 requests per batch, 0.5 % audits",
            Traffic {
                audits: 0.005,
                ..wide(of(100.0), 1_000)
            },
        ),
        (
            "clusters of 30 after 80,000 independent requests, 1,000 per batch",
            Traffic {
                independent: 80_000,
                requests: 120_000,
                ..wide(of(30.0), 1_000)
            },
        ),
        (
            "answers that differ in clusters of 30, independent results",
            Traffic { stages: 1.0, ..usual },
        ),
        (
            "answers that differ in clusters of 100, independent results",
            Traffic {
                stages: 1.0,
                answers: 100.0,
                ..usual
            },
        ),
    ]
}

#[test]
#[ignore = "a study: `--ignored --nocapture how_often_clusters`"]
fn how_often_clusters_raise_an_alarm() {
    println!("| traffic | streams of 200 that refute | that find a drift |\n|---|---|---|");
    for (name, traffic) in scenarios() {
        let [moves, drifts] = traffic.false_alarms(200);
        println!("| {name} | {moves} | {drifts} |");
    }
    for mean in [1.0, 10.0, 30.0] {
        let refuted = (0..200).filter(|seed| labels_refute(*seed, mean)).count();
        println!("| labels of {mean} alike, in bursts of 1,000 | {refuted} | |");
    }
}

/// Feeds labels of requests that follow each other, of which 8 % are wrong and 10 % may be.
fn labels_refute(seed: u64, mean: f64) -> bool {
    let mut list = list(&[0, 10, 15, 20]);
    for cascade in &mut list.cascades {
        cascade.certificate.guarantee = Guarantee::MinAccuracy { accuracy: 0.9 };
    }
    let mut monitor = CertificateMonitor::new(&list, MonitorConfig::default());
    let (mut draws, mut is_wrong) = (BernoulliSampler::new(seed), false);
    (0..60).any(|_| {
        let mut counts = Counts::default();
        let cascade = counts.at(3).unwrap();
        for _ in 0..1_000 {
            if draws.draw(1.0 / mean) {
                is_wrong = draws.draw(0.08);
            }
            cascade.count(0, usize::from(is_wrong));
            *if is_wrong {
                &mut cascade.labels.wrong
            } else {
                &mut cascade.labels.right
            } += 1;
        }
        monitor.take(&counts).iter().any(is_move)
    })
}

#[test]
fn clusters_of_similar_requests_are_no_drift_and_refute_nothing() {
    for (name, traffic) in scenarios() {
        let [moves, drifts] = traffic.false_alarms(12);
        assert!(moves + drifts <= 2, "{name}: {moves} and {drifts} of 12 streams");
    }
}

#[test]
fn labels_of_requests_that_follow_each_other_refute_nothing() {
    for mean in [1.0, 10.0, 30.0] {
        let refuted = (0..20).filter(|seed| labels_refute(*seed, mean)).count();
        assert!(refuted <= 2, "{mean}: {refuted} of 20");
    }
}
