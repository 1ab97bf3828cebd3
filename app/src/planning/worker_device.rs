//! Determines the device with which a worker is planned.

use kaskade_models::DeviceChoice;

use crate::config::{App, WorkerConfig};
use crate::planning::PlanningError;

/// Returns the common device of all variants on a worker, since planners model one device per worker. Remote variants
/// have no device.
///
/// # Errors
/// [`PlanningError::SeveralDevices`] if two variants run on different devices of the worker.
pub(super) fn worker_device(app: &App, worker: &WorkerConfig) -> Result<DeviceChoice, PlanningError> {
    let mut variants = app.variants.iter().filter(|variant| variant.remote.is_none());
    let Some(first) = variants.next() else {
        return Ok(app.device_of_worker(worker));
    };
    let device = app.device_on(worker, first);
    match variants.find(|variant| app.device_on(worker, variant) != device) {
        None => Ok(device),
        Some(other) => Err(PlanningError::SeveralDevices {
            worker: worker.name.to_string(),
            variants: [&first.name, &other.name].map(ToString::to_string),
            devices: [device, app.device_on(worker, other)].map(|device| device.to_string()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::{allocator, gears};

    fn app(workers: &str) -> App {
        let variant = |name: &str, device: &str| {
            format!("[[variants]]\nname = \"{name}\"\ndir = \"{name}\"\n{device}\n")
        };
        let (small, large) = (variant("small", "device = \"cuda:1\""), variant("large", ""));
        App::parse(&format!(
            "name = \"a\"\ntask = \"classification\"\n{small}{large}{workers}"
        ))
        .unwrap()
    }

    /// Regression: plans moved variants to the worker's device, although they were profiled on another.
    #[test]
    fn variants_on_different_devices_of_a_worker_are_refused() {
        let app = app("");
        let error = gears::devices(&app, 1).unwrap_err().to_string();
        for part in [
            "`small`",
            "`cuda:1`",
            "`large`",
            "`cpu`",
            "[[workers]]",
            "`local`",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(allocator::slots(&app).unwrap_err().to_string(), error);
    }

    #[test]
    fn a_worker_has_the_device_of_its_variants() {
        let of_worker = app("[[workers]]\nname = \"w\"\ndevice = \"cuda:2\"\n");
        assert_eq!(gears::devices(&of_worker, 1).unwrap()[0].device, "cuda:2");
        let mut of_variants = app("");
        of_variants.variants[1].device = Some(DeviceChoice::Cuda(1));
        assert_eq!(gears::devices(&of_variants, 1).unwrap()[0].device, "cuda:1");
        let remote = "[[variants]]\nname = \"far\"\n[variants.remote]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\n\
                      labels = [\"no\", \"yes\"]\n";
        let mut with_remote = of_variants.clone();
        with_remote.variants.extend(app(remote).variants.pop());
        assert_eq!(gears::devices(&with_remote, 1).unwrap()[0].device, "cuda:1");
        assert_eq!(allocator::slots(&of_variants).unwrap()[0].device, "cuda:1");
    }
}
