use kaskade_app::load::record::{Outcome, StreamedAnswer};

use super::*;

#[test]
fn a_load_needs_no_warm_up() {
    assert_eq!(length_or_zero("0s"), Ok(Duration::ZERO));
    assert_eq!(length_or_zero("2s"), Ok(Duration::from_secs(2)));
    assert!(length_or_zero("1ns").unwrap_err().contains("microsecond"));
    assert!(length_or_zero("soon").is_err());
}

#[derive(Debug, clap::Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
    let command =
        <Command as clap::Parser>::try_parse_from([&["bench", "--app", "app.toml"][..], flags].concat());
    command.map(|command| command.args)
}

/// `--duration` was ignored beside `--trace`.
#[test]
fn a_trace_has_a_length_of_its_own() {
    let trace = parse(&["--trace", "counts"]).unwrap();
    assert_eq!(trace.duration.to_string(), "10s");
    let error = parse(&["--trace", "counts", "--duration", "5s"]).unwrap_err();
    assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict);
    assert_eq!(error.exit_code(), 2);
}

fn report(record: &Record) -> Report {
    Report {
        app: "a".to_owned(),
        load: "closed loop".to_owned(),
        interrupted: false,
        accuracy: None,
        joules_per_request: None,
        energy_source: None,
        figures: record.figures(Duration::from_secs(1)),
    }
}

/// Nothing was said while the largest variant's endpoint was down.
#[test]
fn degraded_answers_are_told() {
    let mut record = Record::new(None).unwrap();
    for degraded in [false, true, true, true] {
        record.sent();
        let variant = "small".to_owned();
        record.add(Duration::from_millis(1), Outcome::Answered { variant, degraded });
    }
    let text = as_text(&report(&record));
    assert!(text.contains("\ndegraded: 75.00 % of the answers"), "{text}");
    assert_eq!(serde_json::to_value(report(&record)).unwrap()["degraded"], 0.75);
    let none = Record::new(None).unwrap();
    assert!(as_text(&report(&none)).contains("\ndegraded: none\n"));
}

/// Percentiles left out the requests that timed out without a word.
#[test]
fn the_title_of_the_latencies_tells_what_they_leave_out() {
    let mut record = Record::new(None).unwrap();
    let variant = || "small".to_owned();
    for _ in 0..3 {
        record.sent();
        let outcome = Outcome::Answered {
            variant: variant(),
            degraded: false,
        };
        record.add(Duration::from_millis(1), outcome);
    }
    let text = as_text(&report(&record));
    assert!(text.contains("\nlatency of the 3 answered requests\n"), "{text}");
    record.sent();
    record.add(Duration::from_secs(2), Outcome::TimedOut);
    let text = as_text(&report(&record));
    let title = "\nlatency of the 3 answered requests, without the 25.00 % (1 timed out)\n";
    assert!(text.contains(title), "{text}");
    assert_eq!(serde_json::to_value(report(&record)).unwrap()["error_rate"], 0.25);
}

#[test]
fn answers_in_parts_have_times_of_tokens() {
    let mut record = Record::new(None).unwrap();
    record.sent();
    let streamed = StreamedAnswer {
        variant: "llm".to_owned(),
        degraded: false,
        first_token: Duration::from_millis(200),
        per_token: Some(Duration::from_millis(20)),
        tokens: 11,
    };
    record.add(Duration::from_millis(400), Outcome::Streamed(streamed));
    let text = as_text(&report(&record));
    for words in [
        "time to first token",
        "200 ms",
        "time per output token",
        "20.0 ms",
        "11 tokens, 11.0 tokens/s",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let none = Record::new(None).unwrap();
    assert!(!as_text(&report(&none)).contains("first token"));
    assert!(
        serde_json::to_value(report(&none))
            .unwrap()
            .get("stream")
            .is_none()
    );
    assert!(parse(&["--requests", "5", "--concurrency", "2"]).is_ok());
    assert!(parse(&["--requests", "5", "--rate", "2"]).is_err());
    assert!(parse(&["--stream", "--durable", "--rate", "2"]).is_err());
}

#[test]
fn too_many_errors_are_a_failure() {
    let mut record = Record::new(None).unwrap();
    for outcome in [
        Outcome::TimedOut,
        Outcome::Answered {
            variant: "small".to_owned(),
            degraded: false,
        },
    ] {
        record.sent();
        record.add(Duration::from_secs(1), outcome);
    }
    let figures = record.figures(Duration::from_secs(1));
    let check = |flags: &[&str]| check(&figures, &parse(flags).unwrap());
    check(&[]).unwrap();
    check(&["--max-error-rate", "50%"]).unwrap();
    for most in ["49%", "0"] {
        let error = check(&["--max-error-rate", most]).unwrap_err().to_string();
        assert!(
            error.contains("1 of 2 requests got no result, 50.00 %"),
            "{error}"
        );
    }
    let error = parse(&["--max-error-rate", "101%"]).unwrap_err().to_string();
    assert!(error.contains("`101%` is not a valid share"), "{error}");
}

/// A run without an answer ended as one with answers does.
#[test]
fn a_run_without_an_answer_fails() {
    let mut figures = Record::new(None).unwrap().figures(Duration::from_secs(1));
    let check = |figures: &Figures| check(figures, &parse(&[]).unwrap());
    // "none of 0 requests was answered (no errors)" named no cause.
    let error = check(&figures).unwrap_err().to_string();
    assert!(
        error.contains("warm-up of 1s") && error.contains("`--warm-up`"),
        "{error}"
    );
    figures.sent = 3;
    figures.errors.insert("KSK0006", 3);
    let error = check(&figures).unwrap_err().to_string();
    assert!(
        error.contains("none of 3 requests") && error.contains("3 KSK0006"),
        "{error}"
    );
    figures.answered = 1;
    check(&figures).unwrap();
}
