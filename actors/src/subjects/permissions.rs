//! Subjects and patterns that the permissions of actors name.

use super::{App, DURABLE_CONSUMER};

/// Pattern of all subjects of [`unserved`](super::unserved).
pub(crate) fn all_unserved() -> String {
    "_KASKADE.UNSERVED.*".to_owned()
}

/// Patterns of all discovery subjects of an app.
pub(crate) fn discovery_patterns(app: &App) -> Vec<String> {
    let name = app.name();
    vec![
        "$SRV.*".to_owned(),
        format!("$SRV.*.{name}"),
        format!("$SRV.*.{name}.*"),
    ]
}

/// Publish permissions for reading and watching an app's plans: JetStream API requests about its bucket, and the question to the process
/// of an embedded broker.
pub(crate) fn plan_reading(app: &App) -> Vec<String> {
    let bucket = app.bucket();
    vec![
        app.stored_plan().into_string(),
        "$JS.API.INFO".to_owned(),
        format!("$JS.API.STREAM.INFO.KV_{bucket}"),
        format!("$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.>"),
        // The Rust client's watch has no name; the `nats` command's has one.
        format!("$JS.API.CONSUMER.CREATE.KV_{bucket}"),
        format!("$JS.API.CONSUMER.CREATE.KV_{bucket}.>"),
        // Flow control of the watch.
        format!("$JS.FC.KV_{bucket}.>"),
    ]
}

/// Publish permissions for writing an app's plans, including creating the bucket.
pub(crate) fn plan_writing(app: &App) -> Vec<String> {
    let bucket = app.bucket();
    vec![
        format!("$JS.API.STREAM.CREATE.KV_{bucket}"),
        format!("$KV.{bucket}.>"),
    ]
}

/// Publish permissions for taking durable requests and storing their results: creating the streams and the consumer,
/// if necessary, and using them.
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

/// Publish permissions for fetching results of durable requests.
pub(crate) fn result_reading(app: &App) -> Vec<String> {
    vec![format!(
        "$JS.API.DIRECT.GET.{}.{}",
        app.results_stream(),
        app.results()
    )]
}
