//! Subjects and patterns used in the permissions of actors.

use super::{App, DURABLE_CONSUMER};

/// Returns the pattern of all subjects of [`unserved`](super::unserved).
pub(crate) fn all_unserved() -> String {
    "_KASKADE.UNSERVED.*".to_owned()
}

/// Returns the patterns of all discovery subjects of an app.
pub(crate) fn discovery_patterns(app: &App) -> Vec<String> {
    let name = app.name();
    vec![
        "$SRV.*".to_owned(),
        format!("$SRV.*.{name}"),
        format!("$SRV.*.{name}.*"),
    ]
}

/// Returns the publish permissions for reading and watching an app's plans: JetStream API requests about the bucket,
/// and the query to the process of an embedded broker.
pub(crate) fn plan_reading(app: &App) -> Vec<String> {
    let bucket = app.bucket();
    vec![
        app.stored_plan().into_string(),
        "$JS.API.INFO".to_owned(),
        format!("$JS.API.STREAM.INFO.KV_{bucket}"),
        format!("$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.>"),
        // The watch of the Rust client has no name; that of the `nats` command has one.
        format!("$JS.API.CONSUMER.CREATE.KV_{bucket}"),
        format!("$JS.API.CONSUMER.CREATE.KV_{bucket}.>"),
        // Flow control of the watch.
        format!("$JS.FC.KV_{bucket}.>"),
    ]
}

/// Returns the publish permissions for writing an app's plans and creating the bucket.
pub(crate) fn plan_writing(app: &App) -> Vec<String> {
    let bucket = app.bucket();
    vec![
        format!("$JS.API.STREAM.CREATE.KV_{bucket}"),
        format!("$KV.{bucket}.>"),
    ]
}

/// Returns the publish permissions for accepting durable requests and storing their results: creating the streams and
/// the consumer if necessary, and using them.
pub(crate) fn durable_taking(app: &App) -> Vec<String> {
    let submitted = app.submitted_stream();
    let mut subjects = vec![
        format!("$JS.API.CONSUMER.INFO.{submitted}.{DURABLE_CONSUMER}"),
        format!("$JS.API.CONSUMER.CREATE.{submitted}.{DURABLE_CONSUMER}"),
        format!("$JS.API.CONSUMER.CREATE.{submitted}.{DURABLE_CONSUMER}.>"),
        format!("$JS.API.CONSUMER.DURABLE.CREATE.{submitted}.{DURABLE_CONSUMER}"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{submitted}.{DURABLE_CONSUMER}"),
        format!("$JS.ACK.{submitted}.{DURABLE_CONSUMER}.>"),
    ];
    let counts = app.failures_stream();
    for stream in [&submitted, &app.results_stream(), &app.dead_stream(), &counts] {
        subjects.push(format!("$JS.API.STREAM.INFO.{stream}"));
        subjects.push(format!("$JS.API.STREAM.CREATE.{stream}"));
    }
    subjects.extend(result_reading(app));
    subjects.push(format!("$JS.API.DIRECT.GET.{counts}.{}", app.failures()));
    subjects.extend(app.all_of(["result.*", "dead.*", "failures.*"]));
    subjects
}

/// Returns the publish permissions for fetching results of durable requests.
pub(crate) fn result_reading(app: &App) -> Vec<String> {
    vec![format!(
        "$JS.API.DIRECT.GET.{}.{}",
        app.results_stream(),
        app.results()
    )]
}
