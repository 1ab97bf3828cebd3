//! Small services whose every microsecond can be worked out by hand.

use super::*;
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::{
    Band, Batching, Child, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant,
    Replica, Sharing, Stage, Wiring,
};
use kaskade_policy::profile::{BatchCost, Profile, Validation, VariantProfile};
use kaskade_policy::shifting::ShiftConfig;

mod failures;
mod pipelines;
mod promises;
mod queueing;
mod replans;
mod sharing;
mod upheavals;

pub(super) const BATCHING: Batching = Batching {
    min_queue: 1,
    max_batch: 8,
    max_wait_us: 1_000,
};

/// A variant whose batches take `fixed + each * size` microseconds and whose samples have these confidences and answers.
pub(super) fn variant(name: &str, fixed: u64, each: u64, samples: &[(u32, f64, bool)]) -> VariantProfile {
    let cost = |batch: u32| BatchCost {
        energy_j: Some(0.5 * f64::from(batch)),
        ..BatchCost::new(batch, (fixed + each * u64::from(batch)) as f64 / 1e6)
    };
    let validation = Validation::new(
        samples.iter().map(|sample| sample.0).collect(),
        samples.iter().map(|sample| sample.1).collect(),
        samples.iter().map(|sample| sample.2).collect(),
    );
    VariantProfile::new(name, calibration(), vec![cost(1), cost(4)], validation)
}

fn calibration() -> Calibration {
    Calibration::uncalibrated(Estimator::MaxSquared)
}

pub(super) fn profile(variants: Vec<VariantProfile>) -> Profile {
    Profile::new("a", Estimator::MaxSquared, variants)
}

pub(super) fn stage(name: &str, exit: Exit, batching: Batching) -> Stage {
    Stage::new(name, name, exit, batching)
}

/// Confidences below one half go on.
pub(super) fn unsure(to: Edge) -> Exit {
    Exit::Bands {
        bands: vec![Band::forward(0.0, to), Band::reply(0.5)],
    }
}

/// A gear whose entry is its first stage.
pub(super) fn gear(from_qps: f64, to_qps: Option<f64>, stages: Vec<Stage>) -> Gear {
    Gear {
        name: format!("from-{from_qps}"),
        load: LoadRange { from_qps, to_qps },
        expected: None,
        wiring: Wiring {
            entry: Edge::to(&stages[0].name),
            ensemble: Vec::new(),
            stages,
        },
    }
}

/// Replicas are written `variant-number@device`.
pub(super) fn plan(replicas: &[&str], sharing: Sharing, gears: Vec<Gear>) -> Plan {
    let placement: Vec<Replica> = replicas
        .iter()
        .map(|text| {
            let (id, device) = text.split_once('@').unwrap();
            Replica::whole(id, id.split_once('-').unwrap().0, "w", device)
        })
        .collect();
    let mut names: Vec<&str> = placement.iter().map(|replica| replica.variant.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let variants = names.into_iter().map(|name| PlannedVariant {
        name: name.into(),
        calibration: Some(calibration()),
    });
    Plan {
        version: PLAN_VERSION,
        app: "a".into(),
        made_by: "test".into(),
        variants: variants.collect(),
        placement,
        sharing,
        dropping: Dropping::None,
        slo: None,
        certificate: None,
        certified: None,
        gears,
    }
}

/// Records of an observer.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) answered: Vec<Answered>,
    pub(super) ticks: Vec<Tick>,
    pub(super) runs: Vec<Run>,
    pub(super) lost: Vec<Lost>,
    pub(super) sinks: u64,
}

impl Observer for Seen {
    fn answered(&mut self, answered: &Answered) {
        self.answered.push(*answered);
    }

    fn tick(&mut self, tick: &Tick) {
        self.ticks.push(*tick);
    }

    fn ran(&mut self, run: &Run) {
        self.runs.push(*run);
    }

    fn lost(&mut self, lost: &Lost) {
        self.lost.push(*lost);
    }

    fn sink(&mut self, _sink: &Sink<'_>) {
        self.sinks += 1;
    }
}

pub(super) fn simulate(
    plan: &Plan,
    profile: &Profile,
    config: &SimConfig,
    arrivals: impl IntoIterator<Item = u64>,
) -> (Report, Seen) {
    let mut seen = Seen::default();
    let simulator = Simulator::new(plan, profile, config).unwrap();
    let report = simulator.run(arrivals.into_iter(), &mut seen);
    (report, seen)
}

