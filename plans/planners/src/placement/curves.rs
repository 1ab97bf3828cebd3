//! The cost of a batch: kernel time, memory, latency and transfers by its size, as lines beside their samples (§V-D, lines 1 to 4 of
//! Algorithm 3).

use serde::Serialize;

use super::channel::{Channel, Channels, Route};
use super::error::{Figure, PlacementError};
use super::options::PlacementOptions;
use kaskade_policy::linear_fit::LinearFit;
use kaskade_policy::profile::{BatchCost, VariantProfile};

/// A line and what it was fitted through.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurveFit {
    /// The line, with its `R^2`.
    pub line: LinearFit,
    /// Batch size and figure, as measured; none where the line was given.
    pub samples: Vec<(f64, f64)>,
}

impl CurveFit {
    /// `None` without samples, or with one that is not finite.
    fn new(samples: Vec<(f64, f64)>) -> Option<Self> {
        let line = LinearFit::of(samples.iter().copied())?;
        Some(Self { line, samples })
    }

    /// The figure of a batch of this size. A line may cross zero on its way to small batches: no request is cheaper than in the best
    /// batch that was measured.
    pub fn of_batch(&self, batch: f64) -> f64 {
        let ratios = self.samples.iter().map(|(batch, figure)| figure / batch);
        let cheapest = ratios.fold(f64::INFINITY, f64::min);
        let floor = if cheapest.is_finite() {
            cheapest * batch
        } else {
            0.0
        };
        self.line.at(batch).max(floor)
    }

    /// Returns the figure for all requests of a period: fewer than one request count as a fraction of a batch of one, and more than the
    /// largest batch as several of those.
    pub fn per_period(&self, requests: f64, largest: f64) -> f64 {
        let batch = requests.clamp(1.0, largest.max(1.0));
        requests / batch * self.of_batch(batch)
    }

    /// The figure of a batch of this size where it is held and not spent: no less than in the smallest batch measured.
    pub fn held(&self, batch: f64) -> f64 {
        let figures = self.samples.iter().map(|(_, figure)| *figure);
        let least = figures.fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 0.0 };
        self.line.at(batch).max(least)
    }
}

/// Seconds to move the requests of a batch, by route.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transfers {
    /// Fit of the channel within a device.
    pub same_device: CurveFit,
    /// Between devices of one host.
    pub same_host: CurveFit,
    /// Between hosts.
    pub network: CurveFit,
}

impl Transfers {
    /// `T_i(b)` for requests of this size.
    fn new(channels: &Channels, bytes: f64, largest: f64) -> Result<Self, PlacementError> {
        let fitted = |route| transfer(channels.of(route), bytes).ok_or(PlacementError::Channel { route });
        let transfers = Self {
            same_device: fitted(Route::SameDevice)?,
            same_host: fitted(Route::SameHost)?,
            network: fitted(Route::Network)?,
        };
        let ways = [
            (Route::SameDevice, Route::SameHost),
            (Route::SameHost, Route::Network),
        ];
        for (near, far) in ways {
            for batch in [1.0, largest] {
                let (near_s, far_s) = (
                    transfers.of(near).of_batch(batch),
                    transfers.of(far).of_batch(batch),
                );
                if near_s > far_s {
                    return Err(PlacementError::ChannelOrder {
                        bytes: bytes * batch,
                        near,
                        near_s,
                        far,
                        far_s,
                    });
                }
            }
        }
        Ok(transfers)
    }

    /// Returns the fit for a route.
    pub fn of(&self, route: Route) -> &CurveFit {
        match route {
            Route::SameDevice => &self.same_device,
            Route::SameHost => &self.same_host,
            Route::Network => &self.network,
        }
    }
}

/// A channel's line over bytes, read as one over requests of this many bytes.
fn transfer(channel: &Channel, bytes: f64) -> Option<CurveFit> {
    match channel {
        Channel::Given {
            latency_s,
            bytes_per_s,
        } => Some(CurveFit {
            line: LinearFit {
                intercept: *latency_s,
                slope: bytes / bytes_per_s,
                r2: 1.0,
            },
            samples: Vec::new(),
        }),
        Channel::Measured { samples } => {
            let line = LinearFit::of(samples.iter().map(|sample| (sample.bytes, sample.seconds)))?;
            Some(CurveFit {
                line: LinearFit {
                    intercept: line.intercept.max(0.0),
                    slope: line.slope.max(0.0) * bytes,
                    r2: line.r2,
                },
                samples: samples
                    .iter()
                    .filter(|_| bytes > 0.0)
                    .map(|sample| (sample.bytes / bytes, sample.seconds))
                    .filter(|(batch, _)| *batch > 0.0)
                    .collect(),
            })
        }
    }
}

