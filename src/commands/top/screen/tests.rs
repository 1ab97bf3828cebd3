use std::collections::BTreeMap;
use std::time::Duration;

use kaskade_actors::wire::Spent;
use kaskade_actors::wire::{
    CascadeStatus, CertificateFinding, CertificateNotice, CertificateReport, EnergyReport, GearShift,
    Heartbeat, IngressState, ModelEnergy, ReplicaBeat, ShiftReport,
};
use kaskade_app::serving::overview::Counts;
use kaskade_policy::plan::Plan;
use kaskade_policy::remote::price::CostSource;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::feed::{Event, IngressStats};
use super::super::view::View;
use super::*;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Reports of a process after some seconds: 100 requests a second, of which a quarter went on.
fn energy(second: u64) -> EnergyReport {
    let model = |rate: u64, cost: u64| ModelEnergy {
        requests: rate * second,
        batches: rate * second / 5,
        busy_s: 0.25 * second as f64,
        priced: rate * second,
        spent: Spent {
            billionths: cost * rate * second,
            source: Some(CostSource::Priced),
        },
        ..ModelEnergy::default()
    };
    EnergyReport {
        node: "worker-a".to_owned(),
        source: "modelled".to_owned(),
        counter: None,
        joules: Some(20.0 * second as f64),
        requests: 100 * second,
        joules_per_request: None,
        busy_core_s: 0.5 * second as f64,
        wall_s: second as f64,
        models: BTreeMap::from([
            ("small".to_owned(), model(100, 0)),
            ("large".to_owned(), model(25, 2_000_000)),
        ]),
        forwarded: BTreeMap::from([(
            "first".to_owned(),
            BTreeMap::from([("second".to_owned(), 25 * second)]),
        )]),
    }
}

fn stats(second: u64) -> IngressStats {
    let mut latencies = vec![0; 50];
    latencies[40] = 90 * second;
    latencies[49] = 10 * second;
    IngressStats {
        ingress: "i".to_owned(),
        counts: Counts {
            arrived: 100 * second,
            answered: 99 * second,
            errors: second,
            retried: 0,
            processing: Duration::from_millis(200 * second),
            latencies,
        },
        faults: vec![("KSK0006".to_owned(), second)],
        last_error: Some("KSK0006 the queue is full".to_owned()),
    }
}

/// An app with a cascade of two gears, whose workers host these numbers of replicas of both variants.
fn view(small: usize, large: usize) -> View {
    let cascade = |below: f64| {
        let plan = Plan::cascade("reviews").stage("first", "small").below(below);
        plan.then("second", "large").build().unwrap()
    };
    let mut plan = cascade(0.9);
    plan.gears.extend(cascade(0.5).gears);
    for (gear, name) in plan.gears.iter_mut().zip(["accurate", "fast"]) {
        name.clone_into(&mut gear.name);
    }
    let mut view = View::new("reviews");
    view.take_at(at(0), Event::Plan(3, Box::new(plan)));
    view.take_at(at(0), Event::Gear(GearShift { epoch: 3, gear: 1 }));
    let shift = ShiftReport {
        epoch: 3,
        from: 0,
        to: 1,
        qps: 130.0,
        first_queue: 4,
    };
    view.take_at(at(2), Event::Shifted(shift));
    let avoided = IngressState {
        ingress: "i".to_owned(),
        unavailable: vec!["large-1".to_owned()],
        ..IngressState::default()
    };
    view.take_at(at(2), Event::Ingress(avoided));
    for second in 1..=4 {
        view.take_at(at(second), Event::Energy(energy(second)));
        view.take_at(at(second), Event::Stats(stats(second)));
        for (worker, variant, count) in [("worker-a", "small", small), ("worker-b", "large", large)] {
            let replicas = (0..count).map(|number| ReplicaBeat {
                id: format!("{variant}-{number}"),
                variant: variant.to_owned(),
                queue: (number % 3) as u32,
                in_flight: 2,
                ..ReplicaBeat::default()
            });
            let beat = Heartbeat {
                actor: worker.to_owned(),
                kind: "worker".to_owned(),
                replicas: replicas.collect(),
                epoch: 3,
                ..Heartbeat::default()
            };
            view.take_at(at(second), Event::Beat(beat));
        }
        view.refresh_at(at(second));
    }
    view
}

