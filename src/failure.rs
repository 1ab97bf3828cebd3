//! Classification of errors: whether a retry may help, the exit code, and the JSON object for machines.

use std::fmt;

use clap::error::ErrorKind;
use kaskade_actors::bus::BusError;
use kaskade_actors::ingress::durable::DurableError;
use kaskade_actors::node::NodeError;
use kaskade_actors::plan::store::StoreError;
use kaskade_actors::{Code, Fault};
use kaskade_app::deploy::DeployError;
use kaskade_app::measure::channels::ChannelError;
use kaskade_app::planning::PlanningError;
use kaskade_app::report::in_one_line;
use kaskade_app::serving::ServingError;
use serde::Serialize;

/// Exit code of wrong input, and of requests that are refused for good.
const REFUSED: u8 = 1;

/// Exit code of a wrong command line.
const USAGE: u8 = 2;

/// Exit code of a command that Ctrl-C ended: 128 and the number of SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Exit code of a temporary failure: `EX_TEMPFAIL` of sysexits.h.
const TEMPORARY: u8 = 75;

/// Remedy of a wrong command line.
const USAGE_HELP: &str = "`--help` prints the options of a command";

/// A wrong command line that the parser accepts, or an environment variable with a value that is not valid.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl Usage {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Ctrl-C ended the command.
#[derive(Debug)]
pub(crate) struct Interrupted(String);

impl Interrupted {
    /// States what the command has done until then.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Error of a command, classified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// Error code; `None` if the error has none.
    code: Option<&'static str>,
    /// Problem and causes, on one line.
    message: String,
    /// Whether the same command may succeed later.
    retryable: bool,
    /// Remedy; `None` if the message already contains it.
    help: Option<String>,
    #[serde(skip)]
    exit: u8,
}

/// The JSON object on standard error.
#[derive(Serialize)]
struct Printed<'a> {
    error: &'a Failure,
}

impl Failure {
    /// Classifies the error of a command by the first typed error among its causes.
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        if error.chain().any(is_usage) {
            return Self {
                code: None,
                message: in_one_line(error.as_ref()),
                retryable: false,
                help: Some(USAGE_HELP.to_owned()),
                exit: USAGE,
            };
        }
        if error.is::<Interrupted>() {
            return Self {
                code: None,
                message: in_one_line(error.as_ref()),
                retryable: false,
                help: None,
                exit: INTERRUPTED,
            };
        }
        let class = error.chain().find_map(class);
        let retryable = class.is_some_and(|class| class.retryable);
        let code = class.map(|class| class.code);
        let message = in_one_line(error.as_ref());
        Self {
            code: code.map(Code::id),
            // Errors that are no faults do not begin with their code.
            message: match code {
                Some(code) if !message.contains(code.id()) => format!("{}: {message}", code.id()),
                _ => message,
            },
            retryable,
            help: code.and_then(remedy),
            exit: if retryable { TEMPORARY } else { REFUSED },
        }
    }

    /// Classifies an error of the command line itself; `None` for the help and the version.
    pub(crate) fn of_usage(error: &clap::Error) -> Option<Self> {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return None;
        }
        let text = error.render().to_string();
        let mut paragraphs = text.split("\n\n");
        let problem = paragraphs.next().unwrap_or_default();
        let tip = paragraphs.next().and_then(|tip| tip.trim().strip_prefix("tip: "));
        let help = tip.map_or_else(|| USAGE_HELP.to_owned(), |tip| format!("{tip}; {USAGE_HELP}"));
        let problem = problem.strip_prefix("error: ").unwrap_or(problem);
        Some(Self {
            code: None,
            message: problem.split_whitespace().collect::<Vec<_>>().join(" "),
            retryable: false,
            help: Some(help),
            exit: USAGE,
        })
    }

    /// Returns the problem and its causes, on one line.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the broker refused an operation of the user.
    pub(crate) fn is_about_permissions(&self) -> bool {
        self.code == Some(Code::NotPermitted.id()) || self.message.contains("refuses the connection")
    }

    /// Returns the exit code of the process.
    pub(crate) fn exit(&self) -> u8 {
        self.exit
    }

    /// Returns the JSON object for machines, on one line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(&Printed { error: self }).unwrap_or_else(|_| self.message.clone())
    }
}

