//! Roles over a real nats-server that was configured by `kaskade auth init`: each user may do its own work and nothing else.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::plan::store;
use kaskade_actors::subjects::App;
use kaskade_testkit::{
    NatsOptions, NatsServer, ROOT, ServeProcess, TIMEOUT, digits_app, digits_profile, eventually, http_post,
    is_ready, json, kaskade, said, wait_until,
};

/// Makes users and seeds in a folder, and starts a server with these users.
fn secured(folder: &Path, more: &[&str]) -> NatsServer {
    let out = folder.display().to_string();
    let (code, text) = said(&[&["auth", "init", "digits", "--out", &out], more].concat());
    assert_eq!(code, Some(0), "{text}");
    NatsServer::start(NatsOptions {
        jetstream: true,
        config: std::fs::read_to_string(folder.join("server/auth.conf")).unwrap(),
        ..NatsOptions::default()
    })
}

/// The digits app with a planner.
fn planned_app(folder: &Path, tables: &str) -> String {
    let planner = format!("[planner]\nprofile = \"{}\"\n{tables}", digits_profile());
    digits_app(folder, &planner)
}

fn seed(folder: &Path, user: &str) -> String {
    folder.join(user).join("nkey").display().to_string()
}

/// Starts the three processes of an app, each as the user of its role, and returns when ingress and worker are ready.
fn serve(app: &str, url: &str, folder: &Path, more: &[&str]) -> Vec<ServeProcess> {
    let start = |role: &str, own: &[&str]| {
        let key = seed(folder, role);
        let all = ["--app", app, "--nats", url, "--role", role, "--nkey", &key];
        ServeProcess::start(&[&all, own, more].concat())
    };
    let mut planner = start("planner", &[]);
    planner.line("serving");
    let followers = ["--stored-plan", "--http", "127.0.0.1:0"];
    let mut others = vec![start("ingress", &followers), start("worker", &followers)];
    let probes: Vec<String> = others.iter_mut().map(ServeProcess::probes).collect();
    wait_until("ingress and worker are ready", TIMEOUT, || {
        probes.iter().all(|address| is_ready(address))
    });
    others.push(planner);
    others
}

/// A connection as a user, and the log of what the server refused to it.
async fn connect(url: &str, seed: &str) -> (Bus, Arc<Mutex<String>>) {
    let refused = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&refused);
    let config = BusConfig {
        nkey: Some(seed.into()),
        observer: Some(Arc::new(move |event| {
            let line = format!("{event}\n").to_lowercase();
            noted.lock().unwrap().push_str(&line);
        })),
        timeout: Duration::from_secs(20),
        ..BusConfig::new("digits").url(url)
    };
    (Bus::connect(config).await.unwrap(), refused)
}

/// For each user: the subjects that it may publish to, and those that it may subscribe to. All others are refused.
const MAY: [(&str, &[&str], &[&str]); 7] = [
    ("client", &["infer", "submit", "cancel"], &[]),
    (
        "ingress",
        &[
            "infer",
            "stage.s",
            "replica.r",
            "ingress.i",
            "gear",
            "event.load",
            "event.energy",
            "result.x",
            "dead.x",
            "_INBOX.UX.1",
        ],
        &[
            "infer",
            "submit",
            "cancel",
            "done.i.1.1.t",
            "beat.w",
            "gear",
            "event.load",
        ],
    ),
    (
        "worker",
        &["stage.s", "replica.r", "done.i.1.1.t", "beat.w", "event.energy"],
        &["stage.s", "replica.r", "ingress.i", "gear"],
    ),
    (
        "planner",
        &[
            "replan",
            "event.planner",
            "event.energy",
            "$KV.kaskade-digits.plan",
            "_INBOX.UX.1",
        ],
        &["replan", "beat.w", "ingress.i", "gear", "event.load"],
    ),
    (
        "observer",
        &[],
        &[
            "beat.w",
            "ingress.i",
            "gear",
            "event.load",
            "event.planner",
            "event.energy",
            "dead.x",
        ],
    ),
    (
        "gateway",
        &["infer", "cancel", "feedback"],
        &[
            "beat.w",
            "ingress.i",
            "gear",
            "event.load",
            "event.planner",
            "event.energy",
            "dead.x",
        ],
    ),
    ("mine", &["done.i.1.1.t"], &["stage.digits-tiny", "ingress.i"]),
];

