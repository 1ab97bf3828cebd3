//! Flags that several commands share, and their conversion to the types of the application library.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kaskade_app::config::App;
use kaskade_app::config::guarantee::Share;
use kaskade_app::load::trace_args::{TraceArgs, positive};
use kaskade_app::planning::PlanningError;
use kaskade_app::planning::pipelines;
use kaskade_app::report;
use kaskade_app::serving::Connection;
use kaskade_planners::cascade::Objective;
use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::Dropping;
use kaskade_simulator::trace::Trace;

use crate::failure::Usage;

/// Connection to the broker.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Broker {
    /// URL of a nats-server, version 2.10 or newer. It overrides `nats.url` of app.toml.
    #[arg(long, value_name = "URL", env = "NATS_URL")]
    nats: Option<String>,
    /// File with the nkey seed of the user to connect as; `kaskade auth init` writes it. It overrides `nats.nkey` of app.toml.
    #[arg(long, value_name = "FILE", env = "NATS_NKEY")]
    nkey: Option<PathBuf>,
    /// `.creds` file of the user to connect as, for servers with JWT accounts. It overrides `nats.credentials` of app.toml.
    #[arg(long, value_name = "FILE", env = "NATS_CREDS")]
    creds: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, for a server at `tls://`. It overrides `nats.ca` of app.toml.
    #[arg(long, value_name = "FILE", env = "NATS_CA")]
    nats_ca: Option<PathBuf>,
    /// Certificate of this client, for a server that verifies clients by TLS. It overrides `nats.certificate` of app.toml.
    #[arg(long, value_name = "FILE", env = "NATS_CERT", requires = "nats_key")]
    nats_cert: Option<PathBuf>,
    /// Key of the certificate of this client.
    #[arg(long, value_name = "FILE", env = "NATS_KEY", requires = "nats_cert")]
    nats_key: Option<PathBuf>,
}

/// Returns whether the value of a flag is that of its environment variable.
pub(crate) fn is_variable<T: AsRef<OsStr>>(value: Option<&T>, variable: &str) -> bool {
    let set = std::env::var_os(variable);
    value.is_some_and(|value| set.is_some_and(|set| set == value.as_ref()))
}

impl Broker {
    /// Returns the connection to the broker. Of two users, the one of a flag takes precedence over the one of an environment variable.
    ///
    /// # Errors
    /// When two users are named by flags, or by variables.
    pub(crate) fn connection(&self) -> Result<Connection, Usage> {
        let mut connection = Connection {
            url: self.nats.clone(),
            nkey: self.nkey.clone(),
            credentials: self.creds.clone(),
            ca: self.nats_ca.clone(),
            certificate: self.nats_cert.clone().zip(self.nats_key.clone()),
            ..Connection::default()
        };
        if self.nkey.is_some() && self.creds.is_some() {
            match (
                is_variable(self.nkey.as_ref(), "NATS_NKEY"),
                is_variable(self.creds.as_ref(), "NATS_CREDS"),
            ) {
                (true, false) => connection.nkey = None,
                (false, true) => connection.credentials = None,
                _ => {
                    return Err(Usage::new(
                        "`--nkey` (`NATS_NKEY`) and `--creds` (`NATS_CREDS`) each name a user; give one of them",
                    ));
                }
            }
        }
        Ok(connection)
    }

    /// Checks that no nats-server is named together with an address for the embedded broker. Returns the connection to the latter: the
    /// variable `NATS_URL` does not count beside a flag.
    ///
    /// # Errors
    /// When `--nats` is given, and as [`Broker::connection`].
    pub(crate) fn embedded(&self, listen: SocketAddr) -> Result<Connection, Usage> {
        if self.nats.is_some() && !is_variable(self.nats.as_ref(), "NATS_URL") {
            return Err(Usage::new(
                "`--listen` is the address of the embedded broker, and `--nats` names a nats-server; give one of them",
            ));
        }
        Ok(Connection {
            url: None,
            listen: Some(listen),
            ..self.connection()?
        })
    }
}

/// Returns the parser of a policy for late requests; its names are those of plans and app.toml.
pub(crate) fn dropping() -> impl TypedValueParser<Value = Dropping> {
    let values = [
        ("none", "They continue"),
        (
            "last_task",
            "They are dropped before the last task if it takes longer than the time that is left",
        ),
        (
            "per_task",
            "They are dropped after any task whose budget they exceeded",
        ),
        (
            "rerouting",
            "They are sent to a faster backup, or dropped if there is none. Loki's rule",
        ),
        (
            "slack",
            "They are late if the rest of their path takes longer than the time that is left: they are sent to a backup by which they are \
             in time, or dropped",
        ),
    ];
    PossibleValuesParser::new(values.map(|(name, help)| PossibleValue::new(name).help(help)))
        .try_map(|name| serde_json::from_value(name.into()))
}

