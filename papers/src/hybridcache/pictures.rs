//! Figures 3, 4, 6 and 11 to 15 drawn again.

use std::path::Path;

use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::report;
use kaskade_simulator::offload::Mode;
use kaskade_simulator::offload::decoders as stated;

use super::field::{self, Run};
use super::motivation::Motivation;
use super::policy::{self, Line};
use super::traffic::{BATCHES, Pair, of_batch};
use crate::charts::bars::{self, Bars};
use crate::reproduction::Reproduction;

/// The data of all pictures.
pub(super) struct Drawn<'a> {
    /// §3.
    pub(super) motivation: &'a Motivation,
    /// Figure 11.
    pub(super) lines: &'a [Line; 2],
    /// Figure 12.
    pub(super) runs: &'a [Run],
    /// Figures 13 and 14.
    pub(super) pairs: &'a [Pair],
    /// Figure 15.
    pub(super) ablation: &'a [Run],
}

/// Draws everything.
///
/// # Errors
/// When a picture cannot be drawn or written.
pub(super) fn draw(drawn: &Drawn<'_>, out: &Path, found: &mut Reproduction) -> anyhow::Result<()> {
    let mut write = |name: &str, svg: String| {
        let file = out.join(format!("hybridcache-{name}.svg"));
        report::write_file(&file, &svg)?;
        found.files.push(file);
        anyhow::Ok(())
    };
    write("batches", panels::svg(&batches(drawn.motivation))?)?;
    write("recomputation", panels::svg(&again(drawn.motivation))?)?;
    write("layer", bars::svg(&layers(drawn.motivation))?)?;
    write("lines", panels::svg(&lines(drawn.lines))?)?;
    for shape in stated::opt_models() {
        let picture = throughput(drawn.runs, &shape.name);
        write(&format!("throughput-{}", shape.name), bars::svg(&picture)?)?;
    }
    for requests in BATCHES {
        let name = format!("traffic-{requests}");
        write(&name, bars::svg(&traffic(drawn.pairs, requests))?)?;
    }
    write("utilisation", bars::svg(&utilisation(drawn.pairs))?)?;
    write("ablation", bars::svg(&ablation(drawn.ablation))?)
}

fn series(name: &str, points: &[(f64, f64)]) -> Series {
    Series {
        name: name.to_owned(),
        points: points.to_vec(),
        shape: Shape::Marked,
    }
}

fn panel(axis: &str, series: Vec<Series>) -> Panel {
    Panel {
        axis: axis.to_owned(),
        series,
        ..Panel::default()
    }
}

fn batches(motivation: &Motivation) -> Panels {
    let by_prompt = motivation.speeds.iter();
    let speeds = by_prompt.map(|(prompt, points)| series(&format!("prompts of {prompt}"), points));
    Panels {
        title: "OPT-30B: FlexGen's schedule by batch (Figure 3)".to_owned(),
        axis: "requests".to_owned(),
        rows: vec![
            panel("tokens/s", speeds.collect()),
            panel(
                "keys and values (GB)",
                vec![series("1024 tokens", &motivation.gigabytes)],
            ),
        ],
    }
}

fn again(motivation: &Motivation) -> Panels {
    let by_model = motivation.again.iter();
    let steps = by_model.map(|(model, steps)| {
        let points: Vec<(f64, f64)> = steps
            .iter()
            .map(|(share, ratio)| (100.0 * share, *ratio))
            .collect();
        series(model, &points)
    });
    Panels {
        title: "token recomputation, 64 requests (Figure 4)".to_owned(),
        axis: "context computed again (%)".to_owned(),
        rows: vec![Panel {
            level: Some((1.0, "without".to_owned())),
            ..panel("step time, times that without", steps.collect())
        }],
    }
}

fn layers(motivation: &Motivation) -> Bars {
    let groups = motivation.layers.iter();
    Bars {
        title: "OPT-30B: a layer by tokens and by activations, requests and tokens (Figure 6)".to_owned(),
        axis: "milliseconds".to_owned(),
        names: ["token recomputation", "activation recomputation"]
            .map(str::to_owned)
            .to_vec(),
        groups: groups
            .map(|(name, times)| (name.clone(), times.to_vec()))
            .collect(),
    }
}