/// One subject of every kind; those without a dollar or an underscore belong to the app.
const SUBJECTS: [&str; 26] = [
    "infer",
    "submit",
    "cancel",
    "stage.s",
    "stage.digits-tiny",
    "replica.r",
    "done.i.1.1.t",
    "beat.w",
    "ingress.i",
    "gear",
    "replan",
    "event.load",
    "event.planner",
    "event.energy",
    "result.x",
    "dead.x",
    "$JS.API.STREAM.DELETE.kaskade-digits-submit",
    "$KV.kaskade-digits.plan",
    "$KV.kaskade-other.plan",
    "$JS.API.STREAM.DELETE.KV_kaskade-digits",
    "$JS.API.STREAM.PURGE.KV_kaskade-digits",
    "$JS.API.STREAM.CREATE.mine",
    "$SYS.REQ.SERVER.PING",
    "_INBOX.UX.1",
    "_INBOX.>",
    ">",
];

fn whole(subject: &str) -> String {
    if subject.starts_with(['$', '_', '>']) {
        subject.to_owned()
    } else {
        format!("kaskade.digits.{subject}")
    }
}

/// Tries every subject that the user must not use, and checks that the server refuses these and no others.
async fn is_refused_the_rest(url: &str, folder: &Path, user: &str, publish: &[&str], subscribe: &[&str]) {
    let (bus, refused) = connect(url, &seed(folder, user)).await;
    let mut expected = Vec::new();
    for subject in SUBJECTS {
        let to = whole(subject);
        let stage = subject == "stage.digits-tiny" && publish.contains(&"stage.s");
        if !publish.contains(&subject) && !stage && !subject.contains('>') {
            bus.client().publish(to.clone(), "".into()).await.unwrap();
            expected.push(format!("permissions violation for publish to \"{to}\"").to_lowercase());
        }
        let stage = subject == "stage.digits-tiny" && subscribe.contains(&"stage.s");
        if !subscribe.contains(&subject) && !stage {
            drop(bus.client().subscribe(to.clone()).await.unwrap());
            expected.push(format!("permissions violation for subscription to \"{to}\"").to_lowercase());
        }
    }
    bus.barrier().await.unwrap();
    eventually(&format!("{user} is refused everything"), TIMEOUT, async || {
        let refused = refused.lock().unwrap();
        expected.iter().all(|line| refused.contains(line.as_str()))
    })
    .await;
    let refused = refused.lock().unwrap();
    assert_eq!(
        refused.matches("violation").count(),
        expected.len(),
        "{user}: {refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_its_own_work_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = secured(folder, &["--actor", "mine=digits-tiny"]);
    let (app, url) = (planned_app(folder, "[durable]"), server.url());
    let processes = serve(&app, &url, folder, &[]);

    let client = seed(folder, "client");
    let ask = ["infer", "--app", &app, "--nats", &url, "--index", "1"];
    let (code, text) = said(&[&ask[..], &["--nkey", &client]].concat());
    assert_eq!(code, Some(0), "{text}");
    let submit = [
        "submit", "--app", &app, "--nats", &url, "--index", "1", "--id", "mine", "--wait", "20s",
    ];
    let (code, text) = said(&[&submit[..], &["--nkey", &client]].concat());
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = said(&ask);
    assert_eq!(code, Some(1), "a client without a key is refused");
    assert!(text.contains("check the credentials"), "{text}");
    let observer = seed(folder, "observer");
    let look = [
        "top",
        "--app",
        &app,
        "--nats",
        &url,
        "--count",
        "1",
        "--interval",
        "200ms",
        "--json",
    ];
    let (code, text) = said(&[&look[..], &["--nkey", &observer]].concat());
    assert_eq!(code, Some(0), "{text}");
    let planner = seed(folder, "planner");
    let (_, text) = said(&[
        "plan", "request", "--app", &app, "--nats", &url, "--rate", "100", "--nkey", &planner,
    ]);
    assert!(text.contains("plan"), "{text}");
    assert!(!text.contains("no planner listens"), "{text}");

    let log = server.log();
    assert!(
        !log.contains("Violation -"),
        "every user may do its own work:\n{log}"
    );

    for (user, publish, subscribe) in MAY {
        is_refused_the_rest(&url, folder, user, publish, subscribe).await;
    }

    // The plan store refuses a worker too, although it names the current epoch.
    let digits = App::new("digits").unwrap();
    let (worker, refused) = connect(&url, &seed(folder, "worker")).await;
    let store = store::open(&worker, &digits).await.unwrap();
    let stored = store.get().await.unwrap().unwrap();
    assert!(store.put(&stored.plan, Some(stored.epoch)).await.is_err());
    assert!(
        refused
            .lock()
            .unwrap()
            .contains("publish to \"$kv.kaskade-digits.plan\"")
    );
    let (writer, _) = connect(&url, &planner).await;
    let epoch = store::open(&writer, &digits)
        .await
        .unwrap()
        .put(&stored.plan, Some(stored.epoch))
        .await;
    assert!(epoch.unwrap() > stored.epoch);

    for process in processes {
        let said = process.end();
        for secret in ["client", "ingress", "worker", "planner"] {
            let secret = std::fs::read_to_string(seed(folder, secret)).unwrap();
            assert!(!said.contains(secret.trim()) && !server.log().contains(secret.trim()));
        }
    }
}

#[test]
fn processes_of_several_shards_need_no_other_permissions_and_top_shows_every_ingress() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = secured(folder, &[]);
    let (app, url) = (planned_app(folder, "[durable]"), server.url());
    let processes = serve(&app, &url, folder, &["--shards", "3"]);
    let client = seed(folder, "client");
    let index = |index: u32| {
        let index = index.to_string();
        let ask = [
            "infer", "--app", &app, "--nats", &url, "--index", &index, "--nkey", &client,
        ];
        let (code, text) = said(&ask);
        assert_eq!(code, Some(0), "{text}");
    };
    (0..4).for_each(index);
    let (code, text) = said(&[
        "submit", "--app", &app, "--nats", &url, "--index", "1", "--id", "mine", "--wait", "20s", "--nkey",
        &client,
    ]);
    assert_eq!(code, Some(0), "{text}");
    let observer = seed(folder, "observer");
    let look = kaskade(
        ROOT,
        &[
            "top",
            "--app",
            &app,
            "--nats",
            &url,
            "--count",
            "1",
            "--interval",
            "500ms",
            "--json",
            "--nkey",
            &observer,
        ],
    );
    let look = json(&look);
    assert_eq!(look["ingresses"]["count"], 3, "{look}");
    // Every shard of every process leaves with the permissions of its role too.
    drop(processes.into_iter().map(ServeProcess::end).collect::<Vec<_>>());
    let log = server.log();
    assert!(!log.contains("Violation -"), "{log}");
}

