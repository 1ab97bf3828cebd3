//! Loading an app from its file, and resolving the paths in it.

use std::path::{Path, PathBuf};

use super::App;
use super::connection::NatsConfig;
use super::error::{ConfigError, read};
use super::family_file::FamilyFile;
use super::variant::PlanSource;

impl App {
    /// Loads an app from its file, and from the family file that it names. Relative paths in a file become relative to the
    /// file's folder; a `$NAME` at the beginning of a path of data is replaced by the environment variable.
    ///
    /// # Errors
    /// [`ConfigError`] with the line of the first malformed value, or else with every inconsistency.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let app = Self::read(path)?;
        let problems = app.problems();
        app.without(problems, path)
    }

    /// Loads an app as [`App::load`] does, but does not require the plan and the profiles that it names: profiling and planning write
    /// them.
    ///
    /// # Errors
    /// As [`App::load`].
    pub fn load_to_plan(path: &Path) -> Result<Self, ConfigError> {
        let app = Self::read(path)?;
        let problems = app.planning_problems();
        app.without(problems, path)
    }

    /// Loads an app as [`App::load`] does, but does not require the files of its data sets, which a process that serves does not read,
    /// nor its plan, which may be stored.
    ///
    /// # Errors
    /// As [`App::load`].
    pub fn load_to_serve(path: &Path) -> Result<Self, ConfigError> {
        let app = Self::read(path)?;
        let problems = app.serving_problems();
        app.without(problems, path)
    }

    fn without(self, problems: Vec<String>, path: &Path) -> Result<Self, ConfigError> {
        if problems.is_empty() {
            return Ok(self);
        }
        Err(ConfigError::Inconsistent {
            path: path.to_owned(),
            problems,
        })
    }

    /// Reads an app and its family, with resolved paths.
    fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_text(&read(path)?, path)
    }

    /// Reads an app from the text that the file at `path` is to have, and checks what it names, as [`App::load_to_plan`] does.
    ///
    /// # Errors
    /// As [`App::load_to_plan`].
    pub(crate) fn of_text(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let app = Self::read_text(text, path)?;
        let problems = app.planning_problems();
        app.without(problems, path)
    }

    fn read_text(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut app = Self::parse(text).map_err(|(line, reason)| ConfigError::Malformed {
            path: path.to_owned(),
            line,
            reason,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        app.resolve(folder);
        app.data.resolve(folder, |name| std::env::var_os(name));
        if let Some(file) = &app.family {
            let family = FamilyFile::load(&folder.join(file))?;
            app = app.with_family(family);
        }
        Ok(app)
    }

    /// Makes relative paths relative to `folder`, the folder of the file; [`DataSets::resolve`] does so for paths of data.
    fn resolve(&mut self, folder: &Path) {
        for variant in &mut self.variants {
            variant.resolve(folder);
        }
        let mut paths: Vec<&mut PathBuf> = Vec::new();
        if let PlanSource::File(path) = &mut self.plan {
            paths.push(path);
        }
        paths.extend(self.planner.as_mut().map(|planner| &mut planner.profile));
        paths.extend(
            self.pipeline
                .as_mut()
                .and_then(|pipeline| pipeline.profile.as_mut()),
        );
        let NatsConfig {
            credentials,
            nkey,
            ca,
            certificate,
            key,
            ..
        } = &mut self.nats;
        paths.extend([credentials, nkey, ca, certificate, key].into_iter().flatten());
        paths.extend(self.gateway.keys.values_mut().map(|tenant| &mut tenant.key_file));
        let tls = self.gateway.tls.iter_mut();
        paths.extend(tls.flat_map(|tls| [&mut tls.certificate, &mut tls.key]));
        for path in paths {
            *path = folder.join(&path);
        }
    }
}
