use kaskade_models::Tensor;
use kaskade_planners::cascade::Objective;
use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
use kaskade_policy::confidence::Estimator;
use kaskade_policy::text_metrics::Metric;
use serde_json::{Value, json};

use super::*;
use crate::data::{Label, Origins};
use crate::measure::judge::JudgeProgram;
use crate::planning;
use crate::report::in_one_line;

/// Returns an app with fixture models and a set of these lines, whose labels mean nothing.
fn app(task: &str, variants: &[&str], lines: &str, dir: &Path) -> App {
    let file = dir.join("lines.tsv");
    std::fs::write(&file, lines).unwrap();
    let fixtures = Path::new(kaskade_testkit::ROOT).join("models/fixtures");
    let variants = variants.iter().enumerate().map(|(place, fixture)| {
        let dir = fixtures.join(fixture);
        format!("[[variants]]\nname = \"v{place}\"\ndir = {dir:?}\n")
    });
    let variants: String = variants.collect();
    let text =
        format!("name = \"judged\"\ntask = \"{task}\"\n{variants}\n[data.validation.tsv]\nfile = {file:?}\n");
    App::parse(&text).unwrap()
}

fn profiler(app: &App) -> Profiler<'_> {
    Profiler::new(app)
        .batches([1])
        .rounds(1)
        .measure_for(Duration::from_millis(1))
}

#[test]
fn question_answering_is_profiled_without_labels() {
    let dir = tempfile::tempdir().unwrap();
    let model = "bert-question-answering";
    let app = app(
        "question_answering",
        &[model, model],
        "who\tthe cat sat\t0\nwhat\ta dog ran\t0\nwhere\tthe mat\t0\n",
        dir.path(),
    );
    // The labels are not answers of the model.
    let error = in_one_line(&profiler(&app).run().unwrap_err());
    assert!(error.contains("use `records`"), "{error}");
    let profile = profiler(&app).judge(Judge::Largest).run().unwrap();
    profile.validate().unwrap();
    assert_eq!(profile.estimator, Estimator::Span);
    assert_eq!(profile.judge.as_deref(), Some("v1"));
    // Equal weights give equal spans.
    for variant in &profile.variants {
        assert_eq!(variant.validation.correct, [true; 3]);
        assert!(
            variant
                .validation
                .confidences
                .iter()
                .all(|confidence| *confidence > 0.0)
        );
        assert!(variant.validation.margins.is_empty());
    }
    assert_eq!(profile.input_bytes.len(), 3);
    let hop = profile.hop.unwrap();
    assert!(
        hop.median_s > 0.0 && hop.median_s < 1.0 && hop.quantiles.unwrap().is_sound(),
        "{hop:?}"
    );
}

#[test]
fn the_answers_of_the_largest_variant_replace_the_labels_of_classes() {
    let dir = tempfile::tempdir().unwrap();
    let model = "bert-classification";
    // Labels that the model cannot give.
    let app = app(
        "classification",
        &[model, model],
        "the cat sat\t77\na dog\t77\n",
        dir.path(),
    );
    let profile = profiler(&app).judge(Judge::Largest).run().unwrap();
    assert_eq!(profile.variants[0].validation.correct, [true; 2]);
    assert_eq!(profile.variants[0].validation.margins.len(), 2);
    assert_eq!(profile.repeats, Some(0));
}

/// Regression: one number stood for two classes, and the second variant seemed to be wrong where it was right.
#[test]
fn variants_with_other_classes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Path::new(kaskade_testkit::ROOT).join("models/fixtures/bert-classification");
    let turned = dir.path().join("turned");
    std::fs::create_dir(&turned).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture.join(file), turned.join(file)).unwrap();
    }
    let config = std::fs::read_to_string(turned.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["id2label"] = json!({"0": "positive", "1": "negative", "2": "mixed"});
    std::fs::write(turned.join("config.json"), config.to_string()).unwrap();
    let turned = turned.to_str().unwrap();
    let app = app(
        "classification",
        &["bert-classification", turned],
        "the cat sat\t0\n",
        dir.path(),
    );
    let error = in_one_line(&profiler(&app).run().unwrap_err());
    assert!(
        error.starts_with("variant `v1`: its classes are `positive`, `negative`"),
        "{error}"
    );
    // The error occurs before the first variant is measured, for which there are no samples.
    std::fs::remove_file(dir.path().join("lines.tsv")).unwrap();
    assert_eq!(in_one_line(&profiler(&app).run().unwrap_err()), error);
}

