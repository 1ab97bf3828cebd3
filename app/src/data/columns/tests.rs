use kaskade_models::{Datatype, Extent, InputSpec, Task};

use super::*;
use crate::data::LabelUse;
use crate::report::in_one_line;

fn signature() -> Signature {
    let optional = |name| InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)]);
    Signature {
        inputs: vec![optional("text"), optional("text_pair"), optional(IMAGE_FILE)],
    }
}

fn reader(task: Task) -> LabelReader {
    LabelReader::new(task, &["cat".to_owned(), "dog".to_owned()])
}

fn write(dir: &Path, name: &str, content: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

fn records(name: &str, content: &str, extra: &str, task: Task) -> Result<Samples, DataError> {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), name, content);
    let mut spec: Records = toml::from_str(&format!("file = \"x\"\n{extra}")).unwrap();
    spec.file = file;
    Samples::from_records(&spec, &signature(), &reader(task))
}

fn texts(samples: &Samples, input: usize) -> Vec<String> {
    let text = |inputs: &Inputs| inputs[input].to_texts().unwrap()[0].to_owned();
    samples.inputs.iter().map(text).collect()
}

/// As the examples of language models write them.
#[test]
fn prompts_have_texts_as_answers() {
    let json =
        "\u{feff}{\"text\": \"2 + 2 = \", \"answer\": \" 4 \"}\r\n\r\n{\"text\": \"a\", \"answer\": \"b\"}\n";
    let read = records("a.jsonl", json, "", Task::Generation).unwrap();
    assert_eq!(texts(&read, 0), ["2 + 2 = ", "a"]);
    assert_eq!(read.labels, [Label::text("4"), Label::text("b")]);
    let last = records("a.jsonl", json, "skip = 1\ntake = 1", Task::Generation).unwrap();
    assert_eq!(texts(&last, 0), ["a"]);
}

