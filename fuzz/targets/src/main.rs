//! `kaskade-fuzz replay <target> <file>...` runs a target over inputs; `kaskade-fuzz seeds` writes the corpus.

use std::process::ExitCode;

use kaskade_fuzz_targets::{seeds, targets};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["seeds"] => seeds::write().map_err(|error| error.to_string()),
        ["replay", target, files @ ..] if !files.is_empty() => replay(target, files),
        _ => Err("usage: kaskade-fuzz seeds | replay <target> <file>...".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn replay(name: &str, files: &[&str]) -> Result<(), String> {
    let target = targets().find(|target| target.name == name);
    let target = target.ok_or_else(|| {
        let names: Vec<&str> = targets().map(|target| target.name).collect();
        format!("there is no target `{name}`; there are {}", names.join(", "))
    })?;
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        (target.run)(&input);
        eprintln!("{file}: {name} keeps its promises");
    }
    Ok(())
}