/// Objective of a cascade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Aim {
    /// Accuracy-preserving: the accuracy of the best variant at the lowest energy.
    Ap,
    /// Energy-optimised: the knee of the accuracy-energy curve, at least as accurate as the second-best variant.
    Eo,
    /// The largest variant alone, as a baseline.
    Largest,
}

impl From<Aim> for Objective {
    fn from(aim: Aim) -> Self {
        match aim {
            Aim::Ap => Self::Ap,
            Aim::Eo => Self::Eo,
            Aim::Largest => Self::Largest,
        }
    }
}

/// Accuracy that a plan is certified for.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct GuaranteeArgs {
    /// Certify the plan: its loss of accuracy against the largest variant is at most this, such as `1%`. The bound is
    /// proven on held-out samples [default: `[guarantee]` of the app].
    #[arg(long, value_name = "SHARE", conflicts_with = "min_accuracy")]
    max_loss: Option<Share>,
    /// Certify the plan: its accuracy is at least this, such as `95%`.
    #[arg(long, value_name = "SHARE")]
    min_accuracy: Option<Share>,
    /// Confidence of the certificate [default: that of the app's `[guarantee]`, or `95%`].
    #[arg(long, value_name = "SHARE")]
    confidence: Option<Share>,
}

impl GuaranteeArgs {
    /// Returns what to certify: the target of the flags, or else of the app; `None` without either.
    ///
    /// # Errors
    /// When `--confidence` is given and there is nothing to certify.
    pub(crate) fn certify(self, app: Option<&App>) -> anyhow::Result<Option<CertifyOptions>> {
        let target = match (self.max_loss, self.min_accuracy) {
            (Some(loss), _) => Some(AccuracyTarget::MaxLoss { loss: loss.get() }),
            (None, Some(accuracy)) => Some(AccuracyTarget::MinAccuracy {
                accuracy: accuracy.get(),
            }),
            (None, None) => None,
        };
        let of_app = || app?.guarantee?.certify();
        let options = target.map(CertifyOptions::new).or_else(of_app);
        ensure!(
            options.is_some() || self.confidence.is_none(),
            Usage::new(
                "`--confidence` has nothing to certify: give `--max-loss` or `--min-accuracy`, or an app with `[guarantee]`"
            )
        );
        let confidence = self.confidence.or_else(|| Some(app?.guarantee?.confidence));
        Ok(options.map(|options| CertifyOptions {
            confidence: confidence.map_or(options.confidence, Share::get),
            ..options
        }))
    }
}

/// Pipeline to plan or simulate.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PipelineArgs {
    /// Pipeline file, TOML (`.toml`) or JSON: tasks, variants, latencies and factors [default: the measured pipeline of the app].
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,
}

impl PipelineArgs {
    /// Reads the pipeline; without a file, the measured pipeline of the app.
    ///
    /// # Errors
    /// When there is neither, or a file cannot be read or does not describe a valid pipeline, with its field or line.
    pub(crate) fn read(&self, app: Option<&App>) -> Result<Pipeline, PlanningError> {
        pipelines::read(self.pipeline.as_deref(), app)
    }
}

/// Reads the trace, if one is given.
///
/// # Errors
/// When the file is no trace, or the part of it that is played has no request.
pub(crate) fn read_trace(args: &TraceArgs) -> anyhow::Result<Option<Trace>> {
    let trace = args.read()?;
    let has_requests = |trace: &Trace| trace.rates().iter().any(|rate| *rate > 0.0);
    ensure!(
        trace.as_ref().is_none_or(has_requests),
        Usage::new(
            "the trace, or the part of it that `--excerpt` names, has no request: give another one, or `--rate`"
        )
    );
    Ok(trace)
}

/// Parses a share of a device's time.
///
/// # Errors
/// When the text is not a number above 0 and at most 1.
pub(crate) fn utilisation(text: &str) -> Result<f64, String> {
    let number = positive(text)?;
    if number > 1.0 {
        return Err(format!("{number} is not at most 1"));
    }
    Ok(number)
}