#[test]
fn the_overhead_of_serving_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let model = "bert-classification";
    let mut app = app(
        "classification",
        &[model, model],
        "the cat sat\t77\na dog\t77\n",
        dir.path(),
    );
    // Components besides the request path, and other workers, are left out.
    app.guarantee = Some(toml::from_str("max_loss = \"1%\"").unwrap());
    app.workers.push(app.workers[0].clone());
    let measuring = profiler(&app).judge(Judge::Largest).rounds(3);
    let profile = measuring.measure_for(Duration::from_millis(60)).run().unwrap();
    let turnaround_s = profile.turnaround_s.unwrap();
    assert!((0.0..0.05).contains(&turnaround_s), "{turnaround_s}");
    // At 30/s the time is too short for 20 messages; at higher rates it suffices.
    let rows = profile.hop.as_ref().unwrap().by_rate.as_slice();
    assert!(
        !rows.is_empty() && rows.iter().all(|row| row.quantiles.is_some()),
        "{rows:?}"
    );
    profile.validate().unwrap();
}

/// Returns an app with fixture models and a validation set of records.
fn with_records(task: &str, variants: &[(&str, &str)], data: &str, records: &[Value], dir: &Path) -> App {
    let file = dir.join("records.jsonl");
    let lines: Vec<String> = records.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let fixtures = Path::new(kaskade_testkit::ROOT).join("models/fixtures");
    let variants = variants.iter().enumerate().map(|(place, (fixture, more))| {
        let dir = fixtures.join(fixture);
        format!("[[variants]]\nname = \"v{place}\"\ndir = {dir:?}\n{more}\n")
    });
    let variants: String = variants.collect();
    let text = format!(
        "name = \"graded\"\ntask = \"{task}\"\n{variants}\n[generation]\nmax_tokens = 4\n[data]\n{data}\n\
         [data.validation.records]\nfile = {file:?}\n"
    );
    let app = App::parse(&text).unwrap();
    assert_eq!(app.problems(), Vec::<String>::new());
    app
}

fn right(profile: &Profile, variant: usize) -> usize {
    let correct = &profile.variants[variant].validation.correct;
    correct.iter().filter(|right| **right).count()
}

#[test]
fn answers_to_questions_are_judged_by_the_words_that_they_share_with_a_reference() {
    let dir = tempfile::tempdir().unwrap();
    let model = [
        ("bert-question-answering", "dtype = \"bf16\""),
        ("bert-question-answering", ""),
    ];
    let context =
        "old keeper was in green tower of deep sea light house he kept old green light in deep house";
    let asked = |answers: &[&str]| json!({"question": "who was in the tower?", "context": context, "answers": answers});
    // Every span of the context shares words with the whole context, but none equals it.
    let records: Vec<Value> = (0..6).map(|_| asked(&["nothing", context])).collect();
    let profile = |data: &str| {
        let app = with_records("question_answering", &model, data, &records, dir.path());
        profiler(&app).run().unwrap()
    };
    let exact = profile("");
    exact.validate().unwrap();
    let f1 = profile("metric = \"f1\"\nmin_score = 0.05");
    for variant in 0..2 {
        assert_eq!((right(&exact, variant), right(&f1, variant)), (0, 6));
        assert!(f1.variants[variant].calibration.temperature > 0.0);
    }
    assert_eq!(f1.estimator, Estimator::Span);
    assert_eq!(f1.judge, None);
}

#[test]
fn generated_texts_are_judged_by_rouge_and_by_the_largest_variants_texts() {
    let dir = tempfile::tempdir().unwrap();
    let model = [("t5", ""), ("t5", "")];
    let records: Vec<Value> = (0..4)
        .map(|number| json!({"text": format!("the sea {number}"), "answer": "zzz"}))
        .collect();
    let app = |metric: &str| {
        let data = format!("metric = \"{metric}\"\nmin_score = 0.5");
        with_records("generation", &model, &data, &records, dir.path())
    };
    let labelled = profiler(&app("rouge_l")).run().unwrap();
    assert_eq!(right(&labelled, 0), 0);
    assert_eq!(labelled.estimator, Estimator::Given);
    // Equal weights give equal texts. By F1, two texts without words are equal.
    let judged = profiler(&app("f1")).judge(Judge::Largest).run().unwrap();
    assert_eq!((right(&judged, 0), right(&judged, 1)), (4, 4));
    // Plans, audits and labels compare with the same metric.
    assert_eq!(judged.texts.map(|texts| texts.metric), Some(Metric::F1));
    assert_eq!(judged.variants[0].validation.agrees, [true; 4]);
    let exact = profiler(&app("exact")).run().unwrap();
    assert!(exact.texts.is_none() && exact.variants[0].validation.agrees.is_empty());
    let texts = |profile: &Profile| profile.variants[0].validation.predictions.clone();
    assert_eq!(texts(&labelled), texts(&judged));
}