fn latencies(seen: &Seen) -> Vec<u64> {
    seen.answered.iter().map(|answered| answered.latency_us).collect()
}

/// Sure of sample 0, unsure of sample 1.
fn two_stages(sharing: Sharing, replicas: &[&str]) -> (Plan, Profile) {
    let stages = vec![
        stage("s", unsure(Edge::to("t")), BATCHING),
        stage("t", Exit::Reply, BATCHING),
    ];
    let profile = profile(vec![
        variant("s", 100, 10, &[(1, 0.9, true), (1, 0.1, false)]),
        variant("t", 1_000, 100, &[(1, 0.9, true), (1, 0.9, true)]),
    ]);
    (plan(replicas, sharing, vec![gear(0.0, None, stages)]), profile)
}

#[test]
fn two_stages_by_hand() {
    let (plan, profile) = two_stages(Sharing::Concurrent, &["s-0@a", "t-0@b"]);
    let config = SimConfig {
        entry_hop_us: 40,
        hop_us: 7,
        ..SimConfig::default()
    };
    // Request 0 reaches the queue at 20 and runs alone until 130. The other three come meanwhile and run until 260; 1 and 3
    // are unsure, reach the second stage at 267, where 1 starts a batch at once and 3 waits for its end.
    let (report, seen) = simulate(&plan, &profile, &config, [0, 10, 20, 30]);
    let mut expected = vec![
        130 + 20 - 10 + 10,
        260 + 20 - 20,
        267 + 1_100 + 20 - 10,
        1_367 + 1_100 + 20 - 30,
    ];
    assert_eq!(latencies(&seen), expected);
    assert_eq!(
        (report.requests, report.answered, report.right, report.lost),
        (4, 4, 4, 0)
    );
    assert_eq!((report.variants[0].runs, report.variants[0].batches), (4, 2));
    assert_eq!(report.variants[0].mean_batch(), Some(2.0));
    assert_eq!((report.variants[0].answered, report.variants[1].answered), (2, 2));
    assert_eq!(report.duration_us, 2_487);
    assert_eq!(report.devices[0].busy_us, 110 + 130);
    assert_eq!(report.devices[1].busy_us, 2_200);
    expected.sort_unstable();
    assert_eq!(report.latency.max(), expected.last().copied());
    assert_eq!(seen.answered[2].hops, 2);
}

/// The simulation went on until the deadlines of requests that had been answered, which made devices look idle.
#[test]
fn a_budget_that_no_request_exceeds_changes_nothing() {
    let (plan, profile) = two_stages(Sharing::Concurrent, &["s-0@a", "t-0@b"]);
    let report = |budget_us| {
        let config = SimConfig {
            budget_us,
            ..SimConfig::default()
        };
        simulate(&plan, &profile, &config, [0, 10, 20, 30]).0
    };
    let (without, with) = (report(None), report(Some(1_000_000)));
    assert_eq!((with.answered, with.expired), (4, 0));
    assert_eq!(with.duration_us, without.duration_us);
    assert!((with.max_utilisation() - without.max_utilisation()).abs() < 1e-12);
}

#[test]
fn devices_taken_in_turns_serve_queues_in_the_order_in_which_they_fell_due() {
    let (plan, profile) = two_stages(Sharing::Exclusive, &["s-0@a", "t-0@a"]);
    // Sample 1 is unsure. The second request's first stage falls due at 50, its second stage at 220.
    let (_, seen) = simulate(&plan, &profile, &SimConfig::default(), [0, 50, 210, 230]);
    let runs: Vec<(u32, u64, u64)> = seen
        .runs
        .iter()
        .map(|run| (run.replica, run.from_us, run.to_us))
        .collect();
    // The third request falls due at 210 and goes before the second's second stage.
    let expected = [
        (0, 0, 110),
        (0, 110, 220),
        (0, 220, 330),
        (1, 330, 1_430),
        (0, 1_430, 1_540),
        (1, 1_540, 2_640),
    ];
    assert_eq!(runs, expected);
}

