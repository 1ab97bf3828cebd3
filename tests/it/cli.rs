//! The command line: exit codes, messages, and JSON output.

use kaskade_testkit::{DIGITS, ROOT, command, digits_profile, kaskade, said, text};

use crate::support::{SENTIMENT, here, refusal};

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for args in [
        &["serve-everything"][..],
        &["profile"],
        &["profile", "--app", "a.toml", "--measure-for", "soon"],
        &["profile", "--app", "a.toml", "--batches", "0"],
        &["schema", "poem"],
        &["validate"],
        &["explain", "--colour"],
    ] {
        let output = kaskade(here(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("--help"), "{args:?}");
    }
    for (args, missing) in [
        (&["bench", "--app", DIGITS][..], "--rate"),
        (&["serve", "--app", DIGITS, "--role", "worker"][..], "--nats"),
        (&["plan", "pipeline", "--rate", "10"][..], "--pipeline"),
        (&["infer", "digits", "--index", "7"][..], "--app"),
        (
            &[
                "bench",
                "--app",
                DIGITS,
                "--nats",
                NOWHERE,
                "--rate",
                "1",
                "--plan",
                "plan.json",
            ][..],
            "in this process",
        ),
    ] {
        let message = text(&kaskade(here(), args).stderr);
        assert_eq!(
            kaskade(here(), args).status.code(),
            Some(2),
            "{args:?}: {message}"
        );
        assert!(message.contains(missing), "{args:?}: {message}");
    }
}

#[test]
fn a_missing_file_is_named_with_a_remedy() {
    let message = refusal(&kaskade(here(), &["profile", "--app", "no/such.toml"]));
    assert!(message.contains("no/such.toml: cannot be read"), "{message}");
    assert!(message.contains("name an app's TOML file"), "{message}");
}

#[test]
fn a_malformed_app_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let app = "name = \"digits\"\nslo = { p95 = \"soon\" }\n[[variants]]\nname = \"tiny\"\ndir = \"tiny\"\n";
    std::fs::write(folder.path().join("app.toml"), app).unwrap();
    let message = refusal(&kaskade(folder.path(), &["profile", "--app", "app.toml"]));
    assert!(
        message.contains("app.toml:2: `soon` is not a length of time"),
        "{message}"
    );
}

/// What `init` writes is a valid app, and the commands that it prints plan and validate it.
#[test]
fn init_writes_an_app_that_can_be_profiled_and_planned() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |name: &str| format!("{ROOT}/examples/sentiment/weights/sentiment-{name}");
    let lines = (0..300).map(|number| {
        format!(
            "film {number} is {}\t{}\n",
            ["dull", "warm"][number % 2],
            number % 2
        )
    });
    std::fs::write(folder.path().join("data.tsv"), lines.collect::<String>()).unwrap();
    let (tiny, pico) = (weights("tiny"), weights("pico"));
    let args = [
        "init",
        "reviews",
        "--variant",
        &tiny,
        "--variant",
        &pico,
        "--data",
        "data.tsv",
    ];
    let output = kaskade(folder.path(), &args);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        said.contains("sentiment-pico (234 050 parameters), sentiment-tiny"),
        "{said}"
    );
    let valid = kaskade(folder.path(), &["validate", "reviews/app.toml", "--load"]);
    assert_eq!(text(&valid.stdout).trim(), "reviews/app.toml: a valid app");
    let mut next: Vec<Vec<&str>> = said
        .lines()
        .filter_map(|line| Some(line.strip_prefix("  kaskade ")?.split(' ').collect()))
        .collect();
    assert_eq!(next.len(), 3, "{said}");
    next[0].extend([
        "--rounds",
        "1",
        "--measure-for",
        "1ms",
        "--batches",
        "1,8",
        "--quiet",
    ]);
    for command in &next[..2] {
        let output = kaskade(folder.path(), command);
        assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    }
    let again = refusal(&kaskade(folder.path(), &args));
    assert!(again.contains("exists") && again.contains("--force"), "{again}");
    assert!(
        kaskade(folder.path(), &[&args[..], &["--force"]].concat())
            .status
            .success()
    );
    let none = refusal(&kaskade(
        folder.path(),
        &["init", "other", "--variant", "no/such"],
    ));
    assert!(none.contains("`hf download no/such --local-dir DIR`"), "{none}");
    assert_eq!(kaskade(folder.path(), &["init", "other"]).status.code(), Some(2));
    assert!(!folder.path().join("other").exists());
}