#[test]
fn usual_columns_are_found_and_others_configured() {
    let json = "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": 1, \"idx\": 7}\n";
    let pair = records("a.jsonl", json, "", Task::Classification).unwrap();
    assert_eq!(
        (texts(&pair, 0), texts(&pair, 1)),
        (vec!["a".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(pair.labels, [Label::Class(1)]);
    let configured = "columns = { text = 'body', text_pair = 'title', label = 'kind' }";
    let csv = "BODY,Title,Kind\na,b,1\n";
    let named = records("a.csv", csv, configured, Task::Classification).unwrap();
    assert_eq!(
        (texts(&named, 0), texts(&named, 1)),
        (texts(&pair, 0), texts(&pair, 1))
    );
    assert_eq!(named.labels, pair.labels);
    let cased = records("a.csv", "Id,Text,LABEL\n1,a,1\n", "", Task::Classification).unwrap();
    assert_eq!(
        (texts(&cased, 0), &cased.labels[..]),
        (vec!["a".to_owned()], &[Label::Class(1)][..])
    );
    let other = "text,query,passage,file_name,label\na,b,c,a.png,1\n";
    let image = InputSpec::optional(IMAGE_FILE, Datatype::Bytes, vec![Extent::Exactly(1)]);
    let of_texts = {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), "a.csv", other);
        let mut spec: Records = toml::from_str("file = \"x\"").unwrap();
        spec.file = file;
        let mut signature = signature();
        signature.inputs.retain(|input| *input != image);
        Samples::from_records(&spec, &signature, &reader(Task::Classification)).unwrap()
    };
    assert_eq!(texts(&of_texts, 0), ["a"], "a column `text` is the request");
    assert_eq!(of_texts.inputs[0].len(), 1);
    let both = "TEXT,Text,text,label\na,b,c,1\n";
    assert_eq!(
        texts(&records("a.csv", both, "", Task::Classification).unwrap(), 0),
        ["c"]
    );
    let csv = "id,headline,topic\n1,\"x, y\",Dog\n2,z,cat\n3,w,0\n";
    let columns = "skip = 1\ntake = 2\ncolumns = { text = 'headline', label = 'topic' }";
    let samples = records("a.csv", csv, columns, Task::Classification).unwrap();
    assert_eq!(texts(&samples, 0), ["z", "w"]);
    assert_eq!(samples.labels, [Label::Class(0), Label::Class(0)]);
    let squad = r#"{"id": "1", "question": "who?", "context": "the keeper", "answers": {"text": ["keeper"], "answer_start": [4]}}"#;
    let spans = records("a.jsonl", squad, "", Task::QuestionAnswering).unwrap();
    assert_eq!(
        (texts(&spans, 0)[0].as_str(), texts(&spans, 1)[0].as_str()),
        ("who?", "the keeper")
    );
    assert_eq!(spans.labels, [Label::Texts(vec!["keeper".to_owned()])]);
}

/// One record without a label was an error, and a first one without dropped those of all others.
#[test]
fn records_for_a_judge_may_lack_a_label_each() {
    let read = |name: &str, content: &str, used, task| {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), name, content);
        let spec = Records {
            file,
            ..Records::default()
        };
        let anything = Signature { inputs: Vec::new() };
        let mut labels = reader(task);
        labels.used = used;
        Samples::from_records(&spec, &anything, &labels).map(|samples| samples.labels)
    };
    let null = "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": null}\n";
    let first = "{\"text\": \"a\"}\n{\"text\": \"b\", \"label\": 1}\n";
    let cell = "text,label\na,dog\nb,\n";
    let (known, none) = (Label::Class, Label::Unknown);
    for (name, content, labels) in [
        ("a.jsonl", null, [known(0), none.clone()]),
        ("a.jsonl", first, [none.clone(), known(1)]),
        ("a.csv", cell, [known(1), none.clone()]),
    ] {
        let task = Task::Classification;
        assert_eq!(read(name, content, LabelUse::Reference, task).unwrap(), labels);
        assert!(
            read(name, content, LabelUse::Required, task).is_err(),
            "{content}"
        );
        let ignored = read(name, content, LabelUse::Ignored, task).unwrap();
        assert_eq!(ignored, [none.clone(), none.clone()]);
    }
    // A label that is there is read as ever.
    assert!(
        read(
            "a.csv",
            "text,label\na,bird\n",
            LabelUse::Reference,
            Task::Classification
        )
        .is_err()
    );
    let several = read("a.csv", cell, LabelUse::Reference, Task::MultiLabel).unwrap();
    assert_eq!(several, [Label::Classes(vec![1]), Label::Classes(vec![])]);
    let ranked = "{\"query\": \"a\", \"passages\": [\"b\", \"c\"], \"label\": null}\n";
    assert_eq!(
        read("a.jsonl", ranked, LabelUse::Reference, Task::Ranking).unwrap(),
        std::slice::from_ref(&none)
    );
    let tagged = "{\"text\": \"a\", \"entities\": null}\n";
    let tags = Task::TokenClassification;
    assert_eq!(
        read("a.jsonl", tagged, LabelUse::Reference, tags).unwrap(),
        [none]
    );
}

#[test]
fn what_is_wrong_is_named_with_file_and_line() {
    let refused = |name: &str, content: &str, extra: &str| {
        in_one_line(&records(name, content, extra, Task::Classification).unwrap_err())
    };
    for (name, content, extra, message) in [
        (
            "a.csv",
            "text,label\na,0\nb,bird\n",
            "",
            "line 3: `bird` is not a class",
        ),
        (
            "a.csv",
            "text,label\na,0\nb,2\n",
            "",
            "line 3: there is no class 2",
        ),
        ("a.csv", "text,label\na,0\nb,\n", "", "line 3: the label is empty"),
        (
            "a.csv",
            "words,label\na,0\n",
            "",
            "line 2: there is no column for the text",
        ),
        ("a.csv", "text,kind\na,0\n", "", "no column for the label"),
        // The first sample was taken for the names of the columns, and the second line was named.
        (
            "a.csv",
            "one long string of cliches,negative\ngood,positive\n",
            "",
            "line 1: it seems to be a sample, and not the names of the columns",
        ),
        ("a.tsv", "good\t1\nbad\t0\n", "", "`tsv` needs none"),
        (
            "a.csv",
            "text,label\na,0\n",
            "columns = { label = 'kind' }",
            "`kind`",
        ),
        (
            "a.jsonl",
            "{\"text\": \"a\", \"label\": 0}\n{\"text\": null, \"label\": 1}\n",
            "",
            "line 2: column `text`",
        ),
        (
            "a.jsonl",
            "{\"text\": 5, \"label\": 0}\n",
            "",
            "column `text` is not text",
        ),
        (
            "a.jsonl",
            "{\"image\": \"missing.png\", \"label\": 0}\n",
            "",
            "missing.png",
        ),
        (
            "a.csv",
            "text,label\na,0\n",
            "skip = 1",
            "0 samples after the first 1",
        ),
        (
            "a.csv",
            "text,label\na,0\n",
            "take = 2",
            "1 sample after the first 0",
        ),
    ] {
        let error = refused(name, content, extra);
        assert!(
            error.contains(message) && error.contains(name),
            "{content}: {error}"
        );
    }
}

