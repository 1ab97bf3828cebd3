//! Monitors of a plan that replaces another one.

use super::*;

/// A plan that was made from the same samples ran the refuted cascade again.
#[test]
fn a_refuted_certificate_is_none_in_the_next_plan_either() {
    let of = |differs: &[u64], before: &CertificateMonitor| {
        CertificateMonitor::succeeding(&list(differs), MonitorConfig::default(), before)
    };
    let mut before = monitor();
    assert_eq!(of(&[0, 10, 15, 20], &before).limit(), 3, "nothing was refuted");
    before.follow(2, &[]);
    let same = of(&[0, 10, 15, 20], &before);
    assert!(same.limit() == 2 && same.elevates_audits());
    // Of another list, what was allowed before, and else the largest variant alone.
    assert_eq!(of(&[0, 10, 16], &before).limit(), 1);
    assert_eq!(of(&[0, 12], &before).limit(), 0);
    assert_eq!(of(&[0, 10], &before).limit(), 1, "it was not refuted");
    // Probes restore the cascade.
    let (mut live, mut same) = (Live::usual(3), same);
    live.differ = [0.0, 0.002, 0.002, 0.002];
    let (_, found) = live.until(&mut same, 1_000, is_move).unwrap();
    assert_eq!(found, Finding::Cheaper { from: 2, to: 3 });
    // Other samples.
    let mut other = list(&[0, 10, 15, 20]);
    for cascade in &mut other.cascades {
        cascade.certificate.right -= 1;
    }
    assert_eq!(
        CertificateMonitor::succeeding(&other, MonitorConfig::default(), &before).limit(),
        3
    );
}

/// A service that plans anew every few minutes would never gather enough audits otherwise.
#[test]
fn evidence_counts_on_for_the_same_cascade_in_the_next_plan() {
    let samples = |name: &str| CertifiedList {
        samples: Some(name.to_owned()),
        ..list(&[0, 10, 15, 20])
    };
    let until_refuted = |next: fn(u32) -> String| {
        let mut live = Live::usual(5);
        live.differ[3] = 0.1;
        let mut monitor = CertificateMonitor::new(&samples("a"), MonitorConfig::default());
        (1..200).find(|number| {
            let found = monitor.take(&live.batch(&monitor));
            if !found.iter().any(is_move) {
                monitor = CertificateMonitor::succeeding(
                    &samples(&next(*number)),
                    MonitorConfig::default(),
                    &monitor,
                );
            }
            found.iter().any(is_move)
        })
    };
    assert!(until_refuted(|_| "a".to_owned()).is_some_and(|batches| batches < 60));
    let other = until_refuted(|number| number.to_string());
    assert_eq!(other, None, "of other samples nothing is known");
}

/// Each plan began the probes anew, and a certificate that held again was never restored.
#[test]
fn probes_count_on_for_the_same_cascade_in_the_next_plan() {
    let list = list(&[0, 10, 15, 20]);
    let mut monitor = monitor();
    monitor.follow(2, &[]);
    let mut live = Live::usual(6);
    live.differ = [0.0, 0.002, 0.002, 0.002];
    let found = (1..600).find_map(|_| {
        let found = monitor.take(&live.batch(&monitor)).into_iter().find(is_move);
        monitor = CertificateMonitor::succeeding(&list, MonitorConfig::default(), &monitor);
        found
    });
    assert_eq!(found, Some(Finding::Cheaper { from: 2, to: 3 }));
    assert!(!monitor.elevates_audits());
}

/// A list of another length leaves its cascades another probability of error, and so another share up to which they may differ.
#[test]
fn a_list_of_another_length_has_its_own_bounds() {
    let before = CertificateMonitor::new(&list(&[0, 10, 15, 20]), MonitorConfig::default());
    let shorter = list(&[0, 10]);
    let next = CertificateMonitor::succeeding(&shorter, MonitorConfig::default(), &before);
    let new = CertificateMonitor::new(&shorter, MonitorConfig::default());
    assert_eq!(next.statuses()[1].may_differ, new.statuses()[1].may_differ);
    assert_ne!(before.statuses()[1].may_differ, new.statuses()[1].may_differ);
}

/// A plan of an earlier version does not say how often its cascades differ.
#[test]
fn a_share_of_differing_answers_that_was_unknown_is_tested_in_the_next_plan() {
    let mut unknown = list(&[0, 10, 15, 20]);
    for cascade in &mut unknown.cascades {
        cascade.differs = None;
    }
    let before = CertificateMonitor::new(&unknown, MonitorConfig::default());
    let next = CertificateMonitor::succeeding(&list(&[0, 10, 15, 20]), MonitorConfig::default(), &before);
    assert!(next.statuses()[3].may_differ.is_some());
}

#[test]
fn a_refuted_certificate_says_nothing_about_one_on_other_samples() {
    let on = |samples: Option<&str>| CertifiedList {
        samples: samples.map(ToOwned::to_owned),
        ..list(&[0, 10, 15, 20])
    };
    let limit_after = |before: Option<&str>, next: Option<&str>| {
        let mut before = CertificateMonitor::new(&on(before), MonitorConfig::default());
        before.follow(2, &[]);
        CertificateMonitor::succeeding(&on(next), MonitorConfig::default(), &before).limit()
    };
    assert_eq!(limit_after(Some("a"), Some("b")), 3);
    assert_eq!(limit_after(Some("a"), Some("a")), 2);
    // One of a plan that was made before lists had it.
    assert_eq!(limit_after(None, Some("a")), 2);
    assert_eq!(limit_after(Some("a"), None), 2);
}
