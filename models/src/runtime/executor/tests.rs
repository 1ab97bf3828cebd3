use std::sync::mpsc::channel;

use super::*;
use crate::runtime::model::Continuous;
use crate::runtime::tensor::Tensor;

/// Test model: answers each request according to the number in its input.
struct Scripted;

fn number(value: f32) -> Inputs {
    vec![Tensor::from_f32("x", &[1], &[value]).unwrap()]
}

impl Model for Scripted {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let mut answers = Vec::new();
        for inputs in batch {
            let value = inputs[0].to_f32().unwrap()[0];
            assert!(value >= 0.0, "negative {value}");
            answers.push(match value as u32 {
                1 => Ok(vec![]),
                2 => Ok(number(f32::NAN)),
                3 => continue,
                4 => Err(failed("asked to".into())),
                _ => Ok(number(value)),
            });
        }
        answers
    }
}

fn scripted() -> Executor {
    Executor::spawn("scripted", || {
        Ok::<_, ModelError>(Box::new(Scripted) as Box<dyn Model>)
    })
    .unwrap()
}

fn outputs(executor: &Executor, values: &[f32]) -> Vec<Result<Outputs, ModelError>> {
    let (send, receive) = channel();
    let batch = values.iter().copied().map(number).collect();
    executor
        .run(batch, move |result| send.send(result).unwrap())
        .unwrap();
    receive.recv().unwrap().outputs
}

#[test]
fn invalid_outputs_fail_alone() {
    let answers = outputs(&scripted(), &[9.0, 1.0, 2.0, 4.0]);
    assert_eq!(answers[0], Ok(number(9.0)));
    assert!(matches!(answers[1], Err(ModelError::BadOutput { .. })));
    assert!(matches!(answers[2], Err(ModelError::BadOutput { .. })));
    assert_eq!(answers[3], Err(failed("asked to".into())));
}

#[test]
fn a_missing_result_fails_the_batch() {
    let answers = outputs(&scripted(), &[9.0, 3.0]);
    assert_eq!(
        answers,
        vec![Err(failed("it returned 1 results for 2 requests".into())); 2]
    );
}

#[test]
fn a_request_that_panics_fails_alone() {
    let executor = scripted();
    for size in 1..9 {
        for poisoned in 0..size {
            let mut values = vec![9.0; size];
            values[poisoned] = -1.0;
            let answers = outputs(&executor, &values);
            assert_eq!(answers.len(), size);
            for (place, answer) in answers.into_iter().enumerate() {
                let panicked = Err(failed("it panicked: negative -1".into()));
                let expected = if place == poisoned {
                    panicked
                } else {
                    Ok(number(9.0))
                };
                assert_eq!(answer, expected, "{place} of {size}, {poisoned} is poisoned");
            }
        }
    }
}

#[test]
fn a_model_that_always_panics_fails_every_request() {
    let answers = outputs(&scripted(), &[-1.0, -2.0, -3.0]);
    let panicked = |value: i32| Err(failed(format!("it panicked: negative {value}")));
    assert_eq!(answers, [-1, -2, -3].map(panicked));
}

