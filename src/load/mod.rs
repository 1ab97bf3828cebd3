//! Load: when requests arrive, the clients that send them, and what became of each.

pub(crate) mod arrivals;
pub(crate) mod drive;
pub(crate) mod record;
pub(crate) mod tracefile;