/// Permission to replace output files.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Overwrite {
    /// Replace output files that exist.
    #[arg(long)]
    force: bool,
}

impl Overwrite {
    /// Checks that no output file exists, unless `--force` is given, that none is named twice, and that each can be written. Commands call
    /// it before they do any work.
    ///
    /// # Errors
    /// When a file exists; the message names it and the flag. When two outputs are one file, or one cannot be written.
    pub(crate) fn check<'a>(self, files: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
        let mut seen = BTreeSet::new();
        for file in files {
            ensure!(
                seen.insert(file),
                "{} is named for two outputs; give each a file of its own",
                file.display()
            );
            ensure!(
                self.force || file.symlink_metadata().is_err(),
                "{} exists; name another file, or give `--force` to replace it",
                file.display()
            );
            report::check_writable(file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_guarantee_win_over_the_app() {
        let app = App::parse("name = \"a\"\n[guarantee]\nmax_loss = \"1%\"\nconfidence = \"90%\"").unwrap();
        let share = |text: &str| text.parse::<Share>().ok();
        let loss = |loss| Some(AccuracyTarget::MaxLoss { loss });
        let certify = |args: GuaranteeArgs, app| {
            let options = args.certify(app).unwrap();
            (
                options.map(|options| options.target),
                options.map(|options| options.confidence),
            )
        };
        let none = GuaranteeArgs::default();
        assert_eq!(certify(none, Some(&app)), (loss(0.01), Some(0.9)));
        assert_eq!(certify(none, None), (None, None));
        let looser = GuaranteeArgs {
            max_loss: share("2%"),
            ..none
        };
        assert_eq!(certify(looser, Some(&app)), (loss(0.02), Some(0.9)));
        assert_eq!(certify(looser, None), (loss(0.02), Some(0.95)));
        let surer = GuaranteeArgs {
            confidence: share("99%"),
            ..none
        };
        assert_eq!(certify(surer, Some(&app)), (loss(0.01), Some(0.99)));
        let message = surer.certify(None).unwrap_err().to_string();
        assert!(message.contains("--max-loss"), "{message}");
    }

    /// Every name of the list is one of the type.
    #[test]
    fn late_requests_are_named_as_in_a_plan() {
        let parser = dropping();
        let command = clap::Command::new("plan");
        let names: Vec<_> = parser
            .possible_values()
            .unwrap()
            .map(|value| value.get_name().to_owned())
            .collect();
        let parse = |name: &str| parser.parse_ref(&command, None, name.as_ref());
        let parsed: Vec<_> = names.iter().map(|name| parse(name).unwrap()).collect();
        let all = [
            Dropping::None,
            Dropping::LastTask,
            Dropping::PerTask,
            Dropping::Rerouting,
            Dropping::Slack,
        ];
        assert_eq!(parsed, all);
        assert!(parse("last-task").is_err());
    }

    /// `simulate` reported a run of no requests.
    #[test]
    fn a_trace_without_requests_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("idle.txt");
        std::fs::write(&file, "0 0 0").unwrap();
        let mut args = TraceArgs::default();
        args.trace = Some(file.clone());
        let error = read_trace(&args).unwrap_err();
        assert!(
            error.is::<Usage>() && error.to_string().contains("no request"),
            "{error}"
        );
        std::fs::write(&file, "0 1 0").unwrap();
        assert!(read_trace(&args).unwrap().is_some());
        assert!(read_trace(&TraceArgs::default()).unwrap().is_none());
    }

    #[test]
    fn a_utilisation_is_above_zero_and_at_most_one() {
        assert_eq!(utilisation("0.8"), Ok(0.8));
        for wrong in ["0", "-1", "1.5", "much"] {
            assert!(utilisation(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn existing_files_are_replaced_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old] = ["new.json", "old.json"].map(|name| folder.path().join(name));
        std::fs::write(&old, "{}").unwrap();
        let check = |force, file: &Path| Overwrite { force }.check([file]);
        assert!(check(false, &new).is_ok() && check(true, &old).is_ok());
        // The second output replaced the first.
        let twice = Overwrite { force: true }.check([new.as_path(), new.as_path()]);
        assert!(twice.unwrap_err().to_string().contains("two outputs"));
        let message = check(false, &old).unwrap_err().to_string();
        assert!(
            message.contains("old.json exists") && message.contains("--force"),
            "{message}"
        );
        let message = check(true, folder.path()).unwrap_err().to_string();
        assert!(message.contains("cannot be written"), "{message}");
    }
}
