//! The bodies of the fuzz targets: each takes any bytes and panics only where a promise is broken.
//!
//! They are compiled, linted and run over their corpus on stable (`tests/smoke`); `fuzz/fuzz_targets` hands the same functions
//! to `libFuzzer`. `docs/contributing/fuzzing.md` says what each promises.
//!
//! | module | holds |
//! |---|---|
//! | [`plans`] | plans, profiles, pipelines, traces, and the simulator on any plan that is sound |
//! | [`wire`] | wire messages |
//! | [`round_trip`] | messages and bodies of clients that are decoded and encoded again |
//! | `target` | a target: its name, its body, its limits |
//! | [`kinds`] | a target for each wire message |
//! | [`receivers`] | what the receivers of messages do with them |
//! | [`chunks`] | messages in chunks |
//! | [`names`] | subjects and headers |
//! | [`files`] | an app's TOML, safetensors, GGUF, `config.json`, IDX files |
//! | [`checkpoint`] | whole checkpoints, their configuration and header edited |
//! | [`script`] | the input of a target, read as a list of decisions |
//! | [`edit`] | edits of a valid JSON tree, for what arbitrary bytes never get past |
//! | [`corpus`] | the inputs that lie in the repository |
//! | [`seeds`] | the corpus, made from messages and files of this repository |
//! | [`messages`] | one of every message |
#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a target panics where a promise is broken; that is what it is for"
)]

#[cfg(feature = "serving")]
pub mod checkpoint;
#[cfg(feature = "serving")]
pub mod chunks;
pub mod corpus;
pub mod edit;
#[cfg(feature = "serving")]
pub mod files;
#[cfg(feature = "serving")]
pub mod kinds;
#[cfg(feature = "serving")]
pub mod messages;
#[cfg(feature = "serving")]
pub mod names;
pub mod plans;
#[cfg(feature = "serving")]
pub mod receivers;
#[cfg(feature = "serving")]
pub mod round_trip;
pub mod script;
#[cfg(feature = "serving")]
pub mod seeds;
mod target;
#[cfg(feature = "serving")]
pub mod wire;

pub use target::Target;
use target::target;

/// The targets of what planners read and write.
const PLANNING: &[Target] = &[
    target("plan", plans::plan, 4_000, 4 << 10),
    target("plan_edited", plans::plan_edited, 4_000, 64 << 10),
    target("profile", plans::profile, 4_000, 4 << 10),
    target("profile_edited", plans::profile_edited, 4_000, 4 << 10),
    target("pipeline", plans::pipeline, 4_000, 4 << 10),
    target("pipeline_edited", plans::pipeline_edited, 4_000, 4 << 10),
    target("trace", plans::trace, 4_000, 64 << 10),
    target("branch", plans::branch, 4_000, 1 << 10),
];

/// The targets of what serves.
#[cfg(feature = "serving")]
const SERVING: &[Target] = &[
    target("wire", wire::wire, 4_000, 4 << 10),
    target("body", round_trip::body, 4_000, 4 << 10),
    target("chunks", chunks::chunks, 4_000, 4 << 10),
    target("subjects", names::subjects, 4_000, 1 << 10),
    target("headers", names::headers, 4_000, 1 << 10),
    target("app", files::app, 4_000, 16 << 10),
    target("weights", files::weights, 4_000, 4 << 10),
    target("gguf", files::gguf, 500, 1 << 20),
    target("hf_config", files::hf_config, 4_000, 128 << 10),
    target("idx", files::idx, 4_000, 1 << 10),
    target("checkpoint", checkpoint::checkpoint, 2_000, 1 << 20),
];
#[cfg(not(feature = "serving"))]
const SERVING: &[Target] = &[];

/// The targets of single messages.
#[cfg(feature = "serving")]
use kinds::KINDS;
#[cfg(not(feature = "serving"))]
const KINDS: &[Target] = &[];

/// Every target.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    PLANNING.iter().chain(SERVING).chain(KINDS)
}

/// Runs a target over an input; `libFuzzer`'s programs call it with their own names.
///
/// # Panics
/// When the input breaks a promise, or when there is no target of that name.
pub fn run(name: &str, input: &[u8]) {
    let target = targets().find(|target| target.name == name);
    (target.expect("each program has the name of a target").run)(input);
}
