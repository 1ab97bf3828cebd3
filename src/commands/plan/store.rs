//! `kaskade plan apply|get|history|rollback`: the plans of a running app.

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade_actors::plan::store::HistoryEntry;
use kaskade_app::config::App;
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::deploy::{AppliedPlan, DeployError, Deployment, Progress, RolledBackPlan};
use kaskade_app::planning::initial;
use kaskade_app::report;
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving;
use kaskade_policy::plan::Plan;
use serde::Serialize;
use serde_json::json;

use crate::app_address::TargetArgs;
use crate::args::{Broker, Overwrite};
use crate::output;

/// How a written plan is waited for.
#[derive(Debug, clap::Args)]
struct Waiting {
    /// Do not wait until the ingresses admit requests under the plan.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait for that.
    #[arg(long, value_name = "TIME", default_value = "2m", conflicts_with = "no_wait")]
    timeout: HumanDuration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Writes a plan to the plan store of an app, and waits until every ingress admits requests under it. The processes of the app load
/// what it needs and continue to serve the previous plan until then.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// Plan file; it names the app.
    #[arg(value_name = "PLAN")]
    file: PathBuf,
    /// The TOML file of the app, for its `[nats]` settings and to check the plan against its variants and workers.
    #[arg(long = "app", value_name = "FILE")]
    app_file: Option<PathBuf>,
    /// Write only if this is the newest epoch.
    #[arg(long, value_name = "EPOCH")]
    expect: Option<u64>,
    /// Create the plan store of an app that has none and of which no process runs; `--app` does so too.
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    wait: Waiting,
    #[command(flatten)]
    broker: Broker,
}

/// Prints the newest plan of an app, or an older one.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    target: TargetArgs,
    /// Epoch of the plan [default: the newest].
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
    /// Plan file to write, instead of printing the plan.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print JSON: the plan with its epoch and the time at which it was written.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Lists the plans in the plan store of an app, the newest of them last.
#[derive(Debug, clap::Args)]
pub(crate) struct History {
    #[command(flatten)]
    target: TargetArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// Writes an older plan of an app as a new epoch, and waits as `kaskade plan apply` does.
#[derive(Debug, clap::Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    target: TargetArgs,
    /// Epoch of the plan to return to [default: that of the newest other plan under which a running ingress has admitted requests;
    /// if none is known, of the newest other plan].
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
    #[command(flatten)]
    wait: Waiting,
    #[command(flatten)]
    broker: Broker,
}

/// A written plan, for `--json`.
#[derive(Debug, Serialize)]
struct Applied {
    epoch: u64,
    replaced: Option<u64>,
    /// The epoch whose plan it is, after a rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    rolled_back_to: Option<u64>,
    /// Whether a running ingress has admitted requests under that epoch, after a rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    has_served: Option<bool>,
    /// Whether every ingress admits requests under it; null if that was not waited for.
    admitted: Option<bool>,
}

/// A stored plan, for `--json`.
#[derive(Debug, Serialize)]
struct StoredPlan<'a> {
    epoch: u64,
    written_at: String,
    plan: &'a Plan,
}

/// A row of the history.
#[derive(Debug, Serialize)]
struct Row {
    epoch: u64,
    written_at: String,
    made_by: String,
    gears: usize,
    replicas: usize,
}

impl From<&HistoryEntry> for Row {
    fn from(past: &HistoryEntry) -> Self {
        let plan = &past.stored.plan;
        Self {
            epoch: past.stored.epoch,
            written_at: written_at(past),
            made_by: plan.made_by.clone(),
            gears: plan.gears.len(),
            replicas: plan.placement.len(),
        }
    }
}

fn written_at(past: &HistoryEntry) -> String {
    humantime::format_rfc3339_seconds(past.written_at).to_string()
}

/// Writes a plan and waits for it.
pub(crate) fn apply(args: &Apply) -> anyhow::Result<()> {
    let app = args.app_file.as_deref().map(App::load_to_plan).transpose()?;
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("{} cannot be read", args.file.display()))?;
    let plan = Plan::from_json(&text).with_context(|| format!("{}", args.file.display()))?;
    if let Some(app) = &app {
        initial::check(app, &plan)?;
    }
    let connection = args.broker.connection()?;
    let bus = match &app {
        Some(app) => connection.client_of(app, "plan"),
        None => connection.client(&plan.app, "plan"),
    };
    serving::runtime()?.block_on(async {
        let mut deployment = Deployment::open(&plan.app, bus).await?;
        if !args.create && app.is_none() && !deployment.is_known().await? {
            let app = plan.app.clone();
            return Err(DeployError::UnknownApp { app }.into());
        }
        let written = deployment.apply(&plan, args.expect).await?;
        finish(&mut deployment, written, None, &args.wait).await?;
        deployment.close().await;
        Ok(())
    })
}