/// Returns whether one error of a chain is of the command line.
fn is_usage(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<Usage>()
        || matches!(
            error.downcast_ref::<PlanningError>(),
            Some(PlanningError::NoPipeline)
        )
}

/// Code of an error, and whether a retry may help. They differ if the code covers causes of both kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Class {
    code: Code,
    retryable: bool,
}

impl From<Code> for Class {
    fn from(code: Code) -> Self {
        Self {
            code,
            retryable: code.retryable(),
        }
    }
}

/// Classifies one error of a chain; `None` for types that say nothing about a retry.
fn class(error: &(dyn std::error::Error + 'static)) -> Option<Class> {
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return Some(fault.code.into());
    }
    // Transparent errors are not in the chain: the error around them is.
    error
        .downcast_ref::<BusError>()
        .and_then(of_bus)
        .or_else(|| error.downcast_ref::<StoreError>().map(of_store))
        .or_else(|| error.downcast_ref::<DurableError>().and_then(of_durable))
        .or_else(|| error.downcast_ref::<NodeError>().and_then(of_node))
        .or_else(|| error.downcast_ref::<ServingError>().and_then(of_serving))
        .or_else(|| error.downcast_ref::<ChannelError>().and_then(of_channel))
        .or_else(|| error.downcast_ref::<DeployError>().and_then(of_deploy))
}

fn of_serving(error: &ServingError) -> Option<Class> {
    match error {
        ServingError::Bus(error) => of_bus(error),
        ServingError::Store(error) => Some(of_store(error)),
        ServingError::Start { source, .. } => of_node(source),
        _ => None,
    }
}

fn of_node(error: &NodeError) -> Option<Class> {
    match error {
        NodeError::Bus(error) => of_bus(error),
        NodeError::Store(error) => Some(of_store(error)),
        NodeError::Durable(error) => of_durable(error),
        _ => None,
    }
}

fn of_channel(error: &ChannelError) -> Option<Class> {
    match error {
        ChannelError::Bus(error) => of_bus(error),
        _ => None,
    }
}

fn of_deploy(error: &DeployError) -> Option<Class> {
    match error {
        DeployError::Bus(error) => of_bus(error),
        DeployError::Store(error) => Some(of_store(error)),
        // Unlike a client's request, it is not sent again when an app starts.
        DeployError::UnknownApp { .. } => Some(Class {
            code: Code::UnknownApp,
            retryable: false,
        }),
        DeployError::OtherApp { .. } | DeployError::NotLoaded { .. } => Some(Code::PlanRefused.into()),
        // The same command is refused again, unlike that of a writer who was only second.
        DeployError::NotExpected { .. } => Some(Class {
            code: Code::StaleEpoch,
            retryable: false,
        }),
        DeployError::NoIngress { .. } | DeployError::NotAdmitted { .. } | DeployError::NotServed { .. } => {
            Some(Code::Unavailable.into())
        }
        _ => None,
    }
}

fn of_durable(error: &DurableError) -> Option<Class> {
    match error {
        DurableError::Bus(error) => of_bus(error),
        _ => Some(Fault::from(error).code.into()),
    }
}

fn of_store(error: &StoreError) -> Class {
    Fault::from(error.clone()).code.into()
}

/// Classifies an error of the connection; `None` for files on this machine, which no code describes.
fn of_bus(error: &BusError) -> Option<Class> {
    let (code, retryable) = match error {
        BusError::Credentials { .. } | BusError::Authority { .. } => return None,
        BusError::Unreachable { .. } => (Code::BrokerUnavailable, true),
        BusError::Timeout { .. } | BusError::Failed { .. } => (Code::Unavailable, true),
        // The same address, credentials or message are refused again.
        BusError::BadUrl { .. }
        | BusError::Untrusted { .. }
        | BusError::NoTls { .. }
        | BusError::Refused { .. }
        | BusError::Embedded(_) => (Code::BrokerUnavailable, false),
        BusError::TooOld { .. } => (Code::BrokerTooOld, false),
        BusError::TooLarge { .. } => (Code::TooLarge, false),
        BusError::Subject(_) => (Code::Malformed, false),
        _ => (Code::Internal, false),
    };
    Some(Class { code, retryable })
}

