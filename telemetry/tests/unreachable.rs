//! A collector that cannot be reached costs spans, and nothing else. A process has one exporter, so this is one test in a binary of
//! its own.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use kaskade_telemetry::{
    Exporter, ExporterConfig, Kind, Span, TelemetryError, counts, is_on, record, samples,
};

fn span(span_id: u64) -> Span {
    Span {
        trace_id: 1,
        span_id,
        parent_id: 0,
        name: "x".to_owned(),
        kind: Kind::Internal,
        start: 1,
        end: 2,
        attributes: Vec::new(),
        error: None,
    }
}

#[test]
fn spans_without_a_collector_or_room_are_dropped_and_counted() {
    assert!(!is_on() && !samples());
    record(span(1));
    assert_eq!(
        (counts().exported, counts().dropped),
        (0, 0),
        "nothing is recorded before the start"
    );
    let mut config = ExporterConfig::new("http://127.0.0.1:1", "app");
    config.queue = 4;
    let exporter = Exporter::start(&config).unwrap();
    assert!(is_on() && samples());
    for number in 1..=1_000 {
        record(span(number));
    }
    drop(exporter);
    assert_eq!((counts().exported, counts().dropped), (0, 1_000));
    assert!(!is_on());
    record(span(1));
    assert_eq!(counts().dropped, 1_000, "nothing is recorded after the end");
    assert!(matches!(Exporter::start(&config), Err(TelemetryError::Twice)));
    assert!(!is_on(), "a second exporter has no queue");
}