#[test]
fn entities_are_compared_over_characters_whatever_the_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let text = |number: usize| format!("the old keeper kept the light of house {number}");
    // Random models match no reference, but models with equal weights match each other.
    let records: Vec<Value> = (0..6)
        .map(|number| json!({"text": text(number), "entities": [{"start": 4, "end": 14, "label": "PER"}]}))
        .collect();
    let words: Vec<Value> = (0..6)
        .map(|number| json!({"tokens": text(number).split(' ').collect::<Vec<_>>(), "ner_tags": [0, 1, 2, 0, 0, 0, 0, 0, 0]}))
        .collect();
    let model = [
        ("roberta-token-classification", "aggregation_strategy = \"first\""),
        (
            "bert-token-classification",
            "dtype = \"bf16\"\naggregation_strategy = \"first\"",
        ),
        ("bert-token-classification", "aggregation_strategy = \"first\""),
    ];
    let app = |records: &[Value], data: &str| {
        with_records("token_classification", &model, data, records, dir.path())
    };
    let labelled = app(&records, "");
    let of_texts = profiler(&labelled).run().unwrap();
    of_texts.validate().unwrap();
    assert_eq!((of_texts.estimator, of_texts.samples), (Estimator::Given, 6));
    let tagged = app(&words, "");
    let of_words = profiler(&tagged).run().unwrap();
    let graded = app(&records, "metric = \"entity_f1\"\nmin_score = 0.1");
    let graded = profiler(&graded).run().unwrap();
    for variant in 0..3 {
        let [texts, words] = [&of_texts, &of_words].map(|profile| &profile.variants[variant].validation);
        assert_eq!(
            (&texts.predictions, &texts.correct),
            (&words.predictions, &words.correct)
        );
        assert!(
            texts
                .confidences
                .iter()
                .all(|confidence| *confidence > 0.0 && *confidence < 1.0)
        );
        assert!(right(&graded, variant) >= right(&of_texts, variant));
    }
    let judged = profiler(&labelled).judge(Judge::Largest).run().unwrap();
    assert_eq!((right(&judged, 0), right(&judged, 2)), (0, 6));
    let judged = profiler(&app(&records, "metric = \"entity_f1\"\nmin_score = 0.1"))
        .judge(Judge::Largest)
        .run()
        .unwrap();
    assert_eq!(judged.texts.map(|texts| texts.metric), Some(Metric::EntityF1));
    // Spans by different tokenizers share characters.
    assert!(right(&judged, 0) > 0 && right(&judged, 2) == 6);
    assert_eq!(judged.variants[2].validation.agrees, [true; 6]);
}

#[test]
fn embedders_that_rank_passages_are_certified() {
    let dir = tempfile::tempdir().unwrap();
    let words = [
        "the", "a", "deep", "sea", "light", "keeper", "house", "tower", "green", "old", "kept", "in",
    ];
    let word = |number: usize| words[number % words.len()];
    let records: Vec<Value> = (0..400)
        .map(|number| {
            let query = format!("{} {} {}", word(number), word(number / 12), word(number / 3 + 5));
            let other = format!("{} {}", word(number + 7), word(number * 5 + 1));
            json!({"query": query, "positive": format!("{query} ?"), "negative": [other, "who ?"]})
        })
        .collect();
    let model = [
        ("sentence-transformer", "dtype = \"bf16\""),
        ("sentence-transformer", ""),
    ];
    let app = with_records("ranking", &model, "", &records, dir.path());
    let profile = profiler(&app).run().unwrap();
    profile.validate().unwrap();
    assert_eq!(profile.estimator, Estimator::MaxSquared);
    // A text with one additional word is similar.
    assert!(right(&profile, 1) > 300, "{} of 400", right(&profile, 1));
    assert_eq!(profile.variants[1].validation.margins.len(), 400);
    let options = CertifyOptions::new(AccuracyTarget::MaxLoss { loss: 0.05 });
    let planned = planning::cascade(&profile)
        .app(&app)
        .batch(1)
        .objective(Objective::Certified(options));
    let plan = planned.plan().unwrap().plan;
    let certificate = plan.certificate.unwrap();
    assert!(
        certificate.samples == 240 && certificate.p_value <= 0.05,
        "{certificate:?}"
    );
}

