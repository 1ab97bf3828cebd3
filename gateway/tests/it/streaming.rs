//! Streams of a language model, token by token, and clients that go away.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kaskade_actors::Service;
use kaskade_actors::bus::BusConfig;
use kaskade_gateway::{AppOptions, Gateway, Limits, Streaming};
use kaskade_models::{Continuous, Inputs, Model, ModelError, Outputs, Progress, Tensor};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{TIMEOUT, wait_until};
use serde_json::{Value, json};

use crate::support::{Stand, events, request};

const COMPLETIONS: &str = "/v1/completions";

/// Generates one letter per step and request, with a pause.
struct Letters {
    running: Vec<(u64, usize)>,
    /// The letter that all answers begin with.
    first: char,
    sure: f32,
    count: usize,
    pause: Duration,
    in_model: Arc<AtomicUsize>,
}

fn text(first: char, letters: usize) -> String {
    "abcdefghijklmnopqrstuvwxyz"
        .chars()
        .cycle()
        .skip_while(|letter| *letter != first)
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
        let (count, first, sure) = (self.count, self.first, self.sure);
        let stepped = self.running.iter_mut().map(|(number, done)| {
            *done += 1;
            let piece = text(first, *done).split_off(*done - 1);
            let end = (*done == count).then(|| {
                let tokens: Vec<i64> = (0..).take(count).collect();
                Ok(vec![
                    Tensor::from_texts("text", &[&text(first, count)]).unwrap(),
                    Tensor::from_i64("tokens", &[count], &tokens).unwrap(),
                    Tensor::from_f32("confidence", &[1], &[sure]).unwrap(),
                    Tensor::from_texts("end", &["length"]).unwrap(),
                    Tensor::from_i64("usage", &[2], &[1, i64::try_from(count).unwrap()]).unwrap(),
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

pub(crate) fn stand(count: usize, pause: Duration, streaming: Streaming) -> (Stand, Arc<AtomicUsize>) {
    stand_within(Limits::default(), count, pause, streaming)
}

pub(crate) fn stand_within(
    limits: Limits,
    count: usize,
    pause: Duration,
    streaming: Streaming,
) -> (Stand, Arc<AtomicUsize>) {
    let in_model = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&in_model);
    let service = Service::new("app").model("letters", move || {
        Ok::<_, String>(Letters {
            running: Vec::new(),
            first: 'a',
            sure: 0.9,
            count,
            pause,
            in_model: Arc::clone(&counter),
        })
    });
    let options = AppOptions::new("app").max_budget(TIMEOUT).streaming(streaming);
    (Stand::of(service, options, limits), in_model)
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

/// A cascade of two: the small model says `abc`, is not sure, and the large one says `mnopq`.
fn cascade(streaming: Streaming) -> Stand {
    let plan = Plan::cascade("app")
        .stage("first", "small")
        .below(0.75)
        .then("second", "large");
    let letters = |first, count, sure| {
        move || {
            Ok::<_, String>(Letters {
                running: Vec::new(),
                first,
                sure,
                count,
                pause: Duration::from_millis(10),
                in_model: Arc::default(),
            })
        }
    };
    let service = Service::new("app")
        .plan(plan.build().unwrap())
        .model("small", letters('a', 3, 0.2))
        .model("large", letters('m', 5, 0.9));
    let options = AppOptions::new("app").max_budget(TIMEOUT).streaming(streaming);
    Stand::of(service, options, Limits::default())
}

#[test]
fn an_optimistic_stream_retracts_what_a_later_stage_replaces() {
    let stand = cascade(Streaming::Optimistic);
    let two = json!({"prompt": "x", "n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let chunks = events(&stand.post(COMPLETIONS, &[], two.to_string()).body);
    for index in 0..2 {
        let of: Vec<&Value> = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .collect();
        let retractions: Vec<usize> = (0..of.len())
            .filter(|place| of[*place]["kaskade"]["retracted"] == true)
            .collect();
        assert_eq!(retractions.len(), 1, "{of:?}");
        let (before, after) = of.split_at(retractions[0]);
        let said = |chunks: &[&Value]| -> String {
            let texts = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["text"].as_str());
            texts.collect()
        };
        assert_eq!(
            (said(before), said(after)),
            ("abc".to_owned(), "mnopq".to_owned())
        );
        let retracted = &after[0]["kaskade"];
        assert_eq!(
            (&retracted["stage"], &retracted["characters"]),
            (&json!("first"), &json!(3))
        );
        let last = after.last().unwrap();
        assert_eq!(last["kaskade"]["variant"], "large");
    }
    // The same cascade without the setting never shows the small model's text.
    let stand = cascade(Streaming::AfterCertain);
    let chunks = events(&stand.post(COMPLETIONS, &[], asked()).body);
    assert_eq!(texts(&chunks).concat(), "mnopq");
    // An API that cannot retract shows only what stays.
    let stand = cascade(Streaming::Optimistic);
    let answer = stand.post(
        "/v1/responses",
        &[],
        json!({"input": "x", "stream": true}).to_string(),
    );
    let text = String::from_utf8(answer.body).unwrap();
    assert!(
        text.contains("mnopq") && !text.contains(r#""delta":"a""#),
        "{text}"
    );
}

#[test]
fn the_request_of_a_client_that_goes_away_is_cancelled() {
    let (stand, in_model) = stand(100_000, Duration::from_millis(5), Streaming::AfterCertain);
    // A gateway that asks over the broker.
    let apart = Gateway::listen("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
    let options = AppOptions::new("app").max_budget(TIMEOUT);
    let bus = BusConfig::new("app").url(stand.node.bus().url());
    apart.serve(options, bus).unwrap();
    let bodies = [asked(), json!({"prompt": "x"}).to_string()];
    let ways = [stand.address(), apart.address()].into_iter();
    for (address, body) in ways.flat_map(|way| bodies.iter().map(move |body| (way, body))) {
        let mut client = TcpStream::connect(address).unwrap();
        client
            .write_all(&request("POST", COMPLETIONS, &[], body.as_bytes()))
            .unwrap();
        if body.contains("stream") {
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
        }
        wait_until("the model has the request", TIMEOUT, || {
            in_model.load(Ordering::SeqCst) == 1
        });
        drop(client);
        wait_until("the model has dropped it", TIMEOUT, || {
            in_model.load(Ordering::SeqCst) == 0
        });
    }
}
