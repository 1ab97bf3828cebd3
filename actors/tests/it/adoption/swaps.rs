//! Plans that move models, rename stages and recut models.

use super::*;

fn swaps_variants(app: &str, bus: &BusConfig, variant: &str, shares: bool) {
    let plan = |small, large| {
        let mut plan = entry_on(app, (variant, small), ("large", large));
        if shares {
            plan.gears[0].wiring.entry.shares = BTreeMap::from([(format!("{variant}-0"), 1.0)]);
        }
        plan
    };
    let cluster = Cluster::start(app, bus, &plan("w1", "w2"));
    cluster.loading.set(|hold| (hold.held, hold.stays) = (true, true));
    let mut epoch = 0;
    let (replies, slowest) = cluster.under_load(|| {
        epoch = cluster.apply(&plan("w2", "w1"));
        cluster.loading.waits(2);
        // Both workers load; requests go on under the plan before.
        for _ in 0..50 {
            assert_eq!(by(&cluster.ask()).1, "w1");
        }
        assert!(cluster.epoch() < epoch);
        cluster.loading.set(|hold| hold.held = false);
        cluster.admits(epoch);
        for _ in 0..50 {
            assert_eq!(by(&cluster.ask()).1, "w2");
        }
        cluster.loading.leaves(2);
        for worker in &cluster.workers {
            let live = cluster.runtime.block_on(worker.health().live());
            assert_eq!(
                live,
                Ok(()),
                "a model that leaves memory does not block the actors"
            );
        }
        cluster.loading.set(|hold| hold.stays = false);
        cluster.loading.unloaded(2);
    });
    assert!(replies.len() > 20, "{}", replies.len());
    assert!(replies.iter().all(|reply| by(reply).0 == variant));
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    assert_eq!(by(&cluster.ask()).1, "w2");
    cluster.stop();
}

#[test]
fn two_workers_swap_variants_under_load_on_the_embedded_broker() {
    swaps_variants("swap-embedded", &BusConfig::new("swap-embedded"), "small", false);
}

#[test]
fn two_workers_swap_variants_under_load_on_a_nats_server() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = |app: &str| BusConfig::new(app).url(server.url().clone());
    swaps_variants("swap-nats", &bus("swap-nats"), "small", false);
    swaps_variants("swap-shares", &bus("swap-shares"), "small", true);
}

#[test]
fn a_language_model_that_moved_leaves_memory() {
    swaps_variants("swap-writer", &BusConfig::new("swap-writer"), WRITER, false);
}

#[test]
fn a_stage_that_changes_its_variant_is_answered_by_the_one_of_the_requests_plan() {
    let app = "swap-names";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(app).url(server.url().clone());
    let small = entry_on(app, ("small", "w1"), ("large", "w2"));
    let large = entry_on(app, ("large", "w2"), ("small", "w1"));
    let cluster = Cluster::start(app, &bus, &small);
    let (replies, slowest) = cluster.under_load(|| {
        for plan in [&large, &small, &large] {
            let epoch = cluster.apply(plan);
            cluster.admits(epoch);
            for _ in 0..30 {
                assert_eq!(by(&cluster.ask()).0, plan.gears[0].wiring.stages[0].variant);
            }
        }
    });
    for reply in &replies {
        assert_eq!(
            by(reply).0,
            reply.variant,
            "the ingress names the variant that its plan has"
        );
    }
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    let unloaded = cluster.loading.state.lock().unwrap().unloaded;
    assert_eq!(unloaded, 0, "no model moved");
    cluster.stop();
}

/// One variant in so many partitions, in turns on the two workers. Ids and names of stages do not tell the cut.
fn cut(app: &str, of: u32) -> Plan {
    let mut plan = Plan::cascade(app).stage("large", "large").build().unwrap();
    let stage = plan.gears[0].wiring.stages[0].clone();
    let replica = plan.placement[0].clone();
    let (name, id) = (|part| format!("large-p{part}"), |part| format!("large-0-p{part}"));
    plan.placement = (0..of)
        .map(|index| Replica {
            id: id(index),
            worker: ["w1", "w2"][index as usize % 2].to_owned(),
            partition: Some(Partition { index, of }),
            ..replica.clone()
        })
        .collect();
    let to = |part| Edge {
        shares: BTreeMap::from([(id(part), 1.0)]),
        ..Edge::to(name(part))
    };
    let wiring = &mut plan.gears[0].wiring;
    wiring.entry = to(0);
    wiring.stages = (0..of)
        .map(|index| kaskade_policy::plan::Stage {
            name: name(index),
            partition: Some(Partition { index, of }),
            exit: if index + 1 < of {
                Exit::Next { to: to(index + 1) }
            } else {
                Exit::Reply
            },
            ..stage.clone()
        })
        .collect();
    plan
}

#[test]
fn a_model_that_is_cut_anew_under_the_same_ids_answers_every_request() {
    let app = "recut";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(app).url(server.url().clone());
    let cluster = Cluster::start(app, &bus, &cut(app, 2));
    let partitions = |reply: &InferReply| reply.outputs[0].to_f32().unwrap()[0] as u32;
    assert_eq!(partitions(&cluster.ask()), 2);
    let (replies, slowest) = cluster.under_load(|| {
        for of in [3, 2, 3] {
            let epoch = cluster.apply(&cut(app, of));
            cluster.admits(epoch);
            for _ in 0..30 {
                assert_eq!(partitions(&cluster.ask()), of);
            }
        }
    });
    assert!(replies.iter().all(|reply| [2, 3].contains(&partitions(reply))));
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    cluster.stop();
}

/// A plan that names other weights under the same ids changes them without a restart.
#[test]
fn retrained_weights_replace_the_old_ones_under_load() {
    let app = "retrained";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(app).url(server.url().clone());
    let holding = |checkpoint: &str| {
        let mut plan = entry_on(app, ("small", "w1"), ("large", "w2"));
        let replica = plan.placement[0].clone();
        plan.placement[0] = replica.with_checkpoint(Some(checkpoint));
        plan
    };
    let cluster = Cluster::start(app, &bus, &holding("first"));
    let weights = |reply: &InferReply| {
        let by = reply.outputs.iter().find(|output| output.name == "by").unwrap();
        by.to_texts().unwrap()[2].to_owned()
    };
    assert_eq!(weights(&cluster.ask()), "first");
    let (replies, slowest) = cluster.under_load(|| {
        cluster.loading.set(|hold| hold.held = true);
        let epoch = cluster.apply(&holding("second"));
        cluster.loading.waits(1);
        assert_eq!(weights(&cluster.ask()), "first", "while the new ones load");
        cluster.loading.set(|hold| hold.held = false);
        cluster.admits(epoch);
        for _ in 0..30 {
            assert_eq!(weights(&cluster.ask()), "second");
        }
        cluster.loading.unloaded(1);
    });
    assert!(
        replies
            .iter()
            .all(|reply| ["first", "second"].contains(&weights(reply).as_str()))
    );
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    cluster.stop();
}
