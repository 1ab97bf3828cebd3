//! The self-test as a program of its own: no actors, no bus, one JSON object on standard output.
//!
//! ```text
//! cargo run --release -p kaskade-models --example selftest -- [cpu|cuda|cuda:N] [quick|standard|full]
//! ```

use std::io::Write;
use std::process::ExitCode;

use kaskade_models::{SelftestExtent, SelftestOptions, selftest};

fn main() -> ExitCode {
    let mut options = SelftestOptions::default();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "quick" => options.extent = SelftestExtent::Quick,
            "standard" => options.extent = SelftestExtent::Standard,
            "full" => options.extent = SelftestExtent::Full,
            device => match device.parse() {
                Ok(device) => options.device = device,
                Err(error) => {
                    eprintln!("{error}");
                    return ExitCode::from(64);
                }
            },
        }
    }
    let report = selftest(&options, &mut |step| eprintln!("{step}"));
    let written = serde_json::to_string_pretty(&report)
        .map_err(std::io::Error::from)
        .and_then(|json| writeln!(std::io::stdout(), "{json}"));
    match written {
        Ok(()) if report.passed => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the report could not be written: {error}");
            ExitCode::FAILURE
        }
    }
}
