//! Exports traces as configured by the app's file and the environment.

use kaskade_telemetry::{Exporter, ExporterConfig, TelemetryError};

use crate::config::App;

/// Environment variables of OpenTelemetry (specification, "OTLP exporter").
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

/// Starts to export the process's traces if the app's file or the environment states a collector. Dropping the exporter
/// sends the remaining spans.
///
/// # Errors
/// [`TelemetryError`].
pub fn start(app: &App) -> Result<Option<Exporter>, TelemetryError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    config(app, variable)
        .map(|config| Exporter::start(&config))
        .transpose()
}

fn config(app: &App, variable: impl Fn(&str) -> Option<String>) -> Option<ExporterConfig> {
    let endpoint = variable(TRACES_ENDPOINT).or_else(|| variable(ENDPOINT));
    let endpoint = endpoint.or_else(|| app.telemetry.otlp.clone())?;
    let service = variable(SERVICE_NAME).unwrap_or_else(|| app.name.to_string());
    let mut config = ExporterConfig::new(endpoint, service);
    config.sample = app.telemetry.sample.get();
    let headers = variable(HEADERS).unwrap_or_default();
    let pairs = headers.split(',').filter_map(|pair| pair.split_once('='));
    config.headers = pairs
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(more: &str) -> App {
        let text = format!("name = \"digits\"\n{more}\n[[variants]]\nname = \"a\"\ndir = \"a\"\n");
        App::parse(&text).unwrap()
    }

    #[test]
    fn the_environment_overrides_the_file_and_without_both_nothing_is_exported() {
        let none = |_: &str| None;
        assert_eq!(config(&app(""), none), None);
        let file = app("telemetry = { otlp = \"http://file:4318\", sample = 0.5 }");
        let found = config(&file, none).unwrap();
        assert_eq!(
            (found.endpoint.as_str(), found.service.as_str()),
            ("http://file:4318", "digits")
        );
        assert!((found.sample - 0.5).abs() < 1e-9);
        let found = config(&file, |name| match name {
            ENDPOINT => Some("http://env:4318".to_owned()),
            HEADERS => Some("api-key = k, x=y=z".to_owned()),
            SERVICE_NAME => Some("front".to_owned()),
            _ => None,
        });
        let found = found.unwrap();
        assert_eq!(
            (found.endpoint.as_str(), found.service.as_str()),
            ("http://env:4318", "front")
        );
        assert_eq!(found.headers[1], ("x".to_owned(), "y=z".to_owned()));
    }
}
