//! Permissions by role, derived from the subject grammar.
//!
//! `kaskade auth init` writes them into a nats-server's configuration; the server then refuses every other subject.
//! `docs/concepts/security.md` states what this protects against and what it does not.

use crate::subjects::event::{
    AUDIT, CERTIFICATE, CERTIFICATE_STATUS, ENERGY, GEAR, LOAD, LOAD_DRIFT, PLANNER,
};
use crate::subjects::{self, App, SubjectError, check_token, inbox_prefix};

/// The role of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Sends requests to the app.
    Client,
    /// Owns requests, sends them to stages, and shifts gears.
    Ingress,
    /// Runs replicas of any stage.
    Worker,
    /// Writes plans; no other role may.
    Planner,
    /// Reads only: `kaskade top`, `nats micro stats`, dashboards.
    Observer,
    /// Sends the requests of HTTP clients to the app, cancels them, and reads what the dashboard shows.
    Gateway,
    /// A process with the whole app: ingress, worker, planner and gateway.
    All,
    /// A custom actor: serves the named stages only.
    Actor {
        /// Name of the actor, which is also its replica id.
        name: String,
        /// The stages.
        stages: Vec<String>,
    },
}

/// Subjects and patterns that a user may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects and patterns to publish on.
    pub publish: Vec<String>,
    /// Subjects and patterns to subscribe to.
    pub subscribe: Vec<String>,
}

/// Returns the permissions of `role` in `app`, with an inbox for `public_key`.
///
/// # Errors
/// [`SubjectError`] if the name of an actor or a stage is not a valid token.
pub fn permissions(app: &App, role: &Role, public_key: &str) -> Result<Permissions, SubjectError> {
    let everyones = Permissions {
        // For the round trips that prove that subscriptions are active.
        publish: vec![subjects::all_unserved()],
        subscribe: vec![format!("{}.>", inbox_prefix(public_key))],
    };
    let own = match role {
        Role::Client => client(app),
        Role::Ingress => ingress(app)?,
        Role::Worker => worker(app)?,
        Role::Planner => planner(app)?,
        Role::Observer => observer(app),
        Role::Gateway => gateway(app),
        Role::All => joined([ingress(app)?, worker(app)?, planner(app)?, gateway(app)]),
        Role::Actor { name, stages } => actor(app, name, stages)?,
    };
    Ok(joined([own, everyones]))
}

fn client(app: &App) -> Permissions {
    let mut publish = app.all_of(["infer", "submit", "cancel", "feedback"]);
    publish.extend(subjects::result_reading(app));
    Permissions {
        publish,
        subscribe: Vec::new(),
    }
}

fn ingress(app: &App) -> Result<Permissions, SubjectError> {
    let events = [
        LOAD,
        GEAR,
        LOAD_DRIFT,
        ENERGY,
        AUDIT,
        CERTIFICATE_STATUS,
        CERTIFICATE,
    ];
    // `infer`: padding messages to its own queue group when the subscription ends.
    let mut publish = app.all_of([
        "infer",
        "stage.*",
        "replica.*",
        "ingress.*",
        "stage_cancel",
        "gear",
    ]);
    publish.extend(named(app, &events)?);
    publish.extend(subjects::durable_taking(app));
    // Clients choose their reply subjects. Only inboxes are allowed, so that a reply cannot reach a stage.
    publish.push(INBOXES.to_owned());
    let mut subscribe = app.all_of([
        "infer",
        "submit",
        "cancel",
        "feedback",
        "done.*.*.*.*",
        "beat.*",
        "gear",
        "plan",
    ]);
    subscribe.extend(named(app, &[LOAD, AUDIT])?);
    subscribe.extend(subjects::discovery_patterns(app));
    Ok(joined([Permissions { publish, subscribe }, reads_plans(app)]))
}

fn worker(app: &App) -> Result<Permissions, SubjectError> {
    let mut publish = app.all_of(["stage.*", "replica.*", "done.*.*.*.*", "beat.*"]);
    publish.extend(named(app, &[ENERGY])?);
    let subscribe = app.all_of([
        "stage.*",
        "replica.*",
        "stage_cancel",
        "ingress.*",
        "gear",
        "plan",
    ]);
    Ok(joined([Permissions { publish, subscribe }, reads_plans(app)]))
}

