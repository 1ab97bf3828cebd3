//! Errors of the placement planner, with the flags that help.

use kaskade::planners::placement::{Figure, PlacementError};

/// Returns the planner's reason and the flags of `kaskade plan placement` that change it.
pub(super) fn of(error: &PlacementError) -> anyhow::Error {
    match flags(error) {
        "" => anyhow::Error::new(error.clone()),
        flags => anyhow::anyhow!("{error} ({flags})"),
    }
}

fn flags(error: &PlacementError) -> &'static str {
    match error {
        PlacementError::NoDevices => "`--devices N`, or `--app FILE` with workers",
        PlacementError::Channel { .. } | PlacementError::ChannelOrder { .. } => {
            "`--channels FILE`; `kaskade schema channels` prints its format"
        }
        PlacementError::Hole {
            figure: Figure::Memory,
            ..
        } => "`--bytes-per-weight 4` for 32-bit floats",
        PlacementError::Hole {
            figure: Figure::Utilisation,
            ..
        } => "`--whole-device`",
        PlacementError::Hole { .. } | PlacementError::NotAFigure { .. } | PlacementError::Profile(_) => {
            "`kaskade profile` measures it"
        }
        PlacementError::NoVariant { .. }
        | PlacementError::Cascade(_)
        | PlacementError::NotACascade { .. } => {
            "`kaskade plan cascade` makes one from the same profile; without `--cascade` it is made here"
        }
        PlacementError::TooLarge { .. } => {
            "`--memory`, `--devices` and `--max-partitions`; `--layers` and an app's checkpoints bound the last"
        }
        PlacementError::NoMemory { .. } => "`--memory` and `--devices`",
        PlacementError::Overloaded { .. } | PlacementError::Unplaced { .. } => {
            "`--rate`, `--devices`, `--memory` and `--utilisation`"
        }
        PlacementError::Option { .. } | PlacementError::Plan(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_comes_first_and_the_flags_after_it() {
        let hole = PlacementError::Hole {
            variant: "large".to_owned(),
            batch: 4,
            figure: Figure::Memory,
        };
        let message = of(&hole).to_string();
        assert!(message.starts_with(&hole.to_string()), "{message}");
        assert!(
            message.ends_with("(`--bytes-per-weight 4` for 32-bit floats)"),
            "{message}"
        );
    }
}
