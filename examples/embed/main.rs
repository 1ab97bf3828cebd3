//! A program that embeds Kaskade: profiles the digits family, plans a cascade, serves it on the embedded broker, and asks it.
//!
//! ```text
//! cargo run --release --example embed
//! ```

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use kaskade::app::data::{Label, reply::label_of};
use kaskade::app::load::requests::RequestSet;
use kaskade::{App, Client, Inputs, Profiler, Service, planning};

/// Samples of the test set to ask.
const ASKED: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/app.toml");
    let app = App::load(&file)?;

    // Short, to have an answer soon; the defaults measure more batch sizes, for longer.
    let profile = Profiler::new(&app)
        .batches([1, 32])
        .rounds(1)
        .measure_for(Duration::from_millis(20))
        .run()?;
    let planned = planning::cascade(&profile).app(&app).plan()?;
    println!(
        "planned a cascade of {} variants, {:.1} % right on the validation set",
        planned.plan.variants.len(),
        100.0 * planned.estimates.accuracy
    );

    let service = Service::builder(&app).plan(planned.plan).start()?;
    println!("serving `digits` on {}", service.url());

    let test_set = app.data.test.as_ref().ok_or("the app has no test set")?;
    let RequestSet::Samples(samples) = RequestSet::read(&app, test_set)? else {
        return Err("the test set has no labelled samples".into());
    };
    let questions = samples.inputs.into_iter().zip(samples.labels).take(ASKED);
    tokio::runtime::Runtime::new()?.block_on(ask(service.url(), questions))?;

    service.stop();
    println!("stopped");
    Ok(())
}

/// Sends a request through the broker, as a client in another process does.
async fn ask(url: &str, questions: impl Iterator<Item = (Inputs, Label)>) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(url, "digits").await?;
    let mut right = 0;
    for (image, label) in questions {
        let reply = client
            .tensors(image)
            .budget(Duration::from_secs(10))
            .send()
            .await?;
        let answer = label_of(&reply.outputs)?;
        println!("{label}: `{}` answered {answer}", reply.variant);
        right += usize::from(answer == label);
    }
    println!("{right} of {ASKED} right");
    client.close().await;
    Ok(())
}