#[test]
fn explain_knows_every_code_and_refuses_others() {
    let output = kaskade(here(), &["explain", "ksk0007"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("KSK0007 "));
    let by_number = kaskade(here(), &["explain", "7"]);
    assert_eq!(by_number.stdout, output.stdout);
    let all = kaskade(here(), &["explain", "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&all.stdout).unwrap();
    assert_eq!(all.as_array().unwrap().len(), kaskade_actors::Code::ALL.len());
    let message = refusal(&kaskade(here(), &["explain", "KSK9999"]));
    assert!(message.contains("`kaskade explain` lists them all"), "{message}");
}

#[test]
fn schemas_are_the_committed_ones() {
    for format in ["app", "plan", "profile", "pipeline", "channels"] {
        let output = kaskade(here(), &["schema", format]);
        assert!(output.status.success());
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let committed = here().join(format!("docs/{format}.schema.json"));
        let committed: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(committed).unwrap()).unwrap();
        assert_eq!(
            printed, committed,
            "run `kaskade schema {format} > docs/{format}.schema.json`"
        );
    }
}

#[test]
fn the_processor_passes_its_quick_self_test() {
    let folder = tempfile::tempdir().unwrap();
    let quick = [
        "selftest",
        "--suite",
        "quick",
        "--measure-for",
        "20ms",
        "--quiet",
        "--json",
    ];
    let output = kaskade(folder.path(), &[&quick[..], &["--out", "report.json"]].concat());
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["passed"], true);
    let written = std::fs::read(folder.path().join("report.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&written).unwrap(),
        printed
    );
    let absent = kaskade(folder.path(), &[&quick[..], &["--device", "cuda:999"]].concat());
    assert_eq!(absent.status.code(), Some(1));
    let printed: serde_json::Value = serde_json::from_slice(&absent.stdout).unwrap();
    assert_eq!(printed["passed"], false);
    assert!(text(&absent.stderr).contains("`cuda:999` does not pass"));
    let wrong = kaskade(folder.path(), &["selftest", "--device", "tpu"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_text_family_answers_without_its_samples() {
    let question = ["infer", "--app", SENTIMENT, "--json", "--text"];
    for (sentence, class) in [
        ("a warm, funny and moving film", 1),
        ("a dull and lifeless mess", 0),
    ] {
        let output = kaskade(here(), &[&question[..], &[sentence]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["variant"], "sentiment-mini");
        let logits: Vec<f64> = serde_json::from_value(reply["outputs"][0]["data"].clone()).unwrap();
        assert!(logits[class] > logits[1 - class], "{sentence}: {reply}");
    }
    assert!(kaskade(here(), &["validate", SENTIMENT]).status.success());
}

#[test]
fn a_model_that_is_not_worth_its_cost_is_left_out_of_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let profile = "examples/sentiment/profile.json";
    for objective in ["ap", "eo"] {
        let args = [
            "plan",
            "cascade",
            "--app",
            SENTIMENT,
            "--profile",
            profile,
            "--force",
            "--out",
        ];
        let objective = [plan.to_str().unwrap(), "--objective", objective];
        let output = kaskade(here(), &[&args[..], &objective[..]].concat());
        assert!(
            text(&output.stdout).contains("dropped sentiment-mini"),
            "{output:?}"
        );
        let plan = std::fs::read_to_string(&plan).unwrap();
        assert!(
            plan.contains("sentiment-tiny") && !plan.contains("sentiment-mini"),
            "{plan}"
        );
    }
}

#[test]
fn existing_files_are_replaced_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let profile = digits_profile();
    let plan = ["plan", "cascade", "--profile", &profile];
    for file in ["plan.json", "graph.svg"] {
        std::fs::write(folder.path().join(file), "mine").unwrap();
        let message = refusal(&kaskade(
            folder.path(),
            &[&plan[..], &["--svg", "graph.svg"]].concat(),
        ));
        assert!(
            message.contains(&format!("{file} exists")) && message.contains("--force"),
            "{message}"
        );
        assert_eq!(std::fs::read_to_string(folder.path().join(file)).unwrap(), "mine");
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert!(kaskade(folder.path(), &plan).status.success());
    assert!(refusal(&kaskade(folder.path(), &plan)).contains("plan.json exists"));
    let forced = kaskade(folder.path(), &[&plan[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    for command in [
        &["plan", "gears", "--profile", "none.json", "--rate", "10"][..],
        &["plan", "pipeline", "--pipeline", "none.toml", "--rate", "10"],
        &["plan", "placement", "--profile", "none.json"],
        &["profile", "--app", "none.toml", "--out", "plan.json"],
        &["profile", "channels", "--out", "plan.json"],
        &["selftest", "--suite", "quick", "--out", "plan.json"],
        &["simulate", "--plan", "none.json", "--svg", "plan.json"],
    ] {
        let message = refusal(&kaskade(folder.path(), command));
        assert!(message.contains("plan.json exists"), "{command:?}: {message}");
    }
}

/// Hours of measurements were lost where their file could not be written.
#[test]
fn outputs_are_checked_before_the_work() {
    let out = "/proc/out.json";
    for command in [
        &["profile", "--app", DIGITS, "--out", out][..],
        &["profile", "channels", "--nats", NOWHERE, "--out", out],
        &["demo", "--out", "/proc/demo"],
        &["plan", "cascade", "--profile", "none.json", "--out", out],
        &[
            "plan",
            "cascade",
            "--profile",
            "none.json",
            "--out",
            "none-plan.json",
            "--svg",
            out,
        ],
        &[
            "plan",
            "gears",
            "--profile",
            "none.json",
            "--rate",
            "10",
            "--out",
            out,
        ],
        &["selftest", "--suite", "quick", "--out", out],
        &["simulate", "--plan", "none.json", "--svg", out],
    ] {
        let message = refusal(&kaskade(here(), command));
        assert!(
            message.contains("/proc/") && message.contains("cannot be written"),
            "{command:?}: {message}"
        );
    }
}

/// No process listens there.
const NOWHERE: &str = "nats://127.0.0.1:1";

#[test]
fn a_temporary_failure_has_its_own_exit_code() {
    let channels = [
        "profile", "channels", "--rounds", "1", "--out", "c.json", "--nats", NOWHERE,
    ];
    let folder = tempfile::tempdir().unwrap();
    let absent = kaskade(folder.path(), &channels);
    assert_eq!(absent.status.code(), Some(75), "{}", text(&absent.stderr));
    let wrong = [&channels[..7], &["nats://host:port"]].concat();
    let wrong = kaskade(folder.path(), &wrong);
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stderr));
    let (code, message) = said(&["serve", "--app", DIGITS, "--role", "worker", "--nats", NOWHERE]);
    assert_eq!(code, Some(75), "{message}");
    assert!(!folder.path().join("c.json").exists());
}

#[test]
fn errors_are_json_on_request() {
    let error = |args: &[&str]| {
        let output = kaskade(here(), args);
        assert!(output.stdout.is_empty(), "{args:?}");
        let line = text(&output.stderr);
        let line = line.trim_end().lines().last().unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        (output.status.code(), value["error"].clone())
    };
    let (code, wrong) = error(&["explain", "KSK9999", "--json"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        (&wrong["code"], &wrong["retryable"]),
        (&serde_json::Value::Null, &false.into())
    );
    assert!(wrong["message"].as_str().unwrap().contains("KSK9999"), "{wrong}");
    let (code, usage) = error(&["explain", "--colour", "--json"]);
    assert_eq!(code, Some(2));
    assert!(usage["message"].as_str().unwrap().contains("--colour"), "{usage}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("c.json").display().to_string();
    let absent = ["profile", "channels", "--json", "--out", &out, "--nats", NOWHERE];
    let (code, absent) = error(&absent);
    assert_eq!(code, Some(75));
    assert_eq!(
        (&absent["code"], &absent["retryable"]),
        (&"KSK0012".into(), &true.into())
    );
    assert!(
        absent["help"].as_str().unwrap().contains("nats-server"),
        "{absent}"
    );
}

#[test]
fn the_help_groups_commands_and_completions_and_man_pages_cover_them() {
    let help = text(&kaskade(here(), &["--help"]).stdout);
    for line in [
        "Start:",
        "Build:",
        "Serve:",
        "Clients:",
        "Files:",
        "Help:",
        "Precedence: flag",
    ] {
        assert!(help.contains(line), "{line}: {help}");
    }
    let folder = tempfile::tempdir().unwrap();
    let man = kaskade(folder.path(), &["man", "pages"]);
    assert!(man.status.success(), "{}", text(&man.stderr));
    let bash = kaskade(here(), &["completions", "bash"]);
    assert!(bash.status.success());
    let bash = text(&bash.stdout);
    for command in [
        "demo",
        "profile-memory",
        "plan-request",
        "serve",
        "infer",
        "validate",
        "man",
    ] {
        let page = std::fs::read_to_string(folder.path().join(format!("pages/kaskade-{command}.1"))).unwrap();
        assert!(page.contains("SYNOPSIS"), "{command}");
        let last = command.rsplit('-').next().unwrap();
        assert!(bash.contains(last), "{command}");
    }
    assert!(refusal(&kaskade(folder.path(), &["man", "pages"])).contains("--force"));
}

/// Settings of unknown variants were taken without a word, and other messages named fields of no flag.
#[test]
fn settings_that_name_nothing_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let profile = digits_profile();
    let empty = folder.path().join("empty.txt");
    std::fs::write(&empty, "0 0 0\n").unwrap();
    let empty = empty.display().to_string();
    let plan = folder.path().join("plan.json").display().to_string();
    let gears = [
        "plan",
        "gears",
        "--profile",
        &profile,
        "--slo-p95",
        "50ms",
        "--out",
        &plan,
    ];
    let rated = [&gears[..], &["--rate", "50"]].concat();
    assert_eq!(kaskade(folder.path(), &rated).status.code(), Some(0));
    let out = folder.path().join("other.json").display().to_string();
    let placement = [
        "plan",
        "placement",
        "--profile",
        &profile,
        "--out",
        &out,
        "--layers",
        "nosuch=4",
    ];
    let simulate = [
        "simulate",
        "--plan",
        &plan,
        "--profile",
        &profile,
        "--rate",
        "5",
        "--gear",
        "g99",
    ];
    let traced = [&gears[..], &["--trace", &empty, "--force"]].concat();
    for (arguments, named) in [
        (&placement[..], "no variant `nosuch`; it has `digits-tiny`"),
        (&simulate[..], "no gear `g99`; it has `g0`"),
        (&traced[..], "has no request"),
    ] {
        let output = kaskade(folder.path(), arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(named), "{message}");
    }
}

/// They ended with 0 and without a word.
#[test]
fn help_and_version_that_cannot_be_printed_fail() {
    for flag in ["--help", "--version"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(ROOT, &[flag]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{flag}");
        let said = text(&output.stderr);
        assert!(
            said.contains("standard output cannot be written"),
            "{flag}: {said}"
        );
    }
}
