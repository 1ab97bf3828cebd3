//! `kaskade validate`: checks files.

use std::path::{Path, PathBuf};

use anyhow::bail;
use kaskade::models::{Loaded, Signature};
use kaskade_app::config::{App, ConfigError};
use kaskade_app::data::{DataError, Samples};
use kaskade_app::family::{ClassMismatch, Classes, Family, FamilyError, VariantSpec};
use kaskade_app::planning::{initial, pipelines};
use kaskade_app::report::progress::say;
use kaskade_app::report::{in_one_line, units};
use kaskade_app::serving::gateway;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use serde::Serialize;
use serde_json::json;

use crate::output;

/// Checks app files, plans, profiles and pipelines.
///
/// Every problem is printed with its field or line. The plan that an app names is checked too. The files of checkpoints are
/// opened and the names of their classes compared, but their weights are read only with `--load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    named: Named,
    /// Load every variant of the apps too, one after the other, and read the validation and the test set for it: finds what only loading
    /// shows, such as missing tensors, settings of a checkpoint that are not supported, chat templates that cannot be parsed, and samples that
    /// a variant does not take. Labels may be missing, and sets in the folder of an unset variable are left out.
    #[arg(long)]
    load: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The files; at least one.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Named {
    /// Files to check: TOML of apps, JSON of plans and profiles, either of pipelines.
    files: Vec<PathBuf>,
    /// TOML file of an app to check, whatever its name ends in.
    #[arg(long = "app", id = "apps", value_name = "FILE")]
    apps: Vec<PathBuf>,
}

/// Beginning of a problem with a data set: the table of the app's file.
const DATA: &str = "data.";

/// Remedy of a file that cannot be read.
const NAME_A_FILE: &str = "name an app's TOML file, or the JSON file of a plan, a profile or a pipeline";

/// Result of one file.
#[derive(Debug, Serialize)]
struct Finding {
    file: PathBuf,
    kind: &'static str,
    problems: Vec<String>,
}

/// Checks and prints every file, and fails if one has a problem.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let files = args.named.files.iter().map(|file| check(file, args.load));
    let apps = args
        .named
        .apps
        .iter()
        .map(|file| finding(file, ("app", check_app(file, args.load))));
    let findings: Vec<Finding> = files.chain(apps).collect();
    if args.json {
        output::print_json(&json!({ "files": findings }))?;
    } else {
        for finding in &findings {
            output::print(&as_text(finding))?;
        }
    }
    let bad = findings
        .iter()
        .filter(|finding| !finding.problems.is_empty())
        .count();
    if bad > 0 {
        bail!(
            "{bad} of {} cannot be used; the problems are above",
            units::count_of(findings.len(), "file", "files")
        );
    }
    Ok(())
}

