//! The examples of remote variants: the endpoint is another Kaskade behind its own gateway, or a server of other people.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kaskade_testkit::endpoint::{Does, Server};
use kaskade_testkit::{Process, ROOT, ServeProcess, TIMEOUT, command, http_get, json, kaskade, wait_until};
use serde_json::Value;

/// Another Kaskade, and the address of its gateway.
fn endpoint(app: &str) -> (ServeProcess, String) {
    serve(&Path::new(ROOT).join("examples").join(app).join("app.toml"))
}

/// A Kaskade that serves this app, and the address of its gateway.
fn serve(app: &Path) -> (ServeProcess, String) {
    let mut served = ServeProcess::start(&["--app", app.to_str().unwrap(), "--http", "127.0.0.1:0"]);
    let address = served.probes();
    let address = address.split(['/', ' ', ',']).next().unwrap().to_owned();
    wait_until("the endpoint serves", TIMEOUT, || {
        http_get(&address, "/v2/health/ready").is_some_and(|(head, _)| head.contains(" 200 "))
    });
    (served, address)
}

/// An example with the address of its endpoint, in another folder.
fn example(folder: &Path, name: &str, address: &str) -> String {
    let root = Path::new(ROOT).join("examples");
    let read = |file: String| std::fs::read_to_string(root.join("remote").join(file)).unwrap();
    let app = read(format!("{name}.toml"));
    assert!(app.contains("127.0.0.1:8000"));
    let app = app
        .replace("127.0.0.1:8000", address)
        .replace("../", &format!("{}/", root.display()));
    std::fs::write(
        folder.join(format!("{name}.plan.json")),
        read(format!("{name}.plan.json")),
    )
    .unwrap();
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, app).unwrap();
    path.to_str().unwrap().to_owned()
}

fn ask(app: &str, text: &str) -> Value {
    json(&kaskade(
        ROOT,
        &["infer", "--app", app, "--text", text, "--budget", "20s", "--json"],
    ))
}

/// The costs of the stages passed.
fn costs(reply: &Value) -> Vec<f64> {
    let hops = reply["hops"].as_array().unwrap();
    let cost = |hop: &Value| hop["cost"]["amount"].as_f64();
    hops.iter().map(|hop| cost(hop).unwrap()).collect()
}

#[test]
fn what_a_local_classifier_is_unsure_about_goes_to_another_kaskade() {
    let folder = tempfile::tempdir().unwrap();
    let (served, address) = endpoint("sentiment");
    let app = example(folder.path(), "reviews", &address);
    let over_http = std::fs::read_to_string(&app).unwrap();
    // Its gateway has one port for both protocols.
    for protocol in ["http", "grpc"] {
        std::fs::write(&app, over_http.replace("http://", &format!("{protocol}://"))).unwrap();
        let sure = ask(&app, "a warm, funny and deeply moving masterpiece");
        assert_eq!(
            (&sure["variant"], costs(&sure)),
            (&"small".into(), vec![0.0]),
            "{protocol}: {sure}"
        );
        let unsure = ask(&app, "neither good nor bad, it is a film");
        assert_eq!(unsure["variant"], "large", "{protocol}: {unsure}");
        assert_eq!(costs(&unsure), [0.0, 0.001], "{protocol}: {unsure}");
        assert_eq!(unsure["hops"][1]["cost"]["source"], "priced");
    }
    served.end();
}

#[test]
fn an_openai_compatible_server_completes_what_a_small_model_passes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (served, address) = endpoint("shakespeare");
    let app = example(folder.path(), "verses", &address);
    let reply = ask(&app, "O Romeo, Romeo! wherefore art ");
    assert_eq!(reply["variant"], "large", "{reply}");
    let outputs = reply["outputs"].as_array().unwrap();
    let text = outputs.iter().find(|output| output["name"] == "text").unwrap();
    assert!(!text["data"][0].as_str().unwrap().trim().is_empty(), "{reply}");
    // The endpoint is gone: the small model answers by itself.
    served.end();
    let alone = ask(&app, "O Romeo, Romeo! wherefore art ");
    assert_eq!(
        (&alone["variant"], &alone["degraded"]),
        (&"small".into(), &true.into()),
        "{alone}"
    );
}

#[test]
fn embeddings_of_another_kaskade_are_those_of_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(
            &path,
            format!("name = \"vectors\"\ntask = \"embedding\"\n[[variants]]\nname = \"only\"\n{text}"),
        )
        .unwrap();
        path
    };
    let weights = Path::new(ROOT).join("models/fixtures/sentence-transformer");
    let near = file("near.toml", format!("dir = \"{}\"\n", weights.display()));
    let (served, address) = serve(&near);
    let far = file(
        "far.toml",
        format!(
            "price = {{ request = 0.001 }}\n[variants.remote]\nkind = \"openai\"\napi = \"embeddings\"\n\
             base_url = \"http://{address}/v1\"\nmodel = \"vectors\"\n"
        ),
    );
    let text = "a warm, funny and moving film";
    let (near, far) = (
        ask(near.to_str().unwrap(), text),
        ask(far.to_str().unwrap(), text),
    );
    let vector = |reply: &Value| {
        let outputs = reply["outputs"].as_array().unwrap();
        outputs
            .iter()
            .find(|output| output["name"] == "embedding")
            .unwrap()
            .clone()
    };
    assert!(
        vector(&near)["data"]
            .as_array()
            .is_some_and(|values| values.len() > 1),
        "{near}"
    );
    assert_eq!(vector(&near), vector(&far));
    assert_eq!(costs(&far), [0.001]);
    served.end();
}

