//! A day as pictures (Loki Figures 5 and 6).

use std::path::{Path, PathBuf};

use kaskade_app::charts::panels::{self, Panel, Panels, Series};
use kaskade_app::report;
use kaskade_simulator::Bucket;

use super::day::{Day, missed};
use super::field::Run;
use crate::charts::bars::{self, Bars};
use crate::charts::over_time;

impl Day<'_> {
    /// The course and the violations as pictures; gives their files.
    ///
    /// # Errors
    /// When a picture cannot be drawn or written.
    pub(super) fn draw(&self, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let course = folder.join(format!("loki-day-{}.svg", self.paper.name));
        report::write_file(&course, &panels::svg(&self.course())?)?;
        let violations = folder.join(format!("loki-violations-{}.svg", self.paper.name));
        report::write_file(&violations, &bars::svg(&self.violations())?)?;
        Ok(vec![course, violations])
    }

    fn course(&self) -> Panels {
        let length_us = self.field.bucket_us();
        let runs = [self.loki, self.inferline, self.proteus];
        let series = |runs: &[&Run], of: &dyn Fn(&Bucket) -> f64| {
            let each = runs
                .iter()
                .map(|run| over_time(run.contestant.name(), &run.course, of));
            each.collect::<Vec<_>>()
        };
        let moments = self.transitions();
        let panel = |axis: &str, series: Vec<Series>| Panel {
            axis: axis.to_owned(),
            series,
            moments: moments.clone(),
            ..Panel::default()
        };
        let demand = over_time("demand", &self.loki.course, |bucket| bucket.qps);
        Panels {
            title: format!(
                "{}: a day; upright: between hardware and accuracy scaling",
                self.field.pipeline.name
            ),
            axis: "time (s)".to_owned(),
            rows: vec![
                panel(
                    "accuracy (%)",
                    series(&runs, &|bucket| {
                        bucket.path_accuracy.map_or(f64::NAN, |accuracy| 100.0 * accuracy)
                    }),
                ),
                panel(
                    "workers in use (%)",
                    series(&runs, &|bucket| {
                        100.0 * bucket.active_devices / f64::from(self.field.workers)
                    }),
                ),
                panel(
                    "SLO violations (%)",
                    series(&runs, &|bucket| {
                        100.0 * missed(std::iter::once(bucket), length_us)
                    }),
                ),
                panel("demand (requests/s)", vec![demand]),
            ],
        }
    }

    /// When Loki began to scale accuracy, and ended, seconds; none where that is too often to be seen.
    fn transitions(&self) -> Vec<f64> {
        const MAX_PICTURES: usize = 8;
        let hardware = self.hardware();
        let marked = self.loki.course.iter().zip(&hardware);
        let mut before = hardware.first().copied();
        let mut moments = Vec::new();
        for (bucket, hardware) in marked {
            if before != Some(*hardware) {
                moments.push(bucket.from_us as f64 / 1e6);
                before = Some(*hardware);
            }
        }
        moments.truncate(if moments.len() > MAX_PICTURES {
            0
        } else {
            MAX_PICTURES
        });
        moments
    }

    fn violations(&self) -> Bars {
        let runs = [self.loki, self.inferline, self.proteus, self.patient];
        let hardware = self.hardware();
        let accuracy: Vec<bool> = hardware.iter().map(|hardware| !hardware).collect();
        let marks = [
            ("the whole day", vec![true; hardware.len()]),
            ("hardware scaling", hardware),
            ("accuracy scaling", accuracy),
            ("the peak", self.peak()),
        ];
        let groups = marks.into_iter().map(|(name, marks)| {
            let heights = runs.iter().map(|run| 100.0 * self.missed_where(run, &marks));
            (name.to_owned(), heights.collect())
        });
        Bars {
            title: format!("{}: requests that miss their objective", self.field.pipeline.name),
            axis: "SLO violations (%)".to_owned(),
            names: runs.iter().map(|run| run.contestant.name().to_owned()).collect(),
            groups: groups.collect(),
        }
    }
}