#[test]
fn a_batch_that_follows_another_begins_after_the_turnaround() {
    for sharing in [Sharing::Concurrent, Sharing::Exclusive] {
        let (mut plan, profile) = two_stages(sharing, &["s-0@a", "t-0@b"]);
        plan.gears[0].wiring.stages[0].exit = Exit::Reply;
        let config = SimConfig {
            turnaround_us: 5,
            ..SimConfig::default()
        };
        // Two wait for the end of the first; the last comes to an idle device.
        let (_, seen) = simulate(&plan, &profile, &config, [0, 10, 20, 500]);
        let together = 110 + 5 + 120;
        assert_eq!(
            latencies(&seen),
            [110, together - 10, together - 20, 110],
            "{sharing:?}"
        );
    }
}

#[test]
fn a_queue_waits_for_company_and_no_longer_than_it_may() {
    let batching = Batching {
        min_queue: 3,
        ..BATCHING
    };
    let plan = plan(
        &["s-0@a"],
        Sharing::Concurrent,
        vec![gear(0.0, None, vec![stage("s", Exit::Reply, batching)])],
    );
    let profile = profile(vec![variant("s", 100, 10, &[(1, 0.9, true)])]);
    let (_, seen) = simulate(&plan, &profile, &SimConfig::default(), [0, 10, 20, 5_000, 5_100]);
    let runs: Vec<(u64, usize)> = seen.runs.iter().map(|run| (run.from_us, run.batch)).collect();
    assert_eq!(runs, [(20, 3), (6_000, 2)]);
}

#[test]
fn what_waits_for_ever_runs_when_nothing_more_comes() {
    let batching = Batching {
        min_queue: 8,
        max_wait_us: u64::MAX,
        ..BATCHING
    };
    for sharing in [Sharing::Concurrent, Sharing::Exclusive] {
        let gear = gear(0.0, None, vec![stage("s", Exit::Reply, batching)]);
        let profile = profile(vec![variant("s", 100, 10, &[(1, 0.9, true)])]);
        let plan = plan(&["s-0@a"], sharing, vec![gear]);
        let (report, _) = simulate(&plan, &profile, &SimConfig::default(), 0..5);
        assert_eq!((report.answered, report.lost), (5, 0));
        assert_eq!(report.variants[0].batches, 1);
    }
}

#[test]
fn an_ensemble_is_answered_by_the_last_member_and_by_the_majority() {
    // Sample 0: two of three answer 1. Sample 1: all differ, the most confident is right.
    let members = vec![
        variant("a", 100, 10, &[(1, 0.2, true), (1, 0.3, false)]),
        variant("b", 200, 10, &[(2, 0.9, false), (2, 0.8, true)]),
        variant("c", 300, 10, &[(1, 0.4, true), (3, 0.7, false)]),
    ];
    let stages = ["a", "b", "c"].map(|name| stage(name, Exit::Reply, BATCHING));
    let mut gear = gear(0.0, None, stages.to_vec());
    gear.wiring.ensemble = vec![Edge::to("b"), Edge::to("c")];
    let plan = plan(&["a-0@a", "b-0@b", "c-0@c"], Sharing::Exclusive, vec![gear]);
    let (report, seen) = simulate(&plan, &profile(members), &SimConfig::default(), [0, 1_000]);
    assert_eq!(latencies(&seen), [310, 310]);
    assert_eq!((report.answered, report.right), (2, 2));
    let answered: Vec<(u32, u32)> = seen
        .answered
        .iter()
        .map(|answered| (answered.variant, answered.hops))
        .collect();
    assert_eq!(answered, [(2, 3), (1, 3)]);
}

fn pipeline(multiplicity: f64) -> (Plan, Profile) {
    let child = |name: &str, multiplicity| Child {
        to: Edge::to(name),
        multiplicity,
    };
    let children = vec![child("face", multiplicity), child("car", 1.0)];
    let stages = vec![
        stage("detect", Exit::FanOut { children }, BATCHING),
        stage("face", Exit::Reply, BATCHING),
        stage("car", Exit::Reply, BATCHING),
    ];
    let profile = profile(vec![
        variant("detect", 90, 10, &[(1, 0.9, true)]),
        variant("face", 190, 10, &[(1, 0.9, true)]),
        variant("car", 900, 100, &[(1, 0.9, false)]),
    ]);
    let gears = vec![gear(0.0, None, stages)];
    let replicas = ["detect-0@a", "face-0@b", "car-0@c"];
    (plan(&replicas, Sharing::Concurrent, gears), profile)
}

