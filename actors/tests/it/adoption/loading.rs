//! Requests while models load, and loads that fail.

use super::*;

/// The code of a request that its client sends once; `None` if it is answered.
async fn asked_once(ingress: &Node, app: &App) -> Option<Code> {
    let request = InferRequest {
        inputs: question(),
        ..InferRequest::default()
    };
    let body = request.encode().unwrap();
    let reply = ingress.bus().client().request(app.infer(), body).await.unwrap();
    headers::fault(reply.headers.as_ref()).map(|fault| fault.code)
}

#[test]
fn an_ingress_that_starts_while_the_workers_load_refuses_requests_until_the_plan_is_in_place() {
    let name = "adoption-start";
    let app = App::new(name).unwrap();
    let server = NatsServer::start(NatsOptions::jetstream());
    let loading = Arc::new(Loading::default());
    let let_go = LetGo(Arc::clone(&loading));
    loading.set(|hold| hold.held = true);
    let plan = entry_on(name, ("small", "w1"), ("large", "w1"));
    let node = move |worker: Option<Loader>| {
        Node::start(NodeConfig {
            app: name.to_owned(),
            bus: BusConfig::new(name).url(server.url()),
            ingress: worker.is_none().then(IngressConfig::default),
            worker: worker.map(|loader| {
                let config = WorkerConfig {
                    name: "w1".to_owned(),
                    queue_capacity: 256,
                    ..WorkerConfig::default()
                };
                (config, loader)
            }),
            plan: Some(plan.clone()),
            planner: None,
            power: None,
            grace: Duration::from_secs(1),
        })
        .unwrap()
    };
    let ingress = node(None);
    let loader = loading.loader();
    let worker = std::thread::spawn(move || {
        let started = node(Some(loader));
        (started, node)
    });
    loading.waits(2);
    wait_until("the ingress hears of the load", TIMEOUT, || {
        ingress.plans().is_loading()
    });
    let runtime = crate::foreign::runtime();
    assert_eq!(
        runtime.block_on(asked_once(&ingress, &app)),
        Some(Code::Unavailable)
    );
    let counted = ingress.metrics().read();
    assert_eq!(
        (counted.accepted, counted.retried),
        (0, 0),
        "it is refused at once, without attempts at a stage that has no replicas"
    );
    // A shipped client sends the request again until then.
    let client = Client::new(ingress.bus(), app.clone());
    let waiting = runtime.spawn(async move { client.infer(question(), BUDGET).await });
    let refused = || ingress.metrics().read().faults.values().sum::<u64>();
    wait_until("the client is refused", TIMEOUT, || refused() > 1);
    drop(let_go);
    let reply = runtime.block_on(waiting).unwrap().unwrap();
    assert_eq!(by(&reply), ("small".to_owned(), "w1".to_owned()));
    assert!(ingress.plans().is_admitted() && !ingress.plans().is_loading());
    let (worker, _node) = worker.join().unwrap();
    worker.stop();
    ingress.stop();
}

#[test]
fn a_load_that_fails_leaves_the_plan_before_in_force() {
    let app = "load-fails";
    let bus = BusConfig::new(app);
    let (before, moved) = (
        entry_on(app, ("small", "w1"), ("large", "w2")),
        entry_on(app, ("small", "w2"), ("large", "w2")),
    );
    let cluster = Cluster::start(app, &bus, &before);
    cluster.loading.set(|hold| hold.fails = true);
    let (_, slowest) = cluster.under_load(|| {
        let epoch = cluster.apply(&moved);
        let health = cluster.workers[1].health();
        wait_until("the worker says why", TIMEOUT, || {
            matches!(health.newest_plan_problem(), Some(NotReady::Failed(reasons)) if reasons["small-0"].contains("no such file"))
        });
        let ingress = cluster.ingress.health();
        // Out of service, they would not answer under the plan before.
        assert_eq!((health.ready(), ingress.ready()), (Ok(()), Ok(())));
        wait_until("the ingress says so", TIMEOUT, || {
            let said = ingress.notes().join("; ");
            said.contains("loading the replicas of epoch 2; epoch 1 is in place")
        });
        let has = |page: &str, line: &str| assert!(page.lines().any(|found| found == line), "{line} in {page}");
        has(&health.page(), "kaskade_failed_replicas{app=\"load-fails\"} 1");
        has(&ingress.page(), "kaskade_plan_epoch{app=\"load-fails\"} 2");
        has(&ingress.page(), "kaskade_plan_epoch_in_place{app=\"load-fails\"} 1");
        for _ in 0..50 {
            assert_eq!(by(&cluster.ask()).1, "w1");
        }
        assert!(cluster.epoch() < epoch);
        // The next plan is another try.
        cluster.loading.set(|hold| hold.fails = false);
        let mut again = moved.clone();
        "again".clone_into(&mut again.made_by);
        let epoch = cluster.apply(&again);
        cluster.admits(epoch);
        assert_eq!(by(&cluster.ask()).1, "w2");
        assert_eq!((health.ready(), health.newest_plan_problem()), (Ok(()), None));
        assert_eq!(ingress.notes(), Vec::<String>::new());
    });
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    cluster.stop();
}

#[test]
fn a_process_stays_ready_while_it_loads_the_next_plan() {
    let app = "load-held";
    let bus = BusConfig::new(app);
    let (before, moved) = (
        entry_on(app, ("small", "w1"), ("large", "w2")),
        entry_on(app, ("small", "w2"), ("large", "w2")),
    );
    let cluster = Cluster::start(app, &bus, &before);
    cluster.loading.set(|hold| hold.held = true);
    let epoch = cluster.apply(&moved);
    cluster.loading.waits(1);
    let (worker, ingress) = (cluster.workers[1].health(), cluster.ingress.health());
    let loading = NotReady::Loading { epoch, in_place: 1 };
    for health in [worker, ingress] {
        wait_until("it knows the plan", TIMEOUT, || {
            health.newest_plan_problem() == Some(loading.clone())
        });
        assert_eq!(health.ready(), Ok(()));
    }
    assert_eq!(by(&cluster.ask()).1, "w1");
    cluster.loading.set(|hold| hold.held = false);
    cluster.admits(epoch);
    assert_eq!(
        (worker.newest_plan_problem(), ingress.newest_plan_problem()),
        (None, None)
    );
    cluster.stop();
}