#[test]
fn processes_wait_for_the_planner_to_create_the_plan_store() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = secured(folder, &[]);
    let (app, url) = (planned_app(folder, ""), server.url());
    let start = |role: &str, more: &[&str]| {
        let key = seed(folder, role);
        let all = ["--app", &app, "--nats", &url, "--role", role, "--nkey", &key];
        ServeProcess::start(&[&all, more].concat())
    };
    let followers = ["--stored-plan", "--http", "127.0.0.1:0"];
    let mut early = [start("ingress", &followers), start("worker", &followers)];
    let probes = early.each_mut().map(|process| {
        let address = process.probes();
        process.line("waiting for the planner");
        address
    });
    // Only the planner may create it, and the others do not try.
    let log = server.log();
    assert!(!log.contains("Violation"), "{log}");
    let _planner = start("planner", &[]);
    wait_until("both are ready", TIMEOUT, || {
        probes.iter().all(|address| is_ready(address))
    });
    // A user without the permission is told so at once, by name and remedy.
    let client = seed(folder, "client");
    let of_client = ["digits", "--nats", &url, "--nkey", &client];
    let (get, request) = (["plan", "get"], ["plan", "request", "--rate", "100"]);
    for (command, role) in [
        (&get[..], "planner"),
        (&request[..], "planner"),
        (&["top"], "observer"),
    ] {
        let (code, text) = said(&[command, &of_client[..]].concat());
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("KSK0027: this user may not") && text.contains(role) && text.contains("--nkey"),
            "{command:?}: {text}"
        );
    }
    // So is a process whose user has another role: a retryable time-out of JetStream came after ten seconds.
    let durable = planned_app(folder, "[durable]\n");
    let worker = seed(folder, "worker");
    let (code, text) = said(&[
        "serve",
        "--app",
        &durable,
        "--nats",
        &url,
        "--role",
        "ingress",
        "--stored-plan",
        "--nkey",
        &worker,
    ]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("KSK0027: ") && text.contains("streams of durable requests") && text.contains("--role"),
        "{text}"
    );
}

