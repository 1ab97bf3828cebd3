//! The planners: from profiles and objectives to plans.
//!
//! They call the policies that serve ([`kaskade_policy`]) and simulate what they propose ([`kaskade_simulator`]). No clock but for the
//! time limit of a solver, no network; the same seed gives the same plan.
//!
//! | module | holds |
//! |---|---|
//! | [`calibration`] | confidence calibration: the temperature, fitted by negative log likelihood, and the calibration error |
//! | [`thresholds`] | the accuracy-energy frontier of a cascade, and its named points |
//! | [`skips`] | variants that do not pay, and connections that skip some |
//! | [`cascade`] | from a profile to a plan |
//! | [`device`] | devices that plans may use |
//! | [`placement`] | replicas and partitions of a cascade on devices (HybridServe) |
//! | [`gears`] | gear plans: cascades, placement and batching by load |
//! | [`allocate`] | which variants serve a pipeline, on how many workers: hardware and accuracy scaling |
//! | [`balance`] | which requests of a pipeline go to which workers, the most accurate first |
//! | [`demand`] | what a pipeline is planned for: demand, multiplicative factors and run times, learned while serving |
//! | [`manager`] | allocator and balancer over time: what to plan for, when, and how requests are routed in between |
//! | [`lp`] | linear programs and their solvers |

pub mod allocate;
pub mod balance;
pub mod calibration;
pub mod cascade;
pub mod demand;
pub mod device;
pub mod gears;
pub mod lp;
pub mod manager;
pub mod placement;
pub mod skips;
pub mod thresholds;