fn lines(lines: &[Line; 2]) -> Panels {
    let [kv_gen, load_kv] = lines;
    let in_ms = |name: &str, line: &Line| {
        let points: Vec<(f64, f64)> = line.points.iter().map(|(tokens, s)| (*tokens, 1e3 * s)).collect();
        series(&format!("{name} (R^2 {:.4})", line.r2), &points)
    };
    Panels {
        title: "OPT-30B: a layer's KV Gen and KV load, sampled (Figure 11)".to_owned(),
        axis: "tokens".to_owned(),
        rows: vec![panel(
            "milliseconds",
            vec![in_ms("T_kv_gen", kv_gen), in_ms("T_load_kv", load_kv)],
        )],
    }
}

fn throughput(runs: &[Run], model: &str) -> Bars {
    let compared = [
        Mode::NoMiniBatches,
        Mode::Kv,
        Mode::Tokens,
        Mode::Act,
        Mode::Hybrid,
    ];
    let of_model = || runs.iter().filter(|run| run.model == model);
    let prompts = of_model().filter(|run| run.mode == Mode::Hybrid);
    let groups = prompts.map(|hybrid| {
        let speed = |mode: Mode| {
            let run = of_model().find(|run| run.mode == mode && run.load == hybrid.load);
            run.map_or(f64::NAN, Run::speed)
        };
        (format!("{}", hybrid.load.prompt), compared.map(speed).to_vec())
    });
    Bars {
        title: format!("{model}: throughput by tokens of a prompt (Figure 12)"),
        axis: "tokens/s".to_owned(),
        names: compared.map(|mode| field::name(mode).to_owned()).to_vec(),
        groups: groups.collect(),
    }
}

fn traffic(pairs: &[Pair], requests: usize) -> Bars {
    let groups = of_batch(pairs, requests).map(|pair| {
        let (kv, hybrid) = (pair.kv.outcome.decode.traffic, pair.hybrid.outcome.decode.traffic);
        let terabytes = [kv.kv, hybrid.kv, hybrid.act].map(|bytes| bytes as f64 / 1e12);
        (format!("{}", pair.kv.load.prompt), terabytes.to_vec())
    });
    Bars {
        title: format!(
            "OPT-30B, {requests} requests: what the link carries, by tokens of a prompt (Figure 13)"
        ),
        axis: "terabytes while tokens are generated".to_owned(),
        names: ["KV only: KV", "hybrid: KV", "hybrid: ACT"]
            .map(str::to_owned)
            .to_vec(),
        groups: groups.collect(),
    }
}

fn utilisation(pairs: &[Pair]) -> Bars {
    let groups = pairs.iter().map(|pair| {
        let load = pair.kv.load;
        let shares = [&pair.kv, &pair.hybrid].map(|run| 100.0 * run.outcome.busy_share());
        (format!("{}x{}", load.requests, load.prompt), shares.to_vec())
    });
    Bars {
        title: "OPT-30B: GPU utilisation, requests x tokens of a prompt (Figure 14)".to_owned(),
        axis: "share of time busy (%)".to_owned(),
        names: [Mode::Kv, Mode::Hybrid]
            .map(|mode| field::name(mode).to_owned())
            .to_vec(),
        groups: groups.collect(),
    }
}

fn ablation(runs: &[Run]) -> Bars {
    let prompt = runs.first().map_or(0, |run| run.load.prompt);
    Bars {
        title: format!("what each part adds, prompts of {prompt} (Figure 15)"),
        axis: "throughput, times ACT only".to_owned(),
        names: [Mode::Act, Mode::Even, Mode::Algorithm1, Mode::Hybrid]
            .map(|mode| field::name(mode).to_owned())
            .to_vec(),
        groups: policy::speeds(runs),
    }
}