#[test]
fn a_program_judges_answers_with_and_without_references() {
    let dir = tempfile::tempdir().unwrap();
    let judge = dir.path().join("judge.py");
    let program = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    assert asked["answer"] in ("negative", "neutral", "positive"), asked
    print(json.dumps({"score": 5 if asked["sample"] % 2 and asked.get("reference") is None else 1}))
"#;
    std::fs::write(&judge, program).unwrap();
    let judge = JudgeProgram::new(&format!("python3 '{}'", judge.display())).unwrap();
    let model = [("bert-classification", ""), ("bert-classification", "")];
    let mut records: Vec<Value> = (0..8).map(|_| json!({"text": "the deep sea"})).collect();
    let scored = |records: &[Value], data: &str| {
        let app = with_records("classification", &model, data, records, dir.path());
        profiler(&app).judge(Judge::Program(judge.clone())).run()
    };
    let profile = scored(&records, "min_score = 3").unwrap();
    profile.validate().unwrap();
    assert_eq!(profile.variants[0].validation.correct, [false, true].repeat(4));
    assert!(profile.judge.as_deref().unwrap().starts_with("python3 "));
    let error = in_one_line(&scored(&records, "").unwrap_err());
    assert!(error.contains("min_score") && error.contains("v0"), "{error}");
    for record in &mut records {
        record["label"] = json!("neutral");
    }
    let profile = scored(&records, "min_score = 3").unwrap();
    assert_eq!(right(&profile, 0), 0, "references are passed on");
    // Without a judge, a sample without a label is an error.
    records[0] = json!({"text": "the sea"});
    let app = with_records("classification", &model, "", &records, dir.path());
    let error = in_one_line(&profiler(&app).run().unwrap_err());
    assert!(error.contains("label"), "{error}");
}

/// Regression: replies stated the cost of their tokens, but the profile did not.
#[test]
fn a_local_variant_priced_by_its_tokens_has_a_cost() {
    let dir = tempfile::tempdir().unwrap();
    let priced = "price = { request = 0.5, input_tokens = 1000000.0 }";
    let app = with_records(
        "classification",
        &[("bert-classification", priced), ("bert-classification", "")],
        "",
        &[
            json!({"text": "the cat sat", "label": 0}),
            json!({"text": "a dog", "label": 1}),
        ],
        dir.path(),
    );
    let profile = profiler(&app).run().unwrap();
    // The tokenizer makes 15 tokens of both texts, special tokens included.
    let money = profile.variants[0].money.unwrap();
    assert!((money.per_request - 8.0).abs() < 1e-9, "{money:?}");
    assert_eq!(profile.variants[1].money, None);
}

/// Regression: hours of profiling were lost at the end, for instance if the system does not report memory.
#[test]
fn what_is_measured_last_may_fail() {
    let dir = tempfile::tempdir().unwrap();
    let app = app(
        "classification",
        &["bert-classification"],
        "the cat sat\t0\na dog\t1\n",
        dir.path(),
    );
    let profile = profiler(&app)
        .run_with_memory(|_, _| Err("no reading".to_owned()))
        .unwrap();
    profile.validate().unwrap();
    assert_eq!(profile.variants[0].costs[0].memory_bytes, None);
    let known = profiler(&app).run_with_memory(|member, batches| {
        let memory = serde_json::from_value::<MeasuredMemory>(json!({
            "variant": member.name, "partition": 0, "of": 1, "parameters": 1, "loaded_bytes": 1,
            "batches": [{"batch": batches[0], "bytes": 7}],
        }));
        memory.map_err(|error| error.to_string())
    });
    assert_eq!(known.unwrap().variants[0].costs[0].memory_bytes, Some(7));
}

