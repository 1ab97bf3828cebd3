//! Recorded answers, and the limit of spending.

use super::*;

#[test]
fn recorded_answers_are_not_paid_again_and_the_limit_holds() {
    let server = Server::start(|_, _| ok(&good()));
    let folder = tempfile::tempdir().unwrap();
    let mut recording = endpoint(&server, classify());
    recording.cache = Some(folder.path().to_owned());
    recording.concurrency = 1.try_into().unwrap();
    let requests: Vec<Inputs> = (0..10).map(|number| text(&number.to_string())).collect();
    // Each costs 5; a call is made only if the most that it may cost still fits.
    recording.spend_limit = Some(SpendLimit::new(160.0));
    let answers = model(&recording).model.run(&requests);
    let paid = server.calls();
    assert!(paid > 0 && paid < 10 && paid as f64 * 5.0 <= 160.0, "{paid}");
    let refused = answers.iter().find_map(|answer| answer.as_ref().err()).unwrap();
    assert!(
        matches!(refused, ModelError::SpendLimit { reason } if reason.contains("limit of spending") && reason.contains("would take")),
        "{refused}"
    );
    let left = format!("the remaining {} calls", requests.len() - paid);
    let says = |answer: &Result<Outputs, ModelError>| {
        answer
            .as_ref()
            .is_err_and(|error| error.to_string().contains(&left))
    };
    assert!(answers.iter().any(says), "{left}: {answers:?}");
    // Continued with a higher limit, only what is missing is paid for.
    recording.spend_limit = Some(SpendLimit::new(1e6));
    let answers = model(&recording).model.run(&requests);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(server.calls(), 10);
    let again = model(&recording).model.run(&requests);
    assert_eq!(server.calls(), 10);
    let logits = |answer: &Result<Outputs, ModelError>| named(answer.as_ref().unwrap(), "logits").clone();
    assert_eq!(
        again.iter().map(logits).collect::<Vec<_>>(),
        answers.iter().map(logits).collect::<Vec<_>>()
    );
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let content = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(KEY));
    }
}

/// Only a refusal is free: an endpoint is paid for answers of no use, for one that breaks off and for one that comes too late.
#[test]
fn calls_that_fail_count_for_the_limit_of_spending() {
    let useless = good().replace("\"good\"", "\"who knows\"");
    let answers = [
        (ok(&useless), 5.0),
        (ok("<html>out of order</html>"), 100.0),
        (
            Does::Raw(
                vec![b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal".to_vec()],
                Ends::Closed,
            ),
            100.0,
        ),
        (Does::Hang, 100.0),
    ];
    for (answer, least) in answers {
        let said = answer.clone();
        let server = Server::start(move |_, _| said.clone());
        let mut limited = endpoint(&server, classify());
        limited.timeout = Duration::from_millis(200);
        limited.retry.retries = 0;
        limited.concurrency = 1.try_into().unwrap();
        // A call may cost some 150.
        limited.spend_limit = Some(SpendLimit::new(400.0));
        let requests: Vec<Inputs> = (0..80).map(|number| text(&number.to_string())).collect();
        let answers = model(&limited).model.run(&requests);
        let paid = server.calls() as f64;
        assert!(paid >= 1.0 && paid * least <= 400.0, "{answer:?}: {paid}");
        assert!(answers.iter().any(|answer| {
            answer
                .as_ref()
                .is_err_and(|error| error.to_string().contains("limit of spending"))
        }));
    }
    let server = Server::start(|_, _| Does::Answer(429, String::new(), Vec::new()));
    let mut limited = endpoint(&server, classify());
    limited.retry.retries = 0;
    limited.concurrency = 1.try_into().unwrap();
    limited.spend_limit = Some(SpendLimit::new(400.0));
    let requests: Vec<Inputs> = (0..20).map(|number| text(&number.to_string())).collect();
    model(&limited).model.run(&requests);
    assert_eq!(server.calls(), 20, "a refusal costs nothing");
}

/// Every variant had a limit of its own.
#[test]
fn a_limit_of_spending_holds_for_all_variants_together() {
    let server = Server::start(|_, _| ok(&good()));
    let limit = SpendLimit::new(10.0);
    let mut limited = endpoint(&server, classify());
    limited.spend_limit = Some(limit);
    limited.price = Some(Price {
        request: 1.0,
        input_tokens: 0.0,
        output_tokens: 0.0,
    });
    let requests: Vec<Inputs> = (0..8).map(|number| text(&number.to_string())).collect();
    assert!(model(&limited).model.run(&requests).iter().all(Result::is_ok));
    let answers = model(&limited).model.run(&requests);
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2);
    assert_eq!(server.calls(), 10);
}