#[test]
fn a_pipeline_is_answered_when_every_leaf_is_and_right_when_all_are() {
    let (plan, profile) = pipeline(2.0);
    let (report, seen) = simulate(&plan, &profile, &SimConfig::default(), [0]);
    // The faces run one after the other, 200 each from 100 on; the car takes 1000.
    assert_eq!(latencies(&seen), [1_100]);
    assert_eq!(seen.answered[0].hops, 4);
    assert_eq!((report.answered, report.right), (1, 0));
    let face = report
        .variants
        .iter()
        .find(|variant| variant.name == "face")
        .unwrap();
    assert_eq!((face.runs, face.batches), (2, 2));
}

#[test]
fn copies_come_in_their_mean_number() {
    let (plan, profile) = pipeline(1.3);
    let (report, _) = simulate(
        &plan,
        &profile,
        &SimConfig::default(),
        (0..10_000).map(|n| n * 2_000),
    );
    let face = report
        .variants
        .iter()
        .find(|variant| variant.name == "face")
        .unwrap();
    assert_eq!((report.answered, report.lost), (10_000, 0));
    assert!((12_800..13_200).contains(&face.runs), "{}", face.runs);
}

#[test]
fn partitions_take_their_part_of_the_time() {
    let mut to = Edge::to("second");
    to.shares.insert("m-1".into(), 1.0);
    let mut stages = vec![
        stage("m", Exit::Next { to }, BATCHING),
        stage("m", Exit::Reply, BATCHING),
    ];
    stages[1].name = "second".into();
    for (index, stage) in (0..).zip(&mut stages) {
        stage.partition = Some(kaskade_policy::plan::Partition { index, of: 2 });
    }
    let mut gear = gear(0.0, None, stages);
    gear.wiring.entry.shares.insert("m-0".into(), 1.0);
    let mut plan = plan(&["m-0@a", "m-1@b"], Sharing::Exclusive, vec![gear]);
    for (index, replica) in (0..).zip(&mut plan.placement) {
        replica.partition = Some(kaskade_policy::plan::Partition { index, of: 2 });
    }
    let profile = profile(vec![variant("m", 900, 100, &[(1, 0.9, true)])]);
    let (_, seen) = simulate(&plan, &profile, &SimConfig::default(), [0]);
    assert_eq!(latencies(&seen), [1_000]);
    assert_eq!(seen.runs[0].to_us, 500);
}

#[test]
fn a_step_of_load_shifts_up_and_back_and_batches_follow() {
    let large = gear(0.0, Some(500.0), vec![stage("t", Exit::Reply, BATCHING)]);
    let small = gear(500.0, None, vec![stage("s", Exit::Reply, BATCHING)]);
    let plan = plan(&["s-0@a", "t-0@a"], Sharing::Exclusive, vec![large, small]);
    let profile = profile(vec![
        variant("s", 100, 10, &[(1, 0.9, true), (1, 0.9, false)]),
        variant("t", 1_000, 100, &[(1, 0.9, true), (1, 0.9, true)]),
    ]);
    let config = SimConfig {
        shift: Some(ShiftConfig::default()),
        ..SimConfig::default()
    };
    // 100 requests/s, between seconds 2 and 4 ten times as many.
    let quiet = (0..200).map(|n| n * 10_000);
    let busy = (0..2_000).map(|n| 2_000_000 + n * 1_000);
    let after = (0..600).map(|n| 4_000_000 + n * 10_000);
    let (report, seen) = simulate(&plan, &profile, &config, quiet.chain(busy).chain(after));
    assert_eq!(report.shifts, 2);
    let gears: Vec<u32> = report.shift_log.iter().map(|shift| shift.gear).collect();
    assert_eq!(gears, [1, 0]);
    // Up at the first full tick of the step; down when the mean over the window is back.
    assert_eq!(report.shift_log[0].at_us, 2_100_000);
    assert!((4_100_000..4_600_000).contains(&report.shift_log[1].at_us));
    // What came in a gear was answered by it.
    for answered in &seen.answered {
        assert_eq!(
            answered.variant,
            1 - answered.gear,
            "`s` is the first variant and serves the second gear"
        );
    }
    assert!(seen.ticks.iter().all(|tick| tick.at_us % 100_000 == 0));
    let counted: u64 = seen.ticks.iter().map(|tick| tick.arrivals).sum();
    assert!(report.requests - counted <= 10, "{counted}");
}