/// Prints a plan, or writes it to a file.
pub(crate) fn get(args: &Get) -> anyhow::Result<()> {
    args.overwrite.check(args.out.iter().map(PathBuf::as_path))?;
    let target = args.target.read(&args.broker)?;
    let past = serving::runtime()?.block_on(async {
        let deployment = Deployment::open(target.name(), target.client("plan")).await?;
        let past = deployment.get(args.epoch).await;
        deployment.close().await;
        anyhow::Ok(past?)
    })?;
    let plan = &past.stored.plan;
    if let Some(path) = &args.out {
        report::write_file(path, &plan.to_json()?)?;
    }
    if args.json {
        return output::print_json(&StoredPlan {
            epoch: past.stored.epoch,
            written_at: written_at(&past),
            plan,
        });
    }
    match &args.out {
        Some(path) => output::print(&format!(
            "epoch {}, written to {}",
            past.stored.epoch,
            path.display()
        )),
        None => output::print(&plan.to_json()?),
    }
}

/// Prints the history.
pub(crate) fn history(args: &History) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    let past = serving::runtime()?.block_on(async {
        let deployment = Deployment::open(target.name(), target.client("plan")).await?;
        let past = deployment.history().await;
        deployment.close().await;
        anyhow::Ok(past?)
    })?;
    if past.is_empty() {
        let app = target.name().to_owned();
        return Err(DeployError::NoPlan { app }.into());
    }
    let rows: Vec<Row> = past.iter().map(Row::from).collect();
    if args.json {
        return output::print_json(&json!({ "plans": rows }));
    }
    let heads = [
        ("epoch", Align::Right),
        ("written at", Align::Left),
        ("made by", Align::Left),
        ("gears", Align::Right),
        ("replicas", Align::Right),
    ];
    let cells = rows.into_iter().map(|row| {
        [
            row.epoch.to_string(),
            row.written_at,
            row.made_by,
            row.gears.to_string(),
            row.replicas.to_string(),
        ]
    });
    output::print(&table(heads, cells))
}

/// Writes an older plan again and waits for it.
pub(crate) fn rollback(args: &Rollback) -> anyhow::Result<()> {
    let target = args.target.read(&args.broker)?;
    serving::runtime()?.block_on(async {
        let mut deployment = Deployment::open(target.name(), target.client("plan")).await?;
        let back = deployment.roll_back(args.epoch).await?;
        finish(&mut deployment, back.written, Some(back), &args.wait).await?;
        deployment.close().await;
        Ok(())
    })
}

/// Waits for a written plan as asked, and prints the outcome.
async fn finish(
    deployment: &mut Deployment,
    written: AppliedPlan,
    back: Option<RolledBackPlan>,
    wait: &Waiting,
) -> anyhow::Result<()> {
    let app = deployment.app().to_owned();
    let what = stored(&app, written, back);
    if !wait.no_wait {
        say(&what);
        let shown = |progress: &Progress| {
            if let Some(line) = missing(&app, written.epoch, progress) {
                say(&line);
            }
        };
        deployment
            .admitted(written.epoch, wait.timeout.duration(), shown)
            .await?;
    }
    if wait.json {
        return output::print_json(&Applied {
            epoch: written.epoch,
            replaced: written.replaced,
            rolled_back_to: back.map(|back| back.older),
            has_served: back.map(|back| back.has_served),
            admitted: (!wait.no_wait).then_some(true),
        });
    }
    let done = if wait.no_wait {
        what
    } else {
        format!("every ingress admits requests under epoch {}", written.epoch)
    };
    output::print(&done)
}

