mod load;
mod report;
mod verbs { pub mod schema; }
use clap::Parser;
#[derive(Debug, Parser)]
enum Verb { Schema(verbs::schema::Args) }
fn main() { let Verb::Schema(a) = Verb::parse(); report::log::init(); if let Err(e) = verbs::schema::run(&a) { report::refuse(&e); } }