fn planner(app: &App) -> Result<Permissions, SubjectError> {
    let mut publish = app.all_of(["plan", "replan"]);
    publish.extend(named(app, &[PLANNER, ENERGY])?);
    // The requester of a plan gets a report.
    publish.push(INBOXES.to_owned());
    publish.extend(subjects::plan_writing(app));
    // `kaskade plan apply` connects as the planner and follows the ingresses.
    let mut subscribe = app.all_of(["replan", "beat.*", "ingress.*", "gear", "plan"]);
    subscribe.extend(named(app, &[LOAD, LOAD_DRIFT])?);
    Ok(joined([Permissions { publish, subscribe }, reads_plans(app)]))
}

fn observer(app: &App) -> Permissions {
    let observes = Permissions {
        publish: subjects::discovery_patterns(app),
        subscribe: app.all_of(["beat.*", "ingress.*", "event.>", "gear", "plan", "dead.*"]),
    };
    joined([observes, reads_plans(app)])
}

fn gateway(app: &App) -> Permissions {
    let asks = Permissions {
        publish: app.all_of(["infer", "cancel", "feedback"]),
        subscribe: Vec::new(),
    };
    joined([asks, observer(app)])
}

fn actor(app: &App, name: &str, stages: &[String]) -> Result<Permissions, SubjectError> {
    check_token("actor", name)?;
    let mut publish = app.all_of(["done.*.*.*.*"]);
    publish.push(app.beat(name)?.into_string());
    let mut subscribe = app.all_of(["ingress.*", "stage_cancel"]);
    subscribe.push(app.replica(name)?.into_string());
    for stage in stages {
        subscribe.push(app.stage(stage)?.into_string());
    }
    Ok(Permissions { publish, subscribe })
}

fn reads_plans(app: &App) -> Permissions {
    Permissions {
        publish: subjects::plan_reading(app),
        subscribe: Vec::new(),
    }
}

fn named(app: &App, events: &[&str]) -> Result<Vec<String>, SubjectError> {
    events
        .iter()
        .map(|event| app.event(event).map(async_nats::Subject::into_string))
        .collect()
}

/// Concatenates permissions without duplicates.
fn joined<const N: usize>(parts: [Permissions; N]) -> Permissions {
    let mut all = Permissions {
        publish: Vec::new(),
        subscribe: Vec::new(),
    };
    for part in parts {
        for (to, from) in [
            (&mut all.publish, part.publish),
            (&mut all.subscribe, part.subscribe),
        ] {
            for subject in from {
                if !to.contains(&subject) {
                    to.push(subject);
                }
            }
        }
    }
    all
}

