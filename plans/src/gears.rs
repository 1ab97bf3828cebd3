//! Gear plans: which cascade serves which load, on which devices, in which batches (CascadeServe §4).

mod balance;
mod models;
