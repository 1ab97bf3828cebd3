//! Tests of the oracles: each injected defect must break the expected promise.

use std::ops::Range;

use super::{Glue, Oracle, Sabotage, Weather, played};

/// Seeds among which a defect must show.
const SEEDS: u64 = 60;

/// The oracles' reports of a defect, seed by seed, until the expected one.
fn notices(sabotage: Sabotage, weather: Weather, oracle: Oracle) {
    notices_by(Glue::SERVING, sabotage, weather, oracle);
}

/// The same, with actors that are wired otherwise.
fn notices_by(glue: Glue, sabotage: Sabotage, weather: Weather, oracle: Oracle) {
    notices_among(0..SEEDS, glue, sabotage, weather, oracle);
}

fn notices_among(seeds: Range<u64>, glue: Glue, sabotage: Sabotage, weather: Weather, oracle: Oracle) {
    let mut heard = Vec::new();
    for seed in seeds {
        let sound = played(seed, weather, glue, None, false);
        assert!(
            sound.judge.violation().is_none(),
            "seed {seed} is sound without the defect"
        );
        let world = played(seed, weather, glue, Some(sabotage), false);
        let Some(violation) = world.judge.violation() else {
            continue;
        };
        if violation.oracle == oracle {
            return;
        }
        heard.push(violation.oracle);
    }
    panic!("{oracle:?} does not report {sabotage:?}; others did: {heard:?}");
}

#[test]
fn two_replies_are_noticed() {
    notices(Sabotage::AnswersStale, Weather::Storm, Oracle::OneReply);
}

#[test]
fn no_reply_is_noticed() {
    notices(Sabotage::ForgetsExpired, Weather::Storm, Oracle::OneReply);
}

#[test]
fn a_ledger_that_keeps_is_noticed() {
    notices(Sabotage::NeverSweeps, Weather::Calm, Oracle::LedgerEmpties);
}

#[test]
fn a_run_without_end_is_noticed() {
    notices(Sabotage::Spins, Weather::Calm, Oracle::Ends);
}

#[test]
fn late_replies_are_noticed() {
    notices(Sabotage::SweepsRarely, Weather::Storm, Oracle::InTime);
}

#[test]
fn endless_attempts_are_noticed() {
    // With as many as serve, hardly a request comes to its last.
    let few = Glue {
        max_attempts: 5,
        ..Glue::SERVING
    };
    notices_by(few, Sabotage::EndlessAttempts, Weather::Storm, Oracle::Attempts);
}

#[test]
fn a_request_under_two_plans_is_noticed() {
    notices(Sabotage::RoutesByNewest, Weather::Storm, Oracle::AdmittedEpoch);
}

#[test]
fn an_answer_below_the_threshold_at_the_first_attempt_is_noticed() {
    notices(Sabotage::SettlesEarly, Weather::Calm, Oracle::AdmittedEpoch);
}

#[test]
fn mixed_answers_are_noticed() {
    notices(Sabotage::MixesAnswers, Weather::Calm, Oracle::OwnAnswer);
}

#[test]
fn a_leaking_queue_is_noticed() {
    notices(Sabotage::DropsFromQueue, Weather::Calm, Oracle::QueueKeeps);
}

#[test]
fn an_overfull_queue_is_noticed() {
    notices(Sabotage::OverfillsQueue, Weather::Storm, Oracle::QueueKeeps);
}

#[test]
fn large_batches_are_noticed() {
    notices(Sabotage::OversizedBatches, Weather::Storm, Oracle::BatchFits);
}

#[test]
fn a_step_back_is_noticed() {
    notices(Sabotage::AdoptsStale, Weather::Storm, Oracle::EpochsForward);
}

#[test]
fn a_blind_write_is_noticed() {
    notices(Sabotage::WritesBlindly, Weather::Storm, Oracle::StaleWrite);
}

#[test]
fn a_store_that_stays_empty_is_noticed() {
    notices(Sabotage::RestoresNothing, Weather::Calm, Oracle::Converges);
}

#[test]
fn load_counted_twice_is_noticed() {
    notices(Sabotage::CountsTwice, Weather::Calm, Oracle::CountedOnce);
}

#[test]
fn a_process_without_heartbeats_is_noticed() {
    notices(Sabotage::DeafToGears, Weather::Storm, Oracle::Converges);
    notices(Sabotage::DeafToPlans, Weather::Storm, Oracle::Converges);
}

#[test]
fn two_leaders_are_noticed() {
    notices(Sabotage::EveryoneLeads, Weather::Calm, Oracle::OneLeader);
}

/// A worker that is told only of the replicas that the admitted plan places, or of no failed load, sends requests to replicas that
/// no process has.
#[test]
fn requests_to_replicas_that_were_not_loaded_are_noticed() {
    for (seeds, sabotage) in [
        (75..90, Sabotage::SendsToUnloadable),
        (225..240, Sabotage::ForgetsPastEpochs),
    ] {
        notices_among(seeds, Glue::SERVING, sabotage, Weather::Calm, Oracle::Calm);
    }
}

/// Former defect of the actors: a request was admitted under a plan that no worker had loaded.
#[test]
fn admission_before_models_are_loaded_is_noticed() {
    notices(Sabotage::AdmitsAtOnce, Weather::Calm, Oracle::Calm);
}

/// Former defect of the actors: a worker that had nothing to load retired a model that its successor had not loaded.
#[test]
fn retirement_before_requests_have_drained_is_noticed() {
    notices(Sabotage::RetiresAtOnce, Weather::Calm, Oracle::Calm);
}

/// Former defect of the actors: a replica ran every request on the subject of its stage.
#[test]
fn a_request_that_the_wrong_model_runs_is_noticed() {
    notices(Sabotage::ChecksNoEpoch, Weather::Calm, Oracle::RightModel);
}

#[test]
fn a_needless_attempt_is_noticed() {
    notices(Sabotage::SendsTwice, Weather::Calm, Oracle::Calm);
}

#[test]
fn a_secret_loss_is_noticed() {
    notices(Sabotage::LosesSecretly, Weather::Calm, Oracle::Calm);
}

#[test]
fn a_replica_that_hangs_is_noticed() {
    notices(Sabotage::Hangs, Weather::Storm, Oracle::Recovers);
}

#[test]
fn workers_that_learn_nothing_are_noticed() {
    notices(Sabotage::SilentIngresses, Weather::Crashes, Oracle::Avoids);
    notices(Sabotage::DeafToIngresses, Weather::Crashes, Oracle::Avoids);
}

#[test]
fn workers_that_learn_late_are_noticed() {
    notices(Sabotage::LateIngresses, Weather::Crashes, Oracle::Avoids);
}

#[test]
fn a_leave_that_drops_what_is_on_its_way_is_noticed() {
    notices(Sabotage::DropsOnLeave, Weather::Leaves, Oracle::NothingLost);
}

#[test]
fn a_leave_without_an_announcement_is_noticed() {
    notices(Sabotage::LeavesSilently, Weather::Leaves, Oracle::SentOnce);
}

/// Former defect of the actors: a request that the ingress forwarded to a stage of its process was lost with the connection over which that
/// stage forwarded it.
#[test]
fn a_forward_into_a_dead_connection_is_noticed() {
    notices(
        Sabotage::PlacesWhatMovesOn,
        Weather::Reconnects,
        Oracle::NothingLost,
    );
}

#[test]
fn an_unreported_loss_is_noticed() {
    notices(Sabotage::IgnoresLosses, Weather::Crashes, Oracle::NothingLost);
}