/// Regression: calls without a price counted as free, so the limit had no effect.
#[test]
fn a_limit_of_spending_needs_prices() {
    let app = |price: &str, judge: &str| {
        let text = format!(
            "name = \"a\"\ntask = \"generation\"\n[[variants]]\nname = \"far\"\n{price}\n[variants.remote]\nkind = \"openai\"\n\
             base_url = \"https://localhost/v1\"\nmodel = \"m\"\n{judge}\n[data.validation.records]\nfile = \"a.jsonl\"\n"
        );
        App::parse(&text).unwrap()
    };
    let check = |app: &App, limit| {
        let checked = Profiler::new(app).record(Path::new("answers"), limit).check();
        checked.map_err(|error| in_one_line(&error))
    };
    let free = "price = { request = 0 }";
    let judged = |price: &str| format!("confidence = {{ judge = {{ model = \"j\"{price} }} }}");
    let error = check(&app("", ""), Some(1.0)).unwrap_err();
    assert!(
        error.contains("`far`") && error.contains("{ request = 0 }"),
        "{error}"
    );
    let error = check(&app(free, &judged("")), Some(1.0)).unwrap_err();
    assert!(error.contains("judge"), "{error}");
    assert_eq!(
        check(&app(free, &judged(", price = { request = 1 }")), Some(1.0)),
        Ok(())
    );
    assert_eq!(check(&app("", ""), None), Ok(()));
}

/// For instance, a part of a sorted file.
#[test]
fn samples_of_one_class_are_remarked() {
    let set = |classes: &[usize]| Samples {
        inputs: classes
            .iter()
            .zip(0_i64..)
            .map(|(_, place)| vec![Tensor::from_i64("x", &[1], &[place]).unwrap()])
            .collect(),
        labels: classes.iter().map(|class| Label::Class(*class)).collect(),
        origins: Origins::default(),
    };
    let said = remarks(&set(&[3; 20]), &[]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("of the validation samples, all 20 have class 3"),
        "{said:?}"
    );
    let names = ["a", "b", "c", "d"].map(str::to_owned);
    let said = remarks(&set(&[[3; 20].as_slice(), &[0, 0]].concat()), &names);
    assert!(
        said[0].contains("few samples of some classes: 2 of class `a`;"),
        "{said:?}"
    );
    assert_eq!(
        remarks(&set(&[[3; 20], [1; 20]].concat()), &[]),
        Vec::<String>::new()
    );
    // One sample is too few for a remark about classes.
    assert_eq!(remarks(&set(&[3]), &[]), Vec::<String>::new());
}

/// Regression: the variant was measured on its stated device, but planned and served on another.
#[test]
fn a_variant_is_profiled_on_the_device_that_serves_it() {
    let of = |variants: &str, workers: &[(&str, &str)]| {
        let workers = workers.iter().map(|(name, device)| {
            let device = if device.is_empty() {
                String::new()
            } else {
                format!("device = \"{device}\"\n")
            };
            format!("[[workers]]\nname = \"{name}\"\n{device}")
        });
        let workers: String = workers.collect();
        App::parse(&format!(
            "name = \"a\"\ntask = \"classification\"\n[[variants]]\nname = \"v\"\ndir = \"v\"\n{variants}{workers}\
             [data.validation.tsv]\nfile = \"f\"\n"
        ))
        .unwrap()
    };
    for (stated, workers, device) in [
        ("", &[][..], "cpu"),
        ("device = \"cuda:1\"\n", &[][..], "cuda:1"),
        ("", &[("w", "cuda:2")][..], "cuda:2"),
        ("device = \"cuda:1\"\n", &[("w", "cpu")][..], "cpu"),
        ("", &[("w", "cuda:0"), ("x", "cuda:1")][..], "cuda:0"),
        ("", &[("w", "cuda:0"), ("x", "")][..], "cpu"),
        (
            "device = \"cuda:1\"\n",
            &[("w", "cpu"), ("x", "cuda:1")][..],
            "cuda:1",
        ),
    ] {
        let app = of(stated, workers);
        let family = Family::from_app(&app);
        assert_eq!(
            family.members[0].device.to_string(),
            device,
            "{stated}{workers:?}"
        );
        assert!(Profiler::new(&app).check().is_ok(), "{stated}{workers:?}");
        let alone = serving_overhead::one_worker(&app);
        let served = alone.device_on(&alone.workers[0], &alone.variants[0]);
        assert_eq!(served.to_string(), device, "{stated}{workers:?}");
    }
    let app = of("device = \"cuda:1\"\n", &[("w", "cpu"), ("x", "cuda:0")]);
    let error = Profiler::new(&app).check().unwrap_err().to_string();
    for part in ["`v`", "`cpu`", "`w`", "`cuda:0`", "`x`", "`device`"] {
        assert!(error.contains(part), "{error}");
    }
}