fn stored(app: &str, written: AppliedPlan, back: Option<RolledBackPlan>) -> String {
    let replaced = written
        .replaced
        .map_or_else(String::new, |epoch| format!(", after epoch {epoch}"));
    let older = back.map_or_else(String::new, |back| {
        format!(" with the plan of epoch {}", back.older)
    });
    let doubt = back
        .filter(|back| !back.has_served)
        .map_or_else(String::new, |back| {
            format!("; it is not known whether epoch {} has served", back.older)
        });
    format!(
        "stored as epoch {} of app `{app}`{older}{replaced}{doubt}",
        written.epoch
    )
}

/// Returns a line about the ingresses that are missing; `None` while none has had the time to report.
fn missing(app: &str, epoch: u64, progress: &Progress) -> Option<String> {
    if progress.silent {
        return Some(format!(
            "no ingress of app `{app}` is running; a process adopts the plan when it starts (`kaskade serve`). Waiting; Ctrl-C ends the wait, \
             the plan stays stored"
        ));
    }
    if progress.ingresses == 0 {
        return None;
    }
    let loading = progress.missing_text();
    if let Some(missing) = loading.as_ref().filter(|_| progress.is_admitted) {
        return Some(format!(
            "epoch {epoch} is admitted; waiting for the workers to load {missing}"
        ));
    }
    if progress.behind.is_empty() {
        let ingresses = units::count_of(progress.ingresses, "ingress admits", "ingresses admit");
        return Some(format!("{ingresses} epoch {epoch} so far"));
    }
    let behind = progress.behind.iter();
    let behind: Vec<String> = behind
        .map(|one| format!("{} (epoch {})", one.ingress, one.admits))
        .collect();
    let loading = loading.map_or_else(String::new, |missing| format!("; not loaded yet: {missing}"));
    Some(format!(
        "waiting for {} of {}: {}{loading}",
        behind.len(),
        units::count_of(progress.ingresses, "ingress", "ingresses"),
        behind.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kaskade_policy::rollout::LaggingIngress;

    use super::*;

    #[test]
    fn progress_names_the_ingresses_that_are_missing() {
        let behind = LaggingIngress {
            ingress: "i-2".to_owned(),
            admits: 7,
        };
        let progress = Progress {
            ingresses: 3,
            behind: vec![behind],
            is_admitted: false,
            silent: false,
            missing: BTreeMap::new(),
        };
        let missing = |progress: &Progress| missing("digits", 8, progress);
        assert_eq!(
            missing(&progress).as_deref(),
            Some("waiting for 1 of 3 ingresses: i-2 (epoch 7)")
        );
        // Ingresses wait for a worker that does not run; only they were named.
        let replicas = BTreeMap::from([("w".to_owned(), vec!["large-0".to_owned()])]);
        let unloaded = Progress {
            missing: replicas.clone(),
            ..progress
        };
        let line = missing(&unloaded).unwrap();
        assert!(
            line.ends_with("i-2 (epoch 7); not loaded yet: `large-0` on worker `w`"),
            "{line}"
        );
        let alone = Progress {
            ingresses: 1,
            behind: Vec::new(),
            is_admitted: false,
            silent: false,
            missing: BTreeMap::new(),
        };
        let line = missing(&alone);
        assert_eq!(line.as_deref(), Some("1 ingress admits epoch 8 so far"));
        let unserved = Progress {
            is_admitted: true,
            missing: replicas,
            ..alone.clone()
        };
        let line = missing(&unserved).unwrap();
        assert!(line.ends_with("to load `large-0` on worker `w`"), "{line}");
        // The plan of another app was stored, and the wait of two minutes began without a word.
        let none = Progress {
            ingresses: 0,
            ..alone
        };
        assert_eq!(missing(&none), None);
        let silent = Progress { silent: true, ..none };
        let line = missing(&silent).unwrap();
        assert!(line.contains("no ingress of app `digits` is running"), "{line}");
    }

    #[test]
    fn the_outcome_names_the_epochs() {
        let written = AppliedPlan {
            epoch: 8,
            replaced: Some(7),
        };
        assert_eq!(
            stored("digits", written, None),
            "stored as epoch 8 of app `digits`, after epoch 7"
        );
        let back = |has_served| RolledBackPlan {
            older: 3,
            has_served,
            written,
        };
        assert_eq!(
            stored("digits", written, Some(back(true))),
            "stored as epoch 8 of app `digits` with the plan of epoch 3, after epoch 7"
        );
        let unknown = stored("digits", written, Some(back(false)));
        assert!(
            unknown.ends_with("; it is not known whether epoch 3 has served"),
            "{unknown}"
        );
    }
}
