//! An endpoint that is down makes its model unavailable, and comes back by itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kaskade_policy::remote::breaker::BreakerConfig;

use super::*;

#[test]
fn an_endpoint_that_is_down_makes_its_model_unavailable_until_it_answers() {
    let server = Server::start(|_, number| match number {
        0..4 => Does::Answer(500, String::new(), Vec::new()),
        _ => ok(&good()),
    });
    server.down.store(true, Ordering::SeqCst);
    let mut failing = endpoint(&server, classify());
    failing.retry.retries = 0;
    failing.breaker = BreakerConfig {
        failures: 3,
        pause_us: 30_000,
        max_pause_us: 60_000,
    };
    let mut large = model(&failing);
    let availability = large.model.availability().unwrap();
    assert!(availability.is_available(), "it is not called before a request");
    let mut ask = || large.model.run(&[text("fine")]).remove(0);
    for _ in 0..3 {
        assert!(ask().is_err());
    }
    becomes(&availability, false);
    // Many pauses later it is still down.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!availability.is_available());
    assert_eq!(server.calls(), 3, "health costs no request");
    server.down.store(false, Ordering::SeqCst);
    becomes(&availability, true);
    server.down.store(true, Ordering::SeqCst);
    assert!(
        ask().is_err() && server.calls() == 4,
        "the first request is the probe"
    );
    becomes(&availability, false);
    server.down.store(false, Ordering::SeqCst);
    becomes(&availability, true);
    assert!(ask().is_ok());
    becomes(&availability, true);
    assert!(ask().is_ok());
    assert!(availability.is_available());
}

/// The probe of the breaker is a request that its client gives up; the endpoint answers again.
#[test]
fn a_cancelled_probe_leaves_its_model_available_again() {
    let server = Server::start(|_, number| match number {
        0 => Does::Answer(500, String::new(), Vec::new()),
        1 => Does::Hang,
        _ => ok(&good()),
    });
    server.down.store(true, Ordering::SeqCst);
    let mut failing = endpoint(&server, classify());
    failing.retry.retries = 0;
    failing.breaker = BreakerConfig {
        failures: 1,
        pause_us: 30_000,
        max_pause_us: 30_000,
    };
    let executor = Executor::spawn("remote", move || connect(&failing).map(|loaded| loaded.model)).unwrap();
    let availability = executor.availability().unwrap().clone();
    let (sender, ends) = std::sync::mpsc::channel();
    executor.listen(move |stepped| {
        for progress in stepped.progress {
            drop(sender.send(progress));
        }
    });
    // The endpoint's list of models fails until a request is the probe, which hangs.
    let mut number = 0;
    while server.calls() < 2 {
        number += 1;
        assert!(executor.submit_within(number, text("fine"), Duration::from_mins(1)));
        while ends.try_recv().is_err() && server.calls() < 2 {
            std::thread::yield_now();
        }
    }
    becomes(&availability, false);
    // Meanwhile its pause ends, and the next question about its health is due.
    std::thread::sleep(Duration::from_millis(100));
    assert!(!availability.is_available(), "the probe has no outcome yet");
    server.down.store(false, Ordering::SeqCst);
    executor.cancel(number);
    becomes(&availability, true);
}

/// Each such answer counted as a sign of health.
#[test]
fn a_spent_balance_makes_a_model_unavailable() {
    let server = Server::start(|_, _| Does::Answer(402, String::new(), b"Insufficient Balance".to_vec()));
    server.down.store(true, Ordering::SeqCst);
    let mut broke = endpoint(&server, classify());
    broke.breaker = BreakerConfig::default();
    let mut large = model(&broke);
    for _ in 0..10 {
        assert!(large.model.run(&[text("fine")]).remove(0).is_err());
    }
    becomes(&large.model.availability().unwrap(), false);
    assert_eq!(server.calls(), 5, "an open breaker makes no calls");
}

/// A server that is up said nothing of the model that a request needs.
#[test]
fn an_endpoint_of_the_open_inference_protocol_is_asked_about_its_model() {
    let ready = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asked = Arc::clone(&ready);
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/v2" => ok("{}"),
        "/v2/health/ready" => ok(""),
        "/v2/models/m" => ok(r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]}"#),
        "/v2/models/m/ready" => match asked.fetch_add(1, Ordering::SeqCst) {
            0 => ok(r#"{"name": "m", "ready": false}"#),
            1..3 => Does::Answer(400, String::new(), Vec::new()),
            _ => ok(""),
        },
        _ => Does::Answer(503, String::new(), Vec::new()),
    });
    let mut oip = endpoint(&server, classify());
    oip.base_url = server.url();
    oip.api = Api::Oip {
        model: "m".to_owned(),
        version: None,
    };
    oip.retry.retries = 0;
    oip.breaker = BreakerConfig {
        failures: 1,
        pause_us: 20_000,
        max_pause_us: 20_000,
    };
    let mut loading = model(&oip);
    let availability = loading.model.availability().unwrap();
    let request = vec![Tensor::from_f32("x", &[2], &[0.5, 2.0]).unwrap()];
    assert!(loading.model.run(&[request]).remove(0).is_err());
    // The model is not ready three times.
    wait_until("the model is ready", Duration::from_secs(20), || {
        ready.load(Ordering::SeqCst) >= 4
    });
    becomes(&availability, true);
}