/// Pattern of all inboxes.
const INBOXES: &str = "_INBOX.>";

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "UKEY";

    fn digits() -> App {
        App::new("digits").unwrap()
    }

    fn table(role: &Role) -> Permissions {
        permissions(&digits(), role, KEY).unwrap()
    }

    fn roles() -> Vec<(&'static str, Role)> {
        let own = Role::Actor {
            name: "mine".into(),
            stages: vec!["small".into()],
        };
        vec![
            ("client", Role::Client),
            ("ingress", Role::Ingress),
            ("worker", Role::Worker),
            ("planner", Role::Planner),
            ("observer", Role::Observer),
            ("gateway", Role::Gateway),
            ("actor", own),
        ]
    }

    /// The complete table; change it only on purpose.
    #[test]
    fn the_table_matches_the_committed_one() {
        let mut lines = Vec::new();
        for (name, role) in roles() {
            let Permissions { publish, subscribe } = table(&role);
            lines.extend(publish.iter().map(|subject| format!("{name} > {subject}")));
            lines.extend(subscribe.iter().map(|subject| format!("{name} < {subject}")));
        }
        let committed = include_str!("permissions/table.txt");
        assert_eq!(
            lines.join("\n"),
            committed.trim_end(),
            "> may be published, < may be subscribed to"
        );
    }

    /// Returns whether a pattern matches a subject by the rules of NATS.
    fn covers(pattern: &str, subject: &str) -> bool {
        let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
        loop {
            match (pattern.next(), subject.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some(expected), Some(found)) if expected == "*" || expected == found => {}
                _ => return false,
            }
        }
    }

    fn may_publish(subject: &str) -> Vec<&'static str> {
        let may = |role: &Role| table(role).publish.iter().any(|pattern| covers(pattern, subject));
        roles()
            .iter()
            .filter(|(_, role)| may(role))
            .map(|(name, _)| *name)
            .collect()
    }

    fn may_subscribe(subject: &str) -> Vec<&'static str> {
        let may = |role: &Role| {
            table(role)
                .subscribe
                .iter()
                .any(|pattern| covers(pattern, subject))
        };
        roles()
            .iter()
            .filter(|(_, role)| may(role))
            .map(|(name, _)| *name)
            .collect()
    }

    #[test]
    fn only_the_planner_writes_plans() {
        assert_eq!(may_publish("$KV.kaskade-digits.plan"), ["planner"]);
        assert_eq!(
            may_publish("$JS.API.STREAM.CREATE.KV_kaskade-digits"),
            ["planner"]
        );
        for verb in ["DELETE", "PURGE", "UPDATE", "MSG.DELETE"] {
            assert!(may_publish(&format!("$JS.API.STREAM.{verb}.KV_kaskade-digits")).is_empty());
        }
    }

    #[test]
    fn no_role_may_use_another_app_or_bucket() {
        for subject in [
            "kaskade.other.infer",
            "kaskade.other.stage.small",
            "$KV.kaskade-other.plan",
            "$JS.API.STREAM.INFO.KV_kaskade-other",
        ] {
            assert!(may_publish(subject).is_empty(), "{subject}");
            assert!(may_subscribe(subject).is_empty(), "{subject}");
        }
    }

    #[test]
    fn requests_and_answers_are_read_by_those_they_are_for() {
        assert_eq!(may_subscribe("kaskade.digits.infer"), ["ingress"]);
        assert_eq!(may_subscribe("kaskade.digits.done.x.1.1.t"), ["ingress"]);
        assert_eq!(may_subscribe("kaskade.digits.stage.small"), ["worker", "actor"]);
        assert_eq!(may_subscribe("kaskade.digits.stage.large"), ["worker"]);
        assert!(may_subscribe("_INBOX.UOTHER.1").is_empty());
        assert_eq!(may_subscribe("_INBOX.UKEY.1").len(), roles().len());
        // A leaving ingress pads its own subscription.
        assert_eq!(
            may_publish("kaskade.digits.infer"),
            ["client", "ingress", "gateway"]
        );
        assert_eq!(may_publish("kaskade.digits.done.x.1.1.t"), ["worker", "actor"]);
        assert_eq!(may_publish("kaskade.digits.beat.mine"), ["worker", "actor"]);
        assert_eq!(may_publish("kaskade.digits.beat.other"), ["worker"]);
        assert_eq!(may_publish("_INBOX.UOTHER.1"), ["ingress", "planner"]);
        assert_eq!(may_publish("kaskade.digits.cancel"), ["client", "gateway"]);
        assert_eq!(may_publish("kaskade.digits.feedback"), ["client", "gateway"]);
        assert_eq!(may_publish("kaskade.digits.submit"), ["client"]);
    }

    #[test]
    fn only_an_ingress_says_what_it_has_cancelled_avoids_and_shifts_to() {
        for tail in ["stage_cancel", "ingress.x", "gear"] {
            assert_eq!(
                may_publish(&format!("kaskade.digits.{tail}")),
                ["ingress"],
                "{tail}"
            );
        }
        assert_eq!(may_subscribe("kaskade.digits.stage_cancel"), ["worker", "actor"]);
        let hearers = ["worker", "planner", "observer", "gateway", "actor"];
        assert_eq!(may_subscribe("kaskade.digits.ingress.x"), hearers);
        assert_eq!(may_publish("kaskade.digits.replan"), ["planner"]);
        assert_eq!(may_publish("kaskade.digits.plan"), ["planner"]);
    }

    #[test]
    fn a_whole_process_may_what_its_parts_may() {
        let whole = table(&Role::All);
        for role in [Role::Ingress, Role::Worker, Role::Planner, Role::Gateway] {
            let part = table(&role);
            assert!(part.publish.iter().all(|subject| whole.publish.contains(subject)));
            assert!(
                part.subscribe
                    .iter()
                    .all(|subject| whole.subscribe.contains(subject))
            );
        }
        assert!(!whole.publish.contains(&"kaskade.digits.submit".to_owned()));
    }

    #[test]
    fn a_name_that_would_address_others_is_refused() {
        for (name, stage) in [("a.b", "small"), ("mine", ">"), ("*", "small")] {
            let role = Role::Actor {
                name: name.into(),
                stages: vec![stage.into()],
            };
            assert!(permissions(&digits(), &role, KEY).is_err(), "{name} {stage}");
        }
    }
}
