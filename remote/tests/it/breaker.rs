//! The circuit breaker.

use super::*;

/// Five requests with budgets that no answer fits in stopped all others.
#[test]
fn budgets_too_short_for_any_answer_do_not_open_the_breaker() {
    let server = Server::start(|_, _| Does::Slowly(Duration::from_millis(500), good()));
    let mut slow = endpoint(&server, classify());
    slow.breaker.failures = 2;
    let running = Running::start(&slow);
    for _ in 0..5 {
        let (_, end, _) = running.within(Duration::from_millis(50));
        assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    }
    let (_, end, _) = running.within(Duration::from_secs(20));
    assert!(end.is_ok(), "{end:?}");
    for _ in 0..5 {
        let (_, end, _) = running.within(Duration::from_millis(50));
        assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    }
    assert!(running.within(Duration::from_secs(20)).1.is_ok());
}

#[test]
fn an_endpoint_that_hangs_is_noticed_by_requests_with_short_budgets() {
    let server = Server::start(|_, number| match number {
        0..20 => ok(&good()),
        _ => Does::Hang,
    });
    let mut hanging = endpoint(&server, classify());
    hanging.breaker.failures = 2;
    let running = Running::start(&hanging);
    for _ in 0..20 {
        assert!(running.within(Duration::from_secs(20)).1.is_ok());
    }
    for _ in 0..2 {
        let (_, end, _) = running.within(Duration::from_secs(1));
        assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    }
    let (_, end, _) = running.within(Duration::from_secs(1));
    assert!(
        matches!(&end, Err(ModelError::Unavailable { reason }) if reason.contains("circuit breaker")),
        "{end:?}"
    );
}

/// Requests that a server answered with log probabilities that are none stopped all others.
#[test]
fn answers_that_cannot_be_read_open_the_breaker_only_if_they_are_no_answers() {
    for (body, is_answer) in [
        (good().replace("-0.1", "\"x\""), true),
        (good().replace("-0.1", "7.5"), true),
        ("<html>out of order</html>".to_owned(), false),
        ("{\"choices\": []}".to_owned(), false),
    ] {
        let said = body.clone();
        let server = Server::start(move |_, number| match number {
            0..2 => ok(&said),
            _ => ok(&good()),
        });
        let mut wrong = endpoint(&server, classify());
        wrong.breaker.failures = 2;
        let mut large = model(&wrong);
        for _ in 0..2 {
            let answer = large.model.run(&[text("fine")]).remove(0);
            assert!(
                matches!(answer, Err(ModelError::BadOutput { .. })),
                "{body}: {answer:?}"
            );
        }
        let answer = large.model.run(&[text("fine")]).remove(0);
        assert_eq!(answer.is_ok(), is_answer, "{body}: {answer:?}");
    }
}

#[test]
fn a_failing_endpoint_gets_no_requests_until_a_probe_succeeds() {
    let server = Server::start(|_, number| match number {
        0..4 => Does::Answer(500, String::new(), Vec::new()),
        _ => ok(&good()),
    });
    let mut failing = endpoint(&server, classify());
    failing.retry.retries = 0;
    failing.breaker = BreakerConfig {
        failures: 3,
        // Time for the five requests below.
        pause_us: 1_000_000,
        max_pause_us: 1_000_000,
    };
    let mut large = model(&failing);
    let availability = large.model.availability().unwrap();
    let mut ask = || large.model.run(&[text("fine")]).remove(0);
    for _ in 0..3 {
        assert!(matches!(ask(), Err(ModelError::Unavailable { .. })));
    }
    for _ in 0..5 {
        let refused = ask();
        assert!(
            matches!(&refused, Err(ModelError::Unavailable { reason }) if reason.contains("circuit breaker")),
            "{refused:?}"
        );
    }
    assert_eq!(server.calls(), 3, "an open breaker makes no calls");
    becomes(&availability, false);
    // Before that, a question about the endpoint's health may be the probe.
    becomes(&availability, true);
    assert!(ask().is_err() && server.calls() == 4, "the probe fails");
    becomes(&availability, false);
    becomes(&availability, true);
    assert!(ask().is_ok() && ask().is_ok());
}
