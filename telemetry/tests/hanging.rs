//! A collector that accepts connections and never answers does not hold up the end of the process. A process has one exporter, so
//! this is one test in a binary of its own.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use kaskade_telemetry::{Exporter, ExporterConfig, Kind, Span, counts, record};

#[test]
fn a_collector_that_hangs_delays_the_end_by_seconds_and_every_span_is_counted() {
    const SPANS: u64 = 5_000;
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let exporter = Exporter::start(&ExporterConfig::new(endpoint, "app")).unwrap();
    for number in 1..=SPANS {
        record(Span {
            trace_id: 1,
            span_id: number,
            parent_id: 0,
            name: "x".to_owned(),
            kind: Kind::Internal,
            start: 1,
            end: 2,
            attributes: Vec::new(),
            error: None,
        });
    }
    // The first export is under way.
    let _connection = collector.accept().unwrap();
    let began = Instant::now();
    drop(exporter);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((counts().exported, counts().dropped), (0, SPANS));
}
