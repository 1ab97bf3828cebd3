//! Transfer times between devices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The connection between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// The same device.
    SameDevice,
    /// A host's bus.
    SameHost,
    /// The network.
    Network,
}

/// Transfer time by the connection between the devices (`T(g, g')`, §V-A).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Channel within a device.
    pub same_device: Channel,
    /// Channel between devices of one host.
    pub same_host: Channel,
    /// Channel between hosts.
    pub network: Channel,
}

impl Channels {
    /// Figures of a usual machine, stated and not measured: 10 us and 100 GB/s on a device, 50 us and 10 GB/s over the bus of a
    /// host, 300 us and 1.25 GB/s (10 Gbit/s) over the network.
    pub fn stated() -> Self {
        let given = |latency_s, bytes_per_s| Channel::Given {
            latency_s,
            bytes_per_s,
        };
        Self {
            same_device: given(10e-6, 100e9),
            same_host: given(50e-6, 10e9),
            network: given(300e-6, 1.25e9),
        }
    }

    /// The JSON Schema of a file of channels.
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// The channel of a route.
    pub fn of(&self, route: Route) -> &Channel {
        match route {
            Route::SameDevice => &self.same_device,
            Route::SameHost => &self.same_host,
            Route::Network => &self.network,
        }
    }

    /// Returns the first route whose figures give no time.
    pub(super) fn unsound(&self) -> Option<Route> {
        let mut routes = [Route::SameDevice, Route::SameHost, Route::Network].into_iter();
        routes.find(|route| !self.of(*route).is_sound())
    }
}

/// One channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Channel {
    /// Two given figures.
    Given {
        /// Latency of a message of any size, seconds.
        latency_s: f64,
        /// Bandwidth, bytes per second.
        bytes_per_s: f64,
    },
    /// Messages whose time was measured; a line is fitted through them.
    Measured {
        /// The messages.
        samples: Vec<TransferSample>,
    },
}

/// A message whose time was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferSample {
    /// Size of the message, bytes.
    pub bytes: f64,
    /// Transfer time of the message, seconds.
    pub seconds: f64,
}

impl Channel {
    /// Returns whether the figures give a time of every message.
    fn is_sound(&self) -> bool {
        match self {
            Self::Given {
                latency_s,
                bytes_per_s,
            } => latency_s.is_finite() && *latency_s >= 0.0 && *bytes_per_s > 0.0 && !bytes_per_s.is_nan(),
            Self::Measured { samples } => {
                let sound = |sample: &TransferSample| {
                    sample.bytes.is_finite()
                        && sample.bytes >= 0.0
                        && sample.seconds.is_finite()
                        && sample.seconds >= 0.0
                };
                !samples.is_empty() && samples.iter().all(sound)
            }
        }
    }
}
