//! Streams of a language model, token by token, and clients that go away.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kaskade_actors::Service;
use kaskade_gateway::{AppOptions, Limits, Streaming};
use kaskade_models::{Continuous, Inputs, Model, ModelError, Outputs, Progress, Tensor};
use kaskade_testkit::{PATIENCE, wait_until};
use serde_json::{Value, json};

use crate::support::{Stand, events, request};

const COMPLETIONS: &str = "/v1/completions";

/// Generates one letter per step and request, with a pause.
struct Letters {
    running: Vec<(u64, usize)>,
    count: usize,
    pause: Duration,
    in_model: Arc<AtomicUsize>,
}

fn text(letters: usize) -> String {
    "abcdefghijklmnopqrstuvwxyz"
        .chars()
        .cycle()
        .take(letters)
        .collect()
}

impl Model for Letters {
    fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        panic!("it is continuous")
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

impl Continuous for Letters {
    fn submit(&mut self, number: u64, _: &Inputs) -> Result<(), ModelError> {
        self.running.push((number, 0));
        self.in_model.store(self.running.len(), Ordering::SeqCst);
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.running.retain(|(found, _)| *found != number);
        self.in_model.store(self.running.len(), Ordering::SeqCst);
    }

    fn step(&mut self) -> Vec<Progress> {
        std::thread::sleep(self.pause);
        let count = self.count;
        let stepped = self.running.iter_mut().map(|(number, done)| {
            *done += 1;
            let piece = text(*done).split_off(*done - 1);
            let end = (*done == count).then(|| {
                let tokens: Vec<i64> = (0..).take(count).collect();
                Ok(vec![
                    Tensor::from_texts("text", &[&text(count)]).unwrap(),
                    Tensor::from_i64("tokens", &[count], &tokens).unwrap(),
                    Tensor::from_f32("confidence", &[1], &[0.9]).unwrap(),
                    Tensor::from_texts("end", &["length"]).unwrap(),
                ])
            });
            Progress {
                number: *number,
                pieces: u32::try_from(*done).unwrap(),
                part: vec![
                    Tensor::from_texts("text", &[&piece]).unwrap(),
                    Tensor::from_i64("tokens", &[1], &[0]).unwrap(),
                ],
                end,
            }
        });
        let stepped = stepped.collect();
        self.running.retain(|(_, done)| *done < count);
        self.in_model.store(self.running.len(), Ordering::SeqCst);
        stepped
    }
}

fn stand(count: usize, pause: Duration, streaming: Streaming) -> (Stand, Arc<AtomicUsize>) {
    let in_model = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&in_model);
    let service = Service::new("app").model("letters", move || {
        Ok::<_, String>(Letters {
            running: Vec::new(),
            count,
            pause,
            in_model: Arc::clone(&counter),
        })
    });
    let options = AppOptions::new("app").max_budget(PATIENCE).streaming(streaming);
    (Stand::of(service, options, Limits::default()), in_model)
}

fn asked() -> String {
    json!({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}}).to_string()
}

fn texts(chunks: &[Value]) -> Vec<&str> {
    let texts = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str());
    texts.filter(|text| !text.is_empty()).collect()
}

#[test]
fn tokens_arrive_one_by_one_or_in_one_event() {
    for (streaming, pieces) in [(Streaming::AfterCertain, 5), (Streaming::Buffered, 1)] {
        let (stand, _) = stand(5, Duration::from_millis(20), streaming);
        let answer = stand.post(COMPLETIONS, &[], asked());
        let chunks = events(&answer.body);
        let texts = texts(&chunks);
        assert_eq!(
            (texts.concat().as_str(), texts.len()),
            ("abcde", pieces),
            "{streaming:?}"
        );
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 5);
        let page = String::from_utf8(stand.get("/metrics").body).unwrap();
        assert!(
            page.contains("kaskade_gateway_time_to_first_token_seconds_count{app=\"app\"} 1\n"),
            "{page}"
        );
    }
}

#[test]
fn the_request_of_a_client_that_goes_away_is_cancelled() {
    let (stand, in_model) = stand(100_000, Duration::from_millis(5), Streaming::AfterCertain);
    for body in [asked(), json!({"prompt": "x"}).to_string()] {
        let mut client = TcpStream::connect(stand.address()).unwrap();
        client
            .write_all(&request("POST", COMPLETIONS, &[], body.as_bytes()))
            .unwrap();
        if body.contains("stream") {
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
        }
        wait_until("the model has the request", PATIENCE, || {
            in_model.load(Ordering::SeqCst) == 1
        });
        drop(client);
        wait_until("the model has dropped it", PATIENCE, || {
            in_model.load(Ordering::SeqCst) == 0
        });
    }
}
