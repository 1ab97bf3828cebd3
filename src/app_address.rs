//! The app that a client command addresses: by name, or by its file.

use std::path::PathBuf;
use std::time::Duration;

use kaskade_actors::bus::BusConfig;
use kaskade_actors::subjects;
use kaskade_app::config::App;
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::serving::Connection;
use kaskade_app::serving::client::DEFAULT_BUDGET;

use crate::args::Broker;

/// The app to send requests to; exactly one of the two.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "target", required = true, multiple = false)]
pub(crate) struct TargetArgs {
    /// Name of a running app, at the broker of `--nats`, or else at `nats://127.0.0.1:4222`.
    #[arg(value_name = "APP", value_parser = app_name)]
    app_name: Option<String>,
    /// The TOML file of the app, for its name, its `[nats]` settings and its data sets.
    #[arg(long = "app", value_name = "FILE")]
    app_file: Option<PathBuf>,
}

/// The app to send requests to, and the connection to its broker.
#[derive(Debug)]
pub(crate) struct Target {
    name: String,
    app: Option<App>,
    connection: Connection,
}

impl TargetArgs {
    /// Reads the app's file, if one is given.
    pub(crate) fn read(&self, broker: &Broker) -> anyhow::Result<Target> {
        let app = self.app_file.as_deref().map(App::load).transpose()?;
        let named = || self.app_name.clone().unwrap_or_default();
        Ok(Target {
            name: app.as_ref().map_or_else(named, |app| app.name.to_string()),
            app,
            connection: broker.connection()?,
        })
    }
}

impl Target {
    /// Returns the app's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the app's file, if it is given.
    pub(crate) fn app(&self) -> Option<&App> {
        self.app.as_ref()
    }

    /// Returns the app to start in this process: a file is given, and no nats-server is named.
    pub(crate) fn in_process(&self) -> Option<&App> {
        self.app().filter(|app| self.connection.url(app).is_none())
    }

    /// Returns the connection to the running app.
    pub(crate) fn client(&self, role: &str) -> BusConfig {
        match &self.app {
            Some(app) => self.connection.client_of(app, role),
            None => self.connection.client(&self.name, role),
        }
    }

    /// Returns the connection to an app in this process, which shares its embedded broker.
    pub(crate) fn shared(&self, app: &App, role: &str) -> BusConfig {
        self.connection.bus(app, role)
    }

    /// Returns the time budget of a request: the given one, that of the app's file, or the default.
    pub(crate) fn budget(&self, given: Option<HumanDuration>) -> Duration {
        let of_app = || self.app().map(|app| app.ingress.default_budget);
        given
            .or_else(of_app)
            .map_or(DEFAULT_BUDGET, HumanDuration::duration)
    }
}

fn app_name(text: &str) -> Result<String, String> {
    let hint = if text.contains('.') || text.contains('/') {
        "; a file is given with `--app FILE`"
    } else {
        ""
    };
    subjects::App::new(text).map_err(|error| format!("{error}{hint}"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_place_of_a_name_is_explained() {
        assert_eq!(app_name("digits"), Ok("digits".to_owned()));
        assert!(app_name("app.toml").unwrap_err().contains("--app FILE"));
    }
}