#[test]
fn lines_after_the_last_sample_are_not_read() {
    let json = "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\nbroken\n";
    let samples = records("a.jsonl", json, "take = 2", Task::Classification).unwrap();
    assert_eq!(samples.len(), 2);
    assert!(records("a.jsonl", json, "", Task::Classification).is_err());
}

fn folder(files: &[(&str, &str)], extra: &str) -> Result<Samples, DataError> {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        write(dir.path(), name, content);
    }
    let mut spec: Folder = toml::from_str(&format!("folder = \"x\"\n{extra}")).unwrap();
    spec.folder = dir.path().to_owned();
    Samples::from_folder(&spec, &signature(), &reader(Task::Classification))
}

#[test]
fn directories_are_classes_and_alternate() {
    let files = [
        ("val/cat/1.png", "c1"),
        ("val/cat/2.JPG", "c2"),
        ("val/cat/3.jpeg", "c3"),
        ("val/dog/1.png", "d1"),
        ("val/dog/notes.md", ""),
        ("train/cat/0.png", "no"),
    ];
    let samples = folder(&files, "").unwrap();
    let bytes = |inputs: &Inputs| inputs[0].to_byte_strings().unwrap()[0].to_vec();
    let read: Vec<Vec<u8>> = samples.inputs.iter().map(bytes).collect();
    assert_eq!(read, [b"c1", b"d1", b"c2", b"c3"]);
    assert_eq!(samples.labels, [0, 1, 0, 0].map(Label::Class));
    let part = folder(&files, "skip = 1\ntake = 2\nsplit = 'val'").unwrap();
    assert_eq!(part.labels, [1, 0].map(Label::Class));
    let texts = folder(&[("test/dog/a.txt", "bark\n")], "split = 'test'").unwrap();
    assert_eq!(texts.inputs[0][0].to_texts().unwrap(), ["bark"]);
}

/// Of 9,500 and 500 files, a part had as many of both.
#[test]
fn a_part_of_a_folder_has_the_classes_as_often_as_the_whole() {
    let names: Vec<String> = (10..100)
        .map(|number| format!("val/cat/{number}.txt"))
        .chain((10..20).map(|number| format!("val/dog/{number}.txt")))
        .collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let dogs = |extra: &str| {
        let labels = folder(&files, extra).unwrap().labels;
        let dogs = labels.iter().filter(|label| **label == Label::Class(1)).count();
        (labels.len(), dogs)
    };
    assert_eq!(dogs("take = 20"), (20, 2));
    assert_eq!(dogs("skip = 50\ntake = 40"), (40, 4));
    assert_eq!(dogs(""), (100, 10));
}

#[test]
fn a_text_in_a_folder_of_images_is_no_sample_of_an_image_network() {
    let files = [
        "val/cat/1.png",
        "val/cat/readme.txt",
        "val/dog/1.png",
        "val/notes/a.txt",
    ];
    let read = |input: &str| {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            write(dir.path(), file, "x");
        }
        let spec: Folder = toml::from_str(&format!("folder = {:?}\nsplit = 'val'", dir.path())).unwrap();
        let signature = Signature {
            inputs: vec![InputSpec::optional(
                input,
                Datatype::Bytes,
                vec![Extent::Exactly(1)],
            )],
        };
        let labels = ["cat", "dog", "notes"].map(str::to_owned);
        Samples::from_folder(
            &spec,
            &signature,
            &LabelReader::new(Task::Classification, &labels),
        )
        .unwrap()
        .labels
    };
    assert_eq!(read(IMAGE_FILE), [0, 1].map(Label::Class));
    assert_eq!(read("text"), [0, 2].map(Label::Class));
}

