//! A fuzz target: its name, its body, its limits.

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, as cargo-fuzz knows it.
    pub name: &'static str,
    /// Its body.
    pub run: fn(&[u8]),
    /// Mutations in the smoke run: as many as take a few tenths of a second.
    pub mutations: u32,
    /// What one run may allocate in all, KiB beside 256 times its input.
    pub max_kib: usize,
}

/// Creates a target.
pub(crate) const fn target(name: &'static str, run: fn(&[u8]), mutations: u32, max_kib: usize) -> Target {
    Target {
        name,
        run,
        mutations,
        max_kib,
    }
}
