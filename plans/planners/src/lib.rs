//! Planners: compute plans from profiles and objectives.
//!
//! They call the policies that serve ([`kaskade_policy`]) and simulate what they propose ([`kaskade_simulator`]). They use no network and no clock
//! except for the time limit of a solver; the same seed gives the same plan.
//!
//! | module | holds |
//! |---|---|
//! | [`calibration`] | confidence calibration: the temperature, fitted by negative log likelihood, and the calibration error |
//! | [`thresholds`] | the accuracy-energy frontier of a cascade, and its named points |
//! | [`skips`] | variants to drop, and skip connections |
//! | [`cascade`] | cascade plans from a profile |
//! | [`certify`] | cascades whose accuracy is proven on samples that they were not chosen on |
//! | [`deferral`] | scores that decide on escalation: fitted, and chosen per stage by cross-validation |
//! | [`envelope`] | cascades of a family and of its small subsets, with chosen scores |
//! | `forecast` | what cascades are expected to do on new samples, smoothed |
//! | [`device`] | devices that plans may use |
//! | [`placement`] | replicas and partitions of a cascade on devices (HybridServe) |
//! | [`gears`] | gear plans: cascades, placement and batching by load |
//! | [`allocate`] | which variants serve a pipeline, on how many workers: hardware and accuracy scaling |
//! | [`balance`] | which requests of a pipeline go to which workers, the most accurate first |
//! | [`demand`] | inputs of planning for a pipeline: demand, multiplicative factors and run times, learned while serving |
//! | [`manager`] | runs the allocator and the balancer over time: demand to plan for, time of planning, routing in between |
//! | [`pareto`] | Pareto fronts and upper hulls of points with a cost and a gain |
//! | [`lp`] | linear programs and their solvers |
//! | [`reference`](mod@reference) | exact solutions and baselines that the planners are judged by |

pub mod allocate;
pub mod balance;
pub mod calibration;
pub mod cascade;
pub mod certify;
pub mod deferral;
pub mod demand;
pub mod device;
pub mod envelope;
mod forecast;
pub mod gears;
pub mod lp;
pub mod manager;
pub mod pareto;
pub mod placement;
pub mod reference;
pub mod skips;
pub mod thresholds;