/// The directory of a class that the split lacks shifted the numbers of those after it.
#[test]
fn a_missing_directory_is_no_shift_of_classes() {
    let read = |labels: &[&str], files: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            write(dir.path(), file, "x");
        }
        let spec: Folder = toml::from_str(&format!("folder = {:?}\nsplit = 'val'", dir.path())).unwrap();
        let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
        let reader = LabelReader::new(Task::Classification, &labels);
        Samples::from_folder(&spec, &signature(), &reader).map(|samples| samples.labels)
    };
    let unnamed = ["LABEL_0", "LABEL_1", "LABEL_2"];
    let all = read(&unnamed, &["val/a/1.png", "val/b/1.png", "val/c/1.png"]).unwrap();
    assert_eq!(all, [0, 1, 2].map(Label::Class));
    let error = in_one_line(&read(&unnamed, &["val/b/1.png", "val/c/1.png"]).unwrap_err());
    assert!(
        error.contains("2 directories of classes, and the model 3 classes"),
        "{error}"
    );
    let numbered = read(&unnamed, &["val/1/1.png", "val/2/1.png"]).unwrap();
    assert_eq!(numbered, [1, 2].map(Label::Class));
    // `1` was class 1 by its name, and `a` by its place.
    let mixed = read(&unnamed[..2], &["val/1/1.png", "val/a/1.png"]).unwrap();
    assert_eq!(mixed, [0, 1].map(Label::Class));
    let unknown = read(&[], &["val/10/1.png", "val/2/1.png", "val/a/1.png"]).unwrap();
    assert_eq!(unknown, [0, 1, 2].map(Label::Class));
    let named = read(&["a", "b", "c"], &["val/b/1.png", "val/c/1.png"]).unwrap();
    assert_eq!(named, [1, 2].map(Label::Class));
    assert!(
        read(&[], &["val/b/1.png"]).is_ok(),
        "the number of classes is unknown"
    );
}