/// A page as text, line by line.
fn drawn(view: &View, place: &mut Place, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, place)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = (0..height).map(|y| {
        let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        row.trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

fn page(index: usize) -> Place {
    let mut place = Place::default();
    place.press(Key::Page(index));
    place
}

#[test]
fn tables_show_money_beside_joules() {
    let text = crate::commands::top::plain::as_text(&view(1, 1).snapshot);
    assert!(text.contains("cost 0.000505 (priced)"), "{text}");
    let large = text.lines().find(|line| line.trim_start().starts_with("large"));
    assert!(
        large.is_some_and(|line| line.contains("0.00200 (priced)")),
        "{text}"
    );
}

#[test]
fn the_app_fits_on_a_small_terminal() {
    insta::assert_snapshot!(drawn(&view(2, 2), &mut page(0), 80, 24));
}

#[test]
fn an_app_that_says_nothing_is_said_to_be_silent() {
    let mut view = View::new("reviews");
    view.refresh_at(at(1));
    let text = drawn(&view, &mut page(0), 80, 24);
    assert!(text.contains("no ingress reports"), "{text}");
    assert!(text.contains("the plan store cannot be read"), "{text}");
    assert!(drawn(&view, &mut page(3), 80, 24).contains("none"));
}

#[test]
fn a_thousand_replicas_are_counted_and_those_in_trouble_come_first() {
    let view = view(600, 400);
    let mut place = page(1);
    let text = drawn(&view, &mut place, 80, 24);
    insta::assert_snapshot!(text);
    place.press(Key::Scroll(isize::MAX));
    let end = drawn(&view, &mut place, 80, 24);
    assert!(end.contains("of 1000"), "{end}");
    let shown = end.lines().filter(|line| line.contains(" live ")).count();
    assert!(shown > 10, "the last page is full:\n{end}");
    place.press(Key::Scroll(isize::MIN));
    assert_eq!(drawn(&view, &mut place, 80, 24), text);
}

#[test]
fn errors_come_with_their_explanation() {
    let text = drawn(&view(2, 2), &mut page(3), 100, 24);
    assert!(text.contains("last: KSK0006 the queue is full"), "{text}");
    assert!(text.contains("4 × KSK0006"), "{text}");
}

/// The view of an app whose third certified cascade was refuted by audits.
fn watched() -> View {
    let mut view = view(2, 2);
    let audited = CascadeStatus {
        audited: 420,
        differs: [0.012, 0.031],
        may_differ: Some(0.04),
        may_lose: 0.01,
        ..CascadeStatus::default()
    };
    let report = CertificateReport {
        epoch: 3,
        limit: 1,
        cascades: vec![
            CascadeStatus {
                may_lose: 0.01,
                ..CascadeStatus::default()
            },
            audited.clone(),
            CascadeStatus {
                differs: [0.05, 0.11],
                labelled: 60,
                loss: [0.004, 0.07],
                inputs_drifted: true,
                ..audited
            },
        ],
    };
    view.take_at(at(4), Event::Certificates(report));
    for (second, found) in [
        (
            2,
            CertificateFinding::InputsDrifted {
                cascade: 2,
                stage: "first".to_owned(),
            },
        ),
        (
            3,
            CertificateFinding::Refuted {
                from: 2,
                to: 1,
                by: "audits".to_owned(),
            },
        ),
    ] {
        view.take_at(at(second), Event::Finding(CertificateNotice { epoch: 3, found }));
    }
    view.refresh_at(at(5));
    view
}

#[test]
fn certificates_are_shown_with_audits_and_findings() {
    let mut view = watched();
    insta::assert_snapshot!(drawn(&view, &mut page(4), 80, 24));
    let text = drawn(&view, &mut page(0), 80, 24);
    let line = "certified cascade 2 of 3: differs 1.20 to 3.10 % in 420 audits, at most 4.00 %";
    assert!(text.contains(line), "{text}");
    // Another plan has another list.
    let (_, plan) = view.plan.clone().unwrap();
    view.take_at(at(6), Event::Plan(4, Box::new(plan)));
    assert!(view.findings.is_empty());
    let text = drawn(&self::view(2, 2), &mut page(4), 80, 24);
    assert!(text.contains("no certified cascades"), "{text}");
}

#[test]
fn a_silent_worker_takes_its_replicas_with_it() {
    let mut view = view(2, 2);
    view.refresh_at(at(30));
    let text = drawn(&view, &mut page(1), 80, 24);
    assert!(text.contains("large: 2 silent"), "{text}");
    assert!(
        text.lines().next().unwrap().contains("0 of 4 replicas live"),
        "{text}"
    );
}

#[test]
fn no_size_of_the_terminal_is_too_small() {
    let view = view(2, 2);
    for (width, height) in [(1, 1), (20, 5), (80, 3), (200, 60)] {
        for index in 0..PAGES.len() {
            let _ = drawn(&view, &mut page(index), width, height);
        }
    }
}

#[test]
fn pages_go_round() {
    let mut place = Place::default();
    place.press(Key::PreviousPage);
    assert_eq!(place.page, PAGES.len() - 1);
    place.press(Key::NextPage);
    assert_eq!(place.page, 0);
    place.press(Key::Page(17));
    assert_eq!(place.page, 0);
}