fn as_text(finding: &Finding) -> String {
    let file = finding.file.display();
    if finding.problems.is_empty() {
        return format!("{file}: a valid {}", finding.kind);
    }
    let lines = finding
        .problems
        .iter()
        .map(|problem| format!("{file}: {problem}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn check(file: &Path, load: bool) -> Finding {
    let checked = if file.extension().is_none_or(|extension| extension != "toml") {
        check_json(file)
    } else if is_toml_pipeline(file) {
        ("pipeline", check_pipeline(file))
    } else {
        ("app", check_app(file, load))
    };
    finding(file, checked)
}

fn finding(file: &Path, (kind, problems): (&'static str, Vec<String>)) -> Finding {
    Finding {
        file: file.to_owned(),
        kind,
        problems,
    }
}

fn check_app(file: &Path, load: bool) -> Vec<String> {
    match App::load(file) {
        Ok(app) => {
            let plan = initial::of(&app).err();
            let plan = plan.map(|error| format!("plan: {}", in_one_line(&error)));
            let files = gateway::problems(&app).into_iter().chain(plan);
            let texts = Family::from_app(&app).check_tokenizers(&app.data).err();
            let texts = texts.map(|error| in_one_line(&error));
            files.chain(check_variants(&app, load)).chain(texts).collect()
        }
        Err(ConfigError::Inconsistent { problems, .. }) => problems,
        // Errors of a family file name that file.
        Err(ConfigError::Malformed { path, line, reason }) if path == file => {
            vec![format!("line {line}: {reason}")]
        }
        Err(ConfigError::Unreadable { path, reason }) if path == file => {
            vec![format!("cannot be read: {reason}; {NAME_A_FILE}")]
        }
        Err(error) => vec![error.to_string()],
    }
}

/// Opens or loads every variant, and returns why some cannot be served. What differs without being wrong is printed on standard error.
fn check_variants(app: &App, load: bool) -> Vec<String> {
    let family = Family::from_app(app);
    for remark in family.entity_label_warnings() {
        say(&format!("note: {remark}"));
    }
    // The tasks of a pipeline have classes of their own, and no samples.
    let mut loaded = (load && app.pipeline.is_none()).then(LoadedFamily::default);
    let mut problems: Vec<String> = Vec::new();
    for member in family.members.iter().filter(|member| !member.is_attached()) {
        let reasons = match &mut loaded {
            Some(loaded) => loaded.check(app, member),
            None if load => check_stage(member).into_iter().collect(),
            None => check_files(member).into_iter().collect(),
        };
        problems.extend(
            reasons
                .iter()
                .map(|reason| format!("variant `{}`: {reason}", member.name)),
        );
    }
    problems
}

/// Loads a stage of a pipeline, and returns why it cannot be served.
fn check_stage(member: &VariantSpec) -> Option<String> {
    match member.load(member.device) {
        Ok(loaded) => check_texts(member, &loaded.model.signature()),
        Err(error) => Some(in_one_line(&error)),
    }
}

/// Opens the files of a variant, and returns why it cannot be served beside the others. A variant before it may be on another host.
fn check_files(member: &VariantSpec) -> Option<String> {
    match member.check_classes() {
        Ok(())
        | Err(FamilyError::Classes {
            source: ClassMismatch::Unknown { .. },
            ..
        }) => None,
        Err(FamilyError::Classes { source, .. }) => Some(source.to_string()),
        Err(error) => Some(in_one_line(&error)),
    }
}

/// What the variants that were loaded have in common.
#[derive(Default)]
struct LoadedFamily {
    classes: Classes,
    /// The samples, by the name of their set, once the first variant is loaded: as `profile`, they are read once.
    sets: Option<Vec<(&'static str, Samples)>>,
}

impl LoadedFamily {
    /// Loads the next variant, and returns why it cannot be served or measured.
    fn check(&mut self, app: &App, member: &VariantSpec) -> Vec<String> {
        let loaded = match member.load(member.device) {
            Ok(loaded) => loaded,
            Err(FamilyError::Classes { source, .. }) => return vec![source.to_string()],
            Err(error) => return vec![in_one_line(&error)],
        };
        if let Err(error) = self.classes.check(&member.name, &loaded.info) {
            return vec![error.to_string()];
        }
        let (sets, mut problems) = match self.sets.take() {
            Some(sets) => (sets, Vec::new()),
            None => read_data(app, &loaded),
        };
        // The next variant answers what is too long for this one.
        let is_last = app
            .variants
            .last()
            .is_some_and(|last| last.name.as_str() == member.name);
        problems.extend(check_texts(member, &loaded.model.signature()));
        problems.extend(sets.iter().filter_map(|(name, samples)| {
            let error = samples.check_for(loaded.model.as_ref(), !is_last).err()?;
            Some(format!("{DATA}{name}: {}", in_one_line(&error)))
        }));
        self.sets = Some(sets);
        problems
    }
}

/// Returns why a variant cannot answer requests with texts or chats, as far as its files show. What may be intended is printed on standard
/// error.
fn check_texts(member: &VariantSpec, signature: &Signature) -> Option<String> {
    let takes = |name: &str| signature.inputs.iter().any(|input| input.name == name);
    if takes("messages") {
        let checked = member.check_chat_template();
        checked
            .map(|remark| {
                if let Some(remark) = remark {
                    say(&format!("note: variant `{}`: {remark}", member.name));
                }
            })
            .err()
    } else if takes("input_ids") && !takes("text") {
        let unused = member.unused_vocabulary();
        if unused.is_none() {
            say(&format!(
                "note: variant `{}` takes tokens (`input_ids`) and no texts, because its checkpoint has no tokenizer",
                member.name
            ));
        }
        unused
    } else {
        None
    }
}

/// Reads the data sets of an app for a model, with the reasons why some cannot be used. A set in the folder of an unset variable is left out.
fn read_data(app: &App, loaded: &Loaded) -> (Vec<(&'static str, Samples)>, Vec<String>) {
    let sets = [("validation", &app.data.validation), ("test", &app.data.test)];
    let (mut read, mut problems) = (Vec::new(), Vec::new());
    for (name, set) in sets {
        let Some(set) = set else {
            continue;
        };
        match Samples::read_labelled_or_not(set, loaded) {
            Ok(samples) => read.push((name, samples)),
            Err(DataError::UnsetVariable { .. }) => {}
            Err(error) => problems.push(format!("{DATA}{name}: {}", in_one_line(&error))),
        }
    }
    (read, problems)
}

/// Whether a TOML file has the tasks of a pipeline at its top, where an app has none.
fn is_toml_pipeline(file: &Path) -> bool {
    let table = std::fs::read_to_string(file).ok();
    let table = table.and_then(|text| text.parse::<toml::Table>().ok());
    table.is_some_and(|table| table.contains_key("tasks"))
}

fn check_pipeline(file: &Path) -> Vec<String> {
    let problem = pipelines::read(Some(file), None).err();
    let problem = problem.map(|error| in_one_line(&error));
    // The finding names the file already.
    let prefix = format!("{}: ", file.display());
    let problem = problem.map(|said| said.strip_prefix(&prefix).unwrap_or(&said).to_owned());
    problem.into_iter().collect()
}

/// Returns the problem of a file that is broken off or was changed by hand.
fn not_json(error: &serde_json::Error) -> String {
    format!(
        "is not JSON: {error}; correct it there, or write the file again: `kaskade plan` writes plans and `kaskade profile` profiles. An \
         app's file ends in .toml, or is named with `--app`"
    )
}

fn check_json(file: &Path) -> (&'static str, Vec<String>) {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return ("file", vec![format!("cannot be read: {error}; {NAME_A_FILE}")]),
    };
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let value: serde_json::Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => return ("file", vec![not_json(&error)]),
    };
    // Only a plan has gears, only a profile has samples, and only a pipeline has tasks at its top.
    if value.get("tasks").is_some() {
        return ("pipeline", check_pipeline(file));
    }
    if value.get("gears").is_some() {
        let problems = Plan::from_json(text).err().map(|error| error.to_string());
        return ("plan", problems.into_iter().collect());
    }
    if value.get("samples").is_some() {
        let problems = Profile::from_json(text).err().map(|error| error.to_string());
        return ("profile", problems.into_iter().collect());
    }
    let problem = "is neither a plan (`gears`), a profile (`samples`) nor a pipeline (`tasks`); an app's file ends in .toml";
    ("file", vec![problem.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_is_found_with_its_line_and_what_writes_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.json");
        std::fs::write(&file, "{\n\"version\": 1,\n").unwrap();
        let found = check(&file, false);
        assert_eq!((found.kind, found.problems.len()), ("file", 1));
        for said in ["line 3", "`kaskade plan`", "`kaskade profile`"] {
            assert!(found.problems[0].contains(said), "{found:?}");
        }
    }

    /// Only `--load` compared the classes.
    #[test]
    fn other_classes_are_found_without_loading() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/fixtures/bert-classification");
        let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let mut variants = String::new();
        for (name, classes) in [("small", ["a", "b", "c"]), ("large", ["b", "d", "c"])] {
            let dir = folder.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            config["id2label"] = serde_json::json!({"0": classes[0], "1": classes[1], "2": classes[2]});
            std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
            std::fs::copy(fixture.join("model.safetensors"), dir.join("model.safetensors")).unwrap();
            variants.extend([format!("[[variants]]\nname = \"{name}\"\ndir = \"{name}\"\n")]);
        }
        let file = folder.path().join("app.toml");
        let app = format!("name = \"a\"\nplan = {{ single = \"small\" }}\n{variants}");
        std::fs::write(&file, app).unwrap();
        let problems = check_app(&file, false);
        let [problem] = &problems[..] else {
            panic!("{problems:?}");
        };
        assert!(
            problem.starts_with("variant `large`: its classes are `b`, `d`"),
            "{problem}"
        );
    }
}