#[test]
fn gateways_need_the_permissions_of_their_role_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = secured(folder, &["--all"]);
    let (app, url) = (planned_app(folder, ""), server.url());
    let start = |role: &str, user: &str, more: &[&str]| {
        let key = seed(folder, user);
        let all = ["--app", &app, "--nats", &url, "--role", role, "--nkey", &key];
        ServeProcess::start(&[&all, more].concat())
    };
    let image = vec!["0.5"; 64].join(",");
    let body = format!(
        r#"{{"inputs": [{{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": [{image}]}}]}}"#
    );
    // A process that is the whole app answers HTTP too.
    let mut whole = start("all", "all", &["--http", "127.0.0.1:0"]);
    let mut gateway = start("gateway", "gateway", &["--http", "127.0.0.1:0"]);
    for served in [&mut whole, &mut gateway] {
        let address = served.probes();
        // A gateway alone is ready once it hears the app's heartbeats.
        wait_until("the gateway is ready", TIMEOUT, || is_ready(&address));
        let (head, answer) = http_post(&address, "/v2/models/digits/infer", &body);
        assert!(head.starts_with("HTTP/1.1 200"), "{head} {answer}");
    }
    gateway.end();
    whole.end();
    let log = server.log();
    assert!(!log.contains("Violation -"), "{log}");
}

#[test]
fn tenants_are_isolated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = secured(folder, &["--tenant", "blue", "--tenant", "green"]);
    let (app, url) = (planned_app(folder, ""), server.url());
    let _served = serve(&app, &url, &folder.join("blue"), &[]);
    let ask = |tenant: &str| {
        let key = seed(&folder.join(tenant), "client");
        said(&[
            "infer", "--app", &app, "--nats", &url, "--index", "1", "--nkey", &key,
        ])
    };
    let (code, text) = ask("blue");
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = ask("green");
    assert_eq!(code, Some(1));
    assert!(text.contains("no process serves app `digits`"), "{text}");
}

#[test]
fn a_tls_server_is_reached_only_with_its_certificate_authority() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let server = secured(folder, &["--tls-cert", &cert, "--tls-key", &key]);
    let app = planned_app(folder, "");
    let url = server.url().replace("nats://", "tls://");
    let _served = serve(&app, &url, folder, &["--nats-ca", &cert]);
    let client = seed(folder, "client");
    let ask = [
        "infer", "--app", &app, "--nats", &url, "--index", "1", "--nkey", &client,
    ];
    let (code, text) = said(&[&ask[..], &["--nats-ca", &cert]].concat());
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = said(&ask);
    assert_eq!(code, Some(1), "an unknown certificate is refused: {text}");
    assert!(
        text.contains("the certificate of the NATS server") && text.contains("--nats-ca"),
        "{text}"
    );
}

#[test]
fn an_invalid_seed_and_an_unknown_user_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (app, out) = (planned_app(folder, ""), folder.display().to_string());
    let (code, text) = said(&[
        "infer",
        "--app",
        &app,
        "--nats",
        "nats://127.0.0.1:1",
        "--index",
        "1",
        "--nkey",
        &app,
    ]);
    assert_eq!(code, Some(1));
    assert!(text.contains("kaskade auth init"), "{text}");
    let infer = ["infer", "digits", "--text", "a", "--nats", "nats://127.0.0.1:1"];
    let (code, text) = said(&[&infer[..], &["--nkey", "no/such/nkey"]].concat());
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no/such/nkey") && text.contains("kaskade auth init") && !text.contains("KSK0012"),
        "{text}"
    );
    let (code, text) = said(&["auth", "init", "digits", "--out", &out, "--rotate", "cook"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("there is no user `cook`"), "{text}");
    let (code, text) = said(&["auth", "init", "digits", "--out", &out, "--actor", "mine"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("NAME=STAGE"), "{text}");
}
