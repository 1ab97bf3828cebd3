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