#[test]
fn metadata_and_files_of_a_split_are_records() {
    let metadata = "{\"file_name\": \"a/1.png\", \"label\": \"dog\"}\n";
    let images = folder(
        &[("test/metadata.jsonl", metadata), ("test/a/1.png", "x")],
        "split = 'test'",
    )
    .unwrap();
    assert_eq!(images.inputs[0][0].name, IMAGE_FILE);
    assert_eq!(images.labels, [Label::Class(1)]);
    let shards = [
        ("data/validation-00000-of-00002.csv", "text,label\na,0\n"),
        ("data/validation-00001-of-00002.csv", "text,label\nb,1\n"),
        ("data/train.csv", "text,label\nc,1\n"),
    ];
    let both = folder(&shards, "").unwrap();
    assert_eq!(texts(&both, 0), ["a", "b"]);
    let origin = both.origins.of(1).unwrap();
    assert!(
        origin.ends_with("validation-00001-of-00002.csv, line 2"),
        "{origin}"
    );
    assert_eq!(both.origins.of(2), None);
    let files = [
        ("val/cat/1.png", "a"),
        ("val/dog/2.png", "b"),
        ("val/cat/3.png", "c"),
    ];
    let alternating = folder(&files, "skip = 1").unwrap().origins;
    let names = [alternating.of(0), alternating.of(1)].map(Option::unwrap);
    assert!(
        names[0].ends_with("dog/2.png") && names[1].ends_with("cat/3.png"),
        "{names:?}"
    );
    assert_eq!(
        folder(&[("dev.jsonl", "{\"text\": \"a\", \"label\": 1}")], "")
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_missing_split_and_parquet_say_what_to_do() {
    let error = in_one_line(&folder(&[("train/cat/1.png", "")], "").unwrap_err());
    assert!(
        error.contains("`validation`") && error.contains("set `split` to `train`"),
        "{error}"
    );
    let hub = in_one_line(&folder(&[("data/train-00000-of-00001.jsonl", "{}")], "").unwrap_err());
    assert!(hub.contains("set `split` to `train`"), "{hub}");
    let error = in_one_line(&folder(&[("data/validation-0.parquet", "PAR1")], "").unwrap_err());
    assert!(
        error.contains("validation-0.parquet") && error.contains("not a valid Parquet file"),
        "{error}"
    );
    let saved = [
        ("validation/data-0.arrow", "ARROW1"),
        ("validation/dataset_info.json", "{}"),
        ("validation/state.json", "{}"),
    ];
    let error = in_one_line(&folder(&saved, "").unwrap_err());
    assert!(error.contains("to_parquet"), "{error}");
    let other = in_one_line(&folder(&[("val/cat/1.png", ""), ("val/cat/2.TIFF", "")], "").unwrap_err());
    assert!(
        other.contains("2.TIFF") && other.contains("that of a PNG, JPEG"),
        "{other}"
    );
    let below = folder(&[("val/cat/1.png", ""), ("val/cat/more/2.png", "")], "");
    let below = in_one_line(&below.unwrap_err());
    assert!(
        below.contains("cat/more") && below.contains("move them up"),
        "{below}"
    );
    let unknown = in_one_line(&folder(&[("test/bird/1.png", "")], "split = 'test'").unwrap_err());
    assert!(unknown.contains("`bird` is not a class"), "{unknown}");
}

/// Samples of a file that `tests/parquet/make_parquet.py` wrote.
fn parquet(name: &str, extra: &str) -> Result<Samples, DataError> {
    let mut spec: Records = toml::from_str(&format!("file = \"x\"\n{extra}")).unwrap();
    spec.file = Path::new(kaskade_testkit::ROOT)
        .join("app/tests/parquet")
        .join(name);
    Samples::from_records(&spec, &signature(), &reader(Task::Classification))
}

#[test]
fn parquet_files_of_datasets_and_pandas_are_read() {
    let samples = parquet("texts.parquet", "").unwrap();
    assert_eq!(texts(&samples, 0), ["naïve", "b\nc"]);
    assert_eq!(samples.labels, [Label::Class(1), Label::Class(0)]);
    assert!(samples.origins.of(1).unwrap().ends_with("texts.parquet, line 2"));
    let samples = parquet("zstd.parquet", "skip = 2").unwrap();
    assert_eq!(texts(&samples, 0), ["bad"]);
    let error = in_one_line(&parquet("zstd.parquet", "").unwrap_err());
    assert!(
        error.contains("line 2") && error.contains("`sentence`"),
        "{error}"
    );
    let error = in_one_line(&parquet("brotli.parquet", "").unwrap_err());
    assert!(
        error.contains("compressed by Brotli") && !error.contains("line 1"),
        "{error}"
    );
    for name in ["gzip.parquet", "lz4.parquet"] {
        let samples = parquet(name, "skip = 2").unwrap();
        assert_eq!(texts(&samples, 0), ["bad"], "{name}");
    }
}

/// The numbers were read as those of the model, whose order is another one.
#[test]
fn numbers_mean_the_classes_that_a_parquet_file_names() {
    let samples = parquet("labels.parquet", "take = 2").unwrap();
    assert_eq!(samples.labels, [Label::Class(1), Label::Class(0)]);
    let error = in_one_line(&parquet("labels.parquet", "").unwrap_err());
    assert!(
        error.contains("line 3") && error.contains("rows without one"),
        "{error}"
    );
    let read = |labels: &[&str], task: Task| {
        let columns = if task == Task::TokenClassification {
            "columns = { text = 'tokens' }"
        } else {
            ""
        };
        let mut spec: Records = toml::from_str(&format!("file = \"x\"\ntake = 2\n{columns}")).unwrap();
        spec.file = Path::new(kaskade_testkit::ROOT).join("app/tests/parquet/labels.parquet");
        let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
        Samples::from_records(&spec, &signature(), &LabelReader::new(task, &labels))
    };
    let unnamed = read(&["LABEL_0", "LABEL_1"], Task::Classification).unwrap();
    assert_eq!(unnamed.labels, [Label::Class(0), Label::Class(1)]);
    assert!(unnamed.origins.other_names().is_empty());
    let others = read(&["bark", "purr"], Task::Classification).unwrap();
    assert_eq!(others.labels, [Label::Class(0), Label::Class(1)]);
    assert_eq!(others.origins.other_names(), ["Dog", "cat"]);
    let partly = in_one_line(&read(&["cat", "owl"], Task::Classification).unwrap_err());
    assert!(
        partly.contains("`Dog` is not a class: the model's are cat, owl"),
        "{partly}"
    );
    let tags = read(
        &["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
        Task::TokenClassification,
    )
    .unwrap();
    assert_eq!(tags.labels, [Label::text("0-4 LOC"), Label::text("2-5 PER")]);
}

/// Texts became empty ones.
#[test]
fn texts_that_a_parquet_file_holds_as_bytes_are_read() {
    let samples = parquet("binary.parquet", "take = 2").unwrap();
    assert_eq!(texts(&samples, 0), ["good", "naïve"]);
    assert_eq!(samples.labels, [Label::Class(1), Label::Class(0)]);
    let error = in_one_line(&parquet("binary.parquet", "").unwrap_err());
    assert!(
        error.contains("line 3") && error.contains("`text` is not text"),
        "{error}"
    );
}

#[test]
fn images_inside_a_parquet_file_are_read() {
    let samples = parquet("images.parquet", "").unwrap();
    assert_eq!(samples.labels, [Label::Class(0), Label::Class(1)]);
    let bytes: Vec<&[u8]> = samples
        .inputs
        .iter()
        .map(|inputs| inputs[0].data.as_ref())
        .collect();
    // BYTES elements begin with their length.
    assert!(bytes[0][4..].starts_with(b"\x89PNG") && bytes[1][4..].starts_with(b"GIF8"));
}

#[test]
fn a_record_may_hold_a_data_url() {
    let json = r#"{"image": "data:image/png;base64,iVBORw0KGgo=", "label": 1}"#;
    let samples = records("a.jsonl", json, "", Task::Classification).unwrap();
    assert!(samples.inputs[0][0].data[4..].starts_with(b"data:image/png"));
}

/// The pair was left out because of a column `text`, and the model was asked its right answer.
#[test]
fn the_column_of_the_right_answer_is_no_request() {
    let json = "{\"question\": \"q\", \"context\": \"c\", \"text\": \"a\"}\n";
    let label = "columns = { label = 'TEXT' }";
    let pair = records("a.jsonl", json, label, Task::QuestionAnswering).unwrap();
    assert_eq!(
        (texts(&pair, 0), texts(&pair, 1)),
        (vec!["q".to_owned()], vec!["c".to_owned()])
    );
    assert_eq!(pair.labels, [Label::text("a")]);
    let json = "{\"sentence\": \"s\", \"text\": \"dog\"}\n";
    let one = records("a.jsonl", json, label, Task::Classification).unwrap();
    assert_eq!(texts(&one, 0), ["s"]);
    let none = records("a.jsonl", "{\"text\": \"dog\"}\n", label, Task::Classification);
    assert!(in_one_line(&none.err().unwrap()).contains("text"));
}

/// The names of any column were said to be other ones than the model's.
#[test]
fn names_of_other_columns_than_the_label_are_not_compared() {
    let labels = reader(Task::Classification);
    let two = |names: [&str; 2]| names.map(str::to_owned).to_vec();
    let record = Record {
        line: 1,
        values: serde_json::from_str(r#"{"text": "a", "coarse": 0, "fine": 1}"#).unwrap(),
        files: Vec::new(),
        class_names: std::sync::Arc::new(
            [
                ("coarse".to_owned(), two(["fish", "bird"])),
                ("fine".to_owned(), two(["dog", "cat"])),
            ]
            .into(),
        ),
    };
    let other_names = |columns: &str| {
        let columns: Columns = toml::from_str(columns).unwrap();
        let mut collector = collector(0, None, &signature(), &labels);
        let named = collector.named_columns(&record, &columns);
        assert_eq!(named, ["fine"]);
        collector.samples.origins.other_names().to_vec()
    };
    assert!(other_names("label = 'fine'").is_empty());
    assert_eq!(other_names("label = 'coarse'"), ["fish", "bird"]);
}
