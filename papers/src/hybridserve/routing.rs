//! Cost of routing by confidence, by the size of the prediction and the number of models (§VI-D, Figure 8).

use std::hint::black_box;
use std::path::Path;

use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::report::progress::timed;
use kaskade_app::report::{self, units};
use kaskade_policy::confidence::{Calibration, Estimator, Scores};
use kaskade_policy::plan::{Band, Edge, Exit};
use kaskade_policy::routing;

use crate::reproduction::{Claim, Reproduction};

/// Bytes of the prediction vectors: from 1 kB to 1 MB.
const SIZES: [usize; 6] = [1 << 10, 1 << 12, 1 << 14, 50_000, 1 << 18, 1 << 20];

/// Models that a result may be sent on to.
const MODELS: [usize; 4] = [2, 3, 4, 5];

/// The paper's times at 1 MB and 5 models, and at the 50 kB of GPT, seconds.
const PAPER_MAX_S: f64 = 0.1;
const PAPER_GPT_S: f64 = 1e-3;

/// Bytes that are routed at each size, so that the small ones are timed over many results.
const BYTES: usize = 32 << 20;

/// Times the routing of results and draws it.
///
/// # Errors
/// When a result has no confidence, or the picture cannot be written.
pub(super) fn compare(out: &Path, found: &mut Reproduction) -> anyhow::Result<()> {
    let mut series = Vec::new();
    let (mut largest, mut gpt) = (0.0_f64, 0.0_f64);
    for models in MODELS {
        let exit = exit(models);
        let mut points = Vec::new();
        for size in SIZES {
            let seconds = each(&exit, size)?;
            points.push((size as f64 / 1e3, seconds * 1e6));
            if size == 50_000 {
                gpt = gpt.max(seconds);
            }
            largest = largest.max(seconds);
        }
        series.push(Series {
            name: format!("{models} models"),
            points,
            shape: Shape::Marked,
        });
    }
    let met = largest <= PAPER_MAX_S && gpt <= PAPER_GPT_S;
    found.claims.push(Claim {
        name: "routing a result: 1 MB over five models, and GPT's 50 kB".to_owned(),
        paper: "about 100 ms, and within 1 ms".to_owned(),
        ours: format!("{} and {}", units::seconds(largest), units::seconds(gpt)),
        met,
        note: if met {
            "confidence and band; nearly all of it is the softmax, whatever the number of models".to_owned()
        } else {
            "slower than the paper's; the machine may be busy".to_owned()
        },
    });
    let file = out.join("hybridserve-routing.svg");
    let picture = Panels {
        title: "time to route a result, by the size of the prediction".to_owned(),
        axis: "prediction (kB)".to_owned(),
        rows: vec![Panel {
            axis: "time (\u{b5}s)".to_owned(),
            series,
            ..Panel::default()
        }],
    };
    report::write_file(&file, &panels::svg(&picture)?)?;
    found.files.push(file);
    Ok(())
}

/// Bands that lead to as many models, or reply.
fn exit(models: usize) -> Exit {
    let band = |place: usize| {
        let from = place as f64 / models as f64;
        match place + 1 {
            last if last == models => Band::reply(from),
            _ => Band::forward(from, Edge::to(format!("m{}", models - place))),
        }
    };
    Exit::Bands {
        bands: (0..models).map(band).collect(),
    }
}

/// Seconds to route one result of this many bytes.
fn each(exit: &Exit, bytes: usize) -> anyhow::Result<f64> {
    let calibration = Calibration {
        estimator: Estimator::MaxSquared,
        temperature: 1.3,
    };
    let logits: Vec<f32> = (0..bytes / 4).map(|place| (place % 97) as f32 / 10.0).collect();
    let rounds = (BYTES / bytes).max(1);
    let (done, took) = timed(|| {
        for _ in 0..rounds {
            let confidence = calibration.confidence(&Scores::Logits(black_box(&logits)))?;
            black_box(routing::route(exit, Some(confidence))?);
        }
        anyhow::Ok(())
    });
    done?;
    Ok(took.as_secs_f64() / rounds as f64)
}
