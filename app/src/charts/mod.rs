//! Pictures as SVG, in colours that suit light and dark pages.

pub mod bars;
pub mod deployment;
mod drawing;
pub mod graph;
pub mod grid;
pub mod panels;