/// Second part of a code's explanation, on one line.
fn remedy(code: Code) -> Option<String> {
    let (_, remedy) = code.explain().split_once('\n')?;
    Some(remedy.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn of(error: impl Into<anyhow::Error>) -> Failure {
        Failure::from_error(&error.into())
    }

    fn unreachable() -> BusError {
        BusError::Unreachable {
            url: "nats://127.0.0.1:1".to_owned(),
            reason: "refused".to_owned(),
        }
    }

    #[test]
    fn a_fault_has_its_code_and_remedy() {
        for code in Code::ALL {
            let failure = of(Fault::new(*code, "why"));
            assert_eq!(failure.code, Some(code.id()));
            assert_eq!(failure.retryable, code.retryable());
            assert_eq!(failure.exit(), if code.retryable() { 75 } else { 1 });
            assert!(failure.help.is_some(), "{code} has no remedy");
        }
    }

    #[test]
    fn a_lost_connection_is_temporary_under_every_type_around_it() {
        let start = ServingError::Start {
            app: "digits".to_owned(),
            source: unreachable().into(),
        };
        for failure in [
            of(unreachable()),
            of(ServingError::from(unreachable())),
            of(start),
            of(ChannelError::from(unreachable())),
            of(DeployError::from(unreachable())),
            Failure::from_error(
                &Err::<(), _>(unreachable())
                    .context("over the network")
                    .unwrap_err(),
            ),
        ] {
            assert_eq!(failure.code, Some("KSK0012"), "{failure:?}");
            assert!(failure.message.starts_with("KSK0012: "), "{failure:?}");
            assert_eq!(failure.exit(), 75, "{failure:?}");
        }
    }

    #[test]
    fn wrong_input_and_refused_credentials_are_final() {
        let refused = BusError::Refused {
            url: "nats://127.0.0.1:1".to_owned(),
            reason: "no".to_owned(),
        };
        assert_eq!(of(refused).exit(), 1);
        assert_eq!(of(ServingError::NeedsBroker).exit(), 1);
        let expected = of(DeployError::NotExpected {
            expected: 1,
            newest: Some(5),
        });
        assert_eq!((expected.exit(), expected.code), (1, Some("KSK0016")));
        assert!(
            !expected.retryable && expected.message.contains("holds epoch 5"),
            "{expected:?}"
        );
        let unknown = of(DeployError::UnknownApp {
            app: "digit".to_owned(),
        });
        assert_eq!((unknown.exit(), unknown.code), (1, Some("KSK0004")));
        let usage = of(Usage::new("give a load"));
        assert_eq!((usage.exit(), usage.code, usage.retryable), (2, None, false));
        assert_eq!(of(PlanningError::NoPipeline).exit(), 2);
        let plain = of(anyhow::anyhow!("no such file"));
        assert_eq!((plain.exit(), plain.code), (1, None));
        // It was "No NATS server answers".
        let path = "auth/worker/nkey".to_owned();
        let reason = "No such file".to_owned();
        let credentials = of(BusError::Credentials { path, reason });
        assert_eq!((credentials.exit(), credentials.code), (1, None));
        let interrupted = of(Interrupted::new("nothing was written"));
        assert_eq!((interrupted.exit(), interrupted.code), (130, None));
        assert_eq!(interrupted.message, "interrupted: nothing was written");
    }

    #[test]
    fn json_has_four_fields_on_one_line() {
        let json = of(Fault::new(Code::Overloaded, "full")).json();
        assert_eq!(json.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["error"]["code"], "KSK0006");
        assert_eq!(value["error"]["retryable"], true);
        assert_eq!(value["error"]["message"], "KSK0006: full");
        assert!(value["error"]["help"].as_str().unwrap().starts_with("Try again"));
        let plain = of(anyhow::anyhow!("no such file")).json();
        assert_eq!(
            plain,
            r#"{"error":{"code":null,"message":"no such file","retryable":false,"help":null}}"#
        );
    }
}