#[test]
fn the_timeline_shows_load_gear_latency_and_accuracy() {
    let plan = plan(
        &["s-0@a"],
        Sharing::Exclusive,
        vec![gear(0.0, None, vec![stage("s", Exit::Reply, BATCHING)])],
    );
    let profile = profile(vec![variant("s", 100, 10, &[(1, 0.9, true), (1, 0.9, false)])]);
    let simulator = Simulator::new(&plan, &profile, &SimConfig::default()).unwrap();
    let mut timeline = Timeline::new(1_000_000);
    simulator.run((0..300).map(|n| n * 10_000), &mut timeline);
    let buckets = timeline.finish();
    assert_eq!(buckets.len(), 3);
    for (second, bucket) in (0..2).zip(&buckets) {
        assert_eq!(bucket.from_us, second * 1_000_000);
        assert_eq!((bucket.answered, bucket.p95_us), (100, Some(110)));
        assert_eq!(bucket.accuracy, Some(0.5));
        assert!(
            (bucket.qps - 100.0).abs() <= 1.0 && bucket.gear == 0.0,
            "{bucket:?}"
        );
    }
}

#[test]
fn joules_are_stated_measured_or_unknown() {
    let (plan, profile) = two_stages(Sharing::Concurrent, &["s-0@a", "t-0@b"]);
    let joules = |power| {
        let config = SimConfig {
            power,
            ..SimConfig::default()
        };
        simulate(&plan, &profile, &config, [0]).0.energy_j
    };
    assert_eq!(joules(None), None);
    // One batch of 110 microseconds; two devices idle for as long.
    let model = kaskade_policy::energy::EnergyModel {
        idle_watts: 10.0,
        active_watts_per_core: 100.0,
    };
    let stated = joules(Some(Power::Modelled(model))).unwrap();
    assert!((stated - 110e-6 * (20.0 + 100.0)).abs() < 1e-9, "{stated}");
    let measured = joules(Some(Power::Profiled { idle_watts: 10.0 })).unwrap();
    assert!((measured - (0.5 + 110e-6 * 20.0)).abs() < 1e-9, "{measured}");
    let mut unknown = profile.clone();
    unknown.variants[0].costs[0].energy_j = None;
    let config = SimConfig {
        power: Some(Power::Profiled { idle_watts: 0.0 }),
        ..SimConfig::default()
    };
    assert_eq!(simulate(&plan, &unknown, &config, [0]).0.energy_j, None);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (plan, profile) = two_stages(Sharing::Concurrent, &["s-0@a", "t-0@b"]);
    let refusal = |break_field: &dyn Fn(&mut Plan, &mut Profile, &mut SimConfig)| {
        let (mut plan, mut profile, mut config) = (plan.clone(), profile.clone(), SimConfig::default());
        break_field(&mut plan, &mut profile, &mut config);
        Simulator::new(&plan, &profile, &config).unwrap_err().to_string()
    };
    assert!(refusal(&|plan, _, _| plan.version = 9).contains("version"));
    assert!(refusal(&|_, profile, _| profile.variants.truncate(1)).contains("variant `t`"));
    assert!(refusal(&|_, profile, _| profile.variants[1].costs.clear()).contains("`t` give no latency"));
    assert!(
        refusal(&|_, profile, _| profile.variants[0].validation.correct.truncate(1)).contains("`s` has 1")
    );
    let bad = refusal(&|_, profile, _| profile.variants[0].validation.confidences[1] = f64::NAN);
    assert!(bad.contains("stage `s`, validation sample 1"), "{bad}");
    assert!(refusal(&|_, _, config| config.start_gear = 1).starts_with("start_gear: 1"));
    assert!(refusal(&|_, _, config| config.budget_us = Some(0)).starts_with("budget_us: 0"));
    assert!(refusal(&|_, _, config| config.queue_capacity = 0).starts_with("queue_capacity"));
    assert!(refusal(&|_, _, config| config.initially_down = vec!["x".into()]).contains("`x`"));
    assert!(
        refusal(
            &|_, _, config| config.admission = Some(kaskade_policy::admission::AdmissionConfig::default())
        )
        .starts_with("admission")
    );
}