/// Reviews with their labels, 1 for a good one.
fn reviews(folder: &Path, count: usize) {
    let lines = (0..count).map(|n| {
        let (word, label) = if n % 2 == 0 { ("good", 1) } else { ("bad", 0) };
        format!("review {n} of a {word} film\t{label}\n")
    });
    std::fs::write(folder.join("dev.tsv"), lines.collect::<String>()).unwrap();
}

#[test]
fn a_recording_that_is_killed_goes_on_and_asks_nothing_twice() {
    const SAMPLES: usize = 60;
    const AT_ONCE: usize = 2;
    let folder = tempfile::tempdir().unwrap();
    let answer = r#"{"choices": [{"message": {"content": "positive"}, "logprobs": {"content": [{"token": "positive", "logprob": -0.1,
        "top_logprobs": [{"token": "positive", "logprob": -0.1}, {"token": "negative", "logprob": -3.0}]}]}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1}}"#;
    let server = Server::start(move |_, _| Does::Slowly(Duration::from_millis(20), answer.to_owned()));
    reviews(folder.path(), SAMPLES);
    let app = format!(
        "name = \"reviews\"\n[[variants]]\nname = \"large\"\nprice = {{ input_tokens = 1.0 }}\n[variants.remote]\nkind = \"openai\"\n\
         base_url = \"{}/v1\"\nmodel = \"m\"\nlabels = [\"negative\", \"positive\"]\nconcurrency = {AT_ONCE}\n\
         [data.validation.tsv]\nfile = \"dev.tsv\"\n",
        server.url()
    );
    std::fs::write(folder.path().join("app.toml"), app).unwrap();
    let profile = || {
        let mut profile = command(
            folder.path(),
            &[
                "profile",
                "--app",
                "app.toml",
                "--answers",
                "answers",
                "--spend-limit",
                "1",
                "--out",
                "profile.json",
                "--batches",
                "1",
            ],
        );
        profile.stdout(Stdio::null());
        profile
    };
    let mut killed = Process::start(profile().stderr(Stdio::null()));
    wait_until("a third is recorded", TIMEOUT, || server.calls() >= SAMPLES / 3);
    killed.kill();
    let before = server.calls();
    assert!(before < SAMPLES, "it was killed too late");
    assert!(profile().status().unwrap().success());
    let asked: BTreeSet<Vec<u8>> = server
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|asked| asked.body.clone())
        .collect();
    assert_eq!(asked.len(), SAMPLES);
    // What was under way when it was killed has no answer, and is asked again.
    assert!(
        server.calls() <= SAMPLES + AT_ONCE,
        "{} calls, {before} before",
        server.calls()
    );
    let calls = server.calls();
    assert!(profile().arg("--force").status().unwrap().success());
    assert_eq!(server.calls(), calls, "everything is recorded");
}

/// An interpreter with transformers and its server, which take gigabytes.
fn transformers() -> Option<PathBuf> {
    let python =
        std::env::var_os("KASKADE_TORCH_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let mut found = Command::new(&python);
    found
        .args(["-c", "import torch, transformers, fastapi, uvicorn"])
        .stderr(Stdio::null());
    if found.status().is_ok_and(|status| status.success()) {
        return Some(python);
    }
    eprintln!(
        "\n!! NOT TESTED BEFORE THE SERVER OF TRANSFORMERS: name an interpreter with `transformers[serving]` and torch in KASKADE_TORCH_PYTHON\n"
    );
    None
}

#[test]
fn the_server_of_transformers_completes_what_a_small_model_passes_on() {
    let Some(python) = transformers() else { return };
    let folder = tempfile::tempdir().unwrap();
    // The model as others have it: with a chat template.
    let weights = Path::new(ROOT).join("examples/shakespeare/weights/shakespeare-mini");
    let model = folder.path().join("mini");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(weights.join(file), model.join(file)).unwrap();
    }
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut serve = Command::new(&python);
    serve
        .args([
            "-c",
            "from transformers.cli.transformers import main; main()",
            "serve",
            "--device",
            "cpu",
        ])
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .env("HF_HUB_OFFLINE", "1")
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let served = Process::start(&mut serve);
    let address = format!("127.0.0.1:{port}");
    wait_until("the server of transformers answers", TIMEOUT * 2, || {
        http_get(&address, "/health").is_some_and(|(head, _)| head.contains(" 200 "))
    });
    let app = example(folder.path(), "verses", &address);
    let text = std::fs::read_to_string(&app).unwrap();
    assert!(text.contains("api = \"completions\"") && text.contains("model = \"shakespeare\""));
    // It gives no log probabilities, and loads the model when it is asked for it.
    let text = text
        .replace(
            "model = \"shakespeare\"",
            &format!("model = \"{}\"\ntop_logprobs = 0", model.display()),
        )
        .replace("timeout = \"5s\"", "timeout = \"60s\"");
    for api in ["completions", "chat"] {
        std::fs::write(
            &app,
            text.replace("api = \"completions\"", &format!("api = \"{api}\"")),
        )
        .unwrap();
        let verse = "O Romeo, Romeo! wherefore art ";
        let reply = kaskade(
            ROOT,
            &[
                "infer", "--app", &app, "--text", verse, "--budget", "80s", "--json",
            ],
        );
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(reply.status.success(), "{api}: {reply:?}\n{log}");
        let reply = json(&reply);
        assert_eq!(reply["variant"], "large", "{api}: {reply}\n{log}");
        let outputs = reply["outputs"].as_array().unwrap();
        let said = outputs.iter().find(|output| output["name"] == "text").unwrap();
        assert!(
            !said["data"][0].as_str().unwrap().trim().is_empty(),
            "{api}: {reply}\n{log}"
        );
    }
    served.terminate();
}
