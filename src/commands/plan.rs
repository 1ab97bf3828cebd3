//! `kaskade plan`: writes and deploys plans; one file per subcommand.

pub(crate) mod cache;
pub(crate) mod cascade;
pub(crate) mod gears;
pub(crate) mod pipeline;
pub(crate) mod placement;
pub(crate) mod request;
pub(crate) mod store;

/// Plans a cascade, gears, a pipeline, a placement or a cache, and deploys plans.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Planner {
    Cascade(cascade::Args),
    Gears(Box<gears::Args>),
    Pipeline(pipeline::Args),
    Placement(Box<placement::Args>),
    Cache(Box<cache::Args>),
    Request(request::Args),
    Apply(store::Apply),
    Get(store::Get),
    History(store::History),
    Rollback(store::Rollback),
}
