//! `kaskade explain`: cause and remedy of an error code.

use anyhow::Context as _;
use kaskade_actors::Code;
use kaskade_app::report::table::{Align, table};
use serde_json::json;

use crate::output;

/// Explains an error code: cause and remedy.
///
/// Without a code, it lists all codes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Error code, such as `KSK0007`, or its number [default: all codes].
    code: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the explanation.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Some(asked) = &args.code else {
        return list(args.json);
    };
    let code = Code::from_id(&id_of(asked)).with_context(|| {
        format!("`{asked}` is not an error code of this version; `kaskade explain` lists them all")
    })?;
    if args.json {
        return output::print_json(&as_json(code));
    }
    output::print(&format!("{} {}\n\n{}", code.id(), code.title(), code.explain()))
}

/// Returns the code that is asked for, of which the number alone may be given: `7`, `0007`.
fn id_of(asked: &str) -> String {
    match asked.parse::<u32>() {
        Ok(number) => format!("KSK{number:04}"),
        Err(_) => asked.to_ascii_uppercase(),
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    if json {
        let codes: Vec<_> = Code::ALL.iter().copied().map(as_json).collect();
        return output::print_json(&codes);
    }
    output::print(&table(
        [
            ("code", Align::Left),
            ("retry", Align::Left),
            ("meaning", Align::Left),
        ],
        Code::ALL.iter().map(|code| {
            [
                code.id().to_owned(),
                code.retry().to_owned(),
                code.title().to_owned(),
            ]
        }),
    ))
}

fn as_json(code: Code) -> serde_json::Value {
    json!({
        "code": code.id(),
        "status": code.status(),
        "retryable": code.retryable(),
        "title": code.title(),
        "explanation": code.explain(),
    })
}