/// The cost of a variant, by batch size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curves {
    /// The variant.
    pub variant: String,
    /// Latency of a batch, seconds: `l_i(b)`.
    pub latency: CurveFit,
    /// Share of the device kept busy while a batch runs, in (0, 1], as measured.
    pub utilisation: CurveFit,
    /// Kernel time of a batch, seconds: the product of the two, which over the length of a period is the paper's kernel utilisation
    /// `u_i(b)` (§V-B).
    pub kernel: CurveFit,
    /// Active memory, bytes: `w_i(b)`.
    pub memory: CurveFit,
    /// Seconds to move a batch's requests to the next model: `T_i(b)`.
    pub forward: Transfers,
    /// Seconds to move a batch's hidden states to the next partition.
    pub hidden: Transfers,
    /// The largest batch that was measured: no copy gets a larger one, because its cost is unknown.
    pub largest: u32,
}

impl Curves {
    /// The lines of a profiled variant.
    ///
    /// # Errors
    /// A [`PlacementError`] that names the batch size whose figure is missing or no number.
    pub(super) fn new(profiled: &VariantProfile, options: &PlacementOptions) -> Result<Self, PlacementError> {
        let mut points = Points::default();
        for cost in &profiled.costs {
            points.add(profiled, cost, options)?;
        }
        let fitted = |samples: Vec<(f64, f64)>, figure| {
            CurveFit::new(samples).ok_or_else(|| PlacementError::Hole {
                variant: profiled.name.clone(),
                batch: 1,
                figure,
            })
        };
        let largest = profiled.costs.last().map_or(1.0, |cost| f64::from(cost.batch));
        let hidden = options.hidden_bytes.get(&profiled.name).copied().unwrap_or(0.0);
        Ok(Self {
            variant: profiled.name.clone(),
            latency: fitted(points.latency, Figure::Latency)?,
            utilisation: fitted(points.utilisation, Figure::Utilisation)?,
            kernel: fitted(points.kernel, Figure::Utilisation)?,
            memory: fitted(points.memory, Figure::Memory)?,
            forward: Transfers::new(&options.channels, options.request_bytes, largest)?,
            hidden: Transfers::new(&options.channels, hidden, largest)?,
            largest: profiled.costs.last().map_or(1, |cost| cost.batch),
        })
    }
}

#[derive(Default)]
struct Points {
    latency: Vec<(f64, f64)>,
    utilisation: Vec<(f64, f64)>,
    kernel: Vec<(f64, f64)>,
    memory: Vec<(f64, f64)>,
}

impl Points {
    fn add(
        &mut self,
        profiled: &VariantProfile,
        cost: &BatchCost,
        options: &PlacementOptions,
    ) -> Result<(), PlacementError> {
        let batch = f64::from(cost.batch);
        let sound = |figure, found: f64, holds: bool| {
            if holds && found.is_finite() {
                Ok(found)
            } else {
                Err(PlacementError::NotAFigure {
                    variant: profiled.name.clone(),
                    batch: cost.batch,
                    figure,
                    found,
                })
            }
        };
        let required = |figure, found: Option<f64>| {
            found.ok_or_else(|| PlacementError::Hole {
                variant: profiled.name.clone(),
                batch: cost.batch,
                figure,
            })
        };
        let latency = sound(Figure::Latency, cost.latency_s, cost.latency_s > 0.0)?;
        let whole = options.assumed.whole_device.then_some(1.0);
        let share = required(Figure::Utilisation, cost.utilisation.or(whole))?;
        let share = sound(Figure::Utilisation, share, share > 0.0 && share <= 1.0)?;
        let per_weight = options.assumed.bytes_per_parameter;
        let weights = per_weight.map(|bytes| bytes * profiled.parameters as f64);
        let measured = cost.memory_bytes.map(|bytes| bytes as f64);
        let memory = required(Figure::Memory, measured.or(weights))?;
        let memory = sound(Figure::Memory, memory, memory > 0.0)?;
        self.latency.push((batch, latency));
        self.utilisation.push((batch, share));
        self.kernel.push((batch, share * latency));
        self.memory.push((batch, memory));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