#[test]
fn a_panicking_receiver_does_not_stop_the_model() {
    let executor = scripted();
    executor.run(vec![number(9.0)], |_| panic!("receiver")).unwrap();
    let mut batch = vec![number(8.0)];
    let (send, receive) = channel();
    loop {
        let send = send.clone();
        match executor.run(batch, move |result| send.send(result).unwrap()) {
            Ok(()) => break,
            Err(RunError::Busy(returned)) => batch = returned,
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
    assert_eq!(receive.recv().unwrap().outputs, [Ok(number(8.0))]);
}

#[test]
fn an_empty_batch_does_not_reach_the_model() {
    assert_eq!(outputs(&scripted(), &[]), []);
}

/// Test model: blocks in `run` until it is released.
struct Gated(Receiver<()>);

impl Model for Gated {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.0.recv().unwrap();
        batch.iter().cloned().map(Ok).collect()
    }
}

#[test]
fn one_batch_runs_at_a_time_and_done_may_submit_the_next() {
    let (go, gate) = channel();
    let build = move || Ok::<_, ModelError>(Box::new(Gated(gate)) as Box<dyn Model>);
    let executor = Arc::new(Executor::spawn("gated", build).unwrap());
    let (send, receive) = channel();
    let again = Arc::clone(&executor);
    executor
        .run(vec![number(1.0)], move |_| {
            let second = again.run(vec![number(2.0)], move |result| {
                send.send(result.outputs).unwrap();
            });
            second.unwrap();
        })
        .unwrap();
    assert!(executor.is_busy());
    let rejected = executor
        .run(vec![number(3.0)], |_| panic!("rejected"))
        .unwrap_err();
    assert!(matches!(rejected, RunError::Busy(batch) if batch == [number(3.0)]));
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(receive.recv().unwrap(), [Ok(number(2.0))]);
}

#[test]
fn the_last_handle_may_be_dropped_inside_done() {
    let executor = Arc::new(scripted());
    let (send, receive) = channel();
    let (release, released) = channel();
    let held = Arc::clone(&executor);
    executor
        .run(vec![number(9.0)], move |_| {
            released.recv().unwrap();
            drop(held);
            send.send(()).unwrap();
        })
        .unwrap();
    drop(executor);
    release.send(()).unwrap();
    receive.recv().unwrap();
}

#[test]
fn a_failed_build_is_reported() {
    let rejected = Executor::spawn("rejected", || Err::<Box<dyn Model>, _>(failed("no".into())));
    assert!(matches!(
        rejected,
        Err(SpawnError::Build(ModelError::Failed { .. }))
    ));
    let panicked = Executor::spawn("panicked", || -> Result<Box<dyn Model>, ModelError> {
        panic!("no device")
    });
    assert!(matches!(panicked, Err(SpawnError::Panicked { reason }) if reason == "no device"));
}

#[test]
fn time_is_measured() {
    struct Spin;
    impl Model for Spin {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let used = clocks::thread_us();
            while clocks::thread_us() - used < 3_000 {}
            batch.iter().cloned().map(Ok).collect()
        }
    }
    let executor = Executor::spawn("spin", || Ok::<_, ModelError>(Box::new(Spin) as Box<dyn Model>)).unwrap();
    let (send, receive) = channel();
    executor
        .run(vec![number(0.0)], move |result| send.send(result).unwrap())
        .unwrap();
    assert!(receive.recv().unwrap().run_us >= 3_000);
}

/// A continuous test model whose steps wait until they are released; its preprocessor does not wait for them.
struct Reading {
    entered: Sender<()>,
    gate: Receiver<()>,
    read: Sender<f32>,
    requests: Vec<(u64, Inputs)>,
}

impl Model for Reading {
    fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        Vec::new()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

impl Continuous for Reading {
    fn submit(&mut self, request: u64, inputs: &Inputs) -> Result<(), ModelError> {
        self.requests.push((request, inputs.clone()));
        Ok(())
    }

    fn cancel(&mut self, request: u64) {
        self.requests.retain(|(known, _)| *known != request);
    }

    fn preprocessor(&self) -> Option<Preprocessor> {
        let read = self.read.clone();
        Some(Arc::new(move |inputs| {
            let value = inputs[0].to_f32().unwrap()[0];
            read.send(value).unwrap();
            assert!(value >= 0.0, "negative {value}");
            (value < 10.0).then(|| number(value + 100.0))
        }))
    }

