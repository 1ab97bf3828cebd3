//! Data of a family: labelled images and the family's manifest.

pub mod idx;
pub mod manifest;
