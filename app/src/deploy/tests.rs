use std::sync::Arc;

use kaskade_actors::bus::Embedded;
use kaskade_broker::BrokerConfig;

use super::*;

fn plan(made_by: &str) -> Plan {
    let built = Plan::cascade("parity").stage("guess", "small").build();
    Plan {
        made_by: made_by.to_owned(),
        ..built.unwrap()
    }
}

async fn deployment() -> (Embedded, Deployment) {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    let bus = BusConfig::new("parity").embedded(&embedded);
    let deployment = Deployment::open("parity", bus).await.unwrap();
    (embedded, deployment)
}

async fn publish(deployment: &Deployment, state: IngressState) {
    let subject = deployment.app.ingress(&state.ingress).unwrap();
    let payload = state.encode().unwrap();
    deployment
        .bus
        .publish(subject, None, None, payload)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_plan_is_applied_read_and_rolled_back() {
    let (_embedded, deployment) = deployment().await;
    assert!(matches!(
        deployment.get(None).await,
        Err(DeployError::NoPlan { .. })
    ));
    let first = deployment.apply(&plan("first"), None).await.unwrap();
    assert_eq!((first.epoch, first.replaced), (1, None));
    assert!(matches!(
        deployment.roll_back(None).await,
        Err(DeployError::NothingEarlier)
    ));
    let second = deployment.apply(&plan("second"), Some(1)).await.unwrap();
    assert_eq!((second.epoch, second.replaced), (2, Some(1)));
    let stale = deployment.apply(&plan("late"), Some(1)).await;
    assert!(matches!(
        stale,
        Err(DeployError::NotExpected {
            expected: 1,
            newest: Some(2)
        })
    ));
    assert_eq!(deployment.get(None).await.unwrap().stored.plan.made_by, "second");
    let third = deployment.roll_back(None).await.unwrap();
    assert_eq!(
        (third.older, third.written.epoch, third.has_served),
        (1, 3, false)
    );
    assert_eq!(deployment.get(None).await.unwrap().stored.plan.made_by, "first");
    let fourth = deployment.roll_back(Some(2)).await.unwrap();
    assert_eq!((fourth.older, fourth.written.epoch), (2, 4));
    let made_by = deployment.history().await.unwrap();
    let made_by = made_by.iter().map(|past| past.stored.plan.made_by.as_str());
    assert_eq!(
        made_by.collect::<Vec<_>>(),
        ["first", "second", "first", "second"]
    );
    assert!(matches!(
        deployment.get(Some(9)).await,
        Err(DeployError::NoSuchEpoch { epoch: 9, .. })
    ));
    let other = Plan {
        app: "other".to_owned(),
        ..plan("other")
    };
    let refused = deployment.apply(&other, None).await;
    assert!(matches!(refused, Err(DeployError::OtherApp { .. })));
}

/// It went back to the plan before, which had never served.
#[tokio::test]
async fn a_rollback_prefers_a_plan_that_has_served() {
    let (_embedded, deployment) = deployment().await;
    for made_by in ["first", "broken", "newest"] {
        deployment.apply(&plan(made_by), None).await.unwrap();
    }
    let deployment = Arc::new(deployment);
    let told = Arc::clone(&deployment);
    let states = tokio::spawn(async move {
        loop {
            let state = IngressState {
                ingress: "a".to_owned(),
                admits: 3,
                served: vec![1, 3],
                ..IngressState::default()
            };
            publish(&told, state).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let back = deployment.roll_back(None).await.unwrap();
    states.abort();
    assert_eq!((back.older, back.has_served), (1, true));
    assert_eq!(deployment.get(None).await.unwrap().stored.plan.made_by, "first");
}

#[tokio::test]
async fn an_app_is_known_by_its_processes() {
    let (_embedded, deployment) = deployment().await;
    let unknown = Deployment {
        store: OnceCell::new(),
        ..deployment
    };
    assert!(unknown.history().await.unwrap().is_empty());
    assert!(matches!(unknown.get(None).await, Err(DeployError::NoPlan { .. })));
    let unknown = Arc::new(unknown);
    let told = Arc::clone(&unknown);
    let states = tokio::spawn(async move {
        loop {
            let ingress = "a".to_owned();
            let state = IngressState {
                ingress,
                ..IngressState::default()
            };
            publish(&told, state).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(unknown.is_known().await.unwrap());
    states.abort();
}

#[tokio::test]
async fn an_applied_plan_gets_an_epoch_above_those_in_use() {
    let (_embedded, deployment) = deployment().await;
    let deployment = Arc::new(deployment);
    let beating = Arc::clone(&deployment);
    let beats = tokio::spawn(async move {
        let beat = Heartbeat {
            actor: "w".to_owned(),
            epoch: 41,
            ..Heartbeat::default()
        };
        loop {
            let subject = beating.app.beat("w").unwrap();
            let payload = beat.encode().unwrap();
            beating.bus.publish(subject, None, None, payload).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let written = deployment.apply(&plan("new"), None).await.unwrap();
    beats.abort();
    assert_eq!(written.epoch, 42);
}

/// The wait for an app that does not run said nothing for two minutes.
#[tokio::test]
async fn an_app_without_an_ingress_is_noticed_while_waiting() {
    let (_embedded, mut deployment) = deployment().await;
    let silent = tokio::sync::Notify::new();
    let told = |progress: &Progress| {
        if progress.silent {
            assert_eq!((progress.ingresses, progress.behind.len()), (0, 0));
            silent.notify_one();
        }
    };
    tokio::select! {
        ended = deployment.admitted(2, Duration::from_mins(1), told) => panic!("{ended:?}"),
        () = silent.notified() => {}
    }
}

#[tokio::test]
async fn the_wait_ends_when_every_ingress_admits_the_plan() {
    let (_embedded, mut deployment) = deployment().await;
    let state = |ingress: &str, admits| IngressState {
        ingress: ingress.to_owned(),
        admits,
        ..IngressState::default()
    };
    let none = deployment.admitted(2, Duration::ZERO, |_| {}).await;
    assert!(matches!(none, Err(DeployError::NoIngress { .. })));
    publish(&deployment, state("a", 2)).await;
    publish(&deployment, state("b", 1)).await;
    let both = tokio::sync::Notify::new();
    let told = |progress: &Progress| {
        if progress.ingresses == 2 {
            both.notify_one();
        }
    };
    tokio::select! {
        admitted = deployment.admitted(2, Duration::from_secs(20), told) => panic!("{admitted:?}"),
        () = both.notified() => {}
    }
    let late = deployment.admitted(2, Duration::ZERO, |_| {}).await;
    let Err(DeployError::NotAdmitted { behind, .. }) = late else {
        panic!("{late:?}")
    };
    assert_eq!((behind.len(), behind[0].ingress.as_str()), (1, "b"));
    publish(&deployment, state("b", 2)).await;
    let mut seen = Vec::new();
    let admitted = deployment.admitted(2, Duration::from_secs(20), |progress| {
        seen.push((progress.ingresses, progress.behind.len()));
    });
    admitted.await.unwrap();
    // The wait may outlast the last change: other ingresses have the time to report.
    assert!(
        seen == [(2, 1)] || seen == [(2, 1), (2, 0)],
        "each state is shown once, and then the wait ends: {seen:?}"
    );
}

#[test]
fn errors_name_the_replicas_and_the_way_out() {
    let replicas = || BTreeMap::from([("w".to_owned(), vec!["large-0".to_owned()])]);
    let failed = replicas();
    let said = DeployError::NotLoaded { epoch: 5, failed }.to_string();
    assert!(
        said.contains("`large-0` on worker `w`") && said.contains("plan rollback"),
        "{said}"
    );
    let missing = replicas();
    let said = DeployError::NotServed { epoch: 5, missing }.to_string();
    assert!(
        said.contains("`large-0` on worker `w`") && said.contains("--app"),
        "{said}"
    );
}

/// A first plan for workers that do not exist was reported as done: ingresses admit it at once, because nothing ran before.
#[tokio::test]
async fn a_plan_that_nothing_serves_is_not_done() {
    let (_embedded, mut deployment) = deployment().await;
    let epoch = deployment.apply(&plan("first"), None).await.unwrap().epoch;
    publish(
        &deployment,
        IngressState {
            ingress: "a".to_owned(),
            admits: epoch,
            ..IngressState::default()
        },
    )
    .await;
    let named = tokio::sync::Notify::new();
    let told = |progress: &Progress| {
        if progress.is_admitted && !progress.missing.is_empty() {
            named.notify_one();
        }
    };
    tokio::select! {
        ended = deployment.admitted(epoch, Duration::from_mins(1), told) => panic!("{ended:?}"),
        () = named.notified() => {}
    }
    let late = deployment.admitted(epoch, Duration::ZERO, |_| {}).await;
    let Err(DeployError::NotServed { missing, .. }) = late else {
        panic!("{late:?}")
    };
    let worker = missing.into_keys().next().unwrap();
    let beat = Heartbeat {
        actor: worker.clone(),
        kind: "worker".to_owned(),
        in_place: epoch,
        ..Heartbeat::default()
    };
    let subject = deployment.app.beat(&worker).unwrap();
    let payload = beat.encode().unwrap();
    deployment
        .bus
        .publish(subject, None, None, payload)
        .await
        .unwrap();
    deployment
        .admitted(epoch, Duration::from_secs(20), |_| {})
        .await
        .unwrap();
}