    fn step(&mut self) -> Vec<Progress> {
        self.entered.send(()).unwrap();
        self.gate.recv().unwrap();
        let ended = std::mem::take(&mut self.requests).into_iter();
        let progress = |(number, inputs)| Progress {
            number,
            pieces: 1,
            part: Outputs::new(),
            end: Some(Ok(inputs)),
        };
        ended.map(progress).collect()
    }
}

#[test]
fn requests_are_read_while_the_model_computes() {
    let ((go, gate), (entered, in_step), (read, was_read)) = (channel(), channel(), channel());
    let model = Reading {
        entered,
        gate,
        read,
        requests: Vec::new(),
    };
    let build = move || Ok::<_, ModelError>(Box::new(model) as Box<dyn Model>);
    let executor = Executor::spawn("reading", build).unwrap();
    let (send, steps) = channel();
    executor.listen(move |stepped: StepResult| send.send(stepped.progress).unwrap());
    let submit = |request, value| {
        assert!(executor.submit(request, number(value)));
        assert_eq!(was_read.recv().unwrap().to_bits(), f32::to_bits(value));
    };
    submit(1, 1.0);
    in_step.recv().unwrap();
    // The model is in a step that does not end before its release. Inputs that the preprocessor cannot parse stay
    // unchanged.
    submit(2, 2.0);
    submit(3, 3.0);
    executor.cancel(3);
    submit(4, 11.0);
    submit(5, -1.0);
    let mut answers = Vec::new();
    while answers.len() < 4 {
        go.send(()).unwrap();
        let progress: Vec<Progress> = steps.recv().unwrap();
        answers.extend(progress.into_iter().map(|progress| {
            let outputs = progress.end.unwrap().unwrap();
            (progress.number, outputs[0].to_f32().unwrap()[0])
        }));
    }
    answers.sort_by_key(|(request, _)| *request);
    assert_eq!(answers, [(1, 101.0), (2, 102.0), (4, 11.0), (5, -1.0)]);
}

/// Test model: reports the thread of each batch, and runs for the duration in its input, microseconds.
struct Inlined(Sender<std::thread::ThreadId>);

impl Model for Inlined {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let began = Instant::now();
        self.0.send(std::thread::current().id()).unwrap();
        let long = batch.iter().map(|inputs| inputs[0].to_f32().unwrap()[0]);
        let long = long.fold(0.0, f32::max);
        while began.elapsed().as_micros() < long as u128 {}
        Scripted.run(batch)
    }

    fn runs_inline(&self) -> bool {
        true
    }
}

fn inlined() -> (Executor, Receiver<std::thread::ThreadId>) {
    let (send, threads) = channel();
    let build = move || Ok::<_, ModelError>(Box::new(Inlined(send)) as Box<dyn Model>);
    (Executor::spawn("inlined", build).unwrap(), threads)
}

#[test]
fn a_model_that_runs_inline_has_answered_on_this_thread_when_run_returns() {
    let (executor, threads) = inlined();
    assert!(executor.is_inline());
    for (value, answer) in [
        (9.0, Ok(number(9.0))),
        (-1.0, Err(failed("it panicked: negative -1".into()))),
        (9.0, Ok(number(9.0))),
    ] {
        let (send, receive) = channel();
        executor
            .run(vec![number(value)], move |result| send.send(result).unwrap())
            .unwrap();
        let result = receive.try_recv().unwrap();
        assert_eq!(
            (result.outputs, result.inputs),
            (vec![answer], vec![number(value)])
        );
        assert_eq!(threads.try_recv().unwrap(), std::thread::current().id());
        assert!(!executor.is_busy());
    }
    let mut ended = executor;
    ended.end().wait();
    assert!(threads.recv().is_err(), "the model was dropped");
    let refused = ended.run(vec![number(1.0)], |_| panic!("ended")).unwrap_err();
    assert!(matches!(refused, RunError::Stopped(batch) if batch == [number(1.0)]));
}

#[test]
fn a_model_whose_inline_batches_take_long_gets_a_thread_of_its_own() {
    let (executor, threads) = inlined();
    let here = std::thread::current().id();
    let run = |value: f32| {
        assert_eq!(outputs(&executor, &[value]), [Ok(number(value))]);
        threads.recv().unwrap()
    };
    for _ in 0..3 {
        assert!(executor.is_inline());
        assert_eq!(run(1_500.0), here);
    }
    assert!(!executor.is_inline());
    let own = run(9.0);
    assert_ne!(own, here);
    assert_eq!(run(1_500.0), own);
}

#[test]
fn a_continuous_model_always_has_a_thread() {
    struct Steps(Reading);
    impl Model for Steps {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            self.0.run(batch)
        }

        fn runs_inline(&self) -> bool {
            true
        }

        fn continuous(&mut self) -> Option<&mut dyn Continuous> {
            self.0.continuous()
        }
    }
    let ((go, gate), (entered, _in_step), (read, _was_read)) = (channel(), channel(), channel());
    let model = Steps(Reading {
        entered,
        gate,
        read,
        requests: Vec::new(),
    });
    let build = move || Ok::<_, ModelError>(Box::new(model) as Box<dyn Model>);
    let executor = Executor::spawn("steps", build).unwrap();
    assert!(executor.is_continuous() && !executor.is_inline());
    let (send, steps) = channel();
    executor.listen(move |stepped: StepResult| send.send(stepped.progress).unwrap());
    assert!(executor.submit(1, number(1.0)));
    go.send(()).unwrap();
    assert_eq!(steps.recv().unwrap()[0].number, 1);
}
