use super::*;
use kaskade_policy::confidence::Estimator;

/// An app over models of the fixtures, asked these lines, with a labelled set whose labels mean nothing.
fn app(task: &str, variants: &[&str], lines: &str, dir: &Path) -> App {
    let file = dir.join("lines.tsv");
    std::fs::write(&file, lines).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/fixtures");
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
        .stretch(Duration::from_millis(1))
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
    assert!(matches!(profiler(&app).run(), Err(MeasureError::NoLabelFormat)));
    let profile = profiler(&app).judged_by_largest(true).run().unwrap();
    profile.validate().unwrap();
    assert_eq!(profile.estimator, Estimator::Span);
    assert_eq!(profile.judge.as_deref(), Some("v1"));
    // The same weights give the same spans.
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
}

#[test]
fn the_answers_of_the_largest_variant_replace_the_labels_of_classes() {
    let dir = tempfile::tempdir().unwrap();
    let model = "bert-classification";
    // Labels that no model gives.
    let app = app(
        "classification",
        &[model, model],
        "the cat sat\t77\na dog\t77\n",
        dir.path(),
    );
    let profile = profiler(&app).judged_by_largest(true).run().unwrap();
    assert_eq!(profile.variants[0].validation.correct, [true; 2]);
    assert_eq!(profile.variants[0].validation.margins.len(), 2);
}
